//! The connections of one client, one after the other.

#![expect(clippy::disallowed_methods, reason = "waits before it connects again")]

use std::pin::Pin;
use std::time::Duration;

use tidings_protocol::{Code, MemberId, partial_debug};
use tokio::time::{Instant, sleep, timeout};

use crate::backoff::Backoff;
use crate::connection::{Client, ClientOptions, Deliveries, connect};
use crate::error::ClientError;
use crate::group::GroupSetup;

/// A connection that a [`Connector`] has opened.
#[derive(Debug)]
pub struct Connection {
    /// Sends commands.
    pub client: Client,
    /// Receives what is not an answer.
    pub deliveries: Deliveries,
    /// A moment before the `HELLO` was sent, for comparing the broker's clock with this one.
    pub started: Instant,
}

type Attempt = Pin<Box<dyn Future<Output = Result<Connection, ClientError>> + Send>>;

/// Opens the connections of one client to one broker, one after the other, with the pauses of a
/// [`Backoff`] in between.
pub struct Connector {
    address: String,
    options: ClientOptions,
    /// The group that must exist.
    group: Option<GroupSetup>,
    backoff: Backoff,
    /// The pause before the last connection, and when that was opened.
    pause: Duration,
    opened: Option<Instant>,
    has_tried: bool,
    has_connected: bool,
    /// Nothing is final, except that another connection has replaced this one.
    is_persistent: bool,
    /// Kept here, so that a caller that drops [`connect`](Self::connect) again and again still
    /// connects.
    attempt: Option<Attempt>,
    /// A final error, after which no connection is opened.
    ended: Option<ClientError>,
}

partial_debug!(Connector { address });

impl Connector {
    /// Connections to an address as [`connect`] takes it.
    pub fn new(address: impl Into<String>, options: ClientOptions) -> Self {
        Self {
            address: address.into(),
            options,
            group: None,
            backoff: Backoff::default(),
            pause: Duration::ZERO,
            opened: None,
            has_tried: false,
            has_connected: false,
            is_persistent: false,
            attempt: None,
            ended: None,
        }
    }

    /// The same with other pauses.
    #[must_use]
    pub fn with_backoff(self, backoff: Backoff) -> Self {
        Self { backoff, ..self }
    }

    /// The same for a service that never gives up: nothing is final, except that another
    /// connection has resumed its member or has taken its cursor over.
    #[must_use]
    pub fn persistent(self) -> Self {
        Self { is_persistent: true, ..self }
    }

    /// The same for a worker of a group that may not exist: each connection begins with
    /// [`GroupSetup::ensure`].
    #[must_use]
    pub fn with_group(self, group: GroupSetup) -> Self {
        Self { group: Some(group), ..self }
    }

    /// The address of the broker.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Connections from the next one on resume this member.
    pub(crate) fn resume(&mut self, member: MemberId) {
        self.options.resume = Some(member);
    }

    /// Makes one attempt, the first one at once, every further one after a pause. Use
    /// [`is_final`](Self::is_final) to find out whether another attempt may succeed.
    ///
    /// Cancel-safe: if the future is dropped, the attempt goes on with the next call.
    pub async fn connect(&mut self) -> Result<Connection, ClientError> {
        if let Some(error) = &self.ended {
            return Err(error.clone());
        }
        if self.attempt.is_none() {
            let (pause, address, options, group) =
                (self.next_pause(), self.address.clone(), self.options.clone(), self.group.clone());
            self.attempt = Some(Box::pin(async move {
                if !pause.is_zero() {
                    sleep(pause).await;
                }
                let started = Instant::now();
                let after = options.connect_timeout;
                let (client, deliveries) = connect(&address, options).await?;
                if let Some(group) = group {
                    let ensured = timeout(after, group.ensure(&client)).await;
                    ensured.unwrap_or(Err(ClientError::Timeout { address, after }))?;
                }
                Ok(Connection { client, deliveries, started })
            }));
        }
        let attempt = self.attempt.as_mut().expect("it was just set");
        let connected = attempt.as_mut().await;
        self.attempt = None;
        if connected.is_ok() {
            (self.opened, self.has_connected) = (Some(Instant::now()), true);
        }
        connected
    }

    /// The pause before the next attempt. Pauses begin again after a connection that lived for
    /// longer than the pause before it. So a broker that closes each connection at once is left
    /// alone as if it could not be reached.
    fn next_pause(&mut self) -> Duration {
        if !std::mem::replace(&mut self.has_tried, true) {
            return Duration::ZERO;
        }
        if self.opened.take().is_some_and(|opened| opened.elapsed() > self.pause) {
            self.backoff.reset();
        }
        self.pause = self.backoff.next_pause();
        self.pause
    }

    /// Returns an error that ended a connection, as `Err` if it is final. Then no connection is
    /// opened again.
    pub(crate) fn lost(&mut self, error: ClientError) -> Result<ClientError, ClientError> {
        if self.is_final(&error) {
            self.ended = Some(error.clone());
            return Err(error);
        }
        Ok(error)
    }

    /// Whether no later attempt can succeed. A lost connection and a broker that cannot be reached
    /// are never final, and a refusal is, unless its code says that the same line may succeed
    /// later. What is wrong with the address, the certificates or the token file is final until a
    /// connection has succeeded: later it may be the moment at which an operator replaces them.
    pub fn is_final(&self, error: &ClientError) -> bool {
        match error {
            ClientError::Ended(refusal) if refusal.code == Code::Replaced => true,
            _ if self.is_persistent => false,
            ClientError::Connect { .. } | ClientError::Timeout { .. } | ClientError::Closed(_) => {
                false
            }
            ClientError::Tls { .. } | ClientError::Token(_) | ClientError::Protocol(_) => {
                !self.has_connected
            }
            ClientError::Refused(refusal) => !refusal.code.is_transient(),
            ClientError::Ended(refusal) => {
                matches!(refusal.code, Code::Header | Code::Garbage)
            }
            ClientError::TopicMissing { .. }
            | ClientError::OtherFilter { .. }
            | ClientError::OtherGroup { .. } => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use socket2::{Domain, Socket, Type};
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;

    // Without a paused clock: the system's connections would not keep up with it.
    #[tokio::test]
    async fn an_attempt_goes_on_although_its_future_is_dropped() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let mut connector = Connector::new(address, ClientOptions::default());
        let mut closed = 0;
        let mut failed = 0;
        while failed < 3 {
            tokio::select! {
                biased;
                accepted = listener.accept() => {
                    let (mut stream, _) = accepted.unwrap();
                    stream.write_all(b"Connected.  (PID 1)\r\n").await.unwrap();
                    closed += 1;
                }
                connected = connector.connect() => {
                    let error = connected.unwrap_err();
                    assert!(matches!(error, ClientError::Closed(_)), "{error}");
                    assert!(!connector.is_final(&error));
                    failed += 1;
                }
                // Shorter than every pause.
                () = sleep(Duration::from_millis(10)) => {}
            }
        }
        assert_eq!(closed, 3);
    }

    #[tokio::test]
    async fn the_first_of_several_addresses_that_answers_is_taken() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let answers = listener.local_addr().unwrap().to_string();
        // Nobody accepts there, and its queue is full: a connection attempt has no answer.
        let full = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        full.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
        full.listen(0).unwrap();
        let full = full.local_addr().unwrap().as_socket().unwrap();
        let wait = Duration::from_millis(100);
        let _queued: Vec<_> =
            std::iter::from_fn(|| std::net::TcpStream::connect_timeout(&full, wait).ok()).collect();
        for first in ["127.0.0.1:1".to_owned(), full.to_string()] {
            let addresses = format!("{first},{answers}");
            let mut connector = Connector::new(addresses, ClientOptions::default());
            let accepted = async { drop(listener.accept().await.unwrap()) };
            let ((), connected) = tokio::join!(accepted, connector.connect());
            let error = connected.unwrap_err();
            assert!(matches!(error, ClientError::Closed(_)), "{first}: {error}");
        }
        let mut nowhere = Connector::new("127.0.0.1:1,127.0.0.1:2", ClientOptions::default());
        let error = nowhere.connect().await.unwrap_err().to_string();
        assert!(error.contains("127.0.0.1:2"), "{error}");
    }

    #[test]
    fn pauses_grow_while_connections_do_not_live() {
        let mut connector = Connector::new("127.0.0.1:1", ClientOptions::default());
        assert_eq!(connector.next_pause(), Duration::ZERO);
        for longest in [100, 200, 400, 800, 1_600, 3_200, 5_000] {
            connector.opened = Some(Instant::now());
            let pause = connector.next_pause().as_millis();
            assert!((longest / 2..=longest).contains(&pause), "{longest}: {pause}");
        }
        connector.opened = Instant::now().checked_sub(Duration::from_secs(6));
        assert!(connector.next_pause().as_millis() <= 100);
    }

    #[test]
    fn only_an_operator_changes_what_is_final() {
        let refused = |code| ClientError::Refused(tidings_protocol::ProtocolError::new(code, "x"));
        let ended = |code| ClientError::Ended(tidings_protocol::ProtocolError::new(code, "x"));
        let mut connector = Connector::new("127.0.0.1:1", ClientOptions::default());
        for has_connected in [false, true] {
            connector.has_connected = has_connected;
            for error in [
                ClientError::Closed(String::new()),
                refused(Code::Limit),
                refused(Code::Busy),
                ended(Code::Closing),
                ended(Code::Revoked),
                ended(Code::Idle),
            ] {
                assert!(!connector.is_final(&error), "{error}");
            }
            for error in
                [refused(Code::Denied), refused(Code::Unauthenticated), ended(Code::Replaced)]
            {
                assert!(connector.is_final(&error), "{error}");
            }
            let token = ClientError::Token("cannot read it".to_owned());
            assert_eq!(connector.is_final(&token), !has_connected);
        }
    }
}

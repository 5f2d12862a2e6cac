//! A broker that a test plays: it accepts connections, and says what the test tells it to.

use tidings_protocol::field;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

use crate::{ClientOptions, Connector};

/// What the clock of the broker shows.
pub(crate) const CLOCK: u64 = 1_000_000;

/// The listener of a played broker.
pub(crate) struct ScriptedBroker(TcpListener);

impl ScriptedBroker {
    pub(crate) async fn new() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    pub(crate) fn connector(&self) -> Connector {
        Connector::new(self.0.local_addr().unwrap().to_string(), ClientOptions::default())
    }

    /// A connection after its `HELLO`.
    pub(crate) async fn accept(&self) -> ScriptedConnection {
        let (reader, writer) = TcpStream::into_split(self.0.accept().await.unwrap().0);
        let lines = BufReader::new(reader).lines();
        let mut connection = ScriptedConnection { lines, writer, hello: String::new() };
        connection.hello = connection.hear().await;
        let echo = field(&connection.hello, "echo").unwrap();
        let answer = format!("+OK tidings 0.1.0 id=1 clock={CLOCK} echo={echo} resume={:032x}", 5);
        connection.say(&answer).await;
        connection
    }
}

/// A connection of a played broker.
pub(crate) struct ScriptedConnection {
    lines: Lines<BufReader<OwnedReadHalf>>,
    writer: OwnedWriteHalf,
    pub(crate) hello: String,
}

impl ScriptedConnection {
    /// The next line that is not about the clock.
    pub(crate) async fn hear(&mut self) -> String {
        loop {
            let line = self.lines.next_line().await.unwrap().expect("the client is connected");
            if line != "PING" {
                return line;
            }
            self.say(&format!("PONG clock={CLOCK}")).await;
        }
    }

    pub(crate) async fn say(&mut self, line: &str) {
        self.writer.write_all(format!("{line}\r\n").as_bytes()).await.unwrap();
    }

    /// Expects a line, and answers it.
    #[track_caller]
    pub(crate) fn expect(&mut self, line: &str, answer: &str) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        async move {
            assert_eq!(self.hear().await, line, "at {caller}");
            self.say(answer).await;
        }
    }
}

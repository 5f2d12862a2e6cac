//! `tidings sub --signal`: writes events as files into a directory and signals a program that reads
//! them there.

#![expect(
    clippy::disallowed_methods,
    reason = "waits for the program, and before it connects again"
)]

use std::{future, path::PathBuf, time::Duration};

use tidings_connectors::signal::{Held, Schedule, Spool, Target, cursor_name};
use tidings_protocol::{
    Client, ClientError, Code, Command, CursorName, Deliveries, Delivery, Seq, StartAt, TopicName,
};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::{Cursor, LAST_MOVE_MAX, failed, in_words};
use crate::{
    address::BrokerAddress,
    failure::Failure,
    link,
    output::{note, printable},
    wire,
};

/// The name of the connection, as the broker shows it.
const NAME: &str = "tidings-sub";

/// The shortest and the longest wait before it connects again.
const RECONNECT_MIN: Duration = Duration::from_millis(100);
const RECONNECT_MAX: Duration = Duration::from_secs(5);

/// The interval of checks for room in the directory or on the disk.
const ROOM_RETRY: Duration = Duration::from_secs(1);

/// Events that are written before the program is signalled and the cursor moved.
const BATCH_MAX: u32 = 1_000;

/// The settings of `tidings sub --signal`.
pub(super) struct Spooling {
    pub(super) broker: BrokerAddress,
    pub(super) topic: TopicName,
    pub(super) from: Option<StartAt>,
    /// `None`: the cursor of the directory.
    pub(super) cursor: Option<CursorName>,
    pub(super) takeover: bool,
    pub(super) count: Option<u64>,
    pub(super) dir: PathBuf,
    pub(super) files_max: usize,
    pub(super) target: Target,
}

/// The state of one run.
struct Signaller {
    topic: TopicName,
    spool: Spool,
    files_max: usize,
    target: Target,
    schedule: Schedule,
    /// Why the last signal was not sent, which was reported.
    held: Option<Held>,
    /// The newest event that is in the directory.
    put: Option<Seq>,
    /// Events written since the last sync.
    unsynced: u32,
    /// The newest event that is synced with its directory.
    safe: Option<Seq>,
    /// The position of the stored cursor. stored <= safe <= put
    stored: Option<Seq>,
    left: Option<u64>,
}

/// The reason for the end of a connection.
enum End {
    /// `stop` was cancelled, or the count is reached.
    Over,
    Lost(ClientError),
}

/// Runs until the count is reached or it is stopped, and reconnects when the connection is lost.
pub(super) async fn run(spooling: Spooling, stop: CancellationToken) -> Result<(), Failure> {
    let Spooling { broker, topic, from, cursor, mut takeover, count, dir, files_max, target } =
        spooling;
    let unusable = |error: std::io::Error| {
        Failure::failed(format!(
            "cannot use {}: {error}",
            printable(&dir.display().to_string(), 500)
        ))
    };
    let spool = Spool::open(&dir, topic.clone()).map_err(unusable)?;
    let cursor = match cursor {
        Some(cursor) => cursor,
        None => cursor_name(&dir).map_err(unusable)?,
    };
    let mut signaller = Signaller {
        topic: topic.clone(),
        spool,
        files_max,
        target,
        schedule: Schedule::new(),
        held: None,
        put: None,
        unsynced: 0,
        safe: None,
        stored: None,
        left: count,
    };
    // An earlier run may have left files that the program does not know.
    signaller.schedule.filled(Instant::now().into_std());
    let mut connection = link::connect(&broker, NAME).await?;
    let mut is_first = true;
    loop {
        let (client, deliveries) = &mut connection;
        let sub =
            Command::Sub { topic: topic.clone(), from, cursor: Some(cursor.clone()), takeover };
        let end = match client.request(&sub).await {
            Ok(_) => {
                if std::mem::take(&mut is_first) {
                    note(&format!("spooling {topic} as {cursor}"));
                }
                signaller.serve(client, deliveries, &stop).await?
            }
            Err(error @ ClientError::Refused(_)) => return Err(failed(&broker, &error)),
            Err(lost) => End::Lost(lost),
        };
        let lost = match end {
            End::Over => return signaller.finish(&broker, connection).await,
            End::Lost(ClientError::Ended(error)) if error.code == Code::Replaced => {
                return Err(failed(&broker, &ClientError::Ended(error)));
            }
            End::Lost(lost) => lost,
        };
        let lost = wire::client_error(&lost);
        note(&format!("{broker}: {lost}; reconnecting"));
        // The broker may not know yet that the old connection is gone.
        takeover = true;
        let mut pause = RECONNECT_MIN;
        connection = loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return signaller.sync().map(drop),
                // The program is signalled with or without a broker.
                sent = signaller.signal_when_due() => sent?,
                () = sleep(pause) => match link::try_connect(&broker, NAME).await {
                    Ok(connection) => break connection,
                    Err(_still_gone) => pause = (pause * 2).min(RECONNECT_MAX),
                },
            }
        };
    }
}

impl Signaller {
    /// Writes events to the directory and sends signals, until the connection ends.
    async fn serve(
        &mut self,
        client: &Client,
        deliveries: &mut Deliveries,
        stop: &CancellationToken,
    ) -> Result<End, Failure> {
        let topic = self.topic.clone();
        let mut cursor = Some(Cursor::new(client, &topic));
        loop {
            if self.left == Some(0) {
                return Ok(End::Over);
            }
            if let Some(cursor) = cursor.as_mut().filter(|cursor| cursor.is_ready()) {
                cursor.move_behind(self.safe).await;
            }
            let has_room =
                self.spool.has_room(self.files_max).map_err(|error| unreadable(&error))?;
            let delivery = tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(End::Over),
                sent = self.signal_when_due() => {
                    sent?;
                    continue;
                }
                moved = Cursor::moved(&mut cursor) => match moved {
                    Ok(()) => {
                        self.stored = cursor.as_ref().and_then(|cursor| cursor.seen);
                        continue;
                    }
                    Err(error @ ClientError::Refused(_)) => return Ok(End::Lost(error)),
                    // If the connection is lost, the deliveries end too, with the reason.
                    Err(_gone) => continue,
                },
                delivery = deliveries.next(), if has_room && self.unsynced < BATCH_MAX => delivery,
                // No delivery waits, or the batch is full.
                () = future::ready(()), if self.unsynced > 0 => {
                    self.sync()?;
                    self.schedule.filled(Instant::now().into_std());
                    continue;
                }
                () = sleep(ROOM_RETRY), if !has_room => continue,
            };
            match delivery {
                Some(Delivery::Msg { seq, payload, .. }) => self.put(seq, &payload, stop).await?,
                Some(Delivery::Lag { topic, from, to }) => note(&in_words("lag", &topic, from, to)),
                Some(Delivery::Gap { topic, from, to }) => note(&in_words("gap", &topic, from, to)),
                Some(Delivery::Notice(error)) => {
                    note(&format!("note from the broker: {}", wire::rejection(&error)));
                }
                Some(Delivery::Task { .. } | Delivery::More(_)) => {}
                None => return Ok(End::Lost(deliveries.reason())),
            }
        }
    }

    /// Writes an event to the directory, and retries until there is room.
    async fn put(
        &mut self,
        seq: Seq,
        payload: &str,
        stop: &CancellationToken,
    ) -> Result<(), Failure> {
        if self.stored >= Some(seq) {
            // Events before the cursor are not delivered again, so the broker has lost its topic
            // and counts from 1 again.
            (self.put, self.safe, self.stored) = (None, None, None);
        }
        if self.put >= Some(seq) {
            // A new connection repeats the event; the program may have removed its file already.
            return Ok(());
        }
        let mut was_reported = false;
        while let Err(error) = self.spool.put(seq, payload) {
            if !std::mem::replace(&mut was_reported, true) {
                note(&format!("cannot write event {seq}: {error}; trying again"));
            }
            // The program makes room only if it is signalled.
            if self.unsynced > 0 && self.sync().is_ok() {
                self.schedule.filled(Instant::now().into_std());
            }
            let again = sleep(ROOM_RETRY);
            tokio::pin!(again);
            loop {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return Ok(()),
                    sent = self.signal_when_due() => sent?,
                    () = &mut again => break,
                }
            }
        }
        self.put = Some(seq);
        self.unsynced += 1;
        self.left = self.left.map(|left| left - 1);
        Ok(())
    }

    /// Syncs the written files; then the cursor may move.
    fn sync(&mut self) -> Result<(), Failure> {
        if self.unsynced > 0 {
            self.spool.sync().map_err(|error| unreadable(&error))?;
            (self.unsynced, self.safe) = (0, self.put);
        }
        Ok(())
    }

    /// Waits until a signal is due, and sends it. Cancel-safe.
    async fn signal_when_due(&mut self) -> Result<(), Failure> {
        match self.schedule.due() {
            Some(due) => sleep_until(due.into()).await,
            None => future::pending().await,
        }
        self.signal()
    }

    fn signal(&mut self) -> Result<(), Failure> {
        let files = self.spool.count().map_err(|error| unreadable(&error))?;
        if files == 0 {
            self.schedule.emptied();
            return Ok(());
        }
        let now = Instant::now().into_std();
        match self.target.send() {
            Ok(pid) => {
                if self.held.take().is_some() {
                    note(&format!("signalling process {pid}"));
                }
                self.schedule.signalled(files, now);
            }
            Err(held) => {
                if self.held.as_ref() != Some(&held) {
                    note(&format!("no signal sent: {held}"));
                    self.held = Some(held);
                }
                self.schedule.held(now);
            }
        }
        Ok(())
    }

    /// Sends the last signal, and moves the cursor after all events in the directory.
    async fn finish(
        mut self,
        broker: &BrokerAddress,
        (client, deliveries): (Client, Deliveries),
    ) -> Result<(), Failure> {
        self.sync()?;
        self.signal()?;
        // Undelivered events must not delay the last answers.
        drop(deliveries);
        match timeout(LAST_MOVE_MAX, Cursor::new(&client, &self.topic).finish(self.safe)).await {
            Ok(finished) => finished.map_err(|error| failed(broker, &error)),
            Err(_elapsed) => {
                let text = format!(
                    "{broker} did not confirm the cursor; some events may be delivered again"
                );
                Err(Failure::failed(text))
            }
        }
    }
}

fn unreadable(error: &std::io::Error) -> Failure {
    Failure::failed(format!("cannot use the spool directory: {error}"))
}

//! `tidings sub --signal`: writes events as files into a directory and signals a program that reads
//! them there.

#![expect(clippy::disallowed_methods, reason = "waits for the program, and before it reconnects")]

use std::future;
use std::path::Path;
use std::time::Duration;

use tidings_client::{ClientError, Subscriber, SubscriberEvent, Subscription};
use tidings_connectors::signal::{
    SignalError, SignalSchedule, SignalSpool, SignalTarget, cursor_name,
};
use tidings_protocol::{AttributeFilter, CursorName, Seq, TopicName};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{SubArgs, broker_failure, close, describe_missing, find_begin};
use crate::client::connection::LossNotes;
use crate::client::{broker_message, connection};
use crate::flags::address::BrokerAddress;
use crate::terminal::failure::Failure;
use crate::terminal::output::{note, printable};

/// The name of the connection, as the broker shows it.
const NAME: &str = "tidings-sub";

/// The interval of checks for room in the directory or on the disk.
const ROOM_RETRY: Duration = Duration::from_secs(1);

/// Events that are written before the program is signalled and the cursor moved.
const BATCH_MAX: u32 = 1_000;

/// The state of one run.
struct SpoolSignaller {
    topic: TopicName,
    spool: SignalSpool,
    files_max: usize,
    target: SignalTarget,
    schedule: SignalSchedule,
    /// Why the last signal was not sent, which was reported.
    blocked_by: Option<SignalError>,
    /// The newest event that is in the directory or does not match the filter.
    newest_put: Option<Seq>,
    /// Events written since the last sync.
    unsynced: u32,
    /// The newest event that is synced with its directory.
    synced: Option<Seq>,
    /// The position of the stored cursor. stored <= safe <= put
    stored: Option<Seq>,
    remaining: Option<u64>,
    cursor: CursorName,
    is_subscribed: bool,
    has_subscribed: bool,
    notes: LossNotes,
}

/// Runs until the count is reached or it is stopped, and reconnects when the connection is lost.
pub(super) async fn run(
    args: SubArgs,
    filter: AttributeFilter,
    dir: &Path,
    target: SignalTarget,
    stop: CancellationToken,
) -> Result<(), Failure> {
    let SubArgs { topic, from, cursor, takeover, count, spool_max, broker, .. } = args;
    let broker = broker.broker;
    let unusable = |error: std::io::Error| {
        Failure::failed(format!(
            "cannot use {}: {error}",
            printable(&dir.display().to_string(), 500)
        ))
    };
    let spool = SignalSpool::open(dir, topic.clone()).map_err(unusable)?;
    let cursor = match cursor {
        Some(cursor) => cursor,
        // The cursor of the directory.
        None => cursor_name(dir).map_err(unusable)?,
    };
    let mut signaller = SpoolSignaller {
        topic: topic.clone(),
        spool,
        files_max: usize::try_from(spool_max).unwrap_or(usize::MAX),
        target,
        schedule: SignalSchedule::new(),
        blocked_by: None,
        newest_put: None,
        unsynced: 0,
        synced: None,
        stored: None,
        remaining: count,
        cursor: cursor.clone(),
        is_subscribed: false,
        has_subscribed: false,
        notes: LossNotes::default(),
    };
    // An earlier run may have left files that the program does not know.
    signaller.schedule.file_added(Instant::now().into_std());
    let (connector, connected) = connection::open(&broker, NAME).await?;
    find_begin(&connected.client, &topic).await;
    let subscription = Subscription { topic, from, cursor: Some(cursor), takeover, filter };
    let subscriber = Subscriber::new(connector.persistent(), subscription).on(connected);
    signaller.serve(&broker, subscriber, &stop).await
}

impl SpoolSignaller {
    /// Writes events to the directory and sends signals, over as many connections as it takes.
    async fn serve(
        &mut self,
        broker: &BrokerAddress,
        mut subscriber: Subscriber,
        stop: &CancellationToken,
    ) -> Result<(), Failure> {
        loop {
            if self.remaining == Some(0) {
                return self.finish(broker, subscriber).await;
            }
            if let Some(seq) = self.synced.filter(|_| !subscriber.is_moving()) {
                subscriber.seen(seq);
            }
            let has_room =
                self.spool.has_room(self.files_max).map_err(|error| spool_failure(&error))?;
            subscriber.pause(!has_room || self.unsynced >= BATCH_MAX);
            let event = tokio::select! {
                biased;
                () = stop.cancelled() => {
                    if self.is_subscribed {
                        return self.finish(broker, subscriber).await;
                    }
                    return self.sync();
                }
                // The program is signalled with or without a broker.
                sent = self.signal_when_due() => {
                    sent?;
                    continue;
                }
                event = subscriber.next() => event,
                // No event waits, or the batch is full.
                () = future::ready(()), if self.unsynced > 0 => {
                    self.sync()?;
                    self.schedule.file_added(Instant::now().into_std());
                    continue;
                }
                () = sleep(ROOM_RETRY), if !has_room => continue,
            };
            let event = event.map_err(|error| broker_failure(broker, &error))?;
            self.handle(broker, event, stop).await?;
        }
    }

    async fn handle(
        &mut self,
        broker: &BrokerAddress,
        event: SubscriberEvent,
        stop: &CancellationToken,
    ) -> Result<(), Failure> {
        match event {
            SubscriberEvent::Event { seq, payload } => self.put(seq, &payload, stop).await?,
            SubscriberEvent::Lag { from, to } => {
                note(&describe_missing("lag", &self.topic, from, to));
            }
            SubscriberEvent::Gap { from, to } => {
                note(&describe_missing("gap", &self.topic, from, to));
            }
            SubscriberEvent::Skipped(seq) => {
                self.newest_put = self.newest_put.max(Some(seq));
                if self.unsynced == 0 {
                    self.synced = self.newest_put;
                }
            }
            SubscriberEvent::Seen(seq) => self.stored = Some(seq),
            SubscriberEvent::Notice(error) => {
                note(&format!("note from the broker: {}", broker_message::rejection(&error)));
            }
            SubscriberEvent::Subscribed { .. } => {
                self.is_subscribed = true;
                self.notes.connected();
                if !std::mem::replace(&mut self.has_subscribed, true) {
                    note(&format!("spooling {} as {}", self.topic, self.cursor));
                }
            }
            // Later the reason may pass, such as a limit.
            SubscriberEvent::Refused(refusal) => {
                if !(self.has_subscribed && refusal.code.is_transient()) {
                    return Err(broker_failure(broker, &ClientError::Refused(refusal)));
                }
            }
            SubscriberEvent::Lost(error) => {
                self.is_subscribed = false;
                self.notes.lost(broker, error);
            }
        }
        Ok(())
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
            (self.newest_put, self.synced, self.stored) = (None, None, None);
        }
        if self.newest_put >= Some(seq) {
            // A new connection repeats the event; the program may have removed its file already.
            return Ok(());
        }
        let mut was_reported = false;
        while let Err(error) = self.spool.write_event(seq, payload) {
            if !std::mem::replace(&mut was_reported, true) {
                note(&format!("cannot write event {seq}: {error}; trying again"));
            }
            // The program makes room only if it is signalled.
            if self.unsynced > 0 && self.sync().is_ok() {
                self.schedule.file_added(Instant::now().into_std());
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
        self.newest_put = Some(seq);
        self.unsynced += 1;
        self.remaining = self.remaining.map(|left| left - 1);
        Ok(())
    }

    /// Syncs the written files; then the cursor may move.
    fn sync(&mut self) -> Result<(), Failure> {
        if self.unsynced > 0 {
            self.spool.sync().map_err(|error| spool_failure(&error))?;
            (self.unsynced, self.synced) = (0, self.newest_put);
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
        let files = self.spool.count().map_err(|error| spool_failure(&error))?;
        if files == 0 {
            self.schedule.emptied();
            return Ok(());
        }
        let now = Instant::now().into_std();
        match self.target.send() {
            Ok(pid) => {
                if self.blocked_by.take().is_some() {
                    note(&format!("signalling process {pid}"));
                }
                self.schedule.signalled(files, now);
            }
            Err(held) => {
                if self.blocked_by.as_ref() != Some(&held) {
                    note(&format!("no signal sent: {held}"));
                    self.blocked_by = Some(held);
                }
                self.schedule.no_process(now);
            }
        }
        Ok(())
    }

    /// Sends the last signal, and moves the cursor after all events in the directory.
    async fn finish(
        &mut self,
        broker: &BrokerAddress,
        subscriber: Subscriber,
    ) -> Result<(), Failure> {
        self.sync()?;
        self.signal()?;
        close(broker, subscriber, self.synced).await
    }
}

fn spool_failure(error: &std::io::Error) -> Failure {
    Failure::failed(format!("cannot use the spool directory: {error}"))
}

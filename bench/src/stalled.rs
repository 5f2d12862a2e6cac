//! What the others notice of a subscriber that stops reading, and what it gets when it reads again.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::thread;
use std::time::{Duration, Instant};

use crate::fan::Rates;
use crate::figure::number;
use crate::load::{Load, Size};
use crate::{Figure, Target, Watch, server};

/// How long nothing may come before it is clear that nothing more will.
const SILENCE: Duration = Duration::from_secs(3);

/// Pause after which a socket is looked at again.
const PAUSE: Duration = Duration::from_millis(1);

/// Bytes that are read at once from the one that had stopped.
const READ_BYTES: usize = 1 << 20;

/// A load of which one subscriber stops reading.
#[derive(Debug, Clone, Copy)]
pub struct Stalled {
    /// Connections that publish.
    pub publishers: usize,
    /// Connections that subscribe, of which one stops.
    pub subscribers: usize,
    /// Most events between what is published and what the slowest of the others has.
    pub window: u64,
    /// How long it is measured before and after.
    pub run: Duration,
    /// Time before.
    pub warm_up: Duration,
}

/// What became of the one that had stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It got everything.
    Everything,
    /// It was told of all that is gone.
    Told,
    /// Events are missing, and nobody said so.
    Lost,
    /// Its connection was closed.
    CutOff,
}

impl End {
    /// As it is written in results.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Everything => "everything",
            Self::Told => "told what is gone",
            Self::Lost => "lost without a word",
            Self::CutOff => "cut off",
        }
    }
}

impl Stalled {
    /// Measures it.
    pub fn measure(
        &self,
        target: Target<'_>,
        watch: &mut Watch<'_>,
    ) -> anyhow::Result<(Vec<Figure>, End)> {
        let size = Size {
            publishers: self.publishers,
            subscribers: self.subscribers,
            window: self.window,
        };
        let mut load = Load::connect(target, size, watch)?;
        load.run_until(Instant::now() + self.warm_up, watch)?;
        // The rate of those that go on, also before.
        let others = number(u64::try_from(self.subscribers - 1)?);
        let share = others / (others + 1.0);
        let mut before = Rates::new();
        before.run(&mut load, target, self.run, watch)?;
        let before: Vec<_> = before.deliveries().map(|rate| rate * share).collect();
        let memory_before = target.server.map(server::Server::resident_bytes).transpose()?;

        load.stall(0)?;
        let mut after = Rates::new();
        after.run(&mut load, target, self.run, watch)?;
        let after: Vec<_> = after.deliveries().collect();
        let memory_after = target.server.map(server::Server::resident_bytes).transpose()?;
        load.finish(watch)?;

        watch("the one that had stopped reads again")?;
        let caught = catch_up(&mut load, target, watch)?;
        let kept = after.iter().zip(&before).map(|(after, before)| after / before);
        let mut figures = vec![
            Figure::new("others_before_per_second", "others before, deliv./s", 0)
                .with(before.clone()),
            Figure::new("others_after_per_second", "others after, deliv./s", 0).with(after.clone()),
            Figure::new("others_kept", "part of the rate kept", 3).with(kept),
            Figure::new("stalled_missed_events", "stalled: missed so far", 0).with([caught.missed]),
            Figure::new("stalled_got_events", "stalled: got later", 0).with([caught.got]),
            Figure::new("stalled_told_events", "stalled: told gone", 0).with([caught.told]),
            Figure::new("stalled_seconds", "stalled: seconds", 1).with([caught.took.as_secs_f64()]),
        ];
        if let (Some(server), Some(before), Some(after)) =
            (target.server, memory_before, memory_after)
        {
            let grown = (number(after) - number(before)) / (1024.0 * 1024.0);
            figures.push(Figure::new("broker_grown_mib", "broker grown MiB", 1).with([grown]));
            figures.push(server::peak(server)?);
        }
        Ok((figures, caught.end))
    }
}

/// What the one that had stopped got.
struct CaughtUp {
    missed: f64,
    got: f64,
    told: f64,
    end: End,
    /// Time until the last byte came.
    took: Duration,
}

fn catch_up(
    load: &mut Load<'_>,
    target: Target<'_>,
    watch: &mut Watch<'_>,
) -> anyhow::Result<CaughtUp> {
    let (had, all) = load.bytes_of(0);
    let missed = load.events(all) - load.events(had);
    let mut buffer = vec![0; READ_BYTES];
    let (mut got, mut told, mut partial) = (0, 0, Vec::new());
    let began = Instant::now();
    let mut last = began;
    let is_closed = loop {
        match load.read_stalled(0, &mut buffer)? {
            Some(0) => break true,
            Some(bytes) => {
                last = Instant::now();
                partial.extend_from_slice(&buffer[..bytes]);
                let whole = memchr::memrchr(b'\n', &partial).map_or(0, |at| at + 1);
                let Some(caught) = target.wire.caught(&partial[..whole]) else {
                    partial.clear();
                    continue;
                };
                partial.drain(..whole);
                got += caught.events;
                told += caught.told;
                if got + told >= missed {
                    break false;
                }
            }
            None if load.bytes_of(0).0 >= all || last.elapsed() > SILENCE => break false,
            None => {
                watch("the one that had stopped reads again")?;
                thread::sleep(PAUSE);
            }
        }
    };
    if target.wire.caught(b"").is_none() {
        got = load.events(load.bytes_of(0).0) - load.events(had);
    }
    let end = match (is_closed, got + told >= missed, told) {
        (true, ..) => End::CutOff,
        (false, true, 0) => End::Everything,
        (false, true, _) => End::Told,
        (false, false, _) => End::Lost,
    };
    Ok(CaughtUp {
        missed: number(missed),
        got: number(got),
        told: number(told),
        end,
        took: last.saturating_duration_since(began),
    })
}

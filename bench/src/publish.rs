//! Confirmed publishes a second, and the bare loop beside it.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};

use crate::connection::{self, Outlet};
use crate::figure::number;
use crate::load::refuse;
use crate::poller::Poller;
use crate::server::Cost;
use crate::wire::Answers;
use crate::{Figure, Target, Watch, disk};

/// How often somebody is told how far it is.
const WATCH_EVERY: Duration = Duration::from_millis(200);

/// How long no confirmation may come while something is unconfirmed.
const PATIENCE: Duration = Duration::from_secs(30);

/// A load of publishes that are confirmed, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct Publish<'a> {
    /// Connections that publish.
    pub publishers: usize,
    /// Most publishes that are unconfirmed, all connections together.
    pub window: u64,
    /// Length of a run.
    pub run: Duration,
    /// Runs, on the same connections.
    pub runs: usize,
    /// Time before the first one.
    pub warm_up: Duration,
    /// Where the bare loop writes; none: there is no bare loop.
    pub bare_loop: Option<&'a Path>,
}

impl Publish<'_> {
    /// Measures it. An error, too, if a publish was refused or not confirmed.
    pub fn measure(
        &self,
        target: Target<'_>,
        watch: &mut Watch<'_>,
    ) -> anyhow::Result<Vec<Figure>> {
        let mut load = Confirming::connect(target, self.publishers, self.window)?;
        load.run_until(Instant::now() + self.warm_up, watch)?;
        let mut rate = Figure::new("confirmed_per_second", "confirmed publishes/s", 0);
        let mut cost = Cost::per_thousand_publishes();
        let key = "bare_loop_per_second";
        let mut bare = Figure::new(key, "bare loop, events/s", 0);
        let mut part = Figure::new("part_of_bare_loop", "part of the bare loop", 2);
        for _ in 0..self.runs {
            let (before, began) = (load.confirmed(), Instant::now());
            let costing = Cost::before(target.server)?;
            load.run_until(began + self.run, watch)?;
            let (work, took) = (number(load.confirmed() - before), began.elapsed());
            cost.after(costing, target.server, work, took)?;
            rate.runs.push(work / took.as_secs_f64());
            if let Some(dir) = self.bare_loop {
                // Nothing else is under way then: both have the disk for themselves.
                load.finish(watch)?;
                watch("a bare loop writes and syncs the same bytes")?;
                let piece = target.message().repeat(load.burst);
                let syncs = disk::bare_loop(dir, &piece, self.run)?;
                let per_second = syncs * number(u64::try_from(load.burst)?);
                bare.runs.push(per_second);
                part.runs.push(work / took.as_secs_f64() / per_second);
                load.stopped = false;
            }
        }
        load.finish(watch)?;
        let mut figures = vec![rate];
        if self.bare_loop.is_some() {
            figures.extend([bare, part]);
        }
        figures.extend(cost.figures(target.server)?);
        Ok(figures)
    }
}

/// Publishes so many events and returns when all are confirmed.
pub(crate) fn fill(
    target: Target<'_>,
    events: u64,
    window: u64,
    watch: &mut Watch<'_>,
) -> anyhow::Result<()> {
    let mut load = Confirming::connect(target, 1, window)?;
    let burst = u64::try_from(load.burst)?;
    ensure!(events.is_multiple_of(burst), "publish a multiple of {burst} events");
    load.most = events;
    load.run_until(Instant::now() + Duration::from_hours(1), watch)?;
    load.finish(watch)
}

/// The number of events next to this one that can be published in whole writes.
pub(crate) fn whole_writes(target: Target<'_>, events: u64, window: u64) -> anyhow::Result<u64> {
    let burst = u64::try_from(connection::burst(target.payload_bytes, window, 1))?;
    Ok(events.next_multiple_of(burst))
}

/// Publishers, each with its share of the window.
struct Confirming<'a> {
    target: Target<'a>,
    poller: Poller,
    ready: Vec<usize>,
    publishers: Vec<(Outlet, Account)>,
    burst: usize,
    share: u64,
    /// Most events that each publishes altogether.
    most: u64,
    stopped: bool,
    buffer: Vec<u8>,
}

impl<'a> Confirming<'a> {
    fn connect(target: Target<'a>, publishers: usize, window: u64) -> anyhow::Result<Self> {
        connection::prepare(&target)?;
        let confirmed = target.wire.confirmed(target.topic, &vec![b'x'; target.payload_bytes])?;
        // Every connection has its own share, and several writes under way.
        let share = (window / u64::try_from(publishers)?).max(1);
        let burst = connection::burst(target.payload_bytes, share, 1);
        let poller = Poller::new()?;
        let connect = |token| {
            let steps = target.wire.opening().into_iter().chain(confirmed.opening.clone());
            let socket = connection::open(target.address, steps)?;
            let outlet = Outlet::new(socket, confirmed.message.repeat(burst))?;
            poller.changes(outlet.socket(), token)?;
            anyhow::Ok((outlet, Account::new(confirmed.answers)))
        };
        let publishers_made = (0..publishers).map(connect).collect::<Result<_, _>>()?;
        Ok(Self {
            target,
            poller,
            ready: Vec::new(),
            publishers: publishers_made,
            burst,
            share,
            most: u64::MAX,
            stopped: false,
            buffer: vec![0; 64 * 1024],
        })
    }

    /// Publishes until then, or until everything is published.
    fn run_until(&mut self, end: Instant, watch: &mut Watch<'_>) -> anyhow::Result<()> {
        let mut shown = (Instant::now(), self.confirmed());
        loop {
            let now = Instant::now();
            if now >= end || self.published() >= self.most {
                return Ok(());
            }
            if now >= shown.0 + WATCH_EVERY {
                let count = self.confirmed();
                let per_second = number(count - shown.1) / (now - shown.0).as_secs_f64();
                watch(&format!("{:.0} thousand confirmed publishes/s", per_second / 1e3))?;
                shown = (now, count);
            }
            self.turn((end - now).min(WATCH_EVERY))?;
        }
    }

    /// Stops, and waits until everything is confirmed.
    fn finish(&mut self, watch: &mut Watch<'_>) -> anyhow::Result<()> {
        self.stopped = true;
        let mut last = (Instant::now(), self.confirmed());
        while self.publishers.iter().any(|(outlet, _)| !outlet.is_idle())
            || self.confirmed() < self.published()
        {
            watch("waiting for confirmations")?;
            if self.confirmed() > last.1 {
                last = (Instant::now(), self.confirmed());
            }
            if last.0.elapsed() > PATIENCE {
                bail!("{} publishes are not confirmed", self.published() - self.confirmed());
            }
            self.turn(WATCH_EVERY)?;
        }
        ensure!(self.confirmed() == self.published(), "more was confirmed than was published");
        Ok(())
    }

    fn turn(&mut self, longest: Duration) -> anyhow::Result<()> {
        if !self.stopped {
            (0..self.publishers.len()).try_for_each(|publisher| self.publish(publisher))?;
        }
        let mut ready = std::mem::take(&mut self.ready);
        self.poller.wait(longest, &mut ready)?;
        for &publisher in &ready {
            let refusal = self.target.wire.refusal();
            let (outlet, account) = &mut self.publishers[publisher];
            outlet.hear(&mut self.buffer, |heard| {
                refuse(refusal, heard)?;
                account.hear(heard)
            })?;
            outlet.flush()?;
        }
        self.ready = ready;
        Ok(())
    }

    fn publish(&mut self, publisher: usize) -> anyhow::Result<()> {
        let burst = u64::try_from(self.burst)?;
        let (outlet, account) = &mut self.publishers[publisher];
        while outlet.is_idle()
            && account.published + burst <= self.most.min(account.confirmed + self.share)
        {
            account.published += burst;
            outlet.begin();
            outlet.flush()?;
        }
        Ok(())
    }

    fn confirmed(&self) -> u64 {
        self.publishers.iter().map(|(_, account)| account.confirmed).sum()
    }

    fn published(&self) -> u64 {
        self.publishers.iter().map(|(_, account)| account.published).sum()
    }
}

/// What one connection published, and what of it is confirmed.
#[derive(Debug)]
pub(crate) struct Account {
    pub(crate) published: u64,
    pub(crate) confirmed: u64,
    answers: Answers,
    /// Line ends that came, for answers of several lines.
    line_ends: u64,
    /// The beginning of a line of which the end has not come.
    partial: Vec<u8>,
}

impl Account {
    pub(crate) fn new(answers: Answers) -> Self {
        Self { published: 0, confirmed: 0, answers, line_ends: 0, partial: Vec::new() }
    }

    pub(crate) fn hear(&mut self, heard: &[u8]) -> anyhow::Result<()> {
        match self.answers {
            Answers::Lines(lines) => {
                let ends = memchr::memchr_iter(b'\n', heard).count();
                self.line_ends += u64::try_from(ends)?;
                self.confirmed = self.line_ends / lines;
            }
            Answers::Cumulative => {
                self.partial.extend_from_slice(heard);
                if let Some(end) = memchr::memrchr(b'\n', &self.partial) {
                    let start = memchr::memrchr(b'\n', &self.partial[..end]).map_or(0, |at| at + 1);
                    let line = str::from_utf8(&self.partial[start..end])?;
                    let count = line.split_ascii_whitespace().last().map(str::parse);
                    let Some(Ok(count)) = count else { bail!("no confirmation: {line:?}") };
                    self.confirmed = count;
                    self.partial.drain(..=end);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cumulative_answer_counts_however_it_is_split() {
        let answers = b"+OK 40 1\r\n+OK 47 8\r\n+OK 1047 1008\r\n";
        for split in 0..answers.len() {
            let mut account = Account::new(Answers::Cumulative);
            account.hear(&answers[..split]).unwrap();
            assert!([0, 1, 8].contains(&account.confirmed), "a whole line at {split}");
            account.hear(&answers[split..]).unwrap();
            assert_eq!(account.confirmed, 1008);
        }
    }

    #[test]
    fn answers_of_several_lines_count_when_they_are_whole() {
        let mut account = Account::new(Answers::Lines(2));
        account.hear(b"$3\r\n1-1\r\n$3\r\n").unwrap();
        assert_eq!(account.confirmed, 1);
        account.hear(b"1-2\r\n").unwrap();
        assert_eq!(account.confirmed, 2);
    }
}

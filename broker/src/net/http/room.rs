//! The room that bodies share while they are received.
//!
//! Whoever finds none waits. Where nobody knows yet who sends, that would let a few who send slowly
//! stop everybody: there those give way that have been at it longest. A sender that matters has
//! sent all of it in a moment, from wherever it comes, and behind whichever proxy.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// It is given out in pieces of so many bytes.
const PIECE_BYTES: usize = 1 << 10;

/// So long a body is left in peace.
const PEACE: Duration = Duration::from_secs(1);

/// Room for so many bytes.
#[derive(Debug)]
pub(super) struct Room {
    pieces: Semaphore,
    /// So many it has in all.
    max: usize,
    /// Who has some that can be taken back; `None` where all may keep theirs.
    lent: Option<Mutex<Lent>>,
}

/// Bodies that are being received. In the order in which they found room at first.
#[derive(Debug, Default)]
struct Lent {
    bodies: BTreeMap<u64, Borrower>,
    next: u64,
    /// Pieces that are waited for, those that are free included: whoever is first in the queue is
    /// given these at once, and has them when there are as many as it wants.
    wanted: usize,
    /// Pieces that somebody has.
    taken: usize,
}

#[derive(Debug)]
struct Borrower {
    since: Instant,
    pieces: usize,
    /// Told when it has to give way.
    end: CancellationToken,
}

/// Pieces that a body has.
#[derive(Debug)]
pub(super) struct Pieces<'a> {
    room: &'a Room,
    permit: SemaphorePermit<'a>,
}

/// The part of one body.
#[derive(Debug)]
pub(super) struct Part<'a> {
    room: &'a Room,
    pieces: Option<Pieces<'a>>,
    /// In [`Lent`], from the first piece on.
    number: Option<u64>,
    end: CancellationToken,
}

impl Room {
    /// Whoever has a part of it has it for as long as they want.
    pub(super) fn new(bytes_max: usize) -> Self {
        let max = bytes_max.div_ceil(PIECE_BYTES);
        Self { pieces: Semaphore::new(max), max, lent: None }
    }

    /// Who has been there for longest gives way if others find none.
    pub(super) fn of_strangers(bytes_max: usize) -> Self {
        Self { lent: Some(Mutex::default()), ..Self::new(bytes_max) }
    }

    /// For a body of which nothing has come yet. When it has to give way `end` is cancelled; what
    /// it has is to be dropped then.
    pub(super) fn part(&self, end: CancellationToken) -> Part<'_> {
        Part { room: self, pieces: None, number: None, end }
    }

    async fn take(&self, pieces: u32) -> Pieces<'_> {
        let taken = |permit| Pieces { room: self, permit };
        let Some(lent) = &self.lent else {
            return taken(self.pieces.acquire_many(pieces).await.expect("it is never closed"));
        };
        {
            let lent = &mut *lent.lock();
            if let Ok(permit) = self.pieces.try_acquire_many(pieces) {
                lent.taken += pieces as usize;
                return taken(permit);
            }
        }
        let wish = Wish::of(lent, pieces as usize);
        let mut taking = pin!(self.pieces.acquire_many(pieces));
        loop {
            let again_at = self.make_room(&mut lent.lock(), Instant::now());
            tokio::select! {
                biased;
                permit = &mut taking => {
                    wish.comes_true();
                    return taken(permit.expect("it is never closed"));
                }
                () = sleep_until(again_at) => {}
            }
        }
    }

    /// Has as many give way as is wanted, the oldest first. Returns when to look again.
    fn make_room(&self, lent: &mut Lent, now: Instant) -> Instant {
        let ending = lent.bodies.values().filter(|body| body.end.is_cancelled());
        let ending: usize = ending.map(|body| body.pieces).sum();
        let mut free = self.max - lent.taken + ending;
        for body in lent.bodies.values().filter(|body| !body.end.is_cancelled()) {
            if free >= lent.wanted {
                break;
            }
            let until = body.since + PEACE;
            if until > now {
                return until;
            }
            body.end.cancel();
            free += body.pieces;
        }
        now + PEACE
    }
}

/// Pieces that somebody waits for, as long as they do.
struct Wish<'a> {
    lent: &'a Mutex<Lent>,
    pieces: usize,
}

impl<'a> Wish<'a> {
    fn of(lent: &'a Mutex<Lent>, pieces: usize) -> Self {
        lent.lock().wanted += pieces;
        Self { lent, pieces }
    }

    /// At once, so that nobody sees them as both or neither.
    fn comes_true(mut self) {
        let lent = &mut *self.lent.lock();
        let pieces = std::mem::take(&mut self.pieces);
        lent.wanted -= pieces;
        lent.taken += pieces;
    }
}

impl Drop for Wish<'_> {
    fn drop(&mut self) {
        if self.pieces > 0 {
            self.lent.lock().wanted -= self.pieces;
        }
    }
}

impl Pieces<'_> {
    fn merge(&mut self, mut other: Self) {
        let all = other.permit.num_permits();
        self.permit.merge(other.permit.split(all).expect("it has so many"));
    }
}

impl Drop for Pieces<'_> {
    fn drop(&mut self) {
        if let Some(lent) = &self.room.lent {
            lent.lock().taken -= self.permit.num_permits();
        }
    }
}

impl<'a> Part<'a> {
    /// Waits until there is room for so many bytes of it in all.
    pub(super) async fn grow(&mut self, bytes: usize) {
        let held = self.pieces.as_ref().map_or(0, |pieces| pieces.permit.num_permits());
        let more = bytes.div_ceil(PIECE_BYTES).saturating_sub(held);
        if more == 0 {
            return;
        }
        let taken = self.room.take(u32::try_from(more).expect("a body is shorter")).await;
        match &mut self.pieces {
            Some(held) => held.merge(taken),
            none => *none = Some(taken),
        }
        let Some(lent) = &self.room.lent else { return };
        let Lent { bodies, next, .. } = &mut *lent.lock();
        let number = *self.number.get_or_insert_with(|| {
            *next += 1;
            *next
        });
        let new = || Borrower { since: Instant::now(), pieces: 0, end: self.end.clone() };
        bodies.entry(number).or_insert_with(new).pieces = held + more;
    }

    /// The body is whole: what it has is its own until that is dropped.
    pub(super) fn keep(mut self) -> Option<Pieces<'a>> {
        self.pieces.take()
    }
}

impl Drop for Part<'_> {
    fn drop(&mut self) {
        // First, so that nobody has to give way for what is free already.
        self.pieces = None;
        if let (Some(lent), Some(number)) = (&self.room.lent, self.number) {
            lent.lock().bodies.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A body of so many bytes that came so many ms ago.
    async fn body(room: &Room, bytes: usize, ms_ago: u64) -> (Part<'_>, CancellationToken) {
        let end = CancellationToken::new();
        let mut part = room.part(end.clone());
        part.grow(bytes).await;
        tokio::time::sleep(Duration::from_millis(ms_ago)).await;
        (part, end)
    }

    /// Whether it finds room within that time, while those who are told to give way do.
    async fn finds<'a>(
        part: &mut Part<'a>,
        bytes: usize,
        within: Duration,
        others: &mut Vec<(Part<'a>, CancellationToken)>,
    ) -> bool {
        let mut growing = pin!(part.grow(bytes));
        let until = Instant::now() + within;
        while Instant::now() < until {
            let step = Duration::from_millis(10);
            if tokio::time::timeout(step, &mut growing).await.is_ok() {
                return true;
            }
            others.retain(|(_, end)| !end.is_cancelled());
        }
        false
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_been_at_it_longest_gives_way_and_no_more_than_needed() {
        let room = Room::of_strangers(4 << 10);
        let mut others = Vec::new();
        for ms in [500, 500, 500, 1_500] {
            others.push(body(&room, 1 << 10, ms).await);
        }
        let mut new = room.part(CancellationToken::new());
        assert!(finds(&mut new, 2 << 10, Duration::from_millis(50), &mut others).await);
        assert_eq!(others.len(), 2);
        drop(others);
        assert_eq!(room.lent.as_ref().unwrap().lock().bodies.len(), 1);
        assert_eq!(room.lent.as_ref().unwrap().lock().wanted, 0);
        drop(new);
        assert_eq!(room.pieces.available_permits(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_free_counts_at_every_look() {
        let room = Room::of_strangers(4 << 10);
        let mut others = Vec::new();
        for ms in [0, 0, 100] {
            others.push(body(&room, 1 << 10, ms).await);
        }
        let mut new = room.part(CancellationToken::new());
        assert!(finds(&mut new, 2 << 10, PEACE, &mut others).await);
        assert_eq!(others.len(), 2, "one piece was free, and two were wanted");
        drop((others, new));
        let lent = room.lent.as_ref().unwrap().lock();
        assert_eq!((lent.wanted, lent.taken, room.pieces.available_permits()), (0, 0, 4));
    }

    #[tokio::test(start_paused = true)]
    async fn for_a_moment_a_body_is_left_in_peace() {
        let room = Room::of_strangers(2 << 10);
        let mut others = vec![body(&room, 2 << 10, 0).await];
        let mut new = room.part(CancellationToken::new());
        assert!(!finds(&mut new, 1, PEACE * 9 / 10, &mut others).await);
        assert_eq!(room.lent.as_ref().unwrap().lock().wanted, 0, "it waits no more");
        assert!(finds(&mut new, 1, Duration::from_millis(200), &mut others).await);
        assert!(others.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_whole_is_kept_and_so_is_what_trusted_ones_send() {
        let (strangers, trusted) = (Room::of_strangers(2 << 10), Room::new(2 << 10));
        let (part, whole) = body(&strangers, 2 << 10, 5_000).await;
        let _kept = part.keep();
        let (_part, unfinished) = body(&trusted, 2 << 10, 5_000).await;
        for room in [&strangers, &trusted] {
            let mut new = room.part(CancellationToken::new());
            assert!(!finds(&mut new, 1, PEACE * 3, &mut Vec::new()).await);
        }
        assert!(!whole.is_cancelled() && !unfinished.is_cancelled());
    }
}

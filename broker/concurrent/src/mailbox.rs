//! The way to the task of one connection.

use std::collections::VecDeque;
use std::fmt;
use std::task::Waker;

use crate::mutants::{self, Mutant};
use crate::sync::{Arc, Mutex};

/// The way to one connection. Cheap to clone; sending never blocks and never fails: what reaches a
/// connection that is gone is dropped.
///
/// It has no bound of its own: its users bound what they send.
///
/// A task that takes what there is has its waker registered under the same lock: what comes later wakes it.
pub struct Mailbox<P>(Arc<Mutex<Inbox<P>>>);

struct Inbox<P> {
    parcels: VecDeque<P>,
    closing: bool,
    renewing: bool,
    gone: bool,
    owner: Option<Waker>,
}

/// What was in a mailbox.
#[derive(Debug)]
pub struct Taken<P> {
    /// In order.
    pub parcels: VecDeque<P>,
    /// [`Mailbox::renew`] was called since the last look.
    pub renewing: bool,
    /// [`Mailbox::close`] was called.
    pub closing: bool,
}

impl<P> Mailbox<P> {
    /// An empty mailbox without an owner yet.
    pub fn new() -> Self {
        let (closing, renewing, gone) = (false, false, false);
        let inbox = Inbox { parcels: VecDeque::new(), closing, renewing, gone, owner: None };
        Self(Arc::new(Mutex::new(inbox)))
    }

    /// Puts a parcel in, after all that are there, and wakes the connection.
    pub fn send(&self, parcel: P) {
        let mut inbox = self.0.lock();
        if inbox.gone {
            return;
        }
        inbox.parcels.push_back(parcel);
        // Only the first parcel wakes: the owner takes all there are.
        let owner = if inbox.parcels.len() == 1 { inbox.owner.clone() } else { None };
        drop(inbox);
        if let Some(owner) = owner {
            owner.wake();
        }
    }

    /// Has the connection send what is pending and close, because the broker stops.
    pub fn close(&self) {
        self.flag(|inbox| inbox.closing = true);
    }

    /// Has the connection renew its pass, because rights have changed.
    pub fn renew(&self) {
        self.flag(|inbox| inbox.renewing = true);
    }

    fn flag(&self, set: impl FnOnce(&mut Inbox<P>)) {
        let owner = {
            let inbox = &mut *self.0.lock();
            set(inbox);
            inbox.owner.clone()
        };
        if let Some(owner) = owner {
            owner.wake();
        }
    }

    /// Takes all there is; has `owner` woken for what comes next.
    pub fn take(&self, owner: &Waker) -> Taken<P> {
        let mut inbox = self.0.lock();
        let parcels = std::mem::take(&mut inbox.parcels);
        let renewing = std::mem::take(&mut inbox.renewing);
        let taken = Taken { parcels, renewing, closing: inbox.closing };
        if mutants::is(Mutant::RegistersLate) {
            drop(inbox);
            inbox = self.0.lock();
        }
        match &mut inbox.owner {
            Some(known) => known.clone_from(owner),
            none => *none = Some(owner.clone()),
        }
        taken
    }

    /// Drops what is in it, and whatever comes: the connection is gone.
    pub fn abandon(&self) {
        let mut inbox = self.0.lock();
        inbox.gone = true;
        inbox.owner = None;
        let parcels = std::mem::take(&mut inbox.parcels);
        drop(inbox);
        drop(parcels);
    }
}

impl<P> Clone for Mailbox<P> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<P> Default for Mailbox<P> {
    fn default() -> Self {
        Self::new()
    }
}

impl<P> fmt::Debug for Mailbox<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inbox = self.0.lock();
        f.debug_struct("Mailbox")
            .field("parcels", &inbox.parcels.len())
            .field("closing", &inbox.closing)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, loom))]
mod models {
    use std::future::poll_fn;
    use std::task::Poll;

    use loom::future::block_on;
    use loom::thread;

    use super::*;
    use crate::model::{check, finds};

    /// The owner of a mailbox: takes what there is, and sleeps until it has seen enough.
    fn receive(mailbox: &Mailbox<u8>, mut is_enough: impl FnMut(Taken<u8>) -> bool) {
        block_on(poll_fn(|cx| {
            if is_enough(mailbox.take(cx.waker())) { Poll::Ready(()) } else { Poll::Pending }
        }));
    }

    /// Two groups send to one connection.
    fn two_senders() {
        let mailbox = Mailbox::new();
        let senders = [[1, 2].as_slice(), &[3]].map(|parcels| {
            let mailbox = mailbox.clone();
            thread::spawn(move || parcels.iter().for_each(|parcel| mailbox.send(*parcel)))
        });
        let mut received = Vec::new();
        receive(&mailbox, |taken| {
            received.extend(taken.parcels);
            received.len() == 3
        });
        let place = |parcel| received.iter().position(|of| *of == parcel);
        assert!(place(1) < place(2), "{received:?} is not in the sender's order");
        for sender in senders {
            sender.join().expect("a thread of a model ends");
        }
    }

    /// The task that waits is dropped, and another one goes on: requests over HTTP on one connection.
    fn two_owners() {
        let mailbox = Mailbox::new();
        let sender = {
            let mailbox = mailbox.clone();
            thread::spawn(move || mailbox.send(1))
        };
        let mut received = Vec::new();
        received.extend(mailbox.take(Waker::noop()).parcels);
        receive(&mailbox, |taken| {
            received.extend(taken.parcels);
            received == [1]
        });
        sender.join().expect("a thread of a model ends");
    }

    /// Rights change, and the broker stops.
    fn renew_and_close() {
        let mailbox = Mailbox::new();
        let broker = {
            let mailbox = mailbox.clone();
            thread::spawn(move || {
                mailbox.renew();
                mailbox.close();
            })
        };
        let mut renewals = 0;
        receive(&mailbox, |taken| {
            renewals += usize::from(taken.renewing);
            taken.closing
        });
        assert_eq!(renewals, 1);
        broker.join().expect("a thread of a model ends");
    }

    /// A group sends to a connection that ends.
    fn send_and_abandon() {
        let mailbox = Mailbox::new();
        let sender = {
            let mailbox = mailbox.clone();
            thread::spawn(move || mailbox.send(1))
        };
        mailbox.take(Waker::noop());
        mailbox.abandon();
        sender.join().expect("a thread of a model ends");
        assert_eq!(mailbox.take(Waker::noop()).parcels, []);
    }

    #[test]
    fn an_owner_never_sleeps_through_a_parcel_and_has_them_in_order() {
        check(two_senders);
    }

    #[test]
    fn the_next_owner_is_woken() {
        check(two_owners);
    }

    #[test]
    fn an_owner_never_sleeps_through_a_renewal_or_the_end() {
        check(renew_and_close);
    }

    #[test]
    fn nothing_stays_in_the_mailbox_of_a_connection_that_is_gone() {
        check(send_and_abandon);
    }

    #[test]
    fn a_waker_that_is_registered_after_the_look_is_found_by_senders() {
        finds(Mutant::RegistersLate, two_senders, "deadlock");
    }

    #[test]
    fn a_waker_that_is_registered_after_the_look_is_found_by_the_next_owner() {
        finds(Mutant::RegistersLate, two_owners, "deadlock");
    }

    #[test]
    fn a_waker_that_is_registered_after_the_look_is_found_by_the_end() {
        finds(Mutant::RegistersLate, renew_and_close, "deadlock");
    }
}

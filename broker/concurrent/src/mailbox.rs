//! The mailbox of one connection.

use std::collections::VecDeque;
use std::fmt;
use std::task::Waker;

use crate::mutants::{self, Mutant};
use crate::sync::{Arc, Mutex};

/// The sending and receiving end of a connection's mailbox. Cheap to clone. Sending never blocks or
/// fails: a message to a connection that is gone is dropped.
///
/// The mailbox itself has no limit; its senders limit what they send.
///
/// [`take`](Self::take) registers the waker under the lock that it empties the mailbox with, so
/// every later message wakes the task.
pub struct Mailbox<P>(Arc<Mutex<Inbox<P>>>);

struct Inbox<P> {
    parcels: VecDeque<P>,
    closing: bool,
    renewing: bool,
    gone: bool,
    owner: Option<Waker>,
}

/// The content of a mailbox.
#[derive(Debug)]
pub struct Taken<P> {
    /// The messages, in order.
    pub parcels: VecDeque<P>,
    /// [`Mailbox::renew`] was called since the last [`take`](Mailbox::take).
    pub renewing: bool,
    /// [`Mailbox::close`] was called.
    pub closing: bool,
}

impl<P> Mailbox<P> {
    /// An empty mailbox that wakes no task yet.
    pub fn new() -> Self {
        let (closing, renewing, gone) = (false, false, false);
        let inbox = Inbox { parcels: VecDeque::new(), closing, renewing, gone, owner: None };
        Self(Arc::new(Mutex::new(inbox)))
    }

    /// Appends a message and wakes the connection.
    pub fn send(&self, parcel: P) {
        let mut inbox = self.0.lock();
        if inbox.gone {
            return;
        }
        inbox.parcels.push_back(parcel);
        // Only the first message wakes the task, because it takes all.
        let owner = if inbox.parcels.len() == 1 { inbox.owner.clone() } else { None };
        drop(inbox);
        if let Some(owner) = owner {
            owner.wake();
        }
    }

    /// Tells the connection to send what is pending and close, because the broker stops.
    pub fn close(&self) {
        self.flag(|inbox| inbox.closing = true);
    }

    /// Tells the connection to look up its permissions again, because they have changed.
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

    /// Takes the whole content, and registers `owner` to be woken by the next message.
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

    /// Drops the content and all later messages, because the connection is gone.
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

    /// The owner of a mailbox: takes its content and sleeps, until `is_enough`.
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
            sender.join().expect("no thread of the model panics");
        }
    }

    /// A waiting task is dropped and another one continues, as with HTTP requests on one
    /// connection.
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
        sender.join().expect("no thread of the model panics");
    }

    /// Permissions change, and the broker stops.
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
        broker.join().expect("no thread of the model panics");
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
        sender.join().expect("no thread of the model panics");
        assert_eq!(mailbox.take(Waker::noop()).parcels, []);
    }

    #[test]
    fn every_message_wakes_the_owner_and_order_is_kept() {
        check(two_senders);
    }

    #[test]
    fn the_next_owner_is_woken() {
        check(two_owners);
    }

    #[test]
    fn renewal_and_close_wake_the_owner() {
        check(renew_and_close);
    }

    #[test]
    fn an_abandoned_mailbox_stays_empty() {
        check(send_and_abandon);
    }

    #[test]
    fn two_senders_find_a_late_registration() {
        finds(Mutant::RegistersLate, two_senders, "deadlock");
    }

    #[test]
    fn two_owners_find_a_late_registration() {
        finds(Mutant::RegistersLate, two_owners, "deadlock");
    }

    #[test]
    fn close_finds_a_late_registration() {
        finds(Mutant::RegistersLate, renew_and_close, "deadlock");
    }
}

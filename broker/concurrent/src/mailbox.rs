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
/// [`drain`](Self::drain) registers the waker under the lock that it empties the mailbox with, so
/// every later message wakes the task.
pub struct Mailbox<P>(Arc<Mutex<Inbox<P>>>);

struct Inbox<P> {
    messages: VecDeque<P>,
    closing: bool,
    renew_pending: bool,
    is_gone: bool,
    waker: Option<Waker>,
}

/// The content of a mailbox.
#[derive(Debug)]
pub struct MailboxContents<P> {
    /// The messages, in order.
    pub messages: VecDeque<P>,
    /// [`Mailbox::request_renewal`] was called since the last [`drain`](Mailbox::drain).
    pub renew_requested: bool,
    /// [`Mailbox::close`] was called.
    pub close_requested: bool,
}

impl<P> Mailbox<P> {
    /// An empty mailbox that wakes no task yet.
    pub fn new() -> Self {
        let (messages, waker) = (VecDeque::new(), None);
        let inbox = Inbox { messages, closing: false, renew_pending: false, is_gone: false, waker };
        Self(Arc::new(Mutex::new(inbox)))
    }

    /// Appends a message and wakes the connection.
    pub fn send(&self, message: P) {
        let mut inbox = self.0.lock();
        if inbox.is_gone {
            return;
        }
        inbox.messages.push_back(message);
        // Only the first message wakes the task, because it takes all.
        let owner = if inbox.messages.len() == 1 { inbox.waker.clone() } else { None };
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
    pub fn request_renewal(&self) {
        self.flag(|inbox| inbox.renew_pending = true);
    }

    fn flag(&self, set: impl FnOnce(&mut Inbox<P>)) {
        let owner = {
            let inbox = &mut *self.0.lock();
            set(inbox);
            inbox.waker.clone()
        };
        if let Some(owner) = owner {
            owner.wake();
        }
    }

    /// Takes the whole content, and registers `owner` to be woken by the next message.
    pub fn drain(&self, owner: &Waker) -> MailboxContents<P> {
        let mut inbox = self.0.lock();
        let taken = MailboxContents {
            messages: std::mem::take(&mut inbox.messages),
            renew_requested: std::mem::take(&mut inbox.renew_pending),
            close_requested: inbox.closing,
        };
        if mutants::is(Mutant::RegistersLate) {
            drop(inbox);
            inbox = self.0.lock();
        }
        match &mut inbox.waker {
            Some(known) => known.clone_from(owner),
            none => *none = Some(owner.clone()),
        }
        taken
    }

    /// Drops the content and all later messages, because the connection is gone.
    pub fn discard(&self) {
        let mut inbox = self.0.lock();
        inbox.is_gone = true;
        inbox.waker = None;
        let messages = std::mem::take(&mut inbox.messages);
        drop(inbox);
        drop(messages);
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
            .field("messages", &inbox.messages.len())
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
    use crate::model::{assert_finds, check};

    /// The owner of a mailbox: takes its content and sleeps, until `is_enough`.
    fn receive(mailbox: &Mailbox<u8>, mut is_enough: impl FnMut(MailboxContents<u8>) -> bool) {
        block_on(poll_fn(|cx| {
            if is_enough(mailbox.drain(cx.waker())) { Poll::Ready(()) } else { Poll::Pending }
        }));
    }

    /// Two groups send to one connection.
    fn two_senders() {
        let mailbox = Mailbox::new();
        let senders = [[1, 2].as_slice(), &[3]].map(|messages| {
            let mailbox = mailbox.clone();
            thread::spawn(move || messages.iter().for_each(|message| mailbox.send(*message)))
        });
        let mut received = Vec::new();
        receive(&mailbox, |taken| {
            received.extend(taken.messages);
            received.len() == 3
        });
        let place = |message| received.iter().position(|of| *of == message);
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
        received.extend(mailbox.drain(Waker::noop()).messages);
        receive(&mailbox, |taken| {
            received.extend(taken.messages);
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
                mailbox.request_renewal();
                mailbox.close();
            })
        };
        let mut renewals = 0;
        receive(&mailbox, |taken| {
            renewals += usize::from(taken.renew_requested);
            taken.close_requested
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
        mailbox.drain(Waker::noop());
        mailbox.discard();
        sender.join().expect("no thread of the model panics");
        assert_eq!(mailbox.drain(Waker::noop()).messages, []);
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
        assert_finds(Mutant::RegistersLate, two_senders, "deadlock");
    }

    #[test]
    fn two_owners_find_a_late_registration() {
        assert_finds(Mutant::RegistersLate, two_owners, "deadlock");
    }

    #[test]
    fn close_finds_a_late_registration() {
        assert_finds(Mutant::RegistersLate, renew_and_close, "deadlock");
    }
}

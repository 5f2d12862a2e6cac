//! The receivers of pushes and callbacks that refuse messages, for the problems of the broker.

#![expect(clippy::disallowed_methods, reason = "refusals are forgotten by the clock")]

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Refusals in a row that are a problem: a receiver that starts again refuses one or two.
const REFUSALS_MIN: u64 = 3;

/// Receivers that are remembered; further ones are not. A client may open jobs with any host.
const RECEIVERS_MAX: usize = 100;

/// A receiver is forgotten this long after its last refusal. The attempts of a callback have shorter
/// pauses; after the last one there is a dead letter.
const REMEMBERED_FOR: Duration = Duration::from_hours(2);

/// The receivers that have refused their last message.
#[derive(Debug, Default)]
pub struct Receivers(Mutex<BTreeMap<String, Refusals>>);

#[derive(Debug)]
struct Refusals {
    in_a_row: u64,
    last_reason: String,
    last_at: Instant,
}

impl Receivers {
    /// A message was sent. `refusal` is the reason if the receiver has not accepted it.
    pub(crate) fn record(&self, receiver: &str, refusal: Option<&str>) {
        let (mut refusing, now) = (self.0.lock(), Instant::now());
        let Some(reason) = refusal else {
            refusing.remove(receiver);
            return;
        };
        refusing.retain(|_, of| now - of.last_at < REMEMBERED_FOR);
        if refusing.len() < RECEIVERS_MAX || refusing.contains_key(receiver) {
            let in_a_row = refusing.get(receiver).map_or(0, |before| before.in_a_row) + 1;
            let refusals = Refusals { in_a_row, last_reason: reason.to_owned(), last_at: now };
            refusing.insert(receiver.to_owned(), refusals);
        }
    }

    /// A sentence for each receiver that has refused several messages and accepted none since.
    pub fn problems(&self) -> Vec<String> {
        let (refusing, now) = (self.0.lock(), Instant::now());
        let lasting = refusing
            .iter()
            .filter(|(_, of)| of.in_a_row >= REFUSALS_MIN && now - of.last_at < REMEMBERED_FOR);
        let sentences = lasting.map(|(receiver, Refusals { in_a_row, last_reason, .. })| {
            format!("The receiver of {receiver} has refused {in_a_row} requests: {last_reason}.")
        });
        sentences.collect()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_receiver_is_a_problem_while_it_refuses_one_message_after_the_other() {
        let receivers = Receivers::default();
        let refuse = |times| (0..times).for_each(|_| receivers.record("push-a", Some("no")));
        refuse(2);
        receivers.record("push-a", None);
        refuse(2);
        receivers.record("push-b", None);
        assert!(receivers.problems().is_empty());
        refuse(1);
        assert_eq!(receivers.problems(), ["The receiver of push-a has refused 3 requests: no."]);
        advance(REMEMBERED_FOR).await;
        assert!(receivers.problems().is_empty());
        refuse(3);
        receivers.record("push-a", None);
        assert!(receivers.problems().is_empty());
    }

    #[test]
    fn a_limited_number_of_receivers_is_remembered() {
        let receivers = Receivers::default();
        for receiver in 0..2 * RECEIVERS_MAX {
            receivers.record(&receiver.to_string(), Some("no"));
        }
        assert_eq!(receivers.0.lock().len(), RECEIVERS_MAX);
    }
}

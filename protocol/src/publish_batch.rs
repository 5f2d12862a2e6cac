//! A batch of publishes to one topic, as busy publishers send them.
//!
//! [`Session::next`](crate::Session::next) would return the same, line by line. Here a whole read
//! is checked at once: every line begins with the same bytes, and one check for valid text covers
//! all of them.

use memchr::{Memchr, memchr, memchr_iter};

use crate::command::check_name;
use crate::text::is_control;
use crate::{LINE_BYTES_MAX, PAYLOAD_BYTES_MAX};

/// Consecutive lines `PUB <topic> <payload>` of a client, all to one topic. Iterates over the
/// payloads.
#[derive(Debug, Clone)]
pub struct PublishBatch<'a> {
    /// The topic.
    pub topic: &'a str,
    /// The lines, each with its end.
    lines: &'a str,
    /// The ends of the remaining lines.
    ends: Memchr<'a>,
    /// Where the next line begins.
    next: usize,
    /// Bytes before the payload.
    prefix: usize,
    /// The number of remaining lines.
    count: usize,
}

impl<'a> PublishBatch<'a> {
    /// The lines at the beginning of `unread`, and their length in bytes. `None` if there are fewer
    /// than two, or if anything about them is unusual.
    pub(crate) fn parse(unread: &'a [u8]) -> Option<(usize, Self)> {
        const VERB: &[u8] = b"PUB ";
        let named = unread.strip_prefix(VERB)?;
        let name_end = memchr(b' ', named)?;
        let topic = std::str::from_utf8(named.get(..name_end)?).ok()?;
        check_name("topic", topic).ok()?;
        let (prefix, _) = unread.split_at(VERB.len() + topic.len() + 1);
        let (mut end, mut count) = (0, 0);
        for line_end in memchr_iter(b'\n', unread) {
            let line = unread.get(end..line_end)?;
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let Some(payload) = line.strip_prefix(prefix) else { break };
            if payload.is_empty()
                || payload.len() > PAYLOAD_BYTES_MAX
                || line.len() > LINE_BYTES_MAX
            {
                break;
            }
            end = line_end + 1;
            count += 1;
        }
        let lines = lines_of_text(unread.get(..end)?).filter(|_| count >= 2)?;
        let ends = memchr_iter(b'\n', lines.as_bytes());
        Some((end, Self { topic, lines, ends, next: 0, prefix: prefix.len(), count }))
    }

    /// Whether a payload may contain this text. Saves a search in each payload if none does.
    pub fn may_contain(&self, text: &str) -> bool {
        memchr::memmem::find(self.lines.as_bytes(), text.as_bytes()).is_some()
    }
}

impl<'a> Iterator for PublishBatch<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let end = self.ends.next()?;
        let start = self.next + self.prefix;
        (self.next, self.count) = (end + 1, self.count - 1);
        let payload = self.lines.get(start..end)?;
        Some(payload.strip_suffix('\r').unwrap_or(payload))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.count, Some(self.count))
    }
}

impl ExactSizeIterator for PublishBatch<'_> {}

/// Whole lines as text, unless one needs a closer check: it contains a control character, or the
/// byte with which some of those begin in UTF-8.
fn lines_of_text(lines: &[u8]) -> Option<&str> {
    let ends_line = |byte| byte == b'\n' || byte == b'\r';
    let suspicious = |&byte: &u8| (is_control(byte) && !ends_line(byte)) || byte == 0xC2;
    let plain = lines
        .chunks(64)
        .all(|chunk| !chunk.iter().fold(false, |found, byte| found | suspicious(byte)));
    // A CR is part of a line end, or a control byte.
    let stray = || memchr_iter(b'\r', lines).any(|at| lines.get(at + 1) != Some(&b'\n'));
    if plain && !stray() { std::str::from_utf8(lines).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::{Command, Session, SessionEvent};

    /// The events of the session line by line, or with batches where it finds some.
    fn events(input: &[u8], with_runs: bool) -> Vec<String> {
        let mut session = Session::new();
        let mut events = Vec::new();
        let mut used = 0;
        loop {
            let unread = &input[used..];
            if with_runs && let Some((consumed, publishes)) = session.publish_batch(unread) {
                assert!(publishes.len() >= 2);
                let topic = publishes.topic;
                for payload in publishes {
                    let publish = Command::Pub { topic, payload };
                    events.push(format!("{:?}", SessionEvent::Command(publish)));
                }
                used += consumed;
                continue;
            }
            let (consumed, event) = session.next(unread);
            used += consumed;
            let Some(event) = event else { return events };
            events.push(format!("{event:?}"));
        }
    }

    #[test]
    fn a_batch_ends_where_another_line_begins() {
        let input = b"PING\nPUB t a\r\nPUB t b c\nPUB u x\nPUB u y\nPUB u z\nPUB u ";
        let mut session = Session::new();
        let (used, _) = session.next(input);
        let (consumed, run) = session.publish_batch(&input[used..]).unwrap();
        assert_eq!((run.topic, run.collect::<Vec<_>>()), ("t", vec!["a", "b c"]));
        let (_, run) = session.publish_batch(&input[used + consumed..]).unwrap();
        assert_eq!((run.topic, run.len()), ("u", 3));
    }

    #[test]
    fn no_batch_begins_before_the_first_line_or_within_one() {
        let mut session = Session::new();
        assert!(session.publish_batch(b"PUB t a\nPUB t b\n").is_none(), "the first line decides");
        let _ = session.next(b"PING\n");
        let _ = session.next(b"PUB t a");
        assert!(session.is_mid_line());
        assert!(session.publish_batch(b"PUB t a\nPUB t b\n").is_none(), "a line has begun");
    }

    proptest! {
        #[test]
        fn a_batch_gives_the_same_events_as_its_lines(
            lines in proptest::collection::vec(
                prop_oneof![
                    8 => "PUB t [ -~]{0,20}",
                    2 => "PUB [a-c] [a-z\u{7f}\u{85}\u{e9}\r\t]{0,4}",
                    1 => "PUB  ?t? ?",
                    1 => "[A-Z]{0,4} [a-z]{0,3}",
                ],
                0..30,
            ),
            ends in proptest::collection::vec(any::<bool>(), 30),
            cut in 0_usize..20,
        ) {
            let mut input = b"PING\n".to_vec();
            for (line, crlf) in lines.iter().zip(&ends) {
                input.extend_from_slice(line.as_bytes());
                input.extend_from_slice(if *crlf { b"\r\n" } else { b"\n" });
            }
            input.truncate(input.len().saturating_sub(cut).max(5));
            prop_assert_eq!(events(&input, true), events(&input, false));
        }
    }
}

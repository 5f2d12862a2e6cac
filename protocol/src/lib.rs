//! The Tidings line protocol.
//!
//! Lines of UTF-8 over TCP, in both directions, simple enough to be typed. `PROTOCOL.md` beside
//! this crate is the specification; this crate is its only implementation here, used by the
//! broker, the crawler, the command line and the tests. Sentences of the specification that bind
//! are numbered. Code cites them as `[S3]`, and a test that fails when one is broken has a line
//! `// PROTOCOL: S3` above its attributes.
//!
//! Everything here is pure: bytes and values in, values and bytes out, no clock, no sockets. Only
//! the `client` feature brings a runtime.
//!
//! | module | what it knows |
//! |---|---|
//! | [`mod@line`] | where lines end |
//! | [`text`] | which bytes they may hold |
//! | [`session`] | what the first line makes of a connection, and what ends it |
//! | [`command`], [`verb`] | what a client may say |
//! | [`answers`] | in which order it is answered, and what may be folded |
//! | [`reply`], [`error`] | what the broker says |
//! | [`payload`] | what an event says: text, or a target with attributes |
//! | [`url_key`] | which URLs are the same page |
//! | `client` | all of this over a socket, with the feature of this name |
//!
//! # One exchange
//!
//! ```
//! use bytes::BytesMut;
//! use tidings_protocol::{Answers, Command, Event, Fate, Mode, Reply, Seq, Session};
//!
//! // What one read of a socket brought: two commands, and the beginning of a third.
//! let mut unread = &b"HELLO name=me\r\nPUB new-url http://example.org/\r\nPI"[..];
//! let mut session = Session::new();
//! let mut answers = Answers::new();
//! loop {
//!     let (used, event) = session.next(unread);
//!     unread = &unread[used..];
//!     match event {
//!         Some(Event::Command(Command::Hello(hello))) => {
//!             assert_eq!(hello.name.as_deref(), Some("me"));
//!             answers.ready(b"+OK tidings 0.1.0 id=1 clock=5 resume=..\r\n");
//!         }
//!         Some(Event::Command(Command::Pub { topic, payload })) => {
//!             assert_eq!((topic, payload), ("new-url", "http://example.org/"));
//!             answers.publish(0, Seq(42)); // the number it got in the topic
//!         }
//!         Some(other) => panic!("{other:?}"),
//!         None => break, // read more
//!     }
//! }
//! assert_eq!((session.mode(), session.is_mid_line()), (Mode::Client, true));
//!
//! // Nothing is safe yet: only what does not rest on it may leave.
//! let mut out = BytesMut::new();
//! answers.drain(|_topic, _seq| (Fate::Waiting, Seq(43)), &mut out);
//! assert_eq!(out, "+OK tidings 0.1.0 id=1 clock=5 resume=..\r\n");
//!
//! // The event is on the disk, and so is everything before number 43.
//! out.clear();
//! answers.drain(|_topic, _seq| (Fate::Safe, Seq(43)), &mut out);
//! assert_eq!(out, "+OK 42 1\r\n");
//!
//! // The client reads the confirmation of its first publish.
//! assert_eq!(Reply::parse("+OK 42 1"), Ok(Reply::Published { seq: Seq(42), n: 1 }));
//! ```

#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

pub mod answers;
#[cfg(feature = "client")]
pub mod client;
pub mod command;
pub mod duration;
pub mod error;
mod foreign;
#[doc(hidden)]
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod line;
pub mod msg_encoder;
mod names;
mod net;
mod parse;
pub mod payload;
mod publishes;
pub mod reply;
pub mod session;
pub mod text;
pub mod time_of_day;
pub mod url_key;
pub mod verb;
mod wire;

pub use answers::{Answers, Fate, Slot};
#[cfg(feature = "client")]
pub use client::{Answer, Client, ClientError, ClientOptions, Deliveries, Delivery, connect};
pub use command::{Command, Hello, Hold, Manage, Outcome, Prio, Return, StartAt, Token};
pub use duration::{DURATION_MS_MAX, DurationError, format_ms, parse_ms};
pub use error::{Code, ProtocolError, UnknownCode};
pub use line::{Item, LineDecoder};
pub use msg_encoder::MsgEncoder;
pub use names::{CursorName, GroupName, JobName, MemberId, Seq, TaskId, TopicName};
pub use names::{NAME_BYTES_MAX, is_name};
pub use net::{Net, NetError};
pub use payload::{Payload, push_attribute};
pub use publishes::Publishes;
pub use reply::{AckAnswer, FAREWELL, HelloAnswer, NotAReply, Reply, field, field_number};
pub use reply::{
    encode_gap, encode_greeting, encode_lag, encode_more, encode_msg, encode_ok, encode_peer_lag,
};
pub use reply::{encode_pong, encode_published, encode_task, refusal_from};
pub use session::{End, Event, GARBAGE_LINES_MAX, Mode, Session};
pub use time_of_day::{After, AfterError, DAY_MS, TimeOfDay, TimeOfDayError};
pub use url_key::{
    CANONICAL_VERSION, CanonicalUrl, PagesOnly, StandardUrl, URL_BYTES_MAX, UrlError, UrlKey,
    escaped_octet,
};
pub use verb::Verb;

/// The port of the line protocol.
pub const PORT: u16 = 12345;
/// What the line protocol is called in a TLS handshake (ALPN, RFC 7301).
pub const ALPN: &[u8] = b"tidings";
/// The topic of the notifier's peers, which feeds the default group.
pub const DEFAULT_TOPIC: &str = "new-url";
/// The topic on which the end of every job is announced.
pub const JOB_DONE_TOPIC: &str = "job-done";
/// The topic of what could not be done.
pub const DEAD_LETTER_TOPIC: &str = "dead-letter";
/// The topic of feeds that somebody tells of: crawlers say so, and who subscribes there hears it.
pub const HUB_FOUND_TOPIC: &str = "hub-found";
/// The topic of a hub's own work, and its group: what is to be told to whom.
pub const HUB_TOPIC: &str = "hub";
/// The same for those who are to be asked whether they want to be told.
pub const HUB_VERIFY_TOPIC: &str = "hub-verify";
/// The group of the crawlers.
pub const DEFAULT_GROUP: &str = "crawlers";
/// The group of those who tell the `callback=` of a job that it is done.
pub const CALLBACK_GROUP: &str = "callbacks";

/// The longest payload, in bytes.
pub const PAYLOAD_BYTES_MAX: usize = 60 * 1024;
/// The longest line in either direction, in bytes, not counting LF or CRLF. The difference to
/// the longest payload is for what stands around one.
pub const LINE_BYTES_MAX: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    const SPECIFICATION: &str = include_str!("../PROTOCOL.md");

    #[test]
    fn the_examples_of_the_specification_are_lines_of_the_protocol() {
        let mut examples = 0;
        for line in SPECIFICATION.lines() {
            if let Some(command) = line.strip_prefix("C: ") {
                Command::parse(command).or_else(ignore_bad_name).expect(line);
                examples += 1;
            } else if let Some(reply) = line.strip_prefix("B: ") {
                Reply::parse(reply).expect(line);
                examples += 1;
            }
        }
        assert!(examples > 20, "the specification has examples");
    }

    /// One example shows how a bad name is refused.
    fn ignore_bad_name(error: ProtocolError) -> Result<Command<'static>, ProtocolError> {
        if error.code == Code::BadName { Ok(Command::Ping) } else { Err(error) }
    }

    #[test]
    fn the_specification_lists_the_verbs_in_their_order() {
        let verbs: Vec<_> = Verb::ALL.iter().map(|verb| verb.as_str()).collect();
        assert!(SPECIFICATION.contains(&format!("`{}`", verbs.join(" "))));
    }

    // PROTOCOL: L2, N1, N6, P1, U2
    #[test]
    fn the_specification_lists_the_limits_of_this_crate() {
        for (what, limit) in [
            ("line, without its end", LINE_BYTES_MAX),
            ("payload", PAYLOAD_BYTES_MAX),
            ("name", NAME_BYTES_MAX),
            ("URL", URL_BYTES_MAX),
        ] {
            let row = SPECIFICATION.lines().find(|line| line.starts_with(&format!("| {what} | ")));
            let row = row.unwrap_or_else(|| panic!("no limit of a {what}"));
            let bytes = row.split('|').nth(2).unwrap().trim().replace(',', "");
            assert_eq!(bytes, format!("{limit} bytes"), "{what}");
        }
        assert_eq!(format_ms(DURATION_MS_MAX), "3650d");
        assert!(SPECIFICATION.contains("| duration | 3650d |"));
    }
}

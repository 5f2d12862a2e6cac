//! The Tidings line protocol.
//!
//! Lines of UTF-8 over TCP, in both directions, simple enough to be typed. `docs/protocol/` is
//! the specification; this crate is its only implementation here, used by the broker, the crawler,
//! the command line and the tests. Binding sentences of the specification are
//! numbered. Code cites them as `[S3]`, and a test that fails when one is broken has a line
//! `// PROTOCOL: S3` above its attributes.
//!
//! Everything here is pure: bytes and values in, values and bytes out, no clock, no sockets, no
//! runtime. The crate `tidings-client` speaks it over a socket.
//!
//! | module | content |
//! |---|---|
//! | [`mod@line`] | splits a stream into lines |
//! | [`text`] | the bytes that a line may contain |
//! | [`session`] | how the first line decides what a connection is, and how it ends |
//! | [`command`], [`verb`] | the commands of a client |
//! | [`answers`] | the order of answers, and how they fold |
//! | [`reply`], [`error`] | the lines of the broker |
//! | [`status`] | what the lines say about topics, groups, jobs and tasks |
//! | [`payload`], [`filter`] | the content of an event, and conditions on its attributes |
//! | [`canonical_url`] | decides which URLs are the same page |
//! | [`url_pattern`], [`render`] | rules that select URLs |
//! | [`readable`] | counts, bytes and durations for people |
//!
//! # One exchange
//!
//! ```
//! use bytes::BytesMut;
//! use tidings_protocol::{Answers, Command, Durability, Reply, Seq, Session, SessionEvent, SessionMode};
//!
//! // One read of a socket returned two commands, and the beginning of a third.
//! let mut unread = &b"HELLO name=me\r\nPUB new-url http://example.org/\r\nPI"[..];
//! let mut session = Session::new();
//! let mut answers = Answers::new();
//! loop {
//!     let (used, event) = session.next(unread);
//!     unread = &unread[used..];
//!     match event {
//!         Some(SessionEvent::Command(Command::Hello(hello))) => {
//!             assert_eq!(hello.name.as_deref(), Some("me"));
//!             answers.push(|lines| lines.extend_from_slice(b"+OK tidings 0.1.0 id=1 clock=5 resume=..\r\n"));
//!         }
//!         Some(SessionEvent::Command(Command::Pub { topic, payload })) => {
//!             assert_eq!((topic, payload), ("new-url", "http://example.org/"));
//!             answers.publish(0, Seq(42)); // its seq in the topic
//!         }
//!         Some(other) => panic!("{other:?}"),
//!         None => break, // read more
//!     }
//! }
//! assert_eq!((session.mode(), session.is_mid_line()), (SessionMode::Client, true));
//!
//! // The event is not durable yet: only the answer before it can be sent.
//! let mut out = BytesMut::new();
//! answers.drain(|_topic, _seq| (Durability::Pending, Seq(43)), &mut out);
//! assert_eq!(out, "+OK tidings 0.1.0 id=1 clock=5 resume=..\r\n");
//!
//! // All events below seq 43 are on the disk.
//! out.clear();
//! answers.drain(|_topic, _seq| (Durability::Durable, Seq(43)), &mut out);
//! assert_eq!(out, "+OK 42 1\r\n");
//!
//! // The client reads the confirmation of its first publish.
//! assert_eq!(Reply::parse("+OK 42 1"), Ok(Reply::Published { seq: Seq(42), n: 1 }));
//! ```

#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

#[macro_use]
mod definitions;

pub mod answers;
mod byte_size;
pub mod canonical_url;
mod cidr;
pub mod command;
pub mod duration;
pub mod error;
mod failure_reason;
pub mod filter;
#[doc(hidden)]
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod host_pattern;
pub mod line;
pub mod msg_encoder;
mod names;
mod other_protocol;
mod pass_pages;
pub mod payload;
mod publish_batch;
pub mod readable;
mod redirect_chain;
pub mod render;
pub mod reply;
pub mod session;
pub mod settings;
pub mod status;
pub mod text;
pub mod time_of_day;
mod traceparent;
pub mod url_pattern;
pub mod verb;
mod wire;

pub use answers::{Answers, Durability, Slot};
pub use byte_size::{format_bytes, parse_bytes};
pub use canonical_url::{
    CANONICAL_VERSION, CanonicalUrl, StandardUrl, URL_BYTES_MAX, UncallableHost, UrlError, UrlKey,
    escaped_octet,
};
pub use cidr::{IpNetwork, IpNetworkError};
pub use command::{
    CREDIT_DEFAULT, Command, DELAY_MS_MAX, EntrySelection, GroupAction, GroupCommand, Hello,
    JobAction, JobCommand, JobQuery, KeyQuery, KeyRest, ListRange, ManageCommand, Outcome,
    PARALLEL_MAX, PageChange, Prio, RetryMode, RuleSettings, ScheduleQuery, StartAt, TaskAction,
    TaskQuery, TaskReply, TaskReport, Token, TopicAction, TopicCommand, WaitingAction,
    WaitingChange, duration_within, whole_number,
};
pub use duration::{DURATION_MS_MAX, DurationError, format_ms, parse_ms};
pub use error::{Code, ProtocolError, UnknownCode, bad_argument};
pub use failure_reason::FailureReason;
pub use filter::{AttributeFilter, CONDITIONS_MAX, Condition};
pub use host_pattern::{HostPattern, HostPatternError};
pub use line::{LineDecoder, LineItem};
pub use msg_encoder::MsgEncoder;
pub use names::{
    CursorName, GroupName, JobName, MemberId, NAME_BYTES_MAX, Seq, TaskId, TopicName, is_name,
};
pub use pass_pages::{DEAD_REASONS, PassName, PassPages, check_reasons, reason_of};
pub use payload::{Payload, push_attribute};
pub use publish_batch::PublishBatch;
pub use redirect_chain::{REDIRECTS_MAX, extend_chain, is_in_chain};
pub use render::{Render, RenderRule};
pub use reply::{
    FAREWELL, HelloAnswer, InvalidReply, Reply, encode_gap, encode_greeting, encode_lag,
    encode_more, encode_msg, encode_ok, encode_peer_lag, encode_pong, encode_published,
    encode_skip, encode_task, error_from_wire, field, field_number,
};
pub use session::{GARBAGE_LINES_MAX, Session, SessionEnd, SessionEvent, SessionMode};
pub use settings::{GroupSettings, JobSettings, KeyKind, ScopeRule, Settings, Sync, TopicSettings};
pub use time_of_day::{After, AfterError, DAY_MS, EVERY_MS_MIN, TimeOfDay, TimeOfDayError};
pub use traceparent::{TRACEPARENT, is_traceparent, trace_id};
pub use url_pattern::{Pattern, Patterns};
pub use verb::Verb;

/// The pages of the specification, in Markdown.
pub const SPECIFICATION: &str = concat!(
    include_str!("../../docs/protocol/index.md"),
    include_str!("../../docs/protocol/client.md"),
    include_str!("../../docs/protocol/worker.md"),
    include_str!("../../docs/protocol/manage.md"),
    include_str!("../../docs/protocol/events.md"),
    include_str!("../../docs/protocol/http.md"),
    include_str!("../../docs/protocol/hubs.md"),
    include_str!("../../docs/protocol/zeromq.md"),
    include_str!("../../docs/protocol/limits.md"),
);
/// The port of the line protocol.
pub const PORT: u16 = 12345;
/// The name of the line protocol in a TLS handshake (ALPN, RFC 7301).
pub const ALPN: &[u8] = b"tidings";
/// The topic of peers, which feeds the default group.
pub const DEFAULT_TOPIC: &str = "new-url";
/// The topic with the end of every job.
pub const JOB_DONE_TOPIC: &str = "job-done";
/// The topic with the final outcome of every page.
pub const PAGE_READY_TOPIC: &str = "page-ready";
/// The topic of dead letters.
pub const DEAD_LETTER_TOPIC: &str = "dead-letter";
/// The topic of feeds that have a hub: crawlers publish what they find, and hub clients subscribe.
pub const HUB_FOUND_TOPIC: &str = "hub-found";
/// The topic, and the group, of a hub's work: notifications to send.
pub const HUB_TOPIC: &str = "hub";
/// The same for requests that verify subscriptions.
pub const HUB_VERIFY_TOPIC: &str = "hub-verify";
/// The group of the crawlers.
pub const DEFAULT_GROUP: &str = "crawlers";
/// The group of the workers that send the `callback=` of finished jobs.
pub const CALLBACK_GROUP: &str = "callbacks";

/// The longest payload, in bytes.
pub const PAYLOAD_BYTES_MAX: usize = 60 * 1024;
/// The longest line in either direction, in bytes, not counting LF or CRLF. It is longer than the
/// longest payload because a line has other words, too.
pub const LINE_BYTES_MAX: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

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

    /// One example shows the refusal of a bad name.
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
        let redirects = format!("| hops of a redirect | {REDIRECTS_MAX} | ");
        assert!(SPECIFICATION.contains(&redirects), "{redirects}");
        assert_eq!(format_ms(DURATION_MS_MAX), "3650d");
        assert!(SPECIFICATION.contains("| duration | 3650d |"));
    }
}

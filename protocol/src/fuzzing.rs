//! Fuzz targets: one for each kind of input that a peer controls. A target panics if a property
//! does not hold. For the feature `fuzzing` and for tests only.

use std::fmt::{Debug, Display};
use std::str::FromStr;

use crate::command::StartAt;
use crate::{
    After, CanonicalUrl, Command, IpNetwork, LineDecoder, MemberId, Payload, Reply, Session,
    TaskId, TimeOfDay, TopicName, URL_BYTES_MAX, duration, push_attribute, text,
};

/// The name and the function of a target.
pub type Target = (&'static str, fn(&[u8]));

/// The targets of this crate.
pub const TARGETS: &[Target] = &[
    ("line", line),
    ("session", session),
    ("command", command),
    ("reply", reply),
    ("value", value),
    ("payload", payload),
    ("url", url),
];

/// Splits off the first bytes. They are the lengths of the pieces in which the rest arrives.
fn cuts(bytes: &[u8]) -> (&[u8], &[u8]) {
    bytes.split_at(bytes.len().min(4))
}

/// Splits the stream into pieces of these lengths, repeated.
fn pieces<'a>(mut stream: &'a [u8], cuts: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let mut lengths = cuts.iter().cycle();
    std::iter::from_fn(move || {
        let length = lengths.next().map_or(1, |cut| usize::from(*cut) % 64 + 1);
        let (piece, rest) = stream.split_at_checked(length).unwrap_or((stream, &[]));
        stream = rest;
        (!piece.is_empty()).then_some(piece)
    })
}

/// A stream gives the same items however it is split. No item exceeds the limit, and the decoder
/// buffers at most one line.
fn line(bytes: &[u8]) {
    let (cuts, stream) = cuts(bytes);
    let max = cuts.first().map_or(1, |cut| usize::from(*cut) / 8 + 1);
    let items = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let (mut decoder, mut buffer, mut items) = (LineDecoder::new(max), Vec::new(), Vec::new());
        for piece in pieces {
            buffer.extend_from_slice(piece);
            loop {
                let (used, item) = decoder.next(&buffer);
                let is_last = item.is_none();
                items.extend(item.map(|item| format!("{item:?}")));
                buffer.drain(..used);
                if is_last {
                    break;
                }
            }
            assert!(buffer.len() <= max + 1, "the decoder buffers more than a line");
        }
        items.extend(decoder.finish(&buffer).map(|item| format!("{item:?}")));
        items
    };
    let whole = items(&mut std::iter::once(stream));
    assert_eq!(whole, items(&mut pieces(stream, cuts)), "in pieces");
    assert_eq!(whole, items(&mut stream.chunks(1)), "byte by byte");
}

/// A stream gives the same events however it is split, and also with the fast path for publishes.
fn session(bytes: &[u8]) {
    let (cuts, stream) = cuts(bytes);
    let whole = events(std::iter::once(stream), false);
    assert_eq!(whole, events(pieces(stream, cuts), false), "in pieces");
    assert_eq!(whole, events(stream.chunks(1), false), "byte by byte");
    assert_eq!(whole, events(std::iter::once(stream), true), "with the fast path");
    assert_eq!(whole, events(pieces(stream, cuts), true), "with the fast path, in pieces");
}

fn events<'a>(pieces: impl Iterator<Item = &'a [u8]>, with_fast_path: bool) -> Vec<String> {
    let (mut session, mut buffer, mut events) = (Session::new(), Vec::new(), Vec::new());
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            if let Some((used, publishes)) =
                session.publish_batch(&buffer).filter(|_| with_fast_path)
            {
                let topic = publishes.topic;
                let commands = publishes.map(|payload| Command::Pub { topic, payload });
                events.extend(commands.map(|command| format!("Command({command:?})")));
                buffer.drain(..used);
                continue;
            }
            let (used, event) = session.next(&buffer);
            let is_last = event.is_none();
            events.extend(event.map(|event| format!("{event:?}")));
            buffer.drain(..used);
            if is_last {
                break;
            }
        }
    }
    events.extend(session.finish(&buffer).iter().map(|event| format!("{event:?}")));
    assert!(
        session.finish(&[]).is_empty() && !session.is_mid_line(),
        "the session gives an event after its end"
    );
    events
}

/// A parsed command encodes to one line with the same meaning.
fn command(bytes: &[u8]) {
    let Ok(line) = text::check(bytes) else { return };
    match Command::parse(line) {
        Ok(command) => {
            let mut out = Vec::new();
            command.encode(&mut out);
            let reparsed = out.strip_suffix(b"\n").expect("a command is a line");
            let reparsed = text::check(reparsed).expect("the encoding is valid text");
            assert_eq!(Command::parse(reparsed), Ok(command));
        }
        Err(error) => {
            let message = error.to_string();
            assert!(
                text::check(message.as_bytes()).is_ok(),
                "the error is not valid text: {message:?}"
            );
        }
    }
}

/// A parsed reply encodes to one line with the same meaning.
fn reply(bytes: &[u8]) {
    let Ok(line) = text::check(bytes) else { return };
    if let Ok(reply) = Reply::parse(line) {
        let mut out = Vec::new();
        reply.encode(&mut out);
        let reparsed = out.strip_suffix(b"\r\n").expect("a reply is a line");
        let reparsed = text::check(reparsed).expect("the encoding is valid text");
        assert_eq!(Reply::parse(reparsed), Ok(reply));
    }
}

/// Every value of one word in a command is parsed, formatted and parsed again without a change.
fn value(bytes: &[u8]) {
    fn check_round_trip<T: FromStr + Display + PartialEq + Debug>(text: &str) {
        if let Ok(value) = text.parse::<T>() {
            let text_again = value.to_string();
            assert_eq!(
                text_again.parse().ok(),
                Some(value),
                "{text:?} is written as {text_again:?}"
            );
        }
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    check_round_trip::<StartAt>(text);
    check_round_trip::<After>(text);
    check_round_trip::<TimeOfDay>(text);
    check_round_trip::<TaskId>(text);
    check_round_trip::<MemberId>(text);
    check_round_trip::<IpNetwork>(text);
    check_round_trip::<TopicName>(text);
    if let Ok(ms) = duration::parse_ms(text) {
        assert_eq!(duration::parse_ms(&duration::format_ms(ms)), Ok(ms));
    }
}

/// A payload keeps its text, and its attributes can be written and parsed again.
fn payload(bytes: &[u8]) {
    let Ok(text) = text::check(bytes) else { return };
    let payload = Payload::parse(text);
    assert_eq!(payload.text(), text);
    let Some(target) = payload.target() else {
        assert_eq!(payload.attributes().count(), 0, "a text has no attributes");
        return;
    };
    let attributes: Vec<_> = payload.attributes().collect();
    let mut text_again = target.to_owned();
    for (key, value) in &attributes {
        push_attribute(&mut text_again, key, value);
    }
    let reparsed = Payload::parse(&text_again);
    assert_eq!(reparsed.target(), Some(target));
    assert_eq!(reparsed.attributes().collect::<Vec<_>>(), attributes);
}

/// Input: a base in the first line, and a link. A canonical URL parses to itself, and each fast
/// path gives the result of the slow one.
fn url(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (base, link) = text.split_once('\n').unwrap_or((text, text));
    let parsed = CanonicalUrl::parse(base);
    // The standard ignores a TAB, but the fast path does not accept it, so the parser runs.
    let trimmed = base.trim_matches(|character| character <= ' ');
    if let Some((first, rest)) = trimmed.split_at_checked(1).filter(|_| base.len() < URL_BYTES_MAX)
    {
        let slow_text = format!("{first}\t{rest}");
        assert_eq!(CanonicalUrl::parse(&slow_text), parsed, "the fast path for {base:?}");
    }
    let Ok(base) = parsed else { return };
    check_url(&base);
    let joined = base.join(link);
    let mut buffer = "left over".to_owned();
    assert_eq!(base.join_into(link, &mut buffer), joined, "{link:?} at {base}");
    if let Ok(url) = joined {
        check_url(&url);
    }
}

fn check_url(url: &CanonicalUrl<'_>) {
    let reparsed = CanonicalUrl::parse(url.as_str()).expect("a canonical URL parses");
    assert_eq!((&reparsed, reparsed.url_key()), (url, url.url_key()));
    assert!(url.as_str().bytes().all(|byte| byte.is_ascii_graphic()), "{url} is one word");
    let rest = url.as_str().strip_prefix(url.scheme()).and_then(|rest| rest.strip_prefix("://"));
    let rest = rest.and_then(|rest| rest.strip_prefix(url.authority()));
    assert_eq!(rest, Some(url.path_and_query()), "the parts of {url}");
    assert!(url.path().starts_with('/') && url.path_and_query().starts_with(url.path()));
    assert!(url.authority().starts_with(url.host()) && !url.host().is_empty());
    assert!(url.host().ends_with(url.domain()), "the domain of {url}");
    let _ = (url.address(), url.port(), url.is_loopback());
}

#[cfg(test)]
#[path = "../../fuzz/replay.rs"]
mod replay;

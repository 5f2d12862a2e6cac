//! First lines of other protocols: what closes a connection before anything is published (`[S4]`), so that no other
//! protocol can be made to talk to this port, and a program that found the wrong one is no event.

use crate::text::is_control;

/// A line end in these and a version is a request or a status: `GET / HTTP/1.1`, `INVITE sip:a@b SIP/2.0`.
const VERSIONED: [&str; 4] = ["HTTP/", "RTSP/", "SIP/", "ICAP/"];

/// How clients of protocols begin whose commands are words: the first one, and how many there are at most, so that
/// a sentence that begins like that goes on to be one.
const COMMANDS: [(&str, usize); 16] = [
    // Mail.
    ("EHLO", 2),
    ("HELO", 2),
    ("LHLO", 2),
    // FTP, POP3, IRC.
    ("USER", 2),
    ("PASS", 2),
    ("NICK", 2),
    ("CAPA", 1),
    ("CAP", 3),
    // HTTP/0.9, and Redis as its users type it.
    ("GET", 2),
    ("SET", 3),
    ("AUTH", 3),
    ("INFO", 1),
    ("CONFIG", 4),
    ("SELECT", 2),
    ("FLUSHALL", 2),
    ("MONITOR", 1),
];

/// Other beginnings: those of SSH, NATS, rsync and HTTP requests that are told apart by nothing else, and what a load
/// balancer says of whoever it connects.
const BEGINNINGS: [&str; 7] =
    ["SSH-2.0-", "SSH-1.", "CONNECT {", "@RSYNCD:", "GET /", "PROXY TCP", "PROXY UNKNOWN"];

/// Whether a line is how another protocol begins.
pub(crate) fn begins(line: &[u8]) -> bool {
    let line = line.trim_ascii();
    is_versioned(line) || is_command(line) || is_array_of_redis(line) || {
        BEGINNINGS.iter().any(|beginning| line.starts_with(beginning.as_bytes()))
    }
}

/// Ends in such a word and `d.d`.
fn is_versioned(line: &[u8]) -> bool {
    let Some((name, [major, b'.', minor])) = line.split_last_chunk() else { return false };
    major.is_ascii_digit()
        && minor.is_ascii_digit()
        && VERSIONED.iter().any(|versioned| name.ends_with(versioned.as_bytes()))
}

fn is_command(line: &[u8]) -> bool {
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let first = words.next().unwrap_or_default();
    let known = COMMANDS.iter().find(|(word, _)| word.as_bytes() == first);
    // Bounded, however many there are.
    known.is_some_and(|(_, most)| words.take(*most).count() < *most)
}

/// `*3`: so many strings follow.
fn is_array_of_redis(line: &[u8]) -> bool {
    matches!(line, [b'*', digits @ ..] if !digits.is_empty() && digits.iter().all(u8::is_ascii_digit))
}

/// The first control byte in the unread bytes of a first line, which may still be on its way: who sends one waits
/// for nobody's line end. The first `searched` bytes were looked at before; no line is longer than `line_bytes_max`.
pub(crate) fn control(unread: &[u8], searched: usize, line_bytes_max: usize) -> Option<u8> {
    // The last one of them may have been the CR of a CRLF.
    let begin = searched.saturating_sub(1);
    for (at, &byte) in unread.iter().enumerate().take(line_bytes_max + 1).skip(begin) {
        match byte {
            b'\n' => return None,
            b'\r' if unread.get(at + 1).is_none_or(|next| *next == b'\n') => return None,
            // Where a line would begin it is the end of all input (`[L5]`).
            0x04 if at == 0 => return None,
            byte if is_control(byte) => return Some(byte),
            _ => {}
        }
    }
    None
}

//! Recognizes first lines of other protocols, which close the connection before anything is
//! published (`[S4]`). So no other protocol can be made to talk to this port, and a program that
//! found the wrong port publishes nothing.

use crate::text::is_control;

/// A line that ends with one of these and a version is a request or a status: `GET / HTTP/1.1`,
/// `INVITE sip:a@b SIP/2.0`.
const VERSIONED: [&str; 4] = ["HTTP/", "RTSP/", "SIP/", "ICAP/"];

/// First words of text protocols, each with the largest number of words in the
/// line: a sentence that begins with the same word has more.
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
    // HTTP/0.9, and Redis as users type it.
    ("GET", 2),
    ("SET", 3),
    ("AUTH", 3),
    ("INFO", 1),
    ("CONFIG", 4),
    ("SELECT", 2),
    ("FLUSHALL", 2),
    ("MONITOR", 1),
];

/// Other beginnings: SSH, NATS, rsync, HTTP requests without a version, and the line with which a
/// load balancer announces a connection.
const BEGINNINGS: [&str; 7] =
    ["SSH-2.0-", "SSH-1.", "CONNECT {", "@RSYNCD:", "GET /", "PROXY TCP", "PROXY UNKNOWN"];

/// Whether another protocol begins with this line.
pub(crate) fn is_first_line(line: &[u8]) -> bool {
    let line = line.trim_ascii();
    is_versioned(line) || is_command(line) || is_redis_array(line) || {
        BEGINNINGS.iter().any(|beginning| line.starts_with(beginning.as_bytes()))
    }
}

/// Whether the line ends with such a word and `d.d`.
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
    // Counts no further than needed.
    known.is_some_and(|(_, most)| words.take(*most).count() < *most)
}

/// `*3`: an array of that many strings follows.
fn is_redis_array(line: &[u8]) -> bool {
    matches!(line, [b'*', digits @ ..] if !digits.is_empty() && digits.iter().all(u8::is_ascii_digit))
}

/// The first control byte in the unread bytes of a first line, which may be incomplete: a sender of
/// control bytes may never send a line end. The first `searched` bytes were checked before; no line
/// is longer than `line_bytes_max`.
pub(crate) fn first_control_byte(
    unread: &[u8],
    searched: usize,
    line_bytes_max: usize,
) -> Option<u8> {
    // The last of these bytes may have been the CR of a CRLF.
    let begin = searched.saturating_sub(1);
    for (at, &byte) in unread.iter().enumerate().take(line_bytes_max + 1).skip(begin) {
        match byte {
            b'\n' => return None,
            b'\r' if unread.get(at + 1).is_none_or(|next| *next == b'\n') => return None,
            // At the beginning of a line it ends all input (`[L5]`).
            0x04 if at == 0 => return None,
            byte if is_control(byte) => return Some(byte),
            _ => {}
        }
    }
    None
}

//! Reads the first request head of an HTTP connection into little memory. The connection is given
//! to hyper, with its larger buffers, only after that.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _};

/// The limit of header fields in hyper.
const HEADERS_MAX: usize = 100;

/// Bytes of memory for a head at the beginning; doubled when it is full.
const INITIAL_BYTES: usize = 512;

/// Reads the first head. Reading stops at its end, at bytes that cannot be a head, or at the end of
/// input. The last read may include bytes that follow the head. Returns `None` if the head is
/// longer than `bytes_max`; it never takes more memory than that.
pub(super) async fn read_first_head(
    stream: &mut (impl AsyncRead + Unpin),
    bytes_max: usize,
) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    while is_partial_head(&bytes) {
        if bytes.len() == bytes_max {
            return Ok(None);
        }
        if bytes.len() == bytes.capacity() {
            bytes.reserve_exact(bytes.len().max(INITIAL_BYTES).min(bytes_max - bytes.len()));
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            break;
        }
    }
    Ok(Some(bytes))
}

/// Whether the bytes are the beginning of a head, but not all of it.
fn is_partial_head(bytes: &[u8]) -> bool {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    httparse::Request::new(&mut headers).parse(bytes) == Ok(httparse::Status::Partial)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn reading_stops_at_the_end_of_the_head() {
        for (pieces, read) in [
            (&["GET / HT", "TP/1.1\r\nHost: a\r\n", "\r\n", "more"][..], 3),
            (&["GET / HTTP/1.1\n", "\n", "more"], 2),
            (&["POST / HTTP/1.1\r\n\r\nbody", "more"], 1),
            (&["PUB new", "-url http://a/\r\n", "more"], 2),
            (&["\x16\x03\x01", "more"], 1),
            (&["GET / HTTP/1.1\r\nHost: a\r\n"], 1),
            (&[], 0),
        ] {
            let mut stream: Box<dyn AsyncRead + Unpin> = Box::new(tokio::io::empty());
            for piece in pieces.iter().rev() {
                stream = Box::new(piece.as_bytes().chain(stream));
            }
            let head = read_first_head(&mut stream, 1 << 10).await.unwrap().unwrap();
            assert_eq!(head, pieces[..read].concat().as_bytes());
        }
    }

    #[tokio::test]
    async fn a_head_takes_no_more_memory_than_its_limit() {
        let unfinished = [&b"GET / HTTP/1.1\r\nx: "[..], &[b'y'; 6_000]].concat();
        let head = |bytes_max| {
            let mut stream = io::Cursor::new(unfinished.clone());
            async move { read_first_head(&mut stream, bytes_max).await.unwrap() }
        };
        assert_eq!(head(6_000).await, None);
        assert_eq!(head(unfinished.len()).await, None, "the head has no end yet");
        let head = head(6 << 10).await.unwrap();
        assert_eq!(head, unfinished);
        assert!(head.capacity() <= 6 << 10, "{}", head.capacity());
    }
}

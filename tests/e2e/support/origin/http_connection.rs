//! Serves HTTP/1.1 on one connection of a test origin.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::site::OriginResponse;
use super::{Hit, OriginState};

const HEAD_BYTES_MAX: usize = 64 * 1024;

/// The pause between two bytes of a slow response, and between checks for the end of the test.
const DRIP_INTERVAL: Duration = Duration::from_millis(50);

/// Serves requests until the client disconnects or a response ends the connection.
pub(super) fn serve_requests(
    mut stream: TcpStream,
    host: Ipv4Addr,
    shared: &OriginState,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let port = stream.local_addr()?.port();
    loop {
        let mut first = [0];
        if stream.read(&mut first)? == 0 {
            return Ok(());
        }
        let start = shared.now();
        let head = read_rest_of_head(&mut stream, first[0])?;
        let path = head.split(' ').nth(1).unwrap_or("/").to_owned();
        let hit = Hit { host, path, head, start, end: None };
        let response = (shared.override_response)(&hit);
        let response = response.unwrap_or_else(|| shared.site.response(host, port, &hit.path));
        let request = shared.record_start(hit);
        if !is_connected_after(&stream, shared.site.response_delay)? {
            return Ok(());
        }
        let sent = send_response(&mut stream, &response, shared, request);
        if sent.is_err() {
            shared.clear_end(request);
        }
        if !sent? {
            return Ok(());
        }
    }
}

fn read_rest_of_head(stream: &mut TcpStream, first: u8) -> io::Result<String> {
    let mut head = vec![first];
    let mut chunk = [0; 4096];
    while !head.ends_with(b"\r\n\r\n") {
        let count = stream.read(&mut chunk)?;
        if count == 0 || head.len() > HEAD_BYTES_MAX {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        head.extend_from_slice(&chunk[..count]);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

/// Sends a response; returns whether the connection can serve another request.
fn send_response(
    stream: &mut TcpStream,
    response: &OriginResponse,
    shared: &OriginState,
    request: usize,
) -> io::Result<bool> {
    match response {
        OriginResponse::Full { status, headers, body } => {
            let text = format!(
                "HTTP/1.1 {status}\r\nContent-Length: {}\r\n{headers}\r\n{body}",
                body.len()
            );
            shared.record_end(request);
            stream.write_all(text.as_bytes())?;
            return Ok(true);
        }
        OriginResponse::Raw(bytes) => {
            shared.record_end(request);
            stream.write_all(bytes)?;
        }
        OriginResponse::Endless => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000000\r\n")?;
            stream.write_all(b"Content-Type: text/html\r\n\r\n")?;
            send_endlessly(stream, &[b'x'; 8 * 1024])?;
        }
        OriginResponse::EndlessHeader => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nX-Long: ")?;
            send_endlessly(stream, &[b'h'; 4096])?;
        }
        OriginResponse::Drip => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")?;
            while !shared.is_stopping() && is_connected_after(stream, DRIP_INTERVAL)? {
                stream.write_all(b"x")?;
            }
        }
        OriginResponse::Held(is_released) => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n")?;
            stream.write_all(b"Content-Type: text/html\r\n\r\n")?;
            while !is_released.load(Ordering::SeqCst) {
                if shared.is_stopping() || !is_connected_after(stream, DRIP_INTERVAL)? {
                    return Ok(false);
                }
                stream.write_all(b"10\r\n<p>0123456789</p\r\n")?;
            }
            shared.record_end(request);
            stream.write_all(b"0\r\n\r\n")?;
        }
        OriginResponse::Silent => {
            while !shared.is_stopping() && is_connected_after(stream, DRIP_INTERVAL)? {}
        }
        OriginResponse::Truncated => {
            shared.record_end(request);
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n<title>Half a")?;
        }
    }
    Ok(false)
}

/// Sends the same bytes until the client disconnects, which is an error.
fn send_endlessly(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    loop {
        stream.write_all(bytes)?;
    }
}

/// Waits for this time; returns false if the client disconnects earlier.
fn is_connected_after(stream: &TcpStream, time: Duration) -> io::Result<bool> {
    let until = Instant::now() + time;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(true);
        }
        stream.set_read_timeout(Some(left))?;
        let peeked = stream.peek(&mut [0]);
        stream.set_read_timeout(None)?;
        match peeked {
            Ok(0) => return Ok(false),
            // The crawler never sends a request before it has the previous response.
            Ok(_) => return Err(ErrorKind::InvalidData.into()),
            Err(error) => match error.kind() {
                // The timeout expired, or this process was stopped for a while.
                ErrorKind::TimedOut | ErrorKind::WouldBlock | ErrorKind::Interrupted => {}
                _ => return Err(error),
            },
        }
    }
}

//! HTTP/1.1 as far as crawlers need it, for all connections in one thread.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout_at};

use super::OriginState;
use super::site::{CannedResponses, RequestHead, Site, parse_head};

/// No crawler of this site sends a longer head.
const HEAD_BYTES_MAX: usize = 8 * 1024;

/// What all connections share.
struct OriginServer {
    site: Site,
    responses: CannedResponses,
    state: Arc<OriginState>,
}

/// Serves a site until this future is dropped.
pub(super) async fn serve(
    site: Site,
    listener: std::net::TcpListener,
    state: Arc<OriginState>,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let responses = CannedResponses::render(&site);
    let server = Arc::new(OriginServer { site, responses, state });
    loop {
        // If the client has already disconnected, or all file descriptors are in use, it will try
        // again.
        if let Ok((socket, peer)) = listener.accept().await {
            let server = Arc::clone(&server);
            tokio::spawn(async move { server.serve_connection(socket, peer).await });
        }
    }
}

impl OriginServer {
    /// Errors are caused by the client. What matters is in the log.
    async fn serve_connection(&self, mut socket: TcpStream, peer: SocketAddr) -> io::Result<()> {
        socket.set_nodelay(true)?;
        let IpAddr::V4(host) = socket.local_addr()?.ip() else { return Ok(()) };
        let Some(host) = self.site.host_number(host).filter(|_| peer.ip().is_loopback()) else {
            return Ok(());
        };
        self.state.lock_log().connections += 1;
        let mut received = Vec::with_capacity(1024);
        loop {
            let mut start = None;
            let RequestHead { target, closes_connection, bytes } = loop {
                if let Some(head) = parse_head(&received, &self.site) {
                    break head;
                }
                let is_too_long = received.len() >= HEAD_BYTES_MAX;
                if is_too_long || socket.read_buf(&mut received).await? == 0 {
                    return Ok(());
                }
                start.get_or_insert_with(|| self.state.now());
            };
            received.drain(..bytes);
            let start = start.unwrap_or_else(|| self.state.now());
            let request = self.state.record_start(host, target, start);
            if !self.site.response_delay.is_zero() {
                let due = Instant::now() + self.site.response_delay;
                while let Ok(read) = timeout_at(due, socket.read_buf(&mut received)).await {
                    if read? == 0 {
                        return Ok(());
                    }
                }
            }
            // Read before the last byte is sent.
            self.state.record_end(request, Some(self.state.now()));
            if let Err(error) = socket.write_all(&self.responses.get(host, target)).await {
                self.state.record_end(request, None);
                return Err(error);
            }
            if closes_connection {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{Ipv4Addr, TcpStream};
    use std::time::Duration;

    use super::super::{Origin, RequestLog, RequestTarget};
    use super::*;

    const SITE: Site = Site {
        hosts: 3,
        pages: 2,
        page_bytes: 2000,
        links: 5,
        response_delay: Duration::ZERO,
        crawl_delay: None,
        is_scripted: false,
    };

    fn connect(origin: &Origin, host: u32) -> BufReader<TcpStream> {
        BufReader::new(TcpStream::connect((Site::host_address(host), origin.port())).unwrap())
    }

    /// The status and the body of the next response.
    fn read_response(connection: &mut BufReader<TcpStream>) -> (String, String) {
        let mut lines = Vec::new();
        while lines.last().is_none_or(|line| line != "\r\n") {
            let mut line = String::new();
            connection.read_line(&mut line).unwrap();
            lines.push(line);
        }
        let length = lines.iter().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
        let mut body = vec![0; length.trim().parse().unwrap()];
        connection.read_exact(&mut body).unwrap();
        (lines[0].trim_end().to_owned(), String::from_utf8(body).unwrap())
    }

    fn get(connection: &mut BufReader<TcpStream>, path: &str) -> (String, String) {
        write!(connection.get_mut(), "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        read_response(connection)
    }

    #[test]
    fn a_connection_serves_one_request_after_the_other() {
        let origin = Origin::serve(SITE, (Ipv4Addr::UNSPECIFIED, 0).into()).unwrap();
        let mut connection = connect(&origin, 2);
        assert_eq!(get(&mut connection, "/robots.txt").1, "User-agent: *\nDisallow:\n");
        let (status, page) = get(&mut connection, "/p/1");
        assert_eq!((status.as_str(), page.len()), ("HTTP/1.1 200 OK", 2000));
        assert!(
            page.contains("<title>Page 1 of 127.1.0.3 ") && page.contains("href=\"/p/0\""),
            "{page}"
        );
        assert_eq!(get(&mut connection, "/p/2").0, "HTTP/1.1 404 Not Found");
        // Two requests arrive in two pieces, and the second one closes the connection.
        let requests = b"GET /p/0 HTTP/1.1\r\n\r\nGET /p/1 HTTP/1.1\r\nConnection: close\r\n\r\n";
        connection.get_mut().write_all(&requests[..30]).unwrap();
        assert!(read_response(&mut connection).1.contains("Page 0 of"));
        connection.get_mut().write_all(&requests[30..]).unwrap();
        assert!(read_response(&mut connection).1.contains("Page 1 of"));
        assert_eq!(connection.read(&mut [0]).unwrap(), 0);
        let log = origin.request_log();
        let targets: Vec<_> = log.requests.iter().map(|request| request.target).collect();
        let [first, second] = [RequestTarget::Page(0), RequestTarget::Page(1)];
        assert_eq!(targets, [RequestTarget::Robots, second, RequestTarget::Other, first, second]);
        assert!(
            log.requests
                .iter()
                .all(|request| request.host == 2 && request.end >= Some(request.start)),
            "{log:?}"
        );
        assert_eq!(log.connections, 1);
    }

    #[test]
    fn delayed_responses_do_not_block_other_connections() {
        let response_delay = Duration::from_millis(50);
        let site = Site { response_delay, ..SITE };
        let origin = Origin::serve(site, (Ipv4Addr::UNSPECIFIED, 0).into()).unwrap();
        let mut connections: Vec<_> = (0..3).map(|host| connect(&origin, host)).collect();
        for connection in &mut connections {
            connection.get_mut().write_all(b"GET /p/0 HTTP/1.1\r\n\r\n").unwrap();
        }
        for connection in &mut connections {
            assert_eq!(read_response(connection).0, "HTTP/1.1 200 OK");
        }
        let requests = origin.request_log().requests;
        let first_end = requests.iter().filter_map(|request| request.end).min().unwrap();
        for request in requests {
            assert!(request.end.unwrap() >= request.start + response_delay, "{request:?}");
            assert!(request.start < first_end, "{request:?}");
        }
    }

    #[test]
    fn an_unread_response_has_no_end() {
        let site = Site { page_bytes: 16 << 20, ..SITE };
        let origin = Origin::serve(site, (Ipv4Addr::UNSPECIFIED, 0).into()).unwrap();
        let mut slow = connect(&origin, 0);
        slow.get_mut().write_all(b"GET /p/0 HTTP/1.1\r\n\r\n").unwrap();
        // Meanwhile another client reads such a page completely. No socket buffer holds it.
        assert_eq!(get(&mut connect(&origin, 1), "/p/1").1.len(), 16 << 20);
        let timeout = Duration::from_secs(20);
        let is_ended = |log: &RequestLog, ended| {
            log.requests
                .iter()
                .any(|request| request.host == 0 && request.end.is_some() == ended)
                .then_some(())
        };
        origin.wait_for(timeout, |log| is_ended(log, true)).unwrap();
        drop(slow);
        origin.wait_for(timeout, |log| is_ended(log, false)).unwrap();
    }
}

//! HTTP/1.1 as far as crawlers need it, for all connections in one thread.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::net::{RecvFlags, recv};
use tidings_load::poller::Poller;

use super::OriginState;
use super::site::{CannedResponses, RequestTarget, Site, parse_head};
use super::verdict::OriginRequest;

/// No crawler of this site sends a longer head.
const HEAD_BYTES_MAX: usize = 8 * 1024;

/// Connections that are accepted before the others have their turn.
const ACCEPTS_MAX: usize = 256;

/// Longest wait of an idle origin, after which it notices that it must stop.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Serves a site until the origin stops.
pub(super) fn serve(site: Site, listener: TcpListener, state: Arc<OriginState>) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let poller = Poller::new()?;
    poller.register_readable(&listener, token(&listener))?;
    let server = OriginServer {
        site,
        responses: CannedResponses::render(&site),
        listener,
        poller,
        state,
        connections: Vec::new(),
        delayed: VecDeque::new(),
    };
    server.run()
}

/// State of the thread.
struct OriginServer {
    site: Site,
    responses: CannedResponses,
    listener: TcpListener,
    poller: Poller,
    state: Arc<OriginState>,
    /// By file descriptor.
    connections: Vec<Option<OriginConnection>>,
    /// Delayed responses as time, file descriptor and connection id. All have the same delay, so
    /// they are in the order of their times.
    delayed: VecDeque<(Duration, usize, u64)>,
}

struct OriginConnection {
    socket: TcpStream,
    host: u32,
    /// Tells it from a later connection with the same file descriptor.
    id: u64,
    received: Vec<u8>,
    /// When the first bytes of the next request were read.
    start: Option<Duration>,
    pending: Option<PendingResponse>,
    /// Whether it waits until the socket is writable.
    is_write_blocked: bool,
}

/// The response to a request.
#[derive(Clone, Copy)]
struct PendingResponse {
    target: RequestTarget,
    /// Index of the request in the log.
    log_index: usize,
    closes_connection: bool,
    /// Bytes of the response that are sent.
    sent: usize,
    /// Whether its delay is over.
    is_due: bool,
}

/// What happens to a connection next.
#[derive(PartialEq, Eq)]
enum Disposition {
    Keep,
    Close,
}

impl OriginServer {
    fn run(mut self) -> io::Result<()> {
        let listener = token(&self.listener);
        let mut ready = Vec::new();
        while !self.state.is_stopping.load(Ordering::Acquire) {
            self.send_due_responses();
            let now = self.state.now();
            let due = self
                .delayed
                .front()
                .map_or(STOP_POLL_INTERVAL, |(due, ..)| due.saturating_sub(now));
            self.poller.wait(due.min(STOP_POLL_INTERVAL), &mut ready)?;
            for &token in &ready {
                if token == listener {
                    self.accept()?;
                } else {
                    self.with_connection(token, OriginServer::read_requests);
                }
            }
        }
        Ok(())
    }

    fn accept(&mut self) -> io::Result<()> {
        for _ in 0..ACCEPTS_MAX {
            let (socket, peer) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                // The client has already disconnected, or all file descriptors are in use: it
                // will try again.
                Err(_) => continue,
            };
            let Some(host) = self.prepare_socket(&socket).filter(|_| peer.ip().is_loopback())
            else {
                continue;
            };
            self.poller.register_readable(&socket, token(&socket))?;
            let mut log = self.state.lock_log();
            log.connections += 1;
            let id = log.connections;
            drop(log);
            let index = token(&socket);
            if self.connections.len() <= index {
                self.connections.resize_with(index + 1, || None);
            }
            self.connections[index] = Some(OriginConnection {
                socket,
                host,
                id,
                received: Vec::with_capacity(1024),
                start: None,
                pending: None,
                is_write_blocked: false,
            });
        }
        Ok(())
    }

    /// Sets the options of a connection. Returns the number of its host, if this site has it.
    fn prepare_socket(&self, socket: &TcpStream) -> Option<u32> {
        socket.set_nonblocking(true).and_then(|()| socket.set_nodelay(true)).ok()?;
        let IpAddr::V4(host) = socket.local_addr().ok()?.ip() else { return None };
        self.site.host_number(host)
    }

    fn send_due_responses(&mut self) {
        let now = self.state.now();
        while let Some(&(due, token, id)) = self.delayed.front() {
            if due > now {
                return;
            }
            self.delayed.pop_front();
            let is_same = |connection: &OriginConnection| connection.id == id;
            if self.connections[token].as_ref().is_some_and(is_same) {
                self.with_connection(token, |server, connection| {
                    if let Some(response) = &mut connection.pending {
                        response.is_due = true;
                    }
                    server.respond(connection)
                });
            }
        }
    }

    /// Runs `step` with a connection, and closes it if `step` ends it or fails.
    fn with_connection(
        &mut self,
        token: usize,
        step: impl FnOnce(&mut Self, &mut OriginConnection) -> io::Result<Disposition>,
    ) {
        // It may have ended in the same round.
        let Some(mut connection) = self.connections.get_mut(token).and_then(Option::take) else {
            return;
        };
        match step(self, &mut connection) {
            Ok(Disposition::Keep) => self.connections[token] = Some(connection),
            // Errors are caused by the client. What matters is in the log.
            Ok(Disposition::Close) | Err(_) => {
                if let Some(response) = connection.pending {
                    self.state.lock_log().requests[response.log_index].end = None;
                    self.state.changed.notify_all();
                }
            }
        }
    }

    fn read_requests(&mut self, connection: &mut OriginConnection) -> io::Result<Disposition> {
        if !connection.is_write_blocked {
            if connection.received.len() == HEAD_BYTES_MAX {
                return Ok(Disposition::Close);
            }
            connection.received.reserve(256);
            let free_space = spare_capacity(&mut connection.received);
            match recv(&connection.socket, free_space, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Ok(Disposition::Close),
                Ok(_) => {}
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {
                    return Ok(Disposition::Keep);
                }
                Err(error) => return Err(error.into()),
            }
            connection.start.get_or_insert_with(|| self.state.now());
        }
        self.respond(connection)
    }

    /// Responds to the received requests, as far as responses are due and the socket is writable.
    fn respond(&mut self, connection: &mut OriginConnection) -> io::Result<Disposition> {
        loop {
            if connection.pending.is_none() && !self.parse_request(connection) {
                let is_too_long = connection.received.len() >= HEAD_BYTES_MAX;
                return Ok(if is_too_long { Disposition::Close } else { Disposition::Keep });
            }
            let Some(response) = &mut connection.pending else { return Ok(Disposition::Keep) };
            if !response.is_due {
                return Ok(Disposition::Keep);
            }
            loop {
                let rest =
                    self.responses.remaining(connection.host, response.target, response.sent);
                if rest.iter().all(|piece| piece.is_empty()) {
                    break;
                }
                // Read before the last byte is sent; later writes overwrite earlier values.
                let now = self.state.now();
                self.state.lock_log().requests[response.log_index].end = Some(now);
                match connection.socket.write_vectored(&rest) {
                    Ok(count) => response.sent += count,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        if !connection.is_write_blocked {
                            connection.is_write_blocked = true;
                            self.poller.switch_to_writable(
                                &connection.socket,
                                token(&connection.socket),
                            )?;
                        }
                        return Ok(Disposition::Keep);
                    }
                    Err(error) => return Err(error),
                }
            }
            let closes_connection = response.closes_connection;
            connection.pending = None;
            self.state.changed.notify_all();
            if closes_connection {
                return Ok(Disposition::Close);
            }
            if connection.is_write_blocked {
                connection.is_write_blocked = false;
                self.poller.switch_to_readable(&connection.socket, token(&connection.socket))?;
            }
        }
    }

    /// Logs the next request, if it was received completely.
    fn parse_request(&mut self, connection: &mut OriginConnection) -> bool {
        let Some(head) = parse_head(&connection.received, &self.site) else { return false };
        connection.received.drain(..head.bytes);
        let start = connection.start.take().unwrap_or_else(|| self.state.now());
        let mut log = self.state.lock_log();
        let log_index = log.requests.len();
        log.requests.push(OriginRequest {
            host: connection.host,
            target: head.target,
            start,
            end: None,
        });
        drop(log);
        self.state.changed.notify_all();
        let is_due = self.site.response_delay.is_zero();
        if !is_due {
            let due = self.state.now() + self.site.response_delay;
            self.delayed.push_back((due, token(&connection.socket), connection.id));
        }
        let target = head.target;
        connection.pending = Some(PendingResponse {
            target,
            log_index,
            closes_connection: head.closes_connection,
            sent: 0,
            is_due,
        });
        true
    }
}

fn token(socket: &impl AsRawFd) -> usize {
    usize::try_from(socket.as_raw_fd()).expect("file descriptors are not negative")
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read};
    use std::net::Ipv4Addr;

    use super::super::{Origin, PageKind, RequestLog};
    use super::*;

    const SITE: Site = Site {
        hosts: 3,
        pages: 2,
        page_bytes: 2000,
        links: 5,
        response_delay: Duration::ZERO,
        crawl_delay: None,
        sends_keep_alive: true,
        kind: PageKind::Static,
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

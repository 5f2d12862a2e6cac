//! HTTP/1.1, as much of it as crawlers need, on all connections in one thread.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::net::{RecvFlags, recv};

use super::Shared;
use super::judge::Hit;
use super::site::{Answers, Asked, Site, head};
use crate::poller::Poller;

/// A longer head is nobody's who crawls this site.
const HEAD_BYTES_MAX: usize = 8 * 1024;

/// Connections accepted before the others have their turn.
const ACCEPTS_MAX: usize = 256;

/// How soon the end of the origin is noticed when nothing happens.
const IDLE: Duration = Duration::from_millis(50);

/// Serves a site until the origin stops.
pub(super) fn serve(site: Site, listener: TcpListener, shared: Arc<Shared>) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let poller = Poller::new()?;
    poller.readable(&listener, token(&listener))?;
    let server = Server {
        site,
        answers: Answers::of(&site),
        listener,
        poller,
        shared,
        connections: Vec::new(),
        held_back: VecDeque::new(),
    };
    server.run()
}

/// All that the thread has.
struct Server {
    site: Site,
    answers: Answers,
    listener: TcpListener,
    poller: Poller,
    shared: Arc<Shared>,
    /// By the number of the socket.
    connections: Vec<Option<Connection>>,
    /// Answers that are held back, by when they are due: all for the same time, so the first due is
    /// the first in.
    held_back: VecDeque<(Duration, usize, u64)>,
}

struct Connection {
    socket: TcpStream,
    host: u32,
    /// Tells it from a later one with the same socket's number.
    number: u64,
    received: Vec<u8>,
    /// When the first bytes of the next request were read.
    start: Option<Duration>,
    sending: Option<Sending>,
    /// Whether more room in the socket is waited for.
    is_stuck: bool,
}

/// The answer to a request.
#[derive(Clone, Copy)]
struct Sending {
    asked: Asked,
    /// The request's place in the record.
    hit: usize,
    is_last: bool,
    /// Bytes of it.
    sent: usize,
    /// Whether it is due.
    is_due: bool,
}

/// What becomes of a connection.
#[derive(PartialEq, Eq)]
enum Next {
    Stay,
    Close,
}

impl Server {
    fn run(mut self) -> io::Result<()> {
        let listener = token(&self.listener);
        let mut ready = Vec::new();
        while !self.shared.stopping.load(Ordering::Acquire) {
            self.answer_what_is_due();
            let now = self.shared.now();
            let due = self.held_back.front().map_or(IDLE, |(due, ..)| due.saturating_sub(now));
            self.poller.wait(due.min(IDLE), &mut ready)?;
            for &token in &ready {
                if token == listener {
                    self.accept()?;
                } else {
                    self.turn(token, Server::receive);
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
                // The client was faster in leaving, or there are no files left: it will try again.
                Err(_) => continue,
            };
            let Some(host) = self.host_of(&socket).filter(|_| peer.ip().is_loopback()) else {
                continue;
            };
            self.poller.readable(&socket, token(&socket))?;
            let mut record = self.shared.record();
            record.connections += 1;
            let number = record.connections;
            drop(record);
            let place = token(&socket);
            if self.connections.len() <= place {
                self.connections.resize_with(place + 1, || None);
            }
            self.connections[place] = Some(Connection {
                socket,
                host,
                number,
                received: Vec::with_capacity(1024),
                start: None,
                sending: None,
                is_stuck: false,
            });
        }
        Ok(())
    }

    /// Prepares a connection; the number of the host that it is to, if it is one of ours.
    fn host_of(&self, socket: &TcpStream) -> Option<u32> {
        socket.set_nonblocking(true).and_then(|()| socket.set_nodelay(true)).ok()?;
        let IpAddr::V4(host) = socket.local_addr().ok()?.ip() else { return None };
        self.site.number(host)
    }

    fn answer_what_is_due(&mut self) {
        let now = self.shared.now();
        while let Some(&(due, token, number)) = self.held_back.front() {
            if due > now {
                return;
            }
            self.held_back.pop_front();
            let is_same = |connection: &Connection| connection.number == number;
            if self.connections[token].as_ref().is_some_and(is_same) {
                self.turn(token, |server, connection| {
                    if let Some(sending) = &mut connection.sending {
                        sending.is_due = true;
                    }
                    server.go_on(connection)
                });
            }
        }
    }

    /// Does something with a connection, and closes it if that was its end.
    fn turn(
        &mut self,
        token: usize,
        what: impl FnOnce(&mut Self, &mut Connection) -> io::Result<Next>,
    ) {
        // It may have ended in this very round.
        let Some(mut connection) = self.connections.get_mut(token).and_then(Option::take) else {
            return;
        };
        match what(self, &mut connection) {
            Ok(Next::Stay) => self.connections[token] = Some(connection),
            // Its errors are the client's business: what matters is in the record.
            Ok(Next::Close) | Err(_) => {
                if let Some(sending) = connection.sending {
                    self.shared.record().hits[sending.hit].end = None;
                    self.shared.changed.notify_all();
                }
            }
        }
    }

    fn receive(&mut self, connection: &mut Connection) -> io::Result<Next> {
        if !connection.is_stuck {
            if connection.received.len() == HEAD_BYTES_MAX {
                return Ok(Next::Close);
            }
            connection.received.reserve(256);
            let room = spare_capacity(&mut connection.received);
            match recv(&connection.socket, room, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Ok(Next::Close),
                Ok(_) => {}
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(Next::Stay),
                Err(error) => return Err(error.into()),
            }
            connection.start.get_or_insert_with(|| self.shared.now());
        }
        self.go_on(connection)
    }

    /// Answers what was received, as far as answers are due and the socket has room.
    fn go_on(&mut self, connection: &mut Connection) -> io::Result<Next> {
        loop {
            if connection.sending.is_none() && !self.take_request(connection) {
                let is_endless = connection.received.len() >= HEAD_BYTES_MAX;
                return Ok(if is_endless { Next::Close } else { Next::Stay });
            }
            let Some(sending) = &mut connection.sending else { return Ok(Next::Stay) };
            if !sending.is_due {
                return Ok(Next::Stay);
            }
            loop {
                let rest = self.answers.rest(connection.host, sending.asked, sending.sent);
                if rest.iter().all(|piece| piece.is_empty()) {
                    break;
                }
                // Before the last byte goes; earlier ones are overwritten.
                let now = self.shared.now();
                self.shared.record().hits[sending.hit].end = Some(now);
                match connection.socket.write_vectored(&rest) {
                    Ok(count) => sending.sent += count,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        if !connection.is_stuck {
                            connection.is_stuck = true;
                            self.poller
                                .now_writable(&connection.socket, token(&connection.socket))?;
                        }
                        return Ok(Next::Stay);
                    }
                    Err(error) => return Err(error),
                }
            }
            let is_last = sending.is_last;
            connection.sending = None;
            self.shared.changed.notify_all();
            if is_last {
                return Ok(Next::Close);
            }
            if connection.is_stuck {
                connection.is_stuck = false;
                self.poller.now_readable(&connection.socket, token(&connection.socket))?;
            }
        }
    }

    /// Notes the next request, if one was received as a whole.
    fn take_request(&mut self, connection: &mut Connection) -> bool {
        let Some(head) = head(&connection.received, self.site.pages) else { return false };
        connection.received.drain(..head.bytes);
        let start = connection.start.take().unwrap_or_else(|| self.shared.now());
        let mut record = self.shared.record();
        let hit = record.hits.len();
        record.hits.push(Hit { host: connection.host, asked: head.asked, start, end: None });
        drop(record);
        self.shared.changed.notify_all();
        let is_due = self.site.answer_after.is_zero();
        if !is_due {
            let due = self.shared.now() + self.site.answer_after;
            self.held_back.push_back((due, token(&connection.socket), connection.number));
        }
        let asked = head.asked;
        connection.sending = Some(Sending { asked, hit, is_last: head.is_last, sent: 0, is_due });
        true
    }
}

fn token(socket: &impl AsRawFd) -> usize {
    usize::try_from(socket.as_raw_fd()).expect("an open file has a number")
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read};
    use std::net::Ipv4Addr;

    use super::super::{Origin, Record};
    use super::*;

    const SITE: Site = Site {
        hosts: 3,
        pages: 2,
        page_bytes: 2000,
        links: 5,
        answer_after: Duration::ZERO,
        delay: None,
        says_keep_alive: true,
    };

    fn connect(origin: &Origin, host: u32) -> BufReader<TcpStream> {
        BufReader::new(TcpStream::connect((Site::host(host), origin.port())).unwrap())
    }

    /// The status and the body of the next answer.
    fn answer(connection: &mut BufReader<TcpStream>) -> (String, String) {
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

    fn ask(connection: &mut BufReader<TcpStream>, path: &str) -> (String, String) {
        write!(connection.get_mut(), "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        answer(connection)
    }

    #[test]
    fn a_connection_serves_one_request_after_the_other() {
        let origin = Origin::serve(SITE, (Ipv4Addr::UNSPECIFIED, 0).into()).unwrap();
        let mut connection = connect(&origin, 2);
        assert_eq!(ask(&mut connection, "/robots.txt").1, "User-agent: *\nDisallow:\n");
        let (status, page) = ask(&mut connection, "/p/1");
        assert_eq!((status.as_str(), page.len()), ("HTTP/1.1 200 OK", 2000));
        assert!(
            page.contains("<title>Page 1 of 127.1.0.3 ") && page.contains("href=\"/p/0\""),
            "{page}"
        );
        assert_eq!(ask(&mut connection, "/p/2").0, "HTTP/1.1 404 Not Found");
        // Two at once, in two pieces, and the second is the last.
        let requests = b"GET /p/0 HTTP/1.1\r\n\r\nGET /p/1 HTTP/1.1\r\nConnection: close\r\n\r\n";
        connection.get_mut().write_all(&requests[..30]).unwrap();
        assert!(answer(&mut connection).1.contains("Page 0 of"));
        connection.get_mut().write_all(&requests[30..]).unwrap();
        assert!(answer(&mut connection).1.contains("Page 1 of"));
        assert_eq!(connection.read(&mut [0]).unwrap(), 0);
        let record = origin.record();
        let asked: Vec<_> = record.hits.iter().map(|hit| hit.asked).collect();
        let [first, second] = [Asked::Page(0), Asked::Page(1)];
        assert_eq!(asked, [Asked::Robots, second, Asked::Other, first, second]);
        assert!(
            record.hits.iter().all(|hit| hit.host == 2 && hit.end >= Some(hit.start)),
            "{record:?}"
        );
        assert_eq!(record.connections, 1);
    }

    #[test]
    fn answers_are_held_back_and_other_connections_are_not_kept_waiting() {
        let answer_after = Duration::from_millis(50);
        let site = Site { answer_after, ..SITE };
        let origin = Origin::serve(site, (Ipv4Addr::UNSPECIFIED, 0).into()).unwrap();
        let mut connections: Vec<_> = (0..3).map(|host| connect(&origin, host)).collect();
        for connection in &mut connections {
            connection.get_mut().write_all(b"GET /p/0 HTTP/1.1\r\n\r\n").unwrap();
        }
        for connection in &mut connections {
            assert_eq!(answer(connection).0, "HTTP/1.1 200 OK");
        }
        let hits = origin.record().hits;
        let first_end = hits.iter().filter_map(|hit| hit.end).min().unwrap();
        for hit in hits {
            assert!(hit.end.unwrap() >= hit.start + answer_after, "{hit:?}");
            assert!(hit.start < first_end, "{hit:?}");
        }
    }

    #[test]
    fn an_answer_that_the_client_does_not_take_has_no_end() {
        let site = Site { page_bytes: 16 << 20, ..SITE };
        let origin = Origin::serve(site, (Ipv4Addr::UNSPECIFIED, 0).into()).unwrap();
        let mut slow = connect(&origin, 0);
        slow.get_mut().write_all(b"GET /p/0 HTTP/1.1\r\n\r\n").unwrap();
        // Meanwhile somebody else takes all of it, which no socket holds.
        assert_eq!(ask(&mut connect(&origin, 1), "/p/1").1.len(), 16 << 20);
        let patience = Duration::from_secs(20);
        let is_ended = |record: &Record, ended| {
            record.hits.iter().any(|hit| hit.host == 0 && hit.end.is_some() == ended).then_some(())
        };
        origin.wait_for(patience, |record| is_ended(record, true)).unwrap();
        drop(slow);
        origin.wait_for(patience, |record| is_ended(record, false)).unwrap();
    }
}

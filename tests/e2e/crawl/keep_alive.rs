//! Servers that close kept connections, and the requests they receive: each retry waits for the
//! delay of the host, every page gets a response, and `job-done` is published once.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use socket2::SockRef;
use tidings_bench::origin::HostRequests;

use crate::support::line_connection::LineConnection;
use crate::support::page_database;
use crate::support::process::Server;

const DELAY: Duration = Duration::from_millis(300);
const PAGES: usize = 6;

/// How a server ends the connection of each page, which it has announced as keep-alive.
#[derive(Debug, Clone, Copy)]
enum ConnectionEnd {
    /// Reads the next request on it and resets it.
    Reset,
    /// Reads the next request on it and closes it.
    Close,
    /// Reads the next request on it, sends a part of a head and closes it.
    PartialHead,
    /// Closes it after the response.
    AfterResponse,
}

#[derive(Debug)]
struct ServerRequest {
    path: String,
    start: Duration,
    /// The time before the last byte of the response was sent, or the connection was closed.
    end: Duration,
    is_answered: bool,
}

struct ClosingServer {
    end: ConnectionEnd,
    started: Instant,
    requests: Mutex<Vec<ServerRequest>>,
}

impl ClosingServer {
    fn serve(end: ConnectionEnd) -> (SocketAddr, Arc<Self>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let site = Arc::new(Self { end, started: Instant::now(), requests: Mutex::default() });
        let shared = Arc::clone(&site);
        // The thread ends with the process of the test.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let site = Arc::clone(&shared);
                thread::spawn(move || site.serve_connection(stream));
            }
        });
        (address, site)
    }

    fn serve_connection(&self, mut stream: TcpStream) -> io::Result<()> {
        let mut is_first = true;
        loop {
            let Some((start, path)) = self.read_request(&mut stream)? else { return Ok(()) };
            let responds = is_first || matches!(self.end, ConnectionEnd::AfterResponse);
            let end = self.started.elapsed();
            self.requests.lock().unwrap().push(ServerRequest {
                path: path.clone(),
                start,
                end,
                is_answered: responds,
            });
            if !responds {
                match self.end {
                    ConnectionEnd::Reset => {
                        SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
                    }
                    ConnectionEnd::PartialHead => stream.write_all(b"HTTP/1.1 2")?,
                    ConnectionEnd::Close | ConnectionEnd::AfterResponse => {}
                }
                return Ok(());
            }
            stream.write_all(response(&path).as_bytes())?;
            if matches!(self.end, ConnectionEnd::AfterResponse) {
                return Ok(());
            }
            is_first = false;
        }
    }

    /// Reads the next request: the time of its first byte, and its path.
    fn read_request(&self, stream: &mut TcpStream) -> io::Result<Option<(Duration, String)>> {
        let (mut head, mut byte, mut start) = (Vec::new(), [0], None);
        while !head.ends_with(b"\r\n\r\n") {
            if stream.read(&mut byte)? == 0 {
                return Ok(None);
            }
            start.get_or_insert_with(|| self.started.elapsed());
            head.push(byte[0]);
        }
        let head = String::from_utf8_lossy(&head);
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        Ok(start.map(|start| (start, path)))
    }
}

/// Page 0 links to all others.
fn response(path: &str) -> String {
    let body = match path {
        "/robots.txt" => String::new(),
        "/p0" => (1..PAGES)
            .fold(String::new(), |links, page| links + &format!("<a href=/p{page}>{page}</a>")),
        page => format!("<p>{page}"),
    };
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: keep-alive\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[track_caller]
fn check_crawl(end: ConnectionEnd) {
    let (address, site) = ClosingServer::serve(end);
    let server = Server::start_up(&["--allow-private", "--delay", "300ms"]);
    let mut listener = LineConnection::connect_client(server.address);
    assert_eq!(listener.request("SUB job-done"), "+OK");
    let mut client = LineConnection::connect_client(server.address);
    for command in
        ["JOB open site", &format!("JOB add site url=http://{address}/p0"), "JOB close site"]
    {
        client.request_ok(command);
    }
    let done = listener.read_line();
    let received = site.requests.lock().unwrap();
    let counts = format!(" result=done completed={PAGES} redirects=0 failed=0 ");
    assert!(
        done.starts_with("MSG job-done 1 site ") && done.contains(&counts),
        "{done} {received:#?}"
    );
    let mut requests = HostRequests::default();
    for request in &*received {
        let early = requests.early_by(request.start, DELAY);
        assert!(early.is_zero(), "{end:?}: {early:?} too early: {request:?} in {received:#?}");
        requests.record(request.start, Some(request.end));
    }
    let mut times = BTreeMap::<_, (u32, u32)>::new();
    for ServerRequest { path, is_answered, .. } in &*received {
        let (requests, responses) = times.entry(path).or_default();
        *requests += 1;
        *responses += u32::from(*is_answered);
    }
    assert_eq!(times.len(), PAGES + 1, "the pages and robots.txt: {times:?}");
    assert!(times.values().all(|times| times.0 <= 2 && times.1 == 1), "{end:?}: {times:?}");
    // The retry counts as no attempt, and after the first closed connection the crawler knows the
    // server.
    assert!(received.len() <= PAGES + 2, "{end:?}: {times:?}");
    let rows = "select count(*) from pages where outcome = 'done' and job = 'site'";
    assert_eq!(page_database::query(&server.data_dir(), rows).unwrap(), [PAGES.to_string()]);
    assert_eq!(client.request("PUB job-done no-more"), "+OK 2 1");
    assert_eq!(
        listener.read_line(),
        "MSG job-done 2 no-more",
        "{end:?}: job-done is published once"
    );
}

#[test]
#[ignore = "needs foreign programs"]
fn a_reset_connection_is_retried_after_the_delay() {
    check_crawl(ConnectionEnd::Reset);
}

#[test]
#[ignore = "needs foreign programs"]
fn a_closed_connection_is_retried_after_the_delay() {
    check_crawl(ConnectionEnd::Close);
}

#[test]
#[ignore = "needs foreign programs"]
fn a_truncated_head_is_retried_after_the_delay() {
    check_crawl(ConnectionEnd::PartialHead);
}

#[test]
#[ignore = "needs foreign programs"]
fn a_server_that_closes_after_each_response_is_crawled_politely() {
    check_crawl(ConnectionEnd::AfterResponse);
}

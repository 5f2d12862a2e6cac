//! Servers that end kept connections, and what they see: each repetition waits for the host's
//! delay, every page is answered, and the job is announced once.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use socket2::SockRef;

use crate::support::pages;
use crate::support::process::Server;
use crate::support::talk::Talk;

const DELAY: Duration = Duration::from_millis(300);
const PAGES: usize = 6;

/// What a server does with the connection, which it announces as kept, of every page.
#[derive(Debug, Clone, Copy)]
enum End {
    /// Reads the next request on it and resets it.
    Reset,
    /// Reads the next request on it and closes it.
    Close,
    /// Reads the next request on it, sends a part of a head and closes it.
    PartialHead,
    /// Closes it behind the answer.
    BehindAnswer,
}

#[derive(Debug)]
struct Seen {
    path: String,
    start: Duration,
    /// Before the last byte of the answer was sent, or the connection was ended.
    end: Duration,
    answered: bool,
}

struct Site {
    end: End,
    began: Instant,
    seen: Mutex<Vec<Seen>>,
}

impl Site {
    fn serve(end: End) -> (SocketAddr, Arc<Self>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let site = Arc::new(Self { end, began: Instant::now(), seen: Mutex::default() });
        let shared = Arc::clone(&site);
        // It ends with the process of the test.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let site = Arc::clone(&shared);
                thread::spawn(move || site.connection(stream));
            }
        });
        (address, site)
    }

    fn connection(&self, mut stream: TcpStream) -> io::Result<()> {
        let mut is_first = true;
        loop {
            let Some((start, path)) = self.head(&mut stream)? else { return Ok(()) };
            let answers = is_first || matches!(self.end, End::BehindAnswer);
            let end = self.began.elapsed();
            self.seen.lock().unwrap().push(Seen {
                path: path.clone(),
                start,
                end,
                answered: answers,
            });
            if !answers {
                match self.end {
                    End::Reset => SockRef::from(&stream).set_linger(Some(Duration::ZERO))?,
                    End::PartialHead => stream.write_all(b"HTTP/1.1 2")?,
                    End::Close | End::BehindAnswer => {}
                }
                return Ok(());
            }
            stream.write_all(answer(&path).as_bytes())?;
            if matches!(self.end, End::BehindAnswer) {
                return Ok(());
            }
            is_first = false;
        }
    }

    /// The next request: when its first byte came, and its path.
    fn head(&self, stream: &mut TcpStream) -> io::Result<Option<(Duration, String)>> {
        let (mut head, mut byte, mut start) = (Vec::new(), [0], None);
        while !head.ends_with(b"\r\n\r\n") {
            if stream.read(&mut byte)? == 0 {
                return Ok(None);
            }
            start.get_or_insert_with(|| self.began.elapsed());
            head.push(byte[0]);
        }
        let head = String::from_utf8_lossy(&head);
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        Ok(start.map(|start| (start, path)))
    }
}

/// Page 0 links to all of them.
fn answer(path: &str) -> String {
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
fn crawl(end: End) {
    let (address, site) = Site::serve(end);
    let server = Server::up(&["--allow-private", "--delay", "300ms"]);
    let mut listener = Talk::client(server.address);
    assert_eq!(listener.ask("SUB job-done"), "+OK");
    let mut client = Talk::client(server.address);
    for command in
        ["JOB open site", &format!("JOB add site url=http://{address}/p0"), "JOB close site"]
    {
        let answer = client.ask(command);
        assert!(answer.starts_with("+OK"), "{command}: {answer}");
    }
    let done = listener.line();
    let seen = site.seen.lock().unwrap();
    let counts = format!(" result=done completed={PAGES} redirects=0 failed=0 ");
    assert!(done.starts_with("MSG job-done 1 site ") && done.contains(&counts), "{done} {seen:#?}");
    for pair in seen.windows(2) {
        let rest = pair[1].start.saturating_sub(pair[0].end);
        assert!(rest >= DELAY, "{end:?}: {rest:?} between {pair:#?}");
    }
    let mut times = BTreeMap::<_, (u32, u32)>::new();
    for Seen { path, answered, .. } in &*seen {
        let (requests, answers) = times.entry(path).or_default();
        *requests += 1;
        *answers += u32::from(*answered);
    }
    assert_eq!(times.len(), PAGES + 1, "the pages and robots.txt: {times:?}");
    assert!(times.values().all(|times| times.0 <= 2 && times.1 == 1), "{end:?}: {times:?}");
    // No attempt was counted, and the server is known from its first end on.
    assert!(seen.len() <= PAGES + 2, "{end:?}: {times:?}");
    let rows = "select count(*) from pages where outcome = 'done' and job = 'site'";
    assert_eq!(pages::query(&server.data(), rows).unwrap(), [PAGES.to_string()]);
    assert_eq!(client.ask("PUB job-done no-more"), "+OK 2 1");
    assert_eq!(listener.line(), "MSG job-done 2 no-more", "{end:?}: announced once");
}

#[test]
fn a_connection_that_is_reset_with_a_request_costs_a_delay() {
    crawl(End::Reset);
}

#[test]
fn a_connection_that_is_closed_with_a_request_costs_a_delay() {
    crawl(End::Close);
}

#[test]
fn a_connection_that_ends_within_a_head_costs_a_delay() {
    crawl(End::PartialHead);
}

#[test]
fn a_server_that_closes_behind_each_answer_is_crawled_politely() {
    crawl(End::BehindAnswer);
}

//! A server with the pages of these tests, and one that must not be reached.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use crate::pages::page;

type Log = Arc<Mutex<Vec<String>>>;

/// How long the answer to a counted part takes.
const PART_TIME: Duration = Duration::from_millis(50);

/// The path of parts that are answered only when [`SLOTS`] of them are open.
const TOGETHER: &str = "/data/together";
pub(crate) const SLOTS: usize = 6;

/// Parts of pages, by their paths with queries. Each page asks for one.
#[derive(Clone, Default)]
struct Parts(Arc<(Mutex<PartsState>, Condvar)>);

#[derive(Default)]
struct PartsState {
    /// Those that are being answered.
    open: BTreeSet<String>,
    open_max: usize,
    begun: Vec<String>,
}

impl PartsState {
    fn together(&self) -> impl Iterator<Item = &String> {
        self.begun.iter().filter(|path| path.starts_with(TOGETHER))
    }
}

impl Parts {
    /// Answers a part after some time, or when a number of them are open.
    fn answer(&self, path: &str) {
        let (state, changed) = &*self.0;
        let mut parts = state.lock().unwrap();
        parts.begun.push(path.to_owned());
        parts.open.insert(path.to_owned());
        parts.open_max = parts.open_max.max(parts.open.len());
        changed.notify_all();
        if path.starts_with(TOGETHER) {
            let are_missing = |it: &mut PartsState| it.together().count() < SLOTS;
            parts = changed.wait_while(parts, are_missing).unwrap();
        } else {
            drop(parts);
            thread::sleep(PART_TIME);
            parts = state.lock().unwrap();
        }
        parts.open.remove(path);
    }
}

/// A server of the pages below. It runs until the end of the test program.
pub(crate) struct Origin {
    address: SocketAddr,
    log: Log,
    parts: Parts,
}

impl Origin {
    /// `CANARY` in a page stands for the canary's address.
    pub(crate) fn new(canary: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let log = Log::default();
        let entries = Arc::clone(&log);
        let parts = Parts::default();
        let begun = parts.clone();
        let canary = canary.to_owned();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (entries, canary) = (Arc::clone(&entries), canary.clone());
                let begun = begun.clone();
                thread::spawn(move || serve(&stream.unwrap(), address, &canary, &entries, &begun));
            }
        });
        Self { address, log, parts }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// The requests: version, method and path.
    pub(crate) fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    pub(crate) fn requests(&self, path: &str) -> usize {
        self.log().iter().filter(|entry| entry.split(' ').nth(1) == Some(path)).count()
    }

    /// The parts that pages requested, and how many of them were open at once.
    pub(crate) fn parts(&self) -> (Vec<String>, usize) {
        let parts = self.parts.0.0.lock().unwrap();
        (parts.begun.clone(), parts.open_max)
    }

    /// Requests that are not from the client of these tests, which speaks HTTP/1.0.
    pub(crate) fn browser_requests(&self) -> Vec<String> {
        self.log().into_iter().filter(|entry| !entry.ends_with(" HTTP/1.0")).collect()
    }
}

fn serve(mut stream: &TcpStream, address: SocketAddr, canary: &str, log: &Log, parts: &Parts) {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let request = lines.next().unwrap_or_default();
    lines.take_while(|line| !line.is_empty()).for_each(drop);
    let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
    log.lock().unwrap().push(request);
    match path.split('?').next() {
        Some("/never-answered") => loop {
            thread::park();
        },
        Some("/data/part" | TOGETHER) => parts.answer(&path),
        _ => {}
    }
    let (status, (kind, body)) = match page(path.split('?').next().unwrap_or_default()) {
        Some(page) => ("200 OK", page),
        None => ("404 Not Found", ("", String::new())),
    };
    let other_site = format!("localhost:{}", address.port());
    let body = body.replace("OTHER", &other_site).replace("CANARY", canary);
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
         Access-Control-Allow-Origin: *\r\nConnection: close\r\n\r\n"
    );
    let _ = stream.write_all(head.as_bytes());
    let _ = stream.write_all(body.as_bytes());
}

/// A server that records every contact by TCP or UDP.
pub(crate) struct Canary {
    pub(crate) address: SocketAddr,
    log: Log,
}

impl Canary {
    pub(crate) fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let socket = UdpSocket::bind(address).unwrap();
        let log = Log::default();
        let (entries, packets) = (Arc::clone(&log), Arc::clone(&log));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut line = String::new();
                let _ = BufReader::new(stream.unwrap()).read_line(&mut line);
                entries.lock().unwrap().push(format!("TCP: {line}"));
            }
        });
        thread::spawn(move || {
            while let Ok((bytes, _)) = socket.recv_from(&mut [0; 2048]) {
                packets.lock().unwrap().push(format!("UDP: {bytes} bytes"));
            }
        });
        Self { address, log }
    }

    pub(crate) fn contacts(&self) -> Vec<String> {
        // A connection is accepted before this one is.
        TcpStream::connect(self.address).unwrap().write_all(b"last\r\n").unwrap();
        loop {
            let log = self.log.lock().unwrap().clone();
            if log.iter().any(|entry| entry.contains("last")) {
                return log.into_iter().filter(|entry| !entry.contains("last")).collect();
            }
            thread::yield_now();
        }
    }
}

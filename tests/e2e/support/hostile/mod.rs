//! Servers that send what nobody should: one host (an address in 127.2.0.0/16) for each way to
//! misbehave, or many (in 127.4.0.0/16), and as many good ones beside them, all on one port.

mod ways;

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use socket2::SockRef;

pub(crate) use self::ways::WAYS;
use self::ways::{gzip_bomb, gzip_twice_bomb, html};

/// Between two bytes of who sends one at a time.
const DRIP: Duration = Duration::from_millis(100);

/// Whoever never ends does so when it has sent this much: nobody should have read as far.
const ENDLESS_BYTES: usize = 1 << 30;

/// What a host does when it is asked for `/`.
#[derive(Clone, Copy)]
pub(crate) enum Way {
    /// These bytes, and the end of the connection.
    Says(fn() -> Vec<u8>),
    /// The first bytes, then the others again and again.
    Repeats(&'static [u8], fn() -> Vec<u8>),
    /// The first bytes at once, the others one at a time.
    Drips(&'static [u8], &'static [u8]),
    /// The bytes, then a reset.
    Resets(&'static [u8]),
    /// The bytes, and then silence.
    Hangs(&'static [u8]),
    /// An answer that depends on the path that was asked for.
    Maze(fn(&str) -> Vec<u8>),
    /// Its robots.txt is this; its page is good.
    Robots(fn() -> Vec<u8>),
}

/// One request, as it was seen.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) host: Ipv4Addr,
    pub(crate) path: String,
    pub(crate) at: Duration,
}

/// The running servers; they stop when dropped.
#[derive(Debug)]
pub(crate) struct Hostile {
    shared: Arc<Shared>,
    port: u16,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    began: Instant,
    seen: Mutex<Vec<Seen>>,
    /// Hosts that had said what they had to say, and when the client left them.
    left: Mutex<Vec<(Ipv4Addr, Duration)>>,
    stopping: AtomicBool,
}

impl Hostile {
    /// Serves on a free port of all loopback addresses.
    #[track_caller]
    pub(crate) fn serve() -> Self {
        // Making them takes a while, and nobody should wait for that later.
        let _ = (gzip_bomb(), gzip_twice_bomb());
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        SockRef::from(&listener).listen(4096).unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            began: Instant::now(),
            seen: Mutex::default(),
            left: Mutex::default(),
            stopping: AtomicBool::new(false),
        });
        let acceptor = thread::spawn({
            let shared = Arc::clone(&shared);
            move || accept(&listener, &shared)
        });
        Self { shared, port, acceptor: Some(acceptor) }
    }

    /// The first page of the host with this way.
    pub(crate) fn url(&self, way: &str) -> String {
        format!("http://{}:{}/", bad_host(way), self.port)
    }

    /// The first page of one of many hosts with this way.
    pub(crate) fn one_of(&self, way: &str, number: usize) -> String {
        let at = WAYS.iter().position(|(name, _)| *name == way).unwrap();
        let [at, number] = [at, number + 1].map(|part| u8::try_from(part).unwrap());
        format!("http://{}:{}/", Ipv4Addr::new(127, 4, at, number), self.port)
    }

    /// The first page of a good host, of which there are as many as one likes.
    pub(crate) fn good(&self, number: usize) -> String {
        format!("http://{}:{}/0", good_host(number), self.port)
    }

    /// When the client first left a host with this way that hangs.
    pub(crate) fn left(&self, way: &str) -> Option<Duration> {
        let left = self.shared.left.lock().unwrap();
        left.iter().find(|(host, _)| *host == bad_host(way)).map(|(_, at)| *at)
    }

    /// All requests so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().unwrap().clone()
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        let _ = self.acceptor.take().map(JoinHandle::join);
    }
}

/// The address of the host with this way.
fn bad_host(way: &str) -> Ipv4Addr {
    host(2, WAYS.iter().position(|(name, _)| *name == way).unwrap())
}

/// The address of a good host.
pub(crate) fn good_host(number: usize) -> Ipv4Addr {
    host(3, number)
}

fn host(net: u8, number: usize) -> Ipv4Addr {
    let [high, low] = [number / 250, number % 250 + 1].map(|part| u8::try_from(part).unwrap());
    Ipv4Addr::new(127, net, high, low)
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        if shared.stopping.load(Ordering::SeqCst) {
            return;
        }
        let Ok(stream) = stream else { continue };
        let shared = Arc::clone(shared);
        thread::spawn(move || {
            let (Ok(IpAddr::V4(host)), Ok(peer)) =
                (stream.local_addr().map(|address| address.ip()), stream.peer_addr())
            else {
                return;
            };
            if peer.ip().is_loopback() {
                // What the client makes of it is in what it stores.
                let _: io::Result<()> = connection(stream, host, &shared);
            }
        });
    }
}

fn connection(mut stream: TcpStream, host: Ipv4Addr, shared: &Shared) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let path = read_path(&mut stream)?;
    let seen = Seen { host, path: path.clone(), at: shared.began.elapsed() };
    shared.seen.lock().unwrap().push(seen);
    let [_, net, high, low] = host.octets().map(usize::from);
    let (_, way) = match net {
        2 => WAYS[high * 250 + low - 1],
        4 => WAYS[high],
        _ => return stream.write_all(&good(&path)),
    };
    match way {
        Way::Robots(robots) if path == "/robots.txt" => stream.write_all(&robots()),
        _ if path == "/robots.txt" => stream.write_all(NOT_FOUND),
        Way::Robots(_) => stream.write_all(&html("<title>Fine</title>")),
        Way::Says(bytes) => {
            stream.write_all(&bytes())?;
            finish(&mut stream)
        }
        Way::Maze(answer) => stream.write_all(&answer(&path)),
        Way::Repeats(first, again) => {
            stream.write_all(first)?;
            let again = again();
            for _ in 0..ENDLESS_BYTES / again.len() {
                stream.write_all(&again)?;
            }
            Ok(())
        }
        Way::Drips(first, rest) => {
            stream.write_all(first)?;
            for byte in rest.iter().cycle() {
                if shared.stopping.load(Ordering::SeqCst) {
                    break;
                }
                stream.write_all(&[*byte])?;
                thread::sleep(DRIP);
            }
            Ok(())
        }
        Way::Hangs(bytes) => {
            stream.write_all(bytes)?;
            let left = finish(&mut stream);
            shared.left.lock().unwrap().push((host, shared.began.elapsed()));
            left
        }
        Way::Resets(bytes) => {
            // On one machine that has come before the reset does, and is read before it.
            stream.write_all(bytes)?;
            SockRef::from(&stream).set_linger(Some(Duration::ZERO))
        }
    }
}

/// Nothing more is sent; ends when the client leaves, so that what was sent is not lost to a reset.
fn finish(stream: &mut TcpStream) -> io::Result<()> {
    let mut rest = [0; 1024];
    while stream.read(&mut rest)? > 0 {}
    Ok(())
}

fn read_path(stream: &mut TcpStream) -> io::Result<String> {
    let mut head = Vec::new();
    let mut chunk = [0; 4096];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut chunk)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => head.extend_from_slice(&chunk[..count]),
        }
    }
    let head = String::from_utf8_lossy(&head);
    Ok(head.split(' ').nth(1).unwrap_or("/").to_owned())
}

const NOT_FOUND: &[u8] =
    b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

/// Pages of a good host.
pub(crate) const GOOD_PAGES: usize = 20;

fn good(path: &str) -> Vec<u8> {
    match path[1..].parse::<usize>() {
        Ok(page) if page < GOOD_PAGES => {
            html(&format!("<title>Page {page}</title><a href=\"/{}\">next</a>", page + 1))
        }
        _ => NOT_FOUND.to_vec(),
    }
}

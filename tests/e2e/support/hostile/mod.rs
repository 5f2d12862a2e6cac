//! Servers that send hostile responses, all on one port: one host (an address in 127.2.0.0/16) for
//! each misbehaviour, or many (in 127.4.0.0/16), and any number of good hosts beside them.

mod misbehaviours;

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use socket2::SockRef;

pub(crate) use self::misbehaviours::MISBEHAVIOURS;
use self::misbehaviours::{gzip_bomb, gzip_twice_bomb, html_response};

/// The pause between two bytes of a slow response.
const DRIP_INTERVAL: Duration = Duration::from_millis(100);

/// An endless response stops after this number of bytes; no client should read that far.
const ENDLESS_BYTES_MAX: usize = 1 << 30;

/// How a host responds to a request for `/`.
#[derive(Clone, Copy)]
pub(crate) enum Misbehaviour {
    /// Sends these bytes and closes the connection.
    Sends(&'static [u8]),
    /// The same.
    Responds(fn() -> Vec<u8>),
    /// Sends the first bytes once, then the others again and again.
    Repeats(&'static [u8], fn() -> Vec<u8>),
    /// Sends the first bytes at once, the others one at a time.
    Drips(&'static [u8], &'static [u8]),
    /// Sends the bytes, then resets the connection.
    Resets(&'static [u8]),
    /// Sends the bytes, then nothing.
    Hangs(&'static [u8]),
    /// Sends a response that depends on the requested path.
    RespondsByPath(fn(&str) -> Vec<u8>),
    /// Sends this robots.txt and a valid page.
    Robots(fn() -> Vec<u8>),
}

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct HostileRequest {
    pub(crate) host: Ipv4Addr,
    pub(crate) path: String,
    pub(crate) at: Duration,
}

/// The running servers; they stop when dropped.
#[derive(Debug)]
pub(crate) struct HostileServers {
    shared: Arc<HostileState>,
    port: u16,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct HostileState {
    started: Instant,
    requests: Mutex<Vec<HostileRequest>>,
    /// Hosts that had sent all their bytes and hung, and when the client disconnected.
    client_disconnects: Mutex<Vec<(Ipv4Addr, Duration)>>,
    stopping: AtomicBool,
}

impl HostileServers {
    /// Serves on a free port of all loopback addresses.
    #[track_caller]
    pub(crate) fn serve() -> Self {
        // Compressing takes a while and must not delay a response.
        let _ = (gzip_bomb(), gzip_twice_bomb());
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        SockRef::from(&listener).listen(4096).unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(HostileState {
            started: Instant::now(),
            requests: Mutex::default(),
            client_disconnects: Mutex::default(),
            stopping: AtomicBool::new(false),
        });
        let acceptor = thread::spawn({
            let shared = Arc::clone(&shared);
            move || accept_connections(&listener, &shared)
        });
        Self { shared, port, acceptor: Some(acceptor) }
    }

    /// The first page of the host with this misbehaviour.
    pub(crate) fn url(&self, name: &str) -> String {
        format!("http://{}:{}/", misbehaving_host(name), self.port)
    }

    /// The first page of one of many hosts with this misbehaviour.
    pub(crate) fn url_of_many(&self, name: &str, number: usize) -> String {
        let at = MISBEHAVIOURS.iter().position(|(known, ..)| *known == name).unwrap();
        let [at, number] = [at, number + 1].map(|part| u8::try_from(part).unwrap());
        format!("http://{}:{}/", Ipv4Addr::new(127, 4, at, number), self.port)
    }

    /// The first page of a good host; any number is valid.
    pub(crate) fn good_url(&self, number: usize) -> String {
        format!("http://{}:{}/0", good_host(number), self.port)
    }

    /// When the client first disconnected from a hanging host with this misbehaviour.
    pub(crate) fn first_disconnect(&self, name: &str) -> Option<Duration> {
        let disconnects = self.shared.client_disconnects.lock().unwrap();
        disconnects.iter().find(|(host, _)| *host == misbehaving_host(name)).map(|(_, at)| *at)
    }

    /// All requests so far.
    pub(crate) fn requests(&self) -> Vec<HostileRequest> {
        self.shared.requests.lock().unwrap().clone()
    }
}

impl Drop for HostileServers {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        let _ = self.acceptor.take().map(JoinHandle::join);
    }
}

/// The address of the host with this misbehaviour.
fn misbehaving_host(name: &str) -> Ipv4Addr {
    loopback_address(2, MISBEHAVIOURS.iter().position(|(known, ..)| *known == name).unwrap())
}

/// The address of a good host.
pub(crate) fn good_host(number: usize) -> Ipv4Addr {
    loopback_address(3, number)
}

fn loopback_address(net: u8, number: usize) -> Ipv4Addr {
    let [high, low] = [number / 250, number % 250 + 1].map(|part| u8::try_from(part).unwrap());
    Ipv4Addr::new(127, net, high, low)
}

fn accept_connections(listener: &TcpListener, shared: &Arc<HostileState>) {
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
                // The test reads the result from what the crawler stores.
                let _: io::Result<()> = serve_connection(stream, host, &shared);
            }
        });
    }
}

fn serve_connection(
    mut stream: TcpStream,
    host: Ipv4Addr,
    shared: &HostileState,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let path = read_path(&mut stream)?;
    let request = HostileRequest { host, path: path.clone(), at: shared.started.elapsed() };
    shared.requests.lock().unwrap().push(request);
    let [_, net, high, low] = host.octets().map(usize::from);
    let (.., misbehaviour) = match net {
        2 => MISBEHAVIOURS[high * 250 + low - 1],
        4 => MISBEHAVIOURS[high],
        _ => return stream.write_all(&good_page(&path)),
    };
    match misbehaviour {
        Misbehaviour::Robots(robots) if path == "/robots.txt" => stream.write_all(&robots()),
        _ if path == "/robots.txt" => stream.write_all(NOT_FOUND),
        Misbehaviour::Robots(_) => stream.write_all(&html_response("<title>Fine</title>")),
        Misbehaviour::Sends(bytes) => {
            stream.write_all(bytes)?;
            wait_for_close(&mut stream)
        }
        Misbehaviour::Responds(bytes) => {
            stream.write_all(&bytes())?;
            wait_for_close(&mut stream)
        }
        Misbehaviour::RespondsByPath(response) => stream.write_all(&response(&path)),
        Misbehaviour::Repeats(first, again) => {
            stream.write_all(first)?;
            let again = again();
            for _ in 0..ENDLESS_BYTES_MAX / again.len() {
                stream.write_all(&again)?;
            }
            Ok(())
        }
        Misbehaviour::Drips(first, rest) => {
            stream.write_all(first)?;
            for byte in rest.iter().cycle() {
                if shared.stopping.load(Ordering::SeqCst) {
                    break;
                }
                stream.write_all(&[*byte])?;
                thread::sleep(DRIP_INTERVAL);
            }
            Ok(())
        }
        Misbehaviour::Hangs(bytes) => {
            stream.write_all(bytes)?;
            let closed = wait_for_close(&mut stream);
            shared.client_disconnects.lock().unwrap().push((host, shared.started.elapsed()));
            closed
        }
        Misbehaviour::Resets(bytes) => {
            // On the loopback interface the bytes arrive before the reset, and the client reads
            // them first.
            stream.write_all(bytes)?;
            SockRef::from(&stream).set_linger(Some(Duration::ZERO))
        }
    }
}

/// Waits until the client disconnects, so that no reset destroys the sent bytes.
fn wait_for_close(stream: &mut TcpStream) -> io::Result<()> {
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

/// Number of pages of a good host.
pub(crate) const GOOD_PAGES: usize = 20;

fn good_page(path: &str) -> Vec<u8> {
    match path[1..].parse::<usize>() {
        Ok(page) if page < GOOD_PAGES => {
            html_response(&format!("<title>Page {page}</title><a href=\"/{}\">next</a>", page + 1))
        }
        _ => NOT_FOUND.to_vec(),
    }
}

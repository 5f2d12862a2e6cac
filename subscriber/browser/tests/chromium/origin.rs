//! A server with the pages of these tests, and one that must not be reached.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

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
    let (kind, body) = page(path.split('?').next().unwrap_or_default());
    let other_site = format!("localhost:{}", address.port());
    let body = body.replace("OTHER", &other_site).replace("CANARY", canary);
    let status = if kind.is_empty() { "404 Not Found" } else { "200 OK" };
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

/// The content type and the body at a path. An empty type is that of a page that is missing.
#[allow(clippy::too_many_lines, reason = "a list of pages")]
fn page(path: &str) -> (&'static str, String) {
    let html = |body: &str| ("text/html", format!("<!DOCTYPE html><title>t</title><body>{body}"));
    let script = |body: &str| ("text/javascript", body.to_owned());
    let data = |body: &str| ("application/json", body.to_owned());
    match path {
        "/plain" => html("plain"),
        "/scripts" => html(
            "<main></main><img src=/picture.png><script>
            fetch('/list.json').then(it => it.json()).then(list => {
                const main = document.querySelector('main');
                for (const path of list) main.innerHTML += `<a href='${path}'>${path}</a>`;
                const host = document.createElement('div');
                host.attachShadow({ mode: 'open' }).innerHTML = '<a rel=nofollow href=/in-shadow>';
                document.body.append(host);
                document.title = 'made by a script';
                history.pushState(null, '', '/pushed');
                throw new Error('thrown here');
            })</script>",
        ),
        "/list.json" => data("[\"/made\"]"),
        "/parts" => html(
            "<iframe src=/frame></iframe><iframe src=http://OTHER/other-frame></iframe><script>
            const add = text => document.body.append(`[${text}] `);
            onmessage = event => add(event.data);
            new Worker('/worker.js').onmessage = event => add(event.data);
            new SharedWorker('/shared.js').port.onmessage = event => add(event.data);
            navigator.serviceWorker.register('/service.js');
            navigator.serviceWorker.onmessage = event => add(event.data);
            navigator.serviceWorker.ready.then(it => it.active.postMessage(''));
            </script>",
        ),
        "/frame" => html(
            "<script>fetch('/data/frame').then(it => it.text()).then(it => parent.postMessage(it, '*'))</script>",
        ),
        "/other-frame" => html(
            "<script>fetch('/data/other-site').then(it => it.text()).then(it => parent.postMessage(it, '*'))</script>",
        ),
        "/worker.js" => script("fetch('/data/worker').then(it => it.text()).then(postMessage)"),
        "/shared.js" => script(
            "onconnect = event => fetch('/data/shared-worker').then(it => it.text()).then(it => event.ports[0].postMessage(it))",
        ),
        "/service.js" => script(
            "onmessage = event => fetch('/data/service-worker').then(it => it.text()).then(it => event.source.postMessage(it))",
        ),
        "/dialogs" => {
            html("before dialogs<script>onload = () => { while (true) alert(1); }</script>")
        }
        "/endless" => html("before the loop<script>onload = () => { while (true); }</script>"),
        "/waits" => html("waits<script>fetch('/never-answered')</script>"),
        "/ticker" => html("tick<script>setInterval(() => document.body.append('.'), 10)</script>"),
        "/memory" => html(
            "<script>const kept = []; setInterval(() => {
                document.body.append('.');
                for (let i = 0; i < 4; i++) kept.push(new Uint8Array(16 << 20).fill(7));
            }, 5)</script>",
        ),
        "/heap" => html(
            "<script>const kept = []; setInterval(() => {
                document.body.append('.');
                for (let i = 0; i < 4; i++) kept.push(new Array(1000000).fill(i));
            }, 5)</script>",
        ),
        "/counted" => html(
            "<script>fetch('/data/part' + location.search).then(it => it.text())
            .then(it => document.body.append('counted: ' + it))</script>",
        ),
        "/together" => html(
            "<script>fetch('/data/together' + location.search).then(it => it.text())
            .then(it => document.body.append('counted: ' + it))</script>",
        ),
        // The heap of its renderer overflows at once.
        "/crashes" => html(
            "<script>const kept = []; while (true) kept.push(new Array(30000000));</script>",
        ),
        "/late" => html(
            "<script>setTimeout(async () => {
                const list = await (await fetch('/list.json')).json();
                setTimeout(() => document.body.append('late: ' + list), 800);
            }, 900)</script>",
        ),
        "/slow" => html(
            "<script>setTimeout(() => { clearInterval(ticker); document.body.append('done'); }, 12000);
            const ticker = setInterval(() => document.body.append('.'), 100)</script>",
        ),
        "/away" => html("stays<script>onload = () => { location = '/never'; }</script>"),
        "/blank" => html("goes<script>onload = () => { location = 'about:blank'; }</script>"),
        "/opens" => html(
            "stays<a download href=/never-file></a><script>
            open('/never-popup'); document.querySelector('a').click();</script>",
        ),
        "/closes" => html("closes<script>close()</script>"),
        "/flood" => html(
            "flood<script>setInterval(() => { for (let i = 0; i < 20000; i++) console.error(i); }, 1)</script>",
        ),
        "/count" => html(
            "<script>
            const visits = localStorage.visits = 1 + +(localStorage.visits || 0);
            const cookie = 1 + +(document.cookie.split('=')[1] || 0);
            document.cookie = `count=${cookie}`;
            document.body.append(`visits: ${visits}, cookie: ${cookie}`);</script>",
        ),
        "/canary" => html(
            "<link rel=preconnect href=http://CANARY/><link rel=dns-prefetch href=http://CANARY/>
            <link rel=prefetch href=http://CANARY/prefetch><img src=http://CANARY/image>
            <video src=http://CANARY/video></video><a ping=http://CANARY/ping href='#x'>a</a>
            <script type=speculationrules>{\"prefetch\":[{\"urls\":[\"http://CANARY/rules\"]}],
            \"prerender\":[{\"urls\":[\"http://CANARY/prerender\"]}]}</script>
            <script>
            const attempt = action => { try { action(); } catch (error) { console.error(error); } };
            attempt(() => new WebSocket('ws://CANARY/socket'));
            attempt(() => new WebTransport('https://CANARY/transport'));
            attempt(() => new EventSource('http://CANARY/events'));
            attempt(() => navigator.sendBeacon('http://CANARY/beacon', 'x'));
            attempt(() => fetch('http://CANARY/post', { method: 'POST', body: 'x' }));
            attempt(() => fetch('http://CANARY/alive', { method: 'POST', keepalive: true }));
            attempt(() => document.querySelector('a').click());
            attempt(() => open('http://CANARY/popup'));
            attempt(() => {
                const peer = new RTCPeerConnection({ iceServers: [
                    { urls: 'stun:CANARY' },
                    { urls: 'turn:CANARY?transport=tcp', username: 'a', credential: 'b' },
                ] });
                peer.createDataChannel('x');
                peer.createOffer().then(it => peer.setLocalDescription(it));
            });
            attempt(() => {
                const form = document.createElement('form');
                form.method = 'post'; form.action = 'http://CANARY/form';
                document.body.append(form); form.submit();
            });
            setTimeout(() => document.body.append('tried all'), 2500);
            setInterval(() => document.body.append('.'), 100);
            </script>",
        ),
        path => match path.strip_prefix("/data/") {
            Some(name) => data(name),
            None => ("", String::new()),
        },
    }
}

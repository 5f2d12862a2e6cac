//! Clients of other protocols, and browsers that a page directs at a listener. Their first bytes
//! publish no event, and the broker closes dangerous connections. Lines that people type are still
//! published.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::Command;

use fastrand::Rng;
use tempfile::TempDir;

use crate::support::http_client::HttpClient;
use crate::support::line_connection::{FAREWELL, LineConnection};
use crate::support::nc::start_nc;
use crate::support::process::{Process, Server};
use crate::support::seed::seed_from_env;
use crate::support::tls::{CertificateAuthority, start_s_client};
use crate::support::wait::time_left;

/// Standard methods, an unknown one, and those that look like commands of the line protocol.
const METHODS: [&str; 19] = [
    "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "BREW", "PUB",
    "SUB", "HELLO", "JOIN", "ACK", "TOPIC", "JOB", "PING", "QUIT",
];

/// Lines that a page could have a browser send behind its first line.
const TRAILING_LINES: &str = "PUB new-url unheard\r\nunheard\r\nQUIT\r\n";

/// At least this many binary inputs are sent to each listener; random bytes fill up the list.
const RANDOM_INPUTS: usize = 60;

/// HTTP requests in all forms.
fn hostile_http() -> Vec<Vec<u8>> {
    let long = format!("/{}", "x".repeat(70 << 10));
    let targets = [
        "/",
        "/topics/new-url",
        "new-url",
        "new-url http://evil.example/",
        "*",
        "http://evil.example/",
        "evil.example:443",
        &long,
    ];
    let heads = ["Host: localhost\r\n", "", "Host: evil.example\r\n", "Host: a\r\nHost: b\r\n"];
    let mut all = Vec::new();
    for (at, method) in METHODS.iter().enumerate() {
        for (number, target) in targets.iter().enumerate() {
            // The offsets combine every method with every head and version.
            let head = heads[(at + number) % heads.len()];
            let version = ["HTTP/1.1", "HTTP/1.0", "HTTP/2.0"][(at + number) % 3];
            let head = head
                .replace("localhost", if number % 2 == 0 { "localhost" } else { "evil.example" });
            all.push(format!("{method} {target} {version}\r\n{head}\r\n{TRAILING_LINES}"));
        }
    }
    all.extend(
        [
            "GET /\r\n",
            "GET / HTTP/1.1\n\n",
            "GET / HTTP/1.1 \r\n\r\n",
            "GET / HTTP/1.1\rHost: localhost\r\r",
            "\r\n\r\nPOST / HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\u{4}\0\0\0\0\0",
            "GET / HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        ]
        .map(|text| format!("{text}{TRAILING_LINES}")),
    );
    all.into_iter().map(String::into_bytes).collect()
}

/// Other text protocols.
fn text_protocols() -> Vec<Vec<u8>> {
    let all = [
        "EHLO mail.example\r\nMAIL FROM:<a@b.example>\r\nDATA\r\n",
        "HELO x\r\n",
        "LHLO x\r\n",
        "*1\r\n$4\r\nPING\r\n",
        "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n",
        "SET k v\r\n",
        "CONFIG SET dir /var/spool/cron\r\n",
        "FLUSHALL\r\n",
        "AUTH secret\r\n",
        "INFO\r\n",
        "CONNECT {\"verbose\":false,\"lang\":\"go\"}\r\nPUB new-url 7\r\nunheard\r\n",
        "SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n",
        "USER anonymous\r\nPASS x@\r\n",
        "NICK eve\r\nUSER eve 0 * :Eve\r\n",
        "CAP LS 302\r\n",
        "INVITE sip:bob@example.org SIP/2.0\r\nVia: SIP/2.0/TCP h\r\n\r\n",
        "OPTIONS rtsp://example.org/ RTSP/1.0\r\nCSeq: 1\r\n\r\n",
        "@RSYNCD: 31.0\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n",
    ];
    all.map(|text| format!("{text}{TRAILING_LINES}").into_bytes()).into()
}

/// Binary protocols.
fn binary_protocols() -> Vec<Vec<u8>> {
    let with_rest = |bytes: &[u8]| [bytes, b"\r\n", TRAILING_LINES.as_bytes()].concat();
    let mut all: Vec<_> = [
        // TLS, TLS in the form of SSL 2, and DTLS.
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".as_slice(),
        b"\x16\x03\x03\x00\x05\n\n\n\n\n",
        b"\x80\x2e\x01\x03\x01\x00\x15\x00\x00\x00\x10",
        b"\x16\xfe\xfd\x00\x00",
        // STUN; TURN, with a user name that a page chose; STUN over TCP in the framing of ICE;
        // channel data.
        b"\x00\x01\x00\x00\x21\x12\xa4\x42abcdefghijkl",
        b"\x00\x03\x00\x30\x21\x12\xa4\x42abcdefghijkl\x00\x06\x00\x1c\nPUB new-url unheard\nunheard\n",
        b"\x00\x1c\x00\x01\x00\x00\x21\x12\xa4\x42",
        b"\x40\x00\x00\x0cunheard\n",
        // MQTT, RDP, LDAP, PostgreSQL, MySQL, SMB, MongoDB, AMQP, SOCKS, X11, git, PROXY.
        b"\x10\x10\x00\x04MQTT\x04\x02\x00\x3c\x00\x04evil",
        b"\x03\x00\x00\x2f\x2a\xe0\x00\x00\x00\x00\x00Cookie: mstshash=eve",
        b"0\x0c\x02\x01\x01\x60\x07\x02\x01\x03\x04\x00\x80\x00",
        b"\x00\x00\x00\x08\x04\xd2\x16\x2f",
        b"\x00\x00\x00\x29\x00\x03\x00\x00user\x00eve\x00\x00",
        b"\x20\x00\x00\x01\x85\xa6\x03\x00",
        b"\x00\x00\x00\x85\xffSMBr",
        b"\x3a\x00\x00\x00\x01\x00\x00\x00",
        b"AMQP\x00\x00\x09\x01",
        b"\x05\x01\x00",
        b"l\x00\x0b\x00",
        b"0032git-upload-pack /x\x00host=h\x00",
        b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c",
        // Terminal escapes in each encoding, and NUL bytes.
        b"\x1b[2J\x1b[H",
        b"hello\x1b]0;title\x07",
        b"\xc2\x9b31mred",
        b"\x9b31mred",
        b"hello\x08\x08\x08\x08\x08bye",
        b"\x00\x00\x00\x00",
        b"\x00",
        b"hello\x00",
        b"\x7f",
        b"\xef\xbf",
        b"\xfe\xffh\x00i",
    ]
    .map(with_rest)
    .into();
    let mut rng = Rng::with_seed(seed_from_env("HOSTILE_SEED"));
    while all.len() < RANDOM_INPUTS {
        let noise: Vec<_> = (0..rng.usize(1..4096)).map(|_| rng.u8(..)).collect();
        // Input that begins with Ctrl-D ends the connection, and random bytes may form a valid text
        // line: both are left out.
        let first =
            noise.split(|byte| *byte == b'\n').find(|line| !line.is_empty() && *line != b"\r");
        let is_binary = |line: &&[u8]| {
            line[0] != 4
                && (line.iter().any(|byte| *byte < 9) || std::str::from_utf8(line).is_err())
        };
        if first.is_some_and(|line| is_binary(&line)) {
            all.push(with_rest(&noise));
        }
    }
    all
}

/// Reads until the other side closes. It may reset the connection because of unread input.
#[track_caller]
fn read_until_closed(mut stream: TcpStream, sent: &[u8]) -> Vec<u8> {
    let mut received = Vec::new();
    stream.set_read_timeout(Some(time_left())).unwrap();
    match stream.read_to_end(&mut received) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        Err(error) => panic!("{error}, after {:?}: not closed", excerpt(sent)),
    }
    received
}

fn excerpt(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(60)].escape_ascii().to_string()
}

/// Sends the bytes and leaves the connection open: the broker must close it.
#[track_caller]
fn send_and_read(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    let _ = stream.write_all(bytes);
    read_until_closed(stream, bytes)
}

/// Sends the bytes and shuts down the sending side.
#[track_caller]
fn send_shut_down_and_read(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    read_until_closed(stream, bytes)
}

/// A netcat that subscribes before the hostile clients connect.
#[track_caller]
fn subscriber(server: &Server) -> Process {
    let mut nc = start_nc(server.address, &[]);
    nc.write("SUB new-url\n");
    nc.wait_for_line_with("+OK");
    nc
}

/// Checks that no event was published on any topic since the subscriber began.
#[track_caller]
fn expect_no_events(server: &Server, subscriber: Process) {
    let mut client = LineConnection::connect_client(server.address);
    let topics = client.request_lines("TOPIC ls");
    assert!(topics.iter().all(|line| !line.contains("unheard")), "{topics:?}");
    assert_eq!(client.request("PUB new-url the marker"), "+OK 1 1", "this is the first event");
    subscriber.wait_for_line_with("MSG new-url 1 the marker");
    let stdout = subscriber.signal_and_finish("TERM").stdout();
    let words: Vec<_> = stdout.iter().map(|line| line.trim_end()).collect();
    assert_eq!(words[1..], ["+OK", "MSG new-url 1 the marker"]);
    let stats = client.request_lines("STATS");
    assert!(stats[0].contains(" events=1 "), "{stats:?}");
}

#[test]
#[ignore = "needs foreign programs"]
fn other_protocols_on_the_line_port_are_closed_and_publish_nothing() {
    let server = Server::start_broker();
    let subscriber = subscriber(&server);
    for bytes in [hostile_http(), text_protocols(), binary_protocols()].concat() {
        let received = String::from_utf8(send_and_read(server.address, &bytes)).unwrap();
        let greeted = received.lines().all(|line| line.starts_with("Connected.  (PID "));
        assert!(greeted, "{received:?} to {:?}", excerpt(&bytes));
    }
    // SOCKS 4 begins with Ctrl-D, which ends a connection.
    let received =
        String::from_utf8(send_and_read(server.address, b"\x04\x01\x00\x50unheard\n")).unwrap();
    assert!(received.ends_with(&format!("{FAREWELL}\r\n")), "{received}");
    let hello = Process::start(Command::new("openssl").args([
        "s_client",
        "-connect",
        &server.address_text(),
    ]))
    .finish();
    assert_ne!(hello.code, Some(0));
    // An unfinished line with a control character publishes nothing at its end.
    for bytes in [b"\x16".as_slice(), b"AMQP\x00", b"0\x0c", b"hello\x1b"] {
        send_and_read(server.address, bytes);
    }
    expect_no_events(&server, subscriber);
}

#[test]
#[ignore = "needs foreign programs"]
fn other_protocols_on_the_http_port_publish_nothing() {
    let server = Server::start_broker();
    let address = HttpClient::new(&server).authority().parse().unwrap();
    let subscriber = subscriber(&server);
    for bytes in hostile_http() {
        let received = send_shut_down_and_read(address, &bytes);
        let text = String::from_utf8_lossy(&received);
        // A page of another site can read nothing but a rejection.
        assert!(!text.contains("evil.example/"), "{text}");
        for status in text.lines().filter(|line| line.starts_with("HTTP/")) {
            let is_fine = bytes.starts_with(b"GET / ")
                || bytes.starts_with(b"HEAD / ")
                || bytes.starts_with(b"HEAD /topics/new-url")
                || bytes.starts_with(b"GET /topics/new-url");
            assert!(
                is_fine || status.starts_with("HTTP/1.1 4") || status.starts_with("HTTP/1.0 4"),
                "{status} to {:?}",
                excerpt(&bytes)
            );
        }
    }
    for bytes in [text_protocols(), binary_protocols()].concat() {
        let received = send_and_read(address, &bytes);
        let text = String::from_utf8_lossy(&received);
        assert!(
            text.is_empty() || text.starts_with("HTTP/1.1 4") || text.starts_with("HTTP/1.0 4"),
            "{text} to {:?}",
            excerpt(&bytes)
        );
    }
    let form = "--data-binary=PUB new-url unheard";
    for flags in [
        &["--header", "Host:"][..],
        &["--header", "Host: evil.example"],
        &["--header", "Origin: http://evil.example"],
    ] {
        let mut curl = Command::new("curl");
        curl.args([
            "--silent",
            "--noproxy",
            "*",
            "--output",
            "/dev/null",
            "--write-out",
            "%{http_code}",
        ])
        .args(flags);
        curl.args(["--data-binary", form]).arg(format!("http://{address}/topics/new-url"));
        let status = Process::start(&mut curl).finish().stdout();
        assert!(["400", "403"].contains(&&*status[0]), "{flags:?}: {status:?}");
    }
    expect_no_events(&server, subscriber);
}

#[test]
#[ignore = "needs foreign programs"]
fn other_protocols_on_tls_ports_are_closed() {
    let folder = TempDir::new().unwrap();
    let authority = CertificateAuthority::new(folder.path(), "authority");
    authority.sign("broker");
    let unix = folder.path().join("unix.sock");
    let flags =
        ["broker", "--tls-cert", "broker.pem", "--tls-key", "broker.key", "--unix", "unix.sock"];
    let server = Server::start_in(folder, &flags, |_| ());
    let http: SocketAddr = server.process.wait_for_line("address of HTTP", |line| {
        line.strip_prefix("HTTP and dashboard at https://")?.trim_end_matches('/').parse().ok()
    });
    let ca = authority.certificate_file();
    let within = || {
        let client = start_s_client(server.address, &ca, &["-quiet"]);
        client.wait_for_line_with("Connected.");
        client
    };
    let mut subscriber = within();
    subscriber.write("SUB new-url\n");
    subscriber.wait_for_line_with("+OK");
    for bytes in [hostile_http(), text_protocols(), binary_protocols()].concat() {
        for address in [server.address, http] {
            let received = send_shut_down_and_read(address, &bytes);
            assert!(
                !received.starts_with(b"Connected") && !received.starts_with(b"HTTP"),
                "{received:?}"
            );
        }
    }
    // A client that does encrypt gets the same answer.
    for line in ["GET / HTTP/1.1\r\n", "PUB / HTTP/1.1\r\n", "EHLO x\r\n", "\0\n", "*1\r\n"] {
        let mut client = within();
        client.write(format!("{line}{TRAILING_LINES}"));
        let output = client.finish().stdout();
        assert_eq!(output.len(), 1, "{output:?}");
    }
    let mut marker = Process::start(Command::new("nc").arg("-NU").arg(unix));
    marker.write("PUB new-url the marker\n");
    marker.wait_for_line_with("+OK 1 1");
    subscriber.wait_for_line_with("MSG new-url 1 the marker");
}

#[test]
#[ignore = "needs foreign programs"]
fn lines_of_people_and_scripts_are_published() {
    let server = Server::start_broker();
    let mut listener = LineConnection::connect_peer(server.address);
    for line in [
        "hello",
        "http://a.example/GET?x=HTTP/1.1&y",
        "GET well soon",
        "INFO disk is full",
        "USER alice has left",
        "* note",
        "get /",
        "{\"a\": 1}",
        "\u{fc}ber \u{20ac}",
        "a\ttab",
    ] {
        let mut typed = start_nc(server.address, &["-N"]);
        typed.write(format!("{line}\n"));
        typed.finish().expect_code(0);
        assert_eq!(listener.read_line(), line);
    }
    let port = server.address.port();
    let script = format!(
        "exec 3<>/dev/tcp/127.0.0.1/{port}; echo from bash >&3; read -u 3 line; echo \"$line\""
    );
    let output =
        Process::start(Command::new("bash").args(["-c", &script])).finish().expect_code(0).stdout();
    assert!(output[0].starts_with("Connected."), "{output:?}");
    assert_eq!(listener.read_line(), "from bash");
    // After the first line a peer may send any text.
    let mut peer = LineConnection::connect_peer(server.address);
    peer.send("hello\nGET / HTTP/1.1\nEHLO x\n");
    assert_eq!([(); 3].map(|()| listener.read_line()), ["hello", "GET / HTTP/1.1", "EHLO x"]);
}

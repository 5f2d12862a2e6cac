use proptest::prelude::*;

use super::*;
use crate::PAYLOAD_BYTES_MAX;

/// All events of a stream that arrives in the given pieces and then ends, as text that outlives its
/// buffer.
fn events<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<String> {
    let mut session = Session::new();
    let mut buffer = Vec::new();
    let mut events = Vec::new();
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            let (used, event) = session.next(&buffer);
            events.extend(event.as_ref().map(shown));
            let done = event.is_none();
            buffer.drain(..used);
            if done {
                break;
            }
        }
    }
    events.extend(session.finish(&buffer).iter().map(shown));
    assert!(session.finish(&[]).is_empty(), "nothing comes after the end");
    assert_eq!(session.next(b"x\n"), (2, None), "nothing comes after the end");
    assert!(!session.is_mid_line());
    events
}

fn shown(event: &SessionEvent<'_>) -> String {
    match event {
        SessionEvent::Publish(text) => format!("publish {text}"),
        SessionEvent::Command(command) => format!("command {}", command.verb().as_str()),
        SessionEvent::Refused { error, publish: false } => format!("refused {}", error.code),
        SessionEvent::Refused { error, publish: true } => format!("publish refused {}", error.code),
        SessionEvent::Dropped(error) => format!("dropped {}", error.code),
        SessionEvent::End(SessionEnd::Violation(error)) => format!("violation {}", error.code),
        SessionEvent::End(end) => format!("{end:?}"),
    }
}

#[track_caller]
fn check(stream: impl AsRef<[u8]>, expected: &[&str]) {
    let stream = stream.as_ref();
    assert_eq!(events([stream]), expected, "in one read");
    if stream.len() < 1000 {
        assert_eq!(events(stream.chunks(1)), expected, "byte by byte");
    }
}

// PROTOCOL: S3
#[test]
fn s3_a_first_line_that_is_a_command_makes_a_client() {
    check(
        "PING\nhello\nPING\n",
        &["command PING", "refused unknown-command", "command PING", "EndOfInput"],
    );
    check("HELLO name=x\r\n", &["command HELLO", "EndOfInput"]);
    check("HELLO there\n", &["refused bad-argument", "EndOfInput"]);
}

// PROTOCOL: S3
#[test]
fn s3_any_other_first_line_makes_a_peer_for_good() {
    check("hello\nPUB t x\n", &["publish hello", "publish PUB t x", "EndOfInput"]);
    check("PINGS\nPING\n", &["publish PINGS", "publish PING", "EndOfInput"]);
    check("ping\n", &["publish ping", "EndOfInput"]);
    check(" PING\n", &["publish  PING", "EndOfInput"]);
}

// PROTOCOL: S3
#[test]
fn s3_help_as_a_first_line_is_the_command_in_any_case() {
    for word in ["HELP", "help", "Help"] {
        check(format!("{word}\r\nPING\n"), &["command HELP", "command PING", "EndOfInput"]);
    }
    check("help me\nhelp\n", &["publish help me", "publish help", "EndOfInput"]);
    check("PING\nhelp\n", &["command PING", "refused unknown-command", "EndOfInput"]);
}

// PROTOCOL: L3, S5
#[test]
fn empty_lines_are_ignored_and_decide_nothing() {
    check("\r\n\n\r\nPING\n\n\r\nPING\n", &["command PING", "command PING", "EndOfInput"]);
    check("\na\n\n\nb\n", &["publish a", "publish b", "EndOfInput"]);
    check("", &["EndOfInput"]);
}

// PROTOCOL: S8
#[test]
fn a_peer_leaves_with_quit_or_exit_as_a_whole_line_in_any_case() {
    for word in ["quit", "exit", "QuIt", "EXIT"] {
        check(format!("a\n{word}\r\nb\n"), &["publish a", "Quit"]);
        check(format!("a\n{word}"), &["publish a", "Quit"]);
    }
    check("exit\nb\n", &["Quit"]);
    check(
        "a\nplease quit\nquit \nquit now\n",
        &["publish a", "publish please quit", "publish quit ", "publish quit now", "EndOfInput"],
    );
}

// PROTOCOL: S8
#[test]
fn quit_as_a_first_line_is_the_command() {
    let mut session = Session::new();
    assert_eq!(session.next(b"QUIT\nPING\n"), (5, Some(SessionEvent::End(SessionEnd::Quit))));
    assert_eq!(session.mode(), SessionMode::Client);
    check("PING\nQUIT\nPING\n", &["command PING", "Quit"]);
    check(
        "PING\nquit\nPING\n",
        &["command PING", "refused unknown-command", "command PING", "EndOfInput"],
    );
}

// PROTOCOL: L5
#[test]
fn ctrl_d_ends_where_a_line_begins() {
    check("\x04a\n", &["EndOfTransmission"]);
    check("a\n\x04b\n", &["publish a", "EndOfTransmission"]);
    check("PING\n\x04PING\n", &["command PING", "EndOfTransmission"]);
    check("a\nb\x04\n\x04", &["publish a", "dropped control", "EndOfTransmission"]);
}

// PROTOCOL: L4
#[test]
fn the_last_line_needs_no_line_end() {
    check("http://example.org/", &["publish http://example.org/", "EndOfInput"]);
    check("PING", &["command PING", "EndOfInput"]);
    check("PING\nPUB t x", &["command PING", "command PUB", "EndOfInput"]);
}

// PROTOCOL: S4, S5
#[test]
fn a_first_line_of_another_protocol_closes_before_anything_is_published() {
    for line in [
        "GET / HTTP/1.1",
        "POST /x HTTP/1.0",
        "PUB / HTTP/1.1",
        "PUB new-url http://evil/ HTTP/1.1",
        "PRI * HTTP/2.0",
        "anything at all HTTP/9.9",
        "GET / HTTP/1.1 ",
        "HTTP/1.1",
    ] {
        check(format!("{line}\r\nHost: x\r\n\r\nPUB t x\n"), &["violation header"]);
        check(line, &["violation header"]);
    }
    check("\r\nGET / HTTP/1.1\r\n", &["violation header"]);
    check("a\nGET / HTTP/1.1\n", &["publish a", "publish GET / HTTP/1.1", "EndOfInput"]);
}

// PROTOCOL: S4
#[test]
fn first_lines_of_other_protocols_close_and_sentences_do_not() {
    for line in [
        "GET /",
        "GET / HTTP/1",
        "GET key",
        "OPTIONS rtsp://h/ RTSP/1.0",
        "INVITE sip:a@b SIP/2.0",
        "EHLO mail.example",
        " HELO  x ",
        "USER anonymous",
        "CAPA",
        "*1",
        "*3",
        "SET key value",
        "CONFIG SET dir /var",
        "CONNECT {\"verbose\":false}",
        "SSH-2.0-OpenSSH_9.2",
        "@RSYNCD: 31.0",
        "PROXY TCP4 192.0.2.1 192.0.2.2 1 2",
    ] {
        check(format!("{line}\r\nunheard\n"), &["violation header"]);
        check(line, &["violation header"]);
    }
    for line in [
        "http://a.example/HTTP/1.1x",
        "get /",
        "GET well soon",
        "EHLO and good morning",
        "SETTINGS",
        "SET the alarm to seven",
        "INFO disk is full",
        "AUTHOR x",
        "*",
        "* 3",
        "*3x",
        "SSH-key lost",
        "CONNECT the dots",
        "PUT /orders/7 state=paid",
        "HTTP/1.1 is old",
        "/GET",
        "{\"a\":1}",
    ] {
        let event = format!("publish {line}");
        check(format!("{line}\n"), &[&event, "EndOfInput"]);
        check(format!("a\nGET /\n{line}\n"), &["publish a", "publish GET /", &event, "EndOfInput"]);
    }
}

// PROTOCOL: S4
#[test]
fn a_control_byte_closes_before_the_first_line_ends() {
    for beginning in [b"0\x0c".as_slice(), b"AMQP\0", b" \0", b"ab\x04", b"ab\rc", b"\r\n\n0\x7f"] {
        for size in [1, beginning.len()] {
            let mut session = Session::new();
            let (mut unread, mut seen) = (Vec::new(), None);
            for piece in beginning.chunks(size) {
                assert_eq!(seen, None, "{beginning:?}");
                unread.extend_from_slice(piece);
                let (used, event) = session.next(&unread);
                seen = event.as_ref().map(shown);
                unread.drain(..used);
            }
            assert_eq!(seen.as_deref(), Some("violation control"), "{beginning:?}");
        }
    }
    let longest = "x".repeat(LINE_BYTES_MAX);
    check(format!("{longest}\r\na\n"), &["dropped too-long", "publish a", "EndOfInput"]);
    check(format!("{longest}\ra\n"), &["violation control"]);
    check(format!("{longest}\0"), &["violation control"]);
    check(format!("{longest}x\0"), &["violation too-long"]);
}

#[test]
fn a_tls_hello_or_another_control_byte_in_the_first_line_closes() {
    let mut session = Session::new();
    let (_, event) = session.next(b"\x16\x03\x01");
    assert_eq!(shown(&event.unwrap()), "violation control", "without waiting for a line end");
    check(b"\x16\x03\x01\x02\x00\nhello\n", &["violation control"]);
    check(b"\x00", &["violation control"]);
    check(b"ab\x00c\nhello\n", &["violation control"]);
    check("a\u{85}b\nhello\n", &["violation control"]);
    check(b"PING\x7f\nPING\n", &["violation control"]);
    check(b"\rPING\nPING\n", &["violation control"]);
    check(b"a\tb\n\tc\n", &["publish a\tb", "publish \tc", "EndOfInput"]);
    check(b"\tc\n", &["publish \tc", "EndOfInput"]);
}

#[test]
fn the_longest_first_line_and_one_more() {
    let longest = format!("PUB t {}", "x".repeat(LINE_BYTES_MAX - 6));
    check(
        format!("{longest}\r\nPING\n"),
        &["publish refused too-long", "command PING", "EndOfInput"],
    );
    check(format!("{longest}x\r\nPING\n"), &["violation too-long"]);
    check("x".repeat(LINE_BYTES_MAX + 1), &["violation too-long"]);
    check("x".repeat(LINE_BYTES_MAX), &["dropped too-long", "EndOfInput"]);
}

// PROTOCOL: L2, L8
#[test]
fn a_line_over_65536_bytes_is_rejected_once_and_its_rest_is_skipped() {
    let longest = "x".repeat(65_536);
    check(
        format!("PING\n{longest}\r\nPING\n"),
        &["command PING", "refused unknown-command", "command PING", "EndOfInput"],
    );
    check(
        format!("PING\n{longest}x{longest}\nPING\n"),
        &["command PING", "refused too-long", "command PING", "EndOfInput"],
    );
}

// PROTOCOL: L6, L7, S9, P1
#[test]
fn invalid_events_are_dropped_and_their_neighbours_are_not() {
    let long = "x".repeat(PAYLOAD_BYTES_MAX + 1);
    let longer = "x".repeat(LINE_BYTES_MAX + 1);
    let mut stream = b"a\n".to_vec();
    for line in
        [b"b\x07".as_slice(), b"\xff\xfe", long.as_bytes(), longer.as_bytes(), "\u{9b}".as_bytes()]
    {
        stream.extend_from_slice(line);
        stream.push(b'\n');
    }
    stream.extend_from_slice(b"c\n");
    check(
        &stream,
        &[
            "publish a",
            "dropped control",
            "dropped utf8",
            "dropped too-long",
            "dropped too-long",
            "dropped control",
            "publish c",
            "EndOfInput",
        ],
    );
    let longest = "y".repeat(PAYLOAD_BYTES_MAX);
    assert_eq!(events([longest.as_bytes()]), [format!("publish {longest}"), "EndOfInput".into()]);
    check(b"a\n\xff\xfe\nb\n", &["publish a", "dropped utf8", "publish b", "EndOfInput"]);
    check(b"\xff\xfe\na\n", &["violation utf8"]);
}

#[test]
fn a_client_receives_the_reason_of_a_refusal() {
    let longer = "x".repeat(LINE_BYTES_MAX);
    let mut stream = b"PING\nPUB t a\x07\nPUB t \xff\nPUB t\nPUB\nSUB t\x07\n".to_vec();
    for verb in ["PUB t ", "SUB ", "LINK ", "nonsense "] {
        stream.extend_from_slice(verb.as_bytes());
        stream.extend_from_slice(longer.as_bytes());
        stream.push(b'\n');
    }
    check(
        &stream,
        &[
            "command PING",
            "publish refused control",
            "publish refused utf8",
            "publish refused bad-argument",
            "publish refused bad-argument",
            "refused control",
            "publish refused too-long",
            "refused too-long",
            "dropped too-long",
            "refused too-long",
            "EndOfInput",
        ],
    );
}

// PROTOCOL: A1
#[test]
fn a_link_is_never_answered() {
    check(
        "LINK x\nLINK g:1.2.3 http://a/ prio=x\nLINK g:1.2.3 http://a/\n",
        &["dropped bad-argument", "dropped bad-argument", "command LINK", "EndOfInput"],
    );
}

// PROTOCOL: S13
#[test]
fn sixteen_lines_in_a_row_that_are_no_command_close() {
    let mut expected = vec!["command PING"];
    expected.extend(["refused unknown-command"; 15]);
    expected.push("violation garbage");
    check(format!("PING\n{}PING\n", "nonsense\n".repeat(16)), &expected);

    expected.pop();
    expected.extend(["command PING", "refused unknown-command", "EndOfInput"]);
    check(format!("PING\n{}PING\nx\n", "nonsense\n".repeat(15)), &expected);
}

// PROTOCOL: S14
#[test]
fn refusing_a_command_never_closes() {
    let mut expected = vec!["refused bad-argument"; 100];
    expected.push("EndOfInput");
    check("SUB\n".repeat(100), &expected);
}

// PROTOCOL: S12
#[test]
fn a_client_that_sends_headers_is_closed() {
    for line in ["Host: example.org", "Content-Length:", "X-1:", "a: b"] {
        check(format!("PING\n{line}\r\nPING\n"), &["command PING", "violation header"]);
    }
    for line in ["http://example.org/", "1a: b", "-a: b", "a b: c", ": x", "ä: b"] {
        check(
            format!("PING\n{line}\n"),
            &["command PING", "refused unknown-command", "EndOfInput"],
        );
    }
    check("PING\nPUB t Host: x\n", &["command PING", "command PUB", "EndOfInput"]);
    check("a\nHost: x\n", &["publish a", "publish Host: x", "EndOfInput"]);
}

#[test]
fn an_unfinished_line_is_reported_as_mid_line() {
    let mut session = Session::new();
    assert!(!session.is_mid_line());
    assert_eq!(session.next(b"PI"), (0, None));
    assert!(session.is_mid_line());
    let (used, event) = session.next(b"PING\n");
    assert_eq!((used, event), (5, Some(SessionEvent::Command(Command::Ping))));
    assert_eq!(session.next(b""), (0, None));
    assert!(!session.is_mid_line());
}

fn line() -> impl Strategy<Value = Vec<u8>> {
    let bytes = |text: &'static str| Just(text.as_bytes().to_vec());
    prop_oneof![
        4 => bytes("PING"),
        4 => bytes("PUB t hello"),
        2 => bytes("LINK g:1.2.3 http://a/"),
        1 => bytes("QUIT"),
        1 => bytes("exit"),
        1 => bytes("Host: x"),
        1 => bytes("GET / HTTP/1.1"),
        1 => bytes(""),
        1 => bytes("\x04"),
        1 => bytes("PUB t \x07"),
        1 => bytes("HELLO x"),
        4 => "[a-z ]{0,10}".prop_map(String::into_bytes),
        1 => proptest::collection::vec(any::<u8>(), 0..10),
        1 => (LINE_BYTES_MAX - 2..LINE_BYTES_MAX + 3).prop_map(|length| vec![b'x'; length]),
    ]
}

fn stream() -> impl Strategy<Value = Vec<u8>> {
    let end = prop_oneof![8 => Just("\n"), 4 => Just("\r\n"), 1 => Just(""), 1 => Just("\r")];
    proptest::collection::vec((line(), end), 0..12).prop_map(|lines| {
        lines.into_iter().flat_map(|(line, end)| [line, end.as_bytes().to_vec()].concat()).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    // PROTOCOL: L9
    #[test]
    fn any_split_of_any_stream_gives_the_same_events(
        stream in stream(),
        sizes in proptest::collection::vec(prop_oneof![1_usize..9, 1_usize..70_000], 1..40),
    ) {
        let mut pieces = Vec::new();
        let mut rest = stream.as_slice();
        for size in sizes.iter().cycle() {
            // A long stream in tiny pieces takes long and tests nothing more.
            let size = if rest.len() > 500 { (*size).max(300) } else { *size };
            let (piece, left) = rest.split_at(size.min(rest.len()));
            pieces.push(piece);
            rest = left;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(events(pieces), events([stream.as_slice()]));
    }

    #[test]
    fn clients_only_command_and_peers_only_publish(stream in stream()) {
        let events = events([stream.as_slice()]);
        let publishes = events.iter().any(|event| event.starts_with("publish ")
            && !event.starts_with("publish refused"));
        let commands = events.iter().any(|event| event.starts_with("command"));
        prop_assert!(!(publishes && commands), "{events:?}");
        prop_assert_eq!(events.iter().filter(|event| ["Quit", "EndOfInput", "EndOfTransmission"]
            .contains(&event.as_str()) || event.starts_with("violation")).count(), 1);
    }
}

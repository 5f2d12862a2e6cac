use proptest::prelude::*;

use super::*;
use crate::status::AckStatus;

#[track_caller]
fn both_ways(line: &str, reply: &Reply<'_>) {
    let mut out = Vec::new();
    reply.encode(&mut out);
    assert_eq!(String::from_utf8(out).unwrap(), format!("{line}\r\n"));
    assert_eq!(Reply::parse(line).as_ref(), Ok(reply));
}

// PROTOCOL: A2
#[test]
fn answers() {
    both_ways("+OK", &Reply::Ok(""));
    both_ways("+OK 5", &Reply::Ok("5"));
    both_ways("+OK 5 x", &Reply::Ok("5 x"));
    both_ways("+OK 5 7", &Reply::Published { seq: Seq(5), n: 7 });
    both_ways("+ more  text", &Reply::More("more  text"));
    both_ways("PONG clock=12", &Reply::Pong { clock_ms: 12 });
    let (code, text) = ("stale", "crawlers:7.42.1");
    both_ways("-ERR stale crawlers:7.42.1", &Reply::Err { code, n: None, text });
    let (code, text) = ("full", "no room");
    both_ways("-ERR full n=8 no room", &Reply::Err { code, n: Some((8, 8)), text });
    both_ways("-ERR full n=8-21 no room", &Reply::Err { code, n: Some((8, 21)), text });
    both_ways("-ERR full n=8-21", &Reply::Err { code, n: Some((8, 21)), text: "" });
    both_ways("-ERR of-the-future", &Reply::Err { code: "of-the-future", n: None, text: "" });
}

// PROTOCOL: L2
#[test]
fn answers_fit_in_a_line() {
    let text = "x".repeat(LINE_BYTES_MAX);
    let (mut ok, mut more) = (Vec::new(), Vec::new());
    encode_ok(&text, &mut ok);
    encode_more(&text, &mut more);
    for line in [ok, more] {
        assert_eq!(line.len(), LINE_BYTES_MAX + "\r\n".len());
        assert!(line.ends_with(b"xx..\r\n"));
    }
}

#[test]
fn deliveries() {
    let payload = " two  blanks ";
    both_ways("MSG t 3  two  blanks ", &Reply::Msg { topic: "t", seq: Seq(3), payload });
    let id = TaskId { group: "g".parse().unwrap(), run: 1, entry: 2, attempt: 3 };
    let payload = "http://a/ job=b";
    let task = Reply::Task { id, clock_ms: 5, lease_ms: 6, payload };
    both_ways("TASK g:1.2.3 5 6 http://a/ job=b", &task);
    let (from, to) = (Seq(4), Seq(9));
    both_ways("LAG t 4 9", &Reply::Lag { topic: Some("t"), from, to });
    both_ways("LAG 4 9", &Reply::Lag { topic: None, from, to });
    both_ways("GAP t 4 9", &Reply::Gap { topic: "t", from, to });
    both_ways("SKIP t 9", &Reply::Skip { topic: "t", seq: to });
}

#[test]
fn a_topic_name_may_be_a_number() {
    let (topic, from, to) = (Some("7"), Seq(4), Seq(9));
    assert_eq!(Reply::parse("LAG 7 4 9"), Ok(Reply::Lag { topic, from, to }));
}

#[test]
fn invalid_replies_are_rejected() {
    for line in [
        "",
        "hello",
        "+OKAY",
        "-ERR",
        "MSG t",
        "MSG t x y",
        "TASK g:1.2 5 6 x",
        "LAG",
        "LAG x",
        "GAP 4 9",
        "SKIP 9",
        "SKIP t x",
        "PONG",
        "PONG clock=x",
        " +OK",
    ] {
        assert_eq!(Reply::parse(line), Err(NotAReply), "{line:?}");
    }
}

// PROTOCOL: S1
#[test]
fn the_greeting_has_two_blanks() {
    let mut out = Vec::new();
    encode_greeting(12, &mut out);
    assert_eq!(out, b"Connected.  (PID 12)\r\n");
}

// PROTOCOL: E2
#[test]
fn unknown_codes_stay_readable() {
    let error = refusal_from("of-the-future", "do that");
    assert_eq!(error, ProtocolError::new(Code::Internal, "of-the-future do that"));
    assert_eq!(refusal_from("full", "x"), ProtocolError::new(Code::Full, "x"));
}

// PROTOCOL: A7
#[test]
fn structured_answers_ignore_keys_of_the_future() {
    let resume = MemberId(7);
    let hello =
        HelloAnswer { version: "0.1.0".into(), id: 3, clock_ms: 9, echo: Some("x".into()), resume };
    assert_eq!(HelloAnswer::parse(&hello.to_string()), Some(hello.clone()));
    assert_eq!(HelloAnswer::parse(&format!("{hello} new-key=1")), Some(hello));
    assert_eq!(HelloAnswer::parse("id=3"), None);
    let ack = AckStatus { task: "g:1.2.3".into(), new: 1, known: 2, refused: 3 };
    assert_eq!(AckStatus::parse(&format!("{ack} later=1")), ack);
}

fn reply() -> impl Strategy<Value = (String, String, u64, u64, u64, u8)> {
    let payload = "[ -~ä\t]{1,40}";
    ("[a-z][a-z0-9-]{0,9}", payload, any::<u64>(), any::<u64>(), any::<u64>(), 0_u8..10)
}

proptest! {
    #[test]
    fn encoded_lines_parse_to_the_same((word, text, a, b, c, kind) in reply()) {
        let (from, to) = (Seq(a.min(b)), Seq(a.max(b)));
        let reply = match kind {
            0 => Reply::Published { seq: Seq(a), n: b },
            1 => Reply::Ok(text.as_str()),
            2 => Reply::More(&text),
            3 => Reply::Err { code: &word, n: Some((from.0, to.0)), text: &text },
            4 => Reply::Msg { topic: &word, seq: Seq(a), payload: &text },
            5 => Reply::Task {
                id: TaskId { group: word.parse().unwrap(), run: a, entry: b, attempt: 1 },
                clock_ms: b,
                lease_ms: c,
                payload: &text,
            },
            6 => Reply::Lag { topic: Some(&word), from, to },
            7 => Reply::Gap { topic: &word, from, to },
            8 => Reply::Skip { topic: &word, seq: Seq(a) },
            _ => Reply::Pong { clock_ms: a },
        };
        prop_assume!(kind != 1 || published(&text).is_none());
        let mut out = Vec::new();
        reply.encode(&mut out);
        let line = std::str::from_utf8(&out).unwrap().strip_suffix("\r\n").unwrap();
        prop_assert_eq!(Reply::parse(line), Ok(reply));
    }

    #[test]
    fn no_line_panics(line in "(MSG|TASK|LAG|GAP|SKIP|\\+OK|-ERR|PONG|\\+)?[ -~]{0,60}") {
        let _ = Reply::parse(&line);
    }
}

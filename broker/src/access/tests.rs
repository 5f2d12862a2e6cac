//! Every verb with every right, on every way, before and after login: against a table that knows nothing of how it is
//! decided.

mod cost;

use tidings_protocol::{Command, Verb};

use super::*;

/// Patterns, and whether they are about `docs-1`, which all names in the table are.
const PATTERNS: [(&str, bool); 8] = [
    ("docs-1", true),
    ("docs-*", true),
    ("docs-1*", true),
    ("*", true),
    ("docs-2", false),
    ("docs", false),
    ("docs-11*", false),
    ("DOCS-1", false),
];

/// A line of a client; what somebody has who sends it, besides the right in question; and the rights of which one is
/// enough.
struct Row(&'static str, &'static [&'static str], &'static [&'static str]);

/// What everybody may do who has come in at all.
const FREE: &[&str] = &["free"];
const SEE: &[&str] = &["monitor", "admin"];
const SEE_TOPIC: &[&str] = &["sub", "monitor", "admin"];
const SEE_GROUP: &[&str] = &["group", "monitor", "admin"];
const SEE_JOB: &[&str] = &["job", "monitor", "admin"];
const ADMIN: &[&str] = &["admin"];
const JOB: &[&str] = &["job"];
const GROUP: &[&str] = &["group"];
const PUB: &[&str] = &["pub:*"];

/// The rows of each verb: one without does not compile.
const fn rows(verb: Verb) -> &'static [Row] {
    match verb {
        Verb::Hello => &[Row("HELLO name=x", &[], FREE)],
        Verb::Ping => &[Row("PING", &[], FREE)],
        Verb::Help => &[Row("HELP", &[], FREE)],
        Verb::Quit => &[Row("QUIT", &[], FREE)],
        Verb::Pub => &[
            Row("PUB docs-1 http://a.example/x", &[], &["pub"]),
            Row("PUB docs-1 some text", &[], &["pub"]),
            Row("PUB docs-1 http://a.example/x y=1", &[], &["pub"]),
            Row("PUB docs-1 http://a.example/x every=1h", PUB, &["every"]),
            Row("PUB docs-1 http://a.example/x prio=9", PUB, &["prio"]),
            Row("PUB docs-1 http://a.example/x job=docs-1", PUB, JOB),
            Row("PUB docs-1 http://a.example/x hub=http://b.example/", PUB, &["hub"]),
            Row("PUB docs-1 http://a.example/x cloud=http://b.example/", PUB, &["hub"]),
            Row("PUB docs-1 http://a.example/x pushed=1", PUB, &["hub"]),
            Row("PUB docs-1 http://a.example/x every=1h prio=9", PUB, &[]),
            Row("PUB hub-found http://a.example/x", PUB, &["hub"]),
            Row("PUB hub x", PUB, &["hub"]),
            Row("PUB hub-verify x", PUB, &["hub"]),
            Row("PUB job-done docs-1 number=1", PUB, &["job:*"]),
        ],
        Verb::Sub => &[
            Row("SUB docs-1", &[], &["sub"]),
            Row("SUB docs-1 from=first", &[], &["sub"]),
            Row("SUB docs-1 as=me takeover=yes", &[], &["sub"]),
        ],
        Verb::Seen => &[Row("SEEN docs-1 7", &[], &["sub"])],
        Verb::Unsub => &[Row("UNSUB docs-1", &[], &["sub"])],
        Verb::Join => &[Row("JOIN docs-1 credit=5", &[], GROUP)],
        Verb::Link => &[Row("LINK docs-1:1.2.3 http://a.example/", &[], GROUP)],
        Verb::Ack => &[Row("ACK docs-1:1.2.3", &[], GROUP)],
        Verb::Nack => &[Row("NACK docs-1:1.2.3 after=1s", &[], GROUP)],
        Verb::Touch => &[Row("TOUCH docs-1:1.2.3 over=yes", &[], GROUP)],
        Verb::Group => &[
            Row("GROUP ls", &[], SEE),
            Row("GROUP show docs-1", &[], SEE_GROUP),
            Row("GROUP watch docs-1", &[], SEE_GROUP),
            Row("GROUP tasks docs-1", &[], SEE_GROUP),
            Row("GROUP keys docs-1", &[], SEE_GROUP),
            Row("GROUP schedules docs-1", &[], SEE_GROUP),
            Row("GROUP dead docs-1", &[], SEE_GROUP),
            // It reads `new-url` then.
            Row("GROUP create docs-1 key=none", &["sub:new-url"], ADMIN),
            Row("GROUP create docs-1 delay=0s", &["admin"], &["sub:*"]),
            Row("GROUP create docs-1 topics=docs-1,docs-1 key=none", &["admin"], &["sub"]),
            Row("GROUP set docs-1 topics=docs-1", &["admin"], &["sub"]),
            Row("GROUP set docs-1 delay=0s", &[], ADMIN),
            Row("GROUP pause docs-1", &[], ADMIN),
            Row("GROUP resume docs-1", &[], ADMIN),
            Row("GROUP purge docs-1", &[], ADMIN),
            Row("GROUP retry docs-1 all=yes", &[], ADMIN),
            Row("GROUP drop docs-1 all=yes", &[], ADMIN),
            Row("GROUP delete docs-1", &[], ADMIN),
            Row("GROUP no-such-action docs-1", &[], ADMIN),
        ],
        Verb::Job => &[
            Row("JOB ls", &[], SEE),
            Row("JOB show docs-1", &[], SEE_JOB),
            Row("JOB wait docs-1", &[], SEE_JOB),
            Row("JOB watch docs-1", &[], SEE_JOB),
            Row("JOB open docs-1 depth=2", &[], JOB),
            Row("JOB add docs-1 url=http://a.example/", &[], JOB),
            Row("JOB add docs-1 url=http://a.example/ prio=3", &["job:docs-1"], &["prio"]),
            Row("JOB open docs-1 prio=3", &["job:docs-1"], &["prio"]),
            Row("JOB close docs-1", &[], JOB),
            Row("JOB cancel docs-1", &[], JOB),
            Row("JOB pause docs-1", &[], JOB),
            Row("JOB resume docs-1", &[], JOB),
            Row("JOB delete docs-1", &[], JOB),
            Row("JOB no-such-action docs-1", &[], JOB),
            Row("JOB open", &[], ADMIN),
        ],
        Verb::Topic => &[
            Row("TOPIC ls", &[], SEE),
            Row("TOPIC show docs-1", &[], SEE_TOPIC),
            Row("TOPIC create docs-1", &[], ADMIN),
            Row("TOPIC set docs-1 sync=memory", &[], ADMIN),
            Row("TOPIC delete docs-1", &[], ADMIN),
            Row("TOPIC verify docs-1", &[], ADMIN),
            Row("TOPIC forget docs-1 as=me", &[], ADMIN),
            Row("TOPIC no-such-action docs-1", &[], ADMIN),
        ],
        Verb::Explain => &[
            Row("EXPLAIN http://a.example/", &[], SEE),
            Row("EXPLAIN a.example group=docs-1", &[], SEE),
        ],
        Verb::Stats => &[Row("STATS", &[], SEE)],
    }
}

/// All rights, each with whether it is about what is asked for.
fn rights() -> Vec<(String, &'static str, bool)> {
    let mut rights = Vec::new();
    for kind in ["pub", "sub", "group", "job"] {
        rights.extend(PATTERNS.map(|(pattern, is)| (format!("{kind}:{pattern}"), kind, is)));
    }
    for kind in ["every", "prio", "hub", "monitor", "admin", "all"] {
        rights.push((kind.to_owned(), kind, true));
    }
    rights
}

/// What may come by a way at all, by the documentation.
fn way_takes(way: Way, verb: Verb, row: &Row) -> bool {
    let line = row.0;
    let has_power = ["every=", "prio=", "job=", "hub=", "cloud=", "pushed="]
        .iter()
        .any(|key| line.contains(&format!(" {key}")))
        || line.starts_with("PUB hub")
        || line.starts_with("PUB job-done");
    match (way, verb) {
        (Way::Line | Way::Http, _)
        | (Way::Zmq, Verb::Hello | Verb::Ping | Verb::Help | Verb::Quit) => true,
        (Way::Zmq, Verb::Pub) => !has_power,
        (Way::Zmq, _) => false,
    }
}

fn all_rights(words: &[&str]) -> Vec<Right> {
    words.iter().map(|word| word.parse().unwrap_or_else(|text| panic!("{text}"))).collect()
}

fn broker(principals: Option<Vec<Principal>>) -> Access {
    Access::new(AccessConfig { principals, ..AccessConfig::default() })
}

fn token(text: &str) -> Token {
    Token::new(text).unwrap()
}

fn known(name: &str, secret: &str, rights: Rights) -> Principal {
    Principal::new(name, Proof::Token(TokenHash::of(&token(secret))), rights)
}

/// Asks as connections do.
fn asks(access: &Access, pass: &Pass, line: &str) -> Result<(), ProtocolError> {
    let command = Command::parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
    match command {
        Command::Pub { topic, payload } => {
            let judged = access.publish(pass, topic, payload);
            let passed_over = access.is_unlimited(pass, topic);
            assert!(!passed_over || judged.is_ok(), "{line}: not looked at, and {judged:?}");
            judged
        }
        command => pass.may(&command),
    }
}

#[test]
#[expect(clippy::print_stdout, reason = "how many")]
fn every_verb_with_every_right_on_every_way_before_and_after_login() {
    let (mut cases, now) = (0, Moment(0));
    for (verb, row) in Verb::ALL.iter().flat_map(|verb| rows(*verb).iter().map(|row| (*verb, row)))
    {
        let Row(line, given, needed) = row;
        for (right, kind, is_about) in rights() {
            let is_enough = kind == "all"
                || needed.contains(&right.as_str())
                || is_about && needed.contains(&kind);
            let is_free = *needed == FREE;
            let mut allow = all_rights(given);
            allow.extend(all_rights(&[&right]));
            let access = broker(Some(vec![
                known("somebody", "else", Rights::all()),
                known("she", "hers", Rights::new(allow.clone(), Vec::new())),
            ]));
            for way in Way::ALL {
                let takes = way_takes(way, verb, row);
                let case = format!("{line} by {way:?} with {given:?} and {right}");
                let mut check = |pass: &Pass, is_allowed: bool, when: &str| {
                    let asked = asks(&access, pass, line);
                    assert_eq!(asked.is_ok(), is_allowed && takes, "{case}, {when}: {asked:?}");
                    cases += 1;
                };
                let before = access.stranger(way);
                check(&before, is_free, "before login");
                assert!(access.log_in(way, &token("his"), None, now).is_err());
                let after = access.log_in(way, &token("hers"), None, now).unwrap();
                check(&after, is_free || is_enough, "after login");
                // Whatever it is that is allowed: what is denied is denied.
                access.replace(vec![known(
                    "she",
                    "hers",
                    Rights::new(vec![Right::All], all_rights(&[&right])),
                )]);
                let denied = access.renew(&after).unwrap();
                let is_denied = match right.as_str() {
                    // Who may not change anything may look.
                    "admin" => *needed == ADMIN || given.contains(&"admin"),
                    _ if line.starts_with("PUB job-done") && kind == "job" => true,
                    // What is needed besides may be denied, too.
                    _ => is_enough || needs_besides(row, &right),
                };
                check(&denied, is_free || !is_denied, "denied");
                access.replace(Vec::new());
                assert!(access.renew(&after).is_none(), "{case}: revoked");
                cases += 1;
                access.replace(vec![
                    known("somebody", "else", Rights::all()),
                    known("she", "hers", Rights::new(allow.clone(), Vec::new())),
                ]);
            }
        }
    }
    println!("{cases} cases");
    assert!(cases >= 5_000, "{cases}");
}

/// Whether a row needs that right besides the one in question.
fn needs_besides(row: &Row, right: &str) -> bool {
    let Row(line, given, _) = row;
    if line.ends_with(" every=1h prio=9") && matches!(right, "every" | "prio") {
        return true;
    }
    let Some((kind, pattern)) = right.split_once(':') else { return false };
    // A job is the third word, a topic the second.
    let name = line.split(' ').nth(if kind == "job" { 2 } else { 1 });
    let is_about = name.is_some_and(|name| match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == pattern,
    });
    is_about && given.iter().any(|given| given.starts_with(kind))
}

#[test]
fn while_nobody_is_known_everybody_may_do_everything() {
    let access = broker(None);
    for row in Verb::ALL.iter().flat_map(|verb| rows(*verb)) {
        assert!(asks(&access, &access.stranger(Way::Line), row.0).is_ok(), "{}", row.0);
        let shown = access.log_in(Way::Line, &token("any"), None, Moment(0)).unwrap();
        assert!(asks(&access, &shown, row.0).is_ok(), "{}", row.0);
    }
    let notifier = || access.notifier(&access.stranger(Way::Line)).map(TopicName::as_str);
    assert_eq!(notifier(), Some(DEFAULT_TOPIC));
    access.replace(Vec::new());
    assert_eq!(notifier(), None, "an empty list is one");
    assert!(asks(&access, &access.stranger(Way::Line), "STATS").is_err());
}

#[test]
fn urls_are_announced_below_the_prefixes_only() {
    let rights = |allow: &[&str], deny: &[&str]| Rights::new(all_rights(allow), all_rights(deny));
    let access = broker(Some(vec![
        known("blog", "a", rights(&["pub:*", "job:*", "url:https://a.example/blog/"], &[])),
        known("most", "b", rights(&["all"], &["url:https://a.example/blog/"])),
    ]));
    let pass = |secret| access.log_in(Way::Line, &token(secret), None, Moment(0)).unwrap();
    for (line, by_blog, by_most) in [
        ("PUB new-url https://a.example/blog/new", true, false),
        ("PUB new-url https://a.example/blog/new job=x", true, false),
        ("PUB new-url https://a.example/other", false, true),
        ("PUB new-url https://a.example/blog/../other", false, true),
        ("PUB new-url https://evil.example/https://a.example/blog/", false, true),
        ("PUB new-url /srv/file", false, false),
        ("PUB new-url some text https://a.example/blog/new", false, false),
        ("JOB add x url=https://a.example/blog/", true, false),
        ("JOB add x url=https://b.example/", false, true),
        ("JOB open x", true, true),
    ] {
        assert_eq!(asks(&access, &pass("a"), line).is_ok(), by_blog, "{line}");
        assert_eq!(asks(&access, &pass("b"), line).is_ok(), by_most, "{line}");
    }
}

#[test]
fn peers_have_one_topic() {
    let config = AccessConfig {
        principals: Some(Vec::new()),
        notifier: Some("guestbook".parse().unwrap()),
        ..AccessConfig::default()
    };
    let access = Access::new(config);
    let peer = access.peer(Way::Line);
    assert_eq!(access.notifier(&peer).map(TopicName::as_str), Some("guestbook"));
    assert!(access.publish(&peer, "guestbook", "http://a.example/").is_ok());
    assert!(access.publish(&peer, "guestbook", "http://a.example/ every=1m").is_err());
    assert!(access.publish(&peer, "new-url", "http://a.example/").is_err());
    assert!(access.publish(&access.stranger(Way::Line), "guestbook", "x").is_err());
    assert!(access.renew(&peer).is_some_and(|renewed| !renewed.is_stranger()));
}

#[test]
fn the_brokers_own_user_may_do_everything_whoever_else_is_known() {
    let config = AccessConfig { own_users: vec![1_000, 0], ..AccessConfig::default() };
    let access = Access::new(config);
    access.replace(vec![Principal::new("alice", Proof::UnixUser(1_001), Rights::default())]);
    let pass = |user| access.enter(Way::Line, &Proof::UnixUser(user));
    assert!(asks(&access, &pass(1_000).unwrap(), "STATS").is_ok());
    assert!(asks(&access, &pass(1_001).unwrap(), "STATS").is_err());
    assert!(pass(1_002).is_none());
    assert!(access.renew(&pass(0).unwrap()).is_some());
}

#[test]
fn a_token_that_was_made_anew_does_not_let_the_old_one_in() {
    let access = broker(Some(vec![known("she", "old", Rights::all())]));
    let pass = access.log_in(Way::Line, &token("old"), None, Moment(0)).unwrap();
    access.replace(vec![known("she", "new", Rights::all())]);
    assert!(access.renew(&pass).is_none());
    assert!(access.log_in(Way::Line, &token("old"), None, Moment(0)).is_err());
    access.replace(vec![known("he", "old", Rights::all())]);
    assert!(access.renew(&pass).is_none(), "somebody else has it now");
}

#[test]
fn a_million_wrong_tokens_are_wrong() {
    let right = new_token();
    let access = broker(Some(vec![known("she", right.secret(), Rights::all())]));
    let mut rng = fastrand::Rng::with_seed(7);
    for round in 0..1_000_000_u32 {
        // Nearly right ones, and any.
        let mut wrong = right.secret().as_bytes().to_vec();
        match round % 4 {
            0 => {
                let at = rng.usize(..wrong.len());
                wrong[at] = if wrong[at] == b'x' { b'y' } else { b'x' };
            }
            1 => wrong.truncate(rng.usize(1..wrong.len())),
            2 => wrong.push(rng.alphanumeric() as u8),
            _ => wrong = (0..47).map(|_| rng.alphanumeric() as u8).collect(),
        }
        let wrong = token(std::str::from_utf8(&wrong).unwrap());
        assert!(access.log_in(Way::Line, &wrong, None, Moment(0)).is_err(), "round {round}");
    }
    assert!(access.log_in(Way::Line, &right, None, Moment(0)).is_ok());
}

#[test]
fn rights_are_read_as_they_are_written() {
    for (text, _, _) in rights() {
        assert_eq!(text.parse::<Right>().unwrap().to_string(), text);
    }
    assert_eq!(
        "url:https://A.example".parse::<Right>().unwrap().to_string(),
        "url:https://a.example/"
    );
    for wrong in [
        "", "pub", "pub:", "pub:a b", "pub:*a", "pub:a**", "sub:é", "job", "every:x", "url:x",
        "root", "admin:",
    ] {
        assert!(wrong.parse::<Right>().is_err(), "{wrong}");
    }
}

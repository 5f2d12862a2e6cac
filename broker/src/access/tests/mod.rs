//! Every verb with every permission, on every transport, before and after login, against a table
//! that does not know how the decision is made.

mod cost;
pub(crate) mod table;

use tidings_protocol::{Command, Verb};

use self::table::{Grants, Row, rows, zmq_allows};
use super::*;

fn parse_permissions(words: &[impl AsRef<str>]) -> Vec<Permission> {
    let right = |word: &str| word.parse().unwrap_or_else(|text| panic!("{text}"));
    words.iter().map(|word| right(word.as_ref())).collect()
}

fn broker(principals: Option<Vec<Principal>>) -> Access {
    Access::new(AccessConfig { principals, ..AccessConfig::default() })
}

fn token(text: &str) -> Token {
    Token::new(text).unwrap()
}

fn known(name: &str, secret: &str, rights: PermissionSet) -> Principal {
    Principal::new(name, Credential::Token(TokenHash::of(&token(secret))), rights)
}

/// Checks a line as connections do.
fn check_line(access: &Access, pass: &Identity, line: &str) -> Result<(), ProtocolError> {
    let command = Command::parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
    match command {
        Command::Pub { topic, payload } => {
            let result = access.check_publish(pass, topic, payload);
            let is_unchecked = access.is_unlimited(pass, topic);
            assert!(!is_unchecked || result.is_ok(), "{line}: needs no check, and {result:?}");
            result
        }
        command => pass.check_command(&command),
    }
}

// PROTOCOL: S16
#[test]
#[expect(clippy::print_stdout, reason = "prints the number of cases")]
fn every_verb_with_every_permission_on_every_transport_before_and_after_login() {
    let (mut cases, now) = (0, Moment(0));
    for grants in Grants::all() {
        let rights =
            PermissionSet::new(parse_permissions(&grants.allow), parse_permissions(&grants.deny));
        let principals =
            || vec![known("x", "else", PermissionSet::all()), known("she", "hers", rights.clone())];
        let access = broker(Some(principals()));
        for way in Transport::ALL {
            assert!(access.log_in(way, &token("his"), None, now).is_err());
            let before = access.anonymous(way);
            let after = access.log_in(way, &token("hers"), None, now).unwrap();
            for (verb, Row(line, needs)) in all_rows() {
                let is_available = way != Transport::Zmq || zmq_allows(verb, line);
                let mut check = |pass: &Identity, is_enough: bool, when: &str| {
                    let result = check_line(&access, pass, line);
                    let case = format!("{line} by {way:?} with {grants:?}, {when}: {result:?}");
                    assert_eq!(result.is_ok(), is_available && is_enough, "{case}");
                    cases += 1;
                };
                check(&before, needs.is_empty(), "before login");
                check(&after, grants.satisfies(needs), "after login");
            }
            access.replace_principals(Vec::new());
            assert!(access.renew(&after).is_none(), "{grants:?} by {way:?}: revoked");
            access.replace_principals(principals());
            assert!(access.renew(&after).is_some(), "{grants:?} by {way:?}: a principal again");
        }
    }
    println!("{cases} cases");
    assert!(cases >= 5_000, "{cases}");
}

fn all_rows() -> impl Iterator<Item = (Verb, &'static Row)> {
    Verb::ALL.into_iter().flat_map(|verb| rows(verb).iter().map(move |row| (verb, row)))
}

#[test]
fn the_protocol_names_the_permission_of_each_command() {
    let page = include_str!("../../../../docs/protocol/index.md");
    let (_, table) = page.split_once("| command | permission |\n|---|---|\n").unwrap();
    let quoted = |cell: &'static str| cell.split('`').skip(1).step_by(2);
    let rows = table.lines().map_while(|line| line.split_once(" | "));
    let listed: BTreeMap<_, _> = rows
        .flat_map(|(commands, needs)| quoted(commands).map(move |command| (command, needs)))
        .collect();
    // Without the name.
    let kind = |permission: &'static str| permission.split(':').next().unwrap();
    let mut known = std::collections::BTreeSet::new();
    for (_, Row(line, needs)) in all_rows() {
        let words: Vec<_> = line.split(' ').take(2).collect();
        let command = words.join(" ");
        // The first row of a command has no option that needs another permission. `GROUP dead` is
        // no command, and needs the permission that it had.
        if command == "GROUP dead" || !known.insert(command.clone()) {
            continue;
        }
        let cell = listed.get(&*command).or(listed.get(words[0])).expect(line);
        let needed = needs.split(' ').next().unwrap().split('|').filter(|need| !need.is_empty());
        assert!(quoted(cell).map(kind).eq(needed.map(kind)), "{line}: {cell}");
    }
}

// PROTOCOL: S16
#[test]
fn without_principals_every_client_may_do_everything() {
    let access = broker(None);
    for (_, row) in all_rows() {
        assert!(
            check_line(&access, &access.anonymous(Transport::Line), row.0).is_ok(),
            "{}",
            row.0
        );
        let shown = access.log_in(Transport::Line, &token("any"), None, Moment(0)).unwrap();
        assert!(check_line(&access, &shown, row.0).is_ok(), "{}", row.0);
    }
    let notifier = || access.peer_topic(&access.anonymous(Transport::Line)).map(TopicName::as_str);
    assert_eq!(notifier(), Some(DEFAULT_TOPIC));
    access.replace_principals(Vec::new());
    assert_eq!(notifier(), None, "with an empty list the broker is closed");
    assert!(check_line(&access, &access.anonymous(Transport::Line), "STATS").is_err());
}

// PROTOCOL: S16
#[test]
fn urls_are_published_only_below_the_prefixes() {
    let rights = |allow: &[&str], deny: &[&str]| {
        PermissionSet::new(parse_permissions(allow), parse_permissions(deny))
    };
    let access = broker(Some(vec![
        known("blog", "a", rights(&["pub:*", "job:*", "url:https://a.example/blog/"], &[])),
        known("most", "b", rights(&["all"], &["url:https://a.example/blog/"])),
    ]));
    let pass = |secret| access.log_in(Transport::Line, &token(secret), None, Moment(0)).unwrap();
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
        assert_eq!(check_line(&access, &pass("a"), line).is_ok(), by_blog, "{line}");
        assert_eq!(check_line(&access, &pass("b"), line).is_ok(), by_most, "{line}");
    }
}

#[test]
fn peers_have_one_topic() {
    let config = AccessConfig {
        principals: Some(Vec::new()),
        peer_topic: Some("guestbook".parse().unwrap()),
        ..AccessConfig::default()
    };
    let access = Access::new(config);
    let peer = access.peer(Transport::Line);
    assert_eq!(access.peer_topic(&peer).map(TopicName::as_str), Some("guestbook"));
    assert!(access.check_publish(&peer, "guestbook", "http://a.example/").is_ok());
    assert!(access.check_publish(&peer, "guestbook", "http://a.example/ every=1m").is_err());
    assert!(access.check_publish(&peer, "new-url", "http://a.example/").is_err());
    assert!(access.check_publish(&access.anonymous(Transport::Line), "guestbook", "x").is_err());
    assert!(access.renew(&peer).is_some_and(|renewed| !renewed.is_anonymous()));
}

#[test]
fn the_brokers_own_user_may_do_everything_beside_principals() {
    let config = AccessConfig { own_users: vec![1_000, 0], ..AccessConfig::default() };
    let access = Access::new(config);
    access.replace_principals(vec![Principal::new(
        "alice",
        Credential::UnixUser(1_001),
        PermissionSet::default(),
    )]);
    let pass = |user| access.identify(Transport::Line, &Credential::UnixUser(user));
    assert!(check_line(&access, &pass(1_000).unwrap(), "STATS").is_ok());
    assert!(check_line(&access, &pass(1_001).unwrap(), "STATS").is_err());
    assert!(pass(1_002).is_none());
    assert!(access.renew(&pass(0).unwrap()).is_some());
}

#[test]
fn a_replaced_token_no_longer_logs_in() {
    let access = broker(Some(vec![known("she", "old", PermissionSet::all())]));
    let pass = access.log_in(Transport::Line, &token("old"), None, Moment(0)).unwrap();
    access.replace_principals(vec![known("she", "new", PermissionSet::all())]);
    assert!(access.renew(&pass).is_none());
    assert!(access.log_in(Transport::Line, &token("old"), None, Moment(0)).is_err());
    access.replace_principals(vec![known("he", "old", PermissionSet::all())]);
    assert!(access.renew(&pass).is_none(), "another principal has the token now");
}

// PROTOCOL: S18
#[test]
fn an_expired_principal_is_as_one_that_was_revoked() {
    let she = || known("she", "hers", PermissionSet::all());
    let he = known("he", "his", PermissionSet::all());
    let access = broker(Some(vec![she().expiring(Some(5_000)), he]));
    let log_in = |secret| access.log_in(Transport::Line, &token(secret), None, Moment(0));
    let mut changes = access.changes();
    assert!(access.set_time(4_999).is_empty());
    let (hers, his) = (log_in("hers").unwrap(), log_in("his").unwrap());
    assert!(access.renew(&hers).is_some() && !changes.has_changed().unwrap());

    assert_eq!(access.set_time(5_000), ["she".into()]);
    assert!(changes.has_changed().unwrap());
    changes.mark_unchanged();
    assert!(access.set_time(6_000).is_empty() && !changes.has_changed().unwrap());
    assert!(access.renew(&hers).is_none() && log_in("hers").is_err());
    assert!(access.renew(&his).is_some() && log_in("his").is_ok());

    // A later expiry is a change; without one the token is valid again.
    let replaced = access.replace_principals(vec![she().expiring(Some(7_000))]);
    assert_eq!(replaced, [("he".into(), "revoked"), ("she".into(), "changed")]);
    assert!(log_in("hers").is_ok());
    assert_eq!(access.set_time(9_000), ["she".into()]);
    access.replace_principals(vec![she()]);
    assert!(log_in("hers").is_ok());
    // The broker with expired principals only is not open.
    access.replace_principals(vec![she().expiring(Some(8_000))]);
    assert!(log_in("hers").is_err() && !access.is_open());
    // An expired principal does not hide another one with the same credential.
    let same = known("also-she", "hers", PermissionSet::all()).expiring(Some(8_000));
    access.replace_principals(vec![she(), same]);
    assert_eq!(log_in("hers").unwrap().name(), "she");
}

#[test]
fn a_million_wrong_tokens_are_rejected() {
    let right = new_token();
    let access = broker(Some(vec![known("she", right.secret(), PermissionSet::all())]));
    let mut rng = fastrand::Rng::with_seed(7);
    for round in 0..1_000_000_u32 {
        // Nearly right tokens, and random ones.
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
        assert!(access.log_in(Transport::Line, &wrong, None, Moment(0)).is_err(), "round {round}");
    }
    assert!(access.log_in(Transport::Line, &right, None, Moment(0)).is_ok());
}

#[test]
fn permissions_are_read_as_they_are_written() {
    for text in table::all_permissions() {
        assert_eq!(text.parse::<Permission>().unwrap().to_string(), text);
    }
    assert_eq!(
        "url:https://A.example".parse::<Permission>().unwrap().to_string(),
        "url:https://a.example/"
    );
    for wrong in [
        "", "pub", "pub:", "pub:a b", "pub:*a", "pub:a**", "sub:é", "job", "every:x", "url:x",
        "root", "admin:",
    ] {
        assert!(wrong.parse::<Permission>().is_err(), "{wrong}");
    }
}

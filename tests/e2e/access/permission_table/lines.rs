//! The line protocol.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::net::Ipv4Addr;
use std::sync::Mutex;

use serde_json::Value;
use tempfile::TempDir;
use tidings_protocol::Verb;

use super::table::{Given, Row, rows, zmq_allows};
use super::{Decision, DecisionChecker, Fixture, TestPrincipal, read_greeting};
use crate::support::pipelined_connection::{
    PipelinedConnection, ResponseLines, connect_tcp_from, connect_tls, connect_unix,
};
use crate::support::process::Server;
use crate::support::tls::CertificateAuthority;

/// Of each connection: which one goes through the table, which one is idle until rights have
/// changed.
type ConnectionPair = Option<(PipelinedConnection, PipelinedConnection)>;

/// A row as it is sent.
#[derive(Debug, Clone)]
struct TableLine {
    verb: Verb,
    line: String,
    needs: &'static str,
    /// The name of the case, for what is published.
    case: Option<String>,
}

/// Whether something is made or deleted: then something else may wait for it.
fn creates_or_deletes(line: &str) -> bool {
    ["GROUP create", "GROUP delete", "JOB open", "JOB delete", "TOPIC delete"]
        .iter()
        .any(|start| line.starts_with(start))
}

/// All rows but that after which nothing is heard, those that make something or the others.
fn table_lines(who: &str, making: bool) -> Vec<TableLine> {
    let rows = Verb::ALL.iter().flat_map(|verb| rows(*verb).iter().map(|row| (*verb, row)));
    let rows = rows
        .filter(|(verb, Row(line, _))| *verb != Verb::Quit && creates_or_deletes(line) == making);
    let asked = rows.enumerate().map(|(at, (verb, Row(line, needs)))| {
        let case = (verb == Verb::Pub).then(|| format!("{who}-{at}"));
        let line = match &case {
            Some(case) => format!("{line} case={case}"),
            None => (*line).to_owned(),
        };
        TableLine { verb, line, needs, case }
    });
    asked.collect()
}

fn decision_of(heard: &ResponseLines) -> Decision {
    let refused = |code: &str| heard.iter().any(|line| line.starts_with(&format!("-ERR {code} ")));
    match (refused("denied"), refused("unauthenticated")) {
        (true, _) => Decision::Denied,
        (_, true) => Decision::Unauthenticated,
        _ => Decision::Allowed,
    }
}

/// What is right for somebody, or for a stranger.
fn expected_decision(given: Option<&Given>, needs: &str) -> Decision {
    match given {
        None if needs.is_empty() => Decision::Allowed,
        None => Decision::Unauthenticated,
        Some(given) if given.is_enough(needs) => Decision::Allowed,
        Some(_) => Decision::Denied,
    }
}

/// Asks them, and has each judged. Returns the cases that were published.
#[track_caller]
fn check_lines(
    wire: &mut PipelinedConnection,
    asked: &[TableLine],
    judge: &DecisionChecker,
    who: &str,
    wanted: impl Fn(&TableLine) -> Decision,
) -> BTreeSet<String> {
    let lines: Vec<_> = asked.iter().map(|asked| asked.line.clone()).collect();
    let mut published = BTreeSet::new();
    for (asked, heard) in asked.iter().zip(wire.request_all(&lines)) {
        if asked.verb == Verb::Link {
            // What is not answered tells nobody anything; audit records do.
            assert!(heard.is_empty(), "{}: {heard:?}", asked.line);
            continue;
        }
        assert_eq!(heard.len(), 1, "{}: {heard:?}", asked.line);
        let wanted = wanted(asked);
        judge.check(wanted, decision_of(&heard), || format!("{who}: {:?} {heard:?}", asked.line));
        if heard[0].starts_with("+OK") && wanted == Decision::Allowed {
            published.extend(asked.case.clone());
        }
    }
    published
}

#[track_caller]
fn log_in(wire: &mut PipelinedConnection, words: &str) {
    let heard = wire.request_all(&[format!("HELLO {words}")]);
    assert!(heard[0].len() == 1 && heard[0][0].starts_with("+OK tidings "), "{heard:?}");
}

#[test]
fn every_line_gets_the_decision_of_the_table() {
    let mut scene = Fixture::start(&["--audit", "audit.log"]);
    let (judge, published) = (DecisionChecker::default(), Mutex::new(BTreeSet::new()));
    let count = scene.principals.len();
    let note = |cases: BTreeSet<String>| published.lock().unwrap().extend(cases);
    // First, as there is only so much audit at once.
    let mut nothing = vec![(); count];
    scene.for_each_principal(&mut nothing, |known, ()| {
        let mut wire = scene.connect_line(known, 5);
        let Row(link, _) = rows(Verb::Link)[0];
        let login = format!("HELLO token={}", known.token);
        let heard = wire.request_all(&[link.to_owned(), login, link.to_owned()]);
        assert!(heard[0].is_empty() && heard[2].is_empty(), "{heard:?}");
    });

    let mut wires: Vec<ConnectionPair> = (0..count).map(|_| None).collect();
    scene.for_each_principal(&mut wires, |known, two| {
        let mut wire = scene.connect_line(known, 4);
        let who = format!("stranger-{}", known.index);
        for making in [false, true] {
            check_lines(&mut wire, &table_lines(&who, making), &judge, &who, |asked| {
                expected_decision(None, asked.needs)
            });
        }
        let mut idle = scene.connect_line(known, 4);
        for wire in [&mut wire, &mut idle] {
            log_in(wire, &format!("token={}", known.token));
        }
        *two = Some((wire, idle));
    });
    scene.expect_nothing_created();

    for making in [false, true] {
        scene.for_each_principal(&mut wires, |known, two| {
            let (wire, _) = two.as_mut().unwrap();
            let who = format!("known-{}", known.index);
            let rows = table_lines(&who, making);
            let who = format!("{who} {:?}", known.permissions);
            note(check_lines(wire, &rows, &judge, &who, |asked| {
                expected_decision(Some(&known.permissions), asked.needs)
            }));
        });
        if !making {
            scene.for_each_principal(&mut wires, |known, _| {
                check_over_zmq(&scene, known, &judge, &published)
            });
            scene.check_published("known-", &published, &judge);
        }
    }
    // Whoever leaves is let go of.
    scene.for_each_principal(&mut wires, |known, two| {
        let (wire, _) = two.as_mut().unwrap();
        wire.send("QUIT\n");
        let rest = wire.read_to_end();
        let heard: Vec<_> = rest
            .into_iter()
            .filter(|line| line.starts_with("+OK") || line.starts_with('-'))
            .collect();
        assert_eq!(heard, ["+OK"], "{}", known.name);
    });

    delete_created(&scene);
    published.lock().unwrap().clear();
    // Everybody has what the next one had.
    let next = |known: &TestPrincipal| (known.index + 1) % count;
    let rights: Vec<_> = scene.principals.iter().map(|known| known.permissions.clone()).collect();
    scene.replace_permissions(|known| Some(rights[next(known)].clone()));
    for making in [false, true] {
        scene.for_each_principal(&mut wires, |known, two| {
            let (_, idle) = two.as_mut().unwrap();
            let who = format!("changed-{}", known.index);
            let given = &rights[next(known)];
            let rows = table_lines(&who, making);
            let who = format!("{who} {given:?}, before {:?}", known.permissions);
            note(check_lines(idle, &rows, &judge, &who, |asked| {
                expected_decision(Some(given), asked.needs)
            }));
        });
        if !making {
            scene.check_published("changed-", &published, &judge);
        }
    }

    published.lock().unwrap().clear();
    scene.replace_permissions(|_| None);
    let rows = [table_lines("revoked", false), table_lines("revoked", true)].concat();
    scene.for_each_principal(&mut wires, |known, two| {
        let (_, idle) = two.as_mut().unwrap();
        let TableLine { line, .. } = &rows[known.index % rows.len()];
        idle.send(format!("{line}\n"));
        let heard: Vec<_> = idle
            .read_to_end()
            .into_iter()
            .filter(|line| line.starts_with(['+', '-', 'P']))
            .collect();
        let is_over = heard.len() == 1 && heard[0].starts_with("-ERR revoked ");
        let verdict = if is_over { Decision::Denied } else { Decision::Allowed };
        judge.check(Decision::Denied, verdict, || format!("revoked: {line:?} {heard:?}"));
    });
    scene.check_published("revoked", &published, &judge);

    let audit = scene.server.folder.path().join("audit.log");
    let known = scene.principals;
    scene.server.process.signal_and_finish("TERM").expect_code(0);
    check_link_audit(&fs::read_to_string(audit).unwrap(), &known, &judge);
    judge.finish(30_000);
}

/// Somebody who speaks for those who come by `ZeroMQ` does no more than they may.
fn check_over_zmq(
    scene: &Fixture,
    known: &TestPrincipal,
    judge: &DecisionChecker,
    published: &Mutex<BTreeSet<String>>,
) {
    let mut wire = scene.connect_line(known, 6);
    log_in(&mut wire, &format!("token={} via=zmq", known.token));
    let who = format!("known-zmq-{}", known.index);
    let rows: Vec<_> = table_lines(&who, false);
    let cases =
        check_lines(&mut wire, &rows, judge, &format!("{who} {:?}", known.permissions), |asked| {
            let is_taken = zmq_allows(asked.verb, &asked.line);
            if is_taken {
                expected_decision(Some(&known.permissions), asked.needs)
            } else {
                Decision::Denied
            }
        });
    published.lock().unwrap().extend(cases);
}

/// What whoever might has made, so that nobody waits for it.
fn delete_created(scene: &Fixture) {
    let mut wire = read_greeting(PipelinedConnection::new(connect_tcp_from(
        scene.server.address,
        Ipv4Addr::LOCALHOST,
    )));
    log_in(&mut wire, &format!("token={}", scene.admin_token));
    let lines =
        ["GROUP delete docs-1", "JOB cancel docs-1", "JOB delete docs-1"].map(str::to_owned);
    for (line, heard) in lines.iter().zip(wire.request_all(&lines)) {
        let is_gone = heard[0].starts_with("+OK") || heard[0].starts_with("-ERR unknown ");
        assert!(is_gone, "{line}: {heard:?}");
    }
}

/// Those who may not work for the group had their `LINK` refused, first as strangers.
fn check_link_audit(audit: &str, known: &[TestPrincipal], judge: &DecisionChecker) {
    let mut denied: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in audit.lines() {
        let record: Value = serde_json::from_str(line).unwrap();
        let text = |key: &str| record[key].as_str().unwrap_or_default().to_owned();
        if text("what") == "denied"
            && let Some((address, _)) = text("from").split_once(':')
        {
            denied.entry(address.to_owned()).or_default().push(text("who"));
        }
    }
    let Row(link, needs) = rows(Verb::Link)[0];
    for known in known {
        let denied = denied.get(&known.source_address(5).to_string()).cloned().unwrap_or_default();
        for (who, given, is_right) in [
            ("strangers", None, Decision::Unauthenticated),
            (known.name.as_str(), Some(&known.permissions), Decision::Denied),
        ] {
            let heard =
                if denied.iter().any(|name| name == who) { is_right } else { Decision::Allowed };
            judge.check(expected_decision(given, needs), heard, || {
                format!("{who} {given:?}: {link}")
            });
        }
    }
}

#[test]
fn certificates_and_unix_users_follow_the_same_table() {
    let folder = TempDir::new().unwrap();
    let authority = CertificateAuthority::new(folder.path(), "authority");
    authority.sign("broker");
    let everybody: Vec<_> = Given::all().into_iter().step_by(7).collect();
    let mut access = String::new();
    for (at, Given { allow, deny }) in everybody.iter().enumerate() {
        authority.sign(&format!("she-{at}"));
        writeln!(
            access,
            "[[principal]]\nname = \"c-{at}\"\ncertificate = \"she-{at}\"\nallow = {allow:?}\ndeny = {deny:?}"
        )
        .unwrap();
    }
    let data = folder.path().join("tidings-data");
    fs::create_dir(&data).unwrap();
    fs::write(data.join("access.toml"), access).unwrap();
    let flags = [
        "broker",
        "--tls-cert",
        "broker.pem",
        "--tls-key",
        "broker.key",
        "--client-ca",
        "authority.pem",
        "--unix",
        "the.sock",
    ];
    let server = Server::start_in(folder, &flags, |_| ());
    let judge = DecisionChecker::default();
    for (at, given) in everybody.iter().enumerate() {
        let files = [
            authority.certificate_file(),
            authority.signed_file(&format!("she-{at}"), "pem"),
            authority.signed_file(&format!("she-{at}"), "key"),
        ];
        let stream = connect_tcp_from(server.address, Ipv4Addr::LOCALHOST);
        let mut wire = read_greeting(PipelinedConnection::new(connect_tls(
            stream,
            files.each_ref().map(String::as_str),
        )));
        let who = format!("by certificate {given:?}");
        check_lines(&mut wire, &table_lines("certificate", false), &judge, &who, |asked| {
            expected_decision(Some(given), asked.needs)
        });
    }
    // The broker's own user may do everything.
    let mut wire = read_greeting(PipelinedConnection::new(connect_unix(
        &server.folder.path().join("the.sock"),
    )));
    check_lines(&mut wire, &table_lines("unix", false), &judge, "the broker's user", |_| {
        Decision::Allowed
    });
    judge.finish(1_500);
}

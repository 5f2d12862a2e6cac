//! The permission table, checked over the line protocol.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::net::Ipv4Addr;
use std::sync::Mutex;

use serde_json::Value;
use tempfile::TempDir;
use tidings_protocol::Verb;

use super::table::{Grants, Row, rows, zmq_allows};
use super::{Decision, DecisionChecker, Fixture, TestPrincipal, read_greeting};
use crate::support::pipelined_connection::{
    PipelinedConnection, ResponseLines, connect_tcp_from, connect_tls, connect_unix,
};
use crate::support::process::Server;
use crate::support::tls::CertificateAuthority;

/// Two connections of each principal: the first sends the table, the second idles until the
/// permissions change.
type ConnectionPair = Option<(PipelinedConnection, PipelinedConnection)>;

/// A row of the table as it is sent.
#[derive(Debug, Clone)]
struct TableLine {
    verb: Verb,
    line: String,
    needs: &'static str,
    /// The name of the case, which a published event carries.
    case: Option<String>,
}

/// Whether the line creates or deletes something, which changes what later lines find.
fn creates_or_deletes(line: &str) -> bool {
    ["GROUP create", "GROUP delete", "JOB open", "JOB delete", "TOPIC delete"]
        .iter()
        .any(|start| line.starts_with(start))
}

/// All rows except `QUIT`: with `creating` those that create or delete something, without it the
/// others.
fn table_lines(label: &str, creating: bool) -> Vec<TableLine> {
    let rows = Verb::ALL.into_iter().flat_map(|verb| rows(verb).iter().map(move |row| (verb, row)));
    let rows = rows
        .filter(|(verb, Row(line, _))| *verb != Verb::Quit && creates_or_deletes(line) == creating);
    let lines = rows.enumerate().map(|(at, (verb, Row(line, needs)))| {
        let case = (verb == Verb::Pub).then(|| format!("{label}-{at}"));
        let line = match &case {
            Some(case) => format!("{line} case={case}"),
            None => (*line).to_owned(),
        };
        TableLine { verb, line, needs, case }
    });
    lines.collect()
}

fn decision_of(response: &ResponseLines) -> Decision {
    let refused =
        |code: &str| response.iter().any(|line| line.starts_with(&format!("-ERR {code} ")));
    match (refused("denied"), refused("unauthenticated")) {
        (true, _) => Decision::Denied,
        (_, true) => Decision::Unauthenticated,
        _ => Decision::Allowed,
    }
}

/// The expected decision for a principal, or for an anonymous client.
fn expected_decision(permissions: Option<&Grants>, needs: &str) -> Decision {
    match permissions {
        None if needs.is_empty() => Decision::Allowed,
        None => Decision::Unauthenticated,
        Some(permissions) if permissions.satisfies(needs) => Decision::Allowed,
        Some(_) => Decision::Denied,
    }
}

/// Sends the lines and checks each response. Returns the cases that were published.
#[track_caller]
fn check_lines(
    wire: &mut PipelinedConnection,
    rows: &[TableLine],
    checker: &DecisionChecker,
    label: &str,
    expected: impl Fn(&TableLine) -> Decision,
) -> BTreeSet<String> {
    let lines: Vec<_> = rows.iter().map(|row| row.line.clone()).collect();
    let mut published = BTreeSet::new();
    for (row, response) in rows.iter().zip(wire.request_all(&lines)) {
        if row.verb == Verb::Link {
            // The broker does not answer `LINK`; the test checks its audit records instead.
            assert!(response.is_empty(), "{}: {response:?}", row.line);
            continue;
        }
        assert_eq!(response.len(), 1, "{}: {response:?}", row.line);
        let expected = expected(row);
        checker.check(expected, decision_of(&response), || {
            format!("{label}: {:?} {response:?}", row.line)
        });
        if response[0].starts_with("+OK") && expected == Decision::Allowed {
            published.extend(row.case.clone());
        }
    }
    published
}

#[track_caller]
fn log_in(wire: &mut PipelinedConnection, words: &str) {
    let response = wire.request_all(&[format!("HELLO {words}")]);
    assert!(response[0].len() == 1 && response[0][0].starts_with("+OK tidings "), "{response:?}");
}

#[test]
#[ignore = "needs foreign programs"]
fn every_line_gets_the_decision_of_the_table() {
    let mut fixture = Fixture::start(&["--audit", "audit.log"]);
    let (checker, published) = (DecisionChecker::default(), Mutex::new(BTreeSet::new()));
    let count = fixture.principals.len();
    let record_published = |cases: BTreeSet<String>| published.lock().unwrap().extend(cases);
    // This comes first, because the broker limits the rate of audit records.
    let mut nothing = vec![(); count];
    fixture.for_each_principal(&mut nothing, |principal, ()| {
        let mut wire = fixture.connect_line(principal, 5);
        let Row(link, _) = rows(Verb::Link)[0];
        let login = format!("HELLO token={}", principal.token);
        let response = wire.request_all(&[link.to_owned(), login, link.to_owned()]);
        assert!(response[0].is_empty() && response[2].is_empty(), "{response:?}");
    });

    let mut wires: Vec<ConnectionPair> = (0..count).map(|_| None).collect();
    fixture.for_each_principal(&mut wires, |principal, pair| {
        let mut wire = fixture.connect_line(principal, 4);
        let label = format!("anonymous-{}", principal.index);
        for creating in [false, true] {
            let rows = table_lines(&label, creating);
            check_lines(&mut wire, &rows, &checker, &label, |row| {
                expected_decision(None, row.needs)
            });
        }
        let mut idle = fixture.connect_line(principal, 4);
        for wire in [&mut wire, &mut idle] {
            log_in(wire, &format!("token={}", principal.token));
        }
        *pair = Some((wire, idle));
    });
    fixture.expect_nothing_created();

    for creating in [false, true] {
        fixture.for_each_principal(&mut wires, |principal, pair| {
            let (wire, _) = pair.as_mut().unwrap();
            let label = format!("known-{}", principal.index);
            let rows = table_lines(&label, creating);
            let label = format!("{label} {:?}", principal.permissions);
            record_published(check_lines(wire, &rows, &checker, &label, |row| {
                expected_decision(Some(&principal.permissions), row.needs)
            }));
        });
        if !creating {
            fixture.for_each_principal(&mut wires, |principal, _| {
                check_over_zmq(&fixture, principal, &checker, &published);
            });
            fixture.check_published("known-", &published, &checker);
        }
    }
    // `QUIT` is allowed for all principals.
    fixture.for_each_principal(&mut wires, |principal, pair| {
        let (wire, _) = pair.as_mut().unwrap();
        wire.send("QUIT\n");
        let rest = wire.read_to_end();
        let response: Vec<_> = rest
            .into_iter()
            .filter(|line| line.starts_with("+OK") || line.starts_with('-'))
            .collect();
        assert_eq!(response, ["+OK"], "{}", principal.name);
    });

    delete_created(&fixture);
    published.lock().unwrap().clear();
    // Every principal gets the permissions of the next one.
    let next = |principal: &TestPrincipal| (principal.index + 1) % count;
    let permission_sets: Vec<_> =
        fixture.principals.iter().map(|principal| principal.permissions.clone()).collect();
    fixture.replace_permissions(|principal| Some(permission_sets[next(principal)].clone()));
    for creating in [false, true] {
        fixture.for_each_principal(&mut wires, |principal, pair| {
            let (_, idle) = pair.as_mut().unwrap();
            let label = format!("changed-{}", principal.index);
            let permissions = &permission_sets[next(principal)];
            let rows = table_lines(&label, creating);
            let label = format!("{label} {permissions:?}, before {:?}", principal.permissions);
            record_published(check_lines(idle, &rows, &checker, &label, |row| {
                expected_decision(Some(permissions), row.needs)
            }));
        });
        if !creating {
            fixture.check_published("changed-", &published, &checker);
        }
    }

    published.lock().unwrap().clear();
    fixture.replace_permissions(|_| None);
    let rows = [table_lines("revoked", false), table_lines("revoked", true)].concat();
    fixture.for_each_principal(&mut wires, |principal, pair| {
        let (_, idle) = pair.as_mut().unwrap();
        let TableLine { line, .. } = &rows[principal.index % rows.len()];
        idle.send(format!("{line}\n"));
        let response: Vec<_> = idle
            .read_to_end()
            .into_iter()
            .filter(|line| line.starts_with(['+', '-', 'P']))
            .collect();
        let is_over = response.len() == 1 && response[0].starts_with("-ERR revoked ");
        let decision = if is_over { Decision::Denied } else { Decision::Allowed };
        checker.check(Decision::Denied, decision, || format!("revoked: {line:?} {response:?}"));
    });
    fixture.check_published("revoked", &published, &checker);

    let audit = fixture.server.folder.path().join("audit.log");
    let principals = fixture.principals;
    fixture.server.process.signal_and_finish("TERM").expect_code(0);
    check_link_audit(&fs::read_to_string(audit).unwrap(), &principals, &checker);
    checker.finish(30_000);
}

/// A principal that uses `ZeroMQ` has at most the permissions of that transport.
fn check_over_zmq(
    fixture: &Fixture,
    principal: &TestPrincipal,
    checker: &DecisionChecker,
    published: &Mutex<BTreeSet<String>>,
) {
    let mut wire = fixture.connect_line(principal, 6);
    log_in(&mut wire, &format!("token={} via=zmq", principal.token));
    let label = format!("known-zmq-{}", principal.index);
    let rows: Vec<_> = table_lines(&label, false);
    let cases = check_lines(
        &mut wire,
        &rows,
        checker,
        &format!("{label} {:?}", principal.permissions),
        |row| {
            let is_allowed = zmq_allows(row.verb, &row.line);
            if is_allowed {
                expected_decision(Some(&principal.permissions), row.needs)
            } else {
                Decision::Denied
            }
        },
    );
    published.lock().unwrap().extend(cases);
}

/// Deletes what the principals created, so that no later line waits for it.
fn delete_created(fixture: &Fixture) {
    let mut wire = read_greeting(PipelinedConnection::new(connect_tcp_from(
        fixture.server.address,
        Ipv4Addr::LOCALHOST,
    )));
    log_in(&mut wire, &format!("token={}", fixture.admin_token));
    let lines =
        ["GROUP delete docs-1", "JOB cancel docs-1", "JOB delete docs-1"].map(str::to_owned);
    for (line, response) in lines.iter().zip(wire.request_all(&lines)) {
        let is_gone = response[0].starts_with("+OK") || response[0].starts_with("-ERR unknown ");
        assert!(is_gone, "{line}: {response:?}");
    }
}

/// The broker denied `LINK` to the principals without permission for the group: first as anonymous
/// clients, then under their names.
fn check_link_audit(audit: &str, principals: &[TestPrincipal], checker: &DecisionChecker) {
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
    for principal in principals {
        let denied =
            denied.get(&principal.source_address(5).to_string()).cloned().unwrap_or_default();
        for (label, permissions, refusal) in [
            ("strangers", None, Decision::Unauthenticated),
            (principal.name.as_str(), Some(&principal.permissions), Decision::Denied),
        ] {
            let response =
                if denied.iter().any(|name| name == label) { refusal } else { Decision::Allowed };
            checker.check(expected_decision(permissions, needs), response, || {
                format!("{label} {permissions:?}: {link}")
            });
        }
    }
}

#[test]
fn certificates_and_unix_users_follow_the_same_table() {
    let folder = TempDir::new().unwrap();
    let authority = CertificateAuthority::new(folder.path(), "authority");
    authority.sign("broker");
    let grants: Vec<_> = Grants::all().into_iter().step_by(7).collect();
    let mut access = String::new();
    for (at, Grants { allow, deny }) in grants.iter().enumerate() {
        authority.sign(&format!("client-{at}"));
        writeln!(
            access,
            "[[principal]]\nname = \"c-{at}\"\ncertificate = \"client-{at}\"\nallow = {allow:?}\ndeny = {deny:?}"
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
    let checker = DecisionChecker::default();
    for (at, permissions) in grants.iter().enumerate() {
        let files = [
            authority.certificate_file(),
            authority.signed_file(&format!("client-{at}"), "pem"),
            authority.signed_file(&format!("client-{at}"), "key"),
        ];
        let stream = connect_tcp_from(server.address, Ipv4Addr::LOCALHOST);
        let mut wire = read_greeting(PipelinedConnection::new(connect_tls(
            stream,
            files.each_ref().map(String::as_str),
        )));
        let label = format!("by certificate {permissions:?}");
        check_lines(&mut wire, &table_lines("certificate", false), &checker, &label, |row| {
            expected_decision(Some(permissions), row.needs)
        });
    }
    // The user that runs the broker may do everything.
    let mut wire = read_greeting(PipelinedConnection::new(connect_unix(
        &server.folder.path().join("the.sock"),
    )));
    check_lines(&mut wire, &table_lines("unix", false), &checker, "the broker's user", |_| {
        Decision::Allowed
    });
    checker.finish(1_500);
}

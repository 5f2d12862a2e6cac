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
use super::{Judge, Known, Scene, Verdict, greeted};
use crate::support::process::Server;
use crate::support::tls::Authority;
use crate::support::wire::{Heard, Wire, tcp_from, tls, unix};

/// Of each connection: which one goes through the table, which one is idle until rights have
/// changed.
type Two = Option<(Wire, Wire)>;

/// A row as it is sent.
#[derive(Debug, Clone)]
struct Asked {
    verb: Verb,
    line: String,
    needs: &'static str,
    /// The name of the case, for what is published.
    case: Option<String>,
}

/// Whether something is made or deleted: then something else may wait for it.
fn makes(line: &str) -> bool {
    ["GROUP create", "GROUP delete", "JOB open", "JOB delete", "TOPIC delete"]
        .iter()
        .any(|start| line.starts_with(start))
}

/// All rows but that after which nothing is heard, those that make something or the others.
fn all(who: &str, making: bool) -> Vec<Asked> {
    let rows = Verb::ALL.iter().flat_map(|verb| rows(*verb).iter().map(|row| (*verb, row)));
    let rows = rows.filter(|(verb, Row(line, _))| *verb != Verb::Quit && makes(line) == making);
    let asked = rows.enumerate().map(|(at, (verb, Row(line, needs)))| {
        let case = (verb == Verb::Pub).then(|| format!("{who}-{at}"));
        let line = match &case {
            Some(case) => format!("{line} case={case}"),
            None => (*line).to_owned(),
        };
        Asked { verb, line, needs, case }
    });
    asked.collect()
}

fn verdict(heard: &Heard) -> Verdict {
    let refused = |code: &str| heard.iter().any(|line| line.starts_with(&format!("-ERR {code} ")));
    match (refused("denied"), refused("unauthenticated")) {
        (true, _) => Verdict::Denied,
        (_, true) => Verdict::Unauthenticated,
        _ => Verdict::Allowed,
    }
}

/// What is right for somebody, or for a stranger.
fn wanted(given: Option<&Given>, needs: &str) -> Verdict {
    match given {
        None if needs.is_empty() => Verdict::Allowed,
        None => Verdict::Unauthenticated,
        Some(given) if given.is_enough(needs) => Verdict::Allowed,
        Some(_) => Verdict::Denied,
    }
}

/// Asks them, and has each judged. Returns the cases that were published.
#[track_caller]
fn walk(
    wire: &mut Wire,
    asked: &[Asked],
    judge: &Judge,
    who: &str,
    wanted: impl Fn(&Asked) -> Verdict,
) -> BTreeSet<String> {
    let lines: Vec<_> = asked.iter().map(|asked| asked.line.clone()).collect();
    let mut published = BTreeSet::new();
    for (asked, heard) in asked.iter().zip(wire.ask_all(&lines)) {
        if asked.verb == Verb::Link {
            // What is not answered tells nobody anything; audit records do.
            assert!(heard.is_empty(), "{}: {heard:?}", asked.line);
            continue;
        }
        assert_eq!(heard.len(), 1, "{}: {heard:?}", asked.line);
        let wanted = wanted(asked);
        judge.expect(wanted, verdict(&heard), || format!("{who}: {:?} {heard:?}", asked.line));
        if heard[0].starts_with("+OK") && wanted == Verdict::Allowed {
            published.extend(asked.case.clone());
        }
    }
    published
}

#[track_caller]
fn log_in(wire: &mut Wire, words: &str) {
    let heard = wire.ask_all(&[format!("HELLO {words}")]);
    assert!(heard[0].len() == 1 && heard[0][0].starts_with("+OK tidings "), "{heard:?}");
}

#[test]
fn every_line_is_answered_as_the_table_has_it_whoever_sends_it_and_when() {
    let mut scene = Scene::set(&["--audit", "audit.log"]);
    let (judge, published) = (Judge::default(), Mutex::new(BTreeSet::new()));
    let count = scene.known.len();
    let note = |cases: BTreeSet<String>| published.lock().unwrap().extend(cases);
    // First, as there is only so much audit at once.
    let mut nothing = vec![(); count];
    scene.each(&mut nothing, |known, ()| {
        let mut wire = scene.line(known, 5);
        let Row(link, _) = rows(Verb::Link)[0];
        let login = format!("HELLO token={}", known.token);
        let heard = wire.ask_all(&[link.to_owned(), login, link.to_owned()]);
        assert!(heard[0].is_empty() && heard[2].is_empty(), "{heard:?}");
    });

    let mut wires: Vec<Two> = (0..count).map(|_| None).collect();
    scene.each(&mut wires, |known, two| {
        let mut wire = scene.line(known, 4);
        let who = format!("stranger-{}", known.index);
        for making in [false, true] {
            walk(&mut wire, &all(&who, making), &judge, &who, |asked| wanted(None, asked.needs));
        }
        let mut idle = scene.line(known, 4);
        for wire in [&mut wire, &mut idle] {
            log_in(wire, &format!("token={}", known.token));
        }
        *two = Some((wire, idle));
    });
    scene.expect_untouched();

    for making in [false, true] {
        scene.each(&mut wires, |known, two| {
            let (wire, _) = two.as_mut().unwrap();
            let who = format!("known-{}", known.index);
            let rows = all(&who, making);
            let who = format!("{who} {:?}", known.given);
            note(walk(wire, &rows, &judge, &who, |asked| wanted(Some(&known.given), asked.needs)));
        });
        if !making {
            scene.each(&mut wires, |known, _| for_zmq(&scene, known, &judge, &published));
            scene.judge_published("known-", &published, &judge);
        }
    }
    // Whoever leaves is let go of.
    scene.each(&mut wires, |known, two| {
        let (wire, _) = two.as_mut().unwrap();
        wire.send("QUIT\n");
        let rest = wire.rest();
        let heard: Vec<_> = rest
            .into_iter()
            .filter(|line| line.starts_with("+OK") || line.starts_with('-'))
            .collect();
        assert_eq!(heard, ["+OK"], "{}", known.name);
    });

    clean_up(&scene);
    published.lock().unwrap().clear();
    // Everybody has what the next one had.
    let next = |known: &Known| (known.index + 1) % count;
    let rights: Vec<_> = scene.known.iter().map(|known| known.given.clone()).collect();
    scene.change(|known| Some(rights[next(known)].clone()));
    for making in [false, true] {
        scene.each(&mut wires, |known, two| {
            let (_, idle) = two.as_mut().unwrap();
            let who = format!("changed-{}", known.index);
            let given = &rights[next(known)];
            let rows = all(&who, making);
            let who = format!("{who} {given:?}, before {:?}", known.given);
            note(walk(idle, &rows, &judge, &who, |asked| wanted(Some(given), asked.needs)));
        });
        if !making {
            scene.judge_published("changed-", &published, &judge);
        }
    }

    published.lock().unwrap().clear();
    scene.change(|_| None);
    let rows = [all("revoked", false), all("revoked", true)].concat();
    scene.each(&mut wires, |known, two| {
        let (_, idle) = two.as_mut().unwrap();
        let Asked { line, .. } = &rows[known.index % rows.len()];
        idle.send(format!("{line}\n"));
        let heard: Vec<_> =
            idle.rest().into_iter().filter(|line| line.starts_with(['+', '-', 'P'])).collect();
        let is_over = heard.len() == 1 && heard[0].starts_with("-ERR revoked ");
        let verdict = if is_over { Verdict::Denied } else { Verdict::Allowed };
        judge.expect(Verdict::Denied, verdict, || format!("revoked: {line:?} {heard:?}"));
    });
    scene.judge_published("revoked", &published, &judge);

    let audit = scene.server.folder.path().join("audit.log");
    let known = scene.known;
    scene.server.process.finish_by("TERM").expect_code(0);
    judge_links(&fs::read_to_string(audit).unwrap(), &known, &judge);
    judge.conclude(30_000);
}

/// Somebody who speaks for those who come by `ZeroMQ` does no more than they may.
fn for_zmq(scene: &Scene, known: &Known, judge: &Judge, published: &Mutex<BTreeSet<String>>) {
    let mut wire = scene.line(known, 6);
    log_in(&mut wire, &format!("token={} via=zmq", known.token));
    let who = format!("known-zmq-{}", known.index);
    let rows: Vec<_> = all(&who, false);
    let cases = walk(&mut wire, &rows, judge, &format!("{who} {:?}", known.given), |asked| {
        let is_taken = zmq_allows(asked.verb, &asked.line);
        if is_taken { wanted(Some(&known.given), asked.needs) } else { Verdict::Denied }
    });
    published.lock().unwrap().extend(cases);
}

/// What whoever might has made, so that nobody waits for it.
fn clean_up(scene: &Scene) {
    let mut wire = greeted(Wire::over(tcp_from(scene.server.address, Ipv4Addr::LOCALHOST)));
    log_in(&mut wire, &format!("token={}", scene.token));
    let lines =
        ["GROUP delete docs-1", "JOB cancel docs-1", "JOB delete docs-1"].map(str::to_owned);
    for (line, heard) in lines.iter().zip(wire.ask_all(&lines)) {
        let is_gone = heard[0].starts_with("+OK") || heard[0].starts_with("-ERR unknown ");
        assert!(is_gone, "{line}: {heard:?}");
    }
}

/// Those who may not work for the group had their `LINK` refused, first as strangers.
fn judge_links(audit: &str, known: &[Known], judge: &Judge) {
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
        let denied = denied.get(&known.address(5).to_string()).cloned().unwrap_or_default();
        for (who, given, is_right) in [
            ("strangers", None, Verdict::Unauthenticated),
            (known.name.as_str(), Some(&known.given), Verdict::Denied),
        ] {
            let heard =
                if denied.iter().any(|name| name == who) { is_right } else { Verdict::Allowed };
            judge.expect(wanted(given, needs), heard, || format!("{who} {given:?}: {link}"));
        }
    }
}

#[test]
fn certificates_and_users_of_the_machine_are_judged_by_the_same_table() {
    let folder = TempDir::new().unwrap();
    let authority = Authority::new(folder.path(), "authority");
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
    let judge = Judge::default();
    for (at, given) in everybody.iter().enumerate() {
        let files = [
            authority.file(),
            authority.path(&format!("she-{at}"), "pem"),
            authority.path(&format!("she-{at}"), "key"),
        ];
        let stream = tcp_from(server.address, Ipv4Addr::LOCALHOST);
        let mut wire = greeted(Wire::over(tls(stream, files.each_ref().map(String::as_str))));
        let who = format!("by certificate {given:?}");
        walk(&mut wire, &all("certificate", false), &judge, &who, |asked| {
            wanted(Some(given), asked.needs)
        });
    }
    // The broker's own user may do everything.
    let mut wire = greeted(Wire::over(unix(&server.folder.path().join("the.sock"))));
    walk(&mut wire, &all("unix", false), &judge, "the broker's user", |_| Verdict::Allowed);
    judge.conclude(1_500);
}

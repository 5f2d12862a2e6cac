//! HTTP: everything that its description has, and nothing that it has not.

use std::collections::BTreeSet;
use std::sync::Mutex;

use tidings_protocol::Verb;

use super::table::{Given, Row, rows};
use super::{Decision, DecisionChecker, Fixture, TestPrincipal};
use crate::support::pipelined_connection::PipelinedConnection;

/// A method, a path as the description has it, a query, a body, and the rights that it takes, as
/// those of a line.
struct Route(&'static str, &'static str, &'static str, &'static str, &'static str);

const READ: &str = "monitor|admin";
const READ_GROUP: &str = "group:docs-1|monitor|admin";
const READ_JOB: &str = "job:docs-1|monitor|admin";
const JOB: &str = "job:docs-1";
const ADMIN: &str = "admin";

/// All but `POST /topics/{topic}`, of which there is one for each line that publishes.
const ROUTES: &[Route] = &[
    Route("GET", "/", "", "", ""),
    Route("GET", "/openapi.json", "", "", ""),
    Route("GET", "/health", "", "", ""),
    Route("GET", "/ready", "", "", ""),
    Route("GET", "/stats", "", "", READ),
    Route("GET", "/topics", "", "", READ),
    Route("GET", "/topics/{topic}", "?from=first&limit=1&wait=0s", "", "sub:docs-1"),
    Route("GET", "/topics/{topic}/events", "?from=first", "", "sub:docs-1"),
    Route("GET", "/topics/{topic}/state", "", "", "sub:docs-1|monitor|admin"),
    // What was made is told, as to whoever asks for it.
    Route("PUT", "/topics/{topic}", "", "{}", "admin sub:docs-1|monitor|admin"),
    Route("PUT", "/topics/{topic}", "", r#"{"sync":"memory"}"#, "admin sub:docs-1|monitor|admin"),
    Route("DELETE", "/topics/{topic}", "", "", ADMIN),
    Route("GET", "/groups", "", "", READ),
    Route("GET", "/groups/{group}", "", "", READ_GROUP),
    Route("PUT", "/groups/{group}", "", "{}", "admin sub:new-url group:docs-1|monitor|admin"),
    Route(
        "PUT",
        "/groups/{group}",
        "",
        r#"{"topics":["docs-1"],"key":"none"}"#,
        "admin sub:docs-1 group:docs-1|monitor|admin",
    ),
    Route("DELETE", "/groups/{group}", "", "", ADMIN),
    Route("POST", "/groups/{group}/pause", "", "", ADMIN),
    Route("POST", "/groups/{group}/resume", "", "", ADMIN),
    Route("POST", "/groups/{group}/purge", "", "", ADMIN),
    Route("GET", "/groups/{group}/tasks", "", "", READ_GROUP),
    Route("GET", "/groups/{group}/keys", "", "", READ_GROUP),
    Route("GET", "/groups/{group}/schedules", "", "", READ_GROUP),
    Route("GET", "/groups/{group}/dead", "", "", READ_GROUP),
    Route("POST", "/groups/{group}/dead/retry", "?entry=1", "", ADMIN),
    Route("POST", "/groups/{group}/dead/drop", "?entry=1", "", ADMIN),
    Route("GET", "/jobs", "", "", READ),
    Route("POST", "/jobs", "", r#"{"job":"docs-1"}"#, "job:docs-1 job:docs-1|monitor|admin"),
    Route(
        "POST",
        "/jobs",
        "",
        r#"{"job":"docs-1","urls":["http://a.example/1"],"close":true}"#,
        "job:docs-1 url=http://a.example/1",
    ),
    // What is said of a job that is closed at once is the end of what was asked.
    Route("POST", "/jobs", "", r#"{"job":"docs-1","close":true}"#, JOB),
    Route("GET", "/jobs/{job}", "", "", READ_JOB),
    Route("GET", "/jobs/{job}", "?wait=1ms", "", READ_JOB),
    Route("DELETE", "/jobs/{job}", "", "", JOB),
    Route(
        "POST",
        "/jobs/{job}/urls",
        "",
        r#"{"urls":["http://a.example/2"]}"#,
        "job:docs-1 url=http://a.example/2",
    ),
    Route(
        "POST",
        "/jobs/{job}/urls",
        "",
        r#"{"urls":["http://a.example/3"],"prio":3}"#,
        "job:docs-1 prio url=http://a.example/3",
    ),
    Route("POST", "/jobs/{job}/close", "", "", JOB),
    Route("POST", "/jobs/{job}/cancel", "", "", JOB),
    Route("POST", "/jobs/{job}/pause", "", "", JOB),
    Route("POST", "/jobs/{job}/resume", "", "", JOB),
    Route("GET", "/explain", "?what=a.example", "", READ),
    // Who may use these is known by what they send, and nobody is here.
    Route("POST", "/hooks/{name}", "", "{}", ""),
    Route("POST", "/hub", "", "", ""),
    Route("POST", "/hub/rsscloud", "", "", ""),
    Route("POST", "/hub/ping", "", "", ""),
    Route("GET", "/websub/{token}", "", "", ""),
    Route("POST", "/websub/{token}", "", "", ""),
];

const PUBLISH: (&str, &str) = ("POST", "/topics/{topic}");

/// A request as it is sent.
#[derive(Debug, Clone)]
struct TableRequest {
    method: &'static str,
    path: String,
    body: String,
    needs: &'static str,
    /// The name of the case, for what is published.
    case: Option<String>,
}

/// All of those, those that make or delete something or the others.
fn table_requests(who: &str, making: bool) -> Vec<TableRequest> {
    let mut all = Vec::new();
    for Route(method, template, query, body, needs) in ROUTES {
        let path = ["{topic}", "{group}", "{job}", "{name}", "{token}"]
            .iter()
            .fold((*template).to_owned(), |path, part| path.replace(part, "docs-1"));
        let asked = TableRequest {
            method,
            path: path + query,
            body: (*body).to_owned(),
            needs,
            case: None,
        };
        let makes =
            matches!(*method, "PUT" | "DELETE") || (*method, *template) == ("POST", "/jobs");
        if makes == making {
            if *method == "GET" && !asked.path.contains("/events") {
                all.push(TableRequest { method: "HEAD", ..asked.clone() });
            }
            all.push(asked);
        }
    }
    let publishing = rows(Verb::Pub).iter().enumerate().filter(|_| !making);
    all.extend(publishing.flat_map(|(at, Row(line, needs))| {
        let (topic, payload) = line.strip_prefix("PUB ").unwrap().split_once(' ').unwrap();
        let asked = |form: &str, body: String| {
            let case = format!("{who}-{at}-{form}");
            let body = body.replace("CASE", &case);
            TableRequest {
                method: PUBLISH.0,
                path: format!("/topics/{topic}"),
                body,
                needs,
                case: Some(case),
            }
        };
        [
            asked("lines", format!("{payload} case=CASE\n")),
            asked("json", format!("{{\"events\":[\"{payload} case=CASE\"]}}")),
        ]
    }));
    all
}

/// A connection, and how to open another one.
struct RequestSender<'a> {
    fixture: &'a Fixture,
    principal: &'a TestPrincipal,
    network: u8,
    wire: PipelinedConnection,
}

impl<'a> RequestSender<'a> {
    fn new(fixture: &'a Fixture, principal: &'a TestPrincipal, network: u8) -> Self {
        Self { fixture, principal, network, wire: fixture.connect_http(principal, network) }
    }

    /// The status of the answer.
    #[track_caller]
    fn send(&mut self, asked: &TableRequest, token: Option<&str>) -> u16 {
        let TableRequest { method, path, body, .. } = asked;
        let kind = if body.starts_with('{') { "application/json" } else { "text/plain" };
        let login = token.map(|token| format!("Authorization: Bearer {token}\r\n"));
        let headers = format!("Content-Type: {kind}\r\n{}", login.unwrap_or_default());
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n{headers}\r\n{body}",
            body.len()
        );
        // A stream of events does not end, and whoever was refused may be let go of.
        for _ in 0..2 {
            self.wire.send(&head);
            let is_bare = *method == "HEAD" || path.contains("/events");
            let status = if is_bare {
                self.wire.read_head().map(|(status, _)| status)
            } else {
                self.wire.read_response().map(|(status, _)| status)
            };
            if status.is_none() || path.contains("/events") {
                self.wire = self.fixture.connect_http(self.principal, self.network);
            }
            if let Some(status) = status {
                return status;
            }
        }
        panic!("closed without an answer: {asked:?}");
    }

    /// Asks them all, and has each judged. Returns the cases that were published.
    #[track_caller]
    fn check_requests(
        &mut self,
        all: &[TableRequest],
        login: Option<(&str, &Given)>,
        judge: &DecisionChecker,
        who: &str,
    ) -> BTreeSet<String> {
        let mut published = BTreeSet::new();
        for asked in all {
            let status = self.send(asked, login.map(|(token, _)| token));
            let wanted = match login {
                Some((_, given)) if given.is_enough(asked.needs) => Decision::Allowed,
                None if asked.needs.is_empty() => Decision::Allowed,
                Some(_) => Decision::Denied,
                None => Decision::Unauthenticated,
            };
            judge.check(wanted, decision_of(status), || {
                format!("{who}: {} {} {:?} {status}", asked.method, asked.path, asked.body)
            });
            if status == 200 && wanted == Decision::Allowed {
                published.extend(asked.case.clone());
            }
        }
        published
    }
}

fn decision_of(status: u16) -> Decision {
    match status {
        401 => Decision::Unauthenticated,
        403 => Decision::Denied,
        _ => Decision::Allowed,
    }
}

/// Every path of the description, with each of its methods, has a row, and every row is one of
/// those.
#[track_caller]
fn expect_every_route_in_table(scene: &Fixture) {
    let description = scene.http.get("/openapi.json").json();
    let mut served = BTreeSet::new();
    for (path, methods) in description["paths"].as_object().unwrap() {
        let methods = methods.as_object().unwrap().keys().filter(|key| *key != "parameters");
        served.extend(methods.map(|method| (method.to_uppercase(), path.clone())));
    }
    let rows = ROUTES.iter().map(|Route(method, path, ..)| (*method, *path)).chain([PUBLISH]);
    let rows: BTreeSet<_> =
        rows.map(|(method, path)| (method.to_owned(), path.to_owned())).collect();
    assert_eq!(served, rows);
}

#[test]
fn every_request_gets_the_decision_of_the_table() {
    let public = ["--public-url", "http://localhost/", "--hub", "http://localhost/blog/"];
    let mut scene = Fixture::start(&public);
    expect_every_route_in_table(&scene);
    let (judge, published) = (DecisionChecker::default(), Mutex::new(BTreeSet::new()));
    let note = |cases: BTreeSet<String>| published.lock().unwrap().extend(cases);
    let count = scene.principals.len();
    let mut nothing = vec![(); count];
    scene.for_each_principal(&mut nothing, |known, ()| {
        // For a stranger it is always the same, but for who is on the same connection next.
        if known.index % 8 == 0 {
            let who = format!("stranger-{}", known.index);
            let all = [table_requests(&who, false), table_requests(&who, true)].concat();
            RequestSender::new(&scene, known, 7).check_requests(&all, None, &judge, &who);
        }
    });
    scene.expect_nothing_created();
    let mut wires: Vec<Option<PipelinedConnection>> = (0..count).map(|_| None).collect();
    for making in [false, true] {
        scene.for_each_principal(&mut wires, |known, wire| {
            let mut asker = RequestSender::new(&scene, known, 7);
            let who = format!("known-{}", known.index);
            let login = Some((known.token.as_str(), &known.permissions));
            let rows = table_requests(&who, making);
            note(asker.check_requests(
                &rows,
                login,
                &judge,
                &format!("{who} {:?}", known.permissions),
            ));
            *wire = Some(asker.wire);
        });
        if !making {
            scene.check_published("known-", &published, &judge);
        }
    }

    published.lock().unwrap().clear();
    let rights: Vec<_> = scene.principals.iter().map(|known| known.permissions.clone()).collect();
    let next = |known: &TestPrincipal| (known.index + 1) % count;
    scene.replace_permissions(|known| Some(rights[next(known)].clone()));
    // On the same connections.
    scene.for_each_principal(&mut wires, |known, wire| {
        let mut asker = RequestSender {
            fixture: &scene,
            principal: known,
            network: 7,
            wire: wire.take().unwrap(),
        };
        let who = format!("changed-{}", known.index);
        let given = &rights[next(known)];
        let login = Some((known.token.as_str(), given));
        note(asker.check_requests(
            &table_requests(&who, false),
            login,
            &judge,
            &format!("{who} {given:?}"),
        ));
        *wire = Some(asker.wire);
    });
    scene.check_published("changed-", &published, &judge);

    scene.replace_permissions(|_| None);
    let rows = [table_requests("revoked", false), table_requests("revoked", true)].concat();
    scene.for_each_principal(&mut wires, |known, wire| {
        let mut asker = RequestSender {
            fixture: &scene,
            principal: known,
            network: 7,
            wire: wire.take().unwrap(),
        };
        // Of more from one address each takes longer.
        let row = &rows[known.index % rows.len()];
        let status = asker.send(row, Some(&known.token));
        judge.check(Decision::Unauthenticated, decision_of(status), || {
            format!("revoked: {} {} {status}", row.method, row.path)
        });
    });
    published.lock().unwrap().clear();
    scene.check_published("revoked", &published, &judge);
    judge.finish(20_000);
}

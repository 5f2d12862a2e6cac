//! The permission table, checked over HTTP. It covers exactly the operations of the `OpenAPI`
//! description.

use std::collections::BTreeSet;
use std::sync::Mutex;

use tidings_protocol::Verb;

use super::table::{Grants, Row, rows};
use super::{Decision, DecisionChecker, Fixture, TestPrincipal};
use crate::support::pipelined_connection::PipelinedConnection;

/// A method, a path of the description, a query, a body, and the permissions that the request
/// needs, in the notation of `Row`.
struct Route(&'static str, &'static str, &'static str, &'static str, &'static str);

const READ: &str = "monitor|admin";
const READ_GROUP: &str = "group:docs-1|monitor|admin";
const READ_JOB: &str = "job:docs-1|monitor|admin";
const JOB: &str = "job:docs-1";
const ADMIN: &str = "admin";

/// All routes except `POST /topics/{topic}`, for which there is one request for each row that
/// publishes.
const ROUTES: &[Route] = &[
    Route("GET", "/", "", "", ""),
    Route("GET", "/openapi.json", "", "", ""),
    Route("GET", "/health", "", "", ""),
    Route("GET", "/ready", "", "", ""),
    Route("GET", "/me", "", "", ""),
    Route("GET", "/live", "?on=stats", "", READ),
    Route("GET", "/live", "?on=keys:docs-1", "", "monitor|admin group:docs-1|monitor|admin"),
    Route("GET", "/live", "?on=stats,job:docs-1", "", "monitor|admin job:docs-1|monitor|admin"),
    Route("GET", "/config", "", "", READ),
    Route("GET", "/stats", "", "", READ),
    Route("GET", "/metrics", "", "", READ),
    Route("GET", "/history", "", "", READ),
    Route("GET", "/history", "?of=topics", "", READ),
    Route("GET", "/history", "?of=group:docs-1", "", "monitor|admin group:docs-1|monitor|admin"),
    Route("GET", "/history", "?of=topic:docs-1", "", "monitor|admin sub:docs-1|monitor|admin"),
    Route("GET", "/history", "?of=job:docs-1", "", "monitor|admin job:docs-1|monitor|admin"),
    Route("GET", "/topics", "", "", READ),
    Route("GET", "/topics/{topic}", "?from=first&limit=1&wait=0s", "", "sub:docs-1"),
    Route("GET", "/topics/{topic}/events", "?from=first", "", "sub:docs-1"),
    Route("GET", "/topics/{topic}/state", "", "", "sub:docs-1|monitor|admin"),
    // The response shows what was created, so reading must be permitted, too.
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
    Route("POST", "/groups/{group}/bump", "?prio=1", "", "admin prio"),
    Route("POST", "/groups/{group}/drain", "?member=x", "", ADMIN),
    Route("POST", "/groups/{group}/undrain", "?member=x", "", ADMIN),
    Route("GET", "/groups/{group}/members", "", "", READ_GROUP),
    Route("GET", "/groups/{group}/rules", "", "", READ_GROUP),
    Route("PUT", "/groups/{group}/rules/{key}", "", r#"{"block":true}"#, ADMIN),
    Route("DELETE", "/groups/{group}/rules/{key}", "", "", ADMIN),
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
    // The response about a job that is closed at once needs no permission of its own.
    Route("POST", "/jobs", "", r#"{"job":"docs-1","close":true}"#, JOB),
    Route("GET", "/jobs/{job}", "", "", READ_JOB),
    Route("GET", "/jobs/{job}", "?wait=1ms", "", READ_JOB),
    Route("PATCH", "/jobs/{job}", "", r#"{"max-pages":9}"#, JOB),
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
    Route(
        "POST",
        "/jobs/{job}/retry",
        "",
        "",
        "job:docs-1 sub:page-ready job:docs-1|monitor|admin",
    ),
    Route("GET", "/explain", "?what=a.example", "", READ),
    // These routes recognize their clients by the content of the request, and no request here has
    // it.
    Route("POST", "/hooks/{name}", "", "{}", ""),
    Route("POST", "/hub", "", "", ""),
    Route("POST", "/hub/rsscloud", "", "", ""),
    Route("POST", "/hub/ping", "", "", ""),
    Route("GET", "/websub/{token}", "", "", ""),
    Route("POST", "/websub/{token}", "", "", ""),
];

const PUBLISH: (&str, &str) = ("POST", "/topics/{topic}");

/// A request of the table as it is sent.
#[derive(Debug, Clone)]
struct TableRequest {
    method: &'static str,
    path: String,
    body: String,
    needs: &'static str,
    /// The name of the case, which a published event carries.
    case: Option<String>,
}

impl TableRequest {
    /// Whether the response has no end.
    fn is_stream(&self) -> bool {
        self.path.contains("/events") || self.path.starts_with("/live")
    }
}

/// All requests: with `creating` those that create or delete something, without it the others.
fn table_requests(label: &str, creating: bool) -> Vec<TableRequest> {
    let mut all = Vec::new();
    for Route(method, template, query, body, needs) in ROUTES {
        let path = ["{topic}", "{group}", "{job}", "{key}", "{name}", "{token}"]
            .iter()
            .fold((*template).to_owned(), |path, part| path.replace(part, "docs-1"));
        let request = TableRequest {
            method,
            path: path + query,
            body: (*body).to_owned(),
            needs,
            case: None,
        };
        let creates =
            matches!(*method, "PUT" | "DELETE") || (*method, *template) == ("POST", "/jobs");
        if creates == creating {
            if *method == "GET" && !request.is_stream() {
                all.push(TableRequest { method: "HEAD", ..request.clone() });
            }
            all.push(request);
        }
    }
    let publishing = rows(Verb::Pub).iter().enumerate().filter(|_| !creating);
    all.extend(publishing.flat_map(|(at, Row(line, needs))| {
        let (topic, payload) = line.strip_prefix("PUB ").unwrap().split_once(' ').unwrap();
        let request = |form: &str, body: String| {
            let case = format!("{label}-{at}-{form}");
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
            request("lines", format!("{payload} case=CASE\n")),
            request("json", format!("{{\"events\":[\"{payload} case=CASE\"]}}")),
        ]
    }));
    all
}

/// A connection that is opened again when the broker has closed it.
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

    /// Sends the request and returns the status of the response.
    #[track_caller]
    fn send(&mut self, request: &TableRequest, token: Option<&str>) -> u16 {
        let TableRequest { method, path, body, .. } = request;
        let kind = if body.starts_with('{') { "application/json" } else { "text/plain" };
        let login = token.map(|token| format!("Authorization: Bearer {token}\r\n"));
        let headers = format!("Content-Type: {kind}\r\n{}", login.unwrap_or_default());
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n{headers}\r\n{body}",
            body.len()
        );
        // An event stream does not end, and the broker may have closed the connection after a
        // rejection.
        for _ in 0..2 {
            self.wire.send(&head);
            let is_bare = *method == "HEAD" || request.is_stream();
            let status = if is_bare {
                self.wire.read_head().map(|(status, _)| status)
            } else {
                self.wire.read_response().map(|(status, _)| status)
            };
            if status.is_none() || request.is_stream() {
                self.wire = self.fixture.connect_http(self.principal, self.network);
            }
            if let Some(status) = status {
                return status;
            }
        }
        panic!("closed without an answer: {request:?}");
    }

    /// Sends the requests and checks each response. Returns the cases that were published.
    #[track_caller]
    fn check_requests(
        &mut self,
        all: &[TableRequest],
        login: Option<(&str, &Grants)>,
        checker: &DecisionChecker,
        label: &str,
    ) -> BTreeSet<String> {
        let mut published = BTreeSet::new();
        for request in all {
            let status = self.send(request, login.map(|(token, _)| token));
            let expected = match login {
                Some((_, permissions)) if permissions.satisfies(request.needs) => Decision::Allowed,
                None if request.needs.is_empty() => Decision::Allowed,
                Some(_) => Decision::Denied,
                None => Decision::Unauthenticated,
            };
            checker.check(expected, decision_of(status), || {
                format!("{label}: {} {} {:?} {status}", request.method, request.path, request.body)
            });
            if status == 200 && expected == Decision::Allowed {
                published.extend(request.case.clone());
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

/// Checks that the table and the description have the same paths and methods.
#[track_caller]
fn expect_every_route_in_table(fixture: &Fixture) {
    let description = fixture.http.get("/openapi.json").json();
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
#[ignore = "needs foreign programs"]
fn every_request_gets_the_decision_of_the_table() {
    let public = ["--public-url", "http://localhost/", "--hub", "http://localhost/blog/"];
    let mut fixture = Fixture::start(&public);
    expect_every_route_in_table(&fixture);
    let (checker, published) = (DecisionChecker::default(), Mutex::new(BTreeSet::new()));
    let record_published = |cases: BTreeSet<String>| published.lock().unwrap().extend(cases);
    let count = fixture.principals.len();
    let mut nothing = vec![(); count];
    fixture.for_each_principal(&mut nothing, |principal, ()| {
        // All anonymous clients get the same decisions, so one in eight is enough.
        if principal.index % 8 == 0 {
            let label = format!("anonymous-{}", principal.index);
            let all = [table_requests(&label, false), table_requests(&label, true)].concat();
            RequestSender::new(&fixture, principal, 7).check_requests(&all, None, &checker, &label);
        }
    });
    fixture.expect_nothing_created();
    let mut wires: Vec<Option<PipelinedConnection>> = (0..count).map(|_| None).collect();
    for creating in [false, true] {
        fixture.for_each_principal(&mut wires, |principal, wire| {
            let mut sender = RequestSender::new(&fixture, principal, 7);
            let label = format!("known-{}", principal.index);
            let login = Some((principal.token.as_str(), &principal.permissions));
            let rows = table_requests(&label, creating);
            record_published(sender.check_requests(
                &rows,
                login,
                &checker,
                &format!("{label} {:?}", principal.permissions),
            ));
            *wire = Some(sender.wire);
        });
        if !creating {
            fixture.check_published("known-", &published, &checker);
        }
    }

    published.lock().unwrap().clear();
    let permission_sets: Vec<_> =
        fixture.principals.iter().map(|principal| principal.permissions.clone()).collect();
    let next = |principal: &TestPrincipal| (principal.index + 1) % count;
    fixture.replace_permissions(|principal| Some(permission_sets[next(principal)].clone()));
    // On the same connections.
    fixture.for_each_principal(&mut wires, |principal, wire| {
        let mut sender =
            RequestSender { fixture: &fixture, principal, network: 7, wire: wire.take().unwrap() };
        let label = format!("changed-{}", principal.index);
        let permissions = &permission_sets[next(principal)];
        let login = Some((principal.token.as_str(), permissions));
        record_published(sender.check_requests(
            &table_requests(&label, false),
            login,
            &checker,
            &format!("{label} {permissions:?}"),
        ));
        *wire = Some(sender.wire);
    });
    fixture.check_published("changed-", &published, &checker);

    fixture.replace_permissions(|_| None);
    let rows = [table_requests("revoked", false), table_requests("revoked", true)].concat();
    fixture.for_each_principal(&mut wires, |principal, wire| {
        let mut sender =
            RequestSender { fixture: &fixture, principal, network: 7, wire: wire.take().unwrap() };
        // One request is enough, because the broker delays more failed logins from one address.
        let row = &rows[principal.index % rows.len()];
        let status = sender.send(row, Some(&principal.token));
        checker.check(Decision::Unauthenticated, decision_of(status), || {
            format!("revoked: {} {} {status}", row.method, row.path)
        });
    });
    published.lock().unwrap().clear();
    fixture.check_published("revoked", &published, &checker);
    checker.finish(20_000);
}

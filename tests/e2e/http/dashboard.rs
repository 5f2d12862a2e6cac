//! The dashboard's page and files, as curl and other pages receive them.

use serde_json::json;

use crate::access::tokens::broker;
use crate::support::http_client::{HttpClient, HttpResponse};
use crate::support::process::{Server, run_tidings};
use crate::support::wait::wait_until;

/// `Accept` of Chromium when it opens a page.
const BROWSER: &str = "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,\
                       image/webp,image/apng,*/*;q=0.8,application/signed-exchange;v=b3;q=0.7";

/// Gets a path with these header lines.
#[track_caller]
fn get_with(http: &HttpClient, path: &str, headers: &[&str]) -> HttpResponse {
    let arguments: Vec<_> = headers.iter().flat_map(|header| ["--header", header]).collect();
    http.request("GET", path, &arguments)
}

#[track_caller]
fn is_page(response: &HttpResponse) -> bool {
    assert_eq!((response.status, response.header("vary")), (200, Some("accept")));
    match response.header("content-type") {
        Some("text/html; charset=utf-8") => true,
        Some("application/json") => {
            assert_eq!(response.json()["name"], "tidings");
            false
        }
        other => panic!("{other:?}"),
    }
}

#[test]
#[ignore = "needs foreign programs"]
fn only_clients_that_prefer_html_get_the_page() {
    let (server, _) = broker([("alice", &["monitor"])], &[]);
    let http = HttpClient::new(&server);
    assert_eq!(http.get("/stats").status, 401, "a client without a token has no permissions");
    for html in [BROWSER, "Accept: text/html", "Accept: text/html;q=0.2, application/json;q=0.1"] {
        assert!(is_page(&get_with(&http, "/", &[html])), "{html}");
    }
    for json in ["Accept: */*", "Accept: text/html;q=0", "Accept: application/json", "Accept:"] {
        assert!(!is_page(&get_with(&http, "/", &[json])), "{json}");
    }
    let index = http.get("/").json();
    assert_eq!((&index["port"], &index["tls"]), (&server.address.port().into(), &false.into()));
    let page = get_with(&http, "/", &[BROWSER]);
    for (name, value) in [
        (
            "content-security-policy",
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
             connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
             require-trusted-types-for 'script'; trusted-types 'none'",
        ),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cache-control", "no-store"),
    ] {
        assert_eq!(page.header(name), Some(value), "{name}");
    }
    assert!(!page.body.contains("{{"), "{}", page.body);
}

#[test]
#[ignore = "needs foreign programs"]
fn a_client_learns_who_it_is_and_what_it_may_do() {
    let (server, [alice, operator]) =
        broker([("alice", &["monitor", "group:crawlers"]), ("operator", &["all"])], &[]);
    let http = HttpClient::new(&server);
    let me = |token: Option<&str>| {
        let header = token.map(|token| format!("Authorization: Bearer {token}"));
        get_with(&http, "/me", &header.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let nothing = json!({ "monitor": false, "admin": false, "all": false });
    let everything = json!({ "monitor": true, "admin": true, "all": true });
    let expect = |token, name: Option<&str>, can, permissions| {
        let expected = json!({
            "name": name, "known": name.is_some(), "way": "http", "can": can,
            "permissions": permissions, "denied": [], "expires": null,
        });
        assert_eq!(me(token).json(), expected);
    };
    expect(None, None, &nothing, json!([]));
    expect(Some(&operator), Some("operator"), &everything, json!(null));
    let monitor = json!({ "monitor": true, "admin": false, "all": false });
    expect(Some(&alice), Some("alice"), &monitor, json!(["monitor", "group:crawlers"]));
    let flags = ["token", "set", "alice", "--allow", "sub:*", "--deny", "sub:news"];
    run_tidings(server.folder.path(), &flags).expect_code(0);
    wait_until("the new permissions", || {
        (me(Some(&alice)).json()["denied"] == json!(["sub:news"])).then_some(())
    });
    run_tidings(server.folder.path(), &["token", "revoke", "alice", "--yes"]).expect_code(0);
    wait_until("the revocation", || (me(Some(&alice)).status == 401).then_some(()));

    let open = Server::start_broker();
    let http = HttpClient::new(&open);
    let expected = json!({
        "name": null, "known": false, "way": "http", "can": everything, "permissions": null,
        "denied": [],
        "expires": null,
    });
    assert_eq!(http.get("/me").json(), expected);
}

#[test]
#[ignore = "needs foreign programs"]
fn without_the_dashboard_a_browser_gets_json() {
    let server = Server::start(&["broker", "--dashboard", "off"]);
    let http = HttpClient::new(&server);
    assert!(!is_page(&get_with(&http, "/", &[BROWSER])));
}

// PROTOCOL: H8
#[test]
#[ignore = "needs foreign programs"]
fn another_site_may_only_link_to_the_page() {
    let server = Server::start_broker();
    let http = HttpClient::new(&server);
    let send = |method: &str, path: &str, mode: &str, dest: &str, more: &[&str]| {
        let [mode, dest] = [("mode", mode), ("dest", dest)]
            .map(|(name, value)| format!("Sec-Fetch-{name}: {value}"));
        let headers = ["Sec-Fetch-Site: cross-site", BROWSER, &mode, &dest];
        let headers = headers.iter().chain(more).flat_map(|header| ["--header", header]);
        http.request(method, path, &headers.collect::<Vec<_>>()).status
    };
    let origin = "Origin: http://evil.example";
    assert_eq!(send("GET", "/", "navigate", "document", &[]), 200, "a link");
    for (method, path, mode, dest, more) in [
        ("POST", "/", "navigate", "document", &[origin][..]),
        ("POST", "/", "navigate", "document", &["Origin: null"]),
        ("POST", "/topics/new-url", "navigate", "document", &[origin]),
        ("GET", "/", "navigate", "iframe", &[]),
        ("GET", "/", "no-cors", "image", &[]),
        ("GET", "/", "no-cors", "script", &[]),
        ("GET", "/", "cors", "empty", &[origin]),
        ("GET", "/", "no-cors", "empty", &[]),
        ("GET", "/stats", "navigate", "document", &[]),
        ("GET", "/topics/log?from=first&wait=0", "navigate", "document", &[]),
    ] {
        let status = send(method, path, mode, dest, more);
        assert_eq!(status, 403, "{method} {path} {mode} {dest} {more:?}");
    }
    assert_eq!(http.events("new-url"), [""; 0]);
}

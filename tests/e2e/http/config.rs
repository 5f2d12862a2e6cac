//! `GET /config`: where the broker listens, and what its operator has set.

use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::access::tokens::create_token;
use crate::support::http_client::HttpClient;
use crate::support::process::Server;
use crate::support::wait::wait_until;

/// A configuration file with a setting that a reload changes, and one that it does not change.
fn config(delay: &str, password: &str) -> String {
    format!("delay = '{delay}'\n\n[broker]\nproxy = 'http://me:{password}@127.0.0.1:9'\n")
}

#[test]
#[ignore = "needs foreign programs"]
fn administrators_that_have_logged_in_see_what_is_set_without_secrets() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("c.toml");
    fs::write(&file, config("3s", "hush")).unwrap();
    let [operator, watcher] = [("operator", "admin"), ("watcher", "monitor")]
        .map(|(name, right)| create_token(folder.path(), name, &[right]));
    let flags = ["broker", "--config", "c.toml", "--hook-events", "50", "--log-lines"];
    let server = Server::start_in(folder, &flags, |command| {
        command.env("TIDINGS_RETAIN_AGE", "9d");
    });
    let http = HttpClient::new(&server);
    let get = |token: &str| {
        let header = format!("Authorization: Bearer {token}");
        http.request("GET", "/config", &["--header", &header]).json()
    };
    let shown = |key: &str| {
        let settings = get(&operator)["settings"].as_array().unwrap().clone();
        let setting = settings.into_iter().find(|setting| setting["key"] == key)?;
        Some((setting["value"].clone(), setting["origin"].clone()))
    };
    let listens = get(&operator)["listens"].clone();
    let at = |way: &str, address: &str| json!({ "way": way, "address": address, "tls": false });
    assert_eq!(listens[0], at("line", &server.address_text()));
    assert_eq!(listens[1]["way"], "unix");
    assert_eq!(listens[2], at("http", http.authority()));
    for (key, value, origin) in [
        ("delay", "\"3s\"", "c.toml:1"),
        ("proxy", "\"http://HIDDEN@127.0.0.1:9\"", "c.toml:4"),
        ("retain-age", "\"9d\"", "TIDINGS_RETAIN_AGE in the environment"),
        ("hook-events", "50", "the command line"),
        ("log-lines", "true", "the command line"),
    ] {
        assert_eq!(shown(key), Some((json!(value), json!(origin))), "{key}");
    }
    assert_eq!(shown("sync"), None, "it has its default");
    assert_eq!(get(&watcher), json!({ "listens": listens, "settings": Value::Null }));
    assert_eq!(http.get("/config").status, 401);

    // A reload shows what it has changed, and nothing else.
    fs::write(&file, config("4s", "other")).unwrap();
    server.process.signal("HUP");
    wait_until("the new delay", || {
        (shown("delay") == Some((json!("\"4s\""), json!("c.toml:1")))).then_some(())
    });
    assert_eq!(shown("proxy").unwrap().0, "\"http://HIDDEN@127.0.0.1:9\"");
    assert_eq!(shown("hook-events").unwrap().0, "50");
}

#[test]
#[ignore = "needs foreign programs"]
fn clients_that_need_no_login_do_not_see_what_is_set() {
    let server = Server::start_broker();
    let config = HttpClient::new(&server).get("/config").json();
    let ways: Vec<_> =
        config["listens"].as_array().unwrap().iter().map(|listener| &listener["way"]).collect();
    assert_eq!(ways, ["line", "http"]);
    assert_eq!(config["settings"], Value::Null);
}

//! schemathesis, which generates requests from the `OpenAPI` description, finds no failure.

use std::process::Command;

use super::openapi::hook_config;
use crate::support::http_client::HttpClient;
use crate::support::line_connection::LineConnection;
use crate::support::process::{Process, Server};
use crate::support::wait::wait_until;

fn env_or(name: &str, default: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| default.to_owned())
}

/// Prepares what the examples of the description name. The returned member prevents the deletion of
/// the group and its topic.
#[track_caller]
fn prepare_broker(http: &HttpClient, server: &Server) -> LineConnection {
    let mut worker = LineConnection::connect_client(server.address);
    let group = r#"{"topics":["new-url"],"max-attempts":1,"delay":"0"}"#;
    assert_eq!(http.send_json("PUT", "/groups/crawlers", group).status, 200);
    let urls: Vec<_> = (0..5).map(|n| format!("http://a.example/{n}")).collect();
    assert_eq!(http.post_lines("/topics/new-url", &urls.join("\n")).status, 200);
    assert_eq!(http.post_lines("/topics/new-url", "http://a.example/ every=1h").status, 200);
    worker.request("JOIN crawlers credit=2");
    for _ in 0..2 {
        let id = worker.read_line().split(' ').nth(1).unwrap().to_owned();
        worker.send(format!("NACK {id} reason=broken\n"));
        while !worker.read_line().starts_with("+OK") {}
    }
    wait_until("dead letters", || {
        (http.get("/groups/crawlers/dead").json()["matched"] == 2).then_some(())
    });
    let job = r#"{"job":"docs","urls":["http://b.example/docs/"]}"#;
    assert_eq!(http.send_json("POST", "/jobs", job).status, 200);
    worker
}

#[test]
#[ignore = "needs foreign programs"]
fn schemathesis_finds_no_failure() {
    let (_folder, config) = hook_config();
    let server = Server::start(&["broker", "--config", &config]);
    let http = HttpClient::new(&server);
    let _worker = prepare_broker(&http, &server);
    let root = env!("CARGO_MANIFEST_DIR");
    let program = format!("{root}/target/venv/bin/schemathesis");
    assert!(std::path::Path::new(&program).exists(), "tests/run --all installs schemathesis");
    let config = format!("{root}/tests/schemathesis.toml");
    let examples = env_or("TIDINGS_SCHEMATHESIS_EXAMPLES", "25");
    let mut command = Command::new(program);
    command
        .args(["--config-file", &config, "run", &format!("{}/openapi.json", http.base_url)])
        .args([
            "--exclude-path",
            "/topics/{topic}/events",
            "--exclude-path",
            "/live",
            "--max-examples",
        ])
        .arg(examples)
        // The seed is fixed, except in `.ci/long`.
        .args(["--seed", &env_or("TIDINGS_SCHEMATHESIS_SEED", "20261122")])
        .args(["--phases", "examples,coverage,fuzzing", "--generation-database", "none"])
        .args(["--suppress-health-check", "all", "--request-timeout", "20", "--no-color"])
        .current_dir(server.folder.path());
    let finished = Process::start(&mut command).finish();
    let report = finished.stdout().join("\n");
    assert_eq!(finished.code, Some(0), "{report}\n{}", finished.stderr());
    let number = |before: &str, after: &str| {
        let (_, rest) = report.split_once(before)?;
        rest.split_once(after)?.0.trim().parse::<usize>().ok()
    };
    let selected = number("Operations: ", " selected").unwrap_or_else(|| panic!("{report}"));
    assert_eq!(number("Tested: ", "\n"), Some(selected), "{report}");
    assert!(selected > 30, "{report}");
}

//! schemathesis, which generates requests from the `OpenAPI` description, finds no failure.

use std::process::Command;

use serde_json::{Value, json};

use super::openapi::hook_config;
use crate::support::http_client::HttpClient;
use crate::support::line_connection::LineConnection;
use crate::support::process::{Process, Server};
use crate::support::wait::wait_until;

/// What is generated for a pattern of the description, which may allow requests that are too long,
/// or that a setting refuses: `1000d` is a duration, and longer than a delay may be.
const GENERATED: [(&str, &str); 17] = [
    // A word, a URL, a URL pattern, and several of them.
    (r"^[^\s\x00-\x1f\x7f-\x9f]+$", r"^[^\s\x00-\x1f\x7f-\x9f]{1,100}$"),
    (r"^https?://[^\s\x00-\x1f\x7f-\x9f]+$", r"^https?://[a-z0-9]{1,20}\.example/[!-~]{0,60}$"),
    (
        r"^(/|\*|http)[^\s,\x00-\x1f\x7f-\x9f]*$",
        r"^(/|\*|https?://)[^\s,\x00-\x1f\x7f-\x9f]{0,60}$",
    ),
    (r"^(/|\*|http)[^\s\x00-\x1f\x7f-\x9f]*$", r"^(/|\*|http)[^\s\x00-\x1f\x7f-\x9f]{0,500}$"),
    (
        r"^(never|auto|always|(/|\*|http)[^\s\x00-\x1f\x7f-\x9f]*)$",
        r"^(never|auto|always|(/|\*|https?://)[^\s,\x00-\x1f\x7f-\x9f]{0,60})$",
    ),
    // Durations and sizes.
    ("^(0|[0-9]+(ms|s|m|h|d))$", "^(0|[1-9][0-9]{0,3}(ms|s))$"),
    ("^[0-9]*[1-9][0-9]*(ms|s|m|h|d)$", "^[1-9][0-9]{0,3}s$"),
    ("^(default|0|[0-9]+(ms|s|m|h|d))$", "^(default|0|[1-9][0-9]{0,3}(ms|s))$"),
    ("^[0-9]+[kmg]?$", "^[1-9][0-9]{0,2}[mg]$"),
    // Events: the lines of a body, a line, its target, the names and the values of its attributes.
    (r"^[^\x00-\x09\x0b\x0c\x0e-\x1f\x7f-\x9f]+$", r"^[ -~][\n -~]*$"),
    (r"^[^\x00-\x1f\x7f-\x9f]+$", "^[ -~]+$"),
    (
        r"^(/|[A-Za-z][A-Za-z0-9+.-]*://[^\s\x00-\x1f\x7f-\x9f])[^\s\x00-\x1f\x7f-\x9f]*$",
        r"^(https?://[a-z0-9]{1,20}\.example)?/[a-z0-9/_.-]{0,60}$",
    ),
    ("^[A-Za-z][A-Za-z0-9._-]*$", "^[a-z][a-z0-9._-]{0,20}$"),
    (r"^[^\s\x00-\x1f\x7f-\x9f]*$", "^[!-~]{0,60}$"),
    // Where a reader begins, and which events it gets.
    (
        r"^(first|last|-?[1-9][0-9]*|[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2}))$",
        "^(first|last|-?[1-9][0-9]{0,3}|20[0-9][0-9]-0[1-9]-1[0-9]T1[0-9]:[0-5][0-9]:[0-5][0-9]Z)$",
    ),
    (
        r"^[A-Za-z][A-Za-z0-9._-]*!?=[^\s\x00-\x1f\x7f-\x9f]*$",
        r"^[A-Za-z][A-Za-z0-9._-]{0,60}!?=[^\s\x00-\x1f\x7f-\x9f]{0,100}$",
    ),
    // The key of a group.
    (
        "^(host|domain|none|seq|attr:[A-Za-z][A-Za-z0-9._-]*)$",
        "^(host|domain|none|seq|attr:[A-Za-z][A-Za-z0-9._-]{0,30})$",
    ),
];

/// The description with the patterns that are generated. Each must be in it.
fn generated(description: &Value) -> Value {
    let narrow = |text: String, (whole, generated): &(&str, &str)| {
        let [whole, generated] = [whole, generated].map(|pattern| json!(pattern).to_string());
        assert!(text.contains(&whole), "no schema has the pattern {whole}");
        text.replace(&whole, &generated)
    };
    GENERATED.iter().fold(description.to_string(), narrow).parse().unwrap()
}

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
    let description = generated(&http.get("/openapi.json").json());
    let file = server.folder.path().join("generated.json");
    std::fs::write(&file, description.to_string()).unwrap();
    let examples = env_or("TIDINGS_SCHEMATHESIS_EXAMPLES", "25");
    let mut command = Command::new(program);
    command
        .args(["--config-file", &config, "run", "--url", &http.base_url])
        .arg(&file)
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

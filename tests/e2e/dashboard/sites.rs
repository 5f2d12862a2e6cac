//! What pages of other sites can make a browser do. What the browser sends by itself is let in: it
//! comes from this machine, or it has a client certificate.

use serde_json::{Value, json};
use tempfile::TempDir;

use super::Script;
use crate::support::http_client::HttpClient;
use crate::support::process::{Server, run_json_at, run_tidings};
use crate::support::tls::CertificateAuthority;

/// Name and next number of each topic.
#[track_caller]
fn topics(server: &Server, flags: &[&str]) -> Vec<(Value, Value)> {
    let listed = run_json_at(server, &[&["topic", "ls"], flags].concat());
    listed.iter().map(|topic| (topic["topic"].clone(), topic["next"].clone())).collect()
}

/// Runs the script, and checks that each way was tried and refused from each of the sites.
#[track_caller]
fn try_all_ways(sites: usize, arguments: &[&str]) {
    let said = Script::start("sites", arguments).finish();
    assert_eq!(said["tried"].as_array().unwrap().len(), sites * 18, "{said}");
    assert_eq!(said["statuses"], json!([403, 403]), "{said}");
    let text = said["text"].as_str().unwrap();
    assert!(text.contains("unknown host rebound.example"), "{said}");
}

#[test]
#[ignore = "needs foreign programs"]
fn pages_of_other_sites_change_nothing_and_learn_nothing() {
    let server = Server::start_broker();
    let http = HttpClient::new(&server);
    http.post_lines("/topics/log", "secret");
    let before = topics(&server, &[]);
    try_all_ways(3, &[&format!("{}/", http.base_url)]);
    assert_eq!(topics(&server, &[]), before);
    assert_eq!(http.events("log"), ["secret"]);
}

#[test]
#[ignore = "needs foreign programs"]
fn a_client_certificate_does_not_let_other_sites_in() {
    let folder = TempDir::new().unwrap();
    let authority = CertificateAuthority::new(folder.path(), "authority");
    authority.sign("server");
    authority.sign("alice");
    let file = |name: &str, kind: &str| authority.signed_file(name, kind);
    let words = ["token", "create", "alice", "--certificate", "alice", "--allow", "all"];
    run_tidings(folder.path(), &words).expect_code(0);
    let ca = authority.certificate_file();
    let flags = [
        ["--tls-cert", &file("server", "pem")],
        ["--tls-key", &file("server", "key")],
        ["--client-ca", &ca],
    ];
    let server = Server::start_in(folder, &[&["broker"], flags.as_flattened()].concat(), |_| ());
    let at = format!("{}/", HttpClient::new(&server).base_url);
    let (cert, key) = (file("alice", "pem"), file("alice", "key"));
    let identity = ["--ca", &ca, "--cert", &cert, "--cert-key", &key];
    let publish = [&["pub", "log", "secret", "--broker", &server.address_text()], &identity[..]];
    run_tidings(server.folder.path(), &publish.concat()).expect_code(0);
    let before = topics(&server, &identity);
    try_all_ways(2, &[&at, &cert, &key]);
    assert_eq!(topics(&server, &identity), before);
}

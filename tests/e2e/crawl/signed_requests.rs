//! A crawler with a signed identity, judged by an origin that admits only signed requests. It
//! verifies them with http-message-signatures, an independent implementation of RFC 9421.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::http_client::HttpClient;
use crate::support::nginx::{Nginx, start_tls_proxy};
use crate::support::process::{
    Process, ProcessOutput, Server, run_at, run_tidings, tidings_command,
};
use crate::support::wait::wait_until;

const DIRECTORY: &str = "/.well-known/http-message-signatures-directory";
const AGENT: &str = "--sign-agent=https://crawler.example";

fn verifier(arguments: &[&str]) -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(root.join("target/venv/bin/python"));
    command.arg(root.join("tests/e2e/support/signed_requests.py")).args(arguments);
    command
}

/// The origin behind a TLS proxy, which reads the public keys from `directory`.
struct SignedOrigin {
    process: Process,
    _nginx: Nginx,
    port: u16,
    certificate: PathBuf,
}

impl SignedOrigin {
    #[track_caller]
    fn start(directory: &str) -> Self {
        let process = Process::start(&mut verifier(&["serve", directory]));
        let to = process.wait_for_line("port", |line| line.strip_prefix("port ")?.parse().ok());
        let (nginx, port, certificate) = start_tls_proxy(to);
        Self { process, _nginx: nginx, port, certificate }
    }

    /// Crawls the whole origin in a new folder.
    #[track_caller]
    fn crawl(&self, flags: &[&str]) -> ProcessOutput {
        let folder = TempDir::new().unwrap();
        let url = format!("https://localhost:{}/", self.port);
        let arguments = [&["crawl", &url, "--allow-private"], flags].concat();
        let mut command = tidings_command(folder.path(), arguments);
        command.env("SSL_CERT_FILE", &self.certificate);
        Process::start(&mut command).finish()
    }

    /// What the origin says about all requests so far.
    fn requests(&self) -> Vec<Value> {
        let mut seen = Vec::new();
        self.process.find_line(|line| {
            seen.extend(line.starts_with('{').then(|| serde_json::from_str(line).unwrap()));
            None::<()>
        });
        seen
    }
}

/// The ids of the keys in a directory.
fn key_ids(directory: &str) -> Vec<Value> {
    let directory: Value = serde_json::from_str(directory).unwrap();
    directory["keys"].as_array().unwrap().iter().map(|key| key["kid"].clone()).collect()
}

#[test]
#[ignore = "needs foreign programs"]
fn an_origin_verifies_every_request_of_a_signed_crawl() {
    let folder = TempDir::new().unwrap();
    run_tidings(folder.path(), &["identity", "create", "crawler.jwks"]).expect_code(0);
    let file = folder.path().join("crawler.jwks").display().to_string();
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let shown = run_tidings(folder.path(), &["identity", "show", &file, "--json"]).expect_code(0);
    let key: Value = serde_json::from_str(&shown.stdout()[0]).unwrap();
    assert_eq!(key["signs"], true);
    let public = run_tidings(folder.path(), &["identity", "directory", &file]).expect_code(0);
    let directory = folder.path().join("directory.json").display().to_string();
    fs::write(&directory, public.stdout().join("\n")).unwrap();

    let origin = SignedOrigin::start(&directory);
    origin.crawl(&["--sign-key", &file, AGENT]).expect_code(0);
    let requests = origin.requests();
    let mut paths: Vec<_> = requests.iter().map(|seen| seen["path"].as_str().unwrap()).collect();
    paths.sort_unstable();
    let pages = ["/", "/0?n=0", "/1?n=1", "/2?n=2", "/3?n=3", "/4?n=4", "/5?n=5", "/moved"];
    assert_eq!(paths, [&pages[..], &["/robots.txt", "/target?a=b&c=%C3%A9"]].concat());
    for seen in &requests {
        assert_eq!(seen["key"], key["id"], "{seen}");
        assert_eq!(seen["agent"], "sig1=\"https://crawler.example\"");
    }

    // The origin refuses a crawler without keys, and one with keys that it does not know.
    origin.crawl(&[]).expect_code(1);
    run_tidings(folder.path(), &["identity", "create", "other.jwks"]).expect_code(0);
    let other = folder.path().join("other.jwks").display().to_string();
    origin.crawl(&["--sign-key", &other, AGENT]).expect_code(1);
    let refused = &origin.requests()[requests.len()..];
    assert!(!refused.is_empty() && refused.iter().all(|seen| seen["key"].is_null()), "{refused:?}");
}

#[test]
#[ignore = "needs foreign programs"]
fn callbacks_are_signed() {
    let folder = TempDir::new().unwrap();
    run_tidings(folder.path(), &["identity", "create", "crawler.jwks"]).expect_code(0);
    let file = folder.path().join("crawler.jwks").display().to_string();
    let origin = SignedOrigin::start(&file);
    let arguments = ["up", "--allow-private", "--sign-key", &file, AGENT];
    let certificate = origin.certificate.clone();
    let server = Server::start_with(&arguments, |up| {
        up.env("SSL_CERT_FILE", &certificate);
    });
    let callback = format!("callback=https://localhost:{}/called?id=1", origin.port);
    run_at(&server, &["job", "open", "docs", &callback]).expect_code(0);
    run_at(&server, &["job", "close", "docs"]).expect_code(0);
    let seen = wait_until("the callback", || origin.requests().pop());
    assert_eq!(seen["path"], "/called?id=1");
    assert_eq!([seen["key"].clone()].as_slice(), key_ids(&fs::read_to_string(&file).unwrap()));
}

#[test]
#[ignore = "needs foreign programs"]
fn a_running_crawler_takes_up_a_key_that_replaces_a_stolen_one() {
    let folder = TempDir::new().unwrap();
    run_tidings(folder.path(), &["identity", "create", "crawler.jwks"]).expect_code(0);
    let file = folder.path().join("crawler.jwks").display().to_string();
    // The origin knows a changed directory at once.
    let origin = SignedOrigin::start(&file);
    let certificate = origin.certificate.clone();
    let arguments = ["up", "--allow-private", "--delay=0", "--sign-key", &file, AGENT];
    let server = Server::start_with(&arguments, |up| {
        up.env("SSL_CERT_FILE", &certificate);
    });
    let url = format!("https://localhost:{}/0 every=100ms", origin.port);
    run_at(&server, &["pub", "new-url", &url]).expect_code(0);
    let wait_for_requests = |key: &Value, first: usize| {
        wait_until("two requests", || {
            let seen = origin.requests();
            let signed = |(at, seen): &(usize, &Value)| *at >= first && seen["key"] == *key;
            let at = seen.iter().enumerate().filter(signed).nth(1)?.0;
            Some(at)
        })
    };
    let key_id = || key_ids(&fs::read_to_string(&file).unwrap()).remove(0);
    let stolen = key_id();
    let last = wait_for_requests(&stolen, 0);
    run_tidings(folder.path(), &["identity", "rotate", "--now", &file]).expect_code(0);
    let first = wait_for_requests(&key_id(), last);
    wait_for_requests(&key_id(), first);
    let later = &origin.requests()[first..];
    assert!(later.iter().all(|seen| seen["key"] == key_id()), "{later:?}");
}

#[test]
#[ignore = "needs foreign programs"]
fn a_broker_publishes_the_keys_and_follows_a_rotation() {
    let folder = TempDir::new().unwrap();
    let identity = |words: &[&str]| run_tidings(folder.path(), &[&["identity"], words].concat());
    identity(&["create", "crawler.jwks"]).expect_code(0);
    let file = folder.path().join("crawler.jwks").display().to_string();
    let server = Server::start(&["broker", "--sign-key", &file, AGENT]);
    let http = HttpClient::new(&server);
    let verified = || {
        let got = http.get(DIRECTORY);
        assert_eq!(got.status, 200);
        assert_eq!(got.header("cache-control"), Some("max-age=3600"));
        let media_type = "application/http-message-signatures-directory+json";
        assert_eq!(got.header("content-type"), Some(media_type));
        assert!(!got.body.contains("\"d\""), "no private part");
        let paths = ["head", "body"].map(|name| folder.path().join(name));
        fs::write(&paths[0], got.head.join("\n")).unwrap();
        fs::write(&paths[1], &got.body).unwrap();
        let [head, body] = paths.map(|path| path.display().to_string());
        let words = ["directory", "crawler.example", &head, &body];
        let ids = Process::start(&mut verifier(&words)).finish().expect_code(0);
        let ids: Vec<Value> = serde_json::from_str(&ids.stdout()[0]).unwrap();
        assert_eq!(ids, key_ids(&got.body), "each key signs");
        let words = ["directory", "elsewhere.example", &head, &body];
        Process::start(&mut verifier(&words)).finish().expect_code(1);
        ids
    };
    let first = verified();
    assert_eq!(first.len(), 1);
    identity(&["rotate", "crawler.jwks"]).expect_code(0);
    wait_until("the new key to be published", || (verified().len() == 2).then_some(()));
    let published = verified();
    assert_eq!(published[1], first[0]);
    assert_eq!(http.request("POST", DIRECTORY, &["--data", "x"]).status, 404);
    // The new key does not wait, and both others are dropped.
    identity(&["rotate", "--now", "crawler.jwks"]).expect_code(0).expect_stderr("warning: sites");
    let replaced = wait_until("one key", || Some(verified()).filter(|ids| ids.len() == 1));
    assert!(!published.contains(&replaced[0]), "{replaced:?} {published:?}");
    // A broken file changes nothing.
    fs::write(&file, "{").unwrap();
    server.process.wait_for_line_with("stay as they are");
    assert_eq!(verified(), replaced);
}

#[test]
fn mistakes_about_an_identity_are_explained() {
    let folder = TempDir::new().unwrap();
    let run = |words: &[&str]| run_tidings(folder.path(), words);
    run(&["identity", "create", "a.jwks"]).expect_code(0);
    let before = fs::read(folder.path().join("a.jwks")).unwrap();
    let again = run(&["identity", "create", "a.jwks"]).expect_code(1).stderr();
    assert!(again.contains("a.jwks: File exists"), "{again}");
    assert_eq!(fs::read(folder.path().join("a.jwks")).unwrap(), before);
    run(&["identity", "rotate", "a.jwks"]).expect_code(0);
    run(&["identity", "rotate", "a.jwks"]).expect_code(1).expect_stderr("rotate again after that");
    let example = json!({ "keys": [{
        "kty": "OKP", "crv": "Ed25519", "nbf": 0, "exp": 4_889_289_600_u64,
        "d": "n4Ni-HpISpVObnQMW0wOhCKROaIKqKtW_2ZYb2p9KcU",
        "x": "JrQLj5P_89iXES9-vFgrIy29clF9CC_oPPsw3c5D0bs",
    }]});
    fs::write(folder.path().join("example.jwks"), example.to_string()).unwrap();
    for (words, part) in [
        (&["--sign-key", "none.jwks"][..], "--sign-key: cannot read none.jwks: No such file"),
        (&["--sign-key", "example.jwks"], "is an example of a specification"),
        (&["--sign-key", "a.jwks", "--sign-agent", "http://a.example"], "https://crawler.example"),
        (&["--sign-agent", "https://a.example"], "--sign-key"),
    ] {
        let words = [&["crawl", "http://127.0.0.1:9/"], words].concat();
        run(&words).expect_code(2).expect_stderr(part);
    }
}

//! Clients that foreign generators make of the description of HTTP publish, read, open a job and
//! wait for it.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::support::http_client::HttpClient;
use crate::support::origin::{Origin, Site};
use crate::support::process::{Process, Server};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

// PROTOCOL: H1
#[test]
#[ignore = "needs foreign programs"]
fn a_client_by_openapi_python_client_crawls() {
    let bin = Path::new(ROOT).join("target/venv/bin");
    let broker = Broker::start();
    let folder = TempDir::new().unwrap();
    broker.write_description(folder.path());
    // The generator would format its client with a program that need not be there.
    fs::write(folder.path().join("config.yaml"), "post_hooks: []\n").unwrap();
    let words = "generate --path openapi.json --config config.yaml --output-path client";
    run(folder.path(), bin.join("openapi-python-client"), words.split(' '));
    let client = folder.path().join("client");
    fs::write(client.join("client.py"), include_str!("client.py")).unwrap();
    run(&client, bin.join("python"), ["client.py", &broker.url, &broker.page]);
}

// PROTOCOL: H1
#[test]
#[ignore = "needs foreign programs"]
fn a_client_by_openapi_typescript_crawls() {
    let broker = Broker::start();
    let folder = TempDir::new().unwrap();
    broker.write_description(folder.path());
    let modules = folder.path().join("node_modules");
    symlink(Path::new(ROOT).join("target/node/node_modules"), &modules).unwrap();
    let bin = modules.join(".bin");
    run(folder.path(), bin.join("openapi-typescript"), ["openapi.json", "--output", "api.d.ts"]);
    fs::write(folder.path().join("client.mts"), include_str!("client.mts")).unwrap();
    let words = "--strict --module nodenext --target es2022 --types node --skipLibCheck client.mts";
    run(folder.path(), bin.join("tsc"), words.split(' '));
    run(folder.path(), "node", ["client.mjs", &broker.url, &broker.page]);
}

/// A broker with a crawler, and a page for it.
struct Broker {
    server: Server,
    url: String,
    page: String,
    _origin: Origin,
}

impl Broker {
    #[track_caller]
    fn start() -> Self {
        let origin = Origin::serve(Site::default());
        let server = Server::start_up(&["--allow-private"]);
        let url = format!("http://{}", HttpClient::new(&server).authority());
        Self { server, url, page: origin.url(0, "/p/0"), _origin: origin }
    }

    /// Writes the description that the broker serves.
    #[track_caller]
    fn write_description(&self, folder: &Path) {
        let description = HttpClient::new(&self.server).get("/openapi.json").json();
        fs::write(folder.join("openapi.json"), description.to_string()).unwrap();
    }
}

#[track_caller]
fn run<S: AsRef<OsStr>>(
    folder: &Path,
    program: impl AsRef<OsStr>,
    words: impl IntoIterator<Item = S>,
) {
    let mut command = Command::new(program);
    Process::start(command.args(words).current_dir(folder)).finish().expect_code(0);
}

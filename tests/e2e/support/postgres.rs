//! A real `PostgreSQL` server for one test, in a temporary folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::ports::free_port;
use super::wait::wait_until;

/// A running server; it stops when dropped.
#[derive(Debug)]
pub(crate) struct Postgres {
    folder: TempDir,
    port: u16,
}

impl Postgres {
    /// Creates a database cluster without syncs and starts its server.
    #[track_caller]
    pub(crate) fn start() -> Self {
        let folder = TempDir::new().unwrap();
        let port = free_port();
        // The server refuses to run as root.
        let owned = Command::new("chown").arg("postgres").arg(folder.path()).status().unwrap();
        assert!(
            owned.success(),
            "chown to the user postgres failed; run the tests with tests/run --all, which installs the server"
        );
        let server = Self { folder, port };
        server.run_program(
            "initdb",
            &["--auth=trust", "--no-sync", "--username=tidings", "--pgdata"],
        );
        server.start_server();
        server
    }

    /// Starts the server and waits until it accepts queries.
    #[track_caller]
    pub(crate) fn start_server(&self) {
        let options = format!("-p {} -k {} -c fsync=off", self.port, self.folder.path().display());
        let log = self.folder.path().join("log").display().to_string();
        self.run_program(
            "pg_ctl",
            &["--wait", "--silent", "--options", &options, "--log", &log, "start", "--pgdata"],
        );
        wait_until("the server to accept queries", || {
            (!self.query("select 1").is_empty()).then_some(())
        });
    }

    /// Stops the server immediately, as a crash would.
    #[track_caller]
    pub(crate) fn crash(&self) {
        self.run_program("pg_ctl", &["--silent", "--mode=immediate", "stop", "--pgdata"]);
    }

    /// The URL for `--postgres`.
    pub(crate) fn url(&self) -> String {
        format!("postgres://tidings@127.0.0.1:{}/postgres", self.port)
    }

    /// The rows that psql prints; none if psql fails.
    pub(crate) fn query(&self, sql: &str) -> Vec<String> {
        let flags = ["--no-psqlrc", "--tuples-only", "--no-align", "--command", sql, &self.url()];
        let output =
            Command::new(program_path("psql")).args(flags).stderr(Stdio::null()).output().unwrap();
        String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
    }

    /// Runs one of the server's programs as its user, with the cluster's folder as last argument.
    #[track_caller]
    fn run_program(&self, name: &str, arguments: &[&str]) {
        let status = Command::new("runuser")
            .args(["--user", "postgres", "--"])
            .arg(program_path(name))
            .args(arguments)
            .arg(self.folder.path().join("cluster"))
            .current_dir(self.folder.path())
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert!(status.success(), "{name} failed");
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let stop = Command::new("runuser")
            .args(["--user", "postgres", "--"])
            .arg(program_path("pg_ctl"))
            .args(["--silent", "--mode=immediate", "stop", "--pgdata"])
            .arg(self.folder.path().join("cluster"))
            .stderr(Stdio::null())
            .status();
        drop(stop);
    }
}

/// Debian keeps the programs of each version in a separate folder.
#[track_caller]
fn program_path(name: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let found =
        versions.map(|version| version.path().join("bin").join(name)).find(|path| path.exists());
    found.unwrap_or_else(|| Path::new(name).to_owned())
}

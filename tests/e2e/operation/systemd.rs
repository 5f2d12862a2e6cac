//! Service managers: the privileges of the unit, passed sockets, and notifications.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::support::line_connection::LineConnection;
use crate::support::process::{Process, tidings_command};

fn packaging_file(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging").join(file)
}

#[test]
#[ignore = "needs foreign programs"]
fn the_systemd_unit_drops_unneeded_privileges() {
    // Chromium's sandbox needs namespaces, mounts and memory that is writable and executable.
    for (unit, exposure_max) in [("tidings.service", 2.0), ("tidings-crawler.service", 3.5)] {
        let checked = Command::new("systemd-analyze")
            .args(["security", "--offline=true", "--no-pager"])
            .arg(packaging_file(unit))
            .output()
            .unwrap();
        let report = String::from_utf8_lossy(&checked.stdout);
        let overall = report.lines().find(|line| line.contains("Overall exposure level")).unwrap();
        let level = overall.split(": ").nth(1).unwrap().split_whitespace().next().unwrap();
        assert!(level.parse::<f64>().unwrap() <= exposure_max, "{report}");
    }
}

#[test]
#[ignore = "needs foreign programs"]
fn systemd_and_tidings_accept_the_units() {
    let folder = TempDir::new().unwrap();
    let units =
        ["tidings.service", "tidings-crawler.service", "tidings.socket", "tidings-http.socket"];
    for unit in units {
        let text = fs::read_to_string(packaging_file(unit)).unwrap();
        let command = text.lines().find_map(|line| line.strip_prefix("ExecStart="));
        let mut words = command.into_iter().flat_map(str::split_whitespace);
        // The program of the unit is replaced, because nothing is installed here.
        let text = match words.next() {
            Some(program) => {
                let mut help = tidings_command(folder.path(), words.chain(["--help"]));
                Process::start(&mut help).finish().expect_code(0);
                text.replace(&format!("ExecStart={program}"), "ExecStart=/bin/true")
            }
            None => text,
        };
        fs::write(folder.path().join(unit), text).unwrap();
    }
    let mut verify = Command::new("systemd-analyze");
    verify.arg("verify").args(units.map(|unit| folder.path().join(unit)));
    let output = verify.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    let own_lines: Vec<_> = stderr.lines().filter(|line| line.contains("tidings")).collect();
    assert!(own_lines.is_empty(), "{stderr}");
}

/// A service manager that runs the program.
struct ServiceManager {
    process: Process,
    sockets: Vec<SocketAddr>,
}

impl ServiceManager {
    #[track_caller]
    fn start(folder: &Path, names: &str, arguments: &[&str]) -> Self {
        Self::start_at("127.0.0.1", folder, names, arguments)
    }

    #[track_caller]
    fn start_at(host: &str, folder: &Path, names: &str, arguments: &[&str]) -> Self {
        let program = tidings_command(folder, arguments);
        let script =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/support/service_manager.py");
        let mut python = Command::new("python3");
        // The watchdog interval is a fifth of a second.
        python.arg(script).args(["200000", names]).arg(program.get_program());
        python.args(program.get_args()).current_dir(folder).env_remove("TIDINGS_HTTP");
        python.env("MANAGER_HOST", host);
        let process = Process::start(&mut python);
        let sockets = names.split(',').map(|name| {
            let line = process.wait_for_line_with(&format!("socket {name} "));
            line.rsplit(' ').next().unwrap().parse().unwrap()
        });
        let sockets = sockets.collect();
        Self { process, sockets }
    }
}

#[test]
#[ignore = "needs foreign programs"]
fn tidings_uses_passed_sockets_and_notifies_systemd() {
    for subcommand in ["broker", "up"] {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("c.toml"), "log = 'info'\n").unwrap();
        let arguments = [subcommand, "--config", "c.toml"];
        let mut manager = ServiceManager::start(folder.path(), "line,http", &arguments);
        manager.process.wait_for_line_with("READY=1");
        let mut client = LineConnection::connect_client(manager.sockets[0]);
        client.request_ok("PUB t x");
        let health = format!("http://{}/health", manager.sockets[1]);
        let curl = Command::new("curl").args(["-sSf", &health]).status().unwrap();
        assert!(curl.success());
        manager.process.wait_for_line_with("WATCHDOG=1");
        manager.process.write("HUP\n");
        manager.process.wait_for_line_with("RELOADING=1");
        manager.process.wait_for_line_with("MONOTONIC_USEC=");
        manager.process.wait_for_line_with("configuration reloaded");
        client.request_ok("PUB t x");
        manager.process.write("TERM\n");
        manager.process.wait_for_line_with("STOPPING=1");
        manager.process.wait_for_line_with("exit 0");
        let lines = manager.process.finish().expect_code(0).stdout();
        let ready = lines.iter().filter(|line| *line == "READY=1").count();
        assert_eq!(ready, 2, "one at the start and one after RELOADING: {lines:#?}");
        let at = |word: &str| lines.iter().position(|line| line == word).unwrap();
        assert!(
            at("READY=1") < at("RELOADING=1") && at("RELOADING=1") < at("STOPPING=1"),
            "{lines:#?}"
        );
    }
}

#[test]
#[ignore = "needs foreign programs"]
fn a_passed_public_socket_is_rejected_whatever_the_flags_are() {
    for subcommand in ["broker", "up"] {
        let folder = TempDir::new().unwrap();
        let arguments = [subcommand, "--listen", "127.0.0.1:0", "--http", "off"];
        let manager = ServiceManager::start_at("0.0.0.0", folder.path(), "line", &arguments);
        let line = manager.process.wait_for_line_with("is open to other machines");
        assert!(line.contains("tidings token create"), "{line}");
        manager.process.wait_for_line_with("exit 2");
    }
}

#[test]
#[ignore = "needs foreign programs"]
fn one_passed_socket_is_enough_and_unknown_names_are_rejected() {
    let folder = TempDir::new().unwrap();
    let arguments = ["broker", "--http", "off"];
    let mut manager = ServiceManager::start(folder.path(), "line", &arguments);
    manager.process.wait_for_line_with("READY=1");
    LineConnection::connect_client(manager.sockets[0]).request_ok("PUB t x");
    manager.process.write("TERM\n");
    manager.process.wait_for_line_with("exit 0");

    for (names, arguments, reason) in [
        ("telnet", &["broker"][..], "line or http"),
        ("line,line", &["broker"], "another passed socket has this name"),
        ("http", &["broker", "--http", "off"], "--http off"),
    ] {
        let manager = ServiceManager::start(folder.path(), names, arguments);
        manager.process.wait_for_line_with(reason);
        manager.process.wait_for_line_with("exit 2");
    }
}

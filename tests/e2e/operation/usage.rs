//! Mistakes on the command line and in the configuration: one line that says what to do, and exit
//! code 2.

use std::fs;

use tempfile::TempDir;

use crate::support::process::{Server, run_tidings};

#[test]
fn an_invalid_flag_is_one_line_and_exit_code_2() {
    let folder = TempDir::new().unwrap();
    for arguments in [
        &["up", "--no-such-flag"][..],
        &["no-such-subcommand"],
        &["up", "--allow-private=everything"],
        &["crawl", "http://a.example/", "--bodies", "--jsonl", "pages.jsonl"],
        &["sub", "t", "--from", "yesterday"],
        &["group", "set", "crawlers", "delay=soon"],
        &["group", "tasks", "--key", "a state=dead"],
        &["job", "failed", "j", "--reason", "dns,"],
    ] {
        let output = run_tidings(folder.path(), arguments);
        assert_eq!(output.code, Some(2), "{arguments:?}: {output:#?}");
        assert!(output.stdout().is_empty(), "{arguments:?}: {output:#?}");
        assert_eq!(output.stderr().lines().count(), 1, "{arguments:?}: {output:#?}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was started");
}

#[test]
fn help_and_version_exit_with_code_0() {
    let folder = TempDir::new().unwrap();
    for arguments in [&["--help"][..], &["crawl", "--help"], &["--version"]] {
        let output = run_tidings(folder.path(), arguments).expect_code(0);
        assert!(!output.stdout().is_empty() && output.stderr().is_empty(), "{output:#?}");
    }
}

#[test]
fn list_is_an_alias_of_ls() {
    let folder = TempDir::new().unwrap();
    for subcommand in ["topic", "group", "job", "dead", "host"] {
        let [short, long] = ["ls", "list"]
            .map(|action| run_tidings(folder.path(), &[subcommand, action, "--help"]));
        assert_eq!((long.code, long.stdout()), (Some(0), short.stdout()), "{subcommand}");
    }
}

#[test]
fn flags_without_effect_are_rejected() {
    let server = Server::start_broker();
    let folder = TempDir::new().unwrap();
    let broker = server.address_text();
    for arguments in [
        &["crawl", "--broker", &broker, "--depth", "2"][..],
        &["crawl", "http://127.0.0.1/", "--broker", &broker, "--delay", "1s"],
    ] {
        let output = run_tidings(folder.path(), arguments).expect_code(2);
        assert!(output.stderr().contains(arguments[arguments.len() - 2]), "{}", output.stderr());
    }
}

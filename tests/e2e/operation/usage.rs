//! Mistakes on the command line and in the configuration: one line that says what to do, and exit
//! code 2.

use std::fs;

use tempfile::TempDir;

use crate::support::origin::{Origin, Site};
use crate::support::process::{Server, run_tidings};

#[test]
fn an_invalid_flag_is_one_line_and_exit_code_2() {
    let folder = TempDir::new().unwrap();
    let invalid: [&[&str]; 25] = [
        &["up", "--no-such-flag"],
        &["no-such-subcommand"],
        &["up", "--listen", "nowhere:x"],
        &["up", "--listen", "127.0.0.1:70000"],
        &["up", "--allow-private=everything"],
        &["crawl"],
        &["crawl", "not a url"],
        &["crawl", "ftp://a.example/"],
        &["crawl", "http://a.example/", "--delay", "soon"],
        &["crawl", "http://a.example/", "--scope", "galaxy"],
        &["crawl", "http://a.example/", "--bodies", "--jsonl", "pages.jsonl"],
        &["pub", "bad/topic", "x"],
        &["sub", "t", "--from", "yesterday"],
        &["group", "set", "crawlers", "delay=soon"],
        &["group", "set", "crawlers"],
        &["job", "open", "j", "scope=galaxy"],
        &["job", "add", "j", "not-a-url"],
        &["explain", "two words"],
        &["group", "tasks", "--key", "a state=dead"],
        &["group", "bump", "--key", "", "--prio", "1"],
        &["group", "drain", "crawlers", ""],
        &["job", "failed", "j", "--reason", "dns,"],
        &["dead", "retry", "--key", ""],
        &["host", "block", "-"],
        &["dead", "drop"],
    ];
    for arguments in invalid {
        let output = run_tidings(folder.path(), arguments);
        assert_eq!(output.code, Some(2), "{arguments:?}: {output:#?}");
        assert!(output.stdout().is_empty(), "{arguments:?}: {output:#?}");
        assert_eq!(output.stderr().lines().count(), 1, "{arguments:?}: {output:#?}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was started");
}

#[test]
fn an_unknown_configuration_key_is_rejected_with_its_position() {
    let folder = TempDir::new().unwrap();
    let cases = [
        ("listen = \"127.0.0.1:0\"\nlissen = 1\n", "tidings.toml:2:1", "lissen"),
        ("[crawl]\nmax-pages = 1\ncolour = \"blue\"\n", "tidings.toml:3:1", "colour"),
        ("[crwl]\nmax-pages = 1\n", "tidings.toml:1:2", "crwl"),
        ("listen = \n", "tidings.toml:1:", ""),
        ("delay = \"soon\"\n", "tidings.toml:1:", "delay"),
    ];
    for (text, position, name) in cases {
        fs::write(folder.path().join("tidings.toml"), text).unwrap();
        let output = run_tidings(folder.path(), &["up", "--config", "tidings.toml"]).expect_code(2);
        let stderr = output.stderr();
        assert!(stderr.contains(position) && stderr.contains(name), "{text:?}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
}

#[test]
fn flags_override_the_environment_and_the_file() {
    let origin = Origin::serve(Site { pages: 20, ..Site::default() });
    let fetched = |file: &str, environment: Option<&str>, flags: &[&str]| {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("c.toml"), file).unwrap();
        let url = origin.url(0, "/p/0");
        let arguments = [&["crawl", &url, "--config", "c.toml"], flags].concat();
        let mut command = crate::support::process::tidings_command(folder.path(), arguments);
        if let Some(value) = environment {
            command.env("TIDINGS_MAX_PAGES", value);
        }
        let before = origin.request_log().paths().len();
        crate::support::process::Process::start(&mut command).finish().expect_code(0);
        origin.request_log().paths().len() - before
    };
    let file = "allow-private = true\n[crawl]\nmax-pages = 3\n";
    assert_eq!(fetched(file, None, &[]), 3);
    assert_eq!(fetched(file, Some("5"), &[]), 5);
    assert_eq!(fetched(file, Some("5"), &["--max-pages", "7"]), 7);
}

#[test]
fn the_configuration_applies_to_every_subcommand_with_the_flag() {
    let server = Server::start_broker();
    let folder = TempDir::new().unwrap();
    let file = format!("broker = \"{}\"\nmax-pages = 3\n", server.address_text());
    fs::write(folder.path().join("c.toml"), file).unwrap();
    run_tidings(folder.path(), &["pub", "t", "x", "--config", "c.toml"]).expect_code(0);
    let output = run_tidings(
        folder.path(),
        &["sub", "t", "--from", "first", "--count", "1", "--config", "c.toml"],
    );
    assert_eq!(output.expect_code(0).stdout(), ["x"]);
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

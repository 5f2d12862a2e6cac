//! `tidings top` on the terminal of a detached tmux, which answers what a program asks a terminal.

use std::fs;
use std::process::Command;

use serde_json::json;

use crate::queue::groups::wait_for_waiting_entries;
use crate::support::line_connection::LineConnection;
use crate::support::process::{Server, run_at, run_json_at, tidings_command};
use crate::support::wait::wait_until;

/// A tmux server with one shell of 80 x 24.
struct Tmux<'a> {
    server: &'a Server,
}

impl<'a> Tmux<'a> {
    #[track_caller]
    fn start(server: &'a Server) -> Self {
        let tmux = Self { server };
        tmux.run(&["-f/dev/null", "new-session", "-d", "-x", "80", "-y", "24", "sh"]);
        tmux
    }

    #[track_caller]
    fn run(&self, words: &[&str]) -> String {
        let output = self.command(words).output().unwrap();
        assert!(output.status.success(), "tmux {words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn command(&self, words: &[&str]) -> Command {
        let folder = self.server.folder.path();
        // The shell gets the environment of the tested program.
        let mut command = Command::new("tmux");
        command.arg("-S").arg(folder.join("tmux")).args(words).current_dir(folder);
        for (name, value) in tidings_command(folder, [""; 0]).get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.env_remove("TMUX").env("PS1", "$ ");
        command
    }

    /// Presses keys, by the names that tmux has for them.
    fn press(&self, keys: &[&str]) {
        self.run(&[&["send-keys"], keys].concat());
    }

    /// Types a line on an empty screen.
    fn enter(&self, line: &str) {
        // Resets the screen at once.
        self.press(&["-R"]);
        self.run(&["send-keys", "-l", line]);
        self.press(&["Enter"]);
    }

    /// Starts `tidings top` with words before and after it. The id of its process is in `pid`.
    fn start_top(&self, before: &str, after: &str) {
        let (program, broker) = (env!("CARGO_BIN_EXE_tidings"), self.server.address);
        let top = format!("{before} exec {program} top --every 100ms --broker {broker} {after}");
        self.enter(&format!("sh -c 'echo $$ > pid; {top}'; echo code $?"));
    }

    #[track_caller]
    fn wait_for(&self, text: &str) -> String {
        wait_until(text, || {
            Some(self.run(&["capture-pane", "-p"])).filter(|screen| screen.contains(text))
        })
    }

    /// The settings of the terminal, as the shell sees them.
    #[track_caller]
    fn settings(&self) -> String {
        let file = self.server.folder.path().join("settings");
        let _ = fs::remove_file(&file);
        self.enter("stty -a > new; mv new settings");
        wait_until("the settings of the terminal", || fs::read_to_string(&file).ok())
    }
}

impl Drop for Tmux<'_> {
    fn drop(&mut self) {
        // A panic here would end the process of all tests.
        let _ = self.command(&["kill-server"]).output();
    }
}

#[test]
#[ignore = "needs foreign programs"]
fn top_shows_the_numbers_of_the_broker_and_restores_the_terminal() {
    let server = Server::start_broker();
    let mut client = LineConnection::connect_client(server.address);
    for page in 0..37 {
        client.request_ok(&format!("PUB new-url http://a.example/{page}"));
    }
    wait_for_waiting_entries(&server, 37);
    let tmux = Tmux::start(&server);
    let before = tmux.settings();
    for end in ["q", "C-c", "TERM"] {
        tmux.start_top("", "");
        let screen = tmux.wait_for("[overview]");
        let row = screen.lines().find(|line| line.starts_with("crawlers ")).unwrap();
        let waiting = run_json_at(&server, &["group", "show"])[0]["waiting"].to_string();
        assert_eq!(row.split_whitespace().nth(2), Some(waiting.as_str()), "{screen}");
        if end == "TERM" {
            let id = fs::read_to_string(server.folder.path().join("pid")).unwrap();
            assert!(Command::new("kill").args(["-TERM", id.trim()]).status().unwrap().success());
        } else {
            tmux.press(&[end]);
        }
        let screen = tmux.wait_for("code 0");
        assert!(!screen.contains("[overview]"), "{screen}");
        assert_eq!(tmux.settings(), before, "after {end}");
    }

    // The size changes while a group is open.
    tmux.start_top("", "");
    tmux.wait_for("[overview]");
    tmux.press(&["Enter"]);
    tmux.wait_for("a.example");
    for (width, height) in [("40", "10"), ("200", "60"), ("10", "3"), ("80", "24")] {
        tmux.run(&["resize-window", "-x", width, "-y", height]);
    }
    tmux.wait_for("[groups] crawlers");
    tmux.press(&["p"]);
    tmux.wait_for("pause group crawlers? [y/N]");
    tmux.press(&["y"]);
    tmux.wait_for("group-paused");
    assert_eq!(run_json_at(&server, &["group", "show"])[0]["paused"], "yes");

    tmux.press(&["Right", "Right", "/", "n", "e", "w", "-", "Enter"]);
    tmux.wait_for("filter: new-");
    tmux.press(&["Enter"]);
    tmux.wait_for("37  http://a.example/36");
    client.request_ok("PUB new-url http://b.example/");
    tmux.wait_for("38  http://b.example/");

    // The broker goes.
    server.process.signal("KILL");
    let screen = tmux.wait_for("code 1");
    assert!(screen.contains("tidings: "), "{screen}");
    assert_eq!(tmux.settings(), before, "after the end of the broker");
}

#[test]
#[ignore = "needs foreign programs"]
fn once_prints_text_and_an_object() {
    let server = Server::start_broker();
    let mut client = LineConnection::connect_client(server.address);
    client.request_ok("JOB open docs");
    let text = run_at(&server, &["top", "--once"]).expect_code(0).stdout();
    assert_eq!(text[0], "All is well.");
    assert!(text.iter().any(|line| line.starts_with("crawlers  docs ")), "{text:#?}");
    assert!(text.iter().any(|line| line.starts_with("new-url ")), "{text:#?}");
    let object = &run_json_at(&server, &["top", "--once"])[0];
    assert_eq!((&object["jobs"][0]["job"], &object["well"]), (&json!("docs"), &json!(true)));
    assert_eq!(object["jobs"][0]["group"], json!("crawlers"));
    for page in ["http://a.example/1", "http://a.example/2", "http://b.example/"] {
        client.request_ok(&format!("PUB new-url {page}"));
    }
    wait_for_waiting_entries(&server, 3);
    let hosts = &run_json_at(&server, &["top", "--once"])[0]["hosts"];
    let mut keys = run_json_at(&server, &["group", "keys"]);
    assert_eq!((&keys[0]["key"], &keys[0]["waiting"]), (&json!("a.example"), &json!(2)));
    for (host, key) in hosts.as_array().unwrap().iter().zip(&mut keys) {
        key["group"] = json!("crawlers");
        key["text"] = host["text"].clone();
        assert!(host["text"].as_str().unwrap().contains("no worker takes tasks"), "{host}");
    }
    assert_eq!(hosts, &json!(keys));
}

#[test]
#[ignore = "needs foreign programs"]
fn what_cannot_be_shown_is_refused_in_one_line() {
    let server = Server::start_broker();
    for (flags, expected) in [
        (&["--every", "1s"][..], "top needs a terminal"),
        (&["--every", "1ms"], "expected 100ms to 1h"),
        (&["--json"], "--once"),
    ] {
        let refused = run_at(&server, &[&["top"], flags].concat()).expect_code(2);
        assert!(refused.stdout().is_empty(), "{refused:?}");
        let text = refused.stderr();
        assert!(text.contains(expected) && text.lines().count() == 1, "{text}");
    }
    let tmux = Tmux::start(&server);
    let before = tmux.settings();
    for (before, after, expected) in [
        ("", "> out", "top needs a terminal"),
        ("TERM=dumb", "", "top needs a terminal"),
        ("stty cols 10 rows 3;", "", "top needs a larger terminal"),
    ] {
        tmux.start_top(before, after);
        let screen = tmux.wait_for("code 2");
        assert!(screen.contains(expected) && screen.contains("top --once"), "{screen}");
        tmux.enter("stty cols 80 rows 24");
    }
    assert_eq!(tmux.settings(), before);
}

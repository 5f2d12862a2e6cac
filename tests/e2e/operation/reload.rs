//! SIGHUP: the configuration is read again, and nobody who is connected notices more than what has
//! changed.

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;

use crate::support::process::Server;
use crate::support::talk::Talk;
use crate::support::wait::until;

/// A server with a configuration file, and a connection that stays open.
struct Configured {
    server: Server,
    file: PathBuf,
    talk: Talk,
}

impl Configured {
    #[track_caller]
    fn start(subcommand: &str, text: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("c.toml");
        fs::write(&file, text).unwrap();
        let server = Server::start_in(folder, &[subcommand, "--config", "c.toml"], |_| ());
        let talk = Talk::client(server.address);
        Self { server, file, talk }
    }

    /// Another file, and the signal.
    #[track_caller]
    fn change(&self, text: &str) {
        fs::write(&self.file, text).unwrap();
        self.server.process.signal("HUP");
    }

    /// Asks again and again until the answer begins so.
    #[track_caller]
    fn until_answered(&mut self, command: &str, beginning: &str) {
        until(&format!("{command}: {beginning}"), || {
            self.talk.ask(command).starts_with(beginning).then_some(())
        });
    }
}

const EVERY: &str = "PUB new-url http://a.example/ every=1h id=1";

#[test]
fn what_may_change_changes_and_connections_stay() {
    for subcommand in ["broker", "up"] {
        let mut it = Configured::start(subcommand, "log = 'info'\n");
        it.until_answered(EVERY, "+OK");
        it.change("grant = ['line=prio']\nlog = 'info'\n");
        it.until_answered(EVERY, "-ERR denied");
        let line = it.server.process.line_with("configuration reloaded");
        assert!(line.contains(r#"["grant"]"#), "{line}");

        // A mistake changes nothing, and its place is said.
        it.change("grant = ['line=every']\ndelay = 'soon'\n");
        let line = it.server.process.line_with("configuration not reloaded");
        assert!(line.contains("c.toml:2:9: `delay`"), "{line}");
        assert!(it.talk.ask(EVERY).starts_with("-ERR denied"));

        it.change("log-lines = true\n\n[broker]\nthreads = 1\n[up]\nthreads = 1\n");
        it.until_answered(EVERY, "+OK");
        let at = if subcommand == "broker" { 4 } else { 6 };
        let line = it.server.process.line_with("takes effect at the next start");
        assert!(line.contains(&format!("`threads` changed in c.toml:{at}")), "{line}");
        it.talk.send("PING once-more\n");
        it.server.process.line_with("once-more");
        it.server.process.finish_by("TERM").expect_code(0);
    }
}

#[test]
fn the_delay_between_two_requests_and_webhooks_change() {
    const HOOK: &str = "[[hook]]\nname = 'a'\nsecret-file = 'secret'\nsignature = 'github'\n\
                        url = { field = 'u' }\nprefixes = ['http://a.example/']\n";
    let mut it = Configured::start("broker", "delay = '2s'\n");
    let delay = |talk: &mut Talk| talk.ask_lines("GROUP show crawlers").concat();
    assert!(delay(&mut it.talk).contains("delay=2s"));
    let secret = it.server.folder.path().join("secret");
    fs::write(secret, "0123456789abcdef0123456789abcdef").unwrap();
    it.change(&format!("delay = '3s'\n{HOOK}"));
    until("the new delay", || delay(&mut it.talk).contains("delay=3s").then_some(()));
    it.change(&format!("delay = '3s'\n{}", HOOK.replace("'secret'", "'none'")));
    let line = it.server.process.line_with("configuration not reloaded");
    assert!(line.contains("none"), "{line}");
    it.change("");
    until("the usual delay", || delay(&mut it.talk).contains("delay=default").then_some(()));
}

#[test]
fn limits_change_for_who_is_connected_and_who_comes() {
    const COUNTED: &str = "log = 'info'\nlimit-loopback = true\n";
    let mut it = Configured::start("broker", COUNTED);
    assert!(it.talk.ask("SUB a").starts_with("+OK"));
    let address = it.server.address;
    let greeting = || Talk::unread(address).line();
    assert!(greeting().starts_with("Connected."));
    let limited = "limit = ['source.connections=1', 'source.subscriptions=1']\n";
    it.change(&format!("{COUNTED}{limited}"));
    let line = it.server.process.line_with("configuration reloaded");
    assert!(line.contains(r#"["limit"]"#), "{line}");
    let refused = "-ERR limit the address 127.0.0.1 has reached its limit of 1 connections";
    until("no more connections", || greeting().starts_with(refused).then_some(()));
    // Who is there keeps what it has, and gets no more.
    let said = it.talk.ask("SUB b");
    assert!(
        said.starts_with(
            "-ERR limit the address 127.0.0.1 has reached its limit of 1 subscriptions"
        ),
        "{said}"
    );
    it.change(&format!("{COUNTED}limit = ['source.subscriptions=none']\n"));
    it.until_answered("SUB b", "+OK");
    it.change(&format!("{COUNTED}{limited}"));
    until("no more connections", || greeting().starts_with(refused).then_some(()));
    // What is limited may stay so, when this machine is not counted any more.
    it.change(&format!("log = 'info'\n{limited}"));
    it.server.process.line_with(r#"["limit-loopback"]"#);
    assert!(greeting().starts_with("Connected."));
}

#[test]
fn without_a_file_the_signal_ends_nobody() {
    for subcommand in ["broker", "up"] {
        let server = Server::start_with(&[subcommand], |command| {
            command.env("TIDINGS_LOG", "info");
        });
        let mut talk = Talk::client(server.address);
        server.process.signal("HUP");
        server.process.line_with("configuration reloaded; changed: []");
        assert!(talk.ask("PUB t x").starts_with("+OK"));
        server.process.finish_by("TERM").expect_code(0);
    }
}

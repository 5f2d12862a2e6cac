//! SIGHUP reloads the configuration; open connections notice only the settings that changed.

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;

use crate::support::line_connection::LineConnection;
use crate::support::process::Server;
use crate::support::wait::wait_until;

/// A server with a configuration file, and a connection that stays open.
struct ConfiguredServer {
    server: Server,
    file: PathBuf,
    connection: LineConnection,
}

impl ConfiguredServer {
    #[track_caller]
    fn start(subcommand: &str, text: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("c.toml");
        fs::write(&file, text).unwrap();
        let server = Server::start_in(folder, &[subcommand, "--config", "c.toml"], |_| ());
        let connection = LineConnection::connect_client(server.address);
        Self { server, file, connection }
    }

    /// Writes another file and sends the signal.
    #[track_caller]
    fn change_config(&self, text: &str) {
        fs::write(&self.file, text).unwrap();
        self.server.process.signal("HUP");
    }

    /// Repeats the command until the response starts with this text.
    #[track_caller]
    fn wait_for_response(&mut self, command: &str, beginning: &str) {
        wait_until(&format!("{command}: {beginning}"), || {
            self.connection.request(command).starts_with(beginning).then_some(())
        });
    }
}

const SCHEDULE_COMMAND: &str = "PUB new-url http://a.example/ every=1h id=1";

#[test]
fn reloadable_settings_change_while_connections_stay_open() {
    for subcommand in ["broker", "up"] {
        let mut server = ConfiguredServer::start(subcommand, "log = 'info'\n");
        server.wait_for_response(SCHEDULE_COMMAND, "+OK");
        server.change_config("grant = ['line=prio']\nlog = 'info'\n");
        server.wait_for_response(SCHEDULE_COMMAND, "-ERR denied");
        let line = server.server.process.wait_for_line_with("configuration reloaded");
        assert!(line.contains(r#"["grant"]"#), "{line}");

        // An invalid file changes nothing, and the log names its position.
        server.change_config("grant = ['line=every']\ndelay = 'soon'\n");
        let line = server.server.process.wait_for_line_with("configuration not reloaded");
        assert!(line.contains("c.toml:2:9: `delay`"), "{line}");
        assert!(server.connection.request(SCHEDULE_COMMAND).starts_with("-ERR denied"));

        server.change_config("log-lines = true\n\n[broker]\nthreads = 1\n[up]\nthreads = 1\n");
        server.wait_for_response(SCHEDULE_COMMAND, "+OK");
        let at = if subcommand == "broker" { 4 } else { 6 };
        let line = server.server.process.wait_for_line_with("takes effect at the next start");
        assert!(line.contains(&format!("`threads` changed in c.toml:{at}")), "{line}");
        server.connection.send("PING once-more\n");
        server.server.process.wait_for_line_with("once-more");
        server.server.process.signal_and_finish("TERM").expect_code(0);
    }
}

#[test]
fn delay_and_webhooks_are_reloadable() {
    const HOOK: &str = "[[hook]]\nname = 'a'\nsecret-file = 'secret'\nsignature = 'github'\n\
                        url = { field = 'u' }\nprefixes = ['http://a.example/']\n";
    let mut server = ConfiguredServer::start("broker", "delay = '2s'\n");
    let delay = |client: &mut LineConnection| client.request_lines("GROUP show crawlers").concat();
    assert!(delay(&mut server.connection).contains("delay=2s"));
    let secret = server.server.folder.path().join("secret");
    fs::write(secret, "0123456789abcdef0123456789abcdef").unwrap();
    server.change_config(&format!("delay = '3s'\n{HOOK}"));
    wait_until("the new delay", || {
        delay(&mut server.connection).contains("delay=3s").then_some(())
    });
    server.change_config(&format!("delay = '3s'\n{}", HOOK.replace("'secret'", "'none'")));
    let line = server.server.process.wait_for_line_with("configuration not reloaded");
    assert!(line.contains("none"), "{line}");
    server.change_config("");
    wait_until("the usual delay", || {
        delay(&mut server.connection).contains("delay=default").then_some(())
    });
}

#[test]
fn limits_change_for_open_and_new_connections() {
    const COUNTED: &str = "log = 'info'\nlimit-loopback = true\n";
    let mut server = ConfiguredServer::start("broker", COUNTED);
    assert!(server.connection.request("SUB a").starts_with("+OK"));
    let address = server.server.address;
    let greeting = || LineConnection::connect(address).read_line();
    assert!(greeting().starts_with("Connected."));
    let limited = "limit = ['source.connections=1', 'source.subscriptions=1']\n";
    server.change_config(&format!("{COUNTED}{limited}"));
    let line = server.server.process.wait_for_line_with("configuration reloaded");
    assert!(line.contains(r#"["limit"]"#), "{line}");
    let rejected = "-ERR limit the address 127.0.0.1 has reached its limit of 1 connections";
    wait_until("no more connections", || greeting().starts_with(rejected).then_some(()));
    // An open connection keeps what it has, but gets no more.
    let stderr = server.connection.request("SUB b");
    assert!(
        stderr.starts_with(
            "-ERR limit the address 127.0.0.1 has reached its limit of 1 subscriptions"
        ),
        "{stderr}"
    );
    server.change_config(&format!("{COUNTED}limit = ['source.subscriptions=none']\n"));
    server.wait_for_response("SUB b", "+OK");
    server.change_config(&format!("{COUNTED}{limited}"));
    wait_until("no more connections", || greeting().starts_with(rejected).then_some(()));
    // The limits stay set when loopback addresses are no longer counted.
    server.change_config(&format!("log = 'info'\n{limited}"));
    server.server.process.wait_for_line_with(r#"["limit-loopback"]"#);
    assert!(greeting().starts_with("Connected."));
}

#[test]
fn sighup_without_a_file_keeps_connections_open() {
    for subcommand in ["broker", "up"] {
        let server = Server::start_with(&[subcommand], |command| {
            command.env("TIDINGS_LOG", "info");
        });
        let mut client = LineConnection::connect_client(server.address);
        server.process.signal("HUP");
        server.process.wait_for_line_with("configuration reloaded; changed: []");
        assert!(client.request("PUB t x").starts_with("+OK"));
        server.process.signal_and_finish("TERM").expect_code(0);
    }
}

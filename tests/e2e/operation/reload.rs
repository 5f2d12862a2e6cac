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
        let mut configured = ConfiguredServer::start(subcommand, "log = 'info'\n");
        configured.wait_for_response(SCHEDULE_COMMAND, "+OK");
        configured.change_config("grant = ['line=prio']\nlog = 'info'\n");
        configured.wait_for_response(SCHEDULE_COMMAND, "-ERR denied");
        let line = configured.server.process.wait_for_line_with("configuration reloaded");
        assert!(line.contains(r#"["grant"]"#), "{line}");

        // An invalid file changes nothing, and the log names its position.
        configured.change_config("grant = ['line=every']\ndelay = 'soon'\n");
        let line = configured.server.process.wait_for_line_with("configuration not reloaded");
        assert!(line.contains("c.toml:2:9: `delay`"), "{line}");
        assert!(configured.connection.request(SCHEDULE_COMMAND).starts_with("-ERR denied"));

        configured.change_config(
            "log = 'info'\nlog-lines = true\n[broker]\nthreads = 1\n[up]\nthreads = 1\n",
        );
        configured.wait_for_response(SCHEDULE_COMMAND, "+OK");
        let at = if subcommand == "broker" { 4 } else { 6 };
        let line = configured.server.process.wait_for_line_with("takes effect at the next start");
        assert!(line.contains(&format!("`threads` changed in c.toml:{at}")), "{line}");
        // Back to the value in force.
        configured.change_config("log = 'info'\nlog-lines = true\n");
        let line = configured.server.process.wait_for_line_with("to the value in force");
        assert!(line.contains("`threads`"), "{line}");
        configured.connection.send("PING once-more\n");
        configured.server.process.wait_for_line_with("once-more");
        configured.server.process.signal_and_finish("TERM").expect_code(0);
    }
}

#[test]
fn delay_and_webhooks_are_reloadable() {
    const HOOK: &str = "[[hook]]\nname = 'a'\nsecret-file = 'secret'\nsignature = 'github'\n\
                        url = { field = 'u' }\nprefixes = ['http://a.example/']\n";
    let mut configured = ConfiguredServer::start("broker", "delay = '2s'\n");
    let delay = |client: &mut LineConnection| client.request_lines("GROUP show crawlers").concat();
    assert!(delay(&mut configured.connection).contains("delay=2s"));
    let secret = configured.server.folder.path().join("secret");
    fs::write(secret, "0123456789abcdef0123456789abcdef").unwrap();
    configured.change_config(&format!("delay = '3s'\n{HOOK}"));
    wait_until("the new delay", || {
        delay(&mut configured.connection).contains("delay=3s").then_some(())
    });
    configured.change_config(&format!("delay = '3s'\n{}", HOOK.replace("'secret'", "'none'")));
    let line = configured.server.process.wait_for_line_with("configuration not reloaded");
    assert!(line.contains("none"), "{line}");
    configured.change_config("");
    wait_until("the usual delay", || {
        delay(&mut configured.connection).contains("delay=default").then_some(())
    });
    // All this creates no group.
    assert_eq!(configured.connection.request("GROUP ls"), "+OK groups=0");
    configured.connection.request_ok("JOIN crawlers");
    assert!(delay(&mut configured.connection).contains("delay=default"));
}

#[test]
fn limits_change_for_open_and_new_connections() {
    const COUNTED: &str = "log = 'info'\nlimit-loopback = true\n";
    let mut configured = ConfiguredServer::start("broker", COUNTED);
    configured.connection.request_ok("SUB a");
    let address = configured.server.address;
    let greeting = || LineConnection::connect(address).read_line();
    assert!(greeting().starts_with("Connected."));
    let limited = "limit = ['source.connections=1', 'source.subscriptions=1']\n";
    configured.change_config(&format!("{COUNTED}{limited}"));
    let line = configured.server.process.wait_for_line_with("configuration reloaded");
    assert!(line.contains(r#"["limit"]"#), "{line}");
    let rejected = "-ERR limit the address 127.0.0.1 has reached its limit of 1 connections";
    wait_until("no more connections", || greeting().starts_with(rejected).then_some(()));
    // An open connection keeps what it has, but gets no more.
    let response = configured.connection.request("SUB b");
    assert!(
        response.starts_with(
            "-ERR limit the address 127.0.0.1 has reached its limit of 1 subscriptions"
        ),
        "{response}"
    );
    configured.change_config(&format!("{COUNTED}limit = ['source.subscriptions=none']\n"));
    configured.wait_for_response("SUB b", "+OK");
    configured.change_config(&format!("{COUNTED}{limited}"));
    wait_until("no more connections", || greeting().starts_with(rejected).then_some(()));
    // The limits stay set when loopback addresses are no longer counted.
    configured.change_config(&format!("log = 'info'\n{limited}"));
    configured.server.process.wait_for_line_with(r#"["limit-loopback"]"#);
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
        client.request_ok("PUB t x");
        server.process.signal_and_finish("TERM").expect_code(0);
    }
}

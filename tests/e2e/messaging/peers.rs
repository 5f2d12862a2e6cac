//! Peers, which are connections that begin with any line other than a command: what they receive
//! with netcat or telnet. `broker/src/net/connection/tests` has the rules for their lines.

use crate::support::line_connection::{FAREWELL, LineConnection};
use crate::support::nc::{run_nc, start_nc, start_telnet};
use crate::support::process::Server;

/// Reads all lines up to a marker, which another peer sends last.
#[track_caller]
fn read_until_marker(server: &Server, listener: &mut LineConnection) -> Vec<String> {
    LineConnection::connect_peer(server.address).send("the marker\n");
    let received =
        std::iter::from_fn(|| Some(listener.read_line()).filter(|line| line != "the marker"));
    received.collect()
}

// PROTOCOL: S7
#[test]
fn peers_receive_only_events_of_the_default_topic() {
    let server = Server::start_broker();
    let mut peer = LineConnection::connect_peer(server.address);
    let mut client = LineConnection::connect_client(server.address);
    assert_eq!(client.request("PUB other hidden"), "+OK 1 1");
    assert_eq!(client.request("PUB new-url shown as it is"), "+OK 1 2");
    assert_eq!(peer.read_line(), "shown as it is");
}

#[test]
#[ignore = "needs foreign programs"]
fn netcat_receives_the_farewell_as_confirmation() {
    let server = Server::start_broker();
    let mut listener = LineConnection::connect_peer(server.address);
    let output = run_nc(server.address, "first\nlast, without an end");
    assert_eq!(output.first().unwrap(), "Connected.  (PID 2)");
    assert_eq!(output.last().unwrap(), FAREWELL);
    assert_eq!(output.len(), 2, "{output:?}");
    assert_eq!(read_until_marker(&server, &mut listener), ["first", "last, without an end"]);
}

#[test]
#[ignore = "needs foreign programs"]
fn telnet_and_netcat_peers_exchange_lines() {
    let server = Server::start_broker();
    let mut ann = start_telnet(server.address);
    let mut bob = start_telnet(server.address);
    let mut eve = start_nc(server.address, &[]);
    for person in [&ann, &bob, &eve] {
        person.wait_for_line_with("Connected.  (PID ");
    }
    ann.write("hello from ann\n");
    bob.wait_for_line_with("hello from ann");
    eve.wait_for_line_with("hello from ann\r");
    eve.write("hello from eve\n");
    ann.wait_for_line_with("hello from eve");
    bob.wait_for_line_with("hello from eve");
    bob.write("quit\n");
    let bob = bob.finish();
    assert!(bob.stdout().iter().all(|line| !line.contains("quit")), "{bob:?}");
    eve.write("\u{4}");
    eve.wait_for_line_with(FAREWELL);
    eve.finish().expect_code(0);
}

#[test]
#[ignore = "needs foreign programs"]
fn help_works_over_telnet() {
    let server = Server::start_broker();
    let mut telnet = start_telnet(server.address);
    telnet.write("HELP\n");
    telnet.wait_for_line_with("+OK");
    telnet.write("QUIT\n");
    let lines = telnet.finish().stdout().join("\n");
    for verb in ["PUB", "SUB", "JOIN", "JOB", "QUIT"] {
        assert!(lines.contains(verb), "HELP does not mention {verb}: {lines}");
    }
}

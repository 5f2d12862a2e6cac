//! The limit of open files: the broker raises its soft limit, and rejects a connection beyond the
//! hard one with a message.

use std::process::Command;

use crate::support::line_connection::LineConnection;
use crate::support::process::{Server, started_by};

/// A broker under a shell's `ulimit` with these arguments.
fn broker_with_ulimit(ulimit: &str) -> Server {
    Server::start_with(&["broker"], |command| {
        let mut limited = Command::new("sh");
        limited.args(["-c", &format!("ulimit {ulimit}; exec \"$@\""), "sh"]);
        *command = started_by(limited, command);
    })
}

#[test]
fn a_low_soft_limit_of_open_files_is_raised() {
    let server = broker_with_ulimit("-S -n 64");
    let _connections: Vec<LineConnection> =
        (0..200).map(|_| LineConnection::connect_peer(server.address)).collect();
}

#[test]
fn a_connection_beyond_the_open_file_limit_is_rejected() {
    let server = broker_with_ulimit("-n 64");
    let _connections: Vec<LineConnection> =
        (0..32).map(|_| LineConnection::connect_peer(server.address)).collect();
    let line = LineConnection::connect(server.address).read_line();
    assert!(line.starts_with("-ERR limit 32 connections are open"), "{line}");
}

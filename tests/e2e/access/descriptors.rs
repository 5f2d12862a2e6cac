//! A broker has as many connections as the system gives it file descriptors, and says so to one
//! more.

use std::process::Command;

use crate::support::process::Server;
use crate::support::talk::Talk;

/// A broker that was started with `ulimit` of these words.
fn broker_within(ulimit: &str) -> Server {
    Server::start_with(&["broker"], |command| {
        let mut limited = Command::new("sh");
        limited.args(["-c", &format!("ulimit {ulimit}; exec \"$@\""), "sh"]);
        limited.arg(command.get_program()).args(command.get_args());
        limited.current_dir(command.get_current_dir().unwrap());
        *command = limited;
    })
}

#[test]
fn a_low_soft_limit_of_open_files_is_raised() {
    let server = broker_within("-S -n 64");
    let _connections: Vec<Talk> = (0..200).map(|_| Talk::peer(server.address)).collect();
}

#[test]
fn who_is_beyond_the_limit_of_open_files_is_told() {
    let server = broker_within("-n 64");
    let _connections: Vec<Talk> = (0..32).map(|_| Talk::peer(server.address)).collect();
    let line = Talk::unread(server.address).line();
    assert!(line.starts_with("-ERR limit 32 connections are open"), "{line}");
}

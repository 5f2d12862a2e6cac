//! The unix socket of the broker.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::support::line_connection::LineConnection;
use crate::support::process::{Process, Server, run_tidings};

#[test]
#[ignore = "needs foreign programs"]
fn the_unix_socket_carries_the_line_protocol() {
    let server = Server::start_with(&["broker", "--unix", "the.sock"], |command| {
        command.env("TIDINGS_LOG", "debug");
    });
    let socket = server.folder.path().join("the.sock");
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let mut network = LineConnection::connect_peer(server.address);
    let mut nearby = Process::start(Command::new("nc").arg("-NU").arg(&socket));
    nearby.wait_for_line_with("Connected.");
    nearby.write("http://a.example/\n");
    assert_eq!(network.read_line(), "http://a.example/");
    network.send("http://b.example/\n");
    nearby.wait_for_line_with("http://b.example/");
    let address = format!("UNIX-CONNECT:{}", socket.display());
    let mut socat = Process::start(Command::new("socat").args(["-t", "60", "-", &address]));
    socat.wait_for_line_with("Connected.");
    socat.write("HELLO echo=s\nQUIT\n");
    socat.wait_for_line_with("echo=s");
    socat.finish().expect_code(0);
    let address = format!("unix:{}", socket.display());
    let listed =
        run_tidings(server.folder.path(), &["topic", "ls", "--broker", &address]).expect_code(0);
    assert!(listed.stdout().iter().any(|line| line.starts_with("new-url")));
    // The kernel identifies the peer.
    let uid = rustix::process::getuid().as_raw();
    server.process.wait_for_line_with(&format!("peer=unix:uid={uid},pid={}", nearby.id()));
    let arguments = ["broker", "--listen", "127.0.0.1:0", "--data", "other", "--unix", "the.sock"];
    let stderr = run_tidings(server.folder.path(), &arguments).expect_code(1).stderr();
    assert!(stderr.contains("the.sock is in use"), "{stderr}");
    let output = run_tidings(server.folder.path(), &["topic", "ls", "--broker", "unix:none"]);
    assert!(output.expect_code(1).stderr().contains("cannot connect to unix:none: "));
    server.process.signal_and_finish("TERM").expect_code(0);
    assert!(!socket.exists());
}

#[test]
fn a_stale_socket_is_replaced_but_a_file_is_kept() {
    let flags = ["broker", "--unix", "the.sock", "--unix-mode", "660"];
    let server = Server::start(&flags);
    let server = server.restart("KILL", &flags);
    let socket = server.folder.path().join("the.sock");
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o660);
    fs::write(server.folder.path().join("file"), "precious").unwrap();
    let start = |path: &str| {
        let arguments = ["broker", "--listen", "127.0.0.1:0", "--data", "other", "--unix", path];
        run_tidings(server.folder.path(), &arguments)
    };
    start("file").expect_code(1).expect_stderr("the path exists and is not a socket");
    assert_eq!(fs::read_to_string(server.folder.path().join("file")).unwrap(), "precious");
    start(&"x".repeat(120))
        .expect_code(1)
        .expect_stderr("the path of a unix socket may have at most 107");
}

//! The clients for which the line protocol was designed: netcat and telnet, as real processes.

use std::net::SocketAddr;
use std::process::Command;

use super::process::Process;

/// Starts OpenBSD netcat, with its flags before the address.
#[track_caller]
pub(crate) fn start_nc(address: SocketAddr, flags: &[&str]) -> Process {
    let (host, port) = (address.ip().to_string(), address.port().to_string());
    Process::start(Command::new("nc").args(flags).args([host, port]))
}

/// Runs `printf INPUT | nc -N` and returns the received lines without carriage returns.
#[track_caller]
pub(crate) fn run_nc(address: SocketAddr, input: impl AsRef<[u8]>) -> Vec<String> {
    let mut nc = start_nc(address, &["-N"]);
    nc.write(input);
    let finished = nc.finish().expect_code(0);
    finished.stdout().iter().map(|line| line.trim_end_matches('\r').to_owned()).collect()
}

/// Starts a telnet session and waits until telnet has printed its own three lines.
#[track_caller]
pub(crate) fn start_telnet(address: SocketAddr) -> Process {
    let (host, port) = (address.ip().to_string(), address.port().to_string());
    let telnet = Process::start(Command::new("telnet").args([host, port]));
    telnet.wait_for_line_with("Escape character is");
    telnet
}

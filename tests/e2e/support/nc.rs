//! The foreign clients that the line protocol was made for, as real processes.

use std::net::SocketAddr;
use std::process::Command;

use super::process::Running;

/// OpenBSD's netcat, with its flags before the address.
#[track_caller]
pub(crate) fn nc(address: SocketAddr, flags: &[&str]) -> Running {
    let (host, port) = (address.ip().to_string(), address.port().to_string());
    Running::start(Command::new("nc").args(flags).args([host, port]))
}

/// `printf INPUT | nc -N`: all that came back, line by line and without carriage returns.
#[track_caller]
pub(crate) fn nc_all(address: SocketAddr, input: impl AsRef<[u8]>) -> Vec<String> {
    let mut nc = nc(address, &["-N"]);
    nc.write(input);
    let finished = nc.finish().expect_code(0);
    finished.stdout().iter().map(|line| line.trim_end_matches('\r').to_owned()).collect()
}

/// A telnet session with the address, past telnet's own three lines.
#[track_caller]
pub(crate) fn telnet(address: SocketAddr) -> Running {
    let (host, port) = (address.ip().to_string(), address.port().to_string());
    let telnet = Running::start(Command::new("telnet").args([host, port]));
    telnet.line_with("Escape character is");
    telnet
}

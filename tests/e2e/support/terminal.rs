//! Runs the binary on a terminal, which `script` of util-linux provides.

use std::path::Path;
use std::process::Command;

use super::process::{Process, Server, in_place_of, tidings_command};

/// Starts `tidings <arguments> --broker ..` on a terminal. What is written to the process is typed.
#[track_caller]
pub(crate) fn start_on_terminal(server: &Server, arguments: &[&str]) -> Process {
    start_on_terminal_at(server.folder.path(), &server.address_text(), arguments)
}

/// The same with a broker at this address.
#[track_caller]
pub(crate) fn start_on_terminal_at(folder: &Path, broker: &str, arguments: &[&str]) -> Process {
    let tidings = tidings_command(folder, [arguments, &["--broker", broker]].concat());
    let words = [tidings.get_program()].into_iter().chain(tidings.get_args());
    let words = words.map(|word| format!("'{}'", word.to_str().unwrap()));
    let line = words.collect::<Vec<_>>().join(" ");
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    script.env("SHELL", "/bin/sh").env("TERM", "xterm");
    Process::start(&mut in_place_of(script, &tidings))
}

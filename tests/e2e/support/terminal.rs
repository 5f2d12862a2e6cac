//! Runs the binary on a terminal, which `script` of util-linux provides.

use std::process::Command;

use super::process::{Process, Server, tidings_command};

/// Starts `tidings <arguments> --broker ..` on a terminal. What is written to the process is typed.
#[track_caller]
pub(crate) fn start_on_terminal(server: &Server, arguments: &[&str]) -> Process {
    let broker = server.address_text();
    let tidings =
        tidings_command(server.folder.path(), [arguments, &["--broker", &broker]].concat());
    let words = [tidings.get_program()].into_iter().chain(tidings.get_args());
    let words = words.map(|word| format!("'{}'", word.to_str().unwrap()));
    let line = words.collect::<Vec<_>>().join(" ");
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    script.current_dir(server.folder.path()).env("SHELL", "/bin/sh").env("TERM", "xterm");
    for (name, value) in tidings.get_envs() {
        match value {
            Some(value) => script.env(name, value),
            None => script.env_remove(name),
        };
    }
    Process::start(&mut script)
}

//! System calls of a real process, recorded by `strace`.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::process::started_by;
use super::wait::wait_until;

/// The number of bytes of each string that are recorded.
const STRING_BYTES_MAX: &str = "200000";

/// The calls that make data durable, those that send responses, and those that receive requests.
const TRACED_CALLS: &str = "trace=mkdir,mkdirat,rename,renameat,renameat2,pwrite64,pwritev,pwritev2,\
                     fdatasync,fsync,write,writev,sendto,sendmsg,recvfrom";

/// One system call.
#[derive(Debug, Clone)]
pub(crate) struct SystemCall {
    pub(crate) name: String,
    /// The text between the parentheses, as `strace` writes it.
    pub(crate) arguments: String,
    pub(crate) succeeded: bool,
    /// The lines of the trace at which the call began and ended. The kernel did not begin it before
    /// `start_line`, and the program did not see its end before `end_line`.
    pub(crate) start_line: usize,
    pub(crate) end_line: usize,
}

impl SystemCall {
    /// The file or socket of the first argument, as a path or a number.
    pub(crate) fn target(&self) -> &str {
        let inside = self.arguments.split_once('<').map_or("", |(_, rest)| rest);
        inside.split_once('>').map_or("", |(target, _)| target)
    }
}

/// Changes the command to run under `strace`, which writes a file into this folder.
pub(crate) fn trace_command(command: &mut Command, folder: &Path) -> PathBuf {
    let file = folder.join("trace");
    let mut strace = strace(TRACED_CALLS);
    strace.args(["-y", "-s", STRING_BYTES_MAX, "-o"]).arg(&file);
    *command = started_by(strace, command);
    file
}

/// Changes the command to run under `strace`, which makes `fdatasync` fail or wait. `fault` is what
/// follows `inject=fdatasync:`; strace counts the calls of each thread.
pub(crate) fn inject_into_fdatasync(command: &mut Command, fault: &str) {
    let mut strace = strace("trace=fdatasync");
    strace.args(["-e", &format!("inject=fdatasync:{fault}"), "-o", "/dev/null"]);
    *command = started_by(strace, command);
}

/// The beginning of a command that traces these system calls of a program. With `-D` the tracer is
/// a child of the program, so signals and exit codes are those of the program. `--seccomp-bpf` stops
/// its threads only at these calls; without it, strace stops them at every call, and strace 6.1 loses
/// events of busy threads ("delayed wait data").
fn strace(calls: &str) -> Command {
    let mut strace = Command::new("strace");
    strace.args(["-D", "-f", "--seccomp-bpf", "-q", "-e", calls]);
    strace
}

/// Whether the line reports the end of the process; its threads have their own numbers.
fn is_exit_line(process: u32, line: &str) -> bool {
    line.split_once(' ').is_some_and(|(number, rest)| {
        number == process.to_string() && rest.trim_start().starts_with("+++ ")
    })
}

/// Reads the trace of a process that has ended.
#[track_caller]
pub(crate) fn read_trace(file: &Path, process: u32) -> Vec<SystemCall> {
    let text = wait_until("the end of the trace", || {
        let text = fs::read_to_string(file).ok()?;
        text.lines().any(|line| is_exit_line(process, line)).then_some(text)
    });
    let mut open: HashMap<&str, (usize, &str, String)> = HashMap::new();
    let mut calls = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let (thread, line) = line.split_once(' ').expect("a thread id");
        let line = line.trim_start();
        if line.starts_with("+++") || line.starts_with("---") {
            continue;
        }
        if let Some(begun) = line.strip_suffix(" <unfinished ...>") {
            let (name, arguments) = begun.split_once('(').expect("a call");
            open.insert(thread, (at, name, arguments.to_owned()));
            continue;
        }
        let (start, name, rest) = if let Some(resumed) = line.strip_prefix("<... ") {
            let (_, rest) = resumed.split_once(" resumed>").expect("a resumed call");
            let (start, name, first) = open.remove(thread).expect("the beginning of the call");
            (start, name, first + rest)
        } else {
            let (name, rest) = line.split_once('(').expect("a call");
            (at, name, rest.to_owned())
        };
        let (arguments, result) = rest.rsplit_once(" = ").expect("a result");
        calls.push(SystemCall {
            name: name.to_owned(),
            arguments: arguments.trim_end().trim_end_matches(')').to_owned(),
            succeeded: !result.starts_with(['-', '?']),
            start_line: start,
            end_line: at,
        });
    }
    assert!(
        calls.iter().any(|call| call.name == "fdatasync"),
        "strace recorded no fdatasync: {text}"
    );
    calls
}

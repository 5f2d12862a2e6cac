//! Runs real processes, the `tidings` binary and other programs, and collects their output.

use std::ffi::OsStr;
use std::fmt::Display;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use serde_json::Value;
use tempfile::TempDir;

use super::ports::free_address;
use super::wait::time_left;

/// The output stream that a line came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputStream {
    Stdout,
    Stderr,
}

/// The output of a process so far, in order of arrival.
#[derive(Debug, Default)]
struct SharedOutput {
    lines: Mutex<OutputLines>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct OutputLines {
    /// Lines without their line feed; a carriage return before it is kept.
    lines: Vec<(OutputStream, String)>,
    streams_ended: usize,
}

/// A started process; it is killed when dropped.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    output: Arc<SharedOutput>,
    readers: Vec<JoinHandle<()>>,
}

/// The output and exit code of a process that has ended.
#[derive(Debug)]
pub(crate) struct ProcessOutput {
    /// `None` if a signal ended the process.
    pub(crate) code: Option<i32>,
    /// The time from the call that waits for the end until the end.
    pub(crate) elapsed: Duration,
    lines: Vec<(OutputStream, String)>,
}

impl Process {
    /// Starts a program with all three streams piped.
    #[track_caller]
    pub(crate) fn start(command: &mut Command) -> Self {
        let name = command.get_program().to_string_lossy().into_owned();
        let name = name.rsplit('/').next().unwrap_or_default().to_owned();
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {name}: {error}"));
        let output = Arc::new(SharedOutput::default());
        let readers = vec![
            spawn_line_reader(child.stdout.take().unwrap(), OutputStream::Stdout, &output),
            spawn_line_reader(child.stderr.take().unwrap(), OutputStream::Stderr, &output),
        ];
        Self { name, stdin: child.stdin.take(), child, output, readers }
    }

    /// The process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Writes to standard input; ignores a process that has already ended.
    pub(crate) fn write(&mut self, bytes: impl AsRef<[u8]>) {
        if let Some(stdin) = &mut self.stdin {
            let _ = stdin.write_all(bytes.as_ref()).and_then(|()| stdin.flush());
        }
    }

    /// Closes standard input.
    pub(crate) fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Waits until `find` returns a value for the output so far.
    #[track_caller]
    fn wait_for_output<T>(
        &self,
        expected: &str,
        mut find: impl FnMut(&[(OutputStream, String)]) -> Option<T>,
    ) -> T {
        let deadline = Instant::now() + time_left();
        let mut guard = self.output.lines.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(found) = find(&guard.lines) {
                return found;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || guard.streams_ended == 2 {
                // `drop` prints the lines themselves.
                drop(guard);
                panic!("no {expected} from {}", self.name);
            }
            guard = self.output.changed.wait_timeout(guard, left).unwrap().0;
        }
    }

    /// Waits until the `expected` lines were printed, in order, after the first `from` lines; other
    /// lines may come in between. `same` compares an expected line with a printed one. Returns the
    /// position after the last of them.
    #[track_caller]
    pub(crate) fn wait_for_lines_in_order(
        &self,
        from: usize,
        expected: &[String],
        same: impl Fn(&str, &str) -> bool,
    ) -> usize {
        let (mut next, mut at) = (0, from);
        self.wait_for_output(&format!("{expected:#?} in this order"), |lines| {
            while let Some(expected) = expected.get(next) {
                let (_, line) = lines.get(at)?;
                next += usize::from(same(expected, line.trim_end_matches('\r')));
                at += 1;
            }
            Some(at)
        })
    }

    /// Waits for the first line for which `pick` returns a value.
    #[track_caller]
    pub(crate) fn wait_for_line<T>(
        &self,
        expected: &str,
        mut pick: impl FnMut(&str) -> Option<T>,
    ) -> T {
        let mut searched = 0;
        self.wait_for_output(expected, |lines| {
            let found = lines[searched..].iter().find_map(|(_, line)| pick(line));
            searched = lines.len();
            found
        })
    }

    /// Waits for a line that contains the text, and returns it.
    #[track_caller]
    pub(crate) fn wait_for_line_with(&self, text: &str) -> String {
        self.wait_for_line(&format!("line with {text:?}"), |line| {
            line.contains(text).then(|| line.to_owned())
        })
    }

    /// The first value that `pick` returns for the output so far.
    pub(crate) fn find_line<T>(&self, pick: impl FnMut(&str) -> Option<T>) -> Option<T> {
        let guard = self.output.lines.lock().unwrap_or_else(PoisonError::into_inner);
        guard.lines.iter().map(|(_, line)| line.as_str()).find_map(pick)
    }

    /// Whether a line printed so far contains the text.
    pub(crate) fn has_printed(&self, text: &str) -> bool {
        self.find_line(|line| line.contains(text).then_some(())).is_some()
    }

    /// Waits until standard output has `count` lines, and returns all of them.
    #[track_caller]
    pub(crate) fn wait_for_stdout_lines(&self, count: usize) -> Vec<String> {
        self.wait_for_output(&format!("{count} lines"), |lines| {
            let lines = lines_of_stream(lines, OutputStream::Stdout);
            (lines.len() >= count).then_some(lines)
        })
    }

    /// Sends a signal by name: `INT`, `TERM`, `KILL`, `STOP`, `CONT`.
    #[track_caller]
    pub(crate) fn signal(&self, name: &str) {
        // The shell's own `kill` needs no further package and no unsafe code.
        let sent = Command::new("sh")
            .args(["-c", &format!("kill -{name} {}", self.child.id())])
            .status()
            .unwrap();
        assert!(sent.success(), "kill -{name} of {}", self.name);
    }

    /// The peak memory of the process, as the kernel counts it.
    #[track_caller]
    pub(crate) fn peak_memory_bytes(&self) -> u64 {
        memory_bytes(self.id(), "VmHWM:")
    }

    /// The current memory of the process.
    #[track_caller]
    pub(crate) fn resident_memory_bytes(&self) -> u64 {
        memory_bytes(self.id(), "VmRSS:")
    }

    /// The processor time of the process, in hundredths of a second.
    #[track_caller]
    pub(crate) fn processor_ticks(&self) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.id())).unwrap();
        let fields: Vec<_> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }

    /// Closes standard input and waits until the process and its output have ended.
    #[track_caller]
    pub(crate) fn finish(mut self) -> ProcessOutput {
        let started = Instant::now();
        self.close_stdin();
        let status = self.wait_for_exit();
        let took = started.elapsed();
        for reader in self.readers.drain(..) {
            reader.join().unwrap();
        }
        let mut guard = self.output.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = std::mem::take(&mut guard.lines);
        ProcessOutput { code: status.code(), elapsed: took, lines }
    }

    /// Sends the signal, waits for the end, and checks that the process had not panicked.
    #[track_caller]
    pub(crate) fn signal_and_finish(self, signal: &str) -> ProcessOutput {
        self.signal(signal);
        let output = self.finish();
        let stderr = output.stderr();
        assert!(!stderr.contains("panicked at"), "{stderr}");
        output
    }

    #[track_caller]
    fn wait_for_exit(&mut self) -> ExitStatus {
        let pid = Pid::from_child(&self.child);
        let (sender, receiver) = mpsc::channel();
        // `Child` can only poll, or wait without a timeout. `NOWAIT` leaves the status for it.
        thread::spawn(move || {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            while let Err(Errno::INTR) = waitid(WaitId::Pid(pid), options) {}
            let _ = sender.send(());
        });
        let exited = receiver.recv_timeout(time_left());
        assert!(exited.is_ok(), "still waiting for the end of {}", self.name);
        self.child.wait().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            let guard = self.output.lines.lock().unwrap_or_else(PoisonError::into_inner);
            eprintln!("-- {} printed:", self.name);
            for (stream, line) in &guard.lines {
                eprintln!("{stream:?}: {line}");
            }
        }
    }
}

impl ProcessOutput {
    /// The lines of standard output.
    pub(crate) fn stdout(&self) -> Vec<String> {
        lines_of_stream(&self.lines, OutputStream::Stdout)
    }

    /// Standard error as one text.
    pub(crate) fn stderr(&self) -> String {
        lines_of_stream(&self.lines, OutputStream::Stderr).join("\n")
    }

    /// Checks the exit code; on a mismatch, shows all output.
    #[track_caller]
    pub(crate) fn expect_code(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{:#?}", self.lines);
        self
    }

    /// Checks that standard error has this text.
    #[track_caller]
    pub(crate) fn expect_stderr(self, text: &str) -> Self {
        assert!(self.stderr().contains(text), "{text:?} is not in {:#?}", self.lines);
        self
    }
}

/// A memory figure of a process in `/proc`, such as `VmRSS:`.
#[track_caller]
pub(crate) fn memory_bytes(id: u32, word: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let amount = status.lines().find_map(|found| found.strip_prefix(word)).unwrap();
    amount.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

fn lines_of_stream(lines: &[(OutputStream, String)], stream: OutputStream) -> Vec<String> {
    lines.iter().filter(|(of, _)| *of == stream).map(|(_, line)| line.clone()).collect()
}

fn spawn_line_reader(
    source: impl Read + Send + 'static,
    stream: OutputStream,
    output: &Arc<SharedOutput>,
) -> JoinHandle<()> {
    let output = Arc::clone(output);
    thread::spawn(move || {
        for line in BufReader::new(source).split(b'\n') {
            let Ok(line) = line else { break };
            let line = String::from_utf8_lossy(&line).into_owned();
            output.lines.lock().unwrap().lines.push((stream, line));
            output.changed.notify_all();
        }
        output.lines.lock().unwrap().streams_ended += 1;
        output.changed.notify_all();
    })
}

/// The binary under test with these arguments, in this folder, without the caller's `TIDINGS_`
/// variables.
pub(crate) fn tidings_command<S: AsRef<OsStr>>(
    folder: &Path,
    arguments: impl IntoIterator<Item = S>,
) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidings"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TIDINGS_")) {
        command.env_remove(name);
    }
    // Many brokers run at once, some of them on fixed line ports; HTTP always gets a free port.
    command.env("TIDINGS_HTTP", "127.0.0.1:0");
    // The contexts of the user who runs the tests do not apply.
    command.env("XDG_CONFIG_HOME", folder);
    command.args(arguments).current_dir(folder);
    command
}

/// The command as the last arguments of another one, with its folder and its environment.
pub(crate) fn started_by(mut starter: Command, command: &Command) -> Command {
    starter.arg(command.get_program()).args(command.get_args());
    in_place_of(starter, command)
}

/// The first command with the folder and the environment of the second.
pub(crate) fn in_place_of(mut starter: Command, command: &Command) -> Command {
    if let Some(folder) = command.get_current_dir() {
        starter.current_dir(folder);
    }
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => starter.env(name, value),
            None => starter.env_remove(name),
        };
    }
    starter
}

/// Runs the binary to its end without standard input.
#[track_caller]
pub(crate) fn run_tidings(folder: &Path, arguments: &[&str]) -> ProcessOutput {
    Process::start(&mut tidings_command(folder, arguments)).finish()
}

/// The answers of `tidings probe` to these questions in JSON, in their order.
#[track_caller]
pub(crate) fn probe_json(
    subcommand: &str,
    questions: impl IntoIterator<Item = impl Display>,
) -> Vec<Value> {
    let folder = TempDir::new().unwrap();
    let mut probe = Process::start(&mut tidings_command(folder.path(), ["probe", subcommand]));
    let lines: Vec<_> = questions.into_iter().map(|question| format!("{question}\n")).collect();
    probe.write(lines.concat());
    let answers = probe.finish().expect_code(0).stdout();
    assert_eq!(answers.len(), lines.len(), "{answers:?}");
    answers.iter().map(|answer| serde_json::from_str(answer).unwrap()).collect()
}

/// Starts a crawler for a broker; it stores in this folder.
#[track_caller]
pub(crate) fn start_crawler(broker: SocketAddr, folder: &Path) -> Process {
    let arguments = ["crawl", "--broker", &broker.to_string(), "--allow-private", "--data", "."];
    let crawler = Process::start(&mut tidings_command(folder, arguments));
    crawler.wait_for_line_with("fetching for");
    crawler
}

/// Starts `tidings <arguments> --broker ..` against this broker.
#[track_caller]
pub(crate) fn start_at(server: &Server, arguments: &[&str]) -> Process {
    let address = server.address_text();
    let arguments = [arguments, &["--broker", &address]].concat();
    Process::start(&mut tidings_command(server.folder.path(), arguments))
}

/// Runs such a command to its end.
#[track_caller]
pub(crate) fn run_at(server: &Server, arguments: &[&str]) -> ProcessOutput {
    start_at(server, arguments).finish()
}

/// The JSON objects that such a command prints with `--json`, one on each line.
#[track_caller]
pub(crate) fn run_json_at(server: &Server, arguments: &[&str]) -> Vec<Value> {
    let lines = run_at(server, &[arguments, &["--json"]].concat()).expect_code(0).stdout();
    lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A `tidings up` or `tidings broker` on a free port, with its own data directory.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
    pub(crate) folder: TempDir,
}

impl Server {
    /// Starts only a broker.
    #[track_caller]
    pub(crate) fn start_broker() -> Self {
        Self::start(&["broker"])
    }

    /// Starts broker and crawler.
    #[track_caller]
    pub(crate) fn start_up(arguments: &[&str]) -> Self {
        Self::start(&[&["up"], arguments].concat())
    }

    /// Starts the subcommand with these flags; `--listen` is added.
    #[track_caller]
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_with(arguments, |_| ())
    }

    /// Like `start`, but `adjust` may change the command, such as its environment.
    #[track_caller]
    pub(crate) fn start_with(arguments: &[&str], adjust: impl FnOnce(&mut Command)) -> Self {
        Self::start_in(TempDir::new().unwrap(), arguments, adjust)
    }

    /// Like `start_with`, in a folder that may have data already.
    #[track_caller]
    pub(crate) fn start_in(
        folder: TempDir,
        arguments: &[&str],
        adjust: impl FnOnce(&mut Command),
    ) -> Self {
        Self::start_listening_at(free_address(), folder, arguments, adjust)
    }

    fn start_listening_at(
        listen: SocketAddr,
        folder: TempDir,
        arguments: &[&str],
        adjust: impl FnOnce(&mut Command),
    ) -> Self {
        let mut command = tidings_command(
            folder.path(),
            [arguments, &["--listen", &listen.to_string()]].concat(),
        );
        adjust(&mut command);
        let process = Process::start(&mut command);
        let address = process.wait_for_line("address", listening_address);
        Self { process, address, folder }
    }

    /// Ends the server with a signal and starts it again in the same folder.
    #[track_caller]
    pub(crate) fn restart(self, signal: &str, arguments: &[&str]) -> Self {
        let Self { process, folder, .. } = self;
        process.signal_and_finish(signal);
        Self::start_in(folder, arguments, |_| ())
    }

    /// Like `restart`, at the same address, so that clients can reconnect.
    #[track_caller]
    pub(crate) fn restart_at_same_address(self, signal: &str, arguments: &[&str]) -> Self {
        let Self { process, folder, address } = self;
        process.signal_and_finish(signal);
        Self::start_listening_at(address, folder, arguments, |_| ())
    }

    /// Starts a server at the address and in the folder of an earlier one.
    #[track_caller]
    pub(crate) fn start_at_address(
        address: SocketAddr,
        folder: TempDir,
        arguments: &[&str],
    ) -> Self {
        Self::start_listening_at(address, folder, arguments, |_| ())
    }

    /// The default data directory.
    pub(crate) fn data_dir(&self) -> PathBuf {
        self.folder.path().join("tidings-data")
    }

    /// The address for flags and other programs.
    pub(crate) fn address_text(&self) -> String {
        self.address.to_string()
    }
}

/// The address in a line such as `listening on 127.0.0.1:12345`.
fn listening_address(line: &str) -> Option<SocketAddr> {
    let (_, rest) = line.split_once("listening on ")?;
    let end = rest.find([' ', ',', ';']).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

//! Finds the process of a pid file, and checks that it is the intended one.
//!
//! A pid file may be outdated. Before a signal is sent, the process is opened as a pidfd, so that
//! no other process can take its number. It must be older than the file, have the right name, and
//! survive the signal.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, UNIX_EPOCH};
use std::{fs, io};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// How much younger than the file a process may seem: both times are accurate to about a second.
const START_TIME_TOLERANCE: Duration = Duration::from_secs(2);

/// Bytes of a pid file that are read.
const PID_FILE_BYTES: usize = 64;

/// Length of a process name in the kernel.
const COMM_BYTES: usize = 15;

/// A program that runs the script in its first argument that is not an option.
struct Interpreter {
    name: &'static str,
    /// Short options with a value, in the same argument or in the next.
    value_flags: &'static str,
    /// Short options with an optional value, which is the rest of the argument.
    attached_flags: &'static str,
    /// Whole options with a value in the next argument.
    value_options: &'static [&'static str],
    /// Short options that replace the script: the code is an argument or a module.
    no_script_flags: &'static str,
    no_script_options: &'static [&'static str],
}

const fn interpreter(
    name: &'static str,
    value_flags: &'static str,
    no_script_flags: &'static str,
) -> Interpreter {
    Interpreter {
        name,
        value_flags,
        attached_flags: "",
        value_options: &[],
        no_script_flags,
        no_script_options: &[],
    }
}

const INTERPRETERS: [Interpreter; 10] = [
    Interpreter { attached_flags: "CDFMVimx", ..interpreter("perl", "I", "eE") },
    interpreter("python", "QWX", "cm"),
    Interpreter { attached_flags: "FKTWx", ..interpreter("ruby", "CEIr", "e") },
    Interpreter {
        value_options: &["--require", "--import", "--loader", "--conditions", "--env-file"],
        no_script_options: &["--eval", "--print", "--test"],
        ..interpreter("node", "Cr", "ep")
    },
    Interpreter {
        value_options: &["--define", "--php-ini"],
        no_script_options: &["--run", "--server"],
        ..interpreter("php", "cdz", "BRSr")
    },
    interpreter("sh", "o", "cs"),
    Interpreter { value_options: &["--rcfile", "--init-file"], ..interpreter("bash", "oO", "cs") },
    interpreter("dash", "o", "cs"),
    Interpreter {
        value_options: &[
            "-cp",
            "-classpath",
            "--class-path",
            "-p",
            "--module-path",
            "--add-modules",
            "--add-opens",
            "--add-exports",
        ],
        no_script_options: &["-m", "--module"],
        ..interpreter("java", "", "")
    },
    Interpreter { value_options: &["-encoding"], ..interpreter("tclsh", "", "") },
];

/// Signals that can be sent, with their numbers on Linux.
pub const SIGNALS: [(&str, Signal); 11] = [
    ("HUP", Signal::HUP),
    ("INT", Signal::INT),
    ("QUIT", Signal::QUIT),
    ("USR1", Signal::USR1),
    ("USR2", Signal::USR2),
    ("ALRM", Signal::ALARM),
    ("TERM", Signal::TERM),
    ("CONT", Signal::CONT),
    ("URG", Signal::URG),
    ("WINCH", Signal::WINCH),
    ("IO", Signal::IO),
];

/// A signal by name, in either case, with or without `SIG`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignalName(Signal);

impl FromStr for SignalName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let name = text.to_ascii_uppercase();
        let name = name.strip_prefix("SIG").unwrap_or(&name);
        let found = SIGNALS.iter().find(|(known, _)| *known == name);
        found.map(|(_, signal)| Self(*signal)).ok_or_else(|| {
            let names: Vec<_> = SIGNALS.iter().map(|(name, _)| *name).collect();
            format!("expected one of {}", names.join(", "))
        })
    }
}

/// Why no process was signalled. Shown on one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignalError {
    /// The pid file is missing or has no number.
    #[error("{0}")]
    NoPid(String),
    /// No process has this number.
    #[error("process {0} is not running")]
    NotRunning(i32),
    /// The process is younger than the file.
    #[error("process {0} is younger than the pid file, so it is another program")]
    Stale(i32),
    /// The process has another name.
    #[error("process {pid} is {is}, not the expected program")]
    WrongProgram {
        /// Its number.
        pid: i32,
        /// Its name.
        is: String,
    },
    /// The process does not handle the signal, or not yet, and would be ended by it.
    #[error("process {0} has no handler for the signal, which would end it")]
    NoHandler(i32),
    /// The system denies it.
    #[error("process {0} cannot be signalled: {1}")]
    Denied(i32, String),
}

/// The process to signal.
#[derive(Debug, Clone)]
pub struct SignalTarget {
    /// The pid file.
    pub pid_file: PathBuf,
    /// The name that the program must have: a path if it contains `/`, otherwise a file name. For a
    /// script in an interpreter, the name of the script.
    pub program: Option<String>,
    /// The signal.
    pub signal: SignalName,
}

/// What the kernel reports about a process.
#[derive(Debug, Default)]
struct ProcessInfo {
    /// Path of the program, if it is readable.
    exe: Option<PathBuf>,
    comm: String,
    args: Vec<String>,
    has_ended: bool,
    started: Duration,
    /// Bit n - 1: signal n is handled, ignored or blocked.
    handled: u64,
}

impl SignalTarget {
    /// Signals the program and returns the number of its process, or why it was not signalled.
    pub fn send(&self) -> Result<i32, SignalError> {
        let (pid, written) = read_pid_file(&self.pid_file)?;
        let raw = pid.as_raw_pid();
        let handle = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| match error {
            Errno::SRCH | Errno::INVAL => SignalError::NotRunning(raw),
            error => SignalError::Denied(raw, error.to_string()),
        })?;
        // If the process ends now, the data may be that of another process, but the signal reaches
        // none.
        let facts = read_process(raw).map_err(|_| SignalError::NotRunning(raw))?;
        self.check(raw, &facts, written)?;
        pidfd_send_signal(&handle, self.signal.0).map_err(|error| match error {
            Errno::SRCH => SignalError::NotRunning(raw),
            error => SignalError::Denied(raw, error.to_string()),
        })?;
        Ok(raw)
    }

    fn check(&self, pid: i32, facts: &ProcessInfo, written: Duration) -> Result<(), SignalError> {
        if facts.has_ended {
            return Err(SignalError::NotRunning(pid));
        }
        if facts.started > written + START_TIME_TOLERANCE {
            return Err(SignalError::Stale(pid));
        }
        if self.program.as_ref().is_some_and(|program| !has_name(program, facts)) {
            let is = facts.exe.as_ref().map_or(facts.comm.clone(), |exe| exe.display().to_string());
            return Err(SignalError::WrongProgram { pid, is: is.escape_debug().to_string() });
        }
        let number = self.signal.0.as_raw();
        if facts.handled >> (number - 1) & 1 == 0 && ends_by_default(self.signal.0) {
            return Err(SignalError::NoHandler(pid));
        }
        Ok(())
    }
}

fn ends_by_default(signal: Signal) -> bool {
    ![Signal::CONT, Signal::URG, Signal::WINCH].contains(&signal)
}

fn has_name(program: &str, facts: &ProcessInfo) -> bool {
    let exe = facts.exe.as_deref();
    if program.contains('/') {
        return exe.is_some_and(|exe| exe == Path::new(program))
            || script(facts).is_some_and(|script| script == program);
    }
    let base = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    let exe_name = exe.and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    // The kernel truncates this name, so a longer name may match another program.
    let comm = String::from_utf8_lossy(&program.as_bytes()[..program.len().min(COMM_BYTES)]);
    let is_known_by_comm = exe.is_none() || program.len() <= COMM_BYTES;
    exe_name.as_deref() == Some(program)
        || is_known_by_comm && facts.comm == comm
        || script(facts).is_some_and(|script| base(script) == program)
}

fn script(facts: &ProcessInfo) -> Option<&str> {
    let exe = facts.exe.as_ref()?.file_name()?.to_string_lossy();
    let bare = exe.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    let interpreter = INTERPRETERS.iter().find(|it| it.name == bare)?;
    let mut args = facts.args.iter().skip(1).map(String::as_str);
    while let Some(arg) = args.next() {
        match interpreter.classify(arg) {
            Argument::Script if arg == "--" => return args.next(),
            Argument::Script => return Some(arg),
            Argument::Option => {}
            Argument::OptionAndValue => {
                args.next();
            }
            Argument::NoScript => return None,
        }
    }
    None
}

/// The role of an argument of an interpreter.
enum Argument {
    /// The script, or `--` before it.
    Script,
    Option,
    /// The next argument is its value.
    OptionAndValue,
    /// The interpreter runs without a script.
    NoScript,
}

impl Interpreter {
    fn classify(&self, arg: &str) -> Argument {
        let Some(letters) = arg.strip_prefix('-').filter(|_| arg != "--") else {
            return Argument::Script;
        };
        if self.no_script_options.contains(&arg) {
            return Argument::NoScript;
        }
        if self.value_options.contains(&arg) {
            return Argument::OptionAndValue;
        }
        if letters.starts_with('-') {
            return Argument::Option;
        }
        for (at, letter) in letters.char_indices() {
            if self.no_script_flags.contains(letter) {
                return Argument::NoScript;
            }
            if self.attached_flags.contains(letter) {
                return Argument::Option;
            }
            if self.value_flags.contains(letter) {
                let is_last = at + letter.len_utf8() == letters.len();
                return if is_last { Argument::OptionAndValue } else { Argument::Option };
            }
        }
        Argument::Option
    }
}

fn read_pid_file(path: &Path) -> Result<(Pid, Duration), SignalError> {
    let shown = path.display();
    let failed = |error: io::Error| SignalError::NoPid(format!("{shown}: {error}"));
    let metadata = fs::metadata(path).map_err(failed)?;
    let text = fs::read(path).map_err(failed)?;
    let text = String::from_utf8_lossy(&text[..text.len().min(PID_FILE_BYTES)]).into_owned();
    let number = text.split_whitespace().next().and_then(|word| word.parse().ok());
    let pid = number.filter(|pid| *pid > 0).and_then(Pid::from_raw);
    let pid =
        pid.ok_or_else(|| SignalError::NoPid(format!("{shown} does not contain a process id")))?;
    let modified = metadata.modified().map_err(failed)?;
    Ok((pid, modified.duration_since(UNIX_EPOCH).unwrap_or_default()))
}

fn read_process(pid: i32) -> io::Result<ProcessInfo> {
    let proc = PathBuf::from(format!("/proc/{pid}"));
    let stat = fs::read(proc.join("stat"))?;
    let status = fs::read(proc.join("status"))?;
    let boot = fs::read_to_string("/proc/stat")?;
    let ticks = rustix::param::clock_ticks_per_second();
    let (stat, status) = (String::from_utf8_lossy(&stat), String::from_utf8_lossy(&status));
    let mut facts = parse_process(&stat, &status, &boot, ticks)
        .ok_or_else(|| io::Error::other("/proc has an unknown format"))?;
    let exe = fs::read_link(proc.join("exe")).ok();
    // A program keeps its name if its file was replaced on the disk.
    facts.exe = exe.map(|exe| {
        let text = exe.to_string_lossy();
        text.strip_suffix(" (deleted)").map_or_else(|| exe.clone(), PathBuf::from)
    });
    let args = fs::read(proc.join("cmdline")).unwrap_or_default();
    let args = args.split(|byte| *byte == 0).map(|arg| String::from_utf8_lossy(arg).into_owned());
    facts.args = args.collect();
    Ok(facts)
}

/// Parses `/proc/<pid>/stat`, `/proc/<pid>/status` and `/proc/stat`.
fn parse_process(
    stat: &str,
    status: &str,
    boot: &str,
    ticks_per_second: u64,
) -> Option<ProcessInfo> {
    // The name is in parentheses, and may contain some itself.
    let (before, behind) = stat.rsplit_once(") ")?;
    let (_, comm) = before.split_once(" (")?;
    let words: Vec<_> = behind.split(' ').collect();
    // The third field of proc_pid_stat(5) is the first one after the name, so the 22nd is at 19.
    let ticks: u64 = words.get(19)?.parse().ok()?;
    let booted: u64 =
        boot.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    let ms = ticks.checked_mul(1_000)? / ticks_per_second;
    let mask = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        u64::from_str_radix(line.trim(), 16).ok()
    };
    Some(ProcessInfo {
        comm: comm.to_owned(),
        has_ended: matches!(*words.first()?, "Z" | "X"),
        started: Duration::from_secs(booted) + Duration::from_millis(ms),
        handled: mask("SigCgt:")? | mask("SigIgn:")? | mask("SigBlk:")?,
        ..ProcessInfo::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITTEN: Duration = Duration::from_secs(1_000_000);

    fn target(program: Option<&str>) -> SignalTarget {
        let pid_file = PathBuf::from("x.pid");
        SignalTarget {
            pid_file,
            program: program.map(str::to_owned),
            signal: "USR1".parse().unwrap(),
        }
    }

    /// A Perl script with a handler for SIGUSR1, started before the file was written.
    fn crawler() -> ProcessInfo {
        ProcessInfo {
            exe: Some("/usr/bin/perl5.36".into()),
            comm: "perl".to_owned(),
            args: ["perl", "-w", "/opt/crawl.pl", "-x"].map(str::to_owned).to_vec(),
            has_ended: false,
            started: WRITTEN,
            handled: 1 << (10 - 1),
        }
    }

    #[test]
    fn only_a_process_with_the_name_is_signalled() {
        for name in ["crawl.pl", "/opt/crawl.pl", "perl", "perl5.36", "/usr/bin/perl5.36"] {
            assert_eq!(target(Some(name)).check(7, &crawler(), WRITTEN), Ok(()), "{name}");
        }
        for name in ["crawl", "-x", "-w", "/opt/crawl", "vim", ""] {
            let judged = target(Some(name)).check(7, &crawler(), WRITTEN);
            let is = "/usr/bin/perl5.36".to_owned();
            assert_eq!(judged, Err(SignalError::WrongProgram { pid: 7, is }), "{name}");
        }
        // An editor that has the script open is not the script.
        let editor =
            ProcessInfo { exe: Some("/usr/bin/vim".into()), comm: "vim".into(), ..crawler() };
        assert!(target(Some("crawl.pl")).check(7, &editor, WRITTEN).is_err());
        // A program with another name that begins alike is another one.
        let other = ProcessInfo {
            exe: Some("/usr/bin/a-long-program-other".into()),
            comm: "a-long-program-".into(),
            ..crawler()
        };
        assert!(target(Some("a-long-program-name")).check(7, &other, WRITTEN).is_err());
        // For the process of another user only this name is known, and it is truncated.
        let theirs = ProcessInfo { exe: None, comm: "a-long-program-".into(), ..crawler() };
        assert_eq!(target(Some("a-long-program-name")).check(7, &theirs, WRITTEN), Ok(()));
    }

    #[test]
    fn the_script_is_the_first_argument_that_is_not_an_option_or_its_value() {
        for (line, is) in [
            ("perl -w -I lib /opt/crawl.pl -x", Some("/opt/crawl.pl")),
            ("perl -Ilib -MList::Util=reduce -i.e -l -- -odd", Some("-odd")),
            ("perl -l crawl.pl", Some("crawl.pl")),
            ("perl -wne crawl.pl other", None),
            ("python3.11 -u -W error -X dev crawl.py", Some("crawl.py")),
            ("python3 -m http.server crawl.py", None),
            ("bash -c crawl.sh crawl.sh", None),
            ("bash --rcfile rc -eo pipefail crawl.sh", Some("crawl.sh")),
            ("node --require trace crawl.js", Some("crawl.js")),
            ("java -Xmx1g -cp a.jar:b.jar -jar crawl.jar", Some("crawl.jar")),
            ("perl", None),
            ("vim crawl.pl", None),
        ] {
            let args: Vec<_> = line.split(' ').map(str::to_owned).collect();
            let exe = Some(PathBuf::from(format!("/usr/bin/{}", args[0])));
            let facts = ProcessInfo { exe, args, ..crawler() };
            assert_eq!(script(&facts), is, "{line}");
        }
    }

    #[test]
    fn a_process_that_is_younger_than_the_file_is_another() {
        let judge = |started| target(None).check(7, &ProcessInfo { started, ..crawler() }, WRITTEN);
        assert_eq!(judge(WRITTEN + START_TIME_TOLERANCE), Ok(()));
        assert_eq!(
            judge(WRITTEN + START_TIME_TOLERANCE + Duration::from_millis(1)),
            Err(SignalError::Stale(7))
        );
        let ended = ProcessInfo { has_ended: true, ..crawler() };
        assert_eq!(target(None).check(7, &ended, WRITTEN), Err(SignalError::NotRunning(7)));
    }

    #[test]
    fn a_process_that_the_signal_would_end_is_not_signalled() {
        let unprepared = ProcessInfo { handled: 0, ..crawler() };
        assert_eq!(target(None).check(7, &unprepared, WRITTEN), Err(SignalError::NoHandler(7)));
        let mut harmless = target(None);
        harmless.signal = "SIGWINCH".parse().unwrap();
        assert_eq!(harmless.check(7, &unprepared, WRITTEN), Ok(()));
    }

    #[test]
    fn a_process_with_any_name_is_parsed() {
        let stat = "42 (a) R (b c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 250 20";
        let status = "Name:\tx\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000000001\nSigCgt:\t0000000000000200\n";
        let facts = parse_process(stat, status, "cpu 1\nbtime 1000\n", 100).unwrap();
        assert_eq!((facts.comm.as_str(), facts.has_ended), ("a) R (b c", false));
        assert_eq!(facts.started, Duration::from_millis(1_002_500));
        assert_eq!(facts.handled, 0x201);
        for cut in 0..stat.len() - "250 20".len() {
            assert!(parse_process(&stat[..cut], status, "btime 1000\n", 100).is_none(), "{cut}");
        }
        assert!(parse_process(stat, status, "", 100).is_none());
        assert!(read_process(std::process::id().cast_signed()).is_ok());
    }

    #[test]
    fn only_a_positive_number_is_a_pid() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.pid");
        assert!(matches!(read_pid_file(&path), Err(SignalError::NoPid(_))));
        for text in ["", "0", "-1", "-7", "x", "99999999999", "1.5", "\u{0}7"] {
            fs::write(&path, text).unwrap();
            assert!(matches!(read_pid_file(&path), Err(SignalError::NoPid(_))), "{text:?}");
        }
        fs::write(&path, " 12\n").unwrap();
        assert_eq!(read_pid_file(&path).unwrap().0.as_raw_pid(), 12);
    }

    #[test]
    fn signals_have_names() {
        for name in ["SIGUSR1", "usr1", "sigusr1"] {
            assert_eq!(name.parse::<SignalName>(), "USR1".parse());
        }
        for wrong in ["KILL", "STOP", "9", "USR", ""] {
            assert!(wrong.parse::<SignalName>().unwrap_err().contains("USR1"), "{wrong}");
        }
    }
}

//! The processes between a crawler and its browser, which keep the browser from the network and
//! let no process of it outlive the crawler.
//!
//! ```text
//! crawler ── starter ── supervise ── init (PID 1 of its namespaces) ── browser ── its children
//! crawler ── starter ── supervise ── browser ── its children        (without namespaces)
//! ```
//!
//! `supervise` reads a pipe that only the crawler can write to, and `init` reads one that only
//! `supervise` can write to. A pipe closes when its writer ends, for any reason. Its reader notices
//! this, and ends too. `supervise` also measures the browser, because a crawler that gave up its
//! rights may not.
//!
//! - With namespaces, the end of `init` ends all processes of the browser. They have no network
//!   device, see no other process, and keep their files in memory. Mounting needs a user namespace
//!   in which the user is root. The browser runs in a second one inside of it, where the user is
//!   not root, because it refuses to run as root. There it sets up its own sandbox.
//! - Without namespaces, `supervise` adopts every process of the browser that has lost its parent,
//!   and kills them all. If `supervise` is killed, `starter` does this.

#![expect(clippy::disallowed_methods, reason = "killed processes take a moment to end")]

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::Duration;
use std::{env, fmt, fs, process, thread};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, WaitOptions, getgid, getpid, getppid, getuid,
    kill_process, pidfd_open, set_child_subreaper, set_parent_process_death_signal, setrlimit,
    wait,
};

use super::memory::{descendants, measure};
use super::starter;

/// The user of the browser in its own namespace. Any but root.
const USER_INSIDE: u32 = 1000;

/// The size of the profile in memory.
const PROFILE_BYTES_MAX: u64 = 256 << 20;

/// The kernel kills processes with a high value first (-1000 to 1000).
const OOM_SCORE: &str = "600";

/// How often processes are killed until none is left. Each new one was forked since the last time.
const KILLS_MAX: u32 = 200;
const KILL_PAUSE: Duration = Duration::from_millis(10);

/// How often adopted children are reaped, and the memory of a browser is measured. A page may
/// exceed its limit between two measurements.
const LOOK_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };

/// The exit status of a process of this module that could not start the next one.
pub(super) const FAILED: u8 = 71;

/// The words that select a process.
pub(super) const WITH_NAMESPACES: &str = "namespaces";
pub(super) const WITHOUT_NAMESPACES: &str = "processes";
const INIT: &str = "init";
const MEMBER: &str = "member";

/// What each process gets from the one above.
struct Task {
    /// The folder of the browser's files, which exists.
    profile: OsString,
    /// The browser and its arguments. Empty to try only whether the namespaces can be made.
    program: Vec<OsString>,
}

/// Runs one of the processes between crawler and browser. `args` are the words behind the words of
/// the hidden subcommand. It must be called before the process has a second thread, and before
/// descriptors are closed or marked: the browser inherits 3 and 4.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut args = args.into_iter();
    let mode = args.next().unwrap_or_default();
    let profile = args.next().unwrap_or_default();
    let task = Task { profile, program: args.collect() };
    let ended = match mode.to_str() {
        Some(starter::MODE) => starter::serve().map(|()| ExitStatus::default()),
        Some(WITH_NAMESPACES) => supervise(task, true),
        Some(WITHOUT_NAMESPACES) => supervise(task, false),
        Some(INIT) => run_init(&task),
        Some(MEMBER) => Err(become_browser(task)),
        _ => Err(io::Error::other(format!("{}: no such mode", mode.display()))),
    };
    match ended {
        Ok(status) => ExitCode::from(status.code().map_or(FAILED, |code| code.to_le_bytes()[0])),
        Err(error) => {
            #[expect(clippy::print_stderr, reason = "the crawler shows it")]
            {
                eprintln!("browser {}: {error}", mode.display());
            }
            ExitCode::from(FAILED)
        }
    }
}

/// The first word of the program is the memory at which a renderer is killed, in bytes.
fn supervise(mut task: Task, with_namespaces: bool) -> io::Result<ExitStatus> {
    let bytes_max = task.program.remove(0).to_str().and_then(|bytes| bytes.parse().ok());
    let bytes_max = bytes_max.unwrap_or(u64::MAX);
    let no_core = Rlimit { current: Some(0), maximum: Some(0) };
    setrlimit(Resource::Core, no_core)?;
    // Refused if the value is higher already, which is as good.
    let _ = fs::write("/proc/self/oom_score_adj", OOM_SCORE);
    if with_namespaces {
        enter_user_namespace(0)?;
        unshare(CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWIPC)?;
    } else {
        set_child_subreaper(Some(getpid()))?;
    }
    let mut command = Command::new("/proc/self/exe");
    let words = env::args_os().skip(1).take_while(|word| {
        *word != OsStr::new(WITH_NAMESPACES) && *word != OsStr::new(WITHOUT_NAMESPACES)
    });
    command.args(words).stdin(Stdio::piped()).stdout(Stdio::null());
    if with_namespaces {
        command.arg(INIT).arg(&task.profile).args(&task.program);
    } else {
        let pid = process::id().to_string();
        command.arg(MEMBER).arg(&task.profile).arg(pid).args(&task.program).process_group(0);
    }
    // It holds the write end of the child's pipe.
    let child = command.spawn()?;
    let ended = wait_for(Pid::from_child(&child), || watch_memory(bytes_max))?;
    for _ in 0..KILLS_MAX {
        let left = descendants(process::id());
        if left.is_empty() {
            break;
        }
        for pid in left.into_iter().filter_map(|pid| Pid::from_raw(pid.cast_signed())) {
            let _ = kill_process(pid, Signal::KILL);
        }
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        thread::sleep(KILL_PAUSE);
    }
    // `starter` does this too, unless it was killed.
    let _ = fs::remove_dir_all(&task.profile);
    report("ended", ended.into_raw());
    Ok(ended)
}

/// Reports the memory of the browser. A page that takes too much memory ends alone. Without this,
/// the kernel might kill any process.
fn watch_memory(renderer_bytes_max: u64) {
    let memory = measure(process::id());
    for (pid, bytes) in memory.renderers {
        if bytes > renderer_bytes_max
            && let Some(pid) = Pid::from_raw(pid.cast_signed())
        {
            // It may have ended.
            let _ = kill_process(pid, Signal::KILL);
            report("killed", bytes);
        }
    }
    report("memory", memory.bytes);
}

/// Tells the crawler, if it lives.
fn report(what: &str, value: impl fmt::Display) {
    let _ = writeln!(io::stdout(), "{what} {value}");
}

fn run_init(task: &Task) -> io::Result<ExitStatus> {
    // All mounts of this process are in its own namespace, and end with it.
    unshare(CloneFlags::CLONE_NEWNS)?;
    let none = None::<&Path>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("proc"), "/proc", Some("proc"), flags | MsFlags::MS_NOEXEC, none)?;
    let options = format!("size={PROFILE_BYTES_MAX},mode=0700");
    mount(Some("tmpfs"), Path::new(&task.profile), Some("tmpfs"), flags, Some(&*options))?;
    if Path::new("/dev/shm").is_dir() {
        mount(Some("tmpfs"), "/dev/shm", Some("tmpfs"), flags, Some("mode=1777"))?;
    }
    enter_user_namespace(USER_INSIDE)?;
    if task.program.is_empty() {
        return Ok(ExitStatus::default());
    }
    // The end of PID 1 ends all other processes of its namespace.
    wait_for(Pid::from_child(&browser(task).stdin(Stdio::null()).spawn()?), || ())
}

/// Turns this process into the browser, which is killed when its parent ends. The first word of the
/// program is the parent's number.
fn become_browser(mut task: Task) -> io::Error {
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return error.into();
    }
    // The parent may have ended before that.
    let parent = getppid().map_or(0, |parent| parent.as_raw_nonzero().get());
    if task.program.remove(0) != OsString::from(parent.to_string()) {
        return io::Error::other("the crawler has ended");
    }
    browser(&task).stdin(Stdio::null()).exec()
}

/// The command of the browser, with its profile. Its environment is what [`super::start`] has left
/// of the crawler's.
fn browser(task: &Task) -> Command {
    let mut command = Command::new(&task.program[0]);
    let mut profile = OsString::from("--user-data-dir=");
    profile.push(&task.profile);
    command.arg(profile).args(&task.program[1..]).current_dir("/");
    for variable in ["HOME", "TMPDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"] {
        command.env(variable, &task.profile);
    }
    command
}

/// Enters a new user namespace, in which the user of this process has the given number.
fn enter_user_namespace(inside: u32) -> io::Result<()> {
    let (user, group) = (getuid().as_raw(), getgid().as_raw());
    unshare(CloneFlags::CLONE_NEWUSER)?;
    // Without privileges, groups can be mapped only if they can no longer be changed.
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{inside} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{inside} {group} 1"))
}

/// Waits until the child ends, and kills it when the parent has ended: then the pipe at the
/// standard input is closed. Meanwhile it reaps adopted children that have exited, and calls
/// `look`.
fn wait_for(child: Pid, look: impl Fn()) -> io::Result<ExitStatus> {
    let end = pidfd_open(child, PidfdFlags::empty())?;
    let input = io::stdin();
    loop {
        let events = PollFlags::IN;
        let mut waiting = [PollFd::new(&end, events), PollFd::new(&input, events)];
        // An interruption is handled like an event.
        if poll(&mut waiting, Some(&LOOK_PAUSE)) == Ok(0) {
            look();
        }
        if !waiting[1].revents().is_empty() {
            kill_process(child, Signal::KILL)?;
        }
        while let Some((ended, status)) = wait(WaitOptions::NOHANG)? {
            if ended == child {
                return Ok(ExitStatus::from_raw(status.as_raw()));
            }
        }
    }
}

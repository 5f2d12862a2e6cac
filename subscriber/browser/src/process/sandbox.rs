//! The processes between a crawler and its browser, which keep the browser from the network and
//! let no process of it outlive the crawler.
//!
//! ```text
//! crawler ── supervise ── init (PID 1 of its namespaces) ── browser ── its children
//! crawler ── supervise ── browser ── its children                (without namespaces)
//! ```
//!
//! Each process reads a pipe whose other end is only in its parent, so it notices when the parent
//! ends, however it ends, and ends too.
//!
//! - With namespaces, the end of `init` ends all processes of the browser. They have no network
//!   device, see no other process, and keep their files in memory. Mounting needs a user namespace
//!   in which the user is root. A second one inside of it, where the user is not root, is what the
//!   browser runs in: it sets up its own sandbox there, and refuses to run as root.
//! - Without namespaces, `supervise` adopts every process of the browser whose parent has ended, and
//!   kills them all. The browser itself is killed by the kernel when `supervise` is killed.

#![expect(clippy::disallowed_methods, reason = "killed processes take a moment to end")]

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::Duration;
use std::{env, fs, process, thread};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, WaitOptions, getgid, getpid, getppid, getuid,
    kill_process, pidfd_open, set_child_subreaper, set_parent_process_death_signal, setrlimit,
    wait,
};

use super::memory::descendants;

/// The user of the browser in its own namespace. Any but root.
const USER_INSIDE: u32 = 1000;

/// The size of the profile in memory.
const PROFILE_BYTES_MAX: u64 = 256 << 20;

/// The kernel kills processes with a high value first (-1000 to 1000).
const OOM_SCORE: &str = "600";

/// How often processes are killed until none is left. Each new one was forked since the last time.
const KILLS_MAX: u32 = 200;
const KILL_PAUSE: Duration = Duration::from_millis(10);

/// How often adopted children are reaped.
const REAP_PAUSE: Duration = Duration::from_secs(1);

/// The exit status of a process here that could not prepare the next one.
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
        Some(WITH_NAMESPACES) => supervise(&task, true),
        Some(WITHOUT_NAMESPACES) => supervise(&task, false),
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

fn supervise(task: &Task, with_namespaces: bool) -> io::Result<ExitStatus> {
    let no_core = Rlimit { current: Some(0), maximum: Some(0) };
    setrlimit(Resource::Core, no_core)?;
    // It is refused if the value of this process is higher; then it stays.
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
    command.args(words).stdin(Stdio::piped());
    if with_namespaces {
        command.arg(INIT).arg(&task.profile).args(&task.program);
    } else {
        let pid = process::id().to_string();
        command.arg(MEMBER).arg(&task.profile).arg(pid).args(&task.program).process_group(0);
    }
    // It holds the other end of the child's pipe.
    let child = command.spawn()?;
    let ended = wait_for(Pid::from_child(&child))?;
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
    // What is left is what the crawler removes too, if it lives.
    let _ = fs::remove_dir_all(&task.profile);
    Ok(ended)
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
    wait_for(Pid::from_child(&browser(task).stdin(Stdio::null()).spawn()?))
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

/// The browser with its profile, and with nothing of the crawler's environment but what
/// [`super::start`] left.
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

/// Waits until the child ends, and kills it when the parent has ended: then the pipe that is the
/// standard input has no other end. Meanwhile ends adopted children that have exited.
fn wait_for(child: Pid) -> io::Result<ExitStatus> {
    let end = pidfd_open(child, PidfdFlags::empty())?;
    let input = io::stdin();
    let pause = Timespec { tv_sec: REAP_PAUSE.as_secs().cast_signed(), tv_nsec: 0 };
    loop {
        let events = PollFlags::IN;
        let mut waiting = [PollFd::new(&end, events), PollFd::new(&input, events)];
        // An interruption is as good as a timeout.
        let _ = poll(&mut waiting, Some(&pause));
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

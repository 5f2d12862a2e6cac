//! The process that starts browsers for a crawler.
//!
//! A crawler gives up rights before it works. Under Landlock, neither it nor its children may mount
//! anything or execute other programs, which a browser needs. So it starts this process first, and
//! asks it for each browser over a socket. This process ends when the socket is closed and no
//! browser is left. If the process above a browser is killed, this one kills the remaining
//! processes and removes the files.

#![expect(clippy::disallowed_methods, reason = "a browser has a time limit to end")]

use std::ffi::{OsStr, OsString};
use std::io::{self, IoSlice, IoSliceMut, Stdin, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs};

use command_fds::{CommandFdExt, FdMapping};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socketpair,
};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, geteuid, getpid, kill_process, pidfd_open,
    set_child_subreaper, wait,
};

use super::memory::children;

/// The word that selects this process.
pub(super) const MODE: &str = "starter";

/// The user of the browsers if the crawler runs as root: Chromium refuses to run as root in its
/// sandbox. By convention, the number of a user and a group without rights.
const NOBODY: u32 = 65_534;

/// The words of one request, with a NUL byte between two of them.
const REQUEST_BYTES_MAX: usize = 64 << 10;

/// How long a browser may take to end, before the process above it is killed.
const END_MAX: Duration = Duration::from_secs(4);

/// How often processes are checked while a browser ends.
const LOOK_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// The ends of pipes that the process above a browser gets, as its descriptors 0 to 4.
pub(super) struct Ends {
    /// Its other end is closed to end the browser.
    pub(super) control: OwnedFd,
    /// Takes reports. It is closed when nothing of the browser is left.
    pub(super) reports: OwnedFd,
    /// Takes messages of all processes.
    pub(super) messages: OwnedFd,
    /// Read by the browser.
    pub(super) to_browser: OwnedFd,
    /// Written by the browser.
    pub(super) from_browser: OwnedFd,
}

/// The process that starts browsers. It ends when this is dropped, and kills what is left.
#[derive(Debug)]
pub struct Starter {
    /// `None` while this is dropped.
    socket: Option<OwnedFd>,
    child: Child,
}

impl Starter {
    /// Starts the process. Rights that the caller gives up afterwards remain to the browsers.
    /// `sandbox_words` are those with which this program calls [`run`](super::sandbox::run).
    pub fn start(sandbox_words: &[OsString]) -> io::Result<Self> {
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (socket, theirs) = socketpair(AddressFamily::UNIX, kind, flags, None)?;
        let mut command = Command::new("/proc/self/exe");
        command.args(sandbox_words).arg(MODE).stdin(theirs).stdout(Stdio::null());
        command.env_clear().envs([("PATH", "/usr/bin:/bin"), ("LANG", "C.UTF-8"), ("TZ", "UTC")]);
        command.env("TMPDIR", env::temp_dir()).current_dir("/");
        // Signals from the terminal reach only the crawler, which then ends the browsers.
        command.process_group(0);
        if geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        Ok(Self { socket: Some(socket), child: command.spawn()? })
    }

    /// Asks for a process above a browser, with these arguments behind the folder of its files.
    pub(super) fn request(&self, words: &[OsString], ends: &Ends) -> io::Result<()> {
        let Ends { control, reports, messages, to_browser, from_browser } = ends;
        let ends = [control, reports, messages, to_browser, from_browser].map(AsFd::as_fd);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(5))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&ends));
        let request = words.join(OsStr::from_bytes(b"\0"));
        let request = [IoSlice::new(request.as_bytes())];
        let socket = self.socket.as_ref().expect("it is not dropped");
        // The process reads soon, unless it was stopped.
        sendmsg(socket, &request, &mut ancillary, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
        Ok(())
    }
}

impl Drop for Starter {
    fn drop(&mut self) {
        self.socket = None;
        // It fails only if the process is gone.
        let _ = self.child.wait();
    }
}

/// A browser, from its start until nothing of it is left.
struct Started {
    /// The process above the browser.
    pid: Pid,
    /// Readable when that process has ended.
    end: OwnedFd,
    has_ended: bool,
    control: OwnedFd,
    /// Set when the other end of `control` was closed.
    kill_at: Option<Instant>,
    #[expect(dead_code, reason = "held until drop, which tells the crawler")]
    reports: OwnedFd,
    profile: PathBuf,
}

/// Starts browsers until the crawler closes the socket, and then waits until all have ended.
pub(super) fn serve() -> io::Result<()> {
    // A process becomes a child of this one if its parent is killed.
    set_child_subreaper(Some(getpid()))?;
    let socket = io::stdin();
    let mut is_open = true;
    let mut browsers = Vec::<Started>::new();
    while is_open || !browsers.is_empty() {
        wait_for_change(is_open.then_some(&socket), &browsers);
        if is_open && is_ready(socket.as_fd(), PollFlags::IN) {
            match receive(&socket)? {
                Some((words, ends)) => browsers.extend(start(words, ends)),
                None => is_open = false,
            }
        }
        for browser in &mut browsers {
            let is_unwanted = || is_ready(browser.control.as_fd(), PollFlags::empty());
            let kill_at = match browser.kill_at {
                None if is_unwanted() => Instant::now() + END_MAX,
                None => continue,
                Some(kill_at) => kill_at,
            };
            browser.kill_at = Some(kill_at);
            if !browser.has_ended && kill_at <= Instant::now() {
                let _ = kill_process(browser.pid, Signal::KILL);
            }
        }
        while let Ok(Some((pid, _))) = wait(WaitOptions::NOHANG) {
            browsers.iter_mut().filter(|it| it.pid == pid).for_each(|it| it.has_ended = true);
        }
        if browsers.iter().any(|it| it.has_ended) && !kill_orphans(&browsers) {
            for browser in browsers.extract_if(.., |it| it.has_ended) {
                // An error means that it is gone already.
                let _ = fs::remove_dir_all(&browser.profile);
            }
        }
    }
    Ok(())
}

fn wait_for_change(socket: Option<&Stdin>, browsers: &[Started]) {
    let mut waiting: Vec<_> = socket.iter().map(|it| PollFd::new(*it, PollFlags::IN)).collect();
    for browser in browsers.iter().filter(|it| !it.has_ended) {
        waiting.push(PollFd::new(&browser.end, PollFlags::IN));
        if browser.kill_at.is_none() {
            waiting.push(PollFd::new(&browser.control, PollFlags::empty()));
        }
    }
    let is_ending = |it: &Started| it.has_ended || it.kill_at.is_some();
    let pause = browsers.iter().any(is_ending).then_some(&LOOK_PAUSE);
    // An interruption is handled like a change.
    let _ = poll(&mut waiting, pause);
}

/// Whether a descriptor has one of these events, or was closed at the other end.
fn is_ready(descriptor: BorrowedFd<'_>, events: PollFlags) -> bool {
    let mut waiting = [PollFd::from_borrowed_fd(descriptor, events)];
    poll(&mut waiting, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Kills processes that have lost the process above their browser. Returns whether there are any.
fn kill_orphans(browsers: &[Started]) -> bool {
    let is_known = |pid: &Pid| browsers.iter().any(|it| it.pid == *pid);
    let children = children(getpid().as_raw_pid().cast_unsigned());
    let children = children.into_iter().filter_map(|pid| Pid::from_raw(pid.cast_signed()));
    let orphans: Vec<_> = children.filter(|pid| !is_known(pid)).collect();
    for pid in &orphans {
        let _ = kill_process(*pid, Signal::KILL);
    }
    !orphans.is_empty()
}

/// Reads one request. `None` when the crawler has closed the socket.
fn receive(socket: &Stdin) -> io::Result<Option<(Vec<OsString>, Ends)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(5))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = vec![0; REQUEST_BYTES_MAX];
    let mut request = [IoSliceMut::new(&mut bytes)];
    let received = recvmsg(socket, &mut request, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let incomplete = || io::Error::other("a request is incomplete");
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(incomplete());
    }
    let ends = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(ends) => Some(ends.collect::<Vec<_>>()),
        _ => None,
    });
    let [control, reports, messages, to_browser, from_browser] =
        ends.and_then(|ends| ends.try_into().ok()).ok_or_else(incomplete)?;
    let ends = Ends { control, reports, messages, to_browser, from_browser };
    let words = bytes[..received.bytes].split(|byte| *byte == 0);
    Ok(Some((words.map(|word| OsString::from_vec(word.to_vec())).collect(), ends)))
}

/// Starts the process above a browser. If that fails, the crawler gets the reason as a message.
fn start(words: Vec<OsString>, ends: Ends) -> Option<Started> {
    let messages = ends.messages.try_clone().ok()?;
    match try_to_start(words, ends) {
        Ok(started) => Some(started),
        Err(error) => {
            // The crawler may be gone.
            let _ = write!(io::PipeWriter::from(messages), "cannot start a browser: {error}");
            None
        }
    }
}

fn try_to_start(words: Vec<OsString>, ends: Ends) -> io::Result<Started> {
    let (control, reports) = (ends.control.try_clone()?, ends.reports.try_clone()?);
    let profile = tempfile::Builder::new().prefix("tidings-browser-").tempdir()?;
    let mut command = Command::new("/proc/self/exe");
    command.args(env::args_os().skip(1).take_while(|word| word != MODE));
    let mut words = words.into_iter();
    command.args(words.next()).arg(profile.path()).args(words);
    command.stdin(ends.control).stdout(ends.reports).stderr(ends.messages);
    let mappings = [(ends.to_browser, 3), (ends.from_browser, 4)];
    let mappings = mappings.map(|(parent_fd, child_fd)| FdMapping { parent_fd, child_fd });
    command.fd_mappings(mappings.into()).map_err(io::Error::other)?;
    let pid = Pid::from_child(&command.spawn()?);
    let end = pidfd_open(pid, PidfdFlags::empty())?;
    let (has_ended, kill_at) = (false, None);
    Ok(Started { pid, end, has_ended, control, kill_at, reports, profile: profile.keep() })
}

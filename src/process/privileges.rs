//! What a server gives up before it serves: inherited file descriptors, root privileges, and access
//! to files that it does not need.
//!
//! The first thread does this before it starts others, because some of it applies to the calling
//! thread and the threads that it starts later.

use std::env;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use rustix::fs::Mode;
use tidings_broker::Sockets;
use tidings_browser::process::Starter;

use crate::flags::parse_moderate_duration;
use crate::process::landlock::{self, LandlockMode};
use crate::process::{sockets, stack, user};
use crate::terminal::failure::Failure;

/// Flags of a server process.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "The process")]
pub(crate) struct ProcessFlags {
    /// Drop privileges to this user after the sockets are open (needs root)
    ///
    /// The process reads the files of its flags as this user, and a new data directory belongs to
    /// this user.
    #[arg(long, value_name = "NAME")]
    user: Option<String>,

    /// With --user: use this group instead of the primary group of the user
    #[arg(long, value_name = "NAME", requires = "user")]
    group: Option<String>,

    /// Confine the process with Landlock: auto, off or require
    ///
    /// It can then write only to --data and the files that flags name, and cannot read home
    /// directories. auto does this if the kernel supports it and --exec is not used; require
    /// refuses to start otherwise.
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    landlock: LandlockMode,

    /// Longest duration of a stop; crawlers finish requests and subscribers receive pending events
    /// until then
    #[arg(long, value_name = "DURATION", default_value = "930ms", value_parser = parse_moderate_duration)]
    pub(crate) stop_timeout: Duration,
}

impl ProcessFlags {
    /// Whether this machine has the user and the group.
    pub(crate) fn check_user(&self) -> Result<(), Failure> {
        let user = self.user.as_deref().map(|user| user::find_user(user, self.group.as_deref()));
        user.transpose().map(drop)
    }
}

/// The hidden subcommand that runs the processes between a crawler and its browser.
pub(crate) const SANDBOX_COMMAND: &str = "browser-sandbox";

/// What a server process uses.
pub(crate) struct ServerResources<'a> {
    pub(crate) flags: &'a ProcessFlags,
    pub(crate) listen: SocketAddr,
    /// `None`: HTTP is off.
    pub(crate) http: Option<SocketAddr>,
    /// The data directory.
    pub(crate) data: &'a Path,
    /// Directories of further files that it writes.
    pub(crate) output_dirs: Vec<PathBuf>,
    /// Directories of further files that it reads.
    pub(crate) input_dirs: Vec<PathBuf>,
    /// `--exec` is used; programs may do anything.
    pub(crate) runs_programs: bool,
    /// Pages are rendered; what starts the browsers keeps the rights that this process gives up.
    pub(crate) runs_browsers: bool,
    /// It starts this program again, as a process of its own.
    pub(crate) runs_itself: bool,
}

/// Programs that this process starts do not inherit its descriptors. The process itself keeps them,
/// because sockets of a service manager are among them.
pub(crate) fn close_descriptors_on_exec() {
    close_fds::set_fds_cloexec(3, &[]);
}

/// Drops what is not needed, and returns the sockets that are already open, and what starts
/// browsers.
pub(crate) fn prepare(server: &ServerResources<'_>) -> Result<(Sockets, Option<Starter>), Failure> {
    let (flags, listen, http) = (server.flags, server.listen, server.http);
    let mut sockets = sockets::passed_sockets()?;
    if sockets.http.is_some() && http.is_none() {
        let text = "the service manager passed a socket for HTTP, which is off (--http off); remove one of the two";
        return Err(Failure::Usage(text.to_owned()));
    }
    if let Some(user) = &flags.user {
        let user = user::find_user(user, flags.group.as_deref())?;
        if user.differs_from_current() {
            // Ports below 1024 need root, so they are bound now.
            if sockets.line.is_none() {
                sockets.line = Some(stack::bind(listen, "--listen")?);
            }
            if let (None, Some(at)) = (&sockets.http, http) {
                sockets.http = Some(stack::bind(at, "--http")?);
            }
            user.become_user(server.data)?;
        }
    } else if user::is_root() {
        tracing::warn!("this process runs as root; use --user NAME to drop privileges");
    }
    if !server.runs_programs {
        // Programs decide the permissions of their own files.
        let before = rustix::process::umask(Mode::from_raw_mode(0o077));
        // Files that flags name for other readers keep the usual permissions.
        tidings_subscriber::sink::set_output_mode(0o666 & !before.as_raw_mode());
    }
    let starter = server.runs_browsers.then(|| Starter::start(&[SANDBOX_COMMAND.into()]));
    let starter = starter.transpose().context("cannot start the process that starts browsers")?;
    confine(server)?;
    Ok((sockets, starter))
}

fn confine(server: &ServerResources<'_>) -> Result<(), Failure> {
    let when = server.flags.landlock;
    match when {
        LandlockMode::Off => return Ok(()),
        LandlockMode::Require if server.runs_programs => {
            let text = "--landlock require would also confine the programs of --exec; use --landlock off, or remove \
                        --exec";
            return Err(Failure::Usage(text.to_owned()));
        }
        _ if server.runs_programs => {
            tracing::debug!("not confined by Landlock because of --exec");
            return Ok(());
        }
        LandlockMode::Auto | LandlockMode::Require => {}
    }
    stack::make_data_directory(server.data)?;
    let mut written = vec![server.data.to_owned(), env::temp_dir()];
    written.extend(server.output_dirs.iter().map(|dir| nearest_existing(dir)));
    landlock::confine(
        when,
        &landlock::AllowedPaths {
            writable: written,
            readable: server.input_dirs.clone(),
            runs_self: server.runs_itself,
        },
    )
}

/// The directory, or the nearest existing one above it.
fn nearest_existing(dir: &Path) -> PathBuf {
    let there = dir.ancestors().find(|dir| dir.is_dir());
    there.unwrap_or(Path::new(".")).to_owned()
}

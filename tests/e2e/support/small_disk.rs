//! A small disk that a test can fill: a tmpfs in its own mount namespace.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::namespace::unshare_flags;
use super::process::{Process, ProcessOutput, Server, started_by};

/// A small disk that only the processes of one test can see.
pub(crate) struct SmallDisk {
    /// Keeps the namespace alive; other processes enter the namespace of this one.
    namespace_process: Process,
    user_namespace: bool,
    folder: TempDir,
}

impl SmallDisk {
    #[track_caller]
    pub(crate) fn mount(megabytes: u32) -> Self {
        let folder = TempDir::new().unwrap();
        let flags = unshare_flags();
        let script =
            format!("mount -t tmpfs -o size={megabytes}m none \"$1\" && echo mounted && exec cat");
        let namespace_process = Process::start(
            Command::new("unshare").args([flags, "sh", "-c", &script, "sh"]).arg(folder.path()),
        );
        namespace_process.wait_for_line_with("mounted");
        Self { namespace_process, user_namespace: flags.contains('U'), folder }
    }

    /// Starts a broker with its data on the disk.
    #[track_caller]
    pub(crate) fn start_broker(&self) -> Server {
        self.start_broker_with(&[])
    }

    /// Like [`start_broker`](Self::start_broker), with more flags.
    #[track_caller]
    pub(crate) fn start_broker_with(&self, flags: &[&str]) -> Server {
        let data = self.folder.path().join("data");
        let flags = [&["broker", "--data", data.to_str().unwrap()], flags].concat();
        Server::start_with(&flags, |command| {
            *command = started_by(self.nsenter_command(), command);
        })
    }

    /// Runs the binary on the disk, with the data directory there, until it ends.
    #[track_caller]
    pub(crate) fn run_tidings(&self, arguments: &[&str]) -> ProcessOutput {
        let mut inside = self.nsenter_command();
        let data = self.folder.path().join("data");
        inside.arg(env!("CARGO_BIN_EXE_tidings")).args(arguments).arg("--data").arg(data);
        Process::start(&mut inside).finish()
    }

    /// A command that runs its arguments in the namespace of the disk.
    pub(crate) fn nsenter_command(&self) -> Command {
        let mut inside = Command::new("nsenter");
        inside.arg(format!("--target={}", self.namespace_process.id())).arg("--mount");
        if self.user_namespace {
            inside.args(["--user", "--preserve-credentials"]);
        }
        inside
    }

    /// Locks a database of the broker against writes until the result is dropped.
    #[track_caller]
    pub(crate) fn lock_database(&self, name: &str) -> Process {
        let file = self.folder.path().join("data").join(name);
        let mut holder = Process::start(self.nsenter_command().arg("sqlite3").arg(file));
        holder.write("BEGIN IMMEDIATE;\nSELECT 'held';\n");
        holder.wait_for_line_with("held");
        holder
    }

    /// Also mounts the disk at another path, until it is unmounted there.
    #[track_caller]
    pub(crate) fn mount_at(&self, target: &Path) {
        let arguments = [OsStr::new("mount"), OsStr::new("--bind"), self.folder.path().as_os_str()];
        assert!(self.nsenter_command().args(arguments).arg(target).status().unwrap().success());
    }

    #[track_caller]
    pub(crate) fn unmount_at(&self, target: &Path) {
        assert!(self.nsenter_command().arg("umount").arg(target).status().unwrap().success());
    }

    /// The path of another folder inside the namespace, for a process outside of it.
    pub(crate) fn outside_path(&self, folder: &Path) -> PathBuf {
        let folder = folder.strip_prefix("/").unwrap();
        PathBuf::from(format!("/proc/{}/root", self.namespace_process.id())).join(folder)
    }

    /// The path of the disk, for a process outside of the namespace.
    pub(crate) fn disk_path(&self) -> PathBuf {
        self.outside_path(self.folder.path())
    }

    /// Fills the disk with a file, except for this number of bytes.
    #[track_caller]
    pub(crate) fn fill_except(&self, bytes: u64) {
        let stat = rustix::fs::statvfs(self.disk_path()).unwrap();
        let mut left = (stat.f_bavail * stat.f_frsize).saturating_sub(bytes);
        let mut ballast = File::options()
            .append(true)
            .create(true)
            .open(self.disk_path().join("ballast"))
            .unwrap();
        while left > 0 {
            let chunk = vec![1; usize::try_from(left.min(1 << 16)).unwrap()];
            match ballast.write_all(&chunk) {
                Ok(()) => left -= chunk.len() as u64,
                Err(error) if error.kind() == ErrorKind::StorageFull => return,
                Err(error) => panic!("{error}"),
            }
        }
    }

    pub(crate) fn free_space(&self) {
        fs::remove_file(self.disk_path().join("ballast")).unwrap();
    }
}

//! `tidings watch` with directories that are unreadable, missing, or keep changing.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::fs::{Mode, OFlags};

use crate::connectors::files::{
    announced_events, announced_files, disk_dir, wait_for_event, wait_until_announced, watch_dir,
    watch_once, write_and_rename,
};
use crate::support::process::{Process, Server, started_by, tidings_command};
use crate::support::small_disk::SmallDisk;
use crate::support::wait::wait_until;

/// Starts a watch through another program.
#[track_caller]
fn start_watch_with(server: &Server, starter: &[&str], dir: &Path) -> Process {
    let watch =
        tidings_command(server.folder.path(), ["watch", "--data", "watched", "--recursive"]);
    let mut command = Command::new(starter[0]);
    command.args(&starter[1..]);
    let watch = Process::start(
        started_by(command, &watch).args(["--broker", &server.address_text()]).arg(dir),
    );
    watch.wait_for_line_with("watching ");
    watch
}

#[test]
#[ignore = "needs foreign programs"]
fn an_unreadable_directory_is_retried() {
    let server = Server::start_broker();
    let dir = disk_dir();
    let (closed, below) = (dir.path().join("closed"), dir.path().join("closed/below"));
    fs::create_dir_all(&below).unwrap();
    fs::write(below.join("file"), "x").unwrap();
    let set_mode = |mode| fs::set_permissions(&closed, Permissions::from_mode(mode)).unwrap();
    set_mode(0);
    // A path that is too long for the system.
    let mut deep = rustix::fs::open(dir.path(), OFlags::DIRECTORY, Mode::empty()).unwrap();
    for _ in 0..20 {
        let name = "d".repeat(250);
        rustix::fs::mkdirat(&deep, &name, Mode::RWXU).unwrap();
        deep = rustix::fs::openat(&deep, &name, OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    // Root can read everything, so setpriv drops that capability.
    let no_root = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"];
    let starter = if rustix::process::geteuid().is_root() { &no_root[..] } else { &["env"] };
    let watch = start_watch_with(&server, starter, dir.path());
    let shown = closed.to_str().unwrap();
    wait_for_event(&server, &format!("{shown} error=denied id="));
    wait_until("an event for the deep directory", || {
        announced_events(&server).into_iter().find(|event| event.contains(" error=unreadable id="))
    });
    set_mode(0o700);
    wait_for_event(&server, &format!("{shown} error=none id="));
    wait_until_announced(&server, &below.join("file"), 1);
    write_and_rename(&below.join("second"), "x");
    wait_until_announced(&server, &below.join("second"), 1);
    watch.signal_and_finish("TERM").expect_code(0);
    let errors: Vec<_> =
        announced_events(&server).into_iter().filter(|event| event.contains(" error=")).collect();
    assert_eq!(errors.len(), 3, "one event per change: {errors:#?}");
}

#[test]
#[ignore = "needs foreign programs"]
fn files_of_an_unmounted_disk_are_not_announced_again() {
    let server = Server::start_broker();
    let (disk, folder) = (SmallDisk::mount(4), disk_dir());
    let dir = disk.outside_path(folder.path());
    let real = disk_dir();
    let mounted = real.path().join("disk");
    fs::create_dir(&mounted).unwrap();
    for name in ["first", "second"] {
        fs::write(disk.disk_path().join(name), name).unwrap();
    }
    disk.mount_at(folder.path());
    watch_once(&server, &dir, &[]);
    // The disk is unmounted while no watch runs.
    disk.unmount_at(folder.path());
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    let watch = watch_dir(&server, &dir, &[]);
    let shown = dir.to_str().unwrap();
    wait_for_event(&server, &format!("{shown} error=gone id="));
    disk.mount_at(folder.path());
    wait_for_event(&server, &format!("{shown} error=none id="));
    write_and_rename(&dir.join("third"), "third");
    wait_until_announced(&server, &dir.join("third"), 1);
    watch.signal_and_finish("TERM").expect_code(0).expect_stderr("3 events announced");

    // A mount below the watched directory causes no inotify event, so the watch must poll.
    let dir = disk.outside_path(real.path());
    disk.mount_at(&mounted);
    let watch = watch_dir(&server, &dir, &["--recursive", "--poll", "50ms"]);
    for name in ["first", "second", "third"] {
        wait_until_announced(&server, &dir.join("disk").join(name), 1);
    }
    disk.unmount_at(&mounted);
    let shown = dir.join("disk").display().to_string();
    wait_for_event(&server, &format!("{shown} error=gone id="));
    disk.mount_at(&mounted);
    wait_for_event(&server, &format!("{shown} error=none id="));
    write_and_rename(&dir.join("disk/fourth"), "fourth");
    wait_until_announced(&server, &dir.join("disk/fourth"), 1);
    watch.signal_and_finish("TERM").expect_code(0).expect_stderr("6 events announced");
}

#[test]
#[ignore = "needs foreign programs"]
fn once_ends_in_a_directory_that_keeps_changing() {
    let server = Server::start_broker();
    let dir = disk_dir();
    write_and_rename(&dir.path().join("calm"), "x");
    for flags in [&["--settle", "200ms"][..], &["--poll", "50ms", "--settle", "200ms"]] {
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0_usize.. {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    fs::write(dir.path().join("log"), "x".repeat(n % 5_000)).unwrap();
                    fs::write(dir.path().join(n.to_string()), "x").unwrap();
                    thread::yield_now();
                    fs::remove_file(dir.path().join(n.to_string())).unwrap();
                }
            });
            watch_once(&server, dir.path(), flags);
            is_over.store(true, Ordering::Relaxed);
        });
    }
    assert!(announced_files(&server).contains(&dir.path().join("calm")));
}

#[test]
#[ignore = "needs foreign programs"]
fn directories_beyond_the_inotify_limit_are_polled() {
    let server = Server::start_broker();
    let dir = disk_dir();
    for n in 0..6 {
        fs::create_dir(dir.path().join(n.to_string())).unwrap();
    }
    let limit = "echo 3 > /proc/sys/user/max_inotify_watches && exec \"$@\"";
    let watch = start_watch_with(&server, &["unshare", "-Ur", "sh", "-c", limit, "sh"], dir.path());
    watch.wait_for_line_with("is polled instead of watched");
    for n in 0..6 {
        let file = dir.path().join(format!("{n}/file"));
        drop(File::create(&file).unwrap());
        wait_until_announced(&server, &file, 1);
    }
}

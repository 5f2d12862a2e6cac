//! `tidings watch` where directories cannot be read, are not there, or are never at rest.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::fs::{Mode, OFlags};

use crate::connectors::files::{
    announced, files, once, place, real_dir, until_announced, until_event, watch_dir,
};
use crate::support::process::{Running, Server, tidings};
use crate::support::small_disk::SmallDisk;
use crate::support::wait::until;

/// Watches through another program, which starts it in its own way.
#[track_caller]
fn watch_by(server: &Server, starter: &[&str], dir: &Path) -> Running {
    let watch = tidings(server.folder.path(), ["watch", "--data", "watched", "--recursive"]);
    let mut command = Command::new(starter[0]);
    command.args(&starter[1..]).arg(watch.get_program()).args(watch.get_args());
    command.current_dir(watch.get_current_dir().unwrap());
    let watch = Running::start(command.args(["--broker", &server.text()]).arg(dir));
    watch.line_with("watching ");
    watch
}

#[test]
fn a_directory_that_could_not_be_read_is_looked_at_again() {
    let server = Server::broker();
    let dir = real_dir();
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
    // Root may read everything, unless it cannot do without.
    let no_root = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"];
    let starter = if rustix::process::geteuid().is_root() { &no_root[..] } else { &["env"] };
    let watch = watch_by(&server, starter, dir.path());
    let shown = closed.to_str().unwrap();
    until_event(&server, &format!("{shown} error=denied id="));
    until("the deep one", || {
        announced(&server).into_iter().find(|event| event.contains(" error=unreadable id="))
    });
    set_mode(0o700);
    until_event(&server, &format!("{shown} error=none id="));
    until_announced(&server, &below.join("file"), 1);
    place(&below.join("second"), "x");
    until_announced(&server, &below.join("second"), 1);
    watch.finish_by("TERM").expect_code(0);
    let errors: Vec<_> =
        announced(&server).into_iter().filter(|event| event.contains(" error=")).collect();
    assert_eq!(errors.len(), 3, "once per change: {errors:#?}");
}

#[test]
fn what_is_unmounted_is_not_gone() {
    let server = Server::broker();
    let (disk, folder) = (SmallDisk::mount(4), real_dir());
    let dir = disk.seen(folder.path());
    let real = real_dir();
    let mounted = real.path().join("disk");
    fs::create_dir(&mounted).unwrap();
    for name in ["first", "second"] {
        fs::write(disk.path().join(name), name).unwrap();
    }
    disk.mount_at(folder.path());
    once(&server, &dir, &[]);
    // While nobody watches.
    disk.unmount_at(folder.path());
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    let watch = watch_dir(&server, &dir, &[]);
    let shown = dir.to_str().unwrap();
    until_event(&server, &format!("{shown} error=gone id="));
    disk.mount_at(folder.path());
    until_event(&server, &format!("{shown} error=none id="));
    place(&dir.join("third"), "third");
    until_announced(&server, &dir.join("third"), 1);
    let ended = watch.finish_by("TERM").expect_code(0);
    assert!(ended.stderr().contains("3 events announced"), "{}", ended.stderr());

    // Below what is watched, by looking, as no notice comes of this.
    let dir = disk.seen(real.path());
    disk.mount_at(&mounted);
    let watch = watch_dir(&server, &dir, &["--recursive", "--poll", "50ms"]);
    for name in ["first", "second", "third"] {
        until_announced(&server, &dir.join("disk").join(name), 1);
    }
    disk.unmount_at(&mounted);
    let shown = dir.join("disk").display().to_string();
    until_event(&server, &format!("{shown} error=gone id="));
    disk.mount_at(&mounted);
    until_event(&server, &format!("{shown} error=none id="));
    place(&dir.join("disk/fourth"), "fourth");
    until_announced(&server, &dir.join("disk/fourth"), 1);
    let ended = watch.finish_by("TERM").expect_code(0);
    assert!(ended.stderr().contains("6 events announced"), "{}", ended.stderr());
}

#[test]
fn once_ends_in_a_directory_that_is_never_at_rest() {
    let server = Server::broker();
    let dir = real_dir();
    place(&dir.path().join("calm"), "x");
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
            once(&server, dir.path(), flags);
            is_over.store(true, Ordering::Relaxed);
        });
    }
    assert!(files(&server).contains(&dir.path().join("calm")));
}

#[test]
fn directories_for_which_the_kernel_has_no_watches_left_are_looked_through() {
    let server = Server::broker();
    let dir = real_dir();
    for n in 0..6 {
        fs::create_dir(dir.path().join(n.to_string())).unwrap();
    }
    let limit = "echo 3 > /proc/sys/user/max_inotify_watches && exec \"$@\"";
    let watch = watch_by(&server, &["unshare", "-Ur", "sh", "-c", limit, "sh"], dir.path());
    watch.line_with("is polled instead of watched");
    for n in 0..6 {
        let file = dir.path().join(format!("{n}/file"));
        drop(File::create(&file).unwrap());
        until_announced(&server, &file, 1);
    }
}

//! `tidings watch` announces each complete file once, on a disk and on a tmpfs, also after kills
//! and restarts.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat};
use tempfile::TempDir;
use tidings_connectors::files::path_encoding::decode;

use crate::support::line_connection::{LineConnection, value};
use crate::support::process::{Process, Server, run_at, run_tidings, started_by, tidings_command};
use crate::support::scripted_broker::{ScriptedConnection, start_scripted_broker};
use crate::support::seed::seed_from_env;
use crate::support::small_disk::SmallDisk;
use crate::support::wait::wait_until;

/// More files than the kernel queues events for: each causes four, and the queue has a limit while
/// the program does not read.
const BURST_FILES: usize = 10_000;

/// A directory on the disk of the build, which is not a tmpfs.
#[track_caller]
pub(crate) fn disk_dir() -> TempDir {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Starts a watch with these arguments.
#[track_caller]
fn start_watch(server: &Server, words: &[&OsStr]) -> Process {
    let mut command = tidings_command(server.folder.path(), ["watch", "--data", "watched"]);
    let watch = Process::start(command.args(["--broker", &server.address_text()]).args(words));
    watch.wait_for_line_with("watching ");
    watch
}

/// Starts a watch of one directory.
#[track_caller]
pub(crate) fn watch_dir(server: &Server, dir: &Path, flags: &[&str]) -> Process {
    let flags = flags.iter().map(OsStr::new);
    start_watch(server, &[dir.as_os_str()].into_iter().chain(flags).collect::<Vec<_>>())
}

/// Announces new files and ends.
#[track_caller]
pub(crate) fn watch_once(server: &Server, dir: &Path, flags: &[&str]) {
    watch_dir(server, dir, &[&["--once"], flags].concat()).finish().expect_code(0);
}

/// All events of a topic.
#[track_caller]
fn read_events(server: &Server, topic: &str) -> Vec<String> {
    static READ_COUNT: AtomicUsize = AtomicUsize::new(0);
    let end = format!("end-{}", READ_COUNT.fetch_add(1, Ordering::Relaxed));
    let mut connection = LineConnection::connect_client(server.address);
    connection.request_ok(&format!("PUB {topic} {end}"));
    connection.request_ok(&format!("SUB {topic} from=first"));
    let mut events = Vec::new();
    loop {
        let line = connection.read_line();
        let Some(rest) = line.strip_prefix(&format!("MSG {topic} ")) else { continue };
        match rest.split_once(' ').unwrap().1 {
            event if event == end => return events,
            event if event.starts_with("end-") => {}
            event => events.push(event.to_owned()),
        }
    }
}

#[track_caller]
pub(crate) fn announced_events(server: &Server) -> Vec<String> {
    read_events(server, "file-ready")
}

/// The path in an event.
pub(crate) fn event_path(event: &str) -> PathBuf {
    OsString::from_vec(decode(event.split(' ').next().unwrap())).into()
}

/// The paths of all announced files, in order.
#[track_caller]
pub(crate) fn announced_files(server: &Server) -> Vec<PathBuf> {
    let events = announced_events(server);
    events.iter().filter(|event| event.contains(" size=")).map(|event| event_path(event)).collect()
}

/// Waits until this file was announced this many times.
#[track_caller]
pub(crate) fn wait_until_announced(server: &Server, file: &Path, times: usize) {
    wait_until(&format!("{} to be announced", file.display()), || {
        let found = announced_files(server).iter().filter(|path| *path == file).count();
        (found >= times).then_some(())
    });
}

#[track_caller]
pub(crate) fn wait_for_event(server: &Server, beginning: &str) -> String {
    wait_until(beginning, || {
        announced_events(server).into_iter().find(|event| event.starts_with(beginning))
    })
}

/// Writes a temporary file and renames it.
#[track_caller]
pub(crate) fn write_and_rename(path: &Path, text: &str) {
    let aside = path.with_file_name(".aside");
    fs::write(&aside, text).unwrap();
    fs::rename(aside, path).unwrap();
}

/// Creates files in all ways in which a file can become complete, and checks that each complete
/// file is announced.
#[track_caller]
fn expect_only_complete_files(dir: &Path, flags: &[&str]) {
    let server = Server::start_broker();
    let watch = watch_dir(&server, dir, flags);
    // A file that is open and partly written.
    let mut open = File::create(dir.join("open")).unwrap();
    open.write_all(b"one").unwrap();
    let names: [&[u8]; 6] = [
        b"plain",
        b"with space",
        b"line\nPUB file-ready forged",
        b"not utf-8 \xff\xfe",
        b"100% size=9 id=1",
        "\u{fc}\u{202e}\u{85}\x1b[2J".as_bytes(),
    ];
    for name in names {
        write_and_rename(&dir.join(OsStr::from_bytes(name)), "text");
    }
    for name in [".hidden", "a.tmp", "a.part", "a~"] {
        fs::write(dir.join(name), "x").unwrap();
    }
    std::os::unix::fs::symlink("/etc/hostname", dir.join("symlink")).unwrap();
    fs::create_dir(dir.join("directory")).unwrap();
    fs::write(dir.join("directory/below"), "not recursive").unwrap();
    fs::write(dir.join("closed"), "closed").unwrap();
    wait_until_announced(&server, &dir.join("closed"), 1);
    for name in names {
        wait_until_announced(&server, &dir.join(OsStr::from_bytes(name)), 1);
    }
    assert!(!announced_files(&server).contains(&dir.join("open")), "the file is still open");
    open.write_all(b" and more").unwrap();
    drop(open);
    wait_until("the complete file", || {
        let events = announced_events(&server);
        events
            .into_iter()
            .find(|event| event_path(event) == dir.join("open") && value(event, "size") == "12")
    });
    // A replaced file, a rewritten one, and one that is opened but not changed.
    write_and_rename(&dir.join("plain"), "longer text");
    wait_until_announced(&server, &dir.join("plain"), 2);
    fs::write(dir.join("closed"), "closed again").unwrap();
    wait_until_announced(&server, &dir.join("closed"), 2);
    File::options().append(true).open(dir.join("closed")).unwrap();
    fs::remove_file(dir.join("with space")).unwrap();
    fs::hard_link(dir.join("plain"), dir.join("link")).unwrap();
    wait_until_announced(&server, &dir.join("link"), 1);

    let mut counts = BTreeMap::new();
    for event in announced_events(&server) {
        assert_eq!(event.split(' ').count(), 4, "{event}");
        assert!(event.chars().all(|c| !c.is_control()), "{event:?}");
        *counts.entry(event_path(&event)).or_insert(0) += 1;
    }
    let mut expected: BTreeMap<_, _> =
        names.iter().map(|name| (dir.join(OsStr::from_bytes(name)), 1)).collect();
    expected.extend(
        [("open", 1), ("link", 1), ("plain", 2), ("closed", 2)]
            .map(|(name, n)| (dir.join(name), n)),
    );
    assert_eq!(counts, expected);
    watch.signal_and_finish("TERM").expect_code(0).expect_stderr(" announced");
}

#[test]
#[ignore = "needs foreign programs"]
fn complete_files_are_announced_on_a_disk() {
    expect_only_complete_files(disk_dir().path(), &[]);
}

#[test]
#[ignore = "needs foreign programs"]
fn complete_files_are_announced_on_a_tmpfs() {
    expect_only_complete_files(&SmallDisk::mount(8).disk_path(), &[]);
}

#[test]
#[ignore = "needs foreign programs"]
fn complete_files_are_announced_with_polling() {
    expect_only_complete_files(disk_dir().path(), &["--poll", "50ms"]);
}

#[test]
#[ignore = "needs foreign programs"]
fn changes_between_runs_are_announced_at_the_next_start() {
    let server = Server::start_broker();
    let dir = disk_dir();
    let file = |name: &str| dir.path().join(name);
    for name in ["same", "replaced", "rewritten", "gone"] {
        fs::write(file(name), name).unwrap();
    }
    watch_once(&server, dir.path(), &["--batch-end"]);
    let before = announced_events(&server);
    assert_eq!(before.len(), 5, "{before:#?}");
    let end = before.last().unwrap();
    assert_eq!(
        (event_path(end), value(end, "batch"), value(end, "files")),
        (dir.path().into(), "end", "4")
    );

    write_and_rename(&file("replaced"), "replaced");
    fs::write(file("rewritten"), "another text").unwrap();
    fs::remove_file(file("gone")).unwrap();
    fs::write(file("new"), "new").unwrap();
    watch_once(&server, dir.path(), &["--batch-end"]);
    let after = announced_events(&server).split_off(before.len());
    let paths: BTreeSet<_> = after[..3].iter().map(|event| event_path(event)).collect();
    assert_eq!(paths, ["replaced", "rewritten", "new"].map(file).into(), "{after:#?}");
    assert_eq!((after.len(), value(&after[3], "files")), (4, "3"));
    watch_once(&server, dir.path(), &["--batch-end"]);
    assert_eq!(announced_events(&server).len(), before.len() + after.len(), "no new file");

    // A further run ends at once: it waits nowhere for the next check of the directory.
    let mut strace = Command::new("strace");
    strace.args(["-f", "-e", "trace=openat,ppoll", "-o", "trace"]);
    let mut watch = tidings_command(server.folder.path(), ["watch", "--data", "watched", "--once"]);
    watch.args(["--broker", &server.address_text()]).arg(dir.path());
    Process::start(&mut started_by(strace, &watch)).finish().expect_code(0);
    let trace = fs::read_to_string(server.folder.path().join("trace")).unwrap();
    assert!(trace.contains(&dir.path().display().to_string()), "{trace}");
    let waits: Vec<_> = trace.lines().filter(|line| line.contains("{tv_sec=4, ")).collect();
    assert!(waits.is_empty(), "{waits:#?}");

    // Another directory, with `--new-only` and patterns.
    let dir = disk_dir();
    let file = |name: &str| dir.path().join(name);
    fs::write(file("old.pdf"), "x").unwrap();
    let flags = ["--new-only", "--pattern", "*.pdf", "--pattern", "b[0-9]?"];
    watch_once(&server, dir.path(), &flags);
    for name in ["new.pdf", "new.txt", "b1x", "bx"] {
        fs::write(file(name), "x").unwrap();
    }
    watch_once(&server, dir.path(), &flags);
    let new: BTreeSet<_> =
        announced_files(&server).into_iter().filter(|it| it.starts_with(dir.path())).collect();
    assert_eq!(new, ["new.pdf", "b1x"].map(file).into());
}

#[test]
#[ignore = "needs foreign programs"]
fn moved_and_recreated_directories_are_watched() {
    let server = Server::start_broker();
    let dir = disk_dir();
    let root = dir.path().join("root");
    fs::create_dir(&root).unwrap();
    let _watch = watch_dir(&server, &root, &["--recursive"]);
    let file = |name: &str| root.join(name);
    // The tree is complete before the watch can have begun to watch its directories.
    fs::create_dir_all(file("a/b/c")).unwrap();
    fs::write(file("a/b/c/first"), "1").unwrap();
    fs::create_dir(file(".git")).unwrap();
    fs::write(file(".git/object"), "1").unwrap();
    wait_until_announced(&server, &file("a/b/c/first"), 1);
    // The directory moves out, where changes are ignored, and comes back under another name.
    let away = dir.path().join("away");
    fs::rename(file("a"), &away).unwrap();
    fs::write(away.join("b/c/second"), "2").unwrap();
    fs::write(file("other"), "x").unwrap();
    wait_until_announced(&server, &file("other"), 1);
    fs::rename(&away, file("d")).unwrap();
    for name in ["d/b/c/first", "d/b/c/second"] {
        wait_until_announced(&server, &file(name), 1);
    }
    fs::remove_dir_all(file("d")).unwrap();
    fs::create_dir_all(file("d/b")).unwrap();
    fs::write(file("d/b/third"), "3").unwrap();
    wait_until_announced(&server, &file("d/b/third"), 1);

    // The watched directory itself disappears and comes back, which events report.
    fs::rename(&root, &away).unwrap();
    let shown = root.to_str().unwrap();
    wait_for_event(&server, &format!("{shown} error=gone id="));
    fs::rename(&away, &root).unwrap();
    wait_for_event(&server, &format!("{shown} error=none id="));
    write_and_rename(&file("d/b/fourth"), "4");
    wait_until_announced(&server, &file("d/b/fourth"), 1);
    let announced = announced_events(&server);
    let errors = announced.iter().filter(|event| event.contains(" error=")).count();
    assert_eq!(errors, 2, "one event per change: {announced:#?}");
    assert!(!announced.iter().any(|event| event.contains("/.git/")), "{announced:#?}");
    let files: BTreeSet<_> = announced_files(&server).into_iter().collect();
    assert_eq!(files.len(), announced.len() - errors, "each once: {announced:#?}");
}

#[test]
fn a_watch_ignores_its_own_state_and_the_data_directory() {
    // The watched folder contains the watch's own state and the broker's data directory.
    let server = Server::start_broker();
    let dir = server.folder.path().to_owned();
    fs::write(dir.join("file"), "x").unwrap();
    let words = ["watch", ".", "--recursive", "--once", "--settle", "50ms"];
    for _ in 0..2 {
        run_at(&server, &words).expect_code(0);
    }
    assert_eq!(announced_files(&server), [dir.join("file")]);
}

#[test]
#[ignore = "needs foreign programs"]
fn the_batch_end_follows_the_last_file() {
    let server = Server::start_broker();
    let dir = disk_dir();
    let _watch = watch_dir(&server, dir.path(), &["--batch-end=300ms"]);
    for round in 1..=3 {
        for n in 0..20 {
            write_and_rename(&dir.path().join(format!("{round}-{n}")), "x");
        }
        let ends = wait_until("the end of the batch", || {
            let events = announced_events(&server);
            let ends: Vec<_> =
                events.iter().filter(|event| event.contains(" batch=end ")).cloned().collect();
            let files: u64 =
                ends.iter().map(|end| value(end, "files").parse::<u64>().unwrap()).sum();
            (files == 20 * round).then_some((events, ends))
        });
        assert!(ends.0.last().unwrap().contains(" batch=end "), "{:#?}", ends.0);
        let ids: BTreeSet<_> = ends.1.iter().map(|end| value(end, "id").to_owned()).collect();
        assert_eq!(ids.len(), ends.1.len());
    }
}

/// Ways to create a file without an event for closing it after writing.
#[test]
#[ignore = "needs foreign programs"]
fn files_without_a_close_event_are_announced_and_delay_no_batch_end() {
    let server = Server::start_broker();
    let dir = disk_dir();
    let file = |name: &str| dir.path().join(name);
    fs::create_dir(file("aside")).unwrap();
    let _watch = watch_dir(&server, dir.path(), &["--batch-end=300ms"]);
    // A file without a name until it is written.
    let flags = OFlags::TMPFILE | OFlags::WRONLY;
    let unnamed = rustix::fs::open(dir.path(), flags, Mode::from_raw_mode(0o644)).unwrap();
    let unnamed = File::from(unnamed);
    (&unnamed).write_all(b"all of it").unwrap();
    let link = format!("/proc/self/fd/{}", unnamed.as_raw_fd());
    linkat(CWD, link, CWD, file("unnamed"), AtFlags::SYMLINK_FOLLOW).unwrap();
    drop(unnamed);
    // A file under another name, which is removed at once.
    fs::write(file("aside/linked"), "x").unwrap();
    fs::hard_link(file("aside/linked"), file("linked")).unwrap();
    fs::remove_file(file("aside/linked")).unwrap();
    // A file that is only opened for reading.
    assert!(Command::new("flock").arg(file("lock")).arg("true").status().unwrap().success());
    for name in ["unnamed", "linked", "lock"] {
        wait_until_announced(&server, &file(name), 1);
    }
    wait_for_event(&server, &format!("{} batch=end files=3 ", dir.path().display()));
    // A file that is written slowly is waited for until it is closed, also if it was renamed.
    let slow = File::create(file("slow")).unwrap();
    let mut moved = File::create(file("aside/moved")).unwrap();
    moved.write_all(b"begin").unwrap();
    fs::rename(file("aside/moved"), file("moved")).unwrap();
    for name in ["quick", "brisk"] {
        write_and_rename(&file(name), "x");
        wait_until_announced(&server, &file(name), 1);
    }
    for name in ["slow", "moved"] {
        assert!(!announced_files(&server).contains(&file(name)), "{name}");
    }
    drop(slow);
    moved.write_all(b" and end").unwrap();
    drop(moved);
    wait_for_event(&server, &format!("{} batch=end files=4 ", dir.path().display()));
    let moved = wait_for_event(&server, &format!("{} ", file("moved").display()));
    assert_eq!(value(&moved, "size"), "13");
}

/// More directories than the kernel's queue has events: scanning a directory causes an event, too.
#[test]
#[ignore = "needs foreign programs"]
fn a_scan_of_many_directories_comes_to_an_end() {
    let server = Server::start_broker();
    let dir = disk_dir();
    for n in 0..5_000 {
        fs::create_dir_all(dir.path().join(format!("{}/{n}", n % 100))).unwrap();
    }
    let watch = watch_dir(&server, dir.path(), &["--recursive"]);
    let first = dir.path().join("7/4907/first");
    write_and_rename(&first, "x");
    wait_until_announced(&server, &first, 1);
    // The watch comes to rest: its CPU time does not grow while nothing happens.
    wait_until("the watch to come to rest", || {
        let before = watch.processor_ticks();
        thread::sleep(Duration::from_millis(300));
        (watch.processor_ticks() <= before + 2).then_some(())
    });
}

#[test]
#[ignore = "needs foreign programs"]
fn all_files_are_announced_after_an_inotify_overflow() {
    let server = Server::start_broker();
    let dir = disk_dir();
    let watch = watch_dir(&server, dir.path(), &[]);
    write_and_rename(&dir.path().join("first"), "x");
    wait_until_announced(&server, &dir.path().join("first"), 1);
    watch.signal("STOP");
    for n in 0..BURST_FILES {
        write_and_rename(&dir.path().join(format!("{n}")), "x");
    }
    watch.signal("CONT");
    wait_until("all files to be announced", || {
        (announced_files(&server).len() > BURST_FILES).then_some(())
    });
    let files = announced_files(&server);
    let distinct: BTreeSet<_> = files.iter().collect();
    assert_eq!((files.len(), distinct.len()), (BURST_FILES + 1, BURST_FILES + 1), "each once");
}

#[test]
#[ignore = "needs foreign programs"]
fn a_watch_killed_repeatedly_announces_each_file_once() {
    let seed = seed_from_env("TIDINGS_FILES_SEED");
    eprintln!("TIDINGS_FILES_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let server = Server::start_broker();
    let dir = disk_dir();
    let path_of = |n: usize| dir.path().join(format!("{}/{n}", n % 7));
    let writer = {
        let paths: Vec<_> = (0..BURST_FILES).map(path_of).collect();
        thread::spawn(move || {
            for path in paths {
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                write_and_rename(&path, "x");
            }
        })
    };
    // Each kill interrupts another part of the scan, the announcements and the confirmations.
    let mut known = 0;
    for _ in 0..12 {
        let watch = watch_dir(&server, dir.path(), &["--recursive", "--settle", "50ms"]);
        let more = (known + random.usize(0..BURST_FILES / 12)).min(BURST_FILES);
        known = wait_until("more files to be announced", || {
            let known = announced_files(&server).len();
            (known >= more).then_some(known)
        });
        watch.signal_and_finish("KILL");
    }
    writer.join().unwrap();
    watch_once(&server, dir.path(), &["--recursive"]);
    let files = announced_files(&server);
    let distinct: BTreeSet<_> = files.iter().cloned().collect();
    assert_eq!(distinct, (0..BURST_FILES).map(path_of).collect(), "every file is announced");
    assert_eq!(files.len(), BURST_FILES, "no file is announced twice");
}

#[test]
#[ignore = "needs foreign programs"]
fn a_restart_of_the_broker_loses_no_file() {
    let server = Server::start_broker();
    let dir = disk_dir();
    let watch = watch_dir(&server, dir.path(), &[]);
    for n in 0..50 {
        write_and_rename(&dir.path().join(format!("{n}")), "x");
    }
    let server = server.restart_at_same_address("KILL", &["broker"]);
    for n in 50..100 {
        write_and_rename(&dir.path().join(format!("{n}")), "x");
    }
    watch.wait_for_line_with("reconnected");
    wait_until("all files to be announced", || {
        (announced_files(&server).len() >= 100).then_some(())
    });
    let files = announced_files(&server);
    assert_eq!(files.iter().collect::<BTreeSet<_>>().len(), files.len(), "each once");
}

#[test]
#[ignore = "needs foreign programs"]
fn a_directory_has_one_watch_and_invalid_arguments_are_rejected() {
    let server = Server::start_broker();
    let dir = disk_dir();
    let text = dir.path().to_str().unwrap();
    let _watch = watch_dir(&server, dir.path(), &[]);
    let watch = run_at(&server, &["watch", text, "--data", "watched"]);
    watch.expect_code(1).expect_stderr("is watched already");
    for words in [
        &["watch", "/no/such/directory"][..],
        &["watch"],
        &["watch", text, "--pattern", "a/b"],
        &["watch", text, "--poll", "0"],
        &["watch", "--spool", text, "--batch-end"],
        &["watch", text, "--spool", text],
    ] {
        let ended = run_tidings(server.folder.path(), words).expect_code(2);
        assert_eq!(ended.stderr().lines().count(), 1, "{}", ended.stderr());
    }
}

#[test]
#[ignore = "needs foreign programs"]
fn spooled_url_files_are_published_and_removed() {
    let server = Server::start_broker();
    let dir = disk_dir();
    let words = ["--topic", "links", "--spool"].map(OsStr::new);
    let start = || start_watch(&server, &[&words[..], &[dir.path().as_os_str()]].concat());
    let watch = start();
    let odd = dir.path().join("odd");
    write_and_rename(
        &odd,
        "http://a.example/ prio=5\n\n# nothing\nsome text\r\nfor\u{7}ged\nhttp://b.example/",
    );
    let rejected_file = dir.path().join(".rejected-odd");
    wait_until("the rejected line to be kept", || rejected_file.exists().then_some(()));
    let note = watch.wait_for_line_with("odd:5: ");
    assert!(note.contains("control byte 0x07"), "{note}");
    let events = read_events(&server, "links");
    let id = value(&events[0], "id").strip_suffix("-1").unwrap().to_owned();
    let expected = [
        format!("http://a.example/ prio=5 id={id}-1"),
        "some text".to_owned(),
        format!("http://b.example/ id={id}-6"),
    ];
    assert_eq!(events, expected);

    // After a kill in the middle, lines of files that still exist are published again, and the
    // broker recognizes their ids.
    for n in 0..300 {
        let lines: Vec<_> = (0..10).map(|line| format!("http://c.example/{n}/{line}\n")).collect();
        write_and_rename(&dir.path().join(format!("{n}")), &lines.concat());
        if n == 100 {
            watch.signal("KILL");
        }
    }
    watch.finish();
    let _watch = start();
    wait_until("an empty directory", || {
        (fs::read_dir(dir.path()).unwrap().count() == 1).then_some(())
    });
    let events = read_events(&server, "links").split_off(3);
    let distinct: BTreeSet<_> = events.iter().map(|event| event.split(' ').next()).collect();
    assert_eq!((events.len(), distinct.len()), (3_000, 3_000));
}

#[test]
#[ignore = "needs foreign programs"]
fn a_rejected_line_is_set_aside_and_the_others_are_published_once() {
    let dir = disk_dir();
    let rejected_files = [dir.path().join(".rejected-odd"), dir.path().join(".rejected-odd.2")];
    // A broker that rejects some lines and passes the others to the test.
    let (accepted, published) = mpsc::channel();
    let (broker, _) = start_scripted_broker(move |listener| {
        let mut client = ScriptedConnection::accept(&listener);
        for n in 1.. {
            let Some(line) = client.next() else { return };
            if line.contains("never") {
                client.send(&format!("-ERR bad-argument n={n} no"));
            } else {
                client.send(&format!("+OK {n} {n}"));
                accepted.send(line).unwrap();
            }
        }
    });
    let folder = TempDir::new().unwrap();
    let mut command = tidings_command(folder.path(), ["watch", "--settle", "10ms", "--spool"]);
    let watch = Process::start(command.arg(dir.path()).args(["--broker", &broker]));
    for rejected_file in rejected_files {
        write_and_rename(&dir.path().join("odd"), "first text\nnever\nlast text\n");
        watch.wait_for_line_with("odd:2: ");
        wait_until("the file to be kept", || rejected_file.exists().then_some(()));
        let published: Vec<_> = published.try_iter().collect();
        assert_eq!(published, ["PUB new-url first text", "PUB new-url last text"]);
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
}

/// The example of docs/files-and-signals.md: a program copies each file that is announced.
#[test]
#[ignore = "needs foreign programs"]
fn a_program_runs_for_every_file_name() {
    let server = Server::start_broker();
    let (dir, out) = (disk_dir(), disk_dir());
    let _watch = watch_dir(&server, dir.path(), &[]);
    let names: [&[u8]; 3] = [b"$(touch forged); `x` 'y'", b"-rf", b"two\nlines \xff"];
    let mut command =
        tidings_command(server.folder.path(), ["sub", "--broker", &server.address_text()]);
    let words =
        ["file-ready", "--group", "copy", "--jobs", "3", "--count", "3", "--exec", "cp", "{}"];
    let sub = Process::start(command.args(words).arg(out.path()));
    for name in names {
        write_and_rename(&dir.path().join(OsStr::from_bytes(name)), "text");
    }
    sub.finish().expect_code(0);
    let copied: BTreeSet<_> =
        fs::read_dir(out.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(copied, names.map(|name| OsStr::from_bytes(name).to_owned()).into());
}

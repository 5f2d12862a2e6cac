//! Programs that can do nothing but signals: one in Perl that was written for no broker, and pid
//! files that lie.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use tempfile::TempDir;

use crate::support::origin::{Origin, Site};
use crate::support::process::{Running, Server, tidings};
use crate::support::small_disk::SmallDisk;
use crate::support::talk::Talk;
use crate::support::wait::until;

/// Somebody's crawler with its files, and who tells it.
struct Bell {
    server: Server,
    folder: TempDir,
    published: usize,
}

impl Bell {
    #[track_caller]
    fn new() -> Self {
        Self { server: Server::broker(), folder: TempDir::new().unwrap(), published: 0 }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts the Perl script.
    #[track_caller]
    fn crawler(&self) -> Running {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/support/crawler.pl");
        let files = ["bot.pid", "spool", "log"].map(|name| self.path(name));
        let crawler = Running::start(Command::new("perl").arg(script).args(files));
        let pid = format!("{}\n", crawler.id());
        until("its pid file", || {
            (fs::read_to_string(self.path("bot.pid")).ok()? == pid).then_some(())
        });
        crawler
    }

    /// Starts who tells it.
    #[track_caller]
    fn sub(&self, flags: &[&str]) -> Running {
        let mut command = tidings(self.folder.path(), ["sub", "post-ready", "--signal", "USR1"]);
        command.args([
            "--pid-file",
            "bot.pid",
            "--spool",
            "spool",
            "--broker",
            &self.server.text(),
        ]);
        let sub = Running::start(command.args(flags));
        sub.line_with("spooling post-ready as ");
        sub
    }

    fn publish(&mut self, count: usize) {
        let first = self.published;
        self.published += count;
        let lines: Vec<_> = (first..self.published)
            .map(|n| format!("PUB post-ready http://a.example/{n} source=blog\n"))
            .collect();
        let mut talk = Talk::client(self.server.address);
        talk.send(lines.concat());
        let mut confirmed = 0;
        while confirmed < count {
            let line = talk.line();
            confirmed =
                line.rsplit(' ').next().unwrap().parse().unwrap_or_else(|_| panic!("{line}"));
        }
    }

    /// Waits until it has heard of all that was published, each once and in its order.
    #[track_caller]
    fn until_all_are_heard(&self) {
        let expected: Vec<_> =
            (0..self.published).map(|n| format!("http://a.example/{n}\n")).collect();
        let heard = until("all to be heard", || {
            let heard = fs::read_to_string(self.path("log")).ok()?;
            (heard.lines().count() >= self.published).then_some(heard)
        });
        assert_eq!(heard, expected.concat());
    }

    fn spooled(&self) -> usize {
        let entries = fs::read_dir(self.path("spool")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name());
        names.filter(|name| !name.as_encoded_bytes().starts_with(b".")).count()
    }
}

#[test]
fn a_burst_reaches_a_program_that_knows_nothing_but_a_signal_and_what_comes_meanwhile_is_held() {
    let mut bell = Bell::new();
    let sub = bell.sub(&["--from", "first", "--program", "crawler.pl"]);
    bell.publish(3);
    let note = sub.line_with("no signal sent: ");
    assert!(note.contains("bot.pid"), "{note}");
    until("what is held", || (bell.spooled() == 3).then_some(()));
    let crawler = bell.crawler();
    bell.until_all_are_heard();
    bell.publish(2_000);
    bell.publish(1);
    bell.until_all_are_heard();

    // It ends, and does not clean up behind itself.
    crawler.finish_by("KILL");
    bell.publish(20);
    sub.line_with("is not running");
    until("what is held", || (bell.spooled() == 20).then_some(()));
    // Nor does who tells it, and the broker.
    sub.finish_by("KILL");
    bell.publish(5);
    let Bell { server, folder, published } = bell;
    let mut bell = Bell { server: server.restart("KILL", &["broker"]), folder, published };
    let sub = bell.sub(&["--program", "crawler.pl"]);
    let _crawler = bell.crawler();
    bell.publish(5);
    bell.until_all_are_heard();
    until("an empty directory", || (bell.spooled() == 0).then_some(()));
    sub.finish_by("TERM").expect_code(0);
}

#[test]
fn no_process_is_signalled_but_the_one_that_is_meant() {
    let mut bell = Bell::new();
    // Ended by the signal, if it came.
    let sleep = Running::start(Command::new("sleep").arg("1000"));
    let pid_file = bell.path("bot.pid");
    fs::write(&pid_file, format!("{}\n", sleep.id())).unwrap();
    let sub = bell.sub(&["--from", "first"]);
    bell.publish(1);
    sub.line_with("has no handler for the signal");
    // A pid file that was there before: its number has come to be another's.
    let long_ago = SystemTime::now() - Duration::from_hours(1);
    File::options().write(true).open(&pid_file).unwrap().set_modified(long_ago).unwrap();
    sub.line_with("is younger than the pid file");
    fs::write(&pid_file, "4194304999\n").unwrap();
    sub.line_with("does not contain a process id");
    fs::write(&pid_file, "-1\n").unwrap();
    sub.line_with("does not contain a process id");
    sub.finish_by("TERM").expect_code(0);

    // With a handler, and another name.
    let other = bell.path("other");
    let script = format!(
        "trap 'echo rung >> {}' USR1; echo ready; while :; do sleep 0.01; done",
        other.display()
    );
    let shell = Running::start(Command::new("bash").args(["-c", &script]));
    shell.line_with("ready");
    fs::write(&pid_file, format!("{}\n", shell.id())).unwrap();
    let sub = bell.sub(&["--program", "crawler.pl"]);
    sub.line_with("bash");
    assert!(!other.exists(), "it was signalled");
    assert_eq!(bell.spooled(), 1);
    sub.finish_by("TERM").expect_code(0);
    // By its own name it is.
    let sub = bell.sub(&["--program", "bash"]);
    until("a signal", || other.exists().then_some(()));
    sub.finish_by("TERM").expect_code(0);
    // It has heard nothing all the time.
    assert!(Path::new(&format!("/proc/{}/exe", sleep.id())).exists());
    let status = fs::read_to_string(format!("/proc/{}/status", sleep.id())).unwrap();
    assert!(status.contains("State:\tS"), "{status}");
}

#[test]
fn what_finds_no_room_waits_at_the_broker() {
    let mut bell = Bell::new();
    let sub = bell.sub(&["--from", "first", "--spool-max", "10"]);
    bell.publish(25);
    until("a full directory", || (bell.spooled() == 10).then_some(()));
    let _crawler = bell.crawler();
    bell.until_all_are_heard();
    sub.finish_by("TERM").expect_code(0);
}

#[test]
fn a_full_disk_is_emptied_by_the_program() {
    let mut bell = Bell::new();
    let disk = SmallDisk::mount(1);
    fs::create_dir(disk.path().join("spool")).unwrap();
    std::os::unix::fs::symlink(disk.path().join("spool"), bell.path("spool")).unwrap();
    let _crawler = bell.crawler();
    // A page for each file, and for nothing else: those that fit come to be there before anybody is
    // signalled.
    disk.fill_but(16 << 10);
    bell.publish(20);
    let sub = bell.sub(&["--from", "first"]);
    sub.line_with("cannot write event ");
    bell.until_all_are_heard();
    sub.finish_by("TERM").expect_code(0);
}

/// Whether somebody has seen what they were to see.
type Until = Box<dyn Fn() -> bool + Send>;

/// A broker that has these events after one another, each time from the first on, as it has not
/// come to hear that anything was seen. With each connection it goes on when `is_over` says so.
fn forgetful_broker(connections: Vec<(Vec<u64>, Until)>) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let thread = thread::spawn(move || {
        for (seqs, is_over) in connections {
            let (stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let say = |text: String| (&stream).write_all(text.as_bytes()).unwrap();
            say("Connected.  (PID 1)\r\n".to_owned());
            let hello = lines.next().unwrap().unwrap();
            let echo = hello.split(' ').find(|word| word.starts_with("echo=")).unwrap();
            let resume = "0".repeat(32);
            say(format!("+OK tidings 0.1.0 id=1 clock=1 {echo} resume={resume}\r\n"));
            assert!(lines.next().unwrap().unwrap().starts_with("SUB post-ready "));
            say("+OK\r\n".to_owned());
            for seq in seqs {
                say(format!("MSG post-ready {seq} http://a.example/{seq}\r\n"));
            }
            until("what was sent", || is_over().then_some(()));
        }
    });
    (address, thread)
}

#[test]
fn what_a_broker_sends_again_is_not_put_there_again() {
    let folder = TempDir::new().unwrap();
    let spool = folder.path().join("spool");
    let has = |seq: u64| {
        let file = spool.join(format!("post-ready-{seq:020}"));
        move || file.exists()
    };
    let takes = |seq: u64| {
        let file = spool.join(format!("post-ready-{seq:020}"));
        move || fs::remove_file(&file).is_ok()
    };
    let (address, broker) =
        forgetful_broker(vec![(vec![1], Box::new(takes(1))), (vec![1, 2], Box::new(has(2)))]);
    let mut command = tidings(folder.path(), ["sub", "post-ready", "--signal", "USR1"]);
    let words = ["--pid-file", "none", "--spool", "spool", "--broker", &address.to_string()];
    let _sub = Running::start(command.args(words));
    broker.join().unwrap();
    assert!(!has(1)(), "it was taken");
}

#[test]
fn a_second_crawler_is_refused_and_a_stale_pid_file_refuses_nobody() {
    let server = Server::broker();
    let folder = TempDir::new().unwrap();
    let pid_file = folder.path().join("crawl.pid");
    // Somebody who runs.
    fs::write(&pid_file, format!("{}\n", std::process::id())).unwrap();
    let words = ["crawl", "--broker", &server.text(), "--data", ".", "--pid-file", "crawl.pid"];
    let start = || Running::start(&mut tidings(folder.path(), words));
    let first = start();
    first.line_with("fetching for");
    assert_eq!(fs::read_to_string(&pid_file).unwrap(), format!("{}\n", first.id()));
    let refused = start().finish().expect_code(1);
    let (stderr, pid) = (refused.stderr(), first.id());
    assert!(stderr.contains(&format!("already running (pid {pid})")), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    first.finish_by("KILL");
    assert!(pid_file.exists(), "nobody has removed it");
    let second = start();
    second.line_with("fetching for");
    second.finish_by("TERM").expect_code(0);
    assert!(!pid_file.exists());

    // Also for a job.
    let origin = Origin::serve(Site { pages: 2, ..Site::default() });
    let url = origin.url(0, "/p/0");
    let words = ["crawl", &url, "--allow-private", "--data", "d", "--pid-file", "crawl.pid"];
    Running::start(&mut tidings(folder.path(), words)).finish().expect_code(0);
    assert!(!pid_file.exists());
}

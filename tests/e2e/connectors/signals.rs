//! `tidings sub --signal`: it spools events and signals a program that knows no broker, here a
//! crawler in Perl; and it does not trust a wrong pid file.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use tempfile::TempDir;

use crate::support::line_connection::LineConnection;
use crate::support::origin::{Origin, Site};
use crate::support::process::{Process, Server, tidings_command};
use crate::support::scripted_broker::{ScriptedConnection, start_scripted_broker};
use crate::support::small_disk::SmallDisk;
use crate::support::wait::wait_until;

/// A crawler's files, and a broker with events for it.
struct SpoolFixture {
    server: Server,
    folder: TempDir,
    published: usize,
}

impl SpoolFixture {
    #[track_caller]
    fn new() -> Self {
        Self { server: Server::start_broker(), folder: TempDir::new().unwrap(), published: 0 }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts the Perl crawler.
    #[track_caller]
    fn start_crawler(&self) -> Process {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/support/crawler.pl");
        let files = ["bot.pid", "spool", "log"].map(|name| self.path(name));
        let crawler = Process::start(Command::new("perl").arg(script).args(files));
        let pid = format!("{}\n", crawler.id());
        wait_until("its pid file", || {
            (fs::read_to_string(self.path("bot.pid")).ok()? == pid).then_some(())
        });
        crawler
    }

    /// Starts `tidings sub`.
    #[track_caller]
    fn start_sub(&self, flags: &[&str]) -> Process {
        let mut command =
            tidings_command(self.folder.path(), ["sub", "post-ready", "--signal", "USR1"]);
        command.args([
            "--pid-file",
            "bot.pid",
            "--spool",
            "spool",
            "--broker",
            &self.server.address_text(),
        ]);
        let sub = Process::start(command.args(flags));
        sub.wait_for_line_with("spooling post-ready as ");
        sub
    }

    fn publish(&mut self, count: usize) {
        let first = self.published;
        self.published += count;
        let lines: Vec<_> = (first..self.published)
            .map(|n| format!("PUB post-ready http://a.example/{n} source=blog\n"))
            .collect();
        let mut connection = LineConnection::connect_client(self.server.address);
        connection.send(lines.concat());
        let mut confirmed = 0;
        while confirmed < count {
            let line = connection.read_line();
            confirmed =
                line.rsplit(' ').next().unwrap().parse().unwrap_or_else(|_| panic!("{line}"));
        }
    }

    /// Waits until the crawler has received all published events, each once and in order.
    #[track_caller]
    fn wait_until_all_received(&self) {
        let expected: Vec<_> =
            (0..self.published).map(|n| format!("http://a.example/{n}\n")).collect();
        let received = wait_until("all events", || {
            let received = fs::read_to_string(self.path("log")).ok()?;
            (received.lines().count() >= self.published).then_some(received)
        });
        assert_eq!(received, expected.concat());
    }

    fn spooled_count(&self) -> usize {
        let entries = fs::read_dir(self.path("spool")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name());
        names.filter(|name| !name.as_encoded_bytes().starts_with(b".")).count()
    }
}

#[test]
#[ignore = "needs foreign programs"]
fn a_burst_reaches_a_signalled_program_and_is_spooled_while_it_is_down() {
    let mut fixture = SpoolFixture::new();
    let sub = fixture.start_sub(&["--from", "first", "--program", "crawler.pl"]);
    fixture.publish(3);
    let note = sub.wait_for_line_with("no signal sent: ");
    assert!(note.contains("bot.pid"), "{note}");
    wait_until("the spooled events", || (fixture.spooled_count() == 3).then_some(()));
    let crawler = fixture.start_crawler();
    fixture.wait_until_all_received();
    fixture.publish(2_000);
    fixture.publish(1);
    fixture.wait_until_all_received();

    // The crawler is killed and leaves its pid file behind.
    crawler.signal_and_finish("KILL");
    fixture.publish(20);
    sub.wait_for_line_with("is not running");
    wait_until("the spooled events", || (fixture.spooled_count() == 20).then_some(()));
    // Then the subscriber and the broker are killed.
    sub.signal_and_finish("KILL");
    fixture.publish(5);
    let SpoolFixture { server, folder, published } = fixture;
    let mut fixture =
        SpoolFixture { server: server.restart("KILL", &["broker"]), folder, published };
    let sub = fixture.start_sub(&["--program", "crawler.pl"]);
    let _crawler = fixture.start_crawler();
    fixture.publish(5);
    fixture.wait_until_all_received();
    wait_until("an empty spool", || (fixture.spooled_count() == 0).then_some(()));
    sub.signal_and_finish("TERM").expect_code(0);
}

#[test]
fn only_the_intended_process_is_signalled() {
    let mut fixture = SpoolFixture::new();
    // The signal would end it.
    let sleep = Process::start(Command::new("sleep").arg("1000"));
    let pid_file = fixture.path("bot.pid");
    fs::write(&pid_file, format!("{}\n", sleep.id())).unwrap();
    let sub = fixture.start_sub(&["--from", "first"]);
    fixture.publish(1);
    sub.wait_for_line_with("has no handler for the signal");
    // A pid file that is older than the process: the pid was reused.
    let long_ago = SystemTime::now() - Duration::from_hours(1);
    File::options().write(true).open(&pid_file).unwrap().set_modified(long_ago).unwrap();
    sub.wait_for_line_with("is younger than the pid file");
    fs::write(&pid_file, "4194304999\n").unwrap();
    sub.wait_for_line_with("does not contain a process id");
    fs::write(&pid_file, "-1\n").unwrap();
    sub.wait_for_line_with("does not contain a process id");
    sub.signal_and_finish("TERM").expect_code(0);

    // A process with a handler, and another name.
    let other = fixture.path("other");
    let script = format!(
        "trap 'echo rung >> {}' USR1; echo ready; while :; do sleep 0.01; done",
        other.display()
    );
    let shell = Process::start(Command::new("bash").args(["-c", &script]));
    shell.wait_for_line_with("ready");
    fs::write(&pid_file, format!("{}\n", shell.id())).unwrap();
    let sub = fixture.start_sub(&["--program", "crawler.pl"]);
    sub.wait_for_line_with("bash");
    assert!(!other.exists(), "it was signalled");
    assert_eq!(fixture.spooled_count(), 1);
    sub.signal_and_finish("TERM").expect_code(0);
    // With its own name it is signalled.
    let sub = fixture.start_sub(&["--program", "bash"]);
    wait_until("a signal", || other.exists().then_some(()));
    sub.signal_and_finish("TERM").expect_code(0);
    // The first process was never signalled.
    assert!(Path::new(&format!("/proc/{}/exe", sleep.id())).exists());
    let status = fs::read_to_string(format!("/proc/{}/status", sleep.id())).unwrap();
    assert!(status.contains("State:\tS"), "{status}");
}

#[test]
#[ignore = "needs foreign programs"]
fn events_beyond_spool_max_wait_at_the_broker() {
    let mut fixture = SpoolFixture::new();
    let sub = fixture.start_sub(&["--from", "first", "--spool-max", "10"]);
    fixture.publish(25);
    wait_until("a full spool", || (fixture.spooled_count() == 10).then_some(()));
    let _crawler = fixture.start_crawler();
    fixture.wait_until_all_received();
    sub.signal_and_finish("TERM").expect_code(0);
}

#[test]
#[ignore = "needs foreign programs"]
fn spooling_resumes_when_the_program_frees_disk_space() {
    let mut fixture = SpoolFixture::new();
    let disk = SmallDisk::mount(1);
    fs::create_dir(disk.disk_path().join("spool")).unwrap();
    std::os::unix::fs::symlink(disk.disk_path().join("spool"), fixture.path("spool")).unwrap();
    let _crawler = fixture.start_crawler();
    // The disk has space for some of the files. They are spooled before the first signal.
    disk.fill_except(16 << 10);
    fixture.publish(20);
    let sub = fixture.start_sub(&["--from", "first"]);
    sub.wait_for_line_with("cannot write event ");
    fixture.wait_until_all_received();
    sub.signal_and_finish("TERM").expect_code(0);
}

/// Whether a connection has served its purpose.
type Condition = Box<dyn Fn() -> bool + Send>;

/// A broker that sends these events on each connection, always from the first, as if no cursor were
/// stored. It accepts the next connection when the condition holds.
fn broker_without_cursors(connections: Vec<(Vec<u64>, Condition)>) -> (String, JoinHandle<()>) {
    start_scripted_broker(move |listener| {
        for (at, (seqs, is_over)) in connections.into_iter().enumerate() {
            let mut client = ScriptedConnection::accept(&listener);
            if at == 0 {
                assert_eq!(client.next().unwrap(), "TOPIC show post-ready");
                client.send("+OK post-ready next=3");
            }
            assert!(client.next().unwrap().starts_with("SUB post-ready "));
            client.send("+OK");
            for seq in seqs {
                client.send(&format!("MSG post-ready {seq} http://a.example/{seq}"));
            }
            wait_until("the condition of the connection", || is_over().then_some(()));
        }
    })
}

#[test]
fn redelivered_events_are_not_spooled_twice() {
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
        broker_without_cursors(vec![(vec![1], Box::new(takes(1))), (vec![1, 2], Box::new(has(2)))]);
    let mut command = tidings_command(folder.path(), ["sub", "post-ready", "--signal", "USR1"]);
    let words = ["--pid-file", "none", "--spool", "spool", "--broker", &address];
    let _sub = Process::start(command.args(words));
    broker.join().unwrap();
    assert!(!has(1)(), "the event was spooled again");
}

#[test]
fn a_pid_file_blocks_a_second_crawler_unless_it_is_stale() {
    let server = Server::start_broker();
    let folder = TempDir::new().unwrap();
    let pid_file = folder.path().join("crawl.pid");
    // The pid of a running process.
    fs::write(&pid_file, format!("{}\n", std::process::id())).unwrap();
    let words =
        ["crawl", "--broker", &server.address_text(), "--data", ".", "--pid-file", "crawl.pid"];
    let start = || Process::start(&mut tidings_command(folder.path(), words));
    let first = start();
    first.wait_for_line_with("fetching for");
    assert_eq!(fs::read_to_string(&pid_file).unwrap(), format!("{}\n", first.id()));
    let refused = start().finish().expect_code(1);
    let (stderr, pid) = (refused.stderr(), first.id());
    assert!(stderr.contains(&format!("already running (pid {pid})")), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    first.signal_and_finish("KILL");
    assert!(pid_file.exists(), "a killed process leaves its pid file");
    let second = start();
    second.wait_for_line_with("fetching for");
    second.signal_and_finish("TERM").expect_code(0);
    assert!(!pid_file.exists());

    // A job with a pid file.
    let origin = Origin::serve(Site { pages: 2, ..Site::default() });
    let url = origin.url(0, "/p/0");
    let words = ["crawl", &url, "--allow-private", "--data", "d", "--pid-file", "crawl.pid"];
    Process::start(&mut tidings_command(folder.path(), words)).finish().expect_code(0);
    assert!(!pid_file.exists());
}

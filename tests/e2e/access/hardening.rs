//! Hardening: programs that `--exec` runs inherit no secrets, descriptors or signal settings; the
//! process drops the privileges of root; Landlock confines it to its own files; and it stops in
//! time.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::support::line_connection::LineConnection;
use crate::support::process::{Process, Server, run_at, run_tidings, started_by, tidings_command};
use crate::support::wait::wait_until;

#[test]
fn programs_inherit_no_secrets_descriptors_or_signal_settings() {
    let server = Server::start_broker();
    let script = "env; echo fds $(ls /proc/self/fd); grep ^Sig /proc/self/status; \
                  echo group $$ $(cut -d' ' -f5 /proc/$$/stat); echo done";
    let words = [
        "sub",
        "t",
        "--count",
        "1",
        "--from",
        "first",
        "--broker",
        &server.address_text(),
        "--exec-env",
        "MINE,NONE",
        "--exec",
        "sh",
        "-c",
        script,
    ];
    let program = tidings_command(server.folder.path(), words);
    // Descriptors and ignored signals that a careless parent leaves open.
    let mut bash = Command::new("bash");
    bash.args(["-c", "exec 9</etc/passwd; trap '' INT TERM; exec \"$@\"", "bash"])
        .arg(program.get_program())
        .args(program.get_args())
        .current_dir(server.folder.path())
        .env_clear()
        .env("PATH", std::env::var("PATH").unwrap())
        .envs([
            ("HOME", "/h"),
            ("LANG", "C"),
            ("LC_TIME", "C"),
            ("TZ", "UTC"),
            ("TIDINGS_TOKEN", "hush"),
            ("TIDINGS_PROXY", "http://hush@a.example/"),
            ("PGPASSWORD", "hush"),
            ("AWS_SECRET", "hush"),
            ("MINE", "1"),
            ("NOTIFY_SOCKET", "/none"),
        ]);
    run_at(&server, &["pub", "t", "http://a.example/"]).expect_code(0);
    let ended = Process::start(&mut bash).finish().expect_code(0);
    let out = ended.stdout();
    assert_eq!(out.last().unwrap(), "done", "{ended:?}");
    assert!(!out.concat().contains("hush"), "{out:#?}");
    let variables = out.iter().filter_map(|line| line.split_once('=')).map(|(name, _)| name);
    let mut variables: Vec<_> = variables.filter(|name| !name.starts_with("EVENT_")).collect();
    variables.sort_unstable();
    // The shell adds some variables itself.
    let shell = ["OLDPWD", "PWD", "SHLVL", "_"];
    variables.retain(|name| !shell.contains(name));
    let expected = ["HOME", "LANG", "LC_TIME", "MINE", "PATH", "TIDINGS_BROKER", "TZ"];
    assert_eq!(variables, expected, "{out:#?}");
    // Descriptor 3 is the directory that `ls` reads.
    assert!(out.contains(&"fds 0 1 2 3".to_owned()), "{out:#?}");
    let signals = |name: &str| {
        let found = out.iter().find_map(|line| line.strip_prefix(name));
        u64::from_str_radix(found.unwrap().trim(), 16).unwrap()
    };
    let bit = |signal: u32| 1 << (signal - 1);
    assert_eq!(signals("SigBlk:"), 0, "{out:#?}");
    // INT, PIPE, TERM.
    assert_eq!(signals("SigIgn:") & (bit(2) | bit(13) | bit(15)), 0, "{out:#?}");
    let group = out.iter().find_map(|line| line.strip_prefix("group ")).unwrap();
    let (program, group) = group.split_once(' ').unwrap();
    assert_eq!(program, group, "the program has its own process group");
}

#[test]
fn exec_env_cannot_pass_the_token() {
    let folder = TempDir::new().unwrap();
    for names in ["TIDINGS_TOKEN", "A,TIDINGS_TOKEN", "A=1", ""] {
        let words = ["sub", "t", "--exec-env", names, "--exec", "true"];
        run_tidings(folder.path(), &words).expect_code(2).expect_stderr("--exec-env");
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// All files and directories below a directory.
fn paths_below(dir: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    // Some files exist only for a moment.
    for entry in fs::read_dir(dir).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(paths_below(&path));
        }
        found.push(path);
    }
    found
}

#[test]
fn data_files_are_private_and_output_files_follow_the_umask() {
    let folder = TempDir::new().unwrap();
    let data = folder.path().join("tidings-data");
    // The operator has made the directory readable for others.
    fs::create_dir(&data).unwrap();
    fs::set_permissions(&data, fs::Permissions::from_mode(0o755)).unwrap();
    let words = ["up", "--jsonl", "pages.jsonl", "--sqlite"];
    let command = |command: &mut Command| {
        let mut shell = Command::new("sh");
        shell.args(["-c", "umask 0; exec \"$@\"", "sh"]);
        *command = started_by(shell, command);
    };
    let server = Server::start_in(folder, &words, command);
    LineConnection::connect_client(server.address).request_ok("PUB t x");
    let files = wait_until("the database", || {
        let files = paths_below(&data);
        files.iter().any(|path| path.ends_with("pages.db")).then_some(files)
    });
    assert!(files.len() >= 5, "{files:?}");
    for path in files {
        let Ok(found) = fs::metadata(&path) else { continue };
        let mode = found.permissions().mode();
        assert_eq!(mode & 0o077, 0, "{}: {mode:o}", path.display());
    }
    let shared = server.folder.path().join("pages.jsonl");
    // The umask of the user decides the mode of an output file.
    wait_until("the output file", || {
        let mode = fs::metadata(&shared).ok()?.permissions().mode();
        (mode & 0o777 == 0o666).then_some(())
    });
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
#[ignore = "needs foreign programs"]
fn root_drops_its_privileges() {
    let folder = TempDir::new().unwrap();
    if !is_root() {
        let ended = run_tidings(folder.path(), &["broker", "--user", "nobody", "--listen", "0"]);
        assert!(
            ended.stderr().contains("--user nobody: only root can change the user"),
            "{ended:?}"
        );
        return;
    }
    for wrong in [
        &["--user", "no-such"][..],
        &["--user", "nobody", "--group", "no-such"],
        &["--group", "nogroup"],
    ] {
        let ended = run_tidings(folder.path(), &[&["broker", "--listen", "0"], wrong].concat());
        assert_eq!(ended.code, Some(2), "{ended:?}");
    }
    // The new user must be able to search this folder to reach the data directory in it.
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // A port that only root can bind.
    let (port, free) = (600..1000)
        .find_map(|port| Some((port, std::net::TcpListener::bind(("127.0.0.1", port)).ok()?)))
        .unwrap();
    drop(free);
    let http = format!("127.0.0.1:{port}");
    let words = ["broker", "--user", "nobody", "--http", &http];
    let server = Server::start_in(folder, &words, |_| ());
    LineConnection::connect_client(server.address).request_ok("PUB t x");
    TcpStream::connect(&http).unwrap();
    let tasks = format!("/proc/{}/task", server.process.id());
    let nobody = fs::read_to_string("/etc/passwd").unwrap();
    let nobody = nobody.lines().find_map(|line| line.strip_prefix("nobody:x:")).unwrap().to_owned();
    let (uid, rest) = nobody.split_once(':').unwrap();
    let gid = rest.split(':').next().unwrap();
    let mut threads = 0;
    for task in fs::read_dir(tasks).unwrap() {
        let Ok(status) = fs::read_to_string(task.unwrap().path().join("status")) else { continue };
        for (word, id) in [("Uid:", uid), ("Gid:", gid)] {
            let ids = status.lines().find_map(|line| line.strip_prefix(word)).unwrap();
            assert!(ids.split_whitespace().all(|found| found == id), "{status}");
        }
        for word in ["CapPrm:", "CapEff:"] {
            let rights = status.lines().find_map(|line| line.strip_prefix(word)).unwrap();
            assert_eq!(rights.trim().trim_start_matches('0'), "", "{status}");
        }
        threads += 1;
    }
    assert!(threads >= 2, "{threads} threads");
    let data = server.data_dir();
    assert_eq!(mode(&data), 0o700);
    for path in [paths_below(&data), vec![data]].concat() {
        assert_eq!(fs::metadata(&path).unwrap().uid().to_string(), uid, "{}", path.display());
    }
}

/// The version of Landlock in this kernel, if it has Landlock.
fn landlock_version() -> Option<i64> {
    // landlock_create_ruleset(NULL, 0, LANDLOCK_CREATE_RULESET_VERSION)
    let script =
        "import ctypes; print(ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), 1))";
    let output = Command::new("python3").args(["-c", script]).output().unwrap();
    let version = String::from_utf8(output.stdout).unwrap().trim().parse::<i64>().unwrap();
    (version > 0).then_some(version)
}

#[test]
#[ignore = "needs foreign programs"]
fn landlock_confines_the_broker_to_its_files() {
    let outside = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let temporary = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let start = |when: &str| {
        let folder = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let server = Server::start_in(folder, &["broker", "--landlock", when], |command| {
            // Landlock permits the temporary directory, and the folders of this test may be below
            // the usual one.
            command.env("TMPDIR", temporary.path());
        });
        LineConnection::connect_client(server.address).request_ok("PUB other x");
        // A symbolic link that leads out of the data directory.
        symlink(outside.path(), server.data_dir().join("topics/t")).unwrap();
        server
    };
    let written = || fs::read_dir(outside.path()).unwrap().count();
    if landlock_version().is_some() {
        for when in ["require", "auto"] {
            let server = start(when);
            let mut connection = LineConnection::connect_client(server.address);
            let answer = connection.request("PUB t x");
            assert!(answer.starts_with("-ERR"), "{when}: {answer}");
            assert_eq!(written(), 0, "{when}");
        }
    } else {
        let folder = TempDir::new().unwrap();
        let ended =
            run_tidings(folder.path(), &["broker", "--listen", "0", "--landlock", "require"]);
        assert!(ended.expect_code(1).stderr().contains("this kernel has no Landlock"));
        start("auto");
    }
    let server = start("off");
    LineConnection::connect_client(server.address).request_ok("PUB t x");
    assert!(written() > 0, "without Landlock the link leads outside");
}

/// The other case on a kernel with Landlock: strace fails the system call.
#[test]
#[ignore = "needs foreign programs"]
fn a_kernel_without_landlock_is_an_error_if_it_is_required() {
    let folder = TempDir::new().unwrap();
    let without = |when: &str| {
        let broker = tidings_command(
            folder.path(),
            ["broker", "--listen", "127.0.0.1:0", "--landlock", when],
        );
        let mut strace = Command::new("strace");
        strace
            .args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=landlock_create_ruleset"])
            .args(["-e", "inject=landlock_create_ruleset:error=ENOSYS"])
            // A process that strace follows would outlive it.
            .args(["setpriv", "--pdeathsig", "KILL"]);
        Process::start(started_by(strace, &broker).env("TIDINGS_HTTP", "off"))
    };
    without("require").finish().expect_code(1).expect_stderr("this kernel has no Landlock");
    without("auto").wait_for_line_with("listening on");
}

#[test]
fn exec_conflicts_with_required_landlock() {
    let folder = TempDir::new().unwrap();
    let words = ["up", "--listen", "0", "--exec", "true", "--landlock", "require"];
    run_tidings(folder.path(), &words).expect_code(2).expect_stderr("--exec");
}

#[test]
#[ignore = "needs foreign programs"]
fn a_confined_crawler_writes_its_output_files() {
    use crate::support::nc::run_nc;
    use crate::support::origin::{Origin, Site};
    let origin = Origin::serve(Site { pages: 2, ..Site::default() });
    let folder = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let words = [
        "up",
        "--allow-private",
        "--landlock",
        "auto",
        "--jsonl",
        "out/pages.jsonl",
        "--warc",
        "w/p",
        "--sqlite",
    ];
    let up = Server::start_in(folder, &words, |_| ());
    let url = origin.url(0, "/p/0");
    run_nc(up.address, format!("{url}\n"));
    up.process.wait_for_line_with(&url);
    let jsonl = up.folder.path().join("out/pages.jsonl");
    wait_until("the page", || fs::read_to_string(&jsonl).ok()?.contains(&url).then_some(()));
    assert!(fs::read_dir(up.folder.path().join("w")).unwrap().count() > 0);
    up.process.signal_and_finish("TERM").expect_code(0);
}

#[test]
#[ignore = "needs foreign programs"]
fn a_confined_crawler_renders_pages() {
    use crate::support::nc::run_nc;
    use crate::support::origin::{Origin, Site, html_response};
    let origin = Origin::serve_with(Site::default(), |hit| {
        let body = "<script>document.write('<a href=/made>by a script</a>')</script>";
        (hit.path == "/app").then(|| html_response(body))
    });
    let when = if landlock_version().is_some() { "require" } else { "auto" };
    let folder = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let words = [
        "up",
        "--allow-private",
        "--landlock",
        when,
        "--render=always",
        "--browser-isolation=require",
        "--jsonl=pages.jsonl",
    ];
    let up = Server::start_in(folder, &words, |_| ());
    let url = origin.url(0, "/app");
    run_nc(up.address, format!("{url}\n"));
    let jsonl = up.folder.path().join("pages.jsonl");
    let made = origin.url(0, "/made");
    wait_until("the link", || fs::read_to_string(&jsonl).ok()?.contains(&made).then_some(()));
    up.process.signal_and_finish("TERM").expect_code(0);
}

#[test]
fn a_stop_does_not_wait_for_stalled_readers() {
    for (subcommand, time) in [("broker", "930ms"), ("up", "930ms"), ("broker", "3s"), ("up", "2s")]
    {
        let server = Server::start(&[subcommand, "--stop-timeout", time, "--log", "info"]);
        let mut reader = LineConnection::connect_client(server.address);
        reader.request_ok("SUB t");
        let mut stalled = LineConnection::connect_client(server.address);
        stalled.request_ok("SUB t");
        let mut publisher = LineConnection::connect_client(server.address);
        let payload = "x".repeat(60_000);
        // More than the socket buffers hold.
        for _ in 0..200 {
            publisher.request_ok(&format!("PUB t {payload}"));
            assert!(reader.read_line().ends_with(&payload));
        }
        let ended = server.process.signal_and_finish("TERM").expect_code(0);
        assert!(!ended.stderr().contains("did not stop in time"), "{subcommand} {time}: {ended:?}");
        let last = reader.read_to_end();
        assert!(last.last().is_some_and(|line| line.starts_with("-ERR closing")), "{last:?}");
        assert!(TcpStream::connect(server.address).is_err());
    }
}

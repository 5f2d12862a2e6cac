//! `tidings config`: reports every mistake with its position, and shows the value and the source of
//! every flag.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use crate::support::process::{Process, ProcessOutput, Server, tidings_command};

/// Runs `tidings config <arguments>` in this folder with these environment variables.
#[track_caller]
fn run_config(folder: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> ProcessOutput {
    let mut command = tidings_command(folder, [&["config"], arguments].concat());
    command.env_remove("TIDINGS_HTTP").envs(environment.iter().copied());
    Process::start(&mut command).finish()
}

#[test]
fn every_mistake_is_reported_with_its_position() {
    let folder = TempDir::new().unwrap();
    let file = "lissen = 1\ndelay = 'soon'\n[crawl]\ndepth = 'x'\n[nowhere]\na = 1\n";
    fs::write(folder.path().join("c.toml"), file).unwrap();
    let environment = [
        ("TIDINGS_THREADS", "many"),
        ("TIDINGS_QUIET", "perhaps"),
        ("TIDINGS_LISTN", "1"),
        ("TIDINGS_LOG", "=="),
    ];
    let output = run_config(folder.path(), &["check", "--config", "c.toml"], &environment);
    let output = output.expect_code(2);
    let stderr = output.stderr();
    for position in [
        "c.toml:1:1: unknown key `lissen`",
        "c.toml:2:9: `delay`: ",
        "c.toml:4:9: `depth`: ",
        "c.toml:5:2: unknown section `nowhere`",
        "environment: TIDINGS_THREADS: ",
        "environment: TIDINGS_QUIET: expected true or false",
        "environment: TIDINGS_LISTN: no flag has this variable",
        "environment: TIDINGS_LOG: ",
    ] {
        let found = stderr.lines().filter(|line| line.starts_with(position)).count();
        assert_eq!(found, 1, "{position} in {stderr}");
    }
    assert_eq!(stderr.lines().count(), 8, "{stderr}");
    assert!(output.stdout().is_empty(), "{output:?}");
}

#[test]
fn a_valid_configuration_is_reported_in_one_line() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("c.toml"), "delay = '2s'\n[crawl]\ndepth = 3\n").unwrap();
    let output = run_config(folder.path(), &["check", "--config", "c.toml"], &[]).expect_code(0);
    assert_eq!(output.stdout(), ["c.toml: valid for tidings up, 2 keys"]);
    assert_eq!(output.stderr(), "");
    let output = run_config(folder.path(), &["check", "topic", "create"], &[]).expect_code(0);
    let expected = "no configuration file; the environment is valid for tidings topic create";
    assert_eq!(output.stdout(), [expected]);
    for invalid in [&["check", "nonsense"][..], &["show", "zmq"], &["check", "--config", "none"]] {
        let output = run_config(folder.path(), invalid, &[]).expect_code(2);
        assert_eq!(output.stderr().lines().count(), 1, "{output:?}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing was started");
}

#[test]
fn a_relative_path_in_the_file_is_relative_to_the_working_directory() {
    let folder = TempDir::new().unwrap();
    let below = folder.path().join("below");
    fs::create_dir(&below).unwrap();
    fs::write(below.join("c.toml"), "never = 'list'\n").unwrap();
    fs::write(folder.path().join("list"), "a.example\n").unwrap();
    run_config(folder.path(), &["check", "--config", "below/c.toml"], &[]).expect_code(0);
    let output = run_config(&below, &["check", "--config", "c.toml"], &[]).expect_code(2);
    assert!(output.stderr().contains("--never list"), "{output:?}");
}

#[test]
fn conflicting_settings_are_reported() {
    let folder = TempDir::new().unwrap();
    let hook = "http = 'off'\n[[hook]]\nname = 'a'\nsecret-env = 'HOOK_SECRET'\nsignature = 'github'\n\
                url = { field = 'u' }\nprefixes = ['http://a.example/']\n";
    fs::write(folder.path().join("c.toml"), hook).unwrap();
    let check = ["check", "broker", "--config", "c.toml"];
    run_config(folder.path(), &check, &[]).expect_code(2).expect_stderr("HOOK_SECRET");
    let output = run_config(folder.path(), &check, &[("HOOK_SECRET", "hush")]).expect_code(2);
    let stderr = output.stderr();
    assert!(
        stderr.contains("a secret of 4 bytes can be guessed") && !stderr.contains("hush"),
        "{stderr}"
    );
    run_config(folder.path(), &check, &[("HOOK_SECRET", "hush, and let nobody hear it")])
        .expect_code(2)
        .expect_stderr("--http off");
    fs::write(folder.path().join("c.toml"), hook.replace("http = 'off'", "")).unwrap();
    run_config(folder.path(), &check, &[("HOOK_SECRET", "hush, and let nobody hear it")])
        .expect_code(0);
}

#[test]
fn every_problem_of_a_start_is_reported() {
    let folder = TempDir::new().unwrap();
    let push = |name: &str| {
        format!("[[push]]\nname = '{name}'\ntopic = 't'\nurl = 'x'\nformat = 'slack'\n")
    };
    let hook = |name: &str| {
        format!(
            "[[hook]]\nname = '{name}'\nsecret-file = 'no-{name}'\nsignature = 'github'\n\
                 url = {{ field = 'u' }}\nprefixes = ['http://a.example/']\n"
        )
    };
    let check = |text: &str| {
        fs::write(folder.path().join("c.toml"), text).unwrap();
        run_config(folder.path(), &["check", "--config", "c.toml"], &[]).expect_code(2).stderr()
    };
    let stderr = check(&format!("grant = ['x', 'y']\n{}{}", push("a"), push("b")));
    for place in [
        "c.toml:1:10: `grant`",
        "c.toml:1:15: `grant`",
        "c.toml:5:1: `push`",
        "c.toml:10:1: `push`",
    ] {
        assert!(stderr.contains(place), "{place}: {stderr}");
    }
    let text = "tls-cert = 'no-cert'\ntls-key = 'no-key'\naudit = 'no-dir/log'\n\
                unix = 'no-dir/socket'\ncallback-secret-file = 'no-secret'\nuser = 'no-such-user'\n\
                sign-key = 'no-sign-key'\nnever = 'no-list'\n";
    let stderr = check(&format!("{text}{}{}", hook("a"), hook("b")));
    for problem in [
        "no-cert",
        "--audit no-dir/log: no-dir is no directory",
        "--unix no-dir/socket: no-dir is no directory",
        "--callback-secret-file: cannot read no-secret",
        "no user \"no-such-user\"",
        "--sign-key: cannot read no-sign-key",
        "--never no-list",
        "cannot read no-a",
        "cannot read no-b",
    ] {
        assert!(stderr.contains(problem), "{problem}: {stderr}");
    }
}

#[test]
fn flags_that_need_or_exclude_others_do_so_in_the_file_too() {
    let folder = TempDir::new().unwrap();
    for (subcommand, file, problem) in [
        ("up", "client-ca = 'ca.pem'", "f:1:1: `client-ca`: needs `tls-cert` and `tls-key` too"),
        ("broker", "\ntls-cert = 'c.pem'\n", "f:2:1: `tls-cert`: needs `tls-key` too"),
        ("up", "[up]\ngroup = 'g'", "f:2:1: `group`: needs `user` too"),
        ("crawl", "sign-agent = 'https://a.example'", "f:1:1: `sign-agent`: needs `sign-key` too"),
        ("broker", "zmq-topics = ['a', 'b']", "f:1:1: `zmq-topics`: needs `zmq-pub` too"),
        ("sub", "[sub]\nfrom = 'first'\nexec-env = ['A']", "f:3:1: `exec-env`: needs `exec` too"),
        ("sub", "[sub]\ngroup = 'g'\nfrom = 'first'", "cannot be used with"),
    ] {
        fs::write(folder.path().join("f"), file).unwrap();
        let checked = run_config(folder.path(), &["check", subcommand, "--config", "f"], &[]);
        let words = [subcommand, "a", "--config", "f"];
        let words = if subcommand == "sub" { &words[..] } else { &[subcommand, "--config", "f"] };
        let started = Process::start(&mut tidings_command(folder.path(), words)).finish();
        for output in [checked, started] {
            let stderr = output.expect_code(2).stderr();
            assert!(stderr.contains(problem), "{file}: {stderr}");
        }
    }
    // A section may leave the other flag to the command line or the environment, and the top of
    // the file has flags of other subcommands.
    fs::write(folder.path().join("f"), "group = 'g'\n[broker]\ntls-cert = 'c'\n").unwrap();
    let check = ["check", "broker", "--config", "f"];
    let given = [("TIDINGS_TLS_KEY", "k"), ("TIDINGS_USER", "0")];
    let stderr = run_config(folder.path(), &check, &given).stderr();
    assert!(!stderr.contains("needs"), "{stderr}");
    run_config(folder.path(), &["check", "sub", "--config", "f"], &[]).expect_code(0);
}

#[test]
fn the_short_name_of_the_crawlers_address_is_for_typing_only() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("f"), "http = '127.0.0.1:1'\n").unwrap();
    let show = ["show", "crawl", "--config", "f"];
    let shown = run_config(folder.path(), &show, &[]).expect_code(0).stdout();
    assert!(shown.iter().any(|line| line.starts_with("# crawler-http = ..")), "{shown:?}");
    fs::write(folder.path().join("f"), "http = 'off'\ncrawler-http = 'off'\n").unwrap();
    let shown = run_config(folder.path(), &show, &[]).expect_code(0).stdout();
    assert!(shown.iter().any(|line| line.starts_with("crawler-http = \"off\"")), "{shown:?}");
    fs::write(folder.path().join("f"), "[crawl]\nhttp = 'off'\n").unwrap();
    let output = run_config(folder.path(), &["check", "--config", "f"], &[]).expect_code(2);
    assert!(output.stderr().contains("f:2:1: unknown key `http`; write `crawler-http`"));
}

const CONFIG_FILE: &str = r#"
allow-private = ["10.0.0.0/8", "127.0.0.1"]
agent = "bot \"x\" \\"
delay = "2s"
log-lines = true

[up]
concurrency = 7
header = ["Accept: a, b", "https://a.example=Authorization: Bearer hush"]
proxy = "http://u:hush@proxy.example:3128"
postgres = "postgres://u:hush@db.example/pages"

[[feed]]
url = "http://a.example/feed"
every = "2h"

[[hook]]
name = "a"
secret-file = "secret"
signature = "github"
url = { field = "u" }
prefixes = ["http://a.example/"]
rate = 16

[crawl]
depth = 3
"#;

#[test]
fn config_show_prints_an_equivalent_file() {
    let folder = TempDir::new().unwrap();
    // In TOML, lists of tables come after all keys of the top level.
    let file = CONFIG_FILE.replace("[up]", "[crawl]\ndepth = 3\n\n[up]");
    let file = file.rsplit_once("\n[crawl]").unwrap().0.replace("[[feed]]", "[[up.feed]]");
    let file = file.replace("[[hook]]", "[[up.hook]]");
    fs::write(folder.path().join("c.toml"), file).unwrap();
    fs::write(folder.path().join("secret"), "hush, and let nobody hear it").unwrap();
    let environment = [("TIDINGS_LISTEN", "127.0.0.1:7"), ("TIDINGS_QUIET", "yes")];
    let show = |file: &str, environment: &[(&str, &str)]| {
        let arguments = ["show", "up", "--config", file];
        run_config(folder.path(), &arguments, environment).expect_code(0).stdout()
    };
    let first = show("c.toml", &environment);
    for line in [
        "listen = \"127.0.0.1:7\"  # TIDINGS_LISTEN",
        "quiet = true  # TIDINGS_QUIET",
        "delay = \"2s\"  # c.toml:4",
        "concurrency = 7  # c.toml:11",
        "allow-private = \"10.0.0.0/8,127.0.0.1\"  # c.toml:2",
        "agent = \"bot \\\"x\\\" \\\\\"  # c.toml:3",
        "feed = [\"http://a.example/feed every=2h\"]  # c.toml:16",
        "data = \"./tidings-data\"  # default",
        "log-lines = true  # c.toml:5",
        "cookies = false  # default",
        "# timeout = ..  # not set; meaning: 40s",
        "# max-body = ..  # not set; meaning: 64m",
        "# proxy = \"http://HIDDEN@proxy.example:3128\"  # c.toml:13, with a secret",
        "# postgres = \"postgres://u:HIDDEN@db.example/pages\"  # c.toml:14, with a secret",
    ] {
        assert!(first.iter().any(|found| found == line), "{line}: {first:#?}");
    }
    assert!(!first.concat().contains("hush"), "{first:#?}");
    assert!(first.iter().any(|line| line.starts_with("hook = [{ \"name\" = \"a\"")), "{first:#?}");
    assert!(!first.concat().contains("depth"), "depth belongs to another subcommand: {first:#?}");

    fs::write(folder.path().join("d.toml"), first.join("\n")).unwrap();
    let second = show("d.toml", &[]);
    let values = |lines: &[String]| {
        let lines = lines.iter().filter(|line| !line.starts_with('#'));
        lines.map(|line| line.split("  # ").next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(values(&first), values(&second));
    // A server accepts the printed file.
    let server = Server::start_in(folder, &["up", "--config", "d.toml"], |_| ());
    server.process.signal_and_finish("TERM").expect_code(0);
}

#[test]
fn config_show_output_is_valid_for_every_subcommand() {
    let folder = TempDir::new().unwrap();
    for names in ["broker", "crawl", "sub", "watch", "topic create", "bench fan-out", "bridge zmq"]
    {
        let arguments: Vec<_> = ["show"].into_iter().chain(names.split(' ')).collect();
        let shown = run_config(folder.path(), &arguments, &[]).expect_code(0).stdout();
        assert!(shown.contains(&format!("[{}]", names.replace(' ', "."))), "{shown:#?}");
        fs::write(folder.path().join("c.toml"), shown.join("\n")).unwrap();
        let arguments: Vec<_> =
            ["check", "--config", "c.toml"].into_iter().chain(names.split(' ')).collect();
        run_config(folder.path(), &arguments, &[]).expect_code(0);
    }
}

//! The scripts of `tidings completions`, in the shells that they are for.

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::docs::pages::help_texts;
use crate::support::line_connection::LineConnection;
use crate::support::process::{Process, Server, run_tidings, tidings_command};
use crate::support::scripted_broker::{ScriptedConnection, start_scripted_broker};

const SHELLS: [&str; 5] = ["bash", "zsh", "fish", "elvish", "powershell"];

/// The long flags that a help text defines, as opposed to those that it mentions.
fn defined_flags(help: &str) -> impl Iterator<Item = String> {
    let lines = help.lines().filter_map(|line| line.strip_prefix("      --"));
    lines.map(|line| format!("--{}", line.split([' ', '[', '=']).next().unwrap()))
}

/// The script for a shell.
fn script(shell: &str) -> String {
    let folder = TempDir::new().unwrap();
    run_tidings(folder.path(), &["completions", shell]).expect_code(0).stdout().join("\n")
}

#[test]
fn each_script_has_each_subcommand_and_flag() {
    let helps = help_texts();
    for shell in SHELLS {
        let script = script(shell);
        for (command, help) in &helps {
            for word in command.split(' ') {
                assert!(script.contains(word), "{shell}: no {word}");
            }
            for flag in defined_flags(help) {
                let name = flag.trim_start_matches('-');
                let forms = [flag.clone(), format!("-l {name}")];
                assert!(forms.iter().any(|form| script.contains(form)), "{shell}: no {flag}");
            }
        }
    }
    // In bash a list of words belongs to each command.
    let script = script("bash");
    for (command, help) in &helps {
        let label = command.replace(['-', ' '], "__subcmd__");
        let (_, body) = script.split_once(&format!("\n        {label})\n")).unwrap();
        let words = body.lines().next().unwrap();
        for flag in defined_flags(help) {
            assert!(words.contains(&flag), "{command}: no {flag}: {words}");
        }
    }
}

#[test]
#[ignore = "needs foreign programs"]
fn the_shells_accept_the_scripts() {
    let folder = TempDir::new().unwrap();
    for (shell, check) in [("bash", "-n"), ("zsh", "-n"), ("fish", "--no-execute")] {
        let path = folder.path().join(shell);
        fs::write(&path, script(shell)).unwrap();
        let output = Process::start(Command::new(shell).arg(check).arg(&path)).finish();
        let output = output.expect_code(0);
        assert!(output.stdout().is_empty() && output.stderr().is_empty(), "{output:#?}");
    }
    // The other name, which people type as well.
    assert_eq!(
        run_tidings(folder.path(), &["completion", "fish"]).expect_code(0).stdout().join("\n"),
        script("fish")
    );
    let unknown = run_tidings(folder.path(), &["completions", "tcsh"]).expect_code(2).stderr();
    assert!(unknown.contains("bash") && unknown.lines().count() == 1, "{unknown}");
}

/// Runs a shell with the binary on its path and the broker in the environment.
fn run_shell(server: &Server, shell: &mut Command) -> Vec<String> {
    let binary = tidings_command(Path::new("."), [""; 0]);
    let binaries = Path::new(binary.get_program()).parent().unwrap().to_str().unwrap().to_owned();
    shell
        .env("PATH", format!("{binaries}:{}", std::env::var("PATH").unwrap()))
        .env("TIDINGS_BROKER", server.address_text())
        .env("HOME", server.folder.path())
        .env("TERM", "xterm")
        .env("XDG_CONFIG_HOME", server.folder.path())
        .env("XDG_DATA_HOME", server.folder.path());
    Process::start(shell).finish().expect_code(0).stdout()
}

/// A broker with a topic that no other word begins as.
fn start_server() -> Server {
    let server = Server::start_broker();
    let mut client = LineConnection::connect_client(server.address);
    client.request_ok("PUB zebra x");
    client.request_ok("JOB open quagga");
    server
}

#[test]
#[ignore = "needs foreign programs"]
fn bash_completes_commands_flags_and_names() {
    let server = start_server();
    let folder = server.folder.path().join("bash-completion/completions");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("tidings"), script("bash")).unwrap();
    let driver = "
        . /usr/share/bash-completion/bash_completion
        _completion_loader tidings
        try() {
            COMP_LINE=$1 COMP_POINT=${#1} COMP_WORDS=($1) COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
            _tidings_with_names tidings \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD - 1]}\"
            echo \"$1: ${COMPREPLY[*]}\"
        }
        complete -p tidings | grep -o _tidings_with_names
        try 'tidings gr'
        try 'tidings topic sho'
        try 'tidings topic show z'
        try 'tidings job show --json q'
        try 'tidings group set c'
        try 'tidings dead ls --ke'";
    let printed = run_shell(&server, Command::new("bash").args(["--norc", "-c", driver]));
    let expected = [
        "_tidings_with_names",
        "tidings gr: group",
        "tidings topic sho: show",
        "tidings topic show z: zebra",
        "tidings job show --json q: quagga",
        "tidings group set c: crawlers",
        "tidings dead ls --ke: --key",
    ];
    assert_eq!(printed, expected);
}

#[test]
#[ignore = "needs foreign programs"]
fn fish_completes_commands_and_names() {
    let server = start_server();
    let folder = server.folder.path().join("fish/completions");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("tidings.fish"), script("fish")).unwrap();
    let complete = |line: &str| {
        let driver = format!("complete -C'{line}'");
        let lines = run_shell(&server, Command::new("fish").args(["-c", &driver]));
        let words = lines.iter().map(|line| line.split('\t').next().unwrap().to_owned());
        words.collect::<Vec<_>>()
    };
    assert_eq!(complete("tidings gr"), ["group"]);
    assert_eq!(complete("tidings topic show z"), ["zebra"]);
    assert_eq!(complete("tidings sub --group c"), ["crawlers"]);
}

#[test]
#[ignore = "needs foreign programs"]
fn zsh_completes_commands_and_names() {
    let server = start_server();
    fs::write(server.folder.path().join("_tidings"), script("zsh")).unwrap();
    // The shell completes on a terminal, which its module zpty provides. The line is printed and not
    // run.
    let driver = "
        zmodload zsh/zpty
        zpty shell zsh -f -i
        zpty -w shell 'PS1= RPS1=; fpath=(~ $fpath); autoload -U compinit; compinit -u -d ~/dump'
        zpty -w shell 'print rea''dy'
        zpty -r -m shell printed $'*ready\\r*'
        for line in 'tidings gro' 'tidings topic show z' 'tidings dead ls --group c'; do
            zpty -w -n shell \"$line\"$'\\t'
            zpty -w -n shell $'\\C-a'\"print -r -- 'line: \"$'\\C-e'\"'\"$'\\n'
            zpty -r -m shell printed $'*line: tid*\\r*'
            print -r -- $printed
        done";
    let printed = run_shell(&server, Command::new("zsh").args(["-f", "-c", driver])).join("\n");
    for expected in [
        "line: tidings group",
        "line: tidings topic show zebra",
        "line: tidings dead ls --group crawlers",
    ] {
        assert!(printed.contains(expected), "{printed}");
    }
}

#[test]
fn names_cost_nothing_without_a_broker() {
    let server = start_server();
    let folder = server.folder.path().to_owned();
    let broker = server.address_text();
    let line = format!("tidings topic show --broker {broker} z");
    let names = || run_tidings(&folder, &["complete-names", &line]).expect_code(0);
    assert_eq!(names().stdout(), ["zebra"]);
    server.process.signal("STOP");
    let output = names();
    assert!(output.stdout().is_empty() && output.stderr().is_empty(), "{output:?}");
    server.process.signal("CONT");
}

#[test]
fn a_hostile_broker_completes_no_flag_and_no_flood() {
    let (broker, _) = start_scripted_broker(|listener| {
        let mut client = ScriptedConnection::accept(&listener);
        client.next();
        let names = (0..5_000).map(|number| format!("name-{number}"));
        let names =
            ["--yes", "-x", "$(id)", "..", "a;b"].map(str::to_owned).into_iter().chain(names);
        let lines: Vec<_> = names.map(|name| format!("+ {name}")).collect();
        client.send(&format!("{}\r\n+OK", lines.join("\r\n")));
        client.next();
    });
    let folder = TempDir::new().unwrap();
    let line = format!("tidings topic delete --broker {broker} ");
    let names = run_tidings(folder.path(), &["complete-names", &line]).expect_code(0).stdout();
    assert_eq!((names.len(), &*names[0]), (1_000, "name-0"));
}

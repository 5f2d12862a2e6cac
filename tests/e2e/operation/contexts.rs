//! Contexts: names for brokers, and the flags to connect to them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::process::{
    Process, ProcessOutput, Server, run_at, run_tidings, tidings_command,
};

/// Runs the binary with its contexts in this folder, and with these variables.
#[track_caller]
fn run(folder: &Path, variables: &[(&str, &str)], arguments: &[&str]) -> ProcessOutput {
    let mut command = tidings_command(folder, arguments);
    Process::start(command.envs(variables.iter().copied())).finish()
}

/// The version of the first answer: the topics of each broker are different.
#[track_caller]
fn topics(folder: &Path, variables: &[(&str, &str)], flags: &[&str]) -> Vec<String> {
    let arguments = [&["topic", "ls", "--json"], flags].concat();
    let lines = run(folder, variables, &arguments).expect_code(0).stdout();
    let name = |line: &String| {
        let topic: Value = serde_json::from_str(line).unwrap();
        topic["topic"].as_str().unwrap().to_owned()
    };
    lines.iter().map(name).collect()
}

/// A broker with a topic of this name.
fn start_broker(topic: &str) -> Server {
    let server = Server::start_broker();
    run_at(&server, &["pub", topic, "x"]).expect_code(0);
    server
}

#[test]
fn a_flag_overrides_the_environment_the_context_and_the_file() {
    let names = ["from-flag", "from-variable", "from-context", "from-file"];
    let servers = names.map(start_broker);
    let [flag, variable, context, file] = servers.each_ref().map(Server::address_text);
    let home = TempDir::new().unwrap();
    let home = home.path();
    run(home, &[], &["context", "add", "prod", "--broker", &context]).expect_code(0);
    fs::write(home.join("c.toml"), format!("broker = '{file}'\n")).unwrap();
    let has = |topics: Vec<String>, name: &str| {
        assert!(topics.iter().any(|topic| topic == name), "{name}: {topics:?}");
    };
    let (config, prod) = (["--config", "c.toml"], ["--context", "prod"]);
    has(topics(home, &[], &config), "from-file");
    has(topics(home, &[], &[&config[..], &prod].concat()), "from-context");
    has(topics(home, &[("TIDINGS_CONTEXT", "prod")], &config), "from-context");
    let variables = [("TIDINGS_BROKER", variable.as_str())];
    has(topics(home, &variables, &[&config[..], &prod].concat()), "from-context");
    has(topics(home, &variables, &["--broker", &flag]), "from-flag");
    let both = [variables[0], ("TIDINGS_CONTEXT", "prod")];
    has(topics(home, &both, &config), "from-variable");
    let two = ["topic", "ls", "--context", "prod", "--broker", &flag];
    let two = run(home, &[], &two).expect_code(2).stderr();
    let line = "tidings: --context and --broker both name a broker; type only one of them";
    assert_eq!(two, line);
    run(home, &[], &["context", "use", "prod"]).expect_code(0);
    has(topics(home, &[], &config), "from-context");
    has(topics(home, &variables, &config), "from-variable");

    let shown = run(home, &[], &["config", "show", "topic", "ls", "--config", "c.toml"]);
    let shown = shown.expect_code(0).stdout().join("\n");
    assert!(shown.contains(&format!("broker = \"{context}\"  # context prod")), "{shown}");
    assert!(shown.contains("context = \"prod\"  # context prod"), "{shown}");
    let shown = run(home, &variables, &["config", "show", "topic", "ls"]).expect_code(0).stdout();
    let line = format!("broker = \"{variable}\"  # TIDINGS_BROKER");
    assert!(shown.contains(&line), "{shown:#?}");
    // A server reads no contexts.
    fs::write(home.join("tidings/contexts.toml"), "nonsense").unwrap();
    run(home, &[], &["config", "check", "up"]).expect_code(0);
}

/// A broker that admits only the token of `op.token`, and the token.
fn start_closed_broker() -> (Server, String) {
    let data = TempDir::new().unwrap();
    let words = ["token", "create", "op", "--allow", "all"];
    let token = run_tidings(data.path(), &words).expect_code(0).stdout().concat();
    fs::write(data.path().join("op.token"), &token).unwrap();
    (Server::start_in(data, &["broker"], |_| ()), token)
}

#[test]
fn the_token_of_a_context_goes_to_no_other_broker() {
    let (closed, _) = start_closed_broker();
    let folder = closed.folder.path();
    let broker = closed.address_text();
    let add = ["context", "add", "closed", "--broker", &broker, "--token-file", "op.token"];
    run(folder, &[], &add).expect_code(0);
    run(folder, &[], &["context", "use", "closed"]).expect_code(0);
    run(folder, &[], &["topic", "ls"]).expect_code(0);
    // The path is absolute, so the context works in each folder.
    let elsewhere = TempDir::new().unwrap();
    let mut command = tidings_command(elsewhere.path(), ["topic", "ls"]);
    command.env("XDG_CONFIG_HOME", folder);
    Process::start(&mut command).finish().expect_code(0);
    // A command that names its broker does not send the token of the context there, however the
    // context is named.
    fs::write(folder.join("c.toml"), "context = 'closed'\n").unwrap();
    let (flag, file) = (["--broker", &*broker], ["--config", "c.toml"]);
    let (named, variable) = (("TIDINGS_CONTEXT", "closed"), ("TIDINGS_BROKER", &*broker));
    for (variables, flags) in [
        (&[][..], &flag[..]),
        (&[named], &flag),
        (&[], &[flag, file].concat()),
        (&[variable], &[]),
        (&[variable, named], &[]),
        (&[variable], &file),
    ] {
        let words = [&["topic", "ls"], flags].concat();
        let refused = run(folder, variables, &words).expect_code(1).stderr();
        let reason = format!(
            "--token-file FILE or TIDINGS_TOKEN (no token is sent to {broker}, because --broker or \
             TIDINGS_BROKER overrides the context closed)"
        );
        assert!(refused.contains(&reason), "{variables:?} {flags:?}: {refused}");
    }
    // A typed context is used as a whole.
    let variables = [("TIDINGS_BROKER", "127.0.0.1:1"), ("TIDINGS_TOKEN_FILE", "none.token")];
    run(folder, &variables, &["topic", "ls", "--context", "closed"]).expect_code(0);
}

#[test]
fn the_token_of_a_file_does_not_go_to_the_broker_of_a_context() {
    let (closed, token) = start_closed_broker();
    let folder = closed.folder.path();
    let broker = closed.address_text();
    run(folder, &[], &["context", "add", "bare", "--broker", &broker]).expect_code(0);
    fs::write(folder.join("c.toml"), "broker = '127.0.0.1:1'\ntoken-file = 'op.token'\n").unwrap();
    let words = ["topic", "ls", "--config", "c.toml", "--context", "bare"];
    run(folder, &[], &words).expect_code(1).expect_stderr("--token-file");
    run(folder, &[("TIDINGS_TOKEN", &token)], &words).expect_code(0);
    let named = [("TIDINGS_CONTEXT", "bare")];
    let words = ["config", "show", "topic", "ls", "--config", "c.toml"];
    let shown = run(folder, &named, &words).expect_code(0).stdout().join("\n");
    assert!(shown.contains("broker = ") && !shown.contains("op.token"), "{shown}");
}

#[test]
fn the_token_of_a_file_goes_only_to_the_broker_beside_it() {
    let (closed, token) = start_closed_broker();
    let folder = closed.folder.path();
    let broker = closed.address_text();
    let list = ["topic", "ls", "--config", "c.toml"];
    let flag = [&list[..], &["--broker", &broker]].concat();
    let variable = [("TIDINGS_BROKER", &*broker)];
    let mine = format!("broker = '{broker}'\n");
    let (other, with_token) = ("broker = '127.0.0.1:1'\n", "token-file = 'op.token'\n");
    let write = |parts: &[&str]| fs::write(folder.join("c.toml"), parts.concat()).unwrap();
    let expect_unsent = |variables: &[(&str, &str)], words: &[&str], line: u32| {
        let refused = run(folder, variables, words).expect_code(1).stderr();
        let reason = format!(
            "(no token is sent to {broker}, because that of c.toml:{line} is for 127.0.0.1:1)"
        );
        assert!(refused.contains(&reason), "{variables:?} {words:?}: {refused}");
    };
    write(&[other, with_token]);
    expect_unsent(&[], &flag, 2);
    expect_unsent(&variable, &list, 2);
    let show = ["config", "show", "topic", "ls", "--config", "c.toml"];
    let shown = |variables: &[_]| run(folder, variables, &show).expect_code(0).stdout().join("\n");
    assert!(shown(&[]).contains("op.token") && !shown(&variable).contains("op.token"));
    // A token that the caller names goes where the caller says.
    run(folder, &[], &[&flag[..], &["--token-file", "op.token"]].concat()).expect_code(0);
    run(folder, &[("TIDINGS_TOKEN", &token)], &flag).expect_code(0);
    run(folder, &[("TIDINGS_TOKEN_FILE", "op.token"), variable[0]], &list).expect_code(0);
    // Sections.
    write(&[other, "[topic.ls]\n", with_token]);
    expect_unsent(&[], &flag, 3);
    write(&[other, with_token, "[topic.ls]\n", &mine]);
    expect_unsent(&[], &list, 2);
    write(&[other, "[topic.ls]\n", &mine, with_token]);
    run(folder, &[], &list).expect_code(0);

    // The same broker, or none.
    write(&[&mine, with_token]);
    run(folder, &[], &flag).expect_code(0);
    write(&[with_token]);
    run(folder, &[], &flag).expect_code(0);
}

#[test]
fn a_token_in_the_environment_overrides_the_file_of_a_context() {
    let (closed, token) = start_closed_broker();
    let folder = closed.folder.path();
    let broker = closed.address_text();
    fs::write(folder.join("old.token"), "old").unwrap();
    let add = ["context", "add", "closed", "--broker", &broker, "--token-file", "old.token"];
    run(folder, &[], &add).expect_code(0);
    fs::write(folder.join("c.toml"), format!("broker = '{broker}'\ntoken-file = 'old.token'\n"))
        .unwrap();
    for flags in [["--context", "closed"], ["--config", "c.toml"]] {
        let words = [&["topic", "ls"][..], &flags].concat();
        run(folder, &[], &words).expect_code(1);
        run(folder, &[("TIDINGS_TOKEN", &token)], &words).expect_code(0);
        // A flag overrides both.
        let words = [&words[..], &["--token-file", "op.token"]].concat();
        run(folder, &[("TIDINGS_TOKEN", "old")], &words).expect_code(0);
    }
}

#[test]
fn a_context_has_only_what_was_typed() {
    let home = TempDir::new().unwrap();
    let home = home.path();
    fs::write(home.join("c.toml"), "ca = 'ca.pem'\n").unwrap();
    let variables = [("TIDINGS_TOKEN_FILE", "op.token"), ("TIDINGS_TLS", "true")];
    let add = ["context", "add", "prod", "--broker", "broker.example", "--config", "c.toml"];
    run(home, &variables, &add).expect_code(0);
    let shown = run(home, &[], &["context", "show", "prod"]).expect_code(0).stdout();
    assert_eq!(shown, ["prod", "  broker = broker.example:12345"]);
}

#[test]
fn contexts_are_added_listed_shown_and_removed() {
    let home = TempDir::new().unwrap();
    let home = home.path();
    run(home, &[], &["topic", "ls", "--context", "prod"])
        .expect_code(2)
        .expect_stderr("no context prod; known: none");
    for (name, broker) in [("prod", "broker.example"), ("test", "10.0.0.1:7")] {
        run(home, &[], &["context", "add", name, "--broker", broker, "--tls"]).expect_code(0);
    }
    let again = ["context", "add", "prod", "--broker", "other.example"];
    run(home, &[], &again).expect_code(1).expect_stderr("tidings context rm prod");
    run(home, &[], &["context", "use", "prod"]).expect_code(0);
    let listed = run(home, &[], &["context", "ls"]).expect_code(0).stdout();
    let words: Vec<Vec<_>> = listed.iter().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(words[1..], [["prod", "broker.example:12345", "yes"], ["test", "10.0.0.1:7", "-"]]);
    let shown = run(home, &[], &["context", "show", "--json"]).expect_code(0).stdout().concat();
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!((&shown["context"], &shown["tls"]), (&json!("prod"), &json!("true")));
    run(home, &[], &["context", "use", "prd"])
        .expect_code(2)
        .expect_stderr("no context prd; known: prod, test");

    let path = home.join("tidings/contexts.toml");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    run(home, &[], &["context", "rm", "prod"]).expect_code(0);
    let text = fs::read_to_string(&path).unwrap();
    assert!(!text.contains("prod") && text.contains("test"), "{text}");
    run(home, &[], &["context", "show"]).expect_code(1);
}

#[test]
fn a_file_that_others_can_write_or_with_a_secret_is_refused() {
    let home = TempDir::new().unwrap();
    let home = home.path();
    run(home, &[], &["context", "add", "prod", "--broker", "127.0.0.1:1"]).expect_code(0);
    let path = home.join("tidings/contexts.toml");
    for mode in [0o620, 0o602] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let refused = run(home, &[], &["topic", "ls"]).expect_code(2).stderr();
        assert!(refused.contains("other users can write it; chmod 600"), "{refused}");
        assert_eq!(refused.lines().count(), 1, "{refused}");
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(&path, "[context.prod]\nbroker = '127.0.0.1:1'\ntoken = 'hush'\n").unwrap();
    let refused = run(home, &[], &["topic", "ls"]).expect_code(2).stderr();
    assert!(refused.contains("contexts.toml:3: ") && refused.contains("token-file"), "{refused}");
    assert!(!refused.contains("hush"), "{refused}");
}

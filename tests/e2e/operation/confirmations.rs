//! Commands that cannot be undone: they ask on a terminal, and need `--yes` elsewhere.

use crate::support::line_connection::LineConnection;
use crate::support::process::{Server, run_at, run_json_at, run_tidings};
use crate::support::terminal::start_on_terminal;
use crate::support::wait::wait_until;

/// A broker with a paused group and 1,001 waiting URLs, a job with two more, and a topic.
#[track_caller]
fn start_server() -> Server {
    let server = Server::start_broker();
    let mut client = LineConnection::connect_client(server.address);
    let urls = (0..1_001).map(|page| format!("PUB new-url http://a.example/{page}\n"));
    let commands = ["GROUP pause crawlers\n".to_owned()].into_iter().chain(urls).chain([
        "JOB open docs\n".to_owned(),
        "JOB add docs url=http://b.example/1\n".to_owned(),
        "JOB add docs url=http://b.example/2\n".to_owned(),
        "PUB log x\n".to_owned(),
        "QUIT\n".to_owned(),
    ]);
    client.send(commands.collect::<String>());
    while client.read_line() != "+OK" {}
    wait_until("the group has taken the events", || (waiting(&server) == 1_003).then_some(()));
    server
}

/// The waiting entries of the default group.
#[track_caller]
fn waiting(server: &Server) -> u64 {
    run_json_at(server, &["group", "show"])[0]["waiting"].as_u64().unwrap()
}

#[test]
fn without_a_terminal_nothing_is_lost_unless_yes_is_given() {
    let server = start_server();
    let commands: [&[&str]; 10] = [
        &["topic", "delete", "log"],
        &["group", "purge", "crawlers"],
        &["group", "delete", "crawlers"],
        &["job", "cancel", "docs"],
        &["job", "delete", "docs"],
        &["dead", "drop", "--all"],
        &["dead", "drop", "--key", "a.example"],
        &["dead", "drop", "--job", "docs"],
        &["topic", "forget", "log", "reader"],
        &["token", "revoke", "alice"],
    ];
    for words in commands {
        // A variable could be set for many commands, so `--yes` has none.
        let mut command = crate::support::process::tidings_command(server.folder.path(), words);
        command.env("TIDINGS_BROKER", server.address_text()).env("TIDINGS_YES", "true");
        let output = crate::support::process::Process::start(&mut command).finish();
        let output = output.expect_code(2);
        let line = "tidings: this cannot be undone; confirm it with --yes, or run it on a terminal";
        assert_eq!((output.stderr(), output.stdout()), (line.to_owned(), Vec::new()), "{words:?}");
    }
    assert_eq!(waiting(&server), 1_003);
    run_at(&server, &["group", "purge", "crawlers", "--yes"]).expect_code(0);
    run_at(&server, &["topic", "delete", "log", "--yes"]).expect_code(0);
    assert_eq!(waiting(&server), 0);
    std::fs::write(server.folder.path().join("yes.toml"), "yes = true\n").unwrap();
    let words = ["dead", "drop", "--all", "--config", "yes.toml"];
    run_tidings(server.folder.path(), &words).expect_code(2).expect_stderr("unknown key `yes`");
}

#[test]
#[ignore = "needs foreign programs"]
fn a_terminal_asks_with_the_number_and_only_yes_confirms() {
    let server = start_server();
    // The question, and what the command prints when it was confirmed.
    let cases: [(&[&str], &str, &str); 8] = [
        (
            &["job", "cancel", "docs"],
            "cancel job docs and drop 2 waiting URLs? [y/N] ",
            "docs: pass 1",
        ),
        (
            &["job", "delete", "docs"],
            "delete job docs and forget its 2 URLs? [y/N] ",
            "deleted docs",
        ),
        (
            &["group", "purge", "crawlers", "--match", "/1$"],
            "drop 1 waiting entry of group crawlers? [y/N] ",
            "dropped 1",
        ),
        (
            &["group", "purge", "crawlers"],
            "drop 1,000 waiting URLs of group crawlers? [y/N] ",
            "purged crawlers",
        ),
        (&["dead", "drop", "--all"], "drop 0 dead letters of group crawlers? [y/N] ", "dropped 0"),
        (
            &["topic", "forget", "log", "reader"],
            "forget cursor reader of topic log, and how far it has read? [y/N] ",
            "tidings: ",
        ),
        (&["topic", "delete", "log"], "delete topic log with 1 event? [y/N] ", "deleted log"),
        (
            &["group", "delete", "crawlers"],
            "delete group crawlers with 0 waiting URLs? [y/N] ",
            // The default group stays.
            "tidings: ",
        ),
    ];
    for (words, question, done) in cases {
        for answer in ["n", "", "yess"] {
            let mut process = start_on_terminal(&server, words);
            process.write(format!("{answer}\n"));
            let output = process.finish().expect_code(1).stdout().join("\n");
            assert!(output.contains(question), "{words:?}: {output}");
            assert!(output.contains("tidings: not confirmed; nothing was changed"), "{output}");
        }
        let mut process = start_on_terminal(&server, words);
        process.write("y\n");
        let output = process.finish().stdout().join("\n");
        let printed = output.split_once(question).unwrap_or_else(|| panic!("{output}")).1;
        assert!(printed.contains(done) && !printed.contains("not confirmed"), "{output}");
    }
    assert_eq!(waiting(&server), 0);
}

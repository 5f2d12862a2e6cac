//! Login and permissions, with netcat, curl and commands as clients.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::http_client::HttpClient;
use crate::support::line_connection::LineConnection;
use crate::support::origin::{Origin, Site};
use crate::support::pipelined_connection::connect_tcp_from;
use crate::support::process::{Process, Server, run_tidings, tidings_command};
use crate::support::seed::{number_from_env, seed_from_env};
use crate::support::wait::wait_until;

/// Creates a principal in the data directory below `folder`, and returns its token.
#[track_caller]
pub(crate) fn create_token(folder: &Path, name: &str, rights: &[&str]) -> String {
    let rights = rights.iter().flat_map(|right| ["--allow", right]);
    let words: Vec<_> = ["token", "create", name].into_iter().chain(rights).collect();
    let output = run_tidings(folder, &words).expect_code(0).stdout();
    assert!(output.len() == 1 && output[0].starts_with("tdg_"), "{output:?}");
    output[0].clone()
}

/// A broker with these principals, and their tokens.
#[track_caller]
pub(crate) fn broker<const N: usize>(
    known: [(&str, &[&str]); N],
    flags: &[&str],
) -> (Server, [String; N]) {
    let folder = TempDir::new().unwrap();
    let tokens = known.map(|(name, rights)| create_token(folder.path(), name, rights));
    let server = Server::start_in(folder, &[&["broker"], flags].concat(), |command| {
        command.env("TIDINGS_LOG", "trace");
    });
    (server, tokens)
}

/// A connection that has logged in.
#[track_caller]
pub(crate) fn logged_in(server: &Server, token: &str) -> LineConnection {
    let mut connection = LineConnection::connect(server.address);
    assert!(connection.read_line().starts_with("Connected."));
    let hello = connection.request(&format!("HELLO token={token}"));
    assert!(hello.starts_with("+OK tidings"), "{hello}");
    connection
}

// PROTOCOL: S16, S17
#[test]
#[ignore = "needs foreign programs"]
fn a_token_grants_its_permissions_and_anonymous_clients_have_none() {
    let rights: &[&str] = &["pub:new-url", "sub:news-*"];
    let (server, [token]) = broker([("alice", rights)], &[]);
    let mut anonymous = LineConnection::connect(server.address);
    assert!(anonymous.read_line().starts_with("Connected."));
    for line in ["SUB new-url", "PUB new-url x", "STATS", "JOIN crawlers", "TOPIC ls", "JOB ls"] {
        let response = anonymous.request(line);
        assert!(response.starts_with("-ERR unauthenticated "), "{line}: {response}");
    }
    assert!(anonymous.request("PING").starts_with("PONG"));
    let mut alice = logged_in(&server, &token);
    assert_eq!(alice.request("PUB new-url http://a.example/"), "+OK 1 1");
    assert_eq!(alice.request("SUB news-today"), "+OK");
    for line in ["SUB new-url", "SUB news", "STATS", "TOPIC delete new-url", "JOB open x"] {
        let response = alice.request(line);
        assert!(response.starts_with("-ERR denied alice may not "), "{line}: {response}");
    }
    let response = alice.request("PUB news-today x");
    assert!(
        response.starts_with("-ERR denied n=2 alice may not publish on news-today"),
        "{response}"
    );
    let response = alice.request("PUB new-url http://a.example/ every=1h");
    assert!(response.starts_with("-ERR denied n=3 alice may not use every="), "{response}");
    // A line typed without login.
    let mut typed =
        Process::start(Command::new("nc").args(["127.0.0.1", &server.address.port().to_string()]));
    typed.write("http://b.example/\n");
    typed.wait_for_line_with("-ERR unauthenticated");
    typed.finish();
    let mut again = logged_in(&server, &token);
    assert_eq!(
        again.request("PUB new-url http://c.example/"),
        "+OK 2 1",
        "the anonymous line was not published"
    );
}

// PROTOCOL: S18
#[test]
#[ignore = "needs foreign programs"]
fn permission_changes_apply_to_open_connections() {
    let (server, [alice_token, bob_token, carol_token]) =
        broker([("alice", &["sub:*"]), ("bob", &["sub:*"]), ("carol", &["pub:*", "sub:*"])], &[]);
    let folder = server.folder.path();
    let mut alice = logged_in(&server, &alice_token);
    assert_eq!(alice.request("SUB new-url"), "+OK");
    let mut bob = logged_in(&server, &bob_token);
    assert_eq!(bob.request("SUB new-url"), "+OK");
    let mut carol = logged_in(&server, &carol_token);
    assert_eq!(carol.request("PUB other x"), "+OK 1 1");
    let http = HttpClient::new(&server);
    let stream = http
        .stream("/topics/new-url/events", &["-H", &format!("Authorization: Bearer {alice_token}")]);
    stream.wait_for_line_with("retry:");
    run_tidings(folder, &["token", "revoke", "alice", "--yes"]).expect_code(0);
    let response = alice.read_line();
    assert!(response.starts_with("-ERR revoked alice is revoked"), "{response}");
    alice.expect_closed();
    stream.finish();
    run_tidings(folder, &["token", "set", "bob", "--allow", "sub:news"]).expect_code(0);
    let response = bob.read_line();
    assert!(response.starts_with("-ERR revoked the permissions of bob have changed"), "{response}");
    let mut bob = logged_in(&server, &bob_token);
    assert!(bob.request("SUB new-url").starts_with("-ERR denied "));
    assert_eq!(bob.request("SUB news"), "+OK");
    // A connection without subscription or membership stays open with its new permissions.
    run_tidings(folder, &["token", "set", "carol", "--allow", "pub:new-url"]).expect_code(0);
    wait_until("the change of its permissions", || {
        carol.request("PUB other y").starts_with("-ERR denied ").then_some(())
    });
    carol.request_ok("PUB new-url z");
    let mut connection = LineConnection::connect(server.address);
    connection.read_line();
    assert!(
        connection
            .request(&format!("HELLO token={alice_token}"))
            .starts_with("-ERR unauthenticated ")
    );
    // An invalid or missing file grants nothing.
    fs::write(server.data_dir().join("access.toml"), "nonsense").unwrap();
    server.process.wait_for_line_with("the permissions stay as they are");
    fs::remove_file(server.data_dir().join("access.toml")).unwrap();
    server.process.wait_for_line_with("stay as they are until it is back");
    assert!(bob.request("SUB new-url").starts_with("-ERR denied "));
    assert!(
        LineConnection::connect_client(server.address)
            .request("STATS")
            .starts_with("-ERR unauthenticated ")
    );
}

// PROTOCOL: K8
#[test]
fn a_cursor_belongs_to_its_topic_and_not_to_the_principal_that_created_it() {
    let known: [(&str, &[&str]); 3] =
        [("alice", &["pub:news", "sub:news"]), ("bob", &["sub:news"]), ("carol", &["sub:other"])];
    let (server, [alice_token, bob_token, carol_token]) = broker(known, &[]);
    let mut alice = logged_in(&server, &alice_token);
    assert_eq!(alice.request("PUB news one"), "+OK 1 1");
    assert_eq!(alice.request("SUB news as=reader from=first"), "+OK");
    assert_eq!(alice.read_line(), "MSG news 1 one");
    let mut bob = logged_in(&server, &bob_token);
    assert!(bob.request("SUB news as=reader").starts_with("-ERR busy "));
    assert_eq!(bob.request("SUB news as=reader takeover=yes"), "+OK");
    assert_eq!(bob.read_line(), "MSG news 1 one");
    assert_eq!(bob.request("SEEN news 1"), "+OK");
    assert!(alice.read_line().starts_with("-ERR replaced "));
    let mut carol = logged_in(&server, &carol_token);
    assert!(carol.request("SUB news as=reader takeover=yes").starts_with("-ERR denied "));
}

#[test]
fn a_connection_in_use_cannot_change_its_principal() {
    let (server, [alice_token, bob_token]) =
        broker([("alice", &["sub:*", "group:*", "job:*", "admin"]), ("bob", &["sub:news"])], &[]);
    let other = format!("HELLO token={bob_token}");
    for (command, answer) in
        [("SUB secret", "+OK"), ("JOIN workers credit=1", "+OK"), ("SUB secret as=cursor", "+OK")]
    {
        let mut alice = logged_in(&server, &alice_token);
        if command.starts_with("JOIN") {
            alice.request_ok("GROUP create workers topics=secret");
        }
        let response = alice.request(command);
        assert!(response.starts_with(answer), "{command}: {response}");
        let response = alice.request(&other);
        assert!(
            response
                .starts_with("-ERR conflict this connection already subscribes or works as alice"),
            "{command}: {response}"
        );
        // It may log in again as the same principal.
        alice.request_ok(&format!("HELLO token={alice_token}"));
    }
    // A pending `JOB wait` counts as use of the connection; an answered one does not.
    let mut alice = logged_in(&server, &alice_token);
    let mut operator = logged_in(&server, &alice_token);
    operator.request_ok("JOB open docs");
    alice.send(format!("JOB wait docs\n{other}\n"));
    operator.request_ok("JOB cancel docs");
    let response = [alice.read_line(), alice.read_line()];
    assert!(
        response[0].starts_with("+OK docs ") && response[0].contains(" result=cancelled "),
        "{response:?}"
    );
    assert!(
        response[1].starts_with("-ERR conflict this connection already subscribes or works"),
        "{response:?}"
    );
    assert!(alice.request("JOB wait no-such-job").starts_with("-ERR unknown "));
    alice.request_ok(&other);
    let mut alice = logged_in(&server, &alice_token);
    alice.request_ok(&other);
    assert!(alice.request("SUB secret").starts_with("-ERR denied "));
}

#[test]
fn require_login_without_principals_prevents_the_start() {
    let folder = TempDir::new().unwrap();
    let flags = ["broker", "--listen", "127.0.0.1:0", "--require-login"];
    let output = run_tidings(folder.path(), &flags).expect_code(2).stderr();
    assert!(
        output.contains("access.toml does not exist") && output.contains("tidings token create"),
        "{output}"
    );
    create_token(folder.path(), "alice", &["all"]);
    let server = Server::start_in(folder, &["broker", "--require-login"], |_| ());
    assert!(
        LineConnection::connect_client(server.address)
            .request("STATS")
            .starts_with("-ERR unauthenticated ")
    );
    let Server { process, folder, .. } = server;
    process.signal_and_finish("TERM").expect_code(0);
    let list = folder.path().join("tidings-data/access.toml");
    for no_principals in ["", "principal = []\n"] {
        fs::write(&list, no_principals).unwrap();
        run_tidings(folder.path(), &flags)
            .expect_code(2)
            .expect_stderr("access.toml lists no principal");
    }
    fs::remove_file(&list).unwrap();
    run_tidings(folder.path(), &flags).expect_code(2);
}

#[test]
fn only_changes_and_other_files_are_reported() {
    let flags = ["--audit", "tidings-data/audit.log"];
    let (server, [_token]) = broker([("alice", &["all"])], &flags);
    let folder = server.folder.path();
    run_tidings(folder, &["token", "set", "alice", "--allow", "sub:*"]).expect_code(0);
    server.process.wait_for_line_with("has changed");
    server.process.signal("KILL");
    let verify = ["verify", "--data", "tidings-data"];
    let verified = wait_until("the end", || {
        let verified = run_tidings(folder, &verify);
        (verified.code == Some(0)).then(|| verified.stdout().join("\n"))
    });
    assert!(server.data_dir().join("broker.sock").exists());
    assert!(!verified.contains("another program"), "{verified}");
    let changes = server.process.finish().stderr().matches("has changed").count();
    assert_eq!(changes, 1, "a start is no change");
}

#[test]
fn require_login_and_insecure_conflict() {
    let folder = TempDir::new().unwrap();
    create_token(folder.path(), "alice", &["all"]);
    fs::write(folder.path().join("both.toml"), "require-login = true\ninsecure = true\n").unwrap();
    fs::write(folder.path().join("one.toml"), "require-login = true\n").unwrap();
    for words in [
        &["broker", "--config", "both.toml"][..],
        &["broker", "--config", "one.toml", "--insecure"],
        &["config", "check", "broker", "--config", "both.toml"],
    ] {
        let output = run_tidings(folder.path(), words).expect_code(2).stderr();
        assert!(output.contains("cannot be used with"), "{output}");
    }
}

#[test]
fn wrong_tokens_get_the_same_answer_and_are_limited() {
    let (server, [token]) = broker([("alice", &["all"])], &[]);
    let mut answers = Vec::new();
    for round in 0..10 {
        let mut connection = LineConnection::connect(server.address);
        connection.read_line();
        let wrong = match round % 3 {
            0 => "x".to_owned(),
            1 => token.to_lowercase(),
            _ => token[..token.len() - 1].to_owned(),
        };
        answers.push(connection.request(&format!("HELLO token={wrong}")));
    }
    answers.dedup();
    assert_eq!(answers, ["-ERR unauthenticated no principal has this token"]);
    let mut connection = LineConnection::connect(server.address);
    connection.read_line();
    let response = connection.request("HELLO token=x");
    assert!(
        response.starts_with("-ERR limit too many wrong tokens from this address"),
        "{response}"
    );
    // Wrong tokens of others do not lock out a principal.
    assert_eq!(logged_in(&server, &token).request("SUB new-url"), "+OK");
}

/// `TIDINGS_WRONG_TOKENS` is their number. The time of an answer must not depend on how much of a
/// token is right: the times of each kind are printed.
#[test]
fn every_wrong_token_is_rejected_with_the_same_answer() {
    let count = number_from_env("TIDINGS_WRONG_TOKENS").unwrap_or(40);
    let (server, [token]) = broker([("alice", &["all"])], &[]);
    let mut rng = fastrand::Rng::with_seed(seed_from_env("TIDINGS_WRONG_TOKENS_SEED"));
    let mut times = [const { Vec::new() }; 4];
    for round in 0..count {
        let kind = usize::try_from(round).unwrap() % times.len();
        let mut any = |length: usize| (0..length).map(|_| rng.alphanumeric()).collect::<String>();
        let wrong = match kind {
            0 => format!("tdg_{}", any(43)),
            // All but the last letter are right.
            1 => {
                let (right, last) = token.split_at(token.len() - 1);
                format!("{right}{}", if last == "A" { "E" } else { "A" })
            }
            2 => token[..token.len() / 2].to_owned() + &any(23),
            _ => any(8),
        };
        let [.., high, low] = round.to_be_bytes();
        let from = Ipv4Addr::new(127, 2, high, low);
        let mut connection = LineConnection::from_stream(connect_tcp_from(server.address, from));
        connection.read_line();
        let began = Instant::now();
        let response = connection.request(&format!("HELLO token={wrong}"));
        times[kind].push(began.elapsed());
        assert_eq!(response, "-ERR unauthenticated no principal has this token", "{wrong}");
        assert!(connection.request("STATS").starts_with("-ERR unauthenticated "), "{wrong}");
    }
    let kinds = ["unknown", "all but the last letter", "half of the token", "short"];
    for (kind, mut times) in kinds.into_iter().zip(times) {
        times.sort_unstable();
        let at = |quarter: usize| times[(times.len() - 1) * quarter / 4];
        let (low, median, high) = (at(1), at(2), at(3));
        eprintln!(
            "{kind}: {} tokens, median {median:?}, quartiles {low:?} to {high:?}",
            times.len()
        );
    }
    assert_eq!(logged_in(&server, &token).request("SUB new-url"), "+OK");
}

/// A crawler waits for its broker, but not for its token.
#[test]
fn an_unreadable_token_file_ends_a_command_at_once() {
    let folder = TempDir::new().unwrap();
    for command in [&["crawl"][..], &["topic", "ls"]] {
        let words = [command, &["--broker", "127.0.0.1:1", "--token-file", "t"]].concat();
        run_tidings(folder.path(), &words)
            .expect_code(2)
            .expect_stderr("cannot read the token: cannot read t: ");
    }
}

#[test]
#[ignore = "needs foreign programs"]
fn commands_send_tokens_and_internal_clients_need_none() {
    let origin = Origin::serve(Site::default());
    let folder = TempDir::new().unwrap();
    let producer = create_token(folder.path(), "producer", &["pub:new-url"]);
    let reader = create_token(folder.path(), "reader", &["sub:*"]);
    let server = Server::start_in(folder, &["up", "--allow-private", "--log-lines"], |command| {
        command.env("TIDINGS_LOG", "trace");
    });
    let at = server.address.to_string();
    let folder = server.folder.path();
    let publish = ["pub", "new-url", &origin.url(0, "/"), "--broker", &at];
    let output = run_tidings(folder, &publish).expect_code(1).stderr();
    assert!(output.contains("log in with --token-file"), "{output}");
    fs::write(folder.join("producer.token"), format!("{producer}\n")).unwrap();
    run_tidings(folder, &[&publish[..], &["--token-file", "producer.token"]].concat())
        .expect_code(0);
    server.process.wait_for_line_with(&origin.url(0, "/"));
    let listen = ["sub", "new-url", "--from", "first", "--count", "1", "--broker", &at];
    let mut command = tidings_command(folder, listen);
    let received = Process::start(command.env("TIDINGS_TOKEN", &reader)).finish().expect_code(0);
    assert!(received.stdout()[0].contains(&origin.url(0, "/")), "{:?}", received.stdout());
    // A person on this machine.
    let socket = server.data_dir().join("broker.sock");
    let mut typed = Process::start(Command::new("nc").arg("-NU").arg(&socket));
    typed.wait_for_line_with("Connected.");
    typed.write(format!("{}\n", origin.url(0, "/typed")));
    server.process.wait_for_line_with(&origin.url(0, "/typed"));
    typed.finish();
    // A token in a wrong place.
    let mut connection = LineConnection::connect(server.address);
    connection.read_line();
    connection.request_ok(&format!("HELLO token={producer} name={producer} echo=x"));
    assert!(connection.request(&format!("SUB {producer}")).starts_with("-ERR"));
    // No output and no file contains a token.
    let Server { process, folder, .. } = server;
    let ended = process.signal_and_finish("TERM").expect_code(0);
    let mut all = ended.stdout().join("\n") + &ended.stderr();
    for entry in files_below(&folder.path().join("tidings-data")) {
        all.push_str(&String::from_utf8_lossy(&fs::read(entry).unwrap_or_default()));
    }
    for token in [&producer, &reader] {
        assert!(!all.contains(token.as_str()) && !all.contains(&token[4..]));
    }
}

/// All files below a directory.
fn files_below(dir: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

#[test]
fn listening_on_the_network_requires_tokens_and_tls() {
    let folder = TempDir::new().unwrap();
    for words in [
        ["broker", "--listen", "0.0.0.0:0", "--http", "off"],
        ["up", "--listen", "127.0.0.1:0", "--http", "[::]:0"],
    ] {
        let output = run_tidings(folder.path(), &words).expect_code(2).stderr();
        assert!(
            output.contains("tidings token create NAME") && output.contains("--tls-cert FILE"),
            "{output}"
        );
        assert!(output.contains("--insecure"), "{output}");
    }
    let words = ["broker", "--listen", "127.0.0.1:0", "--http", "off", "--zmq-pull", "tcp://*:0"];
    run_tidings(folder.path(), &words)
        .expect_code(2)
        .expect_stderr("--zmq-pull tcp://0.0.0.0:0 is open to other machines");
    let server = Server::start(&["broker", "--insecure", "--http", "0.0.0.0:0"]);
    server.process.wait_for_line_with("(--insecure)");
    create_token(folder.path(), "alice", &["all"]);
    let words = ["broker", "--listen", "0.0.0.0:0", "--http", "off"];
    run_tidings(folder.path(), &words)
        .expect_code(2)
        .expect_stderr("tokens would be sent unencrypted");
}

// PROTOCOL: S3
#[test]
fn peers_can_use_only_the_notifier_topic() {
    let (server, [token]) = broker([("alice", &["sub:*"])], &["--notifier", "guestbook"]);
    let mut alice = logged_in(&server, &token);
    assert_eq!(alice.request("SUB guestbook"), "+OK");
    assert_eq!(alice.request("SUB new-url"), "+OK");
    let (mut one, _) = LineConnection::connect_with_number(server.address);
    let (mut other, _) = LineConnection::connect_with_number(server.address);
    // A peer cannot log in any more, and the broker does not publish the token that it sends.
    one.send(format!("hello\nHELLO token={token}\nhttp://a.example/ every=1m\nPUB new-url x\n"));
    assert_eq!(other.read_line(), "hello");
    server.process.wait_for_line_with("the line contains a token");
    assert_eq!(other.read_line(), "PUB new-url x");
    assert_eq!(alice.read_line(), "MSG guestbook 1 hello");
    assert_eq!(alice.read_line(), "MSG guestbook 2 PUB new-url x");
    let mut client = LineConnection::connect(server.address);
    client.read_line();
    assert!(client.request("PUB guestbook x").starts_with("-ERR unauthenticated "));
}

#[test]
fn principals_are_listed_and_invalid_token_commands_are_rejected() {
    let folder = TempDir::new().unwrap();
    run_tidings(folder.path(), &["token", "ls"])
        .expect_code(0)
        .expect_stderr("login is not required");
    create_token(folder.path(), "ci", &["pub:new-url", "url:https://a.example/blog/"]);
    run_tidings(
        folder.path(),
        &["token", "create", "alice", "--unix-user", "0", "--allow", "all", "--deny", "admin"],
    )
    .expect_code(0);
    let listed = run_tidings(folder.path(), &["token", "ls"]).expect_code(0).stdout();
    assert!(
        listed[0].starts_with("ci token allow=pub:new-url,url:https://a.example/blog/ created=")
    );
    assert!(listed[1].starts_with("alice unix-user=0 allow=all deny=admin created="), "{listed:?}");
    let listed = run_tidings(folder.path(), &["token", "ls", "--json"]).expect_code(0).stdout();
    let alice: Value = serde_json::from_str(&listed[1]).unwrap();
    assert_eq!((&alice["name"], &alice["unix-user"]), (&json!("alice"), &json!("0")));
    assert_eq!((&alice["deny"], &alice["expired"]), (&json!(["admin"]), &json!(false)));
    assert!(!listed[0].contains("token") && !listed[0].contains("sha256"), "{listed:?}");
    for (words, code, text) in [
        (vec!["token", "create", "ci", "--allow", "all"], 1, "ci exists already"),
        (vec!["token", "create", "x"], 2, "--allow"),
        (vec!["token", "create", "x y", "--allow", "all"], 2, "letters, digits"),
        (vec!["token", "create", "x", "--allow", "root"], 2, "is not a permission"),
        (vec!["token", "revoke", "x", "--yes"], 1, "no principal x"),
        (vec!["token", "set", "x", "--allow", "all"], 1, "no principal x"),
    ] {
        run_tidings(folder.path(), &words).expect_code(code).expect_stderr(text);
    }
    fs::write(folder.path().join("tidings-data/access.toml"), "[[principal]]\nname = 3\n").unwrap();
    let words = ["broker", "--listen", "127.0.0.1:0", "--http", "off"];
    run_tidings(folder.path(), &words).expect_code(2).expect_stderr("access.toml:2:");
}

// PROTOCOL: H1
#[test]
#[ignore = "needs foreign programs"]
fn a_rejected_http_request_creates_nothing() {
    let known = [("op", &["all"][..]), ("alice", &["admin", "job:*", "url:http://a.example/"])];
    let (server, [all, alice_token]) = broker(known, &[]);
    let words = ["token", "set", "alice", "--allow", "all", "--deny", "monitor"];
    let http = HttpClient::new(&server);
    let send = |method: &str, path: &str, body: &str| {
        let bearer = format!("Authorization: Bearer {alice_token}");
        http.send_body(method, path, "application/json", &[&bearer], body)
    };
    let urls = r#"{"job":"secret","urls":["http://a.example/1","http://b.example/2"]}"#;
    let got = send("POST", "/jobs", urls);
    assert_eq!(got.status, 403, "{}", got.body);
    let mut operator = logged_in(&server, &all);
    operator.request_ok("JOB open old");
    let urls = r#"{"urls":["http://a.example/1","http://b.example/2"]}"#;
    let got = send("POST", "/jobs/old/urls", urls);
    assert_eq!(got.status, 403, "{}", got.body);
    // Permitted to create it, and denied to read what was created.
    run_tidings(server.folder.path(), &words).expect_code(0);
    wait_until("the change of the permissions of alice", || {
        (send("GET", "/stats", "").status == 403).then_some(())
    });
    for (method, path, body) in [
        ("PUT", "/topics/secret", "{}"),
        ("PUT", "/groups/secret", r#"{"key":"none"}"#),
        ("POST", "/jobs", r#"{"job":"secret"}"#),
    ] {
        let got = send(method, path, body);
        assert_eq!(got.status, 403, "{method} {path}: {}", got.body);
    }
    for command in ["TOPIC ls", "GROUP ls", "JOB ls", "GROUP tasks crawlers"] {
        let response = operator.request_lines(command).join("\n");
        assert!(
            !response.contains("secret") && !response.contains("a.example"),
            "{command}: {response}"
        );
    }
    assert_eq!(send("POST", "/jobs", r#"{"job":"open","close":true}"#).status, 200);
}

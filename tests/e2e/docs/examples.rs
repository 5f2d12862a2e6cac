//! The clients in examples/, in languages that most machines have, against the real broker; and a
//! Scrapy spider that works for a group.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::nc::run_nc;
use crate::support::origin::{Origin, Site, html_response};
use crate::support::process::{Process, Server, run_at};
use crate::support::wait::wait_until;

const EXAMPLE_CLIENTS: [(&str, &str); 4] = [
    ("bash", "client.sh"),
    ("python3", "client.py"),
    ("node", "client.mjs"),
    ("perl", "client.pl"),
];

fn example_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name)
}

/// Starts one of the clients with these arguments.
#[track_caller]
fn start_client(server: &Server, (program, file): (&str, &str), arguments: &[&str]) -> Process {
    let mut command = Command::new(program);
    command.arg(example_path(file)).args(arguments).env("TIDINGS_BROKER", server.address_text());
    Process::start(&mut command)
}

/// PATH contains no programs, so bash can start none.
#[test]
fn bash_needs_no_other_program() {
    let server = Server::start_broker();
    let bash = Process::start(Command::new("sh").args(["-c", "command -v bash"])).finish().stdout();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(&bash[0]);
        command.arg(example_path("client.sh")).args(arguments);
        command.env("TIDINGS_BROKER", server.address_text()).env("PATH", "/nowhere");
        Process::start(&mut command)
    };
    let output = run(&["publish", "alone", "one", "two"]).finish().expect_code(0);
    assert_eq!((output.stdout(), output.stderr()), (vec!["2 confirmed".to_owned()], String::new()));
    let listener = run(&["listen", "alone", "first"]);
    listener.wait_for_line_with("2 two");
}

#[test]
#[ignore = "needs foreign programs"]
fn every_client_publishes_and_is_confirmed() {
    let server = Server::start_broker();
    for of in EXAMPLE_CLIENTS {
        let topic = of.0;
        let events = ["http://a.example/ x=1", "two  words ", "+OK 9 9", "ünïcode \u{2028} *?"];
        let output =
            start_client(&server, of, &[&["publish", topic], &events[..]].concat()).finish();
        assert_eq!(output.stdout(), ["4 confirmed"], "{topic}: {}", output.stderr());
        output.expect_code(0);
        let requested = format!("SUB {topic} from=first\nQUIT\n");
        let received = run_nc(server.address, requested);
        let payloads: Vec<_> = received
            .iter()
            .filter_map(|line| line.strip_prefix(&format!("MSG {topic} "))?.split_once(' '))
            .map(|(_, payload)| payload)
            .collect();
        assert_eq!(payloads, events, "{topic}");
        let rejected =
            start_client(&server, of, &["publish", topic, "fine", "no \u{1} control"]).finish();
        assert!(rejected.stderr().contains("-ERR control n=2"), "{topic}: {}", rejected.stderr());
        assert_ne!(rejected.code, Some(0), "{topic}");
    }
}

#[test]
#[ignore = "needs foreign programs"]
fn every_client_listens_from_the_requested_position() {
    let server = Server::start_broker();
    run_nc(server.address, "PUB t one\nPUB t two words \nPUB t http://a.example/ x=1\nQUIT\n");
    for of in EXAMPLE_CLIENTS {
        let listening = start_client(&server, of, &["listen", "t", "2"]);
        assert_eq!(
            listening.wait_for_stdout_lines(2),
            ["2 two words ", "3 http://a.example/ x=1"],
            "{}",
            of.0
        );
    }
    let all: Vec<_> =
        EXAMPLE_CLIENTS.map(|of| start_client(&server, of, &["listen", "t", "first"])).into();
    for listening in &all {
        listening.wait_for_stdout_lines(3);
    }
    run_nc(server.address, "PUB t \u{fc}\nQUIT\n");
    for (listening, of) in all.into_iter().zip(EXAMPLE_CLIENTS) {
        assert_eq!(listening.wait_for_stdout_lines(4)[3], "4 \u{fc}", "{}", of.0);
    }
    for of in EXAMPLE_CLIENTS {
        let rejected = start_client(&server, of, &["listen", "t", "soon"]).finish();
        assert!(rejected.stderr().contains("-ERR bad-argument"), "{}: {}", of.0, rejected.stderr());
        assert_ne!(rejected.code, Some(0), "{}", of.0);
    }
}

#[test]
#[ignore = "needs foreign programs"]
fn a_scrapy_spider_takes_its_requests_from_a_group() {
    let pages = |path: &str| match path {
        "/" => html_response("<a href=/a>a</a> <a href=/b>b</a> <a href=/>home</a>"),
        "/a" => html_response("<a href=/b>b</a> <a href=/c>c</a>"),
        _ => html_response("<p>nothing more"),
    };
    let origin = Origin::serve_with(Site::default(), move |hit| Some(pages(&hit.path)));
    let server = Server::start_broker();
    let scrapy = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/venv/bin/scrapy");
    assert!(scrapy.exists(), "run the tests with tests/run --all, which installs Scrapy");
    let mut command = Command::new(scrapy);
    command.arg("runspider").arg(example_path("scrapy_spider.py"));
    command.args(["-a", &format!("broker={}", server.address_text()), "-O", "pages.jsonl"]);
    command.current_dir(server.folder.path());
    let spider = Process::start(&mut command);
    let crawled = run_at(&server, &["crawl", &origin.url(0, "/"), "--quiet"]).expect_code(0);
    assert!(crawled.stdout().iter().any(|line| line.contains("4 pages")), "{:?}", crawled.stdout());
    spider.signal_and_finish("TERM");
    let text = std::fs::read_to_string(server.folder.path().join("pages.jsonl")).unwrap();
    let stored: BTreeSet<String> = text
        .lines()
        .map(|line| {
            serde_json::from_str::<Value>(line).unwrap()["url"].as_str().unwrap().to_owned()
        })
        .collect();
    let expected = ["/", "/a", "/b", "/c"].map(|path| origin.url(0, path));
    assert_eq!(stored, expected.into());
    // Each page was requested once, because the group released each task once.
    wait_until("all requests", || (origin.request_log().0.len() >= 4).then_some(()));
    let mut requested: Vec<_> = origin.request_log().0.iter().map(|hit| hit.path.clone()).collect();
    requested.sort();
    assert_eq!(requested, ["/", "/a", "/b", "/c"]);
}

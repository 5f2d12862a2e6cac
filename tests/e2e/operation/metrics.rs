//! Figures: both text formats, their list in the documentation, the alerts, the dashboard, and a
//! Prometheus that scrapes a broker and a crawler.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use crate::access::tokens::create_token;
use crate::docs::links::check_link;
use crate::support::http_client::HttpClient;
use crate::support::line_connection::LineConnection;
use crate::support::origin::{Origin, Site, full_response};
use crate::support::pipelined_publisher::PipelinedPublisher;
use crate::support::process::{Process, Server, run_tidings, tidings_command};
use crate::support::prometheus::{Prometheus, parse_open_metrics, promtool, samples};
use crate::support::strace::inject_into_fdatasync;
use crate::support::tls::CertificateAuthority;
use crate::support::wait::wait_until;

const OPEN_METRICS: [&str; 2] = ["--header", "Accept: application/openmetrics-text"];

const RULES: &str = "packaging/prometheus/tidings.rules.yml";

/// The most series of one broker.
const SERIES_MAX: usize = 20_000;

fn in_repository(path: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path).to_str().unwrap().to_owned()
}

/// Kind and help of each metric of a classic text.
fn heads(text: &str) -> BTreeMap<String, (String, String)> {
    let words = |line: &str| {
        let (name, rest) = line.split_once(' ').unwrap();
        (name.to_owned(), rest.to_owned())
    };
    let of = |kind: &str| -> BTreeMap<String, String> {
        text.lines().filter_map(|line| line.strip_prefix(kind)).map(words).collect()
    };
    let (kinds, helps) = (of("# TYPE "), of("# HELP "));
    let with_help = |(name, kind): (String, String)| {
        let help = helps[&name].clone();
        (name, (kind, help))
    };
    kinds.into_iter().map(with_help).collect()
}

#[test]
#[ignore = "needs foreign programs"]
fn programs_of_prometheus_accept_both_formats() {
    let site = Origin::serve(Site { hosts: 2, pages: 3, ..Site::default() });
    let server = Server::start_up(&["--allow-private", "--quiet"]);
    let http = HttpClient::new(&server);
    let seeds = site.seed_urls();
    let seeds: Vec<_> = seeds.iter().map(String::as_str).collect();
    let broker = server.address_text();
    run_tidings(
        server.folder.path(),
        &[&["crawl", "--quiet", "--broker", &broker], &seeds[..]].concat(),
    )
    .expect_code(0);
    let pages = http.events("page-ready").len() as u64;
    assert!(pages >= 6, "{pages}");
    for path in ["/metrics", "/metrics?topics=yes"] {
        let classic = wait_until("figures of the crawl", || {
            let classic = http.get(path);
            let found = samples(&classic.body);
            let done = found["tidings_crawler_outcomes_total{outcome=\"done\"}"];
            let redirects = found["tidings_crawler_outcomes_total{outcome=\"redirect\"}"];
            let completed =
                found["tidings_group_answers_total{group=\"crawlers\",outcome=\"completed\"}"];
            (done + redirects == pages && completed == pages).then_some(classic)
        });
        assert_eq!(
            classic.header("content-type").unwrap(),
            "text/plain; version=0.0.4; charset=utf-8"
        );
        assert_eq!(promtool(&["check", "metrics"], &classic.body), "");
        let open = http.request("GET", path, &OPEN_METRICS);
        assert!(open.header("content-type").unwrap().starts_with("application/openmetrics-text;"));
        let families = parse_open_metrics(&open.body);
        let classic = heads(&classic.body);
        assert_eq!(families.len(), classic.len());
        for family in families {
            let is_counter = family["kind"] == "counter";
            let name = family["name"].as_str().unwrap().to_owned();
            let (kind, help) = &classic[&if is_counter { name + "_total" } else { name }];
            assert_eq!((&family["kind"], &family["help"]), (&kind[..].into(), &help[..].into()));
        }
    }
    for path in ["/metrics?topics=no", "/metrics?topics=yes&topics=yes", "/metrics?x=1"] {
        assert_eq!(http.get(path).status, 400, "{path}");
    }
}

#[test]
#[ignore = "needs foreign programs"]
fn the_documentation_lists_every_metric() {
    let server = Server::start_up(&["--quiet"]);
    let text = HttpClient::new(&server).get("/metrics?topics=yes").body;
    let page = fs::read_to_string(in_repository("docs/metrics.md")).unwrap();
    let rows = page.lines().filter_map(|line| {
        let cells: Vec<_> = line.strip_prefix("| `")?.strip_suffix(" |")?.split(" | ").collect();
        let [name, kind, _labels, help] = cells[..] else { return None };
        Some((name.trim_end_matches('`').to_owned(), (kind.to_owned(), help.to_owned())))
    });
    let documented: BTreeMap<_, _> = rows.collect();
    assert_eq!(documented, heads(&text));
}

#[test]
#[ignore = "needs foreign programs"]
fn a_crawler_shows_its_metrics_at_an_address_of_its_own() {
    let server = Server::start_broker();
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("token"), "secret-of-the-crawler\n").unwrap();
    let broker = server.address_text();
    let open = ["crawl", "--broker", &broker, "--http", "0.0.0.0:0"];
    run_tidings(folder.path(), &open).expect_code(2).expect_stderr("--http-token-file");

    let words = ["crawl", "--broker", &broker, "--http", "127.0.0.1:0"];
    let crawler = Process::start(&mut tidings_command(folder.path(), words));
    let http = HttpClient::at(&crawler);
    wait_until("a crawler that is ready", || (http.get("/ready").status == 200).then_some(()));
    assert_eq!(http.get("/health").status, 200);
    let text = http.get("/metrics").body;
    assert_eq!(promtool(&["check", "metrics"], &text), "");
    parse_open_metrics(&http.request("GET", "/metrics", &OPEN_METRICS).body);
    assert_eq!(samples(&text)["tidings_crawler_broker_connected"], 1);
    assert_eq!(http.get("/metrics?x=1").status, 400);
    assert_eq!(http.get("/stats").status, 404);
    assert_eq!(http.request("POST", "/metrics", &[]).status, 405);
    // A page in a browser that points its own name here may not read.
    let foreign = http.request("GET", "/metrics", &["--header", "Host: evil.example"]);
    assert_eq!((foreign.status, foreign.body.contains("tidings_")), (403, false));
    let own = http.request("GET", "/metrics", &["--header", "Host: [::1]"]);
    assert_eq!((own.status, own.header("x-content-type-options")), (200, Some("nosniff")));
    server.process.signal_and_finish("KILL");
    wait_until("a crawler that is not ready", || (http.get("/ready").status == 503).then_some(()));

    let words = [&words[..], &["--http-token-file", "token"]].concat();
    let crawler = Process::start(&mut tidings_command(folder.path(), words));
    let http = HttpClient::at(&crawler);
    let with = |token: &str| {
        let header = format!("Authorization: Bearer {token}");
        http.request("GET", "/metrics", &["--header", &header, "--header", "Host: a.example"])
    };
    assert_eq!(http.get("/metrics").status, 401);
    assert_eq!(with("secret-of-the-broker").status, 401);
    assert_eq!(with("secret-of-the-crawler").status, 200);
    assert_eq!(http.get("/health").status, 200);
}

#[test]
#[ignore = "needs foreign programs"]
fn every_alert_has_a_case_that_fires_and_one_that_does_not() {
    let rules = fs::read_to_string(in_repository(RULES)).unwrap();
    let checked = promtool(&["check", "rules", &in_repository(RULES)], "");
    assert!(checked.contains("14 rules found"), "{checked}");
    let cases = in_repository("tests/data/alerts.test.yml");
    promtool(&["test", "rules", &cases], "");
    let cases = fs::read_to_string(cases).unwrap();
    let alerts = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    for alert in alerts {
        let silent = format!("- {{alertname: {alert}, eval_time: ");
        assert_eq!(cases.matches(&silent).count(), 1, "{alert}");
        let fires = format!("- alertname: {alert}\n");
        assert_eq!(cases.matches(&fires).count(), 1, "{alert}");
    }
}

/// The parts of an alert's expression before its comparisons. While all is well, the whole has no
/// series.
fn compared_values(expression: &str) -> Vec<String> {
    let value = |part: &str| {
        let ends = [" == ", " > ", " < "].into_iter().filter_map(|sign| part.rfind(sign));
        part[..ends.max().expect("a comparison")].to_owned()
    };
    expression.split(" and ").map(value).collect()
}

/// All expressions of the dashboard, with values for its variables.
fn dashboard_expressions(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                match value.as_str() {
                    Some(text) if key == "expr" => found.push(
                        text.replace("$instance", ".*")
                            .replace("$group", ".*")
                            .replace("$__rate_interval", "1m"),
                    ),
                    _ => dashboard_expressions(value, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| dashboard_expressions(item, found)),
        _ => {}
    }
}

/// The metrics that an expression names.
fn named_metrics(expression: &str) -> BTreeSet<String> {
    let words = expression.split(|char: char| !char.is_ascii_alphanumeric() && char != '_');
    let is_metric = |word: &&str| word.starts_with("tidings_") || word.starts_with("process_");
    words.filter(is_metric).map(|word| word.trim_end_matches("_bucket").to_owned()).collect()
}

#[test]
#[ignore = "needs foreign programs"]
fn every_expression_of_the_alerts_and_the_dashboard_has_a_series() {
    let folder = TempDir::new().unwrap();
    let site = Origin::serve_with(Site { hosts: 3, pages: 20, ..Site::default() }, |hit| {
        hit.path.ends_with("/5").then(|| full_response("404 Not Found", "", "none"))
    });
    CertificateAuthority::new(folder.path(), "ca").sign("broker");
    let token = create_token(folder.path(), "prometheus", &["monitor"]);
    fs::write(folder.path().join("broker-token"), token).unwrap();
    fs::write(folder.path().join("crawler-token"), "secret-of-the-crawler").unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (unix, pem, key) = (path("socket"), path("broker.pem"), path("broker.key"));
    let (ca, tokens) = (path("ca.pem"), [path("broker-token"), path("crawler-token")]);
    let server = Server::start_in(
        folder,
        &["broker", "--unix", &unix, "--tls-cert", &pem, "--tls-key", &key, "--audit", "-"],
        |_| (),
    );
    let http = HttpClient::new(&server);
    let broker = format!("unix:{unix}");
    let data = TempDir::new().unwrap();
    let words = ["crawl", "--broker", &broker, "--allow-private", "--quiet"];
    let words = [&words[..], &["--http", "127.0.0.1:0", "--http-token-file", &tokens[1]]].concat();
    let crawler = Process::start(&mut tidings_command(data.path(), words));
    let crawler = HttpClient::at(&crawler).authority().to_owned();
    let prometheus = Prometheus::start(&format!(
        "global: {{scrape_interval: 1s}}\nrule_files: [{rules}]\nscrape_configs:\n\
         - job_name: tidings\n  scheme: https\n  tls_config: {{ca_file: {ca}}}\n  \
         authorization: {{credentials_file: {}}}\n  static_configs: [{{targets: ['{}']}}]\n\
         - job_name: tidings-crawlers\n  authorization: {{credentials_file: {}}}\n  \
         static_configs: [{{targets: ['{crawler}']}}]\n",
        tokens[0],
        http.base_url.trim_start_matches("https://"),
        tokens[1],
        rules = in_repository(RULES),
    ));

    // A durable cursor that is behind.
    let run = |words: &[&str]| run_tidings(server.folder.path(), words);
    let publish = ["pub", "news", "--quiet", "--broker", &broker, "hello"];
    run(&publish).expect_code(0);
    let read = ["sub", "news", "--from", "first", "--as", "reader", "--count", "1"];
    run(&[&read[..], &["--broker", &broker]].concat()).expect_code(0);
    run(&publish).expect_code(0);
    let seeds = site.seed_urls();
    let seeds: Vec<_> = seeds.iter().map(String::as_str).collect();
    // Pages that are not there have failed.
    run(&[&["crawl", "--quiet", "--broker", &broker], &seeds[..]].concat()).expect_code(1);

    let mut expressions = Vec::new();
    let dashboard = fs::read_to_string(in_repository("packaging/grafana/tidings.json")).unwrap();
    dashboard_expressions(&serde_json::from_str(&dashboard).unwrap(), &mut expressions);
    assert!(expressions.len() > 50, "{expressions:?}");
    let rules = prometheus.rules();
    assert_eq!(rules.len(), 14);
    for rule in &rules {
        expressions.extend(compared_values(rule["query"].as_str().unwrap()));
        let runbook = rule["annotations"]["runbook"].as_str().unwrap();
        check_link(Path::new(&in_repository("README.md")), runbook)
            .unwrap_or_else(|error| panic!("{runbook}: {error}"));
    }
    for expression in &expressions {
        wait_until(expression, || (!prometheus.query(expression).is_empty()).then_some(()));
    }
    let known = prometheus.query("{__name__=~'tidings_.*|process_.*'}");
    let known: BTreeSet<_> =
        known.iter().map(|series| series["metric"]["__name__"].as_str().unwrap()).collect();
    for name in expressions.iter().flat_map(|expression| named_metrics(expression)) {
        let is_known = known.contains(&name[..]) || known.contains(&format!("{name}_bucket")[..]);
        assert!(is_known, "{name}");
    }
}

#[test]
#[ignore = "needs foreign programs"]
fn the_number_of_series_is_bounded() {
    let server = Server::start_broker();
    let http = HttpClient::new(&server);
    let mut operator = LineConnection::connect_client(server.address);
    let mut topics = Vec::new();
    for number in 0.. {
        let created = operator.request(&format!("GROUP create g{number} topics=t{number}"));
        if created.starts_with("-ERR limit") {
            break;
        }
        assert!(created.starts_with("+OK"), "{created}");
        topics.push(format!("t{number}"));
    }
    assert!(topics.len() > 900, "{}", topics.len());
    let hosts = (0..10_000).map(|host| ("t0".to_owned(), format!("http://h{host}.example/")));
    let others = topics.iter().map(|topic| (topic.clone(), "http://a.example/".to_owned()));
    let mut publisher = PipelinedPublisher::connect(server.address).unwrap();
    publisher.send(hosts.chain(others));
    for outcome in publisher.read_all_outcomes() {
        outcome.result.unwrap();
    }
    let is_waiting = |name: &&String| name.starts_with("tidings_group_waiting_entries");
    let found = wait_until("all entries", || {
        let text = http.get("/metrics?topics=yes").body;
        let found = samples(&text);
        let waiting: u64 = found.keys().filter(is_waiting).map(|name| found[name]).sum();
        (waiting == 10_000 + topics.len() as u64).then_some(found)
    });
    assert_eq!(found.keys().filter(is_waiting).count(), 101);
    assert!(found.len() <= SERIES_MAX, "{} series", found.len());
    assert!(found["tidings_group_waiting_entries{group=\"g0\"}"] > 10_000);
    assert_eq!(found["tidings_topic_events_total{topic=\"t1\"}"], 1);
    // Without the topics it is less.
    assert!(samples(&http.get("/metrics").body).len() < found.len() - 1_000);
}

#[test]
#[ignore = "needs foreign programs"]
fn a_scrape_waits_for_no_disk() {
    let server = Server::start_with(&["broker"], |command| {
        // In microseconds, longer than a request waits. The syncs of the start are not delayed.
        inject_into_fdatasync(command, "delay_enter=15000000:when=9+");
    });
    let http = HttpClient::new(&server);
    let mut jobs = 0;
    let mut is_stuck = || {
        jobs += 1;
        let body = format!(r#"{{"job":"job-{jobs}"}}"#);
        let words = ["--max-time", "2", "--header", "content-type: application/json"];
        http.try_request("POST", "/jobs", &[&words[..], &["--data-binary", &body]].concat())
            .is_err()
    };
    wait_until("a group whose log stands still", || is_stuck().then_some(()));
    for _ in 0..3 {
        let text = http.get("/metrics").body;
        assert!(samples(&text).contains_key("tidings_group_waiting_entries{group=\"crawlers\"}"));
    }
    assert!(is_stuck());
    server.process.signal("KILL");
}

//! Pages that make their content by script, rendered with Chromium and judged by the origin.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::origin::{
    Hit, Origin, OriginResponse, RequestLog, Site, full_response, html_response,
};
use crate::support::process::{
    Process, ProcessOutput, Server, run_at, run_tidings, tidings_command,
};
use crate::support::wait::wait_until;

/// A page without content of its own.
const SHELL: &str =
    "<!doctype html><title>app</title><div id=root></div><script src=/app.js></script>";

/// Fills the page from `/api`: a title, and links to three pages.
const APP: &str = "
    fetch('/api' + location.pathname).then(answer => answer.json()).then(data => {
        document.title = data.title;
        document.getElementById('root').innerHTML =
            data.links.map(link => `<a href='${link}'>${link}</a>`).join(' ');
    });";

/// A site made by script: `/app/0` to `/app/3`.
fn app(hit: &Hit) -> Option<OriginResponse> {
    let cached = "Content-Type: text/javascript\r\nCache-Control: max-age=600\r\n";
    match hit.path.as_str() {
        "/app.js" => Some(full_response("200 OK", cached, APP)),
        path if path.starts_with("/api/app/") => {
            let body = format!(
                r#"{{"title": "Page {path}", "links": ["/app/1", "/app/2", "/app/3#top"]}}"#
            );
            Some(full_response("200 OK", "Content-Type: application/json\r\n", &body))
        }
        path if path.starts_with("/app/") => Some(html_response(SHELL)),
        _ => None,
    }
}

/// Crawls in a new folder, and returns what was printed and the stored pages by path.
#[track_caller]
fn crawl(urls: &[String], flags: &[&str]) -> (ProcessOutput, HashMap<String, Value>) {
    let folder = TempDir::new().unwrap();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let arguments = ["crawl", "--delay=0", "--jsonl=pages.jsonl"];
    let output = run_tidings(folder.path(), &[&arguments, flags, &urls].concat());
    (output, stored(folder.path()))
}

fn stored(folder: &Path) -> HashMap<String, Value> {
    let lines = fs::read_to_string(folder.join("pages.jsonl")).unwrap();
    let pages = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mut by_url = HashMap::new();
    for page in pages {
        let url = page["url"].as_str().unwrap().to_owned();
        assert!(by_url.insert(url, page).is_none(), "stored twice: {lines}");
    }
    by_url
}

fn links(page: &Value) -> BTreeSet<&str> {
    page["links"].as_array().unwrap().iter().map(|link| link.as_str().unwrap()).collect()
}

fn count(log: &RequestLog, host: Ipv4Addr, path: &str) -> usize {
    log.0.iter().filter(|hit| hit.host == host && hit.path == path).count()
}

#[test]
#[ignore = "needs foreign programs"]
fn a_site_made_by_script_is_crawled_with_one_request_at_a_time() {
    let site = Site { hosts: 3, response_delay: Duration::from_millis(20), ..Site::default() };
    let origin = Origin::serve_with(site, app);
    let seeds: Vec<_> = (0..3).map(|host| origin.url(host, "/app/0")).collect();
    let (output, pages) = crawl(&seeds, &["--allow-private", "--render=always"]);
    let printed = output.expect_code(0).stdout().join("\n");
    assert_eq!(printed.matches("(rendered in ").count(), 12, "{printed}");

    let log = origin.request_log();
    log.expect_polite(Duration::ZERO);
    for number in 0..3 {
        let host = Site::host(number);
        for page in 0..4 {
            let page = format!("/app/{page}");
            assert_eq!(count(&log, host, &page), 1, "{page}");
            assert_eq!(count(&log, host, &format!("/api{page}")), 1, "{page}");
            let stored = &pages[&origin.url(number, &page)];
            assert_eq!(stored["title"], format!("Page /api{page}"));
            let targets = ["/app/1", "/app/2", "/app/3"].map(|path| origin.url(number, path));
            assert_eq!(links(stored), targets.iter().map(String::as_str).collect());
        }
        // Once for all pages of a site.
        assert_eq!(count(&log, host, "/app.js"), 1);
        assert_eq!(count(&log, host, "/robots.txt"), 1);
    }
    let agents: BTreeSet<_> = log.0.iter().map(|hit| hit.header("user-agent").unwrap()).collect();
    assert!(agents.len() == 1 && agents.first().unwrap().starts_with("tidings/"), "{agents:?}");
}

#[test]
#[ignore = "needs foreign programs"]
fn only_what_the_rule_names_is_rendered() {
    let origin = Origin::serve_with(Site { pages: 3, ..Site::default() }, app);
    let seeds = [origin.url(0, "/p/0"), origin.url(0, "/app/0"), origin.url(0, "/app/2")];
    let rule = "--render=/app/0$,/p/";
    let (output, pages) = crawl(&seeds, &["--allow-private", "--depth=0", rule]);
    let printed = output.expect_code(0).stdout().join("\n");
    assert_eq!(printed.matches("(rendered in ").count(), 2, "{printed}");
    assert_eq!(pages[&seeds[1]]["title"], "Page /api/app/0");
    assert_eq!(pages[&seeds[2]]["title"], "app");
    let log = origin.request_log();
    assert_eq!(count(&log, Site::host(0), "/api/app/0"), 1);
    assert_eq!(count(&log, Site::host(0), "/api/app/2"), 0);
}

#[test]
#[ignore = "needs foreign programs"]
fn robots_txt_and_addresses_count_for_parts() {
    // Parts from a host with robots.txt that forbids one of them, and from a private address.
    let site =
        Site { hosts: 3, robots: Some("User-agent: *\nDisallow: /closed/\n"), ..Site::default() };
    let origin = Origin::serve_with(site, |hit| {
        let url = |host, path| {
            let port = hit.header("host").unwrap().rsplit_once(':').unwrap().1;
            format!("http://{}:{port}{path}", Site::host(host))
        };
        let script = full_response(
            "200 OK",
            "Content-Type: text/javascript\r\n",
            "seen(document.currentScript.src)",
        );
        match hit.path.as_str() {
            "/" => Some(html_response(&format!(
                "<ul id=list></ul>
                 <script>function seen(src) {{ list.innerHTML += `<li><a href='/seen?${{src}}'>x</a>` }}</script>
                 <script src='{}'></script> <script src='{}'></script> <script src='{}'></script>
                 <script src='/closed/own.js'></script> <iframe src='{}'></iframe>
                 <img src='/image.png'>",
                url(1, "/open/part.js"), url(1, "/closed/part.js"),
                url(2, "/open/part.js"), url(2, "/frame"),
            ))),
            "/open/part.js" | "/closed/part.js" | "/closed/own.js" => Some(script),
            _ => None,
        }
    });
    let allowed = [Site::host(0), Site::host(1)].map(|host| format!("{host}/32")).join(",");
    let flags = ["--depth=0", "--render=always", &format!("--allow-private={allowed}")];
    let (output, pages) = crawl(&[origin.url(0, "/")], &flags);
    output.expect_code(0);
    let log = origin.request_log();
    log.expect_none_under("/closed/");
    log.expect_none_under("/image");
    log.expect_polite(Duration::ZERO);
    let asked: Vec<_> = log.0.iter().map(|hit| (hit.host, hit.path.as_str())).collect();
    let expected = [(0, "/robots.txt"), (0, "/"), (1, "/robots.txt"), (1, "/open/part.js")];
    assert_eq!(asked, expected.map(|(host, path)| (Site::host(host), path)));
    let seen = format!("/seen?{}", origin.url(1, "/open/part.js"));
    let expected = [origin.url(0, &seen), origin.url(2, "/frame")];
    assert_eq!(links(&pages[&origin.url(0, "/")]), expected.iter().map(String::as_str).collect());
}

#[test]
#[ignore = "needs foreign programs"]
fn a_host_that_asks_clients_to_wait_is_asked_for_no_part_and_no_page() {
    const RETRY_AFTER: Duration = Duration::from_secs(4);
    let origin = Origin::serve_with(Site { hosts: 2, ..Site::default() }, |hit| {
        let scripts = ["/part/1.js", "/part/2.js", "/part/3.js"];
        let port = hit.header("host").unwrap().rsplit_once(':').unwrap().1;
        let other = format!("http://{}:{port}", Site::host(1));
        match hit.path.as_str() {
            "/" => {
                let scripts = scripts.map(|path| format!("<script src={other}{path}></script>"));
                let link = format!("<a href={other}/page>page</a>");
                Some(html_response(&(scripts.concat() + &link)))
            }
            "/page" => Some(html_response("<title>page</title>")),
            path if path.starts_with("/part/") => {
                let fields = format!("Retry-After: {}\r\n", RETRY_AFTER.as_secs());
                Some(full_response("503 Service Unavailable", &fields, ""))
            }
            _ => None,
        }
    });
    let flags = ["--allow-private", "--render=always", "--scope=any", "--depth=1"];
    let (output, pages) = crawl(&[origin.url(0, "/")], &flags);
    output.expect_code(0);
    let log = origin.request_log();
    let at_other: Vec<_> = log.0.iter().filter(|hit| hit.host == Site::host(1)).collect();
    let [robots, part, page] = at_other[..] else { panic!("{at_other:#?}") };
    assert_eq!((robots.path.as_str(), page.path.as_str()), ("/robots.txt", "/page"));
    assert!(part.end.unwrap() + RETRY_AFTER <= page.start, "{part:?} {page:?}");
    let requests = pages[&origin.url(0, "/")]["render"]["requests"].as_array().unwrap();
    let answered =
        |name: &str, value: Value| requests.iter().filter(|request| request[name] == value).count();
    assert_eq!(answered("status", 503.into()), 1, "{requests:#?}");
    assert_eq!(answered("refused", "Retry-After".into()), 2, "{requests:#?}");
    assert_eq!(pages[&origin.url(1, "/page")]["outcome"], "done");
}

#[test]
#[ignore = "needs foreign programs"]
fn what_is_no_page_is_not_rendered_and_keeps_its_meaning() {
    let origin = Origin::serve_with(Site { pages: 1, ..Site::default() }, |hit| match &*hit.path {
        "/style" => Some(full_response("200 OK", "Content-Type: text/css\r\n", "a {}")),
        _ => None,
    });
    let seeds = ["/redirect/0", "/missing", "/style", "/bad/500"].map(|path| origin.url(0, path));
    let flags = ["--allow-private", "--render=always", "--depth=1"];
    let (output, pages) = crawl(&seeds, &flags);
    let printed = output.expect_code(1).stdout().join("\n");
    // The target of the redirect, and the page that it links to.
    assert_eq!(printed.matches("(rendered in ").count(), 2, "{printed}");
    assert_eq!(pages[&seeds[0]]["outcome"], "redirect");
    assert_eq!(pages[&seeds[1]]["status"], 404);
    assert_eq!(pages[&seeds[2]]["outcome"], "done");
    origin.request_log().expect_none_under("/favicon");
}

#[test]
#[ignore = "needs foreign programs"]
fn a_page_that_hangs_or_leaves_costs_only_itself() {
    let origin = Origin::serve_with(Site { hosts: 4, ..Site::default() }, |hit| {
        let page =
            |script: &str| html_response(&format!("<a href=/x>x</a><script>{script}</script>"));
        match hit.path.as_str() {
            "/loop" => Some(page("while (true) {}")),
            "/timer" => Some(page("setInterval(() => document.title = Math.random(), 10)")),
            "/alert" => Some(page("while (true) alert('x')")),
            "/leaves" => Some(page("location = '/elsewhere'; open('/popup')")),
            _ => app(hit),
        }
    });
    let paths = ["/loop", "/timer", "/alert", "/leaves"];
    let mut seeds: Vec<_> = (0..4).map(|host| origin.url(host, paths[usize::from(host)])).collect();
    seeds.push(origin.url(0, "/app/0"));
    let flags = ["--allow-private", "--render=always", "--render-wait=3s", "--depth=0"];
    let (output, pages) = crawl(&seeds, &flags);
    output.expect_code(0);
    assert_eq!(pages.len(), 5);
    for (host, path) in (0..).zip(paths) {
        let url = origin.url(host, path);
        assert_eq!(pages[&url]["outcome"], "done", "{path}");
        assert!(links(&pages[&url]).contains(&*origin.url(host, "/x")), "{path}: {}", pages[&url]);
    }
    let left = &pages[&origin.url(3, "/leaves")];
    let expected = ["/x", "/elsewhere", "/popup"].map(|path| origin.url(3, path));
    assert_eq!(links(left), expected.iter().map(String::as_str).collect());
    assert_eq!(pages[&origin.url(0, "/app/0")]["title"], "Page /api/app/0");
    let log = origin.request_log();
    log.expect_none_under("/elsewhere");
    log.expect_none_under("/popup");
    log.expect_polite(Duration::ZERO);
}

/// The processes below this one, with the time of their start.
fn descendants(id: u32) -> BTreeSet<(u32, String)> {
    let read = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        Some((pid, (fields[1].parse::<u32>().ok()?, fields[19].to_owned())))
    };
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let all: HashMap<u32, _> =
        entries.filter_map(|entry| read(entry.file_name().to_str()?.parse().ok()?)).collect();
    let parent = |pid: &u32| all.get(pid).map(|(parent, _)| *parent);
    let is_below = |pid: u32| std::iter::successors(Some(pid), parent).skip(1).any(|pid| pid == id);
    let below = all.iter().filter(|(pid, _)| is_below(**pid));
    below.map(|(pid, (_, started))| (*pid, started.clone())).collect()
}

#[test]
#[ignore = "needs foreign programs"]
fn a_killed_crawler_leaves_no_browser_and_loses_no_page() {
    let site = Site { response_delay: Duration::from_millis(200), ..Site::default() };
    let origin = Origin::serve_with(site, app);
    let folder = TempDir::new().unwrap();
    let seed = origin.url(0, "/app/0");
    let arguments =
        ["crawl", "--delay=0", "--jsonl=pages.jsonl", "--allow-private", "--render=always", &seed];
    let crawler = Process::start(&mut tidings_command(folder.path(), arguments));
    origin.wait_for_hits(4);
    let started = descendants(crawler.id());
    assert!(started.len() > 4, "{started:?}");
    crawler.signal_and_finish("KILL");
    wait_until("no process of the browser", || {
        let is_left = |(pid, began): &&(u32, String)| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.split_whitespace().any(|word| word == began)
        };
        started.iter().all(|process| !is_left(&process)).then_some(())
    });
    run_tidings(folder.path(), &arguments).expect_code(0);
    let pages = stored(folder.path());
    assert_eq!(pages.len(), 4);
    assert!(pages.values().all(|page| page["title"] != "app"), "{pages:#?}");
    origin.request_log().expect_polite(Duration::ZERO);
}

#[test]
#[ignore = "needs foreign programs"]
fn a_job_that_needs_a_browser_waits_for_a_crawler_with_one() {
    let origin = Origin::serve_with(Site::default(), app);
    let server = Server::start_up(&["--allow-private", "--delay=0"]);
    let folder = TempDir::new().unwrap();
    let seed = origin.url(0, "/app/0");
    let broker = format!("--broker={}", server.address_text());
    let job = ["crawl", &broker, "--render=always", &seed];
    let job = Process::start(&mut tidings_command(folder.path(), job));
    job.wait_for_line_with("note: no crawler");
    wait_until("the page waits for a browser", || {
        let explained = run_at(&server, &["explain", &seed]).stdout().concat();
        explained.contains("no-render-member").then_some(())
    });
    assert_eq!(origin.request_count(), 0);
    let flags = ["crawl", &broker, "--allow-private", "--browser=auto", "--jsonl=pages.jsonl"];
    let crawler = Process::start(&mut tidings_command(folder.path(), flags));
    job.finish().expect_code(0);
    crawler.signal_and_finish("TERM").expect_code(0);
    let pages = stored(folder.path());
    assert_eq!(pages.len(), 4, "{pages:#?}");
    assert!(pages.values().all(|page| page["title"] != "app"), "{pages:#?}");
    origin.request_log().expect_polite(Duration::ZERO);
}

#[test]
#[ignore = "needs foreign programs"]
fn a_crawler_without_a_browser_passes_empty_pages_on() {
    let origin = Origin::serve_with(Site { pages: 2, ..Site::default() }, app);
    let server = Server::start_up(&["--allow-private", "--delay=0", "--jsonl=plain.jsonl"]);
    let folder = TempDir::new().unwrap();
    let seeds = [origin.url(0, "/app/0"), origin.url(0, "/p/0")];
    let broker = format!("--broker={}", server.address_text());
    let job = ["crawl", &broker, "--render=auto", "--scope=host", &seeds[0], &seeds[1]];
    let job = Process::start(&mut tidings_command(folder.path(), job));
    wait_until("the empty page waits for a browser", || {
        let explained = run_at(&server, &["explain", &seeds[0]]).stdout().concat();
        explained.contains("no-render-member").then_some(())
    });
    assert_eq!(count(&origin.request_log(), Site::host(0), "/app/0"), 1);
    let flags = ["crawl", &broker, "--allow-private", "--browser=auto", "--jsonl=pages.jsonl"];
    let _crawler = Process::start(&mut tidings_command(folder.path(), flags));
    job.finish().expect_code(0);
    let pages = stored(folder.path());
    assert_eq!(pages[&seeds[0]]["title"], "Page /api/app/0", "{pages:#?}");
    let plain = fs::read_to_string(server.data_dir().with_file_name("plain.jsonl")).unwrap();
    assert!(plain.contains("/p/0") && !plain.contains("/app/0\""), "{plain}");
    origin.request_log().expect_polite(Duration::ZERO);
}

#[test]
fn without_a_browser_the_error_names_the_package() {
    let folder = TempDir::new().unwrap();
    for arguments in [
        ["crawl", "http://127.0.0.1:1/", "--render=always", "--browser=/nowhere/chromium"],
        ["crawl", "--broker=127.0.0.1:1", "--render=auto", "--browser=/nowhere/chromium"],
    ] {
        let output = run_tidings(folder.path(), &arguments).expect_code(1);
        let error = output.stderr();
        assert!(error.contains("/nowhere/chromium: no such program"), "{error}");
        assert!(error.contains("apt install chromium-headless-shell"), "{error}");
    }
    let arguments = ["crawl", "http://127.0.0.1:1/", "--render=always", "--browser=/bin/true"];
    run_tidings(folder.path(), &arguments)
        .expect_code(1)
        .expect_stderr("/bin/true does not answer");
    let arguments = ["up", "--listen=127.0.0.1:0", "--http=off", "--pdf"];
    run_tidings(folder.path(), &arguments).expect_code(2).expect_stderr("add --render");
}

//! Robots.txt: its answers, its rules between tasks, and over restarts.

use super::super::task;
use super::*;
use crate::worker::SITEMAPS_KIND;
use crate::worker::robots_cache::ROBOTS_FRESH;

fn strict_site(path: &str) -> String {
    match path {
        "/robots.txt" => {
            answer("200 OK", "", "User-agent: bot\nCrawl-delay: 1.5\nDisallow: /private\n")
        }
        _ => plain_site(path),
    }
}

/// Expects the first request for robots.txt, made with the task of a page.
async fn ask_robots(broker: &mut Connection, id: &str, page: &CanonicalUrl<'_>) -> String {
    broker.task(id, page.as_str()).await;
    let answer = broker.line().await;
    broker.send("+OK").await;
    answer
}

#[tokio::test]
async fn a_disallowed_page_is_recorded_and_never_requested() {
    let mut site = Site::start(strict_site).await;
    let (run, mut broker) = start().await;
    broker.task("1.1", site.url("/private/a").as_str()).await;
    // Both at once, since the request for robots.txt was the last one of this task.
    broker.expect("TOUCH crawlers:1.1.1 over=yes pace=1500ms".to_owned()).await;
    broker.expect("ACK crawlers:1.1.1 outcome=robots".to_owned()).await;
    broker.task("2.1", site.url("/private/b").as_str()).await;
    broker.expect("ACK crawlers:1.2.1 outcome=robots".to_owned()).await;
    broker.task("3.1", site.url("/public").as_str()).await;
    broker.expect("TOUCH crawlers:1.3.1 over=yes pace=1500ms".to_owned()).await;
    broker.expect("ACK crawlers:1.3.1".to_owned()).await;
    let longest_host = format!("http://{}/", "a".repeat(URL_BYTES_MAX - "http:///".len()));
    broker.task("4.1", &longest_host).await;
    broker.expect("ACK crawlers:1.4.1 outcome=robots".to_owned()).await;
    assert_eq!(site.next_request().await, "/robots.txt");
    assert_eq!(site.next_request().await, "/public");
    assert!(site.has_no_more_requests());
    let data = run.stop().await;
    let sql = "SELECT outcome || ' ' || coalesce(error, '-') FROM pages ORDER BY task";
    let disallowed = "robots disallowed by robots.txt";
    assert_eq!(rows(data.path(), sql), [disallowed, disallowed, "done -", disallowed]);
}

// PROTOCOL: T2
#[tokio::test]
async fn each_hop_of_a_redirected_robots_txt_is_requested_in_its_own_hosts_turn() {
    fn away(path: &str) -> String {
        match path {
            "/robots.txt" => answer("301 Moved", "Location: http://localhost:1/rules\r\n", ""),
            _ => plain_site(path),
        }
    }
    let mut site = Site::start(away).await;
    let (run, mut broker) = start().await;
    let page = site.url("/page");
    broker.task("1.1", page.as_str()).await;
    broker.expect("NACK crawlers:1.1.1 again=http://localhost:1/rules".to_owned()).await;
    assert_eq!(site.next_request().await, "/robots.txt");
    // The server is unreachable: nothing may be fetched until a retry succeeds.
    broker.task("1.2", &format!("{page} again=http://localhost:1/rules")).await;
    broker.expect("TOUCH crawlers:1.1.2 over=yes".to_owned()).await;
    let nack = broker.line().await;
    assert!(nack.starts_with("NACK crawlers:1.1.2 error=robots.txt:_cannot_connect"), "{nack}");
    broker.send("+OK").await;
    // An unknown hop belongs to another host's turn: the redirects are followed from the beginning.
    let page = format!("http://localhost:{}/page", site.origin.address.port());
    broker.task("2.1", &format!("{page} again=http://elsewhere.example/rules")).await;
    broker.expect(format!("NACK crawlers:1.2.1 again={page}")).await;
    assert!(site.has_no_more_requests());
    run.stop().await;
}

#[tokio::test]
async fn retry_after_of_robots_txt_is_obeyed_and_nothing_else_is_requested() {
    for (status, retry_after, hold) in [
        ("503 Busy", "Retry-After: 7\r\n", " not-before=7s"),
        ("429 Slowly", "Retry-After: 9\r\n", " not-before=9s"),
        ("500 Broken", "", ""),
    ] {
        let site = Origin::answering(answer(status, retry_after, "User-agent: *\nAllow: /")).await;
        let (run, mut broker) = start().await;
        let touch = ask_robots(&mut broker, "1.1", &site.url("/page")).await;
        assert_eq!(touch, format!("TOUCH crawlers:1.1.1 over=yes{hold}"));
        let code = status.split(' ').next().unwrap();
        let nack = format!("NACK crawlers:1.1.1 error=robots.txt:_HTTP_status_{code}");
        broker.expect(nack).await;
        run.stop().await;
        assert_eq!(site.connections.load(Ordering::SeqCst), 1);
    }
}

#[tokio::test]
async fn an_unreachable_robots_txt_is_not_requested_for_every_page() {
    let site = Origin::answering(answer("503 Busy", "", "")).await;
    let data = tempfile::tempdir().unwrap();
    let (state, closing) = StateStore::open(data.path());
    // The length of an outage does not lengthen the wait for the next attempt.
    let since = task::now().unix_s - 1000;
    let key = format!("bot http://{}", site.address);
    state.store("robots-outage", &key, format!("1 {since}\n").into(), u64::MAX);
    drop(state);
    closing.wait().await;
    let (run, mut broker) = start_in(data, 100).await;
    let touch = ask_robots(&mut broker, "1.1", &site.url("/page")).await;
    assert_eq!(touch, "TOUCH crawlers:1.1.1 over=yes");
    broker.expect("NACK crawlers:1.1.1 error=robots.txt:_HTTP_status_503".to_owned()).await;
    for entry in 2..6 {
        let last = if entry == 5 { " last=yes" } else { "" };
        broker.task(&format!("{entry}.1"), &format!("{}{last}", site.url("/other"))).await;
        let mut nack = broker.line().await;
        if nack.starts_with("TOUCH ") {
            // This machine is so slow that it was requested again.
            broker.send("+OK").await;
            nack = broker.line().await;
        }
        assert_eq!(nack, format!("NACK crawlers:1.{entry}.1 error=robots.txt:_HTTP_status_503"));
        broker.send("+OK").await;
    }
    run.stop().await;
    assert!(site.connections.load(Ordering::SeqCst) < 5);
}

#[tokio::test]
async fn a_truncated_robots_txt_counts_as_unreachable() {
    let torn = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nUser-agent: *\nDisallow:\n";
    let site = Origin::answering(torn).await;
    let (run, mut broker) = start().await;
    let touch = ask_robots(&mut broker, "1.1", &site.url("/page")).await;
    assert_eq!(touch, "TOUCH crawlers:1.1.1 over=yes");
    let nack = broker.line().await;
    assert!(nack.starts_with("NACK crawlers:1.1.1 error=robots.txt:_body:"), "{nack}");
    broker.send("+OK").await;
    run.stop().await;
}

#[tokio::test]
async fn a_busy_page_is_retried_at_the_pace_of_its_site() {
    fn busy(path: &str) -> String {
        match path {
            "/robots.txt" => strict_site(path),
            "/slowly" => answer("429 Slowly", "Retry-After: 9\r\n", ""),
            _ => plain_site(path),
        }
    }
    let site = Site::start(busy).await;
    let (run, mut broker) = start().await;
    let page = site.url("/busy");
    let nack = ask_robots(&mut broker, "1.1", &page).await;
    assert_eq!(nack, format!("NACK crawlers:1.1.1 again={page} pace=1500ms"));
    for (entry, path, seconds, status) in [(2, "/busy", 7, 503), (3, "/slowly", 9, 429)] {
        let touch = ask_robots(&mut broker, &format!("{entry}.1"), &site.url(path)).await;
        let hold = format!("not-before={seconds}s pace=1500ms");
        assert_eq!(touch, format!("TOUCH crawlers:1.{entry}.1 over=yes {hold}"));
        broker.expect(format!("NACK crawlers:1.{entry}.1 error=HTTP_status_{status}")).await;
    }
    run.stop().await;
}

#[tokio::test]
async fn the_pace_of_a_site_does_not_apply_to_the_host_of_its_robots_txt() {
    fn away(path: &str) -> String {
        match path {
            "/robots.txt" => answer("301 Moved", "Location: /far\r\n", ""),
            "/far" => answer("301 Moved", "Location: /rules\r\n", ""),
            "/rules" => strict_site("/robots.txt"),
            _ => plain_site(path),
        }
    }
    fn elsewhere(_: &str) -> String {
        let port = HERE.load(Ordering::SeqCst);
        answer("301 Moved", &format!("Location: http://localhost:{port}/rules\r\n"), "")
    }
    static HERE: std::sync::atomic::AtomicU16 = std::sync::atomic::AtomicU16::new(0);
    let site = Site::start(away).await;
    HERE.store(site.origin.address.port(), Ordering::SeqCst);
    let redirecting = Site::start(elsewhere).await;
    let (run, mut broker) = start().await;
    for (entry, page, hops, pace) in [
        (1, site.url("/page"), vec![site.url("/far"), site.url("/rules")], " pace=1500ms"),
        (
            2,
            redirecting.url("/page"),
            vec![format!("http://localhost:{}/rules", site.origin.address.port()).parse().unwrap()],
            "",
        ),
    ] {
        let (mut attempt, mut payload) = (1, page.to_string());
        for hop in hops {
            broker.task(&format!("{entry}.{attempt}"), &payload).await;
            broker.expect(format!("NACK crawlers:1.{entry}.{attempt} again={hop}")).await;
            (attempt, payload) = (attempt + 1, format!("{page} again={hop}"));
        }
        broker.task(&format!("{entry}.{attempt}"), &payload).await;
        broker.expect(format!("NACK crawlers:1.{entry}.{attempt} again={page}{pace}")).await;
    }
    run.stop().await;
}

#[tokio::test]
async fn one_of_several_tasks_of_a_site_fetches_robots_txt() {
    fn held(path: &str) -> String {
        match path {
            "/robots.txt" => answer("301 Moved", "Location: /held\r\n", ""),
            "/held" => strict_site("/robots.txt"),
            _ => plain_site(path),
        }
    }
    let mut site = Site::start(held).await;
    let (run, mut broker) = start().await;
    let (page, rules) = (site.url("/one"), site.url("/held"));
    let nack = ask_robots(&mut broker, "1.1", &page).await;
    assert_eq!(nack, format!("NACK crawlers:1.1.1 again={rules}"));
    assert_eq!(site.next_request().await, "/robots.txt");
    // The next task goes on with the redirects of the first; a later one waits for its result.
    broker.task("2.1", site.url("/two").as_str()).await;
    assert_eq!(site.next_request().await, "/held");
    broker.task("3.1", site.url("/three").as_str()).await;
    broker.task("1.2", &format!("{page} again={rules}")).await;
    broker.introduce_nothing().await;
    assert!(site.has_no_more_requests());
    site.held.cancel();
    let mut lines = Vec::new();
    for _ in 0..5 {
        lines.push(broker.line().await);
        broker.send("+OK").await;
    }
    lines.sort();
    let over = |task: &str| format!("TOUCH crawlers:1.{task} over=yes pace=1500ms");
    assert_eq!(
        lines,
        [
            "ACK crawlers:1.1.2".to_owned(),
            "ACK crawlers:1.3.1".to_owned(),
            format!("NACK crawlers:1.2.1 again={} pace=1500ms", site.url("/two")),
            over("1.2"),
            over("3.1"),
        ]
    );
    let mut asked = [site.next_request().await, site.next_request().await];
    asked.sort();
    assert_eq!(asked, ["/one", "/three"]);
    assert!(site.has_no_more_requests());
    run.stop().await;
}

#[tokio::test]
async fn robots_rules_survive_a_restart() {
    let mut site = Site::start(strict_site).await;
    let (run, mut broker) = start().await;
    let page = site.url("/page");
    let nack = ask_robots(&mut broker, "1.1", &page).await;
    assert_eq!(nack, format!("NACK crawlers:1.1.1 again={page} pace=1500ms"));
    assert_eq!(site.next_request().await, "/robots.txt");
    let (run, mut broker) = start_in(run.stop().await, 100).await;
    broker.task("1.1", page.as_str()).await;
    broker.expect("TOUCH crawlers:1.1.1 over=yes pace=1500ms".to_owned()).await;
    broker.expect("ACK crawlers:1.1.1".to_owned()).await;
    broker.task("2.1", site.url("/private/x").as_str()).await;
    broker.expect("ACK crawlers:1.2.1 outcome=robots".to_owned()).await;
    assert_eq!(site.next_request().await, "/page");
    assert!(site.has_no_more_requests());
    run.stop().await;
}

/// Stores a copy as an earlier process would.
async fn remember(data: &TempDir, site: &Origin, age: Duration) {
    let (state, closing) = StateStore::open(data.path());
    let fetched = task::now().unix_s - age.as_secs();
    let copy = format!("1 {fetched}\nUser-agent: *\nDisallow: /old\n");
    let key = format!("bot http://{}", site.address);
    state.store("robots", &key, copy.into(), u64::MAX);
    drop(state);
    closing.wait().await;
}

#[tokio::test]
async fn a_day_old_copy_is_used_only_if_there_is_no_newer_one() {
    let busy = answer("503 Busy", "Retry-After: 7\r\n", "");
    let newer = answer("200 OK", "", "User-agent: *\nDisallow: /new\n");
    for (site, first, paths) in [
        (Origin::answering(busy).await, " not-before=7s", [("/old", false), ("/new", true)]),
        (Origin::answering(newer).await, "", [("/old", true), ("/new", false)]),
    ] {
        let data = tempfile::tempdir().unwrap();
        remember(&data, &site, ROBOTS_FRESH).await;
        let (run, mut broker) = start_in(data, 100).await;
        let page = site.url("/page");
        let nack = ask_robots(&mut broker, "1.1", &page).await;
        assert_eq!(nack, format!("NACK crawlers:1.1.1 again={page}{first}"));
        for (entry, (path, allowed)) in paths.into_iter().enumerate() {
            let id = format!("{}.1", entry + 2);
            broker.task(&id, site.url(path).as_str()).await;
            let expected = if allowed { "TOUCH" } else { "ACK" };
            let line = broker.line().await;
            assert!(line.starts_with(&format!("{expected} crawlers:1.{id} ")), "{line}");
            broker.send("+OK").await;
            if allowed {
                // The content of the page does not matter here.
                broker.line().await;
                broker.send("+OK").await;
            }
        }
        run.stop().await;
    }
}

/// A page with validators on a site with a sitemap.
async fn site_with_sitemap() -> Origin {
    Origin::start(|mut stream| async move {
        loop {
            let request = read_head(&mut stream).await;
            let reply = match request.split(' ').nth(1) {
                None => return,
                Some("/robots.txt") => answer(
                    "200 OK",
                    "",
                    "Sitemap: http://a.example/map\nSitemap: http://b.example/map\n",
                ),
                Some(_) if request.contains("If-None-Match") => {
                    "HTTP/1.1 304 Same\r\n\r\n".to_owned()
                }
                Some(_) => answer(
                    "200 OK",
                    "Content-Type: text/html\r\nETag: \"1\"\r\n",
                    "<a href=one><a href=http://b.example/map>",
                ),
            };
            if stream.write_all(reply.as_bytes()).await.is_err() {
                return;
            }
        }
    })
    .await
}

#[tokio::test]
async fn sitemaps_are_links_of_a_seed_once_even_if_it_is_unchanged() {
    let site = site_with_sitemap().await;
    let data = tempfile::tempdir().unwrap();
    let (run, mut broker) = start_as(data, 100, |config| config.fetch.links.sitemaps = true).await;
    let page = site.url("/");
    broker.introduce(&page).await;
    for pass in 1..=3 {
        broker
            .task(&format!("{pass}.1"), &format!("{page} job=x pass={pass} depth=0 number=1"))
            .await;
        broker.expect(format!("TOUCH crawlers:1.{pass}.1 over=yes")).await;
        for link in ["http://a.example/map", site.url("/one").as_str(), "http://b.example/map"] {
            broker.expect(format!("LINK crawlers:1.{pass}.1 {link}")).await;
        }
        broker.expect(format!("ACK crawlers:1.{pass}.1")).await;
    }
    let row = "pass || ' ' || status || ' ' || links || ' ' || bytes";
    let rows = run.rows(&format!("SELECT {row} FROM pages ORDER BY pass"));
    assert_eq!(rows, ["1 200 3 41", "2 304 3 41", "3 304 3 41"]);
    run.stop().await;
}

#[tokio::test]
async fn an_outage_of_robots_txt_keeps_its_sitemaps() {
    fn busy(path: &str) -> String {
        if path == "/robots.txt" { answer("503 Busy", "", "") } else { plain_site(path) }
    }
    let site = Site::start(busy).await;
    let data = tempfile::tempdir().unwrap();
    remember(&data, &site.origin, ROBOTS_FRESH).await;
    let (state, closing) = StateStore::open(data.path());
    let map = "http://a.example/map";
    state.store(SITEMAPS_KIND, &format!("http://{}", site.origin.address), map.into(), u64::MAX);
    drop(state);
    closing.wait().await;
    let (run, mut broker) = start_as(data, 100, |config| config.fetch.links.sitemaps = true).await;
    let page = site.url("/page");
    let nack = ask_robots(&mut broker, "1.1", &page).await;
    assert_eq!(nack, format!("NACK crawlers:1.1.1 again={page}"));
    broker.task("1.2", &format!("{page} job=x pass=1 depth=0 number=1 again={page}")).await;
    broker.expect("TOUCH crawlers:1.1.2 over=yes".to_owned()).await;
    for link in [map, site.url("/one").as_str(), site.url("/two").as_str()] {
        broker.expect(format!("LINK crawlers:1.1.2 {link}")).await;
    }
    broker.expect("ACK crawlers:1.1.2".to_owned()).await;
    run.stop().await;
}

//! The replies to tasks; no link is lost when a reply is refused, or a feed check fails.

use tidings_protocol::format_ms;

use super::*;
use crate::sink::SinkConfig;
use crate::worker::finish::NO_ROOM_NACK_AFTER;
use crate::worker::task::BUSY_NACK_AFTER;

/// As an option of `NACK`.
fn after(pause: Duration) -> String {
    format!("after={}", format_ms(u64::try_from(pause.as_millis()).unwrap()))
}

// PROTOCOL: T12
#[tokio::test]
async fn redirects_and_errors_have_their_own_replies() {
    let site = Site::start(plain_site).await;
    let (run, mut broker) = start().await;
    broker.introduce(&site.url("/")).await;
    let target = site.url("/page");
    for (entry, path, over, answers) in [
        (
            1,
            "/moved",
            "",
            vec![
                format!("LINK crawlers:1.1.1 {target} kind=redirect"),
                "ACK crawlers:1.1.1 outcome=redirect".to_owned(),
            ],
        ),
        (2, "/nowhere", "", vec!["ACK crawlers:1.2.1 outcome=failed".to_owned()]),
        (3, "/gone", "", vec!["ACK crawlers:1.3.1 outcome=failed".to_owned()]),
        (
            4,
            "/busy",
            " not-before=7s",
            vec!["NACK crawlers:1.4.1 error=HTTP_status_503".to_owned()],
        ),
    ] {
        broker.task(&format!("{entry}.1"), site.url(path).as_str()).await;
        broker.expect(format!("TOUCH crawlers:1.{entry}.1 over=yes{over}")).await;
        for answer in answers {
            broker.expect(answer).await;
        }
    }
    let sql =
        "SELECT outcome || ' ' || status || ' ' || coalesce(error, '-') FROM pages ORDER BY task";
    let nowhere = "failed 301 redirect to an invalid URL: only http and https URLs can be fetched";
    assert_eq!(
        run.rows(sql),
        ["redirect 302 -", nowhere, "failed 410 HTTP status 410", "retry 503 HTTP status 503"]
    );
    run.stop().await;
}

/// A reply to a task of a page, with the time of its request replaced.
async fn report(broker: &mut Connection, id: &str, payload: &str) -> String {
    broker.task(id, payload).await;
    loop {
        let line = broker.whole_line().await;
        broker.send("+OK").await;
        if !line.starts_with("TOUCH") {
            let words = line.split(' ').map(|word| match word.strip_prefix("ms=") {
                Some(ms) => ms.parse().map(|_: u64| "ms=..").unwrap(),
                None => word,
            });
            return words.collect::<Vec<_>>().join(" ");
        }
    }
}

// PROTOCOL: T12
#[tokio::test]
async fn replies_report_what_is_known_about_the_page() {
    fn site(path: &str) -> String {
        let html = "Content-Type: text/html; charset=utf-8\r\n";
        match path {
            "/robots.txt" => answer("200 OK", "", "User-agent: *\nDisallow: /private\n"),
            "/page" => answer("200 OK", html, "a page"),
            _ => plain_site(path),
        }
    }
    let site = Site::start(site).await;
    let (run, mut broker) = start().await;
    broker.introduce(&site.url("/")).await;
    let hash = blake3::hash(b"a page");
    let page = |changed| format!("ms=.. bytes=6 changed={changed} type=text/html hash={hash}");
    let gone = "ACK crawlers:1.2.1 outcome=failed reason=status error=HTTP_status_410";
    let busy = "NACK crawlers:1.3.1 reason=try-later error=HTTP_status_503";
    let private = "ACK crawlers:1.4.1 outcome=robots reason=robots";
    for (entry, path, expected) in [
        (1, "/page", format!("ACK crawlers:1.1.1 status=200 {}", page("new"))),
        (2, "/gone", format!("{gone} status=410 ms=.. bytes=5")),
        (3, "/busy", format!("{busy} status=503 ms=.. bytes=0")),
        (4, "/private", format!("{private} error=disallowed_by_robots.txt")),
        (5, "/page", format!("ACK crawlers:1.5.1 status=200 {}", page("no"))),
    ] {
        let found = report(&mut broker, &format!("{entry}.1"), site.url(path).as_str()).await;
        assert_eq!(found, expected);
    }
    let found = report(&mut broker, "6.1", "nonsense").await;
    let expected = "ACK crawlers:1.6.1 outcome=failed reason=url error=";
    assert!(found.starts_with(expected) && !found.contains(" ms="), "{found}");
    run.stop().await;
}

#[tokio::test]
async fn a_page_of_a_crawler_without_a_database_is_not_called_new() {
    let site = Site::start(plain_site).await;
    let data = tempfile::tempdir().unwrap();
    let sink = SinkConfig::Jsonl(data.path().join("pages.jsonl"));
    let (run, mut broker) = start_as(data, 100, |config| config.sinks = vec![sink]).await;
    broker.introduce(&site.url("/")).await;
    let found = report(&mut broker, "1.1", site.url("/page").as_str()).await;
    assert!(found.contains(" hash=") && !found.contains("changed="), "{found}");
    run.stop().await;
}

#[tokio::test]
async fn links_that_a_group_had_no_room_for_are_sent_when_the_page_comes_again() {
    let site = Site::start(plain_site).await;
    let (run, mut broker) = start().await;
    broker.introduce(&site.url("/")).await;
    let page = format!("{} job=docs number=1 pass=1 depth=0", site.url("/page"));
    let links = ["/one", "/two"].map(|path| site.url(path));
    for attempt in 1..=2 {
        broker.task(&format!("1.{attempt}"), &page).await;
        broker.expect(format!("TOUCH crawlers:1.1.{attempt} over=yes")).await;
        for link in &links {
            broker.expect(format!("LINK crawlers:1.1.{attempt} {link}")).await;
        }
        assert_eq!(broker.line().await, format!("ACK crawlers:1.1.{attempt}"));
        if attempt == 1 {
            broker.send("-ERR limit no room for its links; the task is still yours").await;
            let pause = after(NO_ROOM_NACK_AFTER);
            let reason = "error=the_group_has_no_room_for_its_links";
            broker.expect(format!("NACK crawlers:1.1.1 {pause} {reason}")).await;
        } else {
            broker.send("+OK crawlers:1.1.2 new=2 known=0 refused=0").await;
        }
    }
    // Now they are known, and omitted.
    broker.task("2.1", &page.replace("/page", "/other")).await;
    broker.expect("TOUCH crawlers:1.2.1 over=yes".to_owned()).await;
    broker.expect("ACK crawlers:1.2.1".to_owned()).await;
    run.stop().await;
}

#[tokio::test]
async fn a_request_without_room_for_it_counts_as_not_made() {
    let mut site = Site::start(plain_site).await;
    let connect_timeout = Duration::from_secs(1);
    let set = |config: &mut CrawlerConfig| {
        (config.fetch.connect.per_address, config.fetch.connect.timeout) =
            (Some(1), connect_timeout);
    };
    let (run, mut broker) = start_as(tempfile::tempdir().unwrap(), 100, set).await;
    broker.introduce(&site.url("/")).await;
    assert_eq!(site.next_request().await, "/robots.txt");
    broker.task("1.1", site.url("/held").as_str()).await;
    assert_eq!(site.next_request().await, "/held");
    let unknown = format!("http://localhost:{}/", site.origin.address.port());
    for (entry, url) in [(2, site.url("/page").as_str()), (3, &*unknown)] {
        // It is still the last attempt.
        broker.task(&format!("{entry}.1"), &format!("{url} last=yes")).await;
        let pause = after(BUSY_NACK_AFTER);
        broker.expect(format!("NACK crawlers:1.{entry}.1 {pause} count=no")).await;
    }
    site.held.cancel();
    broker.expect("TOUCH crawlers:1.1.1 over=yes".to_owned()).await;
    broker.expect("ACK crawlers:1.1.1".to_owned()).await;
    // The robots.txt of the other name is unknown, so it is not an outage either.
    broker.task("3.2", &unknown).await;
    broker.expect(format!("NACK crawlers:1.3.2 again={unknown}")).await;
    assert_eq!(site.next_request().await, "/robots.txt");
    assert!(site.has_no_more_requests());
    let data = run.stop().await;
    assert_eq!(rows(data.path(), "SELECT url FROM pages"), [site.url("/held").as_str()]);
}

#[tokio::test]
async fn a_feed_is_checked_only_if_its_state_can_be_loaded_and_stored() {
    fn feed_site(path: &str) -> String {
        let item = "<rss><channel><item><guid>a</guid><link>/a</link></item></channel></rss>";
        if path == "/feed" { answer("200 OK", "", item) } else { plain_site(path) }
    }
    let (mut site, run, mut broker) = start_introduced(feed_site).await;
    let feed = format!("{} every=1h feed=10m-1d", site.url("/feed"));
    let database = rusqlite::Connection::open(run.data.path().join("crawler.db")).unwrap();
    let nack = |attempt| {
        let reason = "error=crawler.db_is_too_slow,_or_cannot_be_used";
        format!("NACK crawlers:1.1.{attempt} {reason}")
    };
    database.execute_batch("ALTER TABLE state RENAME TO away").unwrap();
    broker.task("1.1", &feed).await;
    broker.expect(nack(1)).await;
    assert!(site.has_no_more_requests());
    database.execute_batch("ALTER TABLE away RENAME TO state").unwrap();
    broker.task("1.2", &feed).await;
    assert_eq!(site.next_request().await, "/feed");
    broker.expect("TOUCH crawlers:1.1.2 over=yes".to_owned()).await;
    let event = broker.line().await;
    assert!(event.starts_with(&format!("PUB post-ready {} item=a ", site.url("/a"))), "{event}");
    database.execute_batch("ALTER TABLE state RENAME TO away").unwrap();
    broker.send("+OK 1 1").await;
    // The same event again, which the topic has already.
    broker.expect(nack(2)).await;
    database.execute_batch("ALTER TABLE away RENAME TO state").unwrap();
    broker.task("1.3", &feed).await;
    broker.expect("TOUCH crawlers:1.1.3 over=yes".to_owned()).await;
    assert_eq!(broker.line().await, event);
    broker.send("+OK 1 2").await;
    broker.expect("ACK crawlers:1.1.3".to_owned()).await;
    run.stop().await;
}

#[tokio::test]
async fn a_page_of_a_job_is_a_page_although_its_url_is_watched_as_a_feed() {
    let (mut site, run, mut broker) = start_introduced(plain_site).await;
    let (page, mut published) = (site.url("/page"), 0);
    // How the task ends. The schedule alone has the reason, and the next time.
    for (id, attributes, end) in [
        (1, " job=j pass=1 depth=0 number=1 every=1h", "ACK crawlers:1.1.1"),
        (2, " every=1h", "NACK crawlers:1.2.1 after="),
        (3, "", "NACK crawlers:1.3.1 error=no_feed_and_no_hub"),
    ] {
        broker.task(&format!("{id}.1"), &format!("{page}{attributes} feed=10m-1d")).await;
        assert_eq!(site.next_request().await, "/page");
        broker.expect(format!("TOUCH crawlers:1.{id}.1 over=yes")).await;
        let mut line = broker.line().await;
        while line.starts_with("PUB new-url ") || line.starts_with("LINK ") {
            if line.starts_with("PUB ") {
                published += 1;
                broker.send(&format!("+OK 1 {published}")).await;
            }
            line = broker.line().await;
        }
        assert!(line.starts_with(end), "{line}");
        broker.send("+OK").await;
    }
    run.stop().await;
}

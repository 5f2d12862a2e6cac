//! Pages that cannot be stored, or spooled until they are stored, cost no attempt.

use std::fs;
use std::path::PathBuf;

use super::*;
use crate::sink::SinkConfig;
use crate::sink::testing::record;
use crate::spool::SPOOL_BYTES_MAX;
use crate::worker::finish::{TaskFailure, store};

/// Answers with bodies that are too large for the memory of the spool.
fn large_site(path: &str) -> String {
    let body = "x".repeat(3 * SPOOL_BYTES_MAX);
    match path {
        "/robots.txt" => answer("404 None", "", ""),
        "/broken" => answer("500 Oh", "", &body),
        "/small" => answer("200 OK", "", "a page"),
        _ => answer("200 OK", "Content-Type: text/html\r\n", &body),
    }
}

/// A crawler with this sink in addition to the database, and the path of its spool.
async fn start_with_bodies(sink: impl FnOnce(&Path) -> SinkConfig) -> (Run, Connection, PathBuf) {
    let data = tempfile::tempdir().unwrap();
    let sinks = vec![SinkConfig::Sqlite(data.path().join("pages.db")), sink(data.path())];
    let (run, broker) = start_as(data, 100, |config| config.sinks = sinks).await;
    let mut directories = fs::read_dir(run.data.path().join("spool")).unwrap();
    let bodies =
        directories.find_map(|entry| Some(entry.unwrap().path()).filter(|path| path.is_dir()));
    (run, broker, bodies.unwrap())
}

fn warc(data: &Path) -> SinkConfig {
    SinkConfig::Warc { prefix: data.join("crawl"), bytes_max: u64::MAX }
}

const GONE: &str = "error=No_such_file_or_directory_(os_error_2)";

#[tokio::test]
async fn no_tasks_are_taken_while_pages_cannot_be_stored() {
    let site = Site::start(plain_site).await;
    let (run, mut broker) = start().await;
    broker.introduce(&site.url("/")).await;
    // Acts like a full disk for this table.
    let database = rusqlite::Connection::open(run.data.path().join("pages.db")).unwrap();
    database.execute_batch("ALTER TABLE pages RENAME TO away").unwrap();
    broker.task("1.1", site.url("/page").as_str()).await;
    broker.expect("TOUCH crawlers:1.1.1 over=yes".to_owned()).await;
    broker.expect("JOIN crawlers credit=0".to_owned()).await;
    // A new connection begins with the same credit of 0.
    drop(broker);
    let mut broker = run.broker.accept_with("credit=0").await;
    database.execute_batch("ALTER TABLE away RENAME TO pages").unwrap();
    broker.expect_all(&["JOIN crawlers credit=7", "ACK crawlers:1.1.1"]).await;
    run.stop().await;
}

#[tokio::test]
async fn a_body_that_cannot_be_spooled_is_trouble_and_costs_no_attempt() {
    let site = Site::start(large_site).await;
    let (run, mut broker, bodies) = start_with_bodies(warc).await;
    broker.introduce(&site.url("/")).await;
    // Acts like a full disk.
    fs::remove_dir(&bodies).unwrap();
    let page = site.url("/page");
    broker.task("1.1", page.as_str()).await;
    let nack = format!("NACK crawlers:1.1.1 again={page} {GONE}");
    broker.expect_all(&["JOIN crawlers credit=0", &nack]).await;
    // The body of an error is needed too, for the archive.
    let error = site.url("/broken");
    broker.task("2.1", error.as_str()).await;
    broker.expect(format!("NACK crawlers:1.2.1 again={error} {GONE}")).await;
    assert_eq!(run.rows("SELECT url FROM pages"), Vec::<String>::new());
    fs::create_dir(&bodies).unwrap();
    broker.expect("JOIN crawlers credit=7".to_owned()).await;
    broker.task("1.2", &format!("{page} again={page}")).await;
    broker.expect("TOUCH crawlers:1.1.2 over=yes".to_owned()).await;
    broker.expect("ACK crawlers:1.1.2".to_owned()).await;
    assert_eq!(run.rows("SELECT outcome FROM pages"), ["done"]);
    run.stop().await;
}

#[tokio::test]
async fn a_page_whose_body_cannot_be_a_file_costs_no_attempt() {
    let site = Site::start(large_site).await;
    let program = |_: &Path| SinkConfig::exec("true").unwrap();
    let (run, mut broker, bodies) = start_with_bodies(program).await;
    broker.introduce(&site.url("/")).await;
    fs::remove_dir(&bodies).unwrap();
    let page = site.url("/small");
    broker.task("1.1", page.as_str()).await;
    let nack = format!("NACK crawlers:1.1.1 again={page} {GONE}");
    broker.expect_all(&["JOIN crawlers credit=0", &nack]).await;
    // A group that allows no more uncounted returns gets an ordinary failure.
    broker.task("1.2", page.as_str()).await;
    assert_eq!(broker.line().await, format!("NACK crawlers:1.1.2 again={page} {GONE}"));
    broker.send("-ERR limit again= at most 8 times in a row; the task is still yours").await;
    broker.expect("TOUCH crawlers:1.1.2 over=yes".to_owned()).await;
    broker.expect(format!("NACK crawlers:1.1.2 {GONE}")).await;
    assert_eq!(run.rows("SELECT outcome || ' ' || reason FROM pages"), ["retry storage"]);
    run.stop().await;
}

#[tokio::test]
async fn an_outage_costs_no_attempt_and_a_refusal_does() {
    let data = tempfile::tempdir().unwrap();
    let config = CrawlerConfig { data: data.path().to_owned(), ..CrawlerConfig::default() };
    let (sinks, closing) = Sinks::open(&config.sinks(), &config.sink_context()).unwrap();
    let database = rusqlite::Connection::open(data.path().join("pages.db")).unwrap();
    database.execute_batch("ALTER TABLE pages RENAME TO away").unwrap();
    let page = Arc::new(record(1, 1));
    let undone = store(&sinks, &page, Duration::from_millis(1)).await.unwrap_err();
    assert!(!undone.counts_as_attempt && undone.error.contains("no such table"), "{undone:?}");
    database.execute_batch("ALTER TABLE away RENAME TO pages").unwrap();
    sinks.trouble_change(true).await;
    assert_eq!(store(&sinks, &page, Duration::from_millis(1)).await, Ok(()));
    drop(sinks);
    closing.wait().await;

    let sinks = vec![SinkConfig::exec("false").unwrap()];
    let (sinks, _closing) = Sinks::open(&sinks, &config.sink_context()).unwrap();
    let refused = store(&sinks, &page, Duration::from_secs(1)).await;
    let error = "the page cannot be stored: false: exit_code_1".to_owned();
    assert_eq!(refused, Err(TaskFailure { error, counts_as_attempt: true, retry_after: None }));
}

#[tokio::test]
async fn a_page_without_a_request_is_returned_as_such_when_it_cannot_be_stored() {
    let site = Site::start(plain_site).await;
    let (run, mut broker) = start().await;
    let holder = rusqlite::Connection::open(run.data.path().join("pages.db")).unwrap();
    holder.execute_batch("BEGIN IMMEDIATE").unwrap();
    broker.task("1.1", "nonsense").await;
    broker.task("2.1", "ftp://none.example/").await;
    // All tasks have begun by now.
    broker.introduce(&site.url("/")).await;
    run.stop.cancel();
    broker.expect("JOIN crawlers credit=0".to_owned()).await;
    let reason = "error=the_crawler_stopped_before_the_page_was_stored";
    let nacks = [1, 2].map(|entry| format!("NACK crawlers:1.{entry}.1 count=no {reason}"));
    broker.expect_all(&nacks.each_ref().map(String::as_str)).await;
    run.running.await.unwrap().unwrap();
}

//! Conditional requests for pages with a record, and the links of unchanged pages.

use super::*;
use crate::sink::SinkConfig;

const BODY: &str = "<a href=one><a href=two>";

/// Serves one page that never changes, and reports for each request whether it was conditional.
async fn unchanging() -> (Origin, mpsc::UnboundedReceiver<bool>) {
    let (sender, asked) = mpsc::unbounded_channel();
    let origin = Origin::start(move |mut stream| {
        let asked = sender.clone();
        async move {
            loop {
                let request = read_head(&mut stream).await.to_ascii_lowercase();
                let is_conditional = request.contains("if-none-match: \"x\"");
                let answer = match request.split(' ').nth(1) {
                    None => return,
                    Some("/robots.txt") => answer("404 None", "", ""),
                    Some(_) => {
                        let _ = asked.send(is_conditional);
                        let type_and_tag = "Content-Type: text/html\r\nETag: \"x\"\r\n";
                        if is_conditional {
                            "HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\n\r\n".to_owned()
                        } else {
                            answer("200 OK", type_and_tag, BODY)
                        }
                    }
                };
                if stream.write_all(answer.as_bytes()).await.is_err() {
                    return;
                }
            }
        }
    })
    .await;
    (origin, asked)
}

impl Connection {
    /// A task for a page of a job, with its replies up to the last one.
    async fn page(&mut self, id: &str, job: &str, origin: &Origin) {
        let page = origin.url("/page");
        self.task(id, &format!("{page} {job} depth=0")).await;
        self.expect(format!("TOUCH crawlers:1.{id} over=yes")).await;
        for link in ["/one", "/two"] {
            self.expect(format!("LINK crawlers:1.{id} {}", origin.url(link))).await;
        }
        assert_eq!(self.line().await, format!("ACK crawlers:1.{id}"));
    }
}

#[tokio::test]
async fn a_conditional_request_uses_the_record_of_another_page_never_its_own() {
    let (origin, mut asked) = unchanging().await;
    let (run, mut broker) = start().await;
    broker.introduce(&origin.url("/")).await;
    broker.page("1.1", "job=docs number=1 pass=1", &origin).await;
    assert_eq!(asked.recv().await, Some(false));
    // The reply came too late; the page has a record, and comes again.
    broker.send("-ERR stale crawlers:1.1.1").await;
    // Another pass comes in between, after which records are looked up.
    broker.page("2.1", "job=news number=2 pass=1", &origin).await;
    broker.send("-ERR stale crawlers:1.2.1").await;
    assert_eq!(asked.recv().await, Some(true), "the first page has a record");
    broker.page("2.2", "job=news number=2 pass=1", &origin).await;
    broker.send("+OK").await;
    assert_eq!(asked.recv().await, Some(true), "the first page still has a record");
    let data = run.stop().await;
    let row =
        "SELECT page || ' ' || status || ' ' || links || ' ' || etag FROM pages ORDER BY page";
    assert_eq!(rows(data.path(), row), ["crawlers.1.1 200 2 \"x\"", "crawlers.1.2 304 2 \"x\""]);
}

#[tokio::test]
async fn a_repeated_page_with_only_its_own_record_is_fetched_whole() {
    let (origin, mut asked) = unchanging().await;
    let (run, mut broker) = start().await;
    broker.introduce(&origin.url("/")).await;
    broker.page("1.1", "job=docs number=1 pass=1", &origin).await;
    broker.send("-ERR stale crawlers:1.1.1").await;
    let data = run.stop().await;
    // A restart, with records.
    let (run, mut broker) = start_in(data, 100).await;
    broker.page("1.2", "job=docs number=1 pass=1", &origin).await;
    broker.send("+OK").await;
    assert_eq!([asked.recv().await, asked.recv().await], [Some(false); 2]);
    broker.page("3.1", "job=docs number=1 pass=2", &origin).await;
    broker.send("+OK").await;
    assert_eq!(asked.recv().await, Some(true));
    run.stop().await;
}

#[tokio::test]
async fn a_page_that_another_crawler_stored_before_the_first_pass_is_looked_up() {
    let (origin, mut asked) = unchanging().await;
    let (run, mut broker) = start().await;
    let shared = vec![SinkConfig::Sqlite(run.data.path().join("pages.db"))];
    // It finds the database empty.
    let (other, mut other_broker) =
        start_as(tempfile::tempdir().unwrap(), 100, |config| config.sinks = shared).await;
    for (broker, id, pass) in [(&mut broker, "1.1", 1), (&mut other_broker, "2.1", 2)] {
        broker.introduce(&origin.url("/")).await;
        broker.page(id, &format!("job=docs number=1 pass={pass}"), &origin).await;
        broker.send("+OK").await;
    }
    assert_eq!([asked.recv().await, asked.recv().await], [Some(false), Some(true)]);
    other.stop().await;
    run.stop().await;
}

//! What is asked of pages that are on record, and what becomes of the links of those that have not changed.

use super::*;

const BODY: &str = "<a href=one><a href=two>";

/// Has one page that never changes, and says of each request for it whether it was asked if it has.
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
    /// A task for a page of a job, with its answers up to the last one.
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
async fn a_page_is_asked_for_by_the_record_of_another_one_and_never_by_its_own() {
    let (origin, mut asked) = unchanging().await;
    let (run, mut broker) = start().await;
    broker.introduce(&origin.url("/")).await;
    broker.page("1.1", "job=docs number=1 pass=1", &origin).await;
    assert_eq!(asked.recv().await, Some(false));
    // The answer came too late; it is on record, and comes again.
    broker.say("-ERR stale crawlers:1.1.1").await;
    // Something else is in between, after which records are looked for.
    broker.page("2.1", "job=news number=2 pass=1", &origin).await;
    broker.say("-ERR stale crawlers:1.2.1").await;
    assert_eq!(asked.recv().await, Some(true), "as the first one has it");
    broker.page("2.2", "job=news number=2 pass=1", &origin).await;
    broker.say("+OK").await;
    assert_eq!(asked.recv().await, Some(true), "as the first one has it, still");
    let data = run.stop().await;
    let row =
        "SELECT page || ' ' || status || ' ' || links || ' ' || etag FROM pages ORDER BY page";
    assert_eq!(rows(data.path(), row), ["crawlers.1.1 200 2 \"x\"", "crawlers.1.2 304 2 \"x\""]);
}

#[tokio::test]
async fn a_page_that_comes_again_and_is_on_record_as_itself_alone_is_read_whole() {
    let (origin, mut asked) = unchanging().await;
    let (run, mut broker) = start().await;
    broker.introduce(&origin.url("/")).await;
    broker.page("1.1", "job=docs number=1 pass=1", &origin).await;
    broker.say("-ERR stale crawlers:1.1.1").await;
    let data = run.stop().await;
    // Anew, where there are records.
    let (run, mut broker) = start_in(data, 100).await;
    broker.page("1.2", "job=docs number=1 pass=1", &origin).await;
    broker.say("+OK").await;
    assert_eq!([asked.recv().await, asked.recv().await], [Some(false); 2]);
    broker.page("3.1", "job=docs number=1 pass=2", &origin).await;
    broker.say("+OK").await;
    assert_eq!(asked.recv().await, Some(true));
    run.stop().await;
}

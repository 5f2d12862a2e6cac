//! A small blog and a reader. nginx serves the blog and its feed, one broker is its hub, and curl
//! pings the hub. Another broker with a crawler reads the blog, while it crawls all of the site.

use std::fs;
use std::process::Command;

use tempfile::TempDir;

use crate::support::nginx::Nginx;
use crate::support::ports::free_port;
use crate::support::process::{Process, Server, run_at, run_json_at, tidings_command};
use crate::support::topic_history::ReceivedEvents;
use crate::support::wait::wait_until;

/// Pages of the archive. With the delay the crawl takes about 20 seconds.
const PAGES: usize = 80;
const DELAY: &str = "250ms";

struct Blog {
    nginx: Nginx,
    /// `None` while it is down.
    hub: Option<Server>,
    hub_flags: Vec<String>,
}

impl Blog {
    fn start() -> Self {
        let folder = TempDir::new().unwrap();
        let root = folder.path();
        fs::create_dir(root.join("posts")).unwrap();
        fs::create_dir(root.join("archive")).unwrap();
        let links = (0..PAGES).map(|page| format!("<a href=/archive/{page}.html>{page}</a>\n"));
        fs::write(root.join("index.html"), links.collect::<String>()).unwrap();
        for page in 0..PAGES {
            fs::write(root.join(format!("archive/{page}.html")), format!("page {page}")).unwrap();
        }
        let site = format!(
            "root {}; access_log seen.log seen; location = /robots.txt {{ return 404; }}",
            root.display()
        );
        let http = "types { application/rss+xml rss; text/html html; } log_format seen '$uri';";
        let nginx = Nginx::start(folder, http, &site);
        let port = free_port();
        let hub_flags = [
            "broker".to_owned(),
            "--allow-private".to_owned(),
            format!("--http=127.0.0.1:{port}"),
            format!("--public-url=http://127.0.0.1:{port}/"),
            format!("--hub={}", nginx.url()),
        ];
        let words: Vec<_> = hub_flags.iter().map(String::as_str).collect();
        let hub = Server::start(&words);
        let blog = Self { nginx, hub: Some(hub), hub_flags: hub_flags.to_vec() };
        blog.write_posts(&["first"]);
        blog
    }

    fn feed(&self) -> String {
        format!("{}feed.rss", self.nginx.url())
    }

    fn hub_url(&self) -> String {
        let public = self.hub_flags[3].strip_prefix("--public-url=").unwrap();
        format!("{public}hub")
    }

    /// Writes posts, the newest first, and their feed.
    fn write_posts(&self, posts: &[&str]) {
        let root = self.nginx.folder.path();
        let items = posts.iter().map(|post| {
            fs::write(root.join(format!("posts/{post}.html")), format!("the {post} post")).unwrap();
            format!("<item><guid>{post}</guid><link>/posts/{post}.html</link></item>")
        });
        let items: String = items.collect();
        let hub = self.hub_url();
        let feed = format!(
            "<rss version=\"2.0\" xmlns:atom=\"http://www.w3.org/2005/Atom\"><channel><title>Blog</title>\
             <atom:link rel=\"hub\" href=\"{hub}\"/>{items}</channel></rss>"
        );
        // The feed is complete at any moment, as a blog writes it.
        fs::write(root.join("feed.new"), feed).unwrap();
        fs::rename(root.join("feed.new"), root.join("feed.rss")).unwrap();
    }

    /// Pings the hub: the one line that the deploy script of a blog needs.
    fn ping_hub(&self) {
        let url = format!("hub.url={}", self.feed());
        let words =
            ["-sS", "-o", "/dev/null", "-w", "%{http_code}", "-d", "hub.mode=publish", "-d"];
        let output =
            Command::new("curl").args(words).args([&url, &self.hub_url()]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "202");
    }

    /// Requested paths, in order.
    fn requested_paths(&self) -> Vec<String> {
        let log = fs::read_to_string(self.nginx.folder.path().join("seen.log"));
        log.unwrap_or_default().lines().map(str::to_owned).collect()
    }

    fn request_count(&self, path: &str) -> usize {
        self.requested_paths().iter().filter(|seen| *seen == path).count()
    }
}

#[test]
#[ignore = "needs foreign programs"]
fn a_post_is_fetched_at_once_with_a_hub_and_soon_without_one() {
    let mut blog = Blog::start();
    let port = free_port();
    let (http, public) = (format!("127.0.0.1:{port}"), format!("http://127.0.0.1:{port}/"));
    let flags =
        ["--quiet", "--allow-private", "--delay", DELAY, "--http", &http, "--public-url", &public];
    let reader = Server::start_up(&flags);
    let words = ["watch-feed", &blog.feed(), "--every", "2s", "--min", "2s", "--max", "10s"];
    run_at(&reader, &words).expect_code(0);
    let every = || Some(run_json_at(&reader, &["group", "schedules"]).first()?["every"].clone());
    wait_until("the hub's delivery", || (every()? == "10s").then_some(()));
    wait_until("the first post", || (blog.request_count("/posts/first.html") == 1).then_some(()));

    // A new post appears in the middle of a crawl of the site.
    let words = ["crawl", &blog.nginx.url(), "--depth", "1", "--broker", &reader.address_text()];
    let crawl = Process::start(&mut tidings_command(reader.folder.path(), words));
    let archive = |seen: &[String]| seen.iter().filter(|it| it.starts_with("/archive/")).count();
    wait_until("the crawl", || (archive(&blog.requested_paths()) >= 5).then_some(()));
    blog.write_posts(&["second", "first"]);
    let before = archive(&blog.requested_paths());
    blog.ping_hub();
    wait_until("the new post", || (blog.request_count("/posts/second.html") == 1).then_some(()));
    let meanwhile = archive(&blog.requested_paths()) - before;
    assert!(meanwhile < 15, "{meanwhile} pages of the crawl were fetched before the post");
    assert!(before + meanwhile < PAGES, "the crawl is still running");
    crawl.finish().expect_code(0);
    for page in 0..PAGES {
        assert_eq!(blog.request_count(&format!("/archive/{page}.html")), 1, "{page}");
    }

    // The hub dies. Polling finds the next post, and from then on the feed is polled as often as
    // before.
    let flags: Vec<String> = blog.hub_flags.clone();
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    let Server { process, folder, .. } = blog.hub.take().unwrap();
    process.signal_and_finish("KILL");
    wait_until("the long polling interval", || (every()? == "10s").then_some(()));
    blog.write_posts(&["third", "second", "first"]);
    wait_until("the post that no hub announced", || {
        (blog.request_count("/posts/third.html") == 1).then_some(())
    });
    wait_until("polling as before", || (every()? != "10s").then_some(()));

    // The hub comes back, still has its subscriber, and notifies it again.
    blog.hub = Some(Server::start_in(folder, &flags, |_| ()));
    blog.write_posts(&["fourth", "third", "second", "first"]);
    blog.ping_hub();
    wait_until("the fourth post", || (blog.request_count("/posts/fourth.html") == 1).then_some(()));
    wait_until("the hub's delivery", || (every()? == "10s").then_some(()));
    let events = ReceivedEvents::read_all(reader.address, "post-ready", "end").events;
    let mut items: Vec<_> = events
        .iter()
        .filter_map(|(_, payload)| payload.split(" item=").nth(1)?.split(' ').next())
        .collect();
    items.sort_unstable();
    assert_eq!(items, ["first", "fourth", "second", "third"], "each once");
}

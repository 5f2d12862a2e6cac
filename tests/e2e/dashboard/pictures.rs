//! The pages that docs/dashboard.md shows, with a crawl under way.

use std::time::Duration;
use std::{env, thread};

use tempfile::TempDir;

use super::Script;
use crate::support::http_client::HttpClient;
use crate::support::named_hosts::NamedHosts;
use crate::support::origin::{Origin, Site, full_response};
use crate::support::process::{Process, Server, tidings_command};

const HOSTS: [&str; 10] = [
    "archive.example",
    "books.example",
    "city.example",
    "docs.example",
    "garden.example",
    "library.example",
    "museum.example",
    "news.example",
    "shop.example",
    "weather.example",
];

#[test]
#[ignore = "needs foreign programs"]
fn pictures_show_the_pages_as_they_are() {
    let hosts = NamedHosts::new(HOSTS.map(str::to_owned).to_vec());
    let robots = Some("User-agent: *\nDisallow: /private/\n");
    let site = Site { hosts: 10, pages: 900, robots, ..Site::default() };
    // URLs without a port look better.
    let port = if env::var_os("UPDATE").is_some() { 80 } else { 0 };
    let origin = Origin::serve_at(port, site, |hit| {
        // Servers differ, and so do pages.
        let [.., host] = hit.host.octets();
        let sum: u64 = hit.path.bytes().map(u64::from).sum();
        thread::sleep(Duration::from_millis(u64::from(host) * 8 + sum * 7 % 90));
        let (status, headers, body) = match (host, &*hit.path) {
            (4, "/robots.txt") => ("200 OK", "", "User-agent: *\nCrawl-delay: 2\n"),
            (6, "/p/0") => ("429 Too Many Requests", "Retry-After: 3600\r\n", ""),
            (_, path) if path.starts_with("/busy/") => ("503 Service Unavailable", "", ""),
            _ => return None,
        };
        Some(full_response(status, headers, body))
    });
    let server = Server::start_broker();
    let folder = server.folder.path();
    let stores = [TempDir::new().unwrap(), TempDir::new().unwrap()];
    let _crawlers =
        stores.each_ref().map(|store| hosts.start_crawler(server.address, store.path()));
    let at = server.address_text();
    let words = ["sub", "orders", "--as", "mailer", "--broker", &at];
    let _subscriber = Process::start(&mut tidings_command(folder, words));

    let address = format!("{}/", HttpClient::new(&server).base_url);
    let repository = env!("CARGO_MANIFEST_DIR");
    let seeds =
        hosts.names.iter().map(|name| origin.url_at(name, "").trim_end_matches(":80").to_owned());
    let arguments: Vec<_> = [address, repository.to_owned()].into_iter().chain(seeds).collect();
    let arguments: Vec<_> = arguments.iter().map(|argument| &**argument).collect();
    Script::start("pictures", &arguments).finish();
}

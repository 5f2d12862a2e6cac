//! Crawls sites with ASCII hosts that IDNA rejects and the URL standard accepts since 2026. Only
//! the crawler resolves their names, with its own /etc/hosts.

use std::fs;

use tempfile::TempDir;

use crate::support::namespace::with_hosts_file;
use crate::support::origin::{Hit, Origin, OriginResponse, Site, full_response, html_response};
use crate::support::page_database;
use crate::support::process::{Process, tidings_command};

/// Spelled as the standard requires.
const HOSTS: [&str; 2] = ["xn--8i7caa.famitei.net", "a.b.c.xn--pokxncvks"];

/// Each host has a page with several forms of links, and a redirect to its own name in upper case.
fn respond(hit: &Hit) -> Option<OriginResponse> {
    let authority = hit.header("Host")?.to_ascii_uppercase();
    match hit.path.as_str() {
        "/" => Some(full_response(
            "200 OK",
            "Content-Type: text/html\r\nSet-Cookie: a=b\r\n",
            &format!(
                "<a href='sekou/all'>x</a> <a href='/moved'>x</a> <a href='//{authority}/net'>x</a>\
                 <a href='http://{authority}/whole'>x</a>"
            ),
        )),
        "/moved" => {
            Some(full_response("302 Found", &format!("Location: http://{authority}/new\r\n"), ""))
        }
        "/sekou/all" | "/net" | "/whole" | "/new" => Some(html_response("<title>here</title>")),
        _ => None,
    }
}

#[test]
#[ignore = "needs foreign programs"]
fn a_site_whose_ascii_host_idna_rejects_is_crawled() {
    let origin = Origin::serve_with(Site::default(), respond);
    let seed = origin.url(0, "/");
    let folder = TempDir::new().unwrap();
    let (address, port) =
        seed.trim_start_matches("http://").trim_end_matches('/').split_once(':').unwrap();
    let hosts = folder.path().join("hosts");
    fs::write(&hosts, format!("127.0.0.1 localhost\n{address} {}\n", HOSTS.join(" "))).unwrap();

    let seeds = HOSTS.map(|host| format!("http://{}:{port}/", host.to_ascii_uppercase()));
    let arguments = ["crawl", "--allow-private", "--cookies", "--quiet", &seeds[0], &seeds[1]];
    let crawl = tidings_command(folder.path(), arguments);
    Process::start(&mut with_hosts_file(&crawl, &hosts)).finish().expect_code(0);

    let requests = origin.request_log();
    for host in HOSTS {
        let authority = format!("{host}:{port}");
        let of_host = || requests.0.iter().filter(|hit| hit.header("Host") == Some(&authority));
        let mut paths: Vec<&str> = of_host().map(|hit| hit.path.as_str()).collect();
        assert_eq!(paths.remove(0), "/robots.txt", "{host}: {paths:?}");
        paths.sort_unstable();
        assert_eq!(paths, ["/", "/moved", "/net", "/new", "/sekou/all", "/whole"], "{host}");
        let with_cookie = of_host().filter(|hit| hit.header("Cookie") == Some("a=b")).count();
        assert_eq!(with_cookie, 5, "{host}: all but robots.txt and the page that sets it");
    }
    assert_eq!(requests.0.len(), 14, "{requests:#?}");
    let data = folder.path().join("tidings-data");
    let stored =
        "select distinct substr(url, 1, instr(substr(url, 8), '/') + 7) from pages order by 1";
    let urls = HOSTS.map(|host| format!("http://{host}:{port}/"));
    assert_eq!(page_database::query(&data, stored).unwrap(), [urls[1].as_str(), urls[0].as_str()]);
}

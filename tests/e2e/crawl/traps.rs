//! A site with four endless parts and an ordinary archive: the crawl ends.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use crate::support::line_connection::{LineConnection, value};
use crate::support::origin::{Hit, Origin, OriginResponse, Site, html_response};
use crate::support::page_database;
use crate::support::process::{Server, run_tidings};

/// Number of prefixes with the same page.
const MIRROR_COUNT: usize = 60;
const SECONDS_OF_YEAR: u64 = 31_556_952;

fn current_year() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    1970 + now.as_secs() / SECONDS_OF_YEAR
}

/// Two letters, so that no rule about numbers applies.
fn word(number: usize) -> String {
    [number / 26, number % 26].map(|n| char::from(b'a' + u8::try_from(n).unwrap())).iter().collect()
}

fn links(paths: impl IntoIterator<Item = String>) -> String {
    let link = |path| format!("<a href=\"{path}\">{path}</a>\n");
    paths.into_iter().map(link).collect::<Vec<_>>().concat()
}

/// The complete archive: the pages of five years.
fn archive_paths() -> impl Iterator<Item = String> {
    (2010..2015).flat_map(|year| (1..=12).map(move |month| format!("/archive/{year}/{month:02}")))
}

fn respond(hit: &Hit, sessions: &AtomicU64) -> Option<OriginResponse> {
    let path = hit.path.as_str();
    let body = if path == "/" {
        let mirrors = (0..MIRROR_COUNT).map(|number| format!("/mirror-{}/", word(number)));
        let others = ["/archive/", "/grow/", "/deep/", "/shop/"].map(str::to_owned);
        links(mirrors.chain(others).chain([format!("/calendar/{}/01", current_year())]))
    } else if path == "/archive/" {
        links(archive_paths())
    } else if path.starts_with("/archive/") {
        String::new()
    } else if let Some(month) = path.strip_prefix("/calendar/") {
        let (year, month) = month.split_once('/')?;
        let next = year.parse::<u64>().ok()? * 12 + month.parse::<u64>().ok()?;
        links([format!("/calendar/{}/{:02}", next / 12, next % 12 + 1)])
    } else if path.starts_with("/grow/") {
        links(["again/".to_owned()])
    } else if path.starts_with("/deep/") {
        links([format!("{}/", word(path.split('/').count()))])
    } else if path.starts_with("/shop/") {
        let session = sessions.fetch_add(1, Ordering::SeqCst);
        links([format!("/shop/?zenid={session:032x}")])
    } else if path.starts_with("/mirror-") {
        return Some(html_response("<title>Nothing here</title> <a href=\"more/\">more</a>"));
    } else {
        return None;
    };
    Some(html_response(&format!("<title>{path}</title>\n{body}")))
}

#[test]
#[ignore = "needs foreign programs"]
fn the_crawl_of_an_endless_site_ends_with_its_archive_complete() {
    let sessions = AtomicU64::new(0);
    let origin = Origin::serve_with(Site::default(), move |hit| respond(hit, &sessions));
    let up = Server::start_up(&["--allow-private"]);
    let mut done = LineConnection::connect_client(up.address);
    done.request_ok("SUB job-done from=first");
    let finished = run_tidings(up.folder.path(), &["crawl", &origin.url(0, "/")]).expect_code(0);

    let requests = origin.request_log();
    requests.expect_no_duplicates();
    let requested =
        |prefix: &str| requests.page_requests().filter(|hit| hit.path.starts_with(prefix)).count();
    // The current year and five more.
    assert_eq!(requested("/calendar/"), 6 * 12);
    // A path segment may occur three times.
    assert_eq!(requested("/grow/"), 1 + 3);
    // 32 segments; the last one is empty.
    assert_eq!(requested("/deep/"), 31);
    // The page without a session, and three with one.
    assert_eq!(requested("/shop/"), 1 + 3);
    // At most the links of the first twenty pages are followed.
    assert!(requested("/mirror-") <= MIRROR_COUNT + 20, "{}", requested("/mirror-"));
    assert_eq!(requested("/archive/"), 1 + archive_paths().count());

    let stored = |sql: &str| page_database::query(&up.data_dir(), sql).unwrap();
    let traps = stored("select reason, count(*) from pages where outcome = 'trap' group by reason");
    let named = |name: &str| {
        let found = traps.iter().find_map(|row| row.strip_prefix(&format!("{name}|")));
        found.map_or(0, |count| count.parse::<usize>().unwrap())
    };
    for name in ["calendar", "repeated-segments", "deep-path", "session-id"] {
        assert_eq!(named(name), 1, "{name}: {traps:?}");
    }
    assert!(named("same-content") + named("soft-not-found") >= MIRROR_COUNT - 20, "{traps:?}");
    let archive = "select count(*) from pages where outcome = 'done' and url like '%/archive/%'";
    assert_eq!(stored(archive), [(1 + archive_paths().count()).to_string()]);

    let sum = stored("select count(*) from pages where outcome = 'trap'").remove(0);
    let summary = finished.stdout().pop().unwrap();
    assert!(summary.contains(&format!(", {sum} in traps")), "{summary}");
    assert_eq!(value(&done.read_line(), "trap"), sum);
}

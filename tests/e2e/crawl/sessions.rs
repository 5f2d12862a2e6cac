//! Sites that put a new session id into the links of every page, under unknown parameter names.
//! Each page is fetched, and the crawl ends. The origin checks both.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use fastrand::Rng;

use crate::support::origin::{Hit, Origin, OriginResponse, Site, full_response, html_response};
use crate::support::page_database;
use crate::support::process::{Server, run_tidings};
use crate::support::seed::seed_from_env;

/// Pages of a site that are identified by their path.
const PAGES: usize = 40;
/// Pages of a list; each links to the next.
const LIST_PAGES: usize = 12;
/// Products; half of them have the same text, that they are sold out.
const PRODUCTS: usize = 50;
/// URLs that redirect to a page, with a new session.
const REDIRECTS: usize = 5;
/// All pages of a site, with `/`.
const ALL_PAGES: usize = 1 + PAGES + LIST_PAGES + PRODUCTS;
/// The limit of requests for pages of one site: each page once with a session and once without, and
/// some more until the crawler has recognized the parameter.
const REQUESTS_MAX: usize = 3 * ALL_PAGES;

/// The format of session ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SessionFormat {
    Hex,
    Decimal,
    Uuid,
    Base64Url,
    Milliseconds,
    /// No session ids: an ordinary site.
    NoSession,
}

/// In the order of the hosts.
const SESSION_FORMATS: [SessionFormat; 6] = [
    SessionFormat::Hex,
    SessionFormat::Decimal,
    SessionFormat::Uuid,
    SessionFormat::Base64Url,
    SessionFormat::Milliseconds,
    SessionFormat::NoSession,
];

/// One host with random parameter names.
#[derive(Debug, Clone)]
struct SessionSite {
    format: SessionFormat,
    session_param: String,
    page_param: String,
    id_param: String,
    /// Whether each link of a page has a different session.
    has_session_per_link: bool,
    requests: usize,
    milliseconds: u64,
    rng: Rng,
}

impl SessionSite {
    fn random(format: SessionFormat, rng: &mut Rng) -> Self {
        let mut names = BTreeSet::new();
        while names.len() < 3 {
            names.insert((0..rng.usize(2..8)).map(|_| rng.lowercase()).collect::<String>());
        }
        let mut names: Vec<String> = names.into_iter().collect();
        rng.shuffle(&mut names);
        let [session_param, page_param, id_param] = names.try_into().unwrap();
        let milliseconds = 1_750_000_000_000;
        let has_session_per_link = rng.bool();
        Self {
            format,
            session_param,
            page_param,
            id_param,
            has_session_per_link,
            requests: 0,
            milliseconds,
            rng: rng.fork(),
        }
    }

    fn next_session(&mut self) -> Option<String> {
        let rng = &mut self.rng;
        Some(match self.format {
            SessionFormat::Hex => format!("{:016x}", rng.u64(..)),
            SessionFormat::Decimal => format!("{:08}", rng.u32(..100_000_000)),
            SessionFormat::Uuid => uuid(rng.u128(..)),
            SessionFormat::Base64Url => (0..22).map(|_| base64url(rng)).collect(),
            SessionFormat::Milliseconds => {
                self.milliseconds += rng.u64(1..2_000);
                self.milliseconds.to_string()
            }
            SessionFormat::NoSession => return None,
        })
    }

    /// The content of a path without its session; `None` if the page does not exist.
    fn page_content(&mut self, path: &str) -> Option<(String, Vec<String>)> {
        let (number, id) =
            (|text: &str| text.parse::<usize>().ok(), format!("/thing?{}=", self.id_param));
        let list = |page: usize| format!("/list?{}={page}", self.page_param);
        if path == "/" {
            let links = (0..PAGES / 2).map(|page| format!("/p/{page}"));
            let moved = (0..REDIRECTS).map(|page| format!("/moved/{page}"));
            let links = links.chain(moved).chain([list(0), "/".to_owned()]);
            return Some(("A shop".to_owned(), links.collect()));
        }
        if let Some(page) = path.strip_prefix("/p/").and_then(number).filter(|page| *page < PAGES) {
            let links = [2 * page, 2 * page + 1, page / 2, 7 * page % PAGES];
            let links = links.into_iter().map(|page| format!("/p/{}", page % PAGES));
            let text = format!("Nearly the same as all others, with the word {}", word(page));
            return Some((text, links.chain(["/".to_owned()]).collect()));
        }
        if let Some(page) = path.strip_prefix(&list(0)[..list(0).len() - 1]).and_then(number) {
            let things = (0..PRODUCTS).filter(|thing| thing % LIST_PAGES == page);
            let links = things.map(|thing| format!("{id}{thing}")).chain(["/".to_owned()]);
            let next = (page + 1 < LIST_PAGES).then(|| list(page + 1));
            return (page < LIST_PAGES).then(|| ("Things".to_owned(), links.chain(next).collect()));
        }
        let thing = path.strip_prefix(&id).and_then(number).filter(|thing| *thing < PRODUCTS)?;
        let text = if thing % 2 == 0 { "Sold out".to_owned() } else { word(thing) };
        Some((text, vec!["/".to_owned(), list(0)]))
    }

    fn respond(&mut self, path: &str) -> Option<OriginResponse> {
        let path = self.without_session(path);
        let mut session = self.next_session();
        if let Some(page) = path.strip_prefix("/moved/") {
            let session = session.map(|value| format!("?{}={value}", self.session_param));
            let target = format!("Location: /p/{page}{}\r\n", session.unwrap_or_default());
            return Some(full_response("302 Found", &target, ""));
        }
        let (text, links) = self.page_content(&path)?;
        self.requests += 1;
        let mut body = format!("<title>Shop</title><p>{text}</p>\n");
        // Without further links an endless crawl ends, and the test fails.
        let is_over = self.requests > REQUESTS_MAX;
        for link in links.iter().filter(|_| !is_over) {
            if self.has_session_per_link {
                session = self.next_session();
            }
            let mark = if link.contains('?') { "&amp;" } else { "?" };
            let session =
                session.as_ref().map(|value| format!("{mark}{}={value}", self.session_param));
            let link = format!("{link}{}", session.unwrap_or_default());
            body.extend(["<a href=\"", &link, "\">a link</a>\n"]);
        }
        Some(html_response(&body))
    }

    fn without_session(&self, path: &str) -> String {
        let (place, query) = path.split_once('?').unwrap_or((path, ""));
        let is_session = |pair: &&str| pair.split('=').next() == Some(&self.session_param);
        let left: Vec<_> = query.split('&').filter(|pair| !is_session(pair)).collect();
        let left = left.join("&");
        if left.is_empty() { place.to_owned() } else { format!("{place}?{left}") }
    }
}

fn uuid(number: u128) -> String {
    let hex = format!("{number:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

fn base64url(rng: &mut Rng) -> char {
    match rng.u32(..64) {
        62 => '-',
        63 => '_',
        _ => rng.alphanumeric(),
    }
}

/// Three letters, so that pages differ in a word.
fn word(number: usize) -> String {
    [number / 26, number % 26, 7]
        .map(|n| char::from(b'a' + u8::try_from(n % 26).unwrap()))
        .iter()
        .collect()
}

#[test]
#[ignore = "needs foreign programs"]
fn a_site_with_session_ids_in_links_is_crawled_completely() {
    let seed = seed_from_env("TIDINGS_SESSIONS_SEED");
    eprintln!("TIDINGS_SESSIONS_SEED={seed}");
    let mut rng = Rng::with_seed(seed);
    let shops = SESSION_FORMATS.map(|value| SessionSite::random(value, &mut rng));
    let shops = Arc::new(Mutex::new(shops));
    let origin = Origin::serve_with(Site::default(), {
        let shops = Arc::clone(&shops);
        move |hit: &Hit| {
            let number = usize::from(hit.host.octets()[3]) - 1;
            shops.lock().unwrap()[number].respond(&hit.path)
        }
    });
    let up = Server::start_up(&["--allow-private"]);
    let seeds = (0..6).map(|host| origin.url(host, "/"));
    let arguments: Vec<String> = ["crawl".to_owned()].into_iter().chain(seeds).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    run_tidings(up.folder.path(), &arguments).expect_code(0);

    let requests = origin.request_log();
    requests.expect_no_duplicates();
    let shops = shops.lock().unwrap();
    let mut read = BTreeMap::<_, BTreeSet<_>>::new();
    for hit in requests.page_requests().filter(|hit| !hit.path.starts_with("/moved/")) {
        let number = usize::from(hit.host.octets()[3]) - 1;
        read.entry(number).or_default().insert(shops[number].without_session(&hit.path));
    }
    for (number, shop) in shops.iter().enumerate() {
        assert_eq!(read[&number].len(), ALL_PAGES, "{:?}: {:?}", shop.format, read[&number]);
        let most = if shop.format == SessionFormat::NoSession { ALL_PAGES } else { REQUESTS_MAX };
        assert!(
            shop.requests <= most,
            "{} requests for {ALL_PAGES} pages of {shop:?}",
            shop.requests
        );
        eprintln!("{:?}: {} requests for {ALL_PAGES} pages", shop.format, shop.requests);
    }
    let traps = "select distinct reason from pages where outcome = 'trap'";
    assert_eq!(page_database::query(&up.data_dir(), traps).unwrap(), ["session-id"]);
}

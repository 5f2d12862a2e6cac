//! Sites that put new session ids into their links, which must be read completely and end, and
//! honest sites, which must keep every meaningful parameter. Names and values are random.

#![expect(clippy::print_stderr, reason = "a failing test prints its seed")]

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use fastrand::Rng;
use proptest::prelude::*;
use tidings_documents::page::{PageContent, PageOptions, PageReader};

use super::super::*;
use super::honest_sites::{Pages, calendar, chain, facets, graph, list, name, numbered, products};
use crate::traps::sessions::{SESSION_EVIDENCE_MIN, SESSION_PARAMS_MAX};

const SEEDS: std::ops::Range<u64> = 0..10;

fn pass() -> PassKey {
    PassKey::new(1, "a", 1)
}

/// The form of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Value {
    Hex,
    Decimal,
    Uuid,
    Base64Url,
    Milliseconds,
    /// Several pages share a value.
    Seconds,
}

const VALUES: [Value; 6] = [
    Value::Hex,
    Value::Decimal,
    Value::Uuid,
    Value::Base64Url,
    Value::Milliseconds,
    Value::Seconds,
];

/// A parameter with a new value for each page.
struct Session {
    name: String,
    value: Value,
    one_per_link: bool,
    milliseconds: u64,
}

impl Session {
    fn draw(value: Value, rng: &mut Rng) -> Self {
        let one_per_link = value != Value::Seconds && rng.bool();
        Self { name: name(rng), value, one_per_link, milliseconds: 1_750_000_000_000 }
    }

    fn value(&mut self, rng: &mut Rng) -> String {
        match self.value {
            Value::Hex => format!("{:016x}", rng.u64(..)),
            Value::Decimal => format!("{:08}", rng.u32(..100_000_000)),
            Value::Uuid => {
                let hex = format!("{:032x}", rng.u128(..));
                [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
            }
            Value::Base64Url => (0..22).map(|_| base64url(rng)).collect(),
            Value::Milliseconds => {
                self.milliseconds += rng.u64(1..2_000);
                self.milliseconds.to_string()
            }
            Value::Seconds => {
                self.milliseconds += rng.u64(1..400);
                (self.milliseconds / 1_000).to_string()
            }
        }
    }
}

fn base64url(rng: &mut Rng) -> char {
    match rng.u32(..64) {
        62 => '-',
        63 => '_',
        _ => rng.alphanumeric(),
    }
}

/// Removes the parameters of these names.
fn without(link: &str, names: &[&str]) -> String {
    let (place, query) = link.split_once('?').unwrap_or((link, ""));
    let is_left = |pair: &&str| !names.contains(&pair.split('=').next().unwrap());
    let left: Vec<&str> = query.split('&').filter(is_left).collect();
    let left = left.join("&");
    if left.is_empty() { place.to_owned() } else { format!("{place}?{left}") }
}

fn read(url: &CanonicalUrl<'_>, html: &str) -> PageContent {
    let options = Arc::new(PageOptions::default());
    let mut reader = PageReader::new(url, [("content-type", b"text/html".as_slice())], &options);
    reader.feed(html.as_bytes());
    reader.finish(url)
}

/// The result of a crawl.
#[derive(Debug, Default)]
struct Outcome {
    requests: usize,
    /// Paths and queries of all requests.
    asked: BTreeSet<String>,
    reasons: BTreeSet<Trap>,
    /// Names that were recognized as session ids.
    known: Vec<String>,
}

/// Crawls a site from `/` on, as a worker with a broker does; stops after this number of requests.
fn crawl(traps: &mut Traps, requests_max: usize, mut html: impl FnMut(&str) -> String) -> Outcome {
    let start: CanonicalUrl = "http://example.org/".parse().unwrap();
    let mut met = BTreeSet::from([start.to_string()]);
    let mut waiting = VecDeque::from([(start, 0)]);
    let mut outcome = Outcome::default();
    while let Some((url, depth)) = waiting.pop_front() {
        if let Err(trap) = traps.check_url(pass(), &url, depth) {
            outcome.reasons.insert(trap);
            continue;
        }
        outcome.requests += 1;
        if outcome.requests > requests_max {
            return outcome;
        }
        outcome.asked.insert(url.path_and_query().to_owned());
        let html = html(url.path_and_query());
        let content = read(&url, &html);
        let body = *blake3::hash(html.as_bytes()).as_bytes();
        let reading = PageReading {
            body: &body,
            title: content.title.as_deref(),
            words: content.word_fingerprint,
            links: &content.links,
        };
        outcome.known.extend(traps.learn_sessions(pass(), &url, Some(&reading)));
        if let Err(trap) = traps.check_page(pass(), &url, depth, &body) {
            outcome.reasons.insert(trap);
            continue;
        }
        for link in content.links {
            let bare = traps.without_session(pass(), &link.url);
            let link = bare.unwrap_or_else(|| link.url.into());
            if met.insert(link.clone()) {
                waiting.push_back((link.parse().unwrap(), depth + 1));
            }
        }
    }
    outcome
}

/// Serves pages, with sessions in their links.
fn serve<'a>(
    pages: &'a Pages,
    sessions: &'a mut [Session],
    rng: &'a mut Rng,
) -> impl FnMut(&str) -> String + 'a {
    move |path| {
        let names: Vec<&str> = sessions.iter().map(|session| session.name.as_str()).collect();
        let (text, links) = &pages[&without(path, &names)];
        let mut html = format!("<title>The same</title><p>{text}</p>");
        let mut values: Vec<String> =
            sessions.iter_mut().map(|session| session.value(rng)).collect();
        for link in links {
            let mut link = link.clone();
            for (session, value) in sessions.iter_mut().zip(&mut values) {
                if session.one_per_link {
                    *value = session.value(rng);
                }
                let mark = if link.contains('?') { "&" } else { "?" };
                link.extend([mark, &session.name, "=", value.as_str()]);
            }
            html.extend(["<a href='", &link.replace('&', "&amp;"), "'>more</a>"]);
        }
        html
    }
}

/// Crawls pages with these sessions: all are read, few of them twice, and the names are recognized
/// in the end.
#[track_caller]
fn ends(pages: &Pages, sessions: &mut [Session], rng: &mut Rng) {
    let names: Vec<String> = sessions.iter().map(|session| session.name.clone()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let requests_max = 4 * pages.len() + 20;
    let mut traps = Traps::new(TrapLimits::default(), 2026);
    let outcome = crawl(&mut traps, requests_max, serve(pages, sessions, rng));
    assert!(outcome.requests <= requests_max, "no end in sight of {} pages", pages.len());
    let asked = outcome.asked.iter().map(|path| without(path, &names)).collect::<BTreeSet<_>>();
    assert!(asked.iter().eq(pages.keys()), "{asked:?}");
    assert!(outcome.known.iter().all(|name| names.contains(&name.as_str())), "{outcome:?}");
    assert_eq!(outcome.known.len(), names.len(), "{outcome:?}");
}

/// Crawls pages without sessions: each is read once, and none is refused.
#[track_caller]
fn passes(what: &str, pages: &Pages) {
    let mut rng = Rng::with_seed(0);
    let mut traps = Traps::new(TrapLimits::default(), 2026);
    let outcome = crawl(&mut traps, pages.len(), serve(pages, &mut [], &mut rng));
    assert_eq!(outcome.reasons, BTreeSet::new(), "{what}");
    assert!(outcome.asked.iter().eq(pages.keys()), "{what}: {:?}", outcome.asked);
    assert_eq!(outcome.known, Vec::<String>::new(), "{what}");
}

#[test]
fn a_session_id_of_any_name_and_form_ends_and_every_page_is_read() {
    for (seed, value) in SEEDS.flat_map(|seed| VALUES.map(|value| (seed, value))) {
        eprintln!("seed {seed}, {value:?}");
        let mut rng = Rng::with_seed(seed);
        let pages = graph(&mut rng);
        let mut sessions = [Session::draw(value, &mut rng)];
        ends(&pages, &mut sessions, &mut rng);
    }
}

#[test]
fn two_session_ids_in_one_link_end() {
    for seed in SEEDS {
        eprintln!("seed {seed}");
        let mut rng = Rng::with_seed(seed);
        let pages = graph(&mut rng);
        let mut sessions =
            [Value::Hex, Value::Milliseconds].map(|value| Session::draw(value, &mut rng));
        ends(&pages, &mut sessions, &mut rng);
    }
}

#[test]
fn times_counters_and_old_sessions_in_the_text_do_not_matter() {
    for seed in SEEDS {
        eprintln!("seed {seed}");
        let mut rng = Rng::with_seed(seed);
        let pages = graph(&mut rng);
        let mut sessions = [Session::draw(Value::Hex, &mut rng)];
        let name = sessions[0].name.clone();
        let (mut traps, mut count) = (Traps::new(TrapLimits::default(), 2026), 0);
        let requests_max = 4 * pages.len() + 20;
        let mut page = serve(&pages, &mut sessions, &mut rng);
        let outcome = crawl(&mut traps, requests_max, |path| {
            count += 1;
            let pasted = if path.starts_with("/p/") {
                format!("<a href='/?{name}=0123456789abcdef'>as I said</a>")
            } else {
                String::new()
            };
            format!("{}{pasted}<p>visitor {count} at 12:{count:02}:07 on web{count}", page(path))
        });
        assert_eq!(outcome.known, std::slice::from_ref(&name));
        assert!(outcome.requests <= requests_max);
        let asked = outcome.asked.iter().map(|path| without(path, &[&name]));
        assert!(asked.collect::<BTreeSet<_>>().iter().eq(pages.keys()));
    }
}

#[test]
fn meaningful_parameters_stay_and_all_pages_are_read() {
    for seed in SEEDS {
        eprintln!("seed {seed}");
        let rng = &mut Rng::with_seed(seed);
        passes("a list with links to the next page", &list(rng, false));
        passes("a list", &list(rng, true));
        passes("products", &products(rng, 0));
        passes("products with related ones", &products(rng, 3));
        passes("products with one related product", &products(rng, 1));
        passes("a chain", &chain(rng));
        passes("a calendar", &calendar(rng));
        passes("facets", &facets(rng));
        passes("numbers and languages", &numbered(rng));
    }
}

/// The honest sites, with a session id in every link.
#[test]
fn meaningful_parameters_stay_beside_a_session_id() {
    for (seed, value) in SEEDS.flat_map(|seed| VALUES.map(|value| (seed, value))) {
        eprintln!("seed {seed}, {value:?}");
        let rng = &mut Rng::with_seed(seed);
        let sites = [
            list(rng, false),
            list(rng, true),
            products(rng, 1),
            products(rng, 3),
            calendar(rng),
            facets(rng),
            numbered(rng),
        ];
        for pages in sites {
            let mut sessions = [Session::draw(value, rng)];
            ends(&pages, &mut sessions, rng);
        }
        // Few of its pages link to two others, so a time in seconds is recognized late.
        if value != Value::Seconds {
            let pages = products(rng, 0);
            ends(&pages, &mut [Session::draw(value, rng)], rng);
        }
        // Its numbers are as new on each page as session ids are.
        let (pages, mut sessions) = (chain(rng), [Session::draw(value, rng)]);
        let name = sessions[0].name.clone();
        let mut traps = Traps::new(TrapLimits::default(), 2026);
        let outcome = crawl(&mut traps, 10_000, serve(&pages, &mut sessions, rng));
        let asked = outcome.asked.iter().map(|path| without(path, &[&name]));
        assert!(asked.collect::<BTreeSet<_>>().iter().eq(pages.keys()));
    }
}

/// A parameter for the page from which a link was followed has few values. With or without it, all
/// pages are read.
#[test]
fn a_referrer_parameter_makes_no_new_page() {
    for seed in SEEDS {
        eprintln!("seed {seed}");
        let mut rng = Rng::with_seed(seed);
        let (pages, from) = (graph(&mut rng), name(&mut rng));
        let mut traps = Traps::new(TrapLimits::default(), 2026);
        let links: usize = pages.values().map(|(_, links)| links.len()).sum();
        let outcome = crawl(&mut traps, links + 1, |path| {
            let path = without(path, &[&from]);
            let (text, links) = &pages[&path];
            let tag = path.replace(['/', '?', '='], "-");
            let mark = |link: &str| if link.contains('?') { "&amp;" } else { "?" };
            let link = |link: &String| format!("<a href='{link}{}{from}={tag}'>", mark(link));
            format!("<title>The same</title>{text}{}", links.iter().map(link).collect::<String>())
        });
        assert!(outcome.requests <= links + 1);
        let asked = outcome.asked.iter().map(|path| without(path, &[&from]));
        assert!(asked.collect::<BTreeSet<_>>().iter().eq(pages.keys()));
    }
}

/// A server that continues the session of a URL has few of them.
#[test]
fn a_continued_session_stays_in_links() {
    let mut rng = Rng::with_seed(1);
    let pages = graph(&mut rng);
    let mut begun = 0;
    let mut traps = Traps::new(TrapLimits::default(), 2026);
    let outcome = crawl(&mut traps, 2 * pages.len(), |path| {
        let session = path.split(['?', '&']).find_map(|pair| pair.strip_prefix("goes-on="));
        let session = session.map_or_else(
            || {
                begun += 1;
                format!("{begun:016x}")
            },
            str::to_owned,
        );
        let (text, links) = &pages[&without(path, &["goes-on"])];
        let mark = |link: &str| if link.contains('?') { "&amp;" } else { "?" };
        let link = |link: &String| format!("<a href='{link}{}goes-on={session}'>", mark(link));
        format!("{text}{}", links.iter().map(link).collect::<String>())
    });
    assert_eq!((outcome.known, outcome.reasons), (Vec::new(), BTreeSet::new()));
    assert_eq!(outcome.requests, pages.len() + 1);
}

/// Teaches that `s` is a session id; returns the number of pages needed.
fn teach(traps: &mut Traps, of: PassKey, site: &str) -> usize {
    for n in 0_usize.. {
        let url = format!("{site}/{}?s=v{n}", n % 4);
        let links = (0..4).map(|page| format!("{site}/{page}?s=v{}", n + 1));
        let links: Vec<PageLink> =
            links.map(|url| PageLink { url: url.into(), nofollow: false }).collect();
        let reading = PageReading { body: &[0; 32], title: None, words: Some(0), links: &links };
        if traps.learn_sessions(of, &url.parse().unwrap(), Some(&reading)) == ["s"] {
            return n + 1;
        }
        assert!(n < 100);
    }
    unreachable!()
}

#[test]
fn links_lose_a_session_id_and_nothing_else() {
    let mut traps = Traps::new(TrapLimits::default(), 2026);
    assert_eq!(traps.without_session(pass(), "http://a.example/?s=1"), None);
    let pages = teach(&mut traps, pass(), "http://a.example:81");
    assert!(pages <= 4 + usize::from(2 * SESSION_EVIDENCE_MIN), "{pages}");
    let bare = |link: &str| traps.without_session(pass(), link);
    for (link, left) in [
        ("http://a.example:81/?s=1", "http://a.example:81/"),
        ("https://a.example:81/b;c=d?s", "="),
        ("http://a.example:81/?b=2&s=1&a&&s=2", "http://a.example:81/?b=2&a&"),
        ("http://a.example:81/?S=1&ss=2&b=s", "="),
        ("http://a.example:81/s=1", "="),
        ("http://a.example/?s=1", "="),
        ("http://b.example:81/?s=1", "="),
    ] {
        assert_eq!(bare(link).as_deref().unwrap_or("="), left, "{link}");
    }
    assert_eq!(traps.without_session(PassKey::new(1, "a", 2), "http://a.example:81/?s=1"), None);
    traps.forget(pass());
    assert_eq!(traps.without_session(pass(), "http://a.example:81/?s=1"), None);
}

#[test]
fn a_page_that_was_read_is_refused_under_another_session_only() {
    let mut traps = Traps::new(TrapLimits::default(), 2026);
    teach(&mut traps, pass(), "http://a.example");
    let url = |path: &str| format!("http://a.example{path}").parse::<CanonicalUrl>().unwrap();
    let mut before = |path: &str| traps.check_url(pass(), &url(path), 1);
    assert_eq!(before("/0?s=other"), Err(Trap::SessionId));
    assert_eq!(before("/0"), Ok(()), "it is read once more under its URL without a session");
    assert_eq!(before("/new?s=other"), Ok(()));
    assert_eq!(traps.learn_sessions(pass(), &url("/new?s=other"), None), Vec::<String>::new());
    assert_eq!(traps.check_url(pass(), &url("/new?s=another"), 1), Err(Trap::SessionId));
    let reading = PageReading { body: &[0; 32], title: None, words: None, links: &[] };
    traps.learn_sessions(pass(), &url("/late?s=other"), Some(&reading));
    assert_eq!(traps.check_url(pass(), &url("/late?s=other"), 1), Ok(()), "its task is repeated");
    assert_eq!(traps.check_url(pass(), &url("/late?s=another"), 1), Err(Trap::SessionId));
}

#[test]
fn nothing_is_learnt_when_traps_are_off() {
    let mut traps = Traps::new(TrapLimits { enabled: false, ..TrapLimits::default() }, 2026);
    let links: Vec<PageLink> = ["/a", "/b"]
        .map(|path| PageLink { url: format!("http://a.example{path}?s=1").into(), nofollow: false })
        .into();
    for _ in 0..100 {
        let reading = PageReading { body: &[0; 32], title: None, words: None, links: &links };
        let url = "http://a.example/".parse().unwrap();
        assert!(traps.learn_sessions(pass(), &url, Some(&reading)).is_empty());
    }
    assert!(traps.young.is_empty());
}

/// With the largest number of names, values and pages, the memory of one site stays small.
#[test]
fn the_memory_for_parameters_is_bounded() {
    let mut traps = Traps::new(TrapLimits::default(), 2026);
    teach(&mut traps, pass(), "http://a.example");
    let mut rng = Rng::with_seed(1);
    let mut most = 0;
    for n in 0..30_000 {
        let url = format!("http://a.example/{n}?s={n}").parse().unwrap();
        let link = |at: usize| {
            let (name, value) = (rng.usize(..2 * SESSION_PARAMS_MAX), rng.u32(..));
            let url = format!("http://a.example/{n}/{at}?n{name}={value}&s={n}").into();
            PageLink { url, nofollow: false }
        };
        let links: Vec<PageLink> = (0..if n < 300 { 300 } else { 0 }).map(link).collect();
        let reading = PageReading { body: &[0; 32], title: None, words: None, links: &links };
        traps.learn_sessions(pass(), &url, Some(&reading));
        most = most.max(traps.young_bytes);
    }
    assert!(most < 600 * 1024, "{most}");
    // A late name is ignored; a recognized one stays recognized.
    let left = traps.without_session(pass(), "http://a.example/?n1=2&s=3").unwrap();
    assert_eq!(left, "http://a.example/?n1=2");
}

proptest! {
    /// The rest of a link has no session id.
    #[test]
    fn a_stripped_link_is_canonical_and_has_no_session(
        query in "[?&=a-csS0-9%.-]{0,40}",
        pages in prop::collection::vec("[a-c]?[?](s|a|b)=[0-9]{1,3}(&s=[0-9]{1,9})?", 1..30),
    ) {
        let mut traps = Traps::new(TrapLimits::default(), 2026);
        for page in &pages {
            let url: CanonicalUrl = format!("http://a.example/{page}").parse().unwrap();
            let links: Vec<PageLink> = pages
                .iter()
                .map(|link| PageLink { url: format!("http://a.example/{link}").into(), nofollow: false })
                .collect();
            let reading = PageReading { body: &[0; 32], title: None, words: None, links: &links };
            traps.learn_sessions(pass(), &url, Some(&reading));
        }
        teach(&mut traps, pass(), "http://b.example");
        let url: CanonicalUrl = format!("http://b.example/?{query}").parse().unwrap();
        if let Some(left) = traps.without_session(pass(), url.as_str()) {
            let again: CanonicalUrl = left.parse().unwrap();
            prop_assert_eq!(again.as_str(), &left);
            prop_assert_eq!(traps.without_session(pass(), &left), None);
            prop_assert!(left.len() < url.as_str().len());
        } else {
            prop_assert!(!shape::params(&url).any(|(name, _)| name == "s"));
        }
    }
}

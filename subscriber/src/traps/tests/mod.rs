//! Honest sites, which must not be refused, and traps, which must end.

mod honest_sites;
mod sessions;

use std::collections::{BTreeSet, VecDeque};

use proptest::prelude::*;

use super::*;

fn pass() -> PassKey {
    PassKey::new(1, "a", 1)
}

fn traps(limits: TrapLimits) -> Traps {
    Traps::new(limits, 2026)
}

fn hash(text: &str) -> [u8; 32] {
    *blake3::hash(text.as_bytes()).as_bytes()
}

/// Reads all these pages, at this depth and with different content.
#[track_caller]
fn read_all(pages: impl IntoIterator<Item = (String, u32)>) -> usize {
    let mut traps = traps(TrapLimits::default());
    let mut count = 0;
    for (page, depth) in pages {
        let url = CanonicalUrl::parse(&page).unwrap();
        assert_eq!(traps.check_url(pass(), &url, depth), Ok(()), "{page} at {depth}");
        assert_eq!(traps.check_page(pass(), &url, depth, &hash(&page)), Ok(()), "{page}");
        count += 1;
    }
    count
}

/// Crawls a site from `/` on: a page is a body and links. Returns the number of pages read, and the
/// reasons of those refused.
fn crawl(
    limits: TrapLimits,
    mut page: impl FnMut(&CanonicalUrl<'_>) -> (String, Vec<String>),
) -> (usize, BTreeSet<Trap>) {
    let mut traps = traps(limits);
    let start: CanonicalUrl = "http://example.org/".parse().unwrap();
    let mut met = BTreeSet::from([start.to_string()]);
    let mut waiting = VecDeque::from([(start, 0)]);
    let (mut count, mut reasons) = (0, BTreeSet::new());
    while let Some((url, depth)) = waiting.pop_front() {
        if let Err(trap) = traps.check_url(pass(), &url, depth) {
            reasons.insert(trap);
            continue;
        }
        count += 1;
        assert!(count < 200_000, "no end in sight at {url}");
        let (body, links) = page(&url);
        let links = links.iter().map(|link| url.join(link).unwrap().as_str().into());
        let links: Vec<PageLink> = links.map(|url| PageLink { url, nofollow: false }).collect();
        let words = Some(xxh3_64(body.as_bytes()));
        let body = hash(&body);
        let reading = PageReading { body: &body, title: None, words, links: &links };
        traps.learn_sessions(pass(), &url, Some(&reading));
        if let Err(trap) = traps.check_page(pass(), &url, depth, &body) {
            reasons.insert(trap);
            continue;
        }
        for PageLink { url: link, .. } in links {
            let link = traps.without_session(pass(), &link).unwrap_or_else(|| link.into());
            if met.insert(link.clone()) {
                waiting.push_back((link.parse().unwrap(), depth + 1));
            }
        }
    }
    (count, reasons)
}

/// A trap under the default limits: at most this many pages of it are read, and it has this name.
#[track_caller]
fn ends(
    pages_max: usize,
    trap: Trap,
    page: impl FnMut(&CanonicalUrl<'_>) -> (String, Vec<String>),
) {
    let (count, reasons) = crawl(TrapLimits::default(), page);
    assert_eq!(reasons, BTreeSet::from([trap]));
    assert!(count <= pages_max, "{count} pages");
}

/// Different words without digits.
fn word(mut number: usize) -> String {
    let syllables = ["ba", "de", "fi", "go", "ku", "la", "me", "ni", "po", "ru"];
    let mut word = String::new();
    loop {
        word.push_str(syllables[number % syllables.len()]);
        number /= syllables.len();
        if number == 0 {
            return word;
        }
    }
}

/// All months have the same days: the length does not matter here.
fn days(years: std::ops::RangeInclusive<u16>) -> impl Iterator<Item = (u16, u8, u8)> {
    years.flat_map(|year| {
        (1..=12).flat_map(move |month| (1..=30).map(move |day| (year, month, day)))
    })
}

#[test]
fn documentation_passes() {
    let pages = (0..10_000).map(|n| {
        let version = ["3", "3.13", "3.14", "dev"][n % 4];
        let folder = ["library", "reference", "c-api", "howto", "whatsnew"][n % 5];
        (format!("https://docs.example.org/{version}/{folder}/{}.html", word(n)), 4)
    });
    assert_eq!(read_all(pages), 10_000);
    let changes = (0..400).map(|n| (format!("https://docs.example.org/whatsnew/3.{n}.html"), 3));
    assert_eq!(read_all(changes), 400);
}

#[test]
fn an_archive_by_date_passes_for_decades() {
    let by_day = |separator: &'static str| {
        days(2000..=2026).enumerate().map(move |(n, (year, month, day))| {
            // Every day is found on the one before, so the depth grows with the age of the archive.
            let depth = u32::try_from(n).unwrap();
            let date = [year.to_string(), format!("{month:02}"), format!("{day:02}")];
            (format!("https://blog.example.org/{}", date.join(separator)), depth)
        })
    };
    assert_eq!(read_all(by_day("/")), 27 * 360);
    assert_eq!(read_all(by_day("-")), 27 * 360);
    let posts = days(2000..=2026).enumerate().map(|(n, (year, month, day))| {
        (format!("https://blog.example.org/{year}/{month:02}/{day:02}/{}/", word(n)), 5)
    });
    assert_eq!(read_all(posts), 27 * 360);
    // A newspaper, by month, from its first issue on; and planned events.
    let months = (1851..=2031).flat_map(|year| {
        (1..=12).map(move |month| (format!("https://paper.example.org/a?y={year}&m={month}"), 3))
    });
    assert_eq!(read_all(months), 181 * 12);
}

#[test]
fn a_shop_passes() {
    let lists = (0..200).flat_map(|shelf| {
        (1..=40)
            .map(move |page| (format!("https://shop.example/{}?page={page}", word(shelf)), page))
    });
    let products =
        (0..90_000).map(|n| (format!("https://shop.example/p/{}", 7_000_000 + 37 * n), 9));
    let sorted = (0..100).flat_map(|shelf| {
        ["price", "name", "-price"].map(move |order| {
            (format!("https://shop.example/{}?sort={order}&page=1", word(shelf)), 4)
        })
    });
    assert_eq!(read_all(lists.chain(products).chain(sorted)), 8_000 + 90_000 + 300);
}

#[test]
fn forums_wikis_and_mail_archives_pass() {
    let topics = (0..5_000).flat_map(|topic| {
        (0..4).map(move |page| {
            let forum = topic % 30;
            (
                format!(
                    "https://forum.example/viewtopic.php?f={forum}&t={topic}&start={}",
                    15 * page
                ),
                6,
            )
        })
    });
    // Topics that are numbered like years are not a calendar: other numbers come first.
    let numbered = (0..9_999).flat_map(|topic| {
        (1..=3).map(move |page| (format!("https://forum.example/topic/{topic}/{page}"), 6))
    });
    let wiki = (0..4_000).flat_map(|n| {
        ["", "&action=edit", "&action=history", "&diff=7&oldid=5"]
            .map(move |view| (format!("https://wiki.example/index.php?title={}{view}", word(n)), 5))
    });
    let old_wiki = (0..4_000).map(|n| (format!("https://wiki.example/wiki.cgi?{}", word(n)), 5));
    let mails = (0..50_000).map(|n| (format!("https://lists.example/2024-May/msg{n:05}.html"), 3));
    let commits = (0..20_000_u32)
        .map(|n| (format!("https://git.example/c/{}", blake3::hash(&n.to_be_bytes())), 4));
    assert_eq!(
        read_all(topics.chain(wiki).chain(old_wiki).chain(mails)),
        20_000 + 16_000 + 4_000 + 50_000
    );
    assert_eq!(read_all(numbered.chain(commits)), 29_997 + 20_000);
}

#[test]
fn rare_but_honest_urls_pass() {
    let pages = [
        // Tiles, shards, source files, URLs inside the path of an archive.
        "https://a.example/1/1/1/1/1/1.png",
        "https://a.example/org/example/api/api/impl/api/V1.html",
        "https://a.example/web/20240501/https://b.example/c/",
        "https://a.example/src/a/b/c/d/e/f/g/h/i/j/k/l/m/n/o/p/q/r/s/t",
        "https://a.example/stories?sid=20240501",
        "https://a.example/?sessionid=spring",
        "https://a.example/events/2050/06/",
        "https://a.example/sonnets/1609/1/",
    ];
    read_all(pages.into_iter().map(|page| (page.to_owned(), 2_000)));
    let long = format!("https://a.example/{}", "x".repeat(TRAP_URL_BYTES_MAX - 18));
    assert_eq!(long.len(), TRAP_URL_BYTES_MAX);
    read_all([(long, 1)]);
    // Twenty languages of an untranslated page, and a session that is renewed twice.
    let mut traps = traps(TrapLimits::default());
    for n in 0..usize::from(SAME_CONTENT_MAX) {
        let url = format!("https://a.example/{}00/", word(0));
        let url = CanonicalUrl::parse(&url).unwrap().join(&format!("/list/{n}/")).unwrap();
        assert_eq!(traps.check_page(pass(), &url, 1, &hash("in English only")), Ok(()));
    }
}

#[test]
fn limits_hold_to_the_last() {
    let mut traps = traps(TrapLimits::default());
    let mut before = |path: &str| {
        traps.check_url(pass(), &format!("https://a.example/{path}").parse().unwrap(), 1)
    };
    let url = "x".repeat(TRAP_URL_BYTES_MAX - "https://a.example/".len());
    assert_eq!(before(&url), Ok(()));
    assert_eq!(before(&format!("{url}x")), Err(Trap::UrlTooLong));
    let path = (1..=SEGMENTS_MAX).map(|n| n.to_string()).collect::<Vec<_>>().join("/");
    assert_eq!(before(&path), Ok(()));
    assert_eq!(before(&format!("{path}/")), Err(Trap::DeepPath));
    assert_eq!(before("a/b/a/b/a"), Ok(()));
    assert_eq!(before("a/b/a/b/a/b/a"), Err(Trap::RepeatedSegments));
    assert_eq!(before("a////b"), Ok(()));
    assert_eq!(before("a/////b"), Err(Trap::RepeatedSegments));
    let query = vec!["a=1"; PARAMS_MAX].join("&");
    assert_eq!(before(&format!("?{query}")), Ok(()));
    assert_eq!(before(&format!("?{query}&a")), Err(Trap::QueryMaze));
}

#[test]
fn a_calendar_ends_after_a_few_years() {
    // Twelve months a year, from now back to the first newspapers.
    let pages_max = 12 * usize::from(CALENDAR_YEARS_AHEAD + CALENDAR_YEARS_BACK + 2) + 2;
    let months = |year: u16, month: u16, text: fn(u16, u16) -> String| {
        let months = 12 * year + month - 1;
        let link = |months: u16| text(months / 12, months % 12 + 1);
        (format!("{year} {month}"), vec![link(months - 1), link(months + 1)])
    };
    ends(pages_max, Trap::Calendar, |url| {
        let mut parts = url.path().trim_start_matches("/cal/").split('/');
        let mut number = |or| parts.next().and_then(|part| part.parse().ok()).unwrap_or(or);
        months(number(2026), number(11), |year, month| format!("/cal/{year}/{month:02}"))
    });
    ends(pages_max, Trap::Calendar, |url| {
        let query = url.path_and_query().trim_start_matches("/?y=").split_once("&m=");
        let (year, month) = query.unwrap_or(("2026", "11"));
        let (year, month) = (year.parse().unwrap(), month.parse().unwrap());
        months(year, month, |year, month| format!("/?y={year}&m={month}"))
    });
    ends(pages_max, Trap::Calendar, |url| {
        let date = url.path_and_query().trim_start_matches("/e?month=").split_once('-');
        let (year, month) = date.unwrap_or(("2026", "11"));
        let (year, month) = (year.parse().unwrap(), month.parse().unwrap());
        months(year, month, |year, month| format!("/e?month={year}-{month:02}"))
    });
    // Day by day into the past: by year it would be plausible, by day it is not.
    let mut day = 0;
    ends(CALENDAR_PAGES_MAX as usize + 1, Trap::Calendar, |_| {
        day += 1;
        let (year, month) = (2026 - day / 360, day / 30 % 12 + 1);
        (day.to_string(), vec![format!("/day/{year}-{month:02}-{:02}", day % 30 + 1)])
    });
}

#[test]
fn a_path_that_leads_into_itself_ends() {
    let mut count = 0;
    let mut deeper = |links: [&str; 2]| {
        count += 1;
        (count.to_string(), links.map(str::to_owned).to_vec())
    };
    ends(20, Trap::RepeatedSegments, |_| deeper(["a/", "a/"]));
    ends(20, Trap::RepeatedSegments, |_| deeper(["a/b/", "a/b/"]));
    ends(300, Trap::RepeatedSegments, |_| deeper(["about/", "contact/"]));
    let mut step = 0;
    ends(40, Trap::DeepPath, |_| {
        step += 1;
        (step.to_string(), vec![format!("{step}/")])
    });
    let mut step = 0;
    ends(400, Trap::UrlTooLong, |url| {
        step += 1;
        (step.to_string(), vec![format!("{}-{}", url.path(), word(step))])
    });
}

#[test]
fn a_counter_ends() {
    let mut count = 0;
    ends(CHAIN_MAX as usize + 2, Trap::TooManyFromPrefix, |_| {
        count += 1;
        (format!("page {count}"), vec![format!("/list?page={count}")])
    });
    let mut count = 0;
    ends(CHAIN_MAX as usize + 2, Trap::TooManyFromPrefix, |_| {
        count += 1;
        (format!("page {count}"), vec![format!("/entries/page/{count}/")])
    });
}

#[test]
fn numbers_and_ids_at_random_end() {
    let limits = TrapLimits { shape_pages_max: 500, ..TrapLimits::default() };
    let mut count = 0_u64;
    for text in [
        |n: u64| format!("/maze/{n}"),
        |n: u64| format!("/maze/{n:016x}-a1"),
        |n: u64| format!("/?id=a{n}"),
    ] {
        let (pages, reasons) = crawl(limits.clone(), |url| {
            let links = (0..3).map(|_| {
                count += 1;
                text(count.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 8)
            });
            (url.to_string(), links.collect())
        });
        assert_eq!(reasons, BTreeSet::from([Trap::TooManyFromPrefix]));
        assert_eq!(pages, 501);
    }
}

#[test]
fn words_at_random_end_with_the_budget() {
    let limits = TrapLimits { host_pages_max: 1_000, ..TrapLimits::default() };
    let mut count = 0;
    let (pages, reasons) = crawl(limits, |url| {
        count += 3;
        (url.to_string(), (0..3).map(|n| format!("/{}", word(count + n))).collect())
    });
    assert_eq!((pages, reasons), (1_000, BTreeSet::from([Trap::HostBudget])));
}

#[test]
fn sessions_end_and_every_page_is_read() {
    for text in [
        |page: usize, session: &str| format!("/p/{page}?sid={session}"),
        |page: usize, session: &str| format!("/{}?a=1&PHPSESSID={session}&b", word(page)),
        |page: usize, session: &str| format!("/{}.jsp;jsessionid={session}?a=1", word(page)),
        |page: usize, session: &str| format!("/(S({session}))/{}.aspx", word(page)),
    ] {
        let mut session = 0_u32;
        let mut read = BTreeSet::new();
        let (pages, reasons) = crawl(TrapLimits::default(), |url| {
            session += 1;
            let id = &blake3::hash(&session.to_be_bytes()).to_hex()[..32];
            for page in 0..40 {
                if *url == url.join(&text(page, "")).unwrap()
                    || without(url.path_and_query()) == without(&text(page, id))
                {
                    read.insert(page);
                }
            }
            (format!("{url} in session {session}"), (0..40).map(|page| text(page, id)).collect())
        });
        assert_eq!(reasons, BTreeSet::from([Trap::SessionId]));
        assert_eq!(read.len(), 40);
        assert_eq!(pages, 1 + 40 * usize::from(SESSION_COPIES_MAX));
    }
}

/// Without any run of 32 hex digits.
fn without(text: &str) -> String {
    let bytes = text.as_bytes();
    let at = bytes.windows(32).position(|window| window.iter().all(u8::is_ascii_hexdigit));
    at.map_or(text.to_owned(), |at| format!("{}{}", &text[..at], &text[at + 32..]))
}

#[test]
fn filters_in_any_order_end() {
    let filters =
        ["color", "size", "brand", "price", "sex", "stock", "rating", "year", "fit", "sort"];
    // Names in any order: many lists of names. Names in one order with many values: many pages with
    // one list.
    let (pages, reasons) = crawl(TrapLimits::default(), |url| {
        let query = url.path_and_query().trim_start_matches('/').trim_start_matches('?');
        let more = filters.iter().filter(|filter| !query.contains(*filter));
        let join = |filter: &&str| {
            format!("/?{query}{}{filter}=x", if query.is_empty() { "" } else { "&" })
        };
        (url.to_string(), more.map(join).collect())
    });
    assert_eq!(reasons, BTreeSet::from([Trap::QueryMaze]));
    assert_eq!(pages, 1 + usize::from(QUERY_SHAPES_MAX));
    let mut count = 0;
    let (pages, reasons) = crawl(TrapLimits::default(), |url| {
        count += 1;
        let link = |n: usize| format!("/?a={}&b={n}&c=1&d=2", word(count));
        (url.to_string(), (0..9).map(link).collect())
    });
    assert_eq!(reasons, BTreeSet::from([Trap::QueryMaze]));
    assert_eq!(pages, 1 + FACETED_PAGES_MAX as usize);
}

#[test]
fn the_same_content_is_taken_some_times() {
    let mut count = 0;
    let (pages, reasons) = crawl(TrapLimits::default(), |_| {
        count += 2;
        ("Hello".to_owned(), vec![format!("/p/{count}"), format!("/p/{}", count + 1)])
    });
    assert_eq!(reasons, BTreeSet::from([Trap::SameContent]));
    // Those found before are read, but their links are not followed.
    assert!(pages <= 2 * usize::from(SAME_CONTENT_MAX) + 1, "{pages}");
    let mut count = 0;
    let (pages, reasons) = crawl(TrapLimits::default(), |_| {
        count += 2;
        ("Not found".to_owned(), vec![word(count), word(count + 1)])
    });
    assert_eq!(reasons, BTreeSet::from([Trap::SoftNotFound]));
    assert!(pages <= 2 * 32, "{pages}");
}

#[test]
fn a_repeated_page_counts_once() {
    let mut traps = traps(TrapLimits::default());
    let url: CanonicalUrl = "http://example.org/p/1".parse().unwrap();
    for _ in 0..100 {
        assert_eq!(traps.check_url(pass(), &url, 3), Ok(()));
        assert_eq!(traps.check_page(pass(), &url, 3, &hash("a")), Ok(()));
    }
}

#[test]
fn sites_and_passes_are_apart() {
    let limits = TrapLimits { host_pages_max: 1, ..TrapLimits::default() };
    let mut traps = traps(limits);
    let other = PassKey::new(1, "a", 2);
    let url = |text: &str| text.parse::<CanonicalUrl>().unwrap();
    traps.check_page(pass(), &url("http://a.example/1"), 0, &hash("a")).unwrap();
    assert_eq!(traps.check_url(pass(), &url("https://a.example/2"), 0), Err(Trap::HostBudget));
    assert_eq!(traps.check_url(pass(), &url("http://a.example:81/2"), 0), Ok(()));
    assert_eq!(traps.check_url(pass(), &url("http://b.example/2"), 0), Ok(()));
    assert_eq!(traps.check_url(other, &url("http://a.example/2"), 0), Ok(()));
    traps.forget(pass());
    assert_eq!(traps.check_url(pass(), &url("http://a.example/2"), 0), Ok(()));
    assert_eq!(traps.young_bytes, 0);
}

#[test]
fn nothing_is_refused_when_traps_are_off() {
    let mut traps =
        traps(TrapLimits { enabled: false, host_pages_max: 0, ..TrapLimits::default() });
    let url: CanonicalUrl = format!("http://a.example/{}", "a/".repeat(50)).parse().unwrap();
    for _ in 0..100 {
        assert_eq!(traps.check_url(pass(), &url, 9_999), Ok(()));
        assert_eq!(traps.check_page(pass(), &url, 9_999, &hash("a")), Ok(()));
    }
}

#[test]
fn the_tables_are_bounded_and_recent_sites_stay() {
    let mut traps = traps(TrapLimits { same_content_max: 1, ..TrapLimits::default() });
    let trap = |n: usize| format!("http://trap.example/{n}").parse::<CanonicalUrl>().unwrap();
    traps.check_page(pass(), &trap(0), 0, &hash("")).unwrap();
    let mut most = 0;
    for n in 0..100_000_usize {
        let site: CanonicalUrl = format!("http://{}.example/", word(n)).parse().unwrap();
        traps.check_page(pass(), &site, 0, &hash("a")).unwrap();
        most = most.max(traps.young_bytes);
        if n % 1_000 == 0 {
            traps.check_url(pass(), &trap(1), 1).unwrap();
        }
    }
    assert!(most <= TRAPS_BYTES_MAX / 2 + 4096, "{most}");
    assert!(traps.old.len() + traps.young.len() < 100_000);
    assert_eq!(traps.check_page(pass(), &trap(1), 1, &hash("")), Err(Trap::SameContent));
    // One site with full tables.
    for n in 0..60_000_u32 {
        let id = &blake3::hash(&n.to_be_bytes()).to_hex()[..32];
        let url = format!(
            "http://example.org/{}/{n}?{}=1&sid={id}",
            word(n as usize),
            word(n as usize / 9)
        );
        let url: CanonicalUrl = url.parse().unwrap();
        traps.check_page(pass(), &url, 1, &hash(id)).unwrap();
    }
    let site = &traps.young[&site_key(pass(), &"http://example.org/".parse().unwrap())];
    assert!(site.bytes() < 3 * 1024 * 1024, "{}", site.bytes());
    assert!(site.shapes.len() <= TRAP_ENTRIES_MAX && site.bodies.len() <= TRAP_ENTRIES_MAX);
}

#[test]
fn trap_names_are_unique_and_of_one_form() {
    let names: BTreeSet<&str> = Trap::ALL.iter().map(|trap| trap.as_str()).collect();
    assert_eq!(names.len(), Trap::ALL.len());
    assert!(
        names.iter().all(|name| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-'))
    );
}

proptest! {
    /// The counts of a URL never change the result of the rules that need no evidence.
    #[test]
    fn no_url_panics_and_the_same_is_judged_alike(
        paths in prop::collection::vec("[/a0;()S=?&.%-]{0,20}(2026|12|sid=|-05)?[/&=0a-f-]{0,40}", 1..20),
        depth in any::<u32>(),
    ) {
        let (mut one, mut two) = (traps(TrapLimits::default()), traps(TrapLimits::default()));
        for path in paths {
            let Ok(url) = CanonicalUrl::parse(&format!("http://a/{path}")).map(CanonicalUrl::into_owned) else { continue };
            let judged = one.check_url(pass(), &url, depth);
            prop_assert_eq!(judged, two.check_url(pass(), &url, depth));
            prop_assert_eq!(judged, one.check_url(pass(), &url, depth));
            let body = hash(&path);
            prop_assert_eq!(one.check_page(pass(), &url, depth, &body), two.check_page(pass(), &url, depth, &body));
        }
    }
}

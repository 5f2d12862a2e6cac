mod pages;

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use tidings_documents::page::{PageContent, PageOptions, PageReader};

use super::*;

const NOW: u64 = 1_800_000_000;
const GAINED: Gain = Gain { links: 3, has_text: false };
const NOTHING: Gain = Gain { links: 0, has_text: false };

/// Signs of a page that should be rendered.
const EMPTY: PageSigns = PageSigns {
    text_chars: 0,
    links: 0,
    script_links: 0,
    parts: 0,
    script_files: 1,
    script_bytes: 0,
    has_empty_root: true,
    asks_for_scripts: false,
    declares_scripts: false,
};
/// Signs of a page that may lack a part.
const SHORT: PageSigns = PageSigns { has_empty_root: false, links: 3, ..EMPTY };

fn read(url: &str, html: &str) -> PageContent {
    let url = CanonicalUrl::parse(url).unwrap();
    let options = Arc::new(PageOptions { signs: true, ..PageOptions::default() });
    let headers = [("content-type", b"text/html; charset=utf-8".as_slice())];
    let mut reader = PageReader::new(&url, headers, &options);
    reader.feed(html.as_bytes());
    reader.finish(&url)
}

fn page(text: &str) -> CanonicalUrl<'_> {
    CanonicalUrl::parse(text).unwrap()
}

/// Renders a page if `auto` decides so; returns whether it was rendered.
fn visit(auto: &mut AutoRender, url: &str, gain: Gain) -> bool {
    let is_rendered = matches!(auto.decide(&page(url), &EMPTY), Decision::Render(_));
    if is_rendered {
        auto.learn(&page(url), gain, NOW);
    }
    is_rendered
}

#[test]
fn new_links_of_the_host_and_twice_the_text_are_a_gain() {
    let url = "https://site.example/a?q";
    let gain = |before: &str, after: &str| {
        FetchedForm::of(&read(url, before)).gain(&page(url), &read(url, after))
    };
    let (short, long) = ("word ".repeat(30), "word ".repeat(60));
    for (before, after, links, has_text) in [
        ("", "", 0, false),
        ("", "<a href=/b>b</a><a href=/b#c>again</a><a href=c>c</a>", 2, false),
        ("<a href=/b>b</a>", "<a href=/b>b</a>", 0, false),
        ("", "<a href=https://other.example/b>b</a><a href=http://site.example/b>b</a>", 1, false),
        (
            "",
            "<a href=#/view>view</a><a href='?q'>this page</a><a rel=nofollow href=/b>b</a>",
            0,
            false,
        ),
        ("", "Loading the application. Please wait.", 0, false),
        ("", &short, 0, true),
        (&short, &long, 0, true),
        (&short, &format!("{short} and some words more"), 0, false),
        (&long, &short, 0, false),
    ] {
        let found = gain(before, after);
        assert_eq!(found, Gain { links, has_text }, "{before} -> {after}");
        assert_eq!(found.is_some(), links > 0 || has_text);
    }
}

#[test]
fn a_directory_without_gain_is_rendered_eight_times_and_then_one_in_fifty() {
    let mut auto = AutoRender::default();
    let urls: Vec<_> = (0..208).map(|n| format!("http://a.example/app/{n}/x-{n}")).collect();
    let rendered = urls.iter().map(|url| visit(&mut auto, url, NOTHING));
    let rendered: Vec<_> = (0..).zip(rendered).filter(|(_, is)| *is).map(|(n, _)| n).collect();
    assert_eq!(rendered, [0, 1, 2, 3, 4, 5, 6, 7, 57, 107, 157, 207]);
    assert_eq!(auto.decide(&page(&urls[0]), &EMPTY), Decision::NoGain);
    // Others are not affected.
    for other in
        ["http://a.example/app/x", "http://a.example:81/app/1/x", "https://a.example/app/1/x"]
    {
        assert!(visit(&mut auto, other, NOTHING), "{other}");
    }
}

#[test]
fn a_gain_begins_the_count_again() {
    let mut auto = AutoRender::default();
    let mut renders = |gain, times: u8| {
        (0..times).filter(|_| visit(&mut auto, "http://a.example/app/x", gain)).count()
    };
    assert_eq!((renders(NOTHING, 7), renders(GAINED, 1), renders(NOTHING, 20)), (7, 1, 8));
    // 12 were not rendered; the 50th is.
    assert_eq!((renders(GAINED, 38), renders(NOTHING, 20)), (1, 8));
}

#[test]
fn a_page_that_failed_to_render_changes_nothing() {
    let mut auto = AutoRender::default();
    for _ in 0..100 {
        let decision = auto.decide(&page("http://a.example/x"), &EMPTY);
        assert_eq!(decision, Decision::Render(RenderCause::EmptyRoot));
    }
}

#[test]
fn a_doubtful_page_is_rendered_on_hosts_that_gained() {
    let mut auto = AutoRender::default();
    let [url, other] = ["http://a.example/b/x", "http://a.example/c/x"].map(page);
    assert_eq!(auto.decide(&url, &SHORT), Decision::Complete);
    auto.learn(&other, NOTHING, NOW);
    assert_eq!(auto.decide(&url, &SHORT), Decision::Complete);
    let stored = auto.learn(&other, GAINED, NOW);
    assert_eq!(auto.decide(&url, &SHORT), Decision::Render(RenderCause::HostGained));
    let mut restarted = AutoRender::default();
    restarted.restore(&url, Some(&stored.value));
    assert_eq!(restarted.decide(&url, &SHORT), Decision::Render(RenderCause::HostGained));
    assert_eq!(auto.decide(&page("http://b.example/x"), &SHORT), Decision::Complete);
    assert_eq!(auto.decide(&url, &PageSigns::default()), Decision::Complete);
}

#[test]
fn a_stored_value_is_restored_once_and_kept_for_thirty_days() {
    let (mut auto, url) = (AutoRender::default(), page("http://a.example/app/1"));
    let stored = (0..8).map(|_| auto.learn(&url, NOTHING, NOW)).last().unwrap();
    assert_eq!(stored.expires_unix_s, NOW + 30 * 24 * 3600);
    let mut restarted = AutoRender::default();
    assert!(!restarted.knows(&url));
    restarted.restore(&url, Some(&stored.value));
    assert!(restarted.knows(&url));
    assert_eq!(restarted.decide(&url, &EMPTY), Decision::NoGain);
    // Another load that was begun before does not undo what was learned since.
    restarted.learn(&url, GAINED, NOW);
    restarted.restore(&url, Some(&stored.value));
    assert!(visit(&mut restarted, url.as_str(), NOTHING));
}

#[test]
fn a_value_of_another_form_counts_as_missing() {
    let long = format!("1 1\n{}", "ff 8 0\n".repeat(AUTO_DIRECTORIES_MAX + 1));
    for value in [
        "",
        "2 1\n",
        "1\n",
        "1 1\nff 9 0",
        "1 1\nff 8 50",
        "1 1\nff 8",
        "1 1\nxy 8 0",
        &long,
        "\u{ff}",
    ] {
        assert_eq!(HostMemory::read(value.as_bytes()), None, "{value}");
    }
    assert_eq!(HostMemory::read(&[0xff]), None);
    assert!(HostMemory::read(b"1 1\nff 8 49\n").is_some());
}

#[test]
fn the_memory_is_bounded() {
    let mut auto = AutoRender::default();
    for n in 0..AUTO_HOSTS_MAX + 10 {
        auto.learn(&page(&format!("http://h{n}.example/x")), NOTHING, NOW);
        assert!(auto.hosts.len() <= AUTO_HOSTS_MAX);
    }
    assert!(!auto.knows(&page("http://h0.example/")));
    assert!(auto.knows(&page(&format!("http://h{}.example/", AUTO_HOSTS_MAX / 2))));
    let directory = |n: usize| format!("http://a.example/{}/x", "d/".repeat(n));
    let mut stored = None;
    for n in 0..AUTO_DIRECTORIES_MAX * 2 {
        auto.learn(&page(&directory(0)), NOTHING, NOW);
        stored = Some(auto.learn(&page(&directory(n)), NOTHING, NOW));
    }
    let bytes = stored.unwrap().value;
    let host = HostMemory::read(&bytes).unwrap();
    assert_eq!(host.directories.len(), AUTO_DIRECTORIES_MAX);
    assert!(bytes.len() < 1536, "{}", bytes.len());
    assert_eq!(auto.decide(&page(&directory(0)), &EMPTY), Decision::NoGain, "it was used last");
    assert!(visit(&mut auto, &directory(1), NOTHING), "it was evicted");
}

/// What happens to a page that should be rendered.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// It is rendered with this result, if `auto` decides so.
    Visit(u8, bool),
    /// Its rendering fails, if `auto` decides to render it.
    Failure(u8),
    /// The crawler starts again, with the stored value.
    Restart,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        40 => (0..3_u8, prop::bool::weighted(0.02)).prop_map(|(of, gains)| Event::Visit(of, gains)),
        2 => (0..3_u8).prop_map(Event::Failure),
        1 => Just(Event::Restart),
    ]
}

proptest! {
    /// All pages of a directory are rendered until 8 in a row have gained nothing. Then at most one
    /// in 50 is rendered; exactly one if there was no restart. Failures do not count.
    #[test]
    fn renderings_follow_what_they_gained(
        events in prop::collection::vec(event(), 0..600),
        has_restarts: bool,
    ) {
        let (mut auto, mut stored) = (AutoRender::default(), None::<StoredHost>);
        // For each directory: rendered pages without gain, and pages that were not rendered, since
        // the last one that was and since the last decision to render one.
        let mut seen = BTreeMap::<u8, (u32, u32, u32)>::new();
        for event in events {
            let (of, result) = match event {
                Event::Visit(of, gains) => (of, Some(gains)),
                Event::Failure(of) => (of, None),
                Event::Restart if has_restarts => {
                    auto = AutoRender::default();
                    let value = stored.as_ref().map(|stored| &*stored.value);
                    auto.restore(&page("http://a.example/"), value);
                    continue;
                }
                Event::Restart => continue,
            };
            let url = format!("http://a.example/{}/x", ["a", "b", "c"][usize::from(of)]);
            let url = page(&url);
            let (without_gain, unrendered, skipped) = seen.entry(of).or_default();
            match auto.decide(&url, &EMPTY) {
                Decision::Render(reason) => {
                    prop_assert_eq!(reason, RenderCause::EmptyRoot);
                    prop_assert!(*without_gain < 8 || *unrendered >= 49, "after {unrendered}");
                    *skipped = 0;
                    if let Some(gains) = result {
                        let gain = if gains { GAINED } else { NOTHING };
                        stored = Some(auto.learn(&url, gain, NOW));
                        *unrendered = 0;
                        *without_gain = if gains { 0 } else { *without_gain + 1 };
                    }
                }
                Decision::NoGain => {
                    prop_assert!(*without_gain >= 8);
                    *unrendered += 1;
                    *skipped += 1;
                    prop_assert!(has_restarts || *skipped < 50);
                }
                Decision::Complete => prop_assert!(false, "the page is empty"),
            }
        }
    }

    #[test]
    fn a_host_is_read_as_it_was_written(
        has_gained: bool,
        directories in prop::collection::vec((any::<u64>(), 0..=8_u8, 0..50_u8), 0..=64),
    ) {
        let directories = directories.into_iter().map(|(shape, without_gain, skipped)| {
            DirectoryMemory { shape, without_gain, skipped }
        });
        let host = HostMemory { has_gained, directories: directories.collect() };
        prop_assert_eq!(HostMemory::read(host.write().as_bytes()), Some(host));
    }
}

use std::io::Write;

use proptest::prelude::*;

use super::*;
use crate::feed::xml::FEED_DEPTH_MAX;
use crate::feed::{FEED_ENTRIES_MAX, FEED_TEXTS_BYTES_MAX};

const BASE: &str = "http://a.example/feeds/f.xml";

fn read(text: &str) -> Feed {
    parse(text.as_bytes(), None, Some(BASE))
}

/// Id, link and title of each entry; `-` if it is missing.
fn entries(text: &str) -> Vec<[String; 3]> {
    let shown = |text: Option<String>| text.unwrap_or("-".to_owned());
    let entries = read(text).entries.into_iter();
    entries.map(|entry| [entry.id, shown(entry.link), shown(entry.title)]).collect()
}

fn rss(items: &str) -> String {
    format!("<rss version='2.0'><channel><title>T</title>{items}</channel></rss>")
}

#[test]
fn a_feed_of_each_kind_is_read() {
    let entry =
        "<id>i</id><link href='/1'/><title>t</title><updated>2026-01-02T03:04:05Z</updated>";
    let texts = [
        (FeedKind::Rss, rss("<item><guid isPermaLink='false'>i</guid><link>/1</link><title>t</title><pubDate>2026-01-02T03:04:05Z</pubDate></item>")),
        (
            FeedKind::Rdf,
            "<rdf:RDF xmlns:rdf='http://www.w3.org/1999/02/22-rdf-syntax-ns#' xmlns='http://purl.org/rss/1.0/' \
             xmlns:d='http://purl.org/dc/elements/1.1/'><channel rdf:about='c'><title>T</title></channel><item \
             rdf:about='i'><title>t</title><link>/1</link><d:date>2026-01-02T03:04:05Z</d:date></item></rdf:RDF>".to_owned(),
        ),
        (FeedKind::Atom, format!("<feed xmlns='http://www.w3.org/2005/Atom'><title>T</title><entry>{entry}</entry></feed>")),
        (FeedKind::Atom, format!("<x:feed xmlns:x='http://purl.org/atom/ns#'><x:title>T</x:title><x:entry>{}</x:entry></x:feed>",
            entry.replace("</", "</x:").replace('<', "<x:").replace("<x:/x:", "</x:"))),
        (
            FeedKind::Json,
            r#"{"version": "https://jsonfeed.org/version/1.1", "title": "T", "items": [{"id": "i", "url": "/1",
             "title": "t", "date_published": "2026-01-02T03:04:05Z", "attachments": [{"a": [1, 2]}]}]}"#.to_owned(),
        ),
    ];
    for (kind, text) in texts {
        let feed = read(&text);
        assert_eq!((feed.kind, feed.title.as_deref()), (Some(kind), Some("T")), "{text}");
        let entry = FeedEntry {
            id: "i".to_owned(),
            link: Some("http://a.example/1".to_owned()),
            title: Some("t".to_owned()),
            updated: Some("2026-01-02T03:04:05Z".to_owned()),
        };
        assert_eq!(feed.entries, [entry], "{text}");
    }
}

#[test]
fn a_feed_that_is_compressed_is_read() {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(rss("<item><title>a</title></item>").as_bytes()).unwrap();
    let mut bytes = gzip.finish().unwrap();
    let feed = parse(&bytes, None, None);
    assert_eq!((feed.entries.len(), feed.cut), (1, None));
    // Padded, like some archives.
    bytes.extend([0; 100]);
    assert_eq!(parse(&bytes, None, None).entries, feed.entries);
}

/// Removes the version of a document that is not a feed.
fn without_version(feed: Feed) -> Feed {
    assert!(feed.version.is_some());
    Feed { version: None, ..feed }
}

#[test]
fn other_documents_are_not_feeds() {
    for text in [
        "",
        " ",
        "x",
        "<",
        "{",
        "{}",
        "[]",
        r#"{"items": [{"id": 1}]}"#,
        "<html><rss/></html>",
        "<urlset/>",
        "<!-- <rss> -->",
        "http://a.example/",
        "<svg><title>feed</title></svg>",
    ] {
        assert_eq!(without_version(read(text)), Feed::default(), "{text}");
    }
}

#[test]
fn an_item_without_an_id_gets_its_link_or_a_stable_hash() {
    let items = entries(&rss(
        "<item><link>http://a.example/1</link></item><item><title>t</title></item><item><title>t</title>\
         <pubDate>d</pubDate></item><item><description>s</description></item><item/>",
    ));
    assert_eq!(items[0][0], "http://a.example/1");
    let ids: std::collections::HashSet<_> = items.iter().map(|item| &item[0]).collect();
    assert_eq!(ids.len(), 5, "{ids:?}");
    assert!(items[1..].iter().all(|item| item[0].starts_with("hash:") && item[1] == "-"));
    assert_eq!(entries(&rss("<item><title> t </title></item>"))[0][0], items[1][0]);
}

#[test]
fn the_link_for_readers_is_chosen() {
    let table = [
        ("<guid>http://b.example/g</guid>", "http://b.example/g"),
        ("<guid isPermaLink='FALSE'>http://b.example/g</guid>", "-"),
        ("<guid>g</guid>", "-"),
        ("<guid>http://b.example/g</guid><link>/l</link>", "http://a.example/l"),
        ("<link/><link href='/l'/>", "http://a.example/l"),
        (
            "<a:link xmlns:a='http://www.w3.org/2005/Atom' href='/a'/><link>/l</link>",
            "http://a.example/l",
        ),
        ("<enclosure url='/e'/><guid isPermaLink='false'>g</guid>", "http://a.example/e"),
        ("<enclosure url='/e'/><link>/l</link>", "http://a.example/l"),
        ("<enclosure url='/e'/><guid>http://b.example/g</guid>", "http://b.example/g"),
        ("<link rel='enclosure' href='/e'/><id>http://b.example/i</id>", "http://a.example/e"),
        ("<media:content url='/m'/><media:thumbnail url='/t'/>", "http://a.example/m"),
        ("<id>http://b.example/i</id>", "http://b.example/i"),
        ("<id>tag:b.example,2026:1</id>", "-"),
        ("</item><item rdf:about='http://b.example/i'>", "http://b.example/i"),
        (
            "<link rel='enclosure' href='/e'/><link rel='alternate' type='text/plain' href='/t'/><link type='text/html' href='/l'/>",
            "http://a.example/l",
        ),
        ("<link>\n  http://b.example/a b\n</link>", "http://b.example/a%20b"),
        ("<link><![CDATA[http://b.example/?a=1&b=2]]></link>", "http://b.example/?a=1&b=2"),
        ("<link>http://b.example/?a=1&b=2</link>", "http://b.example/?a=1&b=2"),
        (
            "<media:content xmlns:media='http://search.yahoo.com/mrss/'><link>/m</link></media:content>",
            "-",
        ),
        ("<content src='/c'/>", "http://a.example/c"),
        ("<link>mailto:a@b.example</link>", "mailto:a@b.example"),
    ];
    let long = format!("<item><link> {}</link></item>", "x".repeat(8192));
    assert_eq!(entries(&rss(&long))[0][1], "-");
    for (item, link) in table {
        let entries = entries(&rss(&format!("<item>{item}</item>")));
        assert_eq!(entries.last().unwrap()[1], link, "{item}");
    }
}

#[test]
fn links_are_relative_to_the_innermost_base() {
    let text = "<feed xmlns='http://www.w3.org/2005/Atom' xml:base='/x/'><entry xml:base='y/'><link href='1'/></entry>\
         <entry><link href='2' xml:base='http://b.example/z/'/></entry><entry><link href='3'/></entry></feed>";
    let links: Vec<_> = entries(text).into_iter().map(|[_, link, _]| link).collect();
    assert_eq!(
        links,
        ["http://a.example/feeds/y/1", "http://b.example/z/2", "http://a.example/x/3"]
    );
    let text = rss("<item><link>1</link></item>");
    assert_eq!(parse(text.as_bytes(), None, None).entries[0].link.as_deref(), Some("1"));
}

#[test]
fn titles_are_text() {
    let atom = |title: &str| {
        format!("<feed xmlns='http://www.w3.org/2005/Atom'><entry>{title}</entry></feed>")
    };
    let item = |title: &str| rss(&format!("<item>{title}</item>"));
    let table = [
        (item("<title>a &lt;b&gt;b&lt;/b&gt; &amp;amp; c</title>"), "a b & c"),
        (item("<title><![CDATA[<i>a</i>&eacute;]]></title>"), "aé"),
        (item("<title>a <b>b</b></title>"), "a b"),
        (item("<dc:title>d</dc:title><title>t</title>"), "t"),
        (item("<dc:title>d</dc:title><media:title>m</media:title>"), "d"),
        (item("<image><title>i</title></image>"), "-"),
        (item("<title> </title>"), "-"),
        (atom("<title>a &lt;b&gt; c</title>"), "a <b> c"),
        (atom("<title type='html'>a &lt;b&gt; c</title>"), "a c"),
        (
            atom(
                "<title type='xhtml'><div xmlns='http://www.w3.org/1999/xhtml'>a <b>b</b></div></title>",
            ),
            "a b",
        ),
        (atom("<source><title>s</title></source>"), "-"),
    ];
    for (text, title) in table {
        assert_eq!(entries(&text)[0][2], title, "{text}");
    }
}

#[test]
fn hints_and_links_of_the_feed_are_read() {
    let feed = read(
        "<rss xmlns:a='http://www.w3.org/2005/Atom'><channel><link>http://b.example/</link><a:link rel='self' href='s'/>\
         <a:link rel='hub' href='http://hub.example/'/><ttl> 90 </ttl><skipHours><hour>0</hour><hour>24</hour><hour>5</hour>\
         <hour>25</hour></skipHours><skipDays><day>Sunday</day><day>x</day></skipDays></channel></rss>",
    );
    assert_eq!(feed.self_url.as_deref(), Some("http://a.example/feeds/s"));
    assert_eq!(
        (feed.site.as_deref(), feed.hubs),
        (Some("http://b.example/"), vec!["http://hub.example/".to_owned()])
    );
    let hints =
        PollHints { min_interval_s: Some(90 * 60), skip_hours: 0b10_0001, skip_days: 0b100_0000 };
    assert_eq!(feed.hints, hints);
    let feed = read(&rss(
        "<sy:updatePeriod>daily</sy:updatePeriod><sy:updateFrequency>4</sy:updateFrequency>",
    ));
    assert_eq!(feed.hints.min_interval_s, Some(6 * 60 * 60));
}

#[test]
fn an_entry_alone_is_a_feed_of_one() {
    let text = "<entry xmlns='http://www.w3.org/2005/Atom'><id>i</id><title>t</title></entry>";
    assert_eq!(entries(text), [["i", "-", "t"]]);
    assert_eq!(without_version(read("<entry><id>i</id></entry>")), Feed::default());
}

#[test]
fn broken_feeds_lose_little() {
    let table = [
        ("<br><b>Warning</b>: x<rss><channel><item><title>a</title></item>", vec!["a"]),
        // The feed breaks off: the fragment of an item is not an item.
        ("<rss><item><title>a</title></item><item><link>http://b.example/20", vec!["a"]),
        ("<rss><item><title>a</title></item><item><title>b</title><guid>1</guid>", vec!["a"]),
        ("<feed><entry><title>a</title></entry><entry><title>b</title><id>tag:b", vec!["a"]),
        (
            "<rss><channel><item><title>a</title><item><title>b</title></item></channel></rss>",
            vec!["a", "b"],
        ),
        (
            "<rss><channel><item><description><p>x<br></description><title>a</title></item><item><title>b",
            vec!["a"],
        ),
        ("<rss><item><title>a</title></item><channel><title>c</title></channel></rss>", vec!["a"]),
        ("<RSS><Channel><Item><Title>a</Title></Item></Channel></RSS>", vec!["a"]),
        (
            "<rss xmlns='http://nobody.example/'><channel><item><title>a</title></item></channel></rss>",
            vec!["a"],
        ),
        (
            "<rss><channel><item><title>a</title></item></channel></rss><rss><item><title>z</title></item>",
            vec!["a"],
        ),
        ("<rss><channel><items><item><title>a</title></item></items></channel></rss>", vec!["a"]),
        (
            "<feed><entry><title>a</title><content><entry><title>z</title></entry></content></entry></feed>",
            vec!["a"],
        ),
        ("<rss><channel></item></b><item><title>a</title></x></item></channel></rss>", vec!["a"]),
    ];
    for (text, titles) in table {
        let found: Vec<_> = entries(text).into_iter().map(|[_, _, title]| title).collect();
        assert_eq!(found, titles, "{text}");
    }
}

#[test]
fn the_content_of_a_feed_is_limited() {
    let many = rss(&"<item><link>/1</link></item>".repeat(FEED_ENTRIES_MAX + 1));
    let feed = read(&many);
    assert_eq!((feed.entries.len(), feed.cut.is_some()), (FEED_ENTRIES_MAX, true));

    let long = rss(&format!("<item><guid>{}</guid></item>", "x".repeat(8000)).repeat(1000));
    let feed = read(&long);
    assert!(
        (500..=FEED_TEXTS_BYTES_MAX / 8000).contains(&feed.entries.len()) && feed.cut.is_some()
    );

    let deep =
        rss(&format!("<item><title>a</title></item>{}<item/>", "<d>".repeat(FEED_DEPTH_MAX)));
    let feed = read(&deep);
    assert_eq!((feed.entries.len(), feed.cut.is_some()), (1, true));

    let mut reader = FeedReader::new(None);
    reader.feed(b"<rss><channel><item><title>a</title></item><item><description>");
    for _ in 0..9 {
        reader.feed(&vec![b'x'; 1024 * 1024]);
    }
    reader.feed(b"</description><title>b</title></item>");
    let feed = reader.finish(None);
    assert!(feed.cut.is_some());
    assert_eq!(feed.entries[0].title.as_deref(), Some("a"));
}

#[test]
fn bases_and_relative_links_are_limited() {
    let base = format!("http://a.example/{}/", "x".repeat(1900));
    let tags = "<a xml:base='x'/>".repeat(20_000);
    let feed = read(&format!("<rss xml:base='{base}'><item><guid>1</guid></item>{tags}<item/>"));
    assert_eq!((feed.entries.len(), feed.cut.is_some()), (1, true));
    // A base that is too long is ignored.
    let long = format!("http://b.example/{}/", "x".repeat(2000));
    let feed = read(&format!("<rss xml:base='{long}'><item><link>1</link></item></rss>"));
    assert_eq!(feed.entries[0].link.as_deref(), Some("http://a.example/feeds/1"));
    // The resolved length of short links counts.
    let items = "<item><link>1</link></item>".repeat(FEED_ENTRIES_MAX);
    let feed = read(&format!("<rss xml:base='{base}'><channel>{items}</channel></rss>"));
    let bytes: usize = feed.entries.iter().map(|entry| entry.link.as_ref().unwrap().len()).sum();
    assert!(bytes <= FEED_TEXTS_BYTES_MAX && feed.cut.is_some(), "{bytes}");
    assert!(feed.entries.iter().all(|entry| entry.link.as_ref().unwrap().starts_with("http://")));
}

#[test]
fn invalid_parts_of_a_json_feed_are_skipped() {
    let head = r#"{"version": "https://jsonfeed.org/version/1.1", "items": ["#;
    for (rest, ids, is_cut) in [
        (r#"{"id": "1"}, null, {"id": "2"}]}"#, vec!["1", "2"], true),
        (r#"7, "x", [{}], true, 1.5, -1, {"id": "2"}]}"#, vec!["2"], true),
        (r#"{"id": "1", "id": "2", "tags": [{"a": null}]}]}"#, vec!["2"], false),
        (r#"{"id": "1"}, {"id": "2"}, {"id": "3", "content_te"#, vec!["1", "2"], true),
        (r#"{"id": "1"}, {"id": ]}"#, vec!["1"], true),
        (r#"{"id": "1"}], "items": null, "hubs": 7}"#, vec!["1"], false),
    ] {
        let feed = read(&format!("{head}{rest}"));
        let found: Vec<_> = feed.entries.iter().map(|entry| entry.id.as_str()).collect();
        assert_eq!((found, feed.cut.is_some()), (ids, is_cut), "{rest}");
    }
    let item = format!(r#"{{"id": "1", "content_html": "{}"}},"#, "x".repeat(1 << 20));
    let feed = read(&format!("{head}{}", item.repeat(5)));
    assert_eq!((feed.entries.len(), feed.cut.is_some()), (3, true));
}

#[test]
fn json_feeds_with_odd_members_are_read() {
    let text = r#"﻿ {"version": "https://jsonfeed.org/version/1", "title": null, "hubs": null, "items": [
        {"id": 7, "external_url": "http://b.example/7", "title": ["x"]},
        {"url": "http://b.example/8", "title": " a\n b "},
        {"summary": "s"}, {"id": "http://b.example/9", "attachments": [{"url": "/9.mp3"}, {"url": "/b"}]},
        {"id": "http://b.example/10"}]}"#;
    let found = entries(text);
    assert_eq!(found[0], ["7", "http://b.example/7", "-"]);
    assert_eq!(found[1], ["http://b.example/8", "http://b.example/8", "a b"]);
    assert!(found[2][0].starts_with("hash:"));
    let links: Vec<_> = found[3..].iter().map(|item| item[1].as_str()).collect();
    assert_eq!(links, ["http://a.example/9.mp3", "http://b.example/10"]);
}

proptest! {
    #[test]
    fn any_split_gives_the_same_feed(cuts in prop::collection::vec(0_usize..400, 0..5)) {
        let text = "\u{feff}<?xml version='1.0'?><rss><channel><item><title>é&amp;</title><link>/1</link></item>\
                    <item><guid>2</guid></item></channel></rss>".as_bytes();
        let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
        cuts.sort_unstable();
        let (mut reader, mut from) = (FeedReader::new(None), 0);
        for cut in cuts.into_iter().chain([text.len()]) {
            reader.feed(&text[from..cut]);
            from = cut;
        }
        prop_assert_eq!(reader.finish(Some(BASE)), parse(text, None, Some(BASE)));
    }

    #[test]
    fn nothing_panics(pieces in prop::collection::vec(prop::sample::select(vec![
        "<rss>", "<feed>", "<rdf:RDF>", "<channel>", "<item>", "</item>", "<entry xml:base='x'>", "</entry>", "<title>", "</title>",
        "<link>", "</link>", "<link href='y'/>", "<guid>", "</guid>", "<ttl>", "99999999999999999999", "</ttl>", "<skipHours>", "<hour>",
        "</hour>", "é", "<a xmlns='b' xmlns:c='d'>", "</a>", "</rss>", "{", "<xml:base", "'", ">",
    ]), 0..60)) {
        let text = pieces.concat();
        let feed = read(&text);
        prop_assert!(feed.kind.is_some() || feed.entries.is_empty());
    }
}

/// Found by the fuzz target `feed`: a text over the limit differed when it arrived in other chunks.
#[test]
fn a_truncated_text_has_no_gaps() {
    for before in ["", "x", "xx"] {
        let date = format!("{before}{}r", "\u{203a}".repeat(2000));
        let document = format!("<rss><item><title>a</title><pubDate>{date}</pubDate></item></rss>");
        let whole = parse(document.as_bytes(), None, None);
        assert_eq!(whole.entries.len(), 1);
        let mut reader = FeedReader::new(None);
        document.as_bytes().chunks(1).for_each(|bytes| reader.feed(bytes));
        assert_eq!(format!("{:?}", reader.finish(None)), format!("{whole:?}"));
    }
}

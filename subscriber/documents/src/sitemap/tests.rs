use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;

use super::*;

fn read_chunks(chunks: &[&[u8]], base: Option<&str>) -> (SitemapSummary, Vec<String>) {
    let mut found = Vec::new();
    let mut each = |entry: SitemapEntry<'_>| {
        let lastmod = entry.lastmod.map_or(String::new(), |lastmod| format!(" {lastmod}"));
        found.push(format!("{}{lastmod}", entry.url));
    };
    let mut reader = SitemapReader::new(None, base);
    for chunk in chunks {
        reader.feed(chunk, &mut each);
    }
    let summary = reader.finish(&mut each);
    (summary, found)
}

fn read(bytes: &[u8]) -> (Option<SitemapKind>, Vec<String>) {
    let (summary, found) = read_chunks(&[bytes], Some("http://a.example/sitemap.xml"));
    assert_eq!(summary.urls, found.len());
    (summary.kind, found)
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

const URLSET: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<urlset xmlns=\"http://www.sitemaps.org/schemas/sitemap/0.9\" \
    xmlns:image=\"http://www.google.com/schemas/sitemap-image/1.1\">\n<url>\n <loc> http://a.example/1?a=1&amp;b=2 </loc>\n \
    <image:image><image:loc>http://a.example/i.png</image:loc></image:image>\n <lastmod>2026-01-02</lastmod>\n</url>\n\
    <url><loc><![CDATA[http://a.example/2]]></loc></url></urlset>";

#[test]
fn each_kind_is_read() {
    let pages = ["http://a.example/1?a=1&b=2 2026-01-02", "http://a.example/2"].map(str::to_owned);
    assert_eq!(read(URLSET.as_bytes()), (Some(SitemapKind::Urlset), pages.to_vec()));
    assert_eq!(read(&gzip(URLSET.as_bytes())), (Some(SitemapKind::Urlset), pages.to_vec()));
    let table = [
        (
            "<sitemapindex><sitemap><loc>http://a.example/s.xml.gz</loc><lastmod>2026</lastmod></sitemap></sitemapindex>",
            SitemapKind::Index,
            vec!["http://a.example/s.xml.gz 2026"],
        ),
        (
            "\u{feff}http://a.example/1\r\nno url\n\nHTTPS://a.example/2 ",
            SitemapKind::Text,
            vec!["http://a.example/1", "HTTPS://a.example/2"],
        ),
        (
            "<rss><channel><link>/</link><item><link>/1</link><pubDate>d</pubDate></item><item><guid>x</guid></item></channel></rss>",
            SitemapKind::Rss,
            vec!["http://a.example/1 d"],
        ),
        (
            "<feed><entry><link href='/1'/></entry></feed>",
            SitemapKind::Atom,
            vec!["http://a.example/1"],
        ),
    ];
    for (text, kind, urls) in table {
        assert_eq!(
            read(text.as_bytes()),
            (Some(kind), urls.iter().map(|url| (*url).to_owned()).collect()),
            "{text}"
        );
    }
}

#[test]
fn malformed_sitemaps_are_read_as_they_were_meant() {
    let table: &[(&str, &[&str])] = &[
        (
            "\n\n<?xml version='1.0'?><urlset><url><loc>http://a.example/1</loc></url></urlset>",
            &["http://a.example/1"],
        ),
        ("<URLSET><Url><LOC>http://a.example/1</LOC></Url></URLSET>", &["http://a.example/1"]),
        (
            "<s:urlset xmlns:s='x'><s:url><s:loc>http://a.example/1</s:loc></s:url></s:urlset>",
            &["http://a.example/1"],
        ),
        (
            "<urlset><url><loc>http://a.example/1<url><loc>/2</loc></urlset>",
            &["http://a.example/1", "http://a.example/2"],
        ),
        ("<urlset><url><loc>http://a.example/1</loc>", &["http://a.example/1"]),
        ("<urlset><url><i:url/><loc>http://a.example/1</loc></urlset>", &["http://a.example/1"]),
        // It is unknown how the URL continues.
        ("<urlset><url><loc>http://a.example/1", &[]),
        (
            "<urlset><url><loc></loc></url><url/><url><loc>mailto:a@b.example</loc></url></urlset>",
            &[],
        ),
        (
            "<urlset><url><loc>http://a.example/\n 1\n</loc></url></urlset>",
            &["http://a.example/%201"],
        ),
        (
            "<urlset><url><loc>http://a.example/1?a&b</loc></url></urlset>",
            &["http://a.example/1?a&b"],
        ),
    ];
    for (text, urls) in table {
        assert_eq!(
            read(text.as_bytes()),
            (Some(SitemapKind::Urlset), urls.iter().map(|url| (*url).to_owned()).collect()),
            "{text}"
        );
    }
}

#[test]
fn other_documents_are_not_sitemaps() {
    for bytes in [
        &b""[..],
        b" ",
        b"<",
        b"<html><body>http://a.example/</body></html>",
        b"no list\nof URLs",
        b"http",
        b"\x00http://a.example/",
        b"\x1f\x8b",
        b"\x1f\x8bx",
        b"{}",
    ] {
        assert_eq!(read(bytes), (None, Vec::new()), "{:?}", bytes.escape_ascii());
    }
}

#[test]
fn a_sitemap_in_utf_16_is_read() {
    let bytes: Vec<u8> = "\u{feff}<urlset><url><loc>http://a.example/é</loc></url></urlset>"
        .encode_utf16()
        .flat_map(u16::to_le_bytes)
        .collect();
    assert_eq!(read(&bytes), (Some(SitemapKind::Urlset), vec!["http://a.example/é".to_owned()]));
}

#[test]
fn the_content_of_a_sitemap_is_limited() {
    let many = format!(
        "<urlset>{}</urlset>",
        "<url><loc>http://a.example/1</loc></url>".repeat(SITEMAP_URLS_MAX + 1)
    );
    let (summary, found) = read_chunks(&[many.as_bytes()], None);
    assert_eq!((found.len(), summary.cut.is_some()), (SITEMAP_URLS_MAX, true));

    // 60 MB in 60 kB.
    let bomb = gzip(
        &[b"<urlset><url><loc>http://a.example/1</loc></url>", &vec![b' '; 60_000_000][..]]
            .concat(),
    );
    let (summary, found) = read_chunks(&[&bomb], None);
    assert_eq!(
        (found.len(), summary.cut),
        (1, Some("longer than a sitemap may be; the rest was left out"))
    );

    let long = format!("{}\nhttp://a.example/2\n", "http://a.example/".repeat(10_000));
    let (summary, found) = read_chunks(&[long.as_bytes()], None);
    assert_eq!(
        (summary.kind, found),
        (Some(SitemapKind::Text), vec!["http://a.example/2".to_owned()])
    );

    let long = format!(
        "<urlset><url><loc>http://a.example/{}</loc></url><url><loc>http://a.example/2</loc></url>",
        "x".repeat(100_000)
    );
    let (_, found) = read_chunks(&[long.as_bytes()], None);
    assert_eq!(found, ["http://a.example/2"]);
}

#[test]
fn damaged_gzip_is_read_up_to_the_damage() {
    let mut bytes = gzip(URLSET.repeat(100).as_bytes());
    let at = bytes.len() * 3 / 4;
    bytes[at..].fill(0xff);
    let (summary, found) = read_chunks(&[&bytes], None);
    assert_eq!(summary.kind, Some(SitemapKind::Urlset));
    assert!(found.len() >= 2 && summary.cut.is_some(), "{summary:?}");
    let bytes = gzip(URLSET.as_bytes());
    let (summary, found) = read_chunks(&[&bytes[..bytes.len() - 8]], None);
    assert_eq!((summary.kind, found.len()), (Some(SitemapKind::Urlset), 2));
}

#[test]
fn relative_urls_are_limited() {
    let base = format!("http://a.example/{}", "x".repeat(1800));
    for entry in ["//u@h", "p"] {
        let text = format!("<urlset>{}", format!("<url><loc>{entry}</loc></url>").repeat(20_000));
        let (summary, found) = read_chunks(&[text.as_bytes()], Some(&base));
        assert!(summary.cut.is_some() && found.len() < 10_000, "{summary:?}");
    }
}

fn any_sitemap() -> impl Strategy<Value = Vec<u8>> {
    let feed = "<rss><channel><item><link>http://a.example/1</link></item></channel></rss>";
    let list = "\u{feff}http://a.example/1\nhttp://a.example/2";
    (prop::sample::select(vec![URLSET, feed, list, "x"]), any::<bool>()).prop_map(
        |(text, zipped)| {
            if zipped { gzip(text.as_bytes()) } else { text.as_bytes().to_vec() }
        },
    )
}

proptest! {
    #[test]
    fn any_split_gives_the_same_sitemap(bytes in any_sitemap(), cuts in prop::collection::vec(0_usize..600, 0..6)) {
        let whole = read_chunks(&[&bytes], None);
        let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
        cuts.sort_unstable();
        let (mut chunks, mut from) = (Vec::new(), 0);
        for cut in cuts.into_iter().chain([bytes.len()]) {
            chunks.push(&bytes[from..cut]);
            from = cut;
        }
        prop_assert_eq!(read_chunks(&chunks, None), whole);
    }

    #[test]
    fn nothing_panics(mut bytes in any_sitemap(), changes in prop::collection::vec((any::<usize>(), any::<u8>()), 0..20)) {
        for (at, byte) in changes {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        read_chunks(&[&bytes], None);
    }
}

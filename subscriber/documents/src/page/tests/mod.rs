mod limits;
mod oracle;
mod signs;

use proptest::prelude::*;

use super::*;
use crate::page::content_builder::{FEEDS_MAX, HEADER_LINKS_MAX, LINKS_ABSOLUTE_BYTES_MAX};
use crate::page::foreign::FOREIGN_DEPTH_MAX;
use crate::page::link_set::{LINKS_BYTES_MAX, LINKS_MAX};
use crate::page::{TAG_BYTES_MAX, TITLE_BYTES_MAX};

const PAGE: &str = "http://site.example/dir/page?q";
const UTF_8_PAGE: &[(&str, &str)] = &[("Content-Type", "text/html; charset=utf-8")];

fn read_as(images: bool, headers: &[(&str, &str)], pieces: &[&[u8]]) -> PageContent {
    let url = CanonicalUrl::parse(PAGE).unwrap();
    let headers = headers.iter().map(|(name, value)| (*name, value.as_bytes()));
    let options = Arc::new(PageOptions { images, ..PageOptions::default() });
    let mut reader = PageReader::new(&url, headers, &options);
    for piece in pieces {
        reader.feed(piece);
    }
    reader.finish(&url)
}

fn read(headers: &[(&str, &str)], pieces: &[&[u8]]) -> PageContent {
    read_as(false, headers, pieces)
}

fn urls(content: PageContent) -> Vec<String> {
    content.links.into_iter().map(|link| link.url.into_string()).collect()
}

fn links(html: impl AsRef<[u8]>) -> Vec<String> {
    let content = read(UTF_8_PAGE, &[html.as_ref()]);
    assert_eq!(content.cut, None);
    urls(content)
}

/// Paths of links to the site.
fn paths(html: &str) -> Vec<String> {
    let prefix = "http://site.example/dir/";
    links(html)
        .into_iter()
        .map(|link| link.strip_prefix(prefix).unwrap_or(&link).to_owned())
        .collect()
}

fn title(html: &str) -> Option<String> {
    read(UTF_8_PAGE, &[html.as_bytes()]).title
}

#[test]
fn links_are_found_as_in_wget() {
    let html = r##"<!DOCTYPE html><html><head>
        <link rel="stylesheet" href="style.css"><link rel=icon href=/icon.png>
        <link rel="next" title="Next" href="next.html"><link REL="Search" HREF="search.html">
        <link rel=search type="application/opensearchdescription+xml" href="os.xml">
        <link rel="alternate stylesheet" href="alt.css"><link rel=alternate type=application/rss+xml href=feed>
        <link rel=canonical href="http://site.example/canonical">
        <meta http-equiv=refresh content="3; URL='refreshed'"><script src=x.js>"<a href=in-script>"</script>
        </head><body><a href="a">a</a> <A HREF='/b'>b</a> <a href=//other.example/c>c</a>
        <!-- <a href=commented> --> <area href=area> <iframe src=frame></iframe> <img src=image.png>
        <a name=none>no</a> <textarea><a href=in-textarea></textarea>
        <a href="mailto:x@y">m</a><a href="javascript:x()">j</a><a href="ftp://x/y">f</a><a href="http://">b</a>
        <a href="a#part">again</a><a href="#top">top</a><a href="">self</a><a href="?other">query</a></body></html>"##;
    let expected = [
        "http://site.example/dir/next.html",
        "http://site.example/dir/search.html",
        "http://site.example/canonical",
        "http://site.example/dir/refreshed",
        "http://site.example/dir/a",
        "http://site.example/b",
        "http://other.example/c",
        "http://site.example/dir/area",
        "http://site.example/dir/frame",
        "http://site.example/dir/page?other",
    ];
    assert_eq!(links(html), expected);
}

#[test]
fn attributes_are_decoded_as_in_browsers() {
    for (href, expected) in [
        ("/x?a=1&amp;b=2", "/x?a=1&b=2"),
        ("/x?a=1&copy=2", "/x?a=1&copy=2"),
        ("/x?a=1&#38;b=2", "/x?a=1&b=2"),
        ("/&#x63;af&eacute;", "/caf%C3%A9"),
        ("  /trimmed  ", "/trimmed"),
        ("/a b", "/a%20b"),
        ("/li\nne", "/line"),
        ("/x&num;part", "/x"),
        ("\\back", "/back"),
        ("/ü", "/%C3%BC"),
    ] {
        let html = format!("<a href=\"{href}\">x</a>");
        assert_eq!(links(&html), [format!("http://site.example{expected}")], "{href:?}");
    }
}

#[test]
fn links_for_readers_without_scripts_or_frames_are_found() {
    let html = "<a href=a><noscript><p><A HREF='/b?x&amp;y'>b</A><!-- <a href=no> --></noscript><a href=c>\
        <frameset><frame src=f><noframes><a href=d></noframes></frameset><title>t</title>";
    let expected = ["dir/a", "b?x&y", "dir/c", "dir/f", "dir/d"];
    assert_eq!(links(html), expected.map(|path| format!("http://site.example/{path}")));
    assert_eq!(title(html).as_deref(), Some("t"));
}

#[test]
fn the_first_base_applies_to_all_links() {
    let html = "<a href=early><base target=x><base href='/root/'><base href='/second/'><a href=late><a href='?q'>";
    assert_eq!(
        links(html),
        [
            "http://site.example/root/early",
            "http://site.example/root/late",
            "http://site.example/root/?q"
        ]
    );
    assert_eq!(links("<base href='javascript:x'><a href=a>"), ["http://site.example/dir/a"]);
}

#[test]
fn a_link_is_nofollow_if_all_its_occurrences_are() {
    let html = "<a rel='noopener NoFollow' href=a><a rel=nofollow href=b><a href=/dir/b><a rel=ugc href=c>";
    let content = read(&[], &[html.as_bytes()]);
    assert_eq!(
        content.links.iter().map(|link| link.nofollow).collect::<Vec<_>>(),
        [true, false, false]
    );
    assert!(!content.nofollow);
}

#[test]
fn directives_for_crawlers_are_read() {
    for (html, headers, expected) in [
        ("<meta name=ROBOTS content='noindex,nofollow'>", &[][..], (true, true)),
        ("<meta name=' Robots ' content='Noindex nofollow'>", &[], (true, true)),
        ("<meta content=none name=robots>", &[], (true, true)),
        ("<meta name=tidings content=nofollow>", &[], (false, true)),
        ("<meta name=otherbot content=none>", &[], (false, false)),
        ("<meta name=robots content=index><meta name=robots content=noindex>", &[], (true, false)),
        ("<!-- <meta name=robots content=none> -->", &[], (false, false)),
        ("", &[("X-Robots-Tag", "noindex")], (true, false)),
        (
            "",
            &[("x-robots-tag", "otherbot: noindex"), ("X-ROBOTS-TAG", "tidings: nofollow")],
            (false, true),
        ),
        ("<meta name=robots content=nofollow>", &[("x-robots-tag", "noindex")], (true, true)),
    ] {
        let html = format!("<a href=a>{html}");
        let content = read(headers, &[html.as_bytes()]);
        assert_eq!((content.noindex, content.nofollow), expected, "{html} {headers:?}");
        assert_eq!(content.links[0].nofollow, content.nofollow, "{html}");
    }
    let content = read(&[("x-robots-tag", "unavailable_after: 2010-06-25")], &[]);
    assert_eq!(content.unavailable_after, Some(1_277_424_000));
    let at = [1_277_423_999, 1_277_424_000].map(|moment| content.is_noindex_at(moment));
    assert_eq!(at, [false, true]);
    assert!(read(&[("x-robots-tag", "noindex")], &[]).is_noindex_at(0));
}

#[test]
fn canonical_url_and_feeds_are_distinguished_from_links() {
    let html = "<link rel=canonical href=a#x><link rel=canonical href=b><base href=/root/>\
        <link rel=alternate type=application/rss+xml href=feed.xml><link rel='Alternate home' type='application/atom+xml;x' href=atom>\
        <link rel=alternate type=application/json href=no><link type=application/feed+json rel=alternate href=json>\
        <link rel=alternate hreflang=de href=de><link rel=feed type=application/rss+xml href=no>";
    let content = read(UTF_8_PAGE, &[html.as_bytes()]);
    assert_eq!(content.canonical.as_deref(), Some("http://site.example/root/a"));
    let root = |paths: &[&str]| {
        paths.iter().map(|path| format!("http://site.example/root/{path}")).collect::<Vec<_>>()
    };
    let feeds: Vec<_> = content.feeds.iter().map(|feed| &**feed).collect();
    assert_eq!(feeds, root(&["feed.xml", "atom", "json"]));
    assert_eq!(urls(content), root(&["a", "b", "de"]));

    let many = (0..FEEDS_MAX + 5)
        .map(|n| format!("<link rel=alternate type=application/rss+xml href={n}>"))
        .collect::<Vec<_>>()
        .concat();
    assert_eq!(read(&[], &[many.as_bytes()]).feeds.len(), FEEDS_MAX);
}

#[test]
fn header_links_come_first_and_ignore_the_base() {
    let headers = &[
        (
            "Link",
            "<../next>; rel=\"next prefetch\", <style.css>; rel=stylesheet, <c>; rel=canonical",
        ),
        ("content-type", "text/html"),
        (
            "LINK",
            "</x>; rel=preload, </feed>; rel=alternate; type=application/rss+xml, <http://[>; rel=up",
        ),
        ("link", "<elsewhere>; rel=next; anchor=\"/other\""),
    ];
    let html = "<base href=/root/><link rel=canonical href=late><a href=a><a href=/next>";
    let content = read(headers, &[html.as_bytes()]);
    assert_eq!(content.canonical.as_deref(), Some("http://site.example/dir/c"));
    assert_eq!(content.feeds, ["http://site.example/feed".into()]);
    let expected = ["next", "dir/c", "root/late", "root/a"];
    assert_eq!(urls(content), expected.map(|path| format!("http://site.example/{path}")));
}

#[test]
fn images_are_found_if_requested() {
    let html = "<img src=a srcset='b, c 2x,d 100w,, data:image/png;base64,xx e\t(1,2)x ,f'><image src=g>\
        <picture><source srcset='h 1x' media=x></picture><video><source src=no></video><input src=no>";
    assert_eq!(paths(html), Vec::<String>::new());
    let content = read_as(true, UTF_8_PAGE, &[html.as_bytes()]);
    let names: Vec<_> =
        content.links.iter().map(|it| &it.url["http://site.example/dir/".len()..]).collect();
    assert_eq!(names, ["a", "b", "c", "d", "f", "g", "h"]);
}

#[test]
fn refresh_targets_are_links() {
    for (content, expected) in [
        ("3; URL='x y'", Some("x%20y")),
        ("0;url=x", Some("x")),
        ("0,url = \"x\"y", Some("x")),
        ("5 x", Some("x")),
        (".5;x", Some("x")),
        ("1; urlx", Some("urlx")),
        ("1; URL='x", Some("x")),
        ("5", None),
        ("5;", None),
        ("5; url=", None),
        ("x; url=y", None),
        ("url=y", None),
        ("5x; url=y", None),
        ("", None),
    ] {
        let html =
            format!("<meta http-equiv=Refresh content='{}'>", content.replace('\'', "&#39;"));
        assert_eq!(paths(&html).first().map(String::as_str), expected, "{content}");
        let url = CanonicalUrl::parse("http://site.example/dir/page").unwrap();
        let header = [("Refresh", content.as_bytes())];
        let mut reader = PageReader::new(&url, header, &Arc::default());
        reader.feed(b"<base href='http://other.example/'>");
        let links = reader.finish(&url).links;
        let expected = expected.map(|path| format!("http://site.example/dir/{path}"));
        assert_eq!(links.first().map(|link| &*link.url), expected.as_deref(), "{content}");
    }
}

#[test]
fn the_title_of_the_page_is_found() {
    assert_eq!(title("<title> A &amp; B\n\t&lt;c&gt; </title>").as_deref(), Some("A & B <c>"));
    assert_eq!(title("<svg><title>pic</title></svg><title>page</title>").as_deref(), Some("page"));
    assert_eq!(title("<title>one</title><title>two</title>").as_deref(), Some("one"));
    assert_eq!(title("<title>no <b>tags</b> here</title>").as_deref(), Some("no <b>tags</b> here"));
    assert_eq!(title("<title>  </title>"), None);
    assert_eq!(title("<p>none"), None);
    let long = title(&format!("<title>{}</title>", "é".repeat(TITLE_BYTES_MAX))).unwrap();
    assert_eq!(long.len(), TITLE_BYTES_MAX);
}

#[test]
fn declared_encodings_are_read() {
    let page = "<title>Привет</title><a href='/путь?я'>";
    let (koi8, ..) = encoding_rs::KOI8_R.encode(page);
    let mut declared = b"<meta charset=koi8-r>".to_vec();
    declared.extend(koi8.iter());
    let utf_16: Vec<u8> = "\u{feff}"
        .chars()
        .chain(page.chars())
        .flat_map(|c| {
            let mut units = [0; 2];
            c.encode_utf16(&mut units)
                .iter()
                .flat_map(|unit| unit.to_le_bytes())
                .collect::<Vec<u8>>()
        })
        .collect();
    for (header, bytes, charset, query) in [
        (Some("text/html; charset=koi8-r"), koi8.as_ref(), "KOI8-R", "%D1"),
        (Some("text/html"), declared.as_slice(), "KOI8-R", "%D1"),
        (Some("text/html; charset=koi8-r"), utf_16.as_slice(), "UTF-16LE", "%D1%8F"),
        (None, page.as_bytes(), "UTF-8", "%D1%8F"),
    ] {
        let header = header.map(|value| ("content-type", value));
        let content = read(header.as_slice(), &[bytes]);
        assert_eq!(content.title.as_deref(), Some("Привет"), "{header:?}");
        assert_eq!(content.charset, Some(charset));
        // Queries are written in the encoding of the page.
        let expected = format!("http://site.example/%D0%BF%D1%83%D1%82%D1%8C?{query}");
        assert_eq!(*content.links[0].url, *expected, "{header:?}");
    }
}

#[test]
fn queries_are_in_the_encoding_of_the_page() {
    for (charset, href, expected) in [
        ("windows-1252", "/é?x=é&y=a'b", "/%C3%A9?x=%E9&y=a%27b"),
        ("windows-1252", "/?Ж#Ж", "/?%26%231046%3B"),
        ("windows-1252", "/?&eacute;", "/?%E9"),
        ("shift_jis", "/?q=日本", "/?q=%93%FA%96%7B"),
        ("utf-8", "/?é", "/?%C3%A9"),
        ("utf-16le", "/?é", "/?%C3%A9"),
    ] {
        let html = format!("<a href=\"{href}\">");
        let encoding = Encoding::for_label(charset.as_bytes()).unwrap();
        let bytes = match charset {
            "utf-16le" => html.encode_utf16().flat_map(u16::to_le_bytes).collect(),
            _ => encoding.encode(&html).0.into_owned(),
        };
        // A character that the encoding lacks is written as an entity, which means the same.
        let header = format!("text/html; charset={charset}");
        let content = read(&[("content-type", &header)], &[&bytes]);
        assert_eq!(urls(content), [format!("http://site.example{expected}")], "{charset} {href}");
    }
}

#[test]
fn pages_without_a_declared_encoding_are_read() {
    let german =
        "<title>Größe</title>".chars().map(|c| u8::try_from(c).unwrap()).collect::<Vec<_>>();
    let long = [
        b"<title>ascii</title>".as_slice(),
        &[b' '; 3000],
        &german,
        &vec![b' '; 20_000],
        b"<a href='?\xfc'>",
    ]
    .concat();
    for (page, charset, title) in [
        (german.as_slice(), "windows-1252", "Größe"),
        (&long, "windows-1252", "ascii"),
        ("<title>Größe</title>".as_bytes(), "UTF-8", "Größe"),
        (b"<title>none</title>", "windows-1252", "none"),
    ] {
        let content = read(&[], &[page]);
        assert_eq!((content.charset, content.title.as_deref()), (Some(charset), Some(title)));
        for size in [1, 7, 1023, 4096] {
            assert_eq!(read(&[], &page.chunks(size).collect::<Vec<_>>()), content);
        }
    }
    assert_eq!(&*read(&[], &[&long]).links[0].url, "http://site.example/dir/page?%FC");

    // A late meta counts, too, before or after the text that needs it.
    let space = " ".repeat(2000);
    for html in [
        format!("{space}<meta charset=koi8-r><title>\u{1}</title>"),
        format!("{space}<title>\u{1}</title><meta charset=koi8-r>"),
    ] {
        let html: Vec<_> = html.bytes().map(|b| if b == 1 { 0xf0 } else { b }).collect();
        let content = read(&[], &[&html]);
        assert_eq!((content.charset, content.title.as_deref()), (Some("KOI8-R"), Some("П")));
    }
}

#[test]
fn raw_text_is_skipped_to_its_end() {
    for (html, expected) in [
        ("<script>'<a href=no>'</script ><a href=a>", "a"),
        ("<script><!-- <script> </script> <a href=no> --></script><a href=a>", "a"),
        ("<script><!-- </script><a href=a>--></script>", "a"),
        ("<script><!--> <script></script><a href=a>", "a"),
        ("<script><!-- <script </scripty></script></script><a href=a>", "a"),
        ("<script><!-- <scripty> </script><a href=a>", "a"),
        ("<script><!- <script></script><a href=a>", "a"),
        ("<script><!--<script>--></script><a href=a>", "a"),
        ("<style><a href=no></styl></STYLE/><a href=a>", "a"),
        ("<style><!--</style><a href=a>--></style>", "a"),
        ("<textarea></title><a href=no></textarea\n><a href=a>", "a"),
        ("<title></textarea><a href=no></title x='>'><a href=a>", "a"),
        (
            "<xmp><a href=no></xmp><noembed><a href=no></noembed><iframe><a href=no></iframe><a href=a>",
            "a",
        ),
        ("<a href=a><plaintext></plaintext><a href=no>", "a"),
        ("<a href=a><style></style<a href=no>", "a"),
        ("<!--><a href=a>", "a"),
        ("<!---><a href=a>", "a"),
        ("<!-- --!><a href=a>", "a"),
        ("<!-- --!-><a href=no> --><a href=a>", "a"),
        ("<!-- <!--><a href=a>", "a"),
        ("<!--!><a href=no>--><a href=a>", "a"),
        ("<!-><a href=a>", "a"),
        ("<! <a href=no><a href=a>", "a"),
        ("<?x <a href=no><a href=a>", "a"),
        ("</ <a href=no><a href=a>", "a"),
        ("</><a href=a>", "a"),
        ("<<a href=a>", "a"),
        ("< a href=no><a href=a>", "a"),
        ("<![CDATA[<a href=no>]]><a href=a>", "a"),
        ("<svg><![CDATA[<a href=no>]] ><a href=no>]]]><a href=a>", "a"),
        ("<svg><![CDATA[<a href=no>]]></svg><a href=a>", "a"),
        ("<svg><title><script><a href=no></script></title><style><a href=a></style>", "a"),
        (
            "<svg><foreignObject><style><a href=no></style></foreignObject><style><a href=a></style>",
            "a",
        ),
        ("<svg><g></g></svg><style><a href=no></style><a href=a>", "a"),
        ("<svg/><style><a href=no></style><a href=a>", "a"),
        ("<svg><p><style><a href=no></style><a href=a>", "a"),
        ("<svg><font><style><a href=a></style>", "a"),
        ("<svg><font size=1><style><a href=no></style><a href=a>", "a"),
        ("<div><svg></div><style><a href=no></style><a href=a>", "a"),
        ("<math><mi><style><a href=no></style></mi><style><a href=a></style>", "a"),
        ("<math><mi><mglyph><style><a href=a></style>", "a"),
        ("<math><annotation-xml><style><a href=a></style>", "a"),
        (
            "<math><annotation-xml encoding=Text/HTML><style><a href=no></style></annotation-xml><style><a href=a></style>",
            "a",
        ),
    ] {
        assert_eq!(paths(html), [expected], "{html}");
        let bytes: Vec<&[u8]> = html.as_bytes().chunks(1).collect();
        assert_eq!(read(UTF_8_PAGE, &bytes), read(UTF_8_PAGE, &[html.as_bytes()]), "{html}");
    }
}

#[test]
fn attributes_are_split_as_in_browsers() {
    for (tag, expected) in [
        ("<a/href=x>", Some("x")),
        ("<a href=x href=y>", Some("x")),
        ("<A HREF = x>", Some("x")),
        ("<a href=x/>", Some("x/")),
        ("<a href='x'rel=y>", Some("x")),
        ("<a title=\"'\" href='x'>", Some("x")),
        ("<a title='>' href=x>", Some("x")),
        ("<a title=it's href=x>", Some("x")),
        ("<a ='x' href=y>", Some("y")),
        ("<a =href=x>", None),
        ("<a href==x>", Some("=x")),
        ("<a href= >", None),
        ("<a href>", None),
        ("<a href\0=x>", None),
        ("<a xlink:href=x>", None),
        ("<svg><a xlink:href=x>", Some("x")),
        ("<svg><a XLINK:HREF=x href=y>", Some("y")),
        ("<a\0 href=x>", None),
        ("<a href=x\0>", Some("x%EF%BF%BD")),
        ("<a\x0chref=\n\t'x'>", Some("x")),
        ("<abbr href=x>", None),
        ("<a href=x", None),
        ("<a href='x'", None),
        ("<a href=x '", None),
    ] {
        assert_eq!(paths(tag).first().map(String::as_str), expected, "{tag}");
    }
}

#[test]
fn links_in_broken_html_are_found() {
    let html = "<a href=a<b <a href='b'><p <a href=\"c\"></a></p></b></i><table><a href=d><tr></x";
    assert!(links(html).contains(&"http://site.example/dir/d".to_owned()));
    assert_eq!(
        links("<select><a href=a></select><plaintext><a href=b>"),
        ["http://site.example/dir/a"]
    );
    assert_eq!(links("<a href='unclosed"), Vec::<String>::new());
}

#[test]
fn invalid_and_repeated_links_count() {
    let base = format!("<base href=\"/{}/\">", "x".repeat(8000));
    for link in ["//u@h/", "x/../"] {
        let html =
            (0..10_000).fold(base.clone(), |html, n| html + &format!("<a href='{link}?{n}'>"));
        let html = if link == "//u@h/" { html } else { html.replace('?', "//../..//") };
        assert!(read(&[], &[html.as_bytes()]).cut.is_some(), "{link}");
    }
    // A long query of the page costs only for links that are a query.
    let url = CanonicalUrl::parse("http://site.example/dir/page?").unwrap();
    let url = url.join(&format!("?{}", "q".repeat(8000))).unwrap();
    let mut reader = PageReader::new(&url, [], &Arc::default());
    let html = (0..10_000).map(|n| format!("<a href='x|{n}'>")).collect::<Vec<_>>().concat();
    reader.feed(html.as_bytes());
    assert!(reader.finish_may_block());
    let content = reader.finish(&url);
    assert_eq!((content.links.len(), content.cut), (10_000, None));
}

#[test]
fn content_types_of_pages() {
    for (kind, expected) in [
        ("text/html", true),
        ("Text/HTML ; charset=x", true),
        ("application/xhtml+xml", true),
        ("text/plain", false),
        ("", false),
    ] {
        assert_eq!(is_html(kind), expected, "{kind}");
    }
}

fn html_like() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just("<a href=".to_owned()),
        Just("<base href=/b/>".to_owned()),
        Just("<title>".to_owned()),
        Just("</title>".to_owned()),
        Just("<script>".to_owned()),
        Just("</script>".to_owned()),
        Just("<noscript>".to_owned()),
        Just("</noscript>".to_owned()),
        Just("<!--".to_owned()),
        Just("-->".to_owned()),
        Just("<meta charset=koi8-r>".to_owned()),
        Just("\u{feff}".to_owned()),
        Just(" ".repeat(1020)),
        Just("<svg>".to_owned()),
        Just("<![CDATA[".to_owned()),
        Just("<a title='".to_owned()),
        "[a-z&;#<>\"'=/ é]{0,12}",
    ];
    prop::collection::vec(piece, 0..20).prop_map(|pieces| pieces.concat().into_bytes())
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_a_panic(
        html in prop::collection::vec(any::<u8>(), 0..3000),
        content_type in "(text/html)?;? ?(charset=(utf-8|utf-16|gbk|iso-2022-jp|x))?",
        link in "[<>;,=\" a-z\\\\é]{0,30}",
        robots in "[:, a-z0-9é-]{0,30}",
    ) {
        let headers = [("content-type", &*content_type), ("link", &*link), ("x-robots-tag", &*robots)];
        read_as(true, &headers, &[&html]);
    }

    #[test]
    fn any_split_gives_the_same_content(
        html in html_like(),
        noise in prop::collection::vec(any::<u8>(), 0..8),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let html = [html, noise].concat();
        let whole = read(&[], &[&html]);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(html.len() + 1)).collect();
        cuts.extend([0, html.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&[u8]> = cuts.windows(2).map(|cut| &html[cut[0]..cut[1]]).collect();
        prop_assert_eq!(read(&[], &pieces), whole.clone());
        let bytes: Vec<&[u8]> = html.chunks(1).collect();
        prop_assert_eq!(read(&[], &bytes), whole);
    }
}

#[test]
fn hubs_and_self_url_are_read_from_the_head() {
    let found = |headers: &[(&str, &str)], page: &str| {
        let url = CanonicalUrl::parse("http://a.example/dir/page").unwrap();
        let headers = headers.iter().map(|(name, value)| (*name, value.as_bytes()));
        let mut reader = PageReader::new(&url, headers, &Arc::default());
        reader.feed(page.as_bytes());
        let content = reader.finish(&url);
        let hubs: Vec<_> = content.hubs.iter().map(ToString::to_string).collect();
        (hubs, content.self_url.map(String::from))
    };
    let both = |hubs: &[&str], own: Option<&str>| {
        (hubs.iter().map(ToString::to_string).collect::<Vec<_>>(), own.map(str::to_owned))
    };
    for (head, hubs, own) in [
        (
            "<link rel=hub href=/h><link rel=self href=own>",
            &["http://a.example/h"][..],
            Some("http://a.example/dir/own"),
        ),
        // As written, even for another host; the first one counts.
        (
            "<link rel=SELF href='http://B.example/%7e'><link rel=self href=x>",
            &[],
            Some("http://B.example/%7e"),
        ),
        (
            "<base href=http://c.example/d/><link rel='foo hub' href=h><link rel=hub href=../i>",
            &["http://c.example/d/h", "http://c.example/i"],
            None,
        ),
        (
            "<link rel=hub href=><!-- <link rel=hub href=/n> --><script>'<link rel=hub href=/n>'</script>",
            &["http://a.example/dir/page"],
            None,
        ),
        ("<link rel=hubs href=/h><a rel=hub href=/h>h</a><meta name=hub content=/h>", &[], None),
    ] {
        assert_eq!(found(&[], head), both(hubs, own), "{head}");
    }
    // The body may contain text of others.
    assert_eq!(found(&[], "<body><link rel=hub href=/h><link rel=self href=/s>"), both(&[], None));
    let link = "<h>; rel=\"hub\"; title=x, </s>; rel=self";
    let expected = both(&["http://a.example/dir/h"], Some("http://a.example/s"));
    assert_eq!(found(&[("Link", link)], "<base href=/other/><body>"), expected);
}

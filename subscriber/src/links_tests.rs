use proptest::prelude::*;

use super::*;

const PAGE: &str = "http://site.example/dir/page?q";

fn read(content_type: Option<&str>, pieces: &[&[u8]]) -> Content {
    let mut reader = PageReader::new(content_type);
    for piece in pieces {
        reader.feed(piece);
    }
    reader.finish(&CanonicalUrl::parse(PAGE).unwrap())
}

fn links(html: impl AsRef<[u8]>) -> Vec<String> {
    let content = read(Some("text/html; charset=utf-8"), &[html.as_ref()]);
    assert_eq!(content.cut, None);
    content.links.into_iter().map(|link| link.url.into_string()).collect()
}

fn title(html: &str) -> Option<String> {
    read(Some("text/html; charset=utf-8"), &[html.as_bytes()]).title
}

#[test]
fn links_are_found_where_wget_finds_them() {
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
fn attributes_are_decoded_as_browsers_do() {
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
        assert_eq!(links(html), [format!("http://site.example{expected}")], "{href:?}");
    }
}

#[test]
fn links_for_readers_without_scripts_or_frames_are_found() {
    let html = "<a href=a><noscript><p><A HREF='/b?x&amp;y'>b</A><!-- <a href=no> --></noscript><a href=c>\
        <frameset><frame src=f><noframes><a href=d></noframes></frameset><title>t</title>";
    let expected = ["dir/a", "dir/c", "dir/f", "b?x&y", "dir/d"];
    assert_eq!(links(html), expected.map(|path| format!("http://site.example/{path}")));
    assert_eq!(title(html).as_deref(), Some("t"));
    let huge = format!(
        "<noscript><a href=a>{}<a href=b></noscript><a href=c>",
        "é".repeat(WITHOUT_SCRIPTS_BYTES_MAX)
    );
    let content = read(None, &huge.as_bytes().chunks(16384).collect::<Vec<_>>());
    assert_eq!((content.links.len(), content.cut.is_some()), (2, true));
}

#[test]
fn the_first_base_counts_for_all_links() {
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
    let html = "<a rel='noopener NoFollow' href=a><a rel=nofollow href=b><a href=b><a href=c>";
    let content = read(None, &[html.as_bytes()]);
    assert_eq!(
        content.links.iter().map(|link| link.nofollow).collect::<Vec<_>>(),
        [true, false, false]
    );
    let content = read(None, &[b"<a href=a><meta name=ROBOTS content='noindex,nofollow'>"]);
    assert!(content.links[0].nofollow);
}

#[test]
fn the_title_is_the_pages_own() {
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
fn other_encodings_are_read_as_they_are_declared() {
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
    for (header, bytes) in [
        (Some("text/html; charset=koi8-r"), koi8.as_ref()),
        (Some("text/html"), declared.as_slice()),
        (Some("text/html; charset=koi8-r"), utf_16.as_slice()),
        (None, page.as_bytes()),
    ] {
        let content = read(header, &[bytes]);
        assert_eq!(content.title.as_deref(), Some("Привет"), "{header:?}");
        let expected = "http://site.example/%D0%BF%D1%83%D1%82%D1%8C?%D1%8F";
        assert_eq!(&*content.links[0].url, expected, "{header:?}");
    }
}

#[test]
fn broken_html_still_gives_its_links() {
    let html = "<a href=a<b <a href='b'><p <a href=\"c\"></a></p></b></i><table><a href=d><tr></x";
    assert!(links(html).contains(&"http://site.example/dir/d".to_owned()));
    assert_eq!(
        links("<select><a href=a></select><plaintext><a href=b>"),
        ["http://site.example/dir/a"]
    );
    assert_eq!(links("<a href='unclosed"), Vec::<String>::new());
}

#[test]
fn huge_attributes_do_not_cost_memory_or_the_rest_of_a_page() {
    let picture = format!("<img src=\"data:{}\"><a href=after>", "x".repeat(4 << 20));
    let content = read(None, &picture.as_bytes().chunks(16384).collect::<Vec<_>>());
    assert_eq!((content.cut, content.links.len()), (None, 1));

    let link = format!("<a href=before><a href=\"{}\"><a href=after>", "x".repeat(4 << 20));
    let content = read(None, &link.as_bytes().chunks(16384).collect::<Vec<_>>());
    assert!(content.cut.is_some());
    assert_eq!(&*content.links[0].url, "http://site.example/dir/before");
}

#[test]
fn the_number_of_links_is_bounded() {
    let html = (0..LINKS_MAX + 5).map(|n| format!("<a href={n}></a>")).collect::<Vec<_>>().concat();
    let content = read(None, &[html.as_bytes()]);
    assert_eq!((content.links.len(), content.cut.is_some()), (LINKS_MAX, true));
    let long = "x".repeat(8000);
    let html = (0..400).map(|n| format!("<a href={long}{n}>")).collect::<Vec<_>>().concat();
    let content = read(None, &[html.as_bytes()]);
    assert!(content.links.len() <= LINKS_BYTES_MAX / 8000 && content.cut.is_some());
}

#[test]
fn short_links_below_a_long_base_do_not_cost_memory() {
    let html = (0..10_000).map(|n| format!("<a href={n}>")).collect::<Vec<_>>().concat();
    let html = format!("<base href=\"/{}/\">{html}", "x".repeat(8000));
    let content = read(None, &[html.as_bytes()]);
    let bytes: usize = content.links.iter().map(|link| link.url.len()).sum();
    assert!(bytes <= LINKS_ABSOLUTE_BYTES_MAX && bytes > LINKS_ABSOLUTE_BYTES_MAX / 2, "{bytes}");
    assert!(content.cut.is_some());
}

#[test]
fn deep_nesting_is_bounded() {
    let html = "<div>".repeat(1 << 20);
    let content = read(None, &html.as_bytes().chunks(16384).collect::<Vec<_>>());
    assert!(content.links.is_empty());
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
        "[a-z&;#<>\"'=/ é]{0,12}",
    ];
    prop::collection::vec(piece, 0..20).prop_map(|pieces| pieces.concat().into_bytes())
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_a_panic(
        html in prop::collection::vec(any::<u8>(), 0..3000),
        header in prop::option::of("(text/html)?;? ?charset=(utf-8|utf-16|gbk|x)"),
    ) {
        read(header.as_deref(), &[&html]);
    }

    #[test]
    fn any_split_gives_the_same_content(
        html in html_like(),
        noise in prop::collection::vec(any::<u8>(), 0..8),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let html = [html, noise].concat();
        let whole = read(None, &[&html]);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(html.len() + 1)).collect();
        cuts.extend([0, html.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&[u8]> = cuts.windows(2).map(|cut| &html[cut[0]..cut[1]]).collect();
        prop_assert_eq!(read(None, &pieces), whole.clone());
        let bytes: Vec<&[u8]> = html.chunks(1).collect();
        prop_assert_eq!(read(None, &bytes), whole);
    }
}

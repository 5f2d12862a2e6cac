//! Signs that a page needs its scripts.

use super::*;

fn signs_of(pieces: &[&[u8]]) -> PageSigns {
    let url = CanonicalUrl::parse(PAGE).unwrap();
    let headers = [("content-type", b"text/html; charset=utf-8".as_slice())];
    let options = Arc::new(PageOptions { signs: true, ..PageOptions::default() });
    let mut reader = PageReader::new(&url, headers, &options);
    for piece in pieces {
        reader.feed(piece);
    }
    reader.finish(&url).signs.unwrap()
}

fn signs(html: &str) -> PageSigns {
    signs_of(&[html.as_bytes()])
}

#[test]
fn signs_are_counted_only_if_wanted() {
    assert_eq!(read(UTF_8_PAGE, &[b"<div id=app></div>"]).signs, None);
}

#[test]
fn visible_characters_are_counted() {
    for (html, chars) in [
        ("", 0),
        (" some \n words\t", 9),
        ("<title>not this</title><style>p {}</style><script>1</script><p>a<b>b</b> c", 3),
        ("<!-- not this --><textarea>nor this</textarea>", 0),
        ("Gr\u{fc}\u{df}e, \u{43f}\u{440}\u{438}\u{432}\u{435}\u{442}", 12),
        ("\u{4e16}\u{754c} \u{d55c}", 9),
        ("a&nbsp;b &amp;&#x41;&unclosed <b>text</b> AT&T", 13),
        ("&amp<i>and</i>", 4),
        (
            "<noscript>not <p>this</p></noscript>but <svg><title>not</title><text>x</text></svg>this",
            7,
        ),
        ("<svg/>a<template>not<b>this</b></template>b", 2),
        ("<div><template shadowrootmode=open>a shadow</template></div>", 7),
        ("a<noscript>not this", 1),
    ] {
        assert_eq!(signs(html).text_chars, chars, "{html}");
    }
}

#[test]
fn links_lead_to_pages_or_to_views_of_a_script() {
    let html = "<a href=/a>a</a> <a href='b#part'>b</a> <area href=c> <a href=#part>here</a> <a>no</a> \
         <a href=' '>empty</a> <a href=mailto:a@b>mail</a> <a href=javascript:go()>go</a> \
         <a href=#/d>d</a> <a href=/#!e>e</a> <noscript><a href=/no>no</a></noscript>";
    let PageSigns { links, script_links, .. } = signs(html);
    assert_eq!((links, script_links), (5, 2));
}

#[test]
fn parts_of_no_size_and_hidden_fields_do_not_count() {
    let html = "<img src=a><img src=pixel width=1 height=1><img src=b width=100>\
        <input name=a><input type=hidden name=b><select></select><textarea></textarea>\
        <iframe src=f></iframe><iframe src=g height=0></iframe><video></video>\
        <noscript><img src=pixel></noscript><template><input></template>";
    assert_eq!(signs(html).parts, 7);
}

#[test]
fn scripts_are_counted_without_data() {
    let html = "<script src=a.js></script><script type=module src=b.js></script>\
        <script type='text/javascript'>123</script><script>4</script>\
        <script type='application/json'>{}</script><script type=x-template><p></script>\
        <script src=c.json type=application/ld+json></script><style>no</style>";
    let PageSigns { script_files, script_bytes, .. } = signs(html);
    assert_eq!((script_files, script_bytes), (2, "123</script>4</script>".len()));
}

#[test]
fn an_application_without_content_is_recognized() {
    for html in [
        "<div id=root></div>",
        "<div id=\"app\" class=x>\n <div class=loader><div></div></div> <p>Loading</p>\n</div><p>text",
        "<app-root></app-root>",
        "<app-root>Loading &hellip;</app-root>",
        "<div id=root><noscript>You need to enable JavaScript for this application.</noscript></div>",
        "<header>Some text</header><div id=__next><!-- here --></div><footer><a href=/>a</a></footer>",
        "<div id=root>",
        "<div id=page></div><div id=main-app></div>",
        "<div id=app><svg><text>A longer text in the image of the loader</text></svg></div>",
    ] {
        assert!(signs(html).has_empty_root, "{html}");
    }
    for html in [
        "<div id=page></div><div id=ROOT></div><p id=root></p>",
        "<div id=root><h1>A heading</h1><p>and the first sentence of the text, which goes on</p></div>",
        "<div id=app><div></div><a href=/a>a</a></div>",
        "<div id=app><div></div><img src=a></div>",
        "<app-root><form><input></form></app-root>",
        "<noscript><div id=app></div></noscript>",
    ] {
        assert!(!signs(html).has_empty_root, "{html}");
    }
}

#[test]
fn a_noscript_that_names_javascript_asks_for_scripts() {
    let asks = |html: &str| signs(html).asks_for_scripts;
    assert!(asks("<noscript>You need to enable JavaScript to run this app.</noscript>"));
    assert!(asks("<noscript><strong>JAVASCRIPT</strong></noscript>"));
    assert!(asks("<noscript>jjavascriptjavascript</noscript>"));
    assert!(!asks("<noscript><img src=/javascript.gif></noscript><p>JavaScript"));
    assert!(!asks("<noscript>java</noscript><noscript>script</noscript>"));
    assert!(signs("<meta name=Fragment content=' ! '>").declares_scripts);
    assert!(!signs("<meta name=fragment content=?><meta content=!>").declares_scripts);
}

proptest! {
    #[test]
    fn the_signs_do_not_depend_on_pieces(
        tokens in proptest::collection::vec(proptest::sample::select(vec![
            "<div id=app>", "<div>", "</div>", "<app-root>", "</app-root>", "<noscript>",
            "</noscript>", "<svg>", "</svg>", "<script>", "<script src=a>", "</script>",
            "<template>", "</template>", "<a href=#!a>", "<a href=b>", "<img src=c width='1'>",
            "Java", "Script", "&am", "p;", " text ", "\u{4e16}", "<!-- ", " -->", "<", ">",
        ]), 0..40),
        size in 1_usize..9,
    ) {
        let html = tokens.concat();
        let pieces: Vec<_> = html.as_bytes().chunks(size).collect();
        prop_assert_eq!(signs_of(&pieces), signs(&html));
    }
}

use std::fmt::Write;

use encoding_rs::Encoding;
use proptest::prelude::*;
use tidings_protocol::CanonicalUrl;

use super::*;
use crate::markup::text::JOINED_BYTES_MAX;
use crate::page::CHARSET_PRESCAN_BYTES;
use crate::text::fold_whitespace;

fn tokens_of(chunks: &[&[u8]], content_type: Option<&str>) -> Vec<String> {
    let mut tokens: Vec<String> = Vec::new();
    let mut text = String::new();
    let mut each = |token: MarkupToken<'_>| {
        if let MarkupToken::Text(more) = &token {
            text.push_str(more);
            return;
        }
        if !text.is_empty() {
            tokens.push(std::mem::take(&mut text));
        }
        match token {
            MarkupToken::Open(tag) => {
                let attributes = tag.attributes().map(|(key, value)| format!(" {key}={value}"));
                tokens.push(format!("<{}{}>", tag.name, attributes.collect::<String>()));
            }
            MarkupToken::Close(name) => tokens.push(format!("</{name}>")),
            MarkupToken::Text(_) => {}
        }
    };
    let mut markup = MarkupReader::new(content_type);
    for chunk in chunks {
        markup.feed(chunk, &mut each);
    }
    markup.finish(&mut each);
    tokens.extend(Some(text).filter(|text| !text.is_empty()));
    tokens
}

fn tokens(text: &str) -> Vec<String> {
    tokens_of(&[text.as_bytes()], None)
}

#[test]
fn well_formed_markup_is_read() {
    let text = " <?xml version='1.0'?><!DOCTYPE a [<!ENTITY b \"<c>\">]><!-- <d> --><a x='1' y=\"&lt;\">t&amp;u<b/><![CDATA[<&]]></a>";
    assert_eq!(tokens(text), [" ", "<a x=1 y=<>", "t&u", "<b>", "</b>", "<&", "</a>"]);
}

#[test]
fn malformed_markup_is_read_as_it_was_meant() {
    let table: &[(&str, &[&str])] = &[
        ("a & b &nbsp;&unknown;&#233; AT&T", &["a & b \u{a0}&unknown;é AT&T"]),
        ("?a=1&copy=2&amp;b", &["?a=1&copy=2&b"]),
        ("1 < 2", &["1 < 2"]),
        ("<a b=1 c>", &["<a b=1 c=>"]),
        ("<a b='1' b='2'>", &["<a b=1 b=2>"]),
        ("<a\n/>", &["<a>", "</a>"]),
        ("</a >x</>", &["</a>", "x", "</>"]),
        ("a<b", &["a"]),
        ("a<", &["a<"]),
        ("<![CDATA[x", &["x"]),
        ("<!-- x", &[]),
        ("<?style title='['?><a>", &["<a>"]),
        ("<![CDATA[a]]b]]]>c", &["a]]b]c"]),
    ];
    for (text, expected) in table {
        assert_eq!(tokens(text), *expected, "{text}");
    }
}

#[test]
fn no_entity_is_expanded() {
    let mut text = "<!DOCTYPE a [<!ENTITY l0 \"lol\">".to_owned();
    for i in 1..10 {
        let before = format!("&l{};", i - 1).repeat(10);
        write!(text, "<!ENTITY l{i} \"{before}\">").unwrap();
    }
    text += "]><a>&l9;</a>";
    assert_eq!(tokens(&text), ["<a>", "&l9;", "</a>"]);
}

#[test]
fn an_endless_tag_stops_the_reader_and_is_not_buffered() {
    let mut markup = MarkupReader::new(None);
    let mut names = Vec::new();
    let mut each = |token: MarkupToken<'_>| {
        if let MarkupToken::Open(tag) = token {
            names.push(tag.name.to_owned());
        }
    };
    markup.feed(b"<a><b x='", &mut each);
    for _ in 0..10 {
        markup.feed(&[b'<'; 16 * 1024], &mut each);
        assert!(markup.pending.len() <= MARKUP_TAG_BYTES_MAX + 2 * DECODED_CHUNK_BYTES);
    }
    assert!(markup.is_cut());
    assert_eq!(names, ["a"]);
}

#[test]
fn the_mark_comes_before_header_declaration_and_guess() {
    let wide = |text: &str, little: bool| -> Vec<u8> {
        let bytes = |unit: u16| if little { unit.to_le_bytes() } else { unit.to_be_bytes() };
        text.encode_utf16().flat_map(bytes).collect()
    };
    let declared = |label: &str, text: &[u8]| {
        [b"<?xml version='1.0' encoding='", label.as_bytes(), b"'?>", text].concat()
    };
    let koi8 = Some("application/xml; charset=koi8-r");
    let table: Vec<(Vec<u8>, Option<&str>, &str)> = vec![
        (b"\xef\xbb\xbf\xc3\xa9".to_vec(), koi8, "é"),
        ([b"\xff\xfe".to_vec(), wide("é", true)].concat(), None, "é"),
        (wide("<a>é", false), None, "<a>é"),
        (wide("<a>é", true), None, "<a>é"),
        (b"\xc1".to_vec(), koi8, "а"),
        (declared("utf-8", b"\xc1"), koi8, "а"),
        (declared("koi8-r", b"\xc1"), Some("text/xml"), "а"),
        // These two are declared for each other.
        (declared("iso-8859-1", b"\xe9 \xe9"), None, "é é"),
        (declared("iso-8859-1", b"\xc3\xa9"), None, "é"),
        (declared("utf-8", b"\xe9 \x93"), None, "é “"),
        (b"\xc3\xa9 \xe9".to_vec(), None, "é é"),
        // Readable as ASCII, so the declaration is wrong.
        (declared("utf-16", b"\xc3\xa9"), None, "é"),
        (declared("nonsense", b"\xc3\xa9"), None, "é"),
        (declared("gb2312", b"\xc4\xe3"), None, "你"),
    ];
    for (bytes, content_type, expected) in table {
        assert_eq!(
            tokens_of(&[&bytes], content_type).concat(),
            expected,
            "{:?}",
            bytes.escape_ascii()
        );
    }
}

/// Found by the fuzz target `feed`: items had other ids when their feed arrived in other chunks.
#[test]
fn chunks_do_not_affect_the_encoding() {
    let mut document = vec![b' '; CHARSET_PRESCAN_BYTES];
    document.extend_from_slice("<a>ä</a>".as_bytes());
    let first = document.len();
    document.extend_from_slice(b"<b>\xe4</b>");
    for charset in ["iso-8859-1", "utf-8"] {
        let content_type = format!("text/xml; charset={charset}");
        let whole = tokens_of(&[&document], Some(&content_type));
        let (first, rest) = document.split_at(first);
        assert_eq!(tokens_of(&[first, rest], Some(&content_type)), whole, "{charset}");
        let bytes: Vec<_> = document.chunks(1).collect();
        assert_eq!(tokens_of(&bytes, Some(&content_type)), whole, "{charset}");
    }
}

#[test]
fn titles_become_plain_text() {
    let table = [
        ("  a \n\u{0} b ", "a b"),
        ("a <b>b</b> &amp;lt; &copy; <br/>c", "a b &lt; © c"),
        ("1 < 2 > 1", "1 < 2 > 1"),
        ("a <b c", "a <b c"),
        ("<img src='x'><!-- <y> -->", ""),
        ("a<!-- b", "a"),
        ("a<Script type='x'>if (1 < 2) {}</script >b<style>c", "ab"),
        ("a<scripture>b", "ab"),
    ];
    for (html, text) in table {
        assert_eq!(fold_whitespace(&plain_text(html), 100), text, "{html}");
    }
    assert_eq!(fold_whitespace("aé bb", 2), "a");
    assert_eq!(fold_whitespace("aa bb", 3), "aa");
}

#[test]
fn references_become_absolute_and_absolute_ones_stay() {
    let base = Some("http://a.example/x/y");
    let table = [
        ("http://b.example", None, Some("http://b.example")),
        (" HTTP://b.example/#c ", base, Some("HTTP://b.example/#c")),
        ("http://b.example/a\n b", None, Some("http://b.example/a%20b")),
        ("z", base, Some("http://a.example/x/z")),
        ("/z", base, Some("http://a.example/z")),
        ("//c.example/z", base, Some("http://c.example/z")),
        ("z", None, None),
        ("mailto:a@b.example", base, None),
        ("", base, None),
    ];
    for (reference, base, expected) in table {
        let base = base.map(|base| CanonicalUrl::parse(base).unwrap());
        let found = ReferenceResolver::default().absolute(reference, base.as_ref());
        assert_eq!(found.as_deref(), expected, "{reference}");
    }
}

#[test]
fn valid_and_invalid_relative_references_count() {
    let base = CanonicalUrl::parse("http://a.example/").unwrap();
    for reference in ["x", "//u@h", "mailto:x"] {
        let mut joining = ReferenceResolver::default();
        for _ in 0..=JOINED_BYTES_MAX / (base.as_str().len() + reference.len()) {
            assert!(!joining.is_exhausted());
            joining.absolute(reference, Some(&base));
        }
        assert!(joining.is_exhausted());
        assert_eq!(joining.absolute("x", Some(&base)), None);
        assert_eq!(joining.absolute("http://b", None).as_deref(), Some("http://b"));
    }
}

#[test]
fn an_incomplete_tag_is_scanned_once() {
    let (mut markup, mut names) = (MarkupReader::new(None), 0);
    markup.feed(&[b' '; CHARSET_PRESCAN_BYTES], &mut |_| ());
    markup.feed(b"<a b='", &mut |_| ());
    for _ in 0..1000 {
        markup.feed(b">", &mut |_| ());
        assert_eq!(markup.scanned_bytes, markup.pending.len());
    }
    markup.feed(b"'><c", &mut |token| names += u8::from(matches!(token, MarkupToken::Open(_))));
    assert_eq!((names, markup.scanned_bytes), (1, 2));
}

/// Parts of malformed documents.
fn document() -> impl Strategy<Value = Vec<u8>> {
    let pieces = prop::sample::select(vec![
        "<a>",
        "</a>",
        "<a b='c'>",
        "<",
        ">",
        "&",
        "&amp;",
        "&#x41;",
        "<!--",
        "-->",
        "<![CDATA[",
        "]]>",
        "<?xml encoding='koi8-r'?>",
        "<!DOCTYPE",
        "[",
        "]",
        "'",
        "\"",
        "é",
        "\u{feff}",
        " ",
        "a",
        "/",
    ]);
    let bytes = prop_oneof![
        8 => pieces.prop_map(|piece| piece.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 1..4),
    ];
    prop::collection::vec(bytes, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn any_split_gives_the_same_tokens(document in document(), cuts in prop::collection::vec(0_usize..200, 0..6)) {
        let whole = tokens_of(&[&document], None);
        let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(document.len())).collect();
        cuts.sort_unstable();
        let (mut chunks, mut from) = (Vec::new(), 0);
        for cut in cuts.into_iter().chain([document.len()]) {
            chunks.push(&document[from..cut]);
            from = cut;
        }
        prop_assert_eq!(tokens_of(&chunks, None), whole);
    }

    #[test]
    fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..300), label in "[a-z0-9-]{0,12}") {
        let content_type = format!("text/xml; charset={label}");
        tokens_of(&[&bytes], Some(&content_type));
        for encoding in ["utf-16", "shift_jis", "gb18030", "iso-2022-jp"] {
            prop_assert!(Encoding::for_label(encoding.as_bytes()).is_some());
            tokens_of(&[b"<a>", &bytes], Some(&format!("text/xml; charset={encoding}")));
        }
    }
}

use super::*;

fn encoding_of(head: &[u8], header: Option<&str>) -> Option<(&'static str, usize)> {
    let (encoding, skip) = declared(head, header.and_then(from_content_type))?;
    Some((encoding.name(), skip))
}

#[test]
fn the_mark_comes_before_header_and_meta() {
    type Expected = Option<(&'static str, usize)>;
    let table: &[(&[u8], Option<&str>, Expected)] = &[
        (b"\xef\xbb\xbfx", Some("text/html; charset=koi8-r"), Some(("UTF-8", 3))),
        (b"\xff\xfex\0", None, Some(("UTF-16LE", 2))),
        (b"\xfe\xff\0x", None, Some(("UTF-16BE", 2))),
        (b"<meta charset=koi8-r>", Some("text/html; charset=Shift_JIS"), Some(("Shift_JIS", 0))),
        (b"<meta charset=koi8-r>", Some("text/html; charset=nonsense"), Some(("KOI8-R", 0))),
        (b"<meta charset=koi8-r>", Some("text/html"), Some(("KOI8-R", 0))),
        (b"x", None, None),
        (b"", None, None),
    ];
    for &(head, header, expected) in table {
        assert_eq!(encoding_of(head, header), expected, "{:?}", head.escape_ascii());
    }
}

#[test]
fn the_header_is_read_by_its_grammar() {
    for (header, expected) in [
        ("text/html; Charset = \"utf-16le\"", Some("UTF-16LE")),
        ("text/html;charset='koi8-r'", Some("KOI8-R")),
        ("text/html; charset=koi8-r; charset=gbk", Some("KOI8-R")),
        ("text/html; x; charset=koi8-r; y=z", Some("KOI8-R")),
        ("text/html; x=\"a;charset=koi8-r\"; charset=gbk", Some("GBK")),
        ("text/html; x=\"unfinished; charset=gbk", Some("GBK")),
        ("text/html; charset=iso-2022-kr", None),
        ("text/html; charset=", None),
        ("text/html; charset", None),
        ("charset=gbk", None),
    ] {
        assert_eq!(from_content_type(header).map(Encoding::name), expected, "{header}");
    }
}

#[test]
fn a_meta_is_found_by_the_standard() {
    let table: &[(&[u8], Option<&str>)] = &[
        (b"<META  CHARSET = 'koi8-r' >", Some("KOI8-R")),
        (b"<meta/charset=koi8-r>", Some("KOI8-R")),
        (b"<meta http-equiv=Content-Type content=\"text/html; charset=euc-jp\">", Some("EUC-JP")),
        (
            b"<meta content=\"a charset b charset = 'euc-jp'\" http-equiv=content-type>",
            Some("EUC-JP"),
        ),
        (b"<meta content=\"charset='euc-jp\" http-equiv=content-type>", None),
        (b"<meta content=\"text/html; charset=euc-jp\">", None),
        (b"<meta http-equiv=refresh content='charset=euc-jp'><meta charset=gbk>", Some("GBK")),
        (b"<!-- <meta charset=koi8-r> --><meta charset=gbk>", Some("GBK")),
        (b"<!--><meta charset=koi8-r>", Some("KOI8-R")),
        (b"<!-- <meta charset=koi8-r>", None),
        (b"<!doctype <meta charset=koi8-r><meta charset=gbk>", Some("GBK")),
        (b"<a title='<meta charset=koi8-r>'><meta charset=gbk>", Some("GBK")),
        (b"</a <meta charset=koi8-r><meta charset=gbk>", Some("GBK")),
        (b"</ <meta charset=koi8-r><meta charset=gbk>", Some("GBK")),
        (b"< <meta charset=gbk>", Some("GBK")),
        (b"<<meta charset=gbk>", Some("GBK")),
        (b"<script>'<meta charset=gbk>'</script>", Some("GBK")),
        (b"<meta name=charset><meta charset=gbk>", Some("GBK")),
        (b"<metadata charset=koi8-r><meta charset=gbk>", Some("GBK")),
        (b"<meta charset=koi8-r charset=gbk>", Some("KOI8-R")),
        (b"<meta charset=nonsense><meta charset=gbk>", Some("GBK")),
        (b"<meta charset=utf-16>", Some("UTF-8")),
        (b"<meta charset=x-user-defined>", Some("windows-1252")),
        (b"<meta charset=iso-2022-kr>", None),
        (b"<meta charset=gbk", None),
        (b"<meta charset", None),
        (b"<meta charset=", None),
        (b"<", None),
        (b"<?xml version='1.0' encoding='koi8-r'?>", Some("KOI8-R")),
        (b"<?xml encoding = \"utf-16\"?><p>", Some("UTF-8")),
        (b"<?xml encoding='koi8-r'?><meta charset=gbk>", Some("GBK")),
        (b"<?xml encoding=koi8-r?>", None),
        (b" <?xml encoding='koi8-r'?>", None),
        (b"<\0?\0x\0m\0", Some("UTF-16LE")),
        (b"\0<\0?\0x\0m", Some("UTF-16BE")),
    ];
    for &(head, expected) in table {
        assert_eq!(encoding_of(head, None).map(|it| it.0), expected, "{:?}", head.escape_ascii());
    }
}

#[test]
fn pages_that_declare_nothing_are_guessed() {
    let cyrillic = encoding_rs::WINDOWS_1251.encode("Привет, как дела? Это страница.").0;
    let japanese = encoding_rs::ISO_2022_JP.encode("日本語のページです。").0;
    let table: &[(&[u8], Option<&str>, &str)] = &[
        (b"", None, "windows-1252"),
        (b"plain", Some("jp"), "windows-1252"),
        ("caf\u{e9}".as_bytes(), None, "UTF-8"),
        (b"un caf\xe9 noir", Some("fr"), "windows-1252"),
        (&cyrillic, None, "windows-1251"),
        (&japanese, Some("jp"), "ISO-2022-JP"),
        (b"caf\xe9 <meta charset=koi8-r>", None, "KOI8-R"),
    ];
    for &(page, top_level, expected) in table {
        let mut guess = EncodingGuess::new();
        let (ascii, held) = guess.feed(page);
        assert_eq!(ascii + held, page.len());
        let (encoding, held) = guess.decide(None, top_level, true);
        assert_eq!((encoding.name(), held.as_slice()), (expected, &page[ascii..]));
    }
}

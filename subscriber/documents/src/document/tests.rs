use std::io::Write;
use std::sync::Arc;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::*;

fn links_in_chunks(content_type: Option<&str>, body: &[u8], chunk: usize) -> Vec<String> {
    let url = CanonicalUrl::parse("http://a.example/x/").unwrap();
    let headers = content_type.map(|value| ("content-type", value.as_bytes()));
    let page = PageReader::new(&url, headers, &Arc::default());
    let mut reader = DocumentReader::new(content_type, &url, page);
    for chunk in body.chunks(chunk) {
        reader.feed(chunk);
    }
    reader.finish(&url).links.into_iter().map(|link| link.url.into()).collect()
}

#[track_caller]
fn links(content_type: Option<&str>, body: &[u8]) -> Vec<String> {
    let whole = links_in_chunks(content_type, body, usize::MAX);
    assert_eq!(links_in_chunks(content_type, body, 1), whole);
    whole
}

#[test]
fn the_kind_of_a_document_is_recognised() {
    let page = "<!doctype html><a href='1'>";
    let sitemap = "<?xml version='1.0'?><!-- made by hand --><urlset><url><loc>http://a.example/x/1</loc></url></urlset>";
    let rss = "<rss><channel><link>/</link><item><link>1</link></item><item><link>1</link></item></channel></rss>";
    let rdf = "<rdf:RDF xmlns:rdf='http://www.w3.org/1999/02/22-rdf-syntax-ns#'><item><link>1</link></item></rdf:RDF>";
    let atom = "<feed xmlns='http://www.w3.org/2005/Atom'><entry><link href='1'/></entry></feed>";
    let json = r#"{"version":"https://jsonfeed.org/version/1.1","items":[{"id":"1","url":"1"}]}"#;
    let php = json.replace('/', "\\/");
    let late = format!("{{{}{}", " ".repeat(DOCUMENT_SNIFF_BYTES), &json[1..]);
    let list = "http://a.example/x/1\n";
    let table: &[(Option<&str>, &str)] = &[
        (Some("text/html; charset=utf-8"), page),
        (None, page),
        (None, "<a href='1'>"),
        (Some(""), page),
        (Some("html; charset=utf-8"), page),
        (Some("text/; charset=utf-8"), page),
        (Some("Unknown/Unknown"), page),
        (Some("*/*"), page),
        (Some("\"text/html\""), page),
        (Some(" Text/HTML charset=utf-8"), page),
        (Some("text/html, text/html"), page),
        (Some("xml"), sitemap),
        (Some("text/xml"), sitemap),
        (None, sitemap),
        (Some("application/rss+xml"), rss),
        (Some("text/plain"), rss),
        (Some("application/rdf+xml"), rdf),
        (Some("application/atom+xml"), atom),
        (Some("application/json"), json),
        (Some("application/feed+json"), json),
        (Some("application/json"), &*php),
        (Some("application/feed+json; charset=utf-8"), &*late),
        (Some("text/plain"), list),
        (None, list),
        (Some("text/html"), sitemap),
        (Some("application/xhtml+xml"), sitemap),
        (Some("text/html; charset=utf-8"), rss),
        (Some("text/html"), rdf),
        (Some("text/html"), atom),
        (Some("text/html"), json),
        (Some("text/html"), list),
        (Some("text/html"), "<p><a href='1'>a feed of feeds: <feed> <rss> x:feed</a>"),
        (Some("text/html"), "http://a.example/ moved <a href='1'>here</a>"),
    ];
    for (content_type, body) in table {
        assert_eq!(
            links(*content_type, body.as_bytes()),
            ["http://a.example/x/1"],
            "{content_type:?} {body}"
        );
    }
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(sitemap.as_bytes()).unwrap();
    let gzip = gzip.finish().unwrap();
    for content_type in ["application/gzip", "text/html"] {
        assert_eq!(links(Some(content_type), &gzip), ["http://a.example/x/1"]);
    }
}

#[test]
fn other_documents_have_no_links() {
    for (content_type, body) in [
        ("text/plain", &b"see http://a.example/x/1"[..]),
        ("application/xml", b"<svg><a href='1'/></svg>"),
        ("application/xml", b"<html><a href='1'></html>"),
        ("application/json", br#"{"items":[{"id":"1","url":"1"}]}"#),
        ("image/png", b"\x89PNG<urlset>"),
        ("application/pdf", b""),
    ] {
        assert_eq!(links(Some(content_type), body), [""; 0], "{content_type}");
    }
}

#[test]
fn the_links_of_a_sitemap_are_bounded() {
    let mut body = String::new();
    for i in 0..=SITEMAP_URLS_MAX {
        body.extend([format!("http://a.example/{i}\n")]);
    }
    let url = CanonicalUrl::parse("http://a.example/").unwrap();
    let page = PageReader::new(&url, None, &Arc::default());
    let mut reader = DocumentReader::new(None, &url, page);
    reader.feed(body.as_bytes());
    let content = reader.finish(&url);
    assert_eq!((content.links.len(), content.cut.is_some()), (SITEMAP_URLS_MAX, true));
}

#[test]
fn a_document_is_read_in_small_steps() {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    gzip.write_all(b"<urlset>").unwrap();
    for number in 0..20_000 {
        write!(gzip, "<url><loc>http://a.example/{number}</loc></url>").unwrap();
    }
    let gzip = gzip.finish().unwrap();
    let url = CanonicalUrl::parse("http://a.example/").unwrap();
    let mut reader = DocumentReader::new(None, &url, PageReader::new(&url, None, &Arc::default()));
    let (mut rest, mut known) = (&*gzip, 0);
    let links = |reader: &DocumentReader| match &reader.state {
        DocumentState::Sitemap(sitemap) => sitemap.1.links.len(),
        _ => 0,
    };
    while reader.step(&mut rest) {
        let found = links(&reader) - known;
        assert!(found <= crate::markup::DOCUMENT_STEP_BYTES / 40, "{found} in one step");
        known += found;
    }
    assert!(rest.is_empty() && known > 19_000, "{known}");
    assert!(reader.finish_may_block() && reader.memory_bytes() > 400_000);
    assert_eq!(reader.finish(&url).links.len(), 20_000);
}

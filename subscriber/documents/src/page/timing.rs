//! Measures the time to read a page: `cargo test --release page::figures -- --ignored --nocapture`.

#![expect(clippy::disallowed_methods, clippy::print_stdout, reason = "measures and prints times")]

use std::fmt::Write;
use std::hint::black_box;
use std::time::Instant;

use super::*;

/// 10.2 KB with 30 links, all to one host, as is common.
fn short_page() -> String {
    let mut html = String::from(
        "<!DOCTYPE html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>Page 17 of a site</title>\
         <link rel=\"stylesheet\" href=\"/style.css\"></head><body><nav class=\"menu\"><ul>\n",
    );
    for n in 0..30 {
        let href = match n % 3 {
            0 => format!("/section/{n}/page-{}.html", n * 37),
            1 => format!("page-{n}.html?from=17&amp;to={n}"),
            _ => format!("../other/{n}/#part"),
        };
        let text =
            "Some words that a person would read, with <em>emphasis</em> and a &amp; in between. ";
        write!(html, "<li class=\"item\"><a class=\"reference internal\" href=\"{href}\">Page {n}</a></li>\n<p>{}</p>\n", text.repeat(2))
            .expect("writing to a String does not fail");
    }
    html + "</ul></nav></body></html>\n" + &" ".repeat(40)
}

fn measure(what: &str, url: &str, page: &[u8]) {
    const ROUNDS: u32 = 20;
    let url = CanonicalUrl::parse(url).unwrap();
    let options = Arc::default();
    let headers = [("content-type", b"text/html; charset=utf-8".as_slice()), ("server", b"x")];
    let times = u32::try_from(100_000_000 / page.len() / 20).unwrap();
    let (mut best, mut links) = (f64::INFINITY, 0);
    for _ in 0..ROUNDS {
        let started = Instant::now();
        for _ in 0..times {
            let mut reader = PageReader::new(&url, headers, &options);
            black_box(page).chunks(16 * 1024).for_each(|chunk| reader.feed(chunk));
            links = black_box(reader.finish(&url)).links.len();
        }
        best = best.min(started.elapsed().as_secs_f64() / f64::from(times) * 1e6);
    }
    println!("{what}: {} bytes, {links} links: {best:.2} us, resolved", page.len());
}

#[test]
#[ignore = "a figure, not a test"]
fn microseconds_per_page() {
    measure("a page", "http://site.example:8080/section/4/page-17.html", short_page().as_bytes());
    // From the Debian package python3-doc, which other tests need, too.
    let documentation = std::fs::read("/usr/share/doc/python3-doc/html/library/os.html").unwrap();
    let documentation = &documentation[..200_000.min(documentation.len())];
    measure("documentation", "http://docs.example/library/os.html", documentation);
}

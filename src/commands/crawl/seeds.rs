//! The seeds of a crawl: URLs of the command line, and those of a file.
//!
//! A file has one URL or host in each line, or in a column of a table. A line without one is
//! skipped and reported. Or the file is a sitemap, a feed or OPML.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use tidings_documents::sitemap::{SitemapEntry, SitemapReader};
use tidings_egress::AllowPrivate;
use tidings_protocol::{CanonicalUrl, URL_BYTES_MAX};

use crate::client::job::{parse_seed, usual_scheme};
use crate::terminal::output::{plural, printable};

/// The limit of seeds of a job: about 1 GB at 100 bytes each.
const SEEDS_MAX: usize = 10_000_000;

/// The longest line in bytes, with its end and spaces around the URL.
const LINE_BYTES_MAX: usize = 2 * URL_BYTES_MAX;

/// Skipped lines that are named, and the longest part of each that is shown, in characters.
const NAMED_MAX: usize = 5;
const NAMED_CHARS_MAX: usize = 60;

/// The file name that stands for standard input.
const STDIN: &str = "-";

const DELIMITERS: [char; 3] = ['\t', ';', ','];

/// The ends of the names of columns with URLs or hosts, the best first.
const COLUMNS: [&str; 10] =
    ["url", "uri", "link", "loc", "website", "homepage", "origin", "domain", "hostname", "host"];

/// The seeds of a crawl.
#[derive(Debug, Default)]
pub(crate) struct Seeds {
    pub(crate) urls: Vec<CanonicalUrl<'static>>,
    /// What of the file was left out, for people.
    pub(crate) left_out: Option<String>,
}

/// All seeds, as they were given; the error names the wrong one and its place. With `strict`, a
/// line without a URL is an error.
pub(crate) fn read(urls: &[String], file: Option<&Path>, strict: bool) -> Result<Seeds, String> {
    let mut urls = urls.iter().map(|text| parse_argument(text)).collect::<Result<Vec<_>, _>>()?;
    let Some(file) = file else { return Ok(Seeds { urls, left_out: None }) };
    let name = file.display().to_string();
    if name.starts_with("http://") || name.starts_with("https://") {
        urls.push(parse_argument(&name)?);
        return Ok(Seeds { urls, left_out: None });
    }
    if file == Path::new(STDIN) {
        return SeedFile::new("standard input", strict, urls).read(io::stdin().lock());
    }
    let opened = File::open(file).map_err(|error| format!("cannot read {name}: {error}"))?;
    SeedFile::new(&name, strict, urls).read(BufReader::new(opened))
}

/// Parses a seed of the command line.
fn parse_argument(text: &str) -> Result<CanonicalUrl<'static>, String> {
    parse_seed(text).map_err(|error| {
        // The value of that flag follows an equals sign.
        if text.contains('/') && text.parse::<AllowPrivate>().is_ok() {
            return format!(
                "{text} is not a URL; to allow this network, write --allow-private={text}"
            );
        }
        error
    })
}

/// A file with seeds, while it is read.
struct SeedFile<'a> {
    name: &'a str,
    strict: bool,
    urls: Vec<CanonicalUrl<'static>>,
    /// What the first line with content says about the others.
    layout: Option<Layout>,
    skipped: u64,
    /// The first skipped lines.
    named: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// Each line is a URL, or has a URL or host in one of its cells.
    Lines,
    /// A table with a header, and the column of its URLs if the header names it.
    Table { delimiter: char, column: Option<usize> },
}

impl<'a> SeedFile<'a> {
    fn new(name: &'a str, strict: bool, urls: Vec<CanonicalUrl<'static>>) -> Self {
        Self { name, strict, urls, layout: None, skipped: 0, named: Vec::new() }
    }

    fn read(mut self, mut input: impl BufRead) -> Result<Seeds, String> {
        let before = self.urls.len();
        let begin = self.readable(input.fill_buf())?;
        let text = begin.strip_prefix(b"\xef\xbb\xbf").unwrap_or(begin).trim_ascii_start();
        let mut left_out = None;
        if text.starts_with(b"<") || text.starts_with(&[0x1f, 0x8b]) {
            left_out = self.read_document(input)?.map(|cut| format!("{}: {cut}", self.name));
        } else {
            self.read_lines(input)?;
        }
        if self.skipped > 0 {
            left_out = Some(self.skipped_lines());
        }
        if self.urls.len() == before {
            let name = self.name;
            let lines = left_out.map_or_else(String::new, |lines| format!("; {lines}"));
            return Err(format!(
                "{name} contains no URL; write one on each line, or give a table with a column \
                 `url`, a sitemap, a feed or OPML{lines}"
            ));
        }
        Ok(Seeds { urls: self.urls, left_out })
    }

    fn readable<T>(&self, read: io::Result<T>) -> Result<T, String> {
        read.map_err(|error| format!("cannot read {}: {error}", self.name))
    }

    /// Reads a sitemap, a feed or OPML. Returns why its end was left out.
    fn read_document(&mut self, mut input: impl BufRead) -> Result<Option<&'static str>, String> {
        let mut reader = SitemapReader::new(None, None);
        let mut urls = std::mem::take(&mut self.urls);
        let mut each = |entry: SitemapEntry<'_>| urls.extend(entry.url.parse());
        loop {
            let bytes = self.readable(input.fill_buf())?;
            if bytes.is_empty() {
                break;
            }
            reader.feed(bytes, &mut each);
            let read = bytes.len();
            input.consume(read);
        }
        let cut = reader.finish(&mut each).cut;
        self.urls = urls;
        Ok(cut)
    }

    fn read_lines(&mut self, mut input: impl BufRead) -> Result<(), String> {
        let mut line = Vec::new();
        for number in 1_u64.. {
            line.clear();
            let limit = LINE_BYTES_MAX as u64 + 1;
            let read = input.by_ref().take(limit).read_until(b'\n', &mut line);
            if self.readable(read)? == 0 {
                break;
            }
            if line.len() > LINE_BYTES_MAX {
                if !line.ends_with(b"\n") {
                    let rest = skip_line(&mut input);
                    self.readable(rest)?;
                }
                self.skip(number, &format!("the line is longer than {LINE_BYTES_MAX} bytes"))?;
                continue;
            }
            let Ok(text) = str::from_utf8(&line) else {
                self.skip(number, "not UTF-8")?;
                continue;
            };
            // Some editors write a byte order mark at the beginning.
            let text = text.strip_prefix('\u{feff}').filter(|_| number == 1).unwrap_or(text);
            // A CR alone ends a line, too, as in robots.txt and in lists of sitemaps.
            text.split('\r').try_for_each(|text| self.read_line(number, text))?;
        }
        Ok(())
    }

    fn read_line(&mut self, number: u64, text: &str) -> Result<(), String> {
        let text = text.split_once(" #").map_or(text, |(text, _)| text).trim();
        if text.starts_with('#') || text.trim_matches(DELIMITERS).is_empty() {
            return Ok(());
        }
        let is_first = self.layout.is_none();
        let layout = *self.layout.get_or_insert_with(|| Layout::of(text));
        if is_first && layout != Layout::Lines {
            return Ok(());
        }
        if self.urls.len() == SEEDS_MAX {
            let name = self.name;
            return Err(format!("{name}:{number}: a job has at most {SEEDS_MAX} seeds"));
        }
        match layout.seed(text) {
            Ok(seed) => self.urls.push(seed),
            Err(error) => self.skip(number, &error)?,
        }
        Ok(())
    }

    /// Skips a line; the error if that is not allowed.
    fn skip(&mut self, number: u64, reason: &str) -> Result<(), String> {
        if self.strict {
            return Err(format!("{}:{number}: {reason}", self.name));
        }
        self.skipped += 1;
        if self.named.len() < NAMED_MAX {
            self.named.push(format!("{number}: {}", printable(reason, NAMED_CHARS_MAX)));
        }
        Ok(())
    }

    fn skipped_lines(&self) -> String {
        let (name, lines) = (self.name, plural(self.skipped, "line"));
        let more = if self.skipped > self.named.len() as u64 { ", .." } else { "" };
        let named = self.named.join(", ");
        format!("{name}: skipped {lines} without a URL ({named}{more})")
    }
}

impl Layout {
    /// By the first line with content: a header has no URL, and names a column or has several.
    fn of(text: &str) -> Self {
        let count = |delimiter: &char| text.matches(*delimiter).count();
        let delimiter = DELIMITERS.into_iter().max_by_key(count).unwrap_or(',');
        let names: Vec<_> = cells(text, &[delimiter])
            .iter()
            .map(|name| name.to_ascii_lowercase().replace(|c: char| !c.is_alphanumeric(), ""))
            .collect();
        let column = COLUMNS.iter().find_map(|end| names.iter().position(|it| it.ends_with(end)));
        let is_header = column.is_some() || names.len() > 1;
        if !is_header || Self::Lines.seed(text).is_ok() {
            return Self::Lines;
        }
        Self::Table { delimiter, column }
    }

    fn seed(self, text: &str) -> Result<CanonicalUrl<'static>, String> {
        let first_in = |cells: Vec<String>| cells.iter().find_map(|cell| url_or_host(cell, true));
        let found = match self {
            Self::Lines if has_scheme(text) => {
                return parse_seed(text.split('\t').next().unwrap_or_default());
            }
            Self::Lines => first_in(cells(text, &DELIMITERS)),
            Self::Table { delimiter, column: None } => first_in(cells(text, &[delimiter])),
            Self::Table { delimiter, column: Some(column) } => {
                cells(text, &[delimiter]).get(column).and_then(|cell| url_or_host(cell, false))
            }
        };
        found.ok_or_else(|| format!("{} is not a URL", printable(text, NAMED_CHARS_MAX)))
    }
}

/// The cells of a line of a table. A cell in quotes may contain delimiters, and quotes twice.
fn cells(line: &str, delimiters: &[char]) -> Vec<String> {
    let (mut cells, mut cell, mut quoted) = (Vec::new(), String::new(), false);
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.next_if_eq(&'"').is_some() => cell.push('"'),
            '"' if quoted || cell.is_empty() => quoted = !quoted,
            c if !quoted && delimiters.contains(&c) => cells.push(std::mem::take(&mut cell)),
            c => cell.push(c),
        }
    }
    cells.push(cell);
    cells
}

fn has_scheme(text: &str) -> bool {
    let scheme = text.split_once("://").map(|(scheme, _)| scheme);
    scheme.is_some_and(|scheme| scheme.bytes().all(|byte| byte.is_ascii_alphabetic()))
}

/// A URL, or a host with or without a path, which gets its usual scheme. With `dotted`, a word
/// without a dot is not a host.
fn url_or_host(cell: &str, dotted: bool) -> Option<CanonicalUrl<'static>> {
    let cell = cell.trim();
    if has_scheme(cell) {
        return cell.parse().ok();
    }
    if cell.contains(|c: char| c.is_whitespace() || c == '@') {
        return None;
    }
    let authority = cell.split(['/', '?', '#']).next().unwrap_or_default();
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    };
    let is_address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok();
    // A number such as 1.5 would be parsed as an address.
    let is_name = host.contains(char::is_alphabetic)
        && (!dotted || host.trim_end_matches('.').contains('.') || host == "localhost");
    let url = format!("{}://{cell}", usual_scheme(cell));
    (is_address || is_name).then(|| url.parse().ok()).flatten()
}

/// Reads to the end of the line.
fn skip_line(input: &mut impl BufRead) -> io::Result<()> {
    loop {
        let bytes = input.fill_buf()?;
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let read = end.map_or(bytes.len(), |end| end + 1);
        input.consume(read);
        if end.is_some() || read == 0 {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_as(text: impl AsRef<[u8]>, strict: bool) -> Result<Seeds, String> {
        SeedFile::new("f", strict, Vec::new()).read(text.as_ref())
    }

    /// The seeds, separated by blanks, and the note.
    #[track_caller]
    fn seeds(text: impl AsRef<[u8]>) -> (String, Option<String>) {
        let Seeds { urls, left_out } = read_as(text, false).unwrap();
        (urls.iter().map(CanonicalUrl::as_str).collect::<Vec<_>>().join(" "), left_out)
    }

    #[test]
    fn seeds_are_found_in_lines_and_tables() {
        let (a, ab) = ("http://a.example/", "https://a.example/ https://b.example/x");
        for (text, expected) in [
            ("\u{feff}http://a.example/\r\n\n  # no\n\t http://a.example/#x \n", [a, a].join(" ")),
            ("http://a.example/1,2;3", "http://a.example/1,2;3".to_owned()),
            ("domain\ra.example\rb.example/x\r", ab.to_owned()),
            ("http://a.example # the first\nhttp://a.example\ttitle", [a, a].join(" ")),
            ("a.example\nb.example/x", ab.to_owned()),
            ("1,a.example\n2,b.example/x", ab.to_owned()),
            ("1\ta.example\n\t\t\n2\tb.example/x", ab.to_owned()),
            ("Acme Inc.;a.example;1.5\nBe, Inc.;b.example/x;29.11.2026", ab.to_owned()),
            ("rank,domain\n1,a.example\n2,b.example/x", ab.to_owned()),
            (
                "Name,Page URL\n\"A, the \"\"a\"\"\",https://a.example/\nb,b.example/x",
                ab.to_owned(),
            ),
            ("Top pages,Clicks\nhttps://a.example/,5\nhttps://b.example/x,2", ab.to_owned()),
            ("host\nintranet\n127.0.0.1:8000", "https://intranet/ http://127.0.0.1:8000/".into()),
            (
                "localhost:80\n[::1]\n192.0.2.7",
                "http://localhost/ http://[::1]/ http://192.0.2.7/".into(),
            ),
            (
                "<?xml version='1.0'?><urlset><url><loc>https://a.example/</loc></url><url>\
                 <loc>https://b.example/x</loc></url></urlset>",
                ab.to_owned(),
            ),
            (
                "<opml><body><outline text='a'><outline xmlUrl='https://a.example/'/></outline>\
                 <outline type='rss' xmlUrl='https://b.example/x' htmlUrl='https://b.example/'/>\
                 </body></opml>",
                [ab, "https://b.example/"].join(" "),
            ),
        ] {
            assert_eq!(seeds(text), (expected, None), "{text}");
        }
    }

    #[test]
    fn lines_without_a_url_are_skipped_and_named() {
        let long = format!("\n{}\nb.example", "x".repeat(3 * LINE_BYTES_MAX));
        for (text, note) in [
            (
                "a.example\nnonsense\nftp://c.example/\nb.example",
                "2 lines without a URL (2: nonsense is not a URL, 3: ftp://c.example/: ",
            ),
            ("a.example\nnonsense\nx\ny\nz\nzz\nzzz\nb.example", "6: zz is not a URL, ..)"),
            ("url\na.example\nme@c.example\nb.example", "1 line without a URL (3: me@c.example is"),
            (&format!("a.example{long}"), "(2: the line is longer than"),
        ] {
            let (found, told) = seeds(text);
            assert_eq!(found, "https://a.example/ https://b.example/", "{text:.40}");
            assert!(told.as_ref().is_some_and(|told| told.contains(note)), "{note}: {told:?}");
        }
        assert!(seeds(b"a.example\n\xff\n").1.unwrap().contains("2: not UTF-8"));
        let wrong = read_as("http://a.example/\n\nnonsense\n", true).unwrap_err();
        assert_eq!(wrong, "f:3: nonsense is not a URL");
    }

    #[test]
    fn a_file_without_a_url_is_reported() {
        for text in ["", "# none\n", "nonsense", "<html><a href='http://a.example/'>", "a,b\n1,2"] {
            let wrong = read_as(text, false).unwrap_err();
            assert!(wrong.starts_with("f contains no URL"), "{text}: {wrong}");
        }
        let gone = read(&[], Some(Path::new("/no/such/file")), false).unwrap_err();
        assert!(gone.starts_with("cannot read /no/such/file: "), "{gone}");
    }

    #[test]
    fn the_url_of_a_sitemap_is_a_seed() {
        let url = "https://a.example/sitemap.xml";
        let seeds = read(&[], Some(Path::new(url)), false).unwrap();
        assert_eq!(seeds.urls[0].as_str(), url);
    }

    #[test]
    fn a_network_is_reported_as_the_value_of_its_flag() {
        let wrong = |text: &str| read(&[text.to_owned()], None, false).unwrap_err();
        assert!(wrong("10.0.0.0/8").ends_with("write --allow-private=10.0.0.0/8"));
        assert!(wrong("b.example/8").ends_with("did you mean https://b.example/8 ?"));
    }
}

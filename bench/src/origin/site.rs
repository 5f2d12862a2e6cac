//! The content of the origin: all hosts have the same pages except for their names, rendered before
//! the first request.

use std::borrow::Cow;
use std::fmt::Write;
use std::net::Ipv4Addr;
use std::time::Duration;

use memchr::memmem;

use super::scripted::{self, DATA_PARTS, FILLER};

/// Number of hosts in 127.1.0.0/16 without the addresses that end in 0 or 255, which some programs
/// take for those of a network.
pub const HOSTS_MAX: u32 = 256 * HOSTS_PER_SUBNET;
const HOSTS_PER_SUBNET: u32 = 250;

/// One link in this many leads to a new page.
const LINKS_PER_NEW_PAGE: u32 = 5;

/// Bytes of a host name in a page, so that pages of all hosts have the same length.
const LABEL_BYTES: usize = "127.1.255.250".len();

/// Many hosts on one port, each with a tree of pages below `/p/0`.
#[derive(Debug, Clone, Copy)]
pub struct Site {
    /// Number of hosts, at most [`HOSTS_MAX`].
    pub hosts: u32,
    /// Pages per host, from `/p/0` on.
    pub pages: u32,
    /// Bytes of a page without the head of the response; more if its links do not fit.
    pub page_bytes: usize,
    /// Links per page. Four in five lead to pages with lower numbers.
    pub links: u32,
    /// Delay of each response, also of robots.txt.
    pub response_delay: Duration,
    /// The pause that must follow a response before the next request to its host; robots.txt names
    /// it as `Crawl-delay`. `None`: requests may overlap.
    pub crawl_delay: Option<Duration>,
    /// A script of 300 kB, which all pages share, requests text and links of a page in three parts.
    /// Otherwise they are in the document.
    pub is_scripted: bool,
}

/// Fields of a response that may be used for many pages.
const CACHED: &str = "Cache-Control: max-age=86400\r\n";

impl Site {
    /// The address of a host.
    pub fn host_address(number: u32) -> Ipv4Addr {
        let part = |number| u8::try_from(number).expect("fewer than HOSTS_MAX hosts");
        Ipv4Addr::new(127, 1, part(number / HOSTS_PER_SUBNET), part(number % HOSTS_PER_SUBNET + 1))
    }

    /// The number of the host with this address; `None`: the site does not have it.
    pub(super) fn host_number(&self, host: Ipv4Addr) -> Option<u32> {
        let [127, 1, high, low @ 1..=250] = host.octets() else { return None };
        let number = u32::from(high) * HOSTS_PER_SUBNET + u32::from(low) - 1;
        (number < self.hosts).then_some(number)
    }

    /// Number of pages of all hosts.
    pub fn total_pages(&self) -> u64 {
        u64::from(self.hosts) * u64::from(self.pages)
    }

    /// Number of the parts of the data of all pages.
    pub(super) fn total_data(&self) -> u64 {
        if self.is_scripted { self.total_pages() * u64::from(DATA_PARTS) } else { 0 }
    }

    /// The pages that a page links to. Pages without a link so far come first.
    fn links_of(&self, page: u32) -> impl Iterator<Item = u32> {
        let new = self.links.div_ceil(LINKS_PER_NEW_PAGE);
        let (pages, links) = (self.pages, self.links);
        (0..links).map(move |link| match page * new + link + 1 {
            child if link < new && child < pages => child,
            // Spread over the pages before, so that neighbouring pages have different links.
            _ => (page * 31 + link * 17) % (page + 1),
        })
    }

    fn robots(&self) -> String {
        let delay = self.crawl_delay.map(|delay| format!("Crawl-delay: {}\n", delay.as_secs_f64()));
        format!("User-agent: *\n{}Disallow:\n", delay.unwrap_or_default())
    }

    /// A page, and the position in it for the name of its host.
    fn page(&self, page: u32) -> (String, usize) {
        let mut html = format!(
            "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><title>Page {page} of "
        );
        let label = html.len();
        html.extend(std::iter::repeat_n(' ', LABEL_BYTES));
        if self.is_scripted {
            scripted::finish_document(&mut html, page, self.page_bytes);
            return (html, label);
        }
        html.push_str("</title></head>\n<body>\n");
        let links = usize::try_from(self.links).expect("a count of links");
        let end = "</body>\n</html>\n";
        let space = self.page_bytes.saturating_sub(html.len() + end.len()) / links.max(1);
        for target in self.links_of(page) {
            let begin = html.len();
            let _ = write!(html, "<p class=\"line\"><a href=\"/p/{target}\">Page {target}</a> ");
            let left = space.saturating_sub(html.len() - begin + "</p>\n".len());
            html.extend(FILLER.chars().cycle().take(left));
            html.push_str("</p>\n");
        }
        let left = self.page_bytes.saturating_sub(html.len() + end.len());
        html.extend(std::iter::repeat_n(' ', left));
        html.push_str(end);
        (html, label)
    }
}

/// The requested path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestTarget {
    /// `/robots.txt`.
    Robots,
    /// A page of the site.
    Page(u32),
    /// The script of all pages.
    Script,
    /// The style of all pages.
    Style,
    /// A part of the data of a page.
    Data(u32, u32),
    /// Any other path; the response is 404.
    Other,
}

impl RequestTarget {
    /// Parses a path with its query.
    fn parse(path: &[u8], site: &Site) -> Self {
        let Ok(path) = str::from_utf8(path) else { return Self::Other };
        let number = |text: &str| text.parse().ok().filter(|page| *page < site.pages);
        let target = match path.split('/').collect::<Vec<_>>()[..] {
            ["", "robots.txt"] => Some(Self::Robots),
            ["", "p", page] => number(page).map(Self::Page),
            _ if !site.is_scripted => None,
            ["", "s", "app.js"] => Some(Self::Script),
            ["", "s", "style.css"] => Some(Self::Style),
            ["", "d", page, part] => number(page)
                .zip(part.parse().ok().filter(|part| *part < DATA_PARTS))
                .map(|(page, part)| Self::Data(page, part)),
            _ => None,
        };
        target.unwrap_or(Self::Other)
    }
}

/// The parts of a request's head that matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RequestHead {
    pub(super) target: RequestTarget,
    /// The client accepts no further response on this connection.
    pub(super) closes_connection: bool,
    /// Length, with the empty line.
    pub(super) bytes: usize,
}

/// The first head in the received bytes; `None` while it is incomplete.
pub(super) fn parse_head(received: &[u8], site: &Site) -> Option<RequestHead> {
    let bytes = memmem::find(received, b"\r\n\r\n")? + 4;
    let mut lines = received[..bytes].split(|&byte| byte == b'\n');
    let mut words = lines.next()?.trim_ascii_end().split(|&byte| byte == b' ').skip(1);
    let target = RequestTarget::parse(words.next().unwrap_or_default(), site);
    let is_old = words.next() != Some(b"HTTP/1.1");
    let says_close = |line: &[u8]| {
        let Some((name, value)) = line.split_at_checked("connection:".len()) else { return false };
        name.eq_ignore_ascii_case(b"connection:")
            && value.trim_ascii().eq_ignore_ascii_case(b"close")
    };
    Some(RequestHead { target, closes_connection: is_old || lines.any(says_close), bytes })
}

/// All responses, with their heads. Pages lack the name of their host.
#[derive(Debug)]
pub(super) struct CannedResponses {
    robots: Vec<u8>,
    /// With the position of the host's name.
    pages: Vec<(Vec<u8>, usize)>,
    script: Vec<u8>,
    style: Vec<u8>,
    /// All parts of the first page, then those of the second one. Empty if the pages are static.
    data: Vec<Vec<u8>>,
    not_found: Vec<u8>,
}

impl CannedResponses {
    pub(super) fn render(site: &Site) -> Self {
        // Most servers send `Connection: keep-alive`. Without it, some clients open a connection
        // for each request, although HTTP/1.1 does not need it.
        let response = |status: &str, kind: &str, fields: &str, body: &str| {
            format!(
                "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{fields}\
                 Connection: keep-alive\r\n\r\n{body}",
                body.len()
            )
            .into_bytes()
        };
        let page = |page| {
            let (html, label) = site.page(page);
            let response = response("200 OK", "text/html; charset=utf-8", "", &html);
            let label = response.len() - html.len() + label;
            (response, label)
        };
        let data = |page| {
            (0..DATA_PARTS).map(move |part| {
                let data = scripted::data(site.links_of(page), part);
                response("200 OK", "application/json", "", &data)
            })
        };
        let scripted_pages = if site.is_scripted { site.pages } else { 0 };
        Self {
            robots: response("200 OK", "text/plain", "", &site.robots()),
            pages: (0..site.pages).map(page).collect(),
            script: response("200 OK", "text/javascript", CACHED, &scripted::script()),
            style: response("200 OK", "text/css", CACHED, scripted::STYLE),
            data: (0..scripted_pages).flat_map(data).collect(),
            not_found: response("404 Not Found", "text/html", "", "<title>Not found</title>\n"),
        }
    }

    /// A response of this host.
    pub(super) fn get(&self, host: u32, target: RequestTarget) -> Cow<'_, [u8]> {
        Cow::Borrowed(match target {
            RequestTarget::Robots => &self.robots,
            RequestTarget::Other => &self.not_found,
            RequestTarget::Script => &self.script,
            RequestTarget::Style => &self.style,
            RequestTarget::Data(page, part) => &self.data[index(page * DATA_PARTS + part)],
            RequestTarget::Page(page) => {
                let (response, label) = &self.pages[index(page)];
                let (mut response, name) = (response.clone(), Site::host_address(host).to_string());
                response[*label..*label + name.len()].copy_from_slice(name.as_bytes());
                return Cow::Owned(response);
            }
        })
    }
}

fn index(number: u32) -> usize {
    usize::try_from(number).expect("a usize has at least 32 bits")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn site(pages: u32) -> Site {
        Site {
            hosts: 1000,
            pages,
            page_bytes: 10_200,
            links: 30,
            response_delay: Duration::ZERO,
            crawl_delay: None,
            is_scripted: false,
        }
    }

    #[test]
    fn every_page_is_reached_from_the_first_by_links_to_new_pages() {
        for pages in [1, 3, 10, 50, 500] {
            let site = site(pages);
            let mut reached = BTreeSet::from([0]);
            for page in 0..pages {
                assert!(reached.contains(&page), "{page} of {pages}");
                assert_eq!(site.links_of(page).count(), 30);
                reached.extend(site.links_of(page));
            }
            assert_eq!(reached.len(), index(pages));
        }
    }

    #[test]
    fn a_response_names_its_length_and_host() {
        let site = site(500);
        let responses = CannedResponses::render(&site);
        for (target, bytes) in [
            (RequestTarget::Page(0), 10_200),
            (RequestTarget::Page(499), 10_200),
            (RequestTarget::Robots, 24),
        ] {
            let whole = responses.get(251, target);
            let body = memmem::find(&whole, b"\r\n\r\n").unwrap() + 4;
            let head = String::from_utf8_lossy(&whole[..body]);
            assert_eq!(whole.len() - body, bytes, "{head}");
            assert!(head.contains(&format!("Content-Length: {bytes}\r\n")), "{head}");
            let named = memmem::find(&whole, b"of 127.1.1.2    </title>").is_some();
            assert_eq!(named, target != RequestTarget::Robots);
        }
    }

    #[test]
    fn hosts_have_distinct_addresses() {
        let site = site(1);
        assert!((0..1000).all(|host| site.host_number(Site::host_address(host)) == Some(host)));
        assert_eq!(site.host_number(Site::host_address(1000)), None);
        assert_eq!(site.host_number(Ipv4Addr::LOCALHOST), None);
        assert_eq!(Site::host_address(HOSTS_MAX - 1), Ipv4Addr::new(127, 1, 255, 250));
    }

    #[test]
    fn a_head_ends_with_an_empty_line() {
        let request = b"GET /p/17 HTTP/1.1\r\nHost: a\r\nConnection: keep-alive\r\n\r\nGET /";
        let known = RequestHead {
            target: RequestTarget::Page(17),
            closes_connection: false,
            bytes: request.len() - 5,
        };
        assert_eq!(parse_head(request, &site(18)), Some(known));
        assert_eq!(
            parse_head(request, &site(17)).map(|head| head.target),
            Some(RequestTarget::Other)
        );
        assert_eq!(parse_head(&request[..50], &site(18)), None);
        let last = |text: &[u8]| parse_head(text, &site(1)).unwrap().closes_connection;
        assert!(last(b"GET /robots.txt HTTP/1.1\r\nCONNECTION: Close\r\n\r\n"));
        assert!(last(b"GET / HTTP/1.0\r\n\r\n") && last(b"\r\n\r\n"));
    }
}

//! The pages of an origin: generated pages with links, and misbehaviour by path.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// A set of hosts that all have the same pages.
///
/// Page n, `/p/n`, links to pages 2n+1 and 2n+2, so that all pages of a host can be reached from
/// `/p/0`. It also links to itself, to fragments and to `/private/n`. With `links_across_hosts`,
/// the first page links to the first page of the next host.
#[derive(Debug, Clone)]
pub(crate) struct Site {
    pub(crate) hosts: u16,
    /// The number of pages of each host.
    pub(crate) pages: u32,
    /// The delay before every response, including that for robots.txt.
    pub(crate) response_delay: Duration,
    /// The content of robots.txt; `None` means 404.
    pub(crate) robots: Option<&'static str>,
    /// Whether hosts link to each other, in a ring.
    pub(crate) links_across_hosts: bool,
}

impl Default for Site {
    fn default() -> Self {
        Self {
            hosts: 1,
            pages: 1,
            response_delay: Duration::ZERO,
            robots: None,
            links_across_hosts: false,
        }
    }
}

/// The response to a request.
#[derive(Debug, Clone)]
pub(crate) enum OriginResponse {
    /// A complete response with this status, these further header lines and this body.
    Full { status: &'static str, headers: String, body: String },
    /// Sends these bytes and closes the connection.
    Raw(Vec<u8>),
    /// Sends a head with a length of 10 GB, then bytes as long as the client reads.
    Endless,
    /// Sends a header line without an end.
    EndlessHeader,
    /// Sends a head, then single bytes with pauses.
    Drip,
    /// Sends a page, so slowly that it ends only after this is set, and so fast that no client takes the
    /// server for silent.
    Held(Arc<AtomicBool>),
    /// Sends nothing as long as the client waits.
    Silent,
    /// Closes the connection in the middle of the body.
    Truncated,
}

impl Site {
    /// The address of the host with this number.
    pub(crate) fn host(number: u16) -> Ipv4Addr {
        // No address ends in 0 or 255, which could be taken for a network or broadcast address.
        let [high, low] = [number / 250, number % 250 + 1].map(|part| u8::try_from(part).unwrap());
        Ipv4Addr::new(127, 1, high, low)
    }

    /// The number of a host of [`Site::host`].
    fn number(host: Ipv4Addr) -> u16 {
        let [_, _, high, low] = host.octets().map(u16::from);
        high * 250 + low - 1
    }

    /// The paths of all generated pages of a host.
    pub(crate) fn paths(&self) -> Vec<String> {
        (0..self.pages).map(|page| format!("/p/{page}")).collect()
    }

    /// The response to a request for this path.
    pub(super) fn response(&self, host: Ipv4Addr, port: u16, path: &str) -> OriginResponse {
        let (folder, rest) =
            path.trim_start_matches('/').split_once('/').unwrap_or((&path[1..], ""));
        let number = rest.parse::<u32>().ok();
        match (folder, number) {
            ("robots.txt", _) => match self.robots {
                Some(text) => full_response("200 OK", "Content-Type: text/plain\r\n", text),
                None => not_found(),
            },
            ("p", Some(page)) if page < self.pages => html_response(&self.page(host, port, page)),
            ("private", Some(_)) => html_response("<title>Private</title>"),
            ("redirect", Some(page)) => redirect(&format!("/p/{page}")),
            ("chain", Some(0)) => html_response("<title>The end of the chain</title>"),
            ("chain", Some(left)) => redirect(&format!("/chain/{}", left - 1)),
            ("bad", _) => bad_response(rest),
            _ => not_found(),
        }
    }

    fn page(&self, host: Ipv4Addr, port: u16, page: u32) -> String {
        let mut body = format!(
            "<!doctype html><html><head><title>Page {page} of {host}</title></head><body>\n\
             <a href=\"#here\">here</a> <a href=\"/p/{page}#there\">there</a>\n\
             <a href=\"/private/{page}\">private</a>\n"
        );
        for child in [2 * page + 1, 2 * page + 2] {
            if child < self.pages {
                // Two spellings of the same URL.
                let _ =
                    writeln!(body, "<a href=\"/p/{child}\">a</a> <a href='../p/./{child}#x'>b</a>");
            }
        }
        if self.links_across_hosts && page == 0 {
            let next = Self::host((Self::number(host) + 1) % self.hosts);
            let _ = writeln!(body, "<a href=\"http://{next}:{port}/p/0\">next</a>");
        }
        body + "</body></html>\n"
    }
}

fn bad_response(path: &str) -> OriginResponse {
    match path {
        "500" => full_response("500 Internal Server Error", "", "broken"),
        "reset" => OriginResponse::Raw(Vec::new()),
        "garbage" => OriginResponse::Raw((0..=255).cycle().take(4096).collect()),
        "torn" => OriginResponse::Truncated,
        "endless-header" => OriginResponse::EndlessHeader,
        "drip" => OriginResponse::Drip,
        "silent" => OriginResponse::Silent,
        _ => not_found(),
    }
}

pub(crate) fn html_response(body: &str) -> OriginResponse {
    full_response("200 OK", "Content-Type: text/html; charset=utf-8\r\n", body)
}

pub(crate) fn redirect(target: &str) -> OriginResponse {
    full_response("302 Found", &format!("Location: {target}\r\n"), "")
}

fn not_found() -> OriginResponse {
    full_response("404 Not Found", "Content-Type: text/html\r\n", "<title>Not found</title>")
}

pub(crate) fn full_response(status: &'static str, headers: &str, body: &str) -> OriginResponse {
    OriginResponse::Full { status, headers: headers.to_owned(), body: body.to_owned() }
}

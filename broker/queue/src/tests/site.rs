//! The pages of the simulated site. Only its URL decides a page's links.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use tidings_protocol::Render;

pub(super) const HOSTS: u64 = 6;
pub(super) const PAGES: u64 = 12;
/// Number of additional hosts with unlinked pages, numbered after the others.
pub(super) const LONELY_HOSTS: u64 = 4;

/// Every page and its links.
static SITE: LazyLock<BTreeMap<String, Vec<String>>> = LazyLock::new(|| {
    let hosts = (0..HOSTS).flat_map(|host| (0..PAGES).map(move |number| page(host, number)));
    hosts.map(|url| (url.clone(), links(&url))).collect()
});

pub(super) fn page(host: u64, number: u64) -> String {
    format!("http://h{host}.org/p{number}")
}

pub(super) fn host_of(url: &str) -> String {
    url.split('/').nth(2).expect("a URL has a host").to_owned()
}

/// The number of a page's host.
pub(super) fn host_number(url: &str) -> u64 {
    let digit = url.as_bytes().get("http://h".len()).expect("the URL is a page");
    u64::from(digit - b'0')
}

/// Whether other pages may link to it.
pub(super) fn is_linked(url: &str) -> bool {
    SITE.contains_key(url)
}

/// The rule of jobs that have one for some pages.
pub(super) const RENDER_RULE: &str = "*4$";

/// What every event about a page says about its rendering. Redirects keep the number of a page, and
/// so this.
pub(super) fn render_of(url: &str) -> Option<Render> {
    match last_digit(url) {
        b'0' => Some(Render::Yes),
        b'1' => Some(Render::No),
        b'2' => Some(Render::Auto),
        _ => None,
    }
}

/// Whether a worker that has fetched the page finds that it needs a browser.
pub(super) fn is_empty_page(url: &str) -> bool {
    matches!(last_digit(url), b'2' | b'3')
}

/// Whether a task for the page may need a browser.
pub(super) fn may_need_render(url: &str) -> bool {
    matches!(last_digit(url), b'0' | b'2' | b'3' | b'4')
}

/// A never-list, which is in force at times.
pub(super) const NEVER_LIST: &str = "# two\n*.h9.org\n*/p11$\n";

/// Whether the page is on it. Nothing is promised about such pages, except that they are not
/// requested while the list is in force.
pub(super) fn is_on_never_list(url: &str) -> bool {
    url.ends_with("/p11") || host_number(url) == 9
}

fn last_digit(url: &str) -> u8 {
    *url.as_bytes().last().expect("a URL is not empty")
}

/// A page's links, decided by its URL alone. Mostly few, so that jobs differ in size.
pub(super) fn links_of(url: &str) -> impl Iterator<Item = &'static str> {
    SITE.get(url).into_iter().flatten().map(String::as_str)
}

/// The redirect target of a page: the page with the same number on the next host.
pub(super) fn redirect_of(url: &str) -> String {
    let number = url.rsplit_once("/p").and_then(|(_, number)| number.parse().ok());
    page((host_number(url) + 1) % HOSTS, number.expect("the URL is a page"))
}

fn links(url: &str) -> Vec<String> {
    let hash = fnv(url);
    let count = hash % 4;
    (0..count)
        .map(|link| {
            let target = fnv(&format!("{url} {link}"));
            page(target % HOSTS, target / HOSTS % PAGES)
        })
        .collect()
}

fn fnv(text: &str) -> u64 {
    let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, hash) >> 7
}

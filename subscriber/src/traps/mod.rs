//! Recognizes traps: sites without end. A calendar that always has another month, links that lead
//! one directory deeper each time, a new session in every link: intended or not, a crawl of them
//! would never end.
//!
//! A URL is checked before its request, and a page after it was read. A refused one is a final
//! state of its task, with the name of its [`Trap`]. The rules need evidence from the same site in
//! the same pass, so that large honest sites pass: ten thousand pages of documentation, twenty
//! years of daily archives, a shop with a hundred thousand products. The budgets of the job end a
//! trap that no rule recognizes.
//!
//! No probe request is made: a soft 404 is recognized by its body, which appears under unrelated
//! URLs. Session ids in a query are recognized by their behaviour, and removed from links
//! (`traps/sessions.rs`, and for users `OUTCOMES.md`). The tables are bounded, in two generations:
//! sites that were not met for long are evicted, and start again without evidence. Each worker
//! knows only the pages that it has fetched itself, so with several workers a trap may cost that
//! many times as much.

mod sessions;
pub(crate) mod shape;

use hashbrown::HashMap;
use tidings_documents::page::PageLink;
use tidings_protocol::{CanonicalUrl, with_defaults, word_enum};
use xxhash_rust::xxh3::xxh3_64;

use self::sessions::Sessions;
use self::shape::UrlShape;
use crate::pass::PassKey;

/// A longer URL counts as a trap: browsers, servers and sitemaps have about this limit.
pub const TRAP_URL_BYTES_MAX: usize = 2_000;
/// Segments of a path. Deep trees of sources and archives have a dozen.
pub const SEGMENTS_MAX: usize = 32;
/// How often one segment that is not a number may occur in a path. Three times is rare, but
/// happens.
pub const SEGMENT_REPEATS_MAX: usize = 3;
/// Parameters of a query. The largest search forms have some twenty.
const PARAMS_MAX: usize = 32;
/// Different lists of parameter names of one path, numbers and ids left out. The software of the
/// largest wikis and forums has some fifty; ten filters in any order have millions.
const QUERY_SHAPES_MAX: u16 = 200;
/// A page with this many parameters is a view of others ..
const FACETED_PARAMS: usize = 4;
/// .. and this many pages with the same parameter names are enough.
const FACETED_PAGES_MAX: u32 = 2_000;
/// How often a page is read with another session id in its URL. Two could be chance.
const SESSION_COPIES_MAX: u8 = 3;
/// Calendar pages up to this many years ahead are fetched ..
const CALENDAR_YEARS_AHEAD: u16 = 5;
/// .. and up to this many years back: newspapers have archives of that age.
const CALENDAR_YEARS_BACK: u16 = 200;
/// After this many pages, all of them with plausible dates, a series of numbers counts as a
/// calendar. Forum topics that are numbered like years have other numbers sooner.
const CALENDAR_PAGES_MIN: u32 = 24;
/// Pages of a calendar: every day of thirty years, and a few.
const CALENDAR_PAGES_MAX: u32 = 12_000;
/// Links in a row between the first page and the last of those that differ in numbers only: pages
/// of a list, each found on the one before. Such long lists have shortcuts.
const CHAIN_MAX: u32 = 1_000;
/// Pages that differ in numbers, ids and values only: the products of a very large shop.
pub const SHAPE_PAGES_MAX: u32 = 100_000;
/// URLs of a site that may have the same body. A site that exists twice, or in all its languages,
/// stays below.
const SAME_CONTENT_MAX: u16 = 100;
/// The same body under this many different URL shapes is what a site sends instead of 404.
const SOFT_NOT_FOUND_SHAPES: u32 = 8;
/// Entries in each table of one site (shapes, bodies ..). Those that were met once are evicted
/// first.
const TRAP_ENTRIES_MAX: usize = 14_000;
/// Memory of the trap tables of all sites, exceeded by a page or two at most: 30,000 small sites,
/// or ten of the largest.
const TRAPS_BYTES_MAX: usize = 32 * 1024 * 1024;

word_enum! {
    /// Why a URL is not requested, or why the links of a page are not followed.
    #[derive(PartialOrd, Ord)]
    pub enum Trap {
        /// A URL that grew with each step.
        UrlTooLong = "url-too-long",
        /// A path that grew with each step.
        DeepPath = "deep-path",
        /// A path that goes through the same place again and again.
        RepeatedSegments = "repeated-segments",
        /// Filters and sort orders, in all their combinations.
        QueryMaze = "query-maze",
        /// A page that was read already, under another session.
        SessionId = "session-id",
        /// Dates far from today, or without end.
        Calendar = "calendar",
        /// A counter without end, or too many pages that differ in a number only.
        TooManyFromPrefix = "too-many-from-prefix",
        /// More pages than one site may have.
        HostBudget = "host-budget",
        /// The same page under many URLs.
        SameContent = "same-content",
        /// The same page under unrelated URLs: the site's page for missing documents.
        SoftNotFound = "soft-not-found",
    }
}

impl Trap {
    /// A line for a person.
    pub fn explanation(self) -> &'static str {
        match self {
            Self::UrlTooLong => "the URL is longer than those of honest pages",
            Self::DeepPath => "the path has more segments than those of honest pages",
            Self::RepeatedSegments => "the path goes through the same segment again and again",
            Self::QueryMaze => "too many combinations of parameters of one page",
            Self::SessionId => "the page was read already, with other session ids in its URL",
            Self::Calendar => "a calendar without end",
            Self::TooManyFromPrefix => "too many pages whose URLs differ in their numbers only",
            Self::HostBudget => "the site has reached its limit of pages for this pass",
            Self::SameContent => "the same content was found under many other URLs of the site",
            Self::SoftNotFound => "the site answers with this page for any URL",
        }
    }
}

with_defaults! {
    /// The limits of a site that a flag or a test changes; the constants tell the reasons of the
    /// defaults.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct TrapLimits {
        /// Whether traps are refused at all.
        pub enabled: bool = true,
        /// Bytes of a URL.
        pub url_bytes_max: usize = TRAP_URL_BYTES_MAX,
        /// Segments of a path.
        pub segments_max: usize = SEGMENTS_MAX,
        /// How often a segment may occur in a path.
        pub segment_repeats_max: usize = SEGMENT_REPEATS_MAX,
        /// Pages that differ in numbers, ids and values only.
        pub shape_pages_max: u32 = SHAPE_PAGES_MAX,
        /// Pages of one site in one pass. Default: one a second for twelve days.
        pub host_pages_max: u64 = 1_000_000,
        /// URLs with the same content.
        pub same_content_max: u16 = SAME_CONTENT_MAX,
    }
}

/// The evidence about the sites of each pass.
#[derive(Debug)]
pub struct Traps {
    limits: TrapLimits,
    /// The year from which calendars are judged.
    this_year: u16,
    /// Recently met sites; when they take half of the memory, they become the old generation.
    young: HashMap<SiteKey, Site>,
    old: HashMap<SiteKey, Site>,
    /// Memory of the young generation; `<= bytes_max / 2`, exceeded by one page at most.
    young_bytes: usize,
    bytes_max: usize,
    /// Whether session ids of any site were recognized so far.
    knows_sessions: bool,
}

/// The properties of a page by which it is recognized under another URL.
#[derive(Debug, Clone, Copy)]
pub struct PageReading<'a> {
    /// The hash of its body.
    pub body: &'a [u8; 32],
    /// Its title.
    pub title: Option<&'a str>,
    /// The fingerprint of its words
    /// ([`PageContent::word_fingerprint`](tidings_documents::page::PageContent::word_fingerprint)).
    pub words: Option<u64>,
    /// Its links, with their session ids.
    pub links: &'a [PageLink],
}

/// A pass, and the fingerprint of a host with its port: another port is another site.
type SiteKey = (PassKey, u64);

/// One site in one pass. Keys are fingerprints of texts.
#[derive(Debug, Default)]
struct Site {
    pages: u64,
    /// By the shape of a URL; only shapes that other URLs may have too.
    shapes: HashMap<u64, ShapeCounts>,
    /// By path: the number of combinations of parameters.
    queries: HashMap<u64, u16>,
    /// By URL without its session: the number of pages.
    copies: HashMap<u64, u8>,
    bodies: HashMap<u64, BodyCounts>,
    sessions: Sessions,
}

/// Pages with URLs that differ in numbers, ids and values only.
#[derive(Debug)]
struct ShapeCounts {
    pages: u32,
    /// Pages with a plausible date. `<= pages`.
    dates: u32,
    /// The least depth of these pages.
    depth: u32,
}

/// A body that was found under several URLs.
#[derive(Debug, Default)]
struct BodyCounts {
    /// Number of URLs; the same URL twice in a row counts once.
    urls: u16,
    /// Part of the fingerprint of the last URL.
    last_url: u32,
    /// A bit for each 32nd of all shapes: there are at least as many different shapes as bits.
    shapes: u32,
}

impl Traps {
    /// Without evidence. A worker may run past the end of the year: one year more or less of a
    /// calendar does not matter.
    pub fn new(limits: TrapLimits, this_year: u16) -> Self {
        Self {
            limits,
            this_year,
            young: HashMap::new(),
            old: HashMap::new(),
            young_bytes: 0,
            bytes_max: TRAPS_BYTES_MAX,
            knows_sessions: false,
        }
    }

    /// Checks a URL before its request. Changes no count, so a repeated task may check it again.
    pub fn check_url(
        &mut self,
        pass: PassKey,
        url: &CanonicalUrl<'_>,
        depth: u32,
    ) -> Result<(), Trap> {
        if !self.limits.enabled {
            return Ok(());
        }
        self.check_url_alone(url)?;
        let key = site_key(pass, url);
        self.mark_young(key);
        let Some(site) = self.young.get(&key) else { return Ok(()) };
        if site.sessions.is_copy(url) {
            return Err(Trap::SessionId);
        }
        let look = UrlShape::of(url);
        site.check_shape(&look, depth, &self.limits, self.this_year)
    }

    /// Learns from a page which parameters of its site are session ids. `None`: the page has not
    /// changed. Returns the names that were recognized by this page.
    pub fn learn_sessions(
        &mut self,
        pass: PassKey,
        url: &CanonicalUrl<'_>,
        reading: Option<&PageReading<'_>>,
    ) -> Vec<String> {
        if !self.limits.enabled {
            return Vec::new();
        }
        let found = self.update_site(site_key(pass, url), |site, _| {
            if let Some(reading) = reading {
                site.sessions.note_links(url, reading.links);
            }
            site.sessions.note_page(url, reading)
        });
        self.knows_sessions |= !found.is_empty();
        found
    }

    /// A link, or the target of a redirect, without the recognized session ids; `None` if it has
    /// none. The result is canonical, as the link is.
    pub fn without_session(&self, pass: PassKey, link: &str) -> Option<String> {
        if !self.knows_sessions || !link.contains('?') {
            return None;
        }
        let link = CanonicalUrl::parse(link).ok()?;
        let key = site_key(pass, &link);
        self.young.get(&key).or_else(|| self.old.get(&key))?.sessions.strip(&link)
    }

    /// Counts a page that was read, and checks the hash of its body. Do not follow the links of a
    /// refused page.
    pub fn check_page(
        &mut self,
        pass: PassKey,
        url: &CanonicalUrl<'_>,
        depth: u32,
        body: &[u8; 32],
    ) -> Result<(), Trap> {
        if !self.limits.enabled {
            return Ok(());
        }
        let year = self.this_year;
        self.update_site(site_key(pass, url), |site, limits| {
            let look = UrlShape::of(url);
            site.count_page(&look, depth, year);
            site.check_body(&look, xxh3_64(url.as_str().as_bytes()), body, limits)
        })
    }

    /// Removes a pass that is over.
    pub fn forget(&mut self, pass: PassKey) {
        let Self { young, young_bytes, .. } = self;
        young.retain(|(of, _), site| {
            if *of == pass {
                *young_bytes -= SITE_BYTES + site.bytes();
            }
            *of != pass
        });
        self.old.retain(|(of, _), _| *of != pass);
    }

    /// The rules that need no evidence.
    fn check_url_alone(&self, url: &CanonicalUrl<'_>) -> Result<(), Trap> {
        let limits = &self.limits;
        if url.as_str().len() > limits.url_bytes_max {
            return Err(Trap::UrlTooLong);
        }
        let path = url.path();
        if path.split('/').skip(1).count() > limits.segments_max {
            return Err(Trap::DeepPath);
        }
        // Numbers repeat in honest paths: `/1/1/1/1/` may be a shard, a tile or a date.
        let is_place = |segment: &&str| {
            !segment.bytes().all(|byte| byte.is_ascii_digit()) || segment.is_empty()
        };
        let places = || path.split('/').skip(1).filter(is_place);
        if places().any(|place| {
            places().filter(|other| *other == place).count() > limits.segment_repeats_max
        }) {
            return Err(Trap::RepeatedSegments);
        }
        if shape::params(url).count() > PARAMS_MAX {
            return Err(Trap::QueryMaze);
        }
        Ok(())
    }

    /// Updates a site, and moves it to the young generation.
    fn update_site<T>(
        &mut self,
        key: SiteKey,
        change: impl FnOnce(&mut Site, &TrapLimits) -> T,
    ) -> T {
        self.mark_young(key);
        let site = self.young.entry(key).or_insert_with(|| {
            self.young_bytes += SITE_BYTES;
            Site::default()
        });
        let before = site.bytes();
        let changed = change(site, &self.limits);
        self.young_bytes = self.young_bytes - before + site.bytes();
        if self.young_bytes > self.bytes_max / 2 {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
        changed
    }

    /// Moves a site to the young generation.
    fn mark_young(&mut self, key: SiteKey) {
        if let Some(site) = self.old.remove(&key) {
            self.young_bytes += SITE_BYTES + site.bytes();
            self.young.insert(key, site);
        }
    }
}

/// Bytes of a site with empty tables: itself and its key, in a table that may be half empty.
const SITE_BYTES: usize = 2 * (size_of::<Site>() + size_of::<SiteKey>());

fn site_key(pass: PassKey, url: &CanonicalUrl<'_>) -> SiteKey {
    (pass, xxh3_64(url.authority().as_bytes()))
}

impl Site {
    fn bytes(&self) -> usize {
        self.shapes.allocation_size()
            + self.queries.allocation_size()
            + self.copies.allocation_size()
            + self.bodies.allocation_size()
            + self.sessions.bytes()
    }

    fn check_shape(
        &self,
        look: &UrlShape,
        depth: u32,
        limits: &TrapLimits,
        year: u16,
    ) -> Result<(), Trap> {
        if self.pages >= limits.host_pages_max {
            return Err(Trap::HostBudget);
        }
        if let Some(common) = look.without_session
            && self.copies.get(&common).is_some_and(|copies| *copies >= SESSION_COPIES_MAX)
        {
            return Err(Trap::SessionId);
        }
        let Some(shape) = self.shapes.get(&look.shape).filter(|_| look.is_generalized) else {
            let queries = self.queries.get(&look.path).filter(|_| look.params > 0);
            let is_maze = queries.is_some_and(|queries| *queries >= QUERY_SHAPES_MAX);
            return if is_maze { Err(Trap::QueryMaze) } else { Ok(()) };
        };
        // Numbers that look like dates count as dates, if all others so far did.
        let is_calendar = shape.dates == shape.pages;
        if is_calendar {
            let is_far = look.year.is_some_and(|of_page| !is_of_our_times(of_page, year));
            if (is_far && shape.pages >= CALENDAR_PAGES_MIN) || shape.pages >= CALENDAR_PAGES_MAX {
                return Err(Trap::Calendar);
            }
        }
        if look.params >= FACETED_PARAMS && shape.pages >= FACETED_PAGES_MAX {
            return Err(Trap::QueryMaze);
        }
        let is_chain = !is_calendar && depth.saturating_sub(shape.depth) >= CHAIN_MAX;
        if is_chain || shape.pages >= limits.shape_pages_max {
            return Err(Trap::TooManyFromPrefix);
        }
        Ok(())
    }

    fn count_page(&mut self, look: &UrlShape, depth: u32, year: u16) {
        self.pages += 1;
        if let Some(common) = look.without_session {
            make_room(&mut self.copies, |copies| *copies > 1);
            let copies = self.copies.entry(common).or_default();
            *copies = copies.saturating_add(1);
        }
        if !look.is_generalized {
            return;
        }
        make_room(&mut self.shapes, |shape| shape.pages > 1);
        let shape =
            self.shapes.entry(look.shape).or_insert(ShapeCounts { pages: 0, dates: 0, depth });
        if shape.pages == 0 && look.params > 0 {
            make_room(&mut self.queries, |queries| *queries > 1);
            let queries = self.queries.entry(look.path).or_default();
            *queries = queries.saturating_add(1);
        }
        shape.pages = shape.pages.saturating_add(1);
        let is_date = look.year.is_some_and(|of_page| is_of_our_times(of_page, year));
        shape.dates = shape.dates.saturating_add(u32::from(is_date));
        shape.depth = shape.depth.min(depth);
    }

    fn check_body(
        &mut self,
        look: &UrlShape,
        url: u64,
        body: &[u8; 32],
        limits: &TrapLimits,
    ) -> Result<(), Trap> {
        make_room(&mut self.bodies, |body| body.urls > 1);
        let body = self.bodies.entry(xxh3_64(body)).or_default();
        let [_, _, _, _, url @ ..] = url.to_be_bytes();
        let url = u32::from_be_bytes(url);
        if body.urls == 0 || body.last_url != url {
            body.urls = body.urls.saturating_add(1);
        }
        body.last_url = url;
        body.shapes |= 1 << (look.shape % 32);
        if body.shapes.count_ones() >= SOFT_NOT_FOUND_SHAPES {
            return Err(Trap::SoftNotFound);
        }
        if body.urls > limits.same_content_max {
            return Err(Trap::SameContent);
        }
        Ok(())
    }
}

/// Keeps a table within its limit: removes entries that were met once; if that is not enough, all
/// entries.
fn make_room<T>(table: &mut HashMap<u64, T>, is_kept: impl Fn(&T) -> bool) {
    if table.len() < TRAP_ENTRIES_MAX {
        return;
    }
    table.retain(|_, entry| is_kept(entry));
    // Otherwise the next few insertions would scan the table again.
    if table.len() > TRAP_ENTRIES_MAX * 3 / 4 {
        table.clear();
    }
}

/// Whether a year is plausible for a page.
fn is_of_our_times(year: u16, this_year: u16) -> bool {
    (this_year.saturating_sub(CALENDAR_YEARS_BACK)..=this_year.saturating_add(CALENDAR_YEARS_AHEAD))
        .contains(&year)
}

#[cfg(test)]
mod tests;

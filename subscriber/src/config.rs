//! What a crawler is told, and every limit it keeps, each with its unit, default and reason.

use std::path::PathBuf;
use std::time::Duration;

use tidings_protocol::client::Security;
use tidings_protocol::{GroupName, MemberId, URL_BYTES_MAX};
use xxhash_rust::xxh3::xxh3_64;

use crate::address::AllowPrivate;
use crate::fetch::AddedHeader;
use crate::sink::SinkConfig;
use crate::tracking::TrackingParams;
use crate::traps::TrapLimits;

/// A crawler's settings. Start from [`CrawlerConfig::default`] and change what is needed.
#[derive(Clone, Debug)]
pub struct CrawlerConfig {
    /// `host:port` of the broker, or `unix:path`. Default: `127.0.0.1:12345`.
    pub broker: String,
    /// Within what the connection to it is encrypted. Default: it is not.
    pub security: Security,
    /// The group to join. Default: `crawlers`.
    pub group: GroupName,
    /// Tasks held at once, at most. Default: 1000. An open request is cheap and no host ever has
    /// two, so this bounds memory and file descriptors, not politeness.
    pub credit: u32,
    /// The `User-Agent` header; the part before the first `/` is the product token that
    /// robots.txt rules are matched with. Default: `tidings/<version>`.
    pub agent: String,
    /// Whom to ask about this crawler: a URL or an e-mail address, which [`agent`](Self::agent) names
    /// already. Default: nobody, about which whoever starts it is warned.
    pub contact: Option<String>,
    /// What counts as a link of a page.
    pub links: LinkConfig,
    /// Whether pages are read whole where a record would let their server say that nothing has changed. Default: no.
    pub refetch: bool,
    /// When a site is taken to have no end.
    pub traps: TrapLimits,
    /// The identity by which the broker knows this worker again. Default `None`: the broker gives it
    /// one.
    pub member: Option<MemberId>,
    /// A label for people, shown by the broker. Default: `crawler`.
    pub name: String,
    /// Where a crawler keeps what it needs; created if missing. Default: `tidings-data`.
    pub data: PathBuf,
    /// Where pages are stored: in all of these. Default: none, which is `pages.db` in `data`.
    pub sinks: Vec<SinkConfig>,
    /// Variables of ours that programs are given which are run for pages, besides what every program needs.
    pub exec_variables: Vec<String>,
    /// Addresses outside the public internet that may be crawled all the same. Default: none.
    pub allow_private: AllowPrivate,
    /// A connection stands within this time, name resolution and TLS included. Default: 10 s.
    pub connect_timeout: Duration,
    /// The longest silence of a server: until its answer begins, and within the body.
    /// Default: 15 s.
    pub read_timeout: Duration,
    /// One request from start to end, whatever the server does. Default: 40 s; in any case at
    /// most eight tenths of the task's lease, so that a request has ended before the broker
    /// could give the host to another crawler.
    pub request_timeout: Duration,
    /// A decoded body may have this many bytes; a longer one is that page's failure.
    /// Default: 64 MiB. Bodies are streamed, so this bounds work rather than memory.
    pub body_bytes_max: u64,
    /// All requests go through this proxy: `http://[user:password@]host:port`. Default: none.
    pub proxy: Option<String>,
    /// Headers that requests carry besides the usual ones. Default: none.
    pub headers: Vec<AddedHeader>,
    /// Whether cookies that a server sets are sent back to it. Default: no.
    pub cookies: bool,
    /// Requests at once to one address, whatever names lead there. Default: no limit.
    pub per_address: Option<u32>,
}

/// What counts as a link of a page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkConfig {
    /// Whether images of a page count. Default: no.
    pub images: bool,
    /// Whether the sitemaps that a robots.txt names are read for links. Default: no.
    pub sitemaps: bool,
    /// Parameters that are taken out of links because they say who follows them. Default: a list.
    pub tracking: TrackingParams,
}

impl LinkConfig {
    /// In which way that is not the usual, stored with each page: one that has not changed since it was read
    /// in another way may have other links.
    pub fn reading(&self) -> Option<String> {
        let mut words = Vec::new();
        words.extend(self.images.then(|| "images".to_owned()));
        words.extend(self.sitemaps.then(|| "sitemaps".to_owned()));
        if self.tracking != TrackingParams::default() {
            // The list may be long.
            words.push(format!("tracking={:016x}", xxh3_64(self.tracking.to_string().as_bytes())));
        }
        (!words.is_empty()).then(|| words.join(" "))
    }
}

impl Default for CrawlerConfig {
    fn default() -> Self {
        Self {
            broker: format!("127.0.0.1:{}", tidings_protocol::PORT),
            security: Security::default(),
            group: tidings_protocol::DEFAULT_GROUP
                .parse()
                .expect("the default group has a valid name"),
            credit: 1000,
            agent: concat!("tidings/", env!("CARGO_PKG_VERSION")).to_owned(),
            contact: None,
            links: LinkConfig::default(),
            refetch: false,
            traps: TrapLimits::default(),
            member: None,
            name: "crawler".to_owned(),
            data: PathBuf::from("tidings-data"),
            sinks: Vec::new(),
            exec_variables: Vec::new(),
            allow_private: AllowPrivate::None,
            connect_timeout: Duration::from_secs(10),
            read_timeout: Duration::from_secs(15),
            request_timeout: Duration::from_secs(40),
            body_bytes_max: 64 * 1024 * 1024,
            proxy: None,
            headers: Vec::new(),
            cookies: false,
            per_address: None,
        }
    }
}

impl CrawlerConfig {
    /// Where pages are stored.
    pub fn sinks(&self) -> Vec<SinkConfig> {
        if self.sinks.is_empty() {
            return vec![SinkConfig::Sqlite(self.data.join("pages.db"))];
        }
        self.sinks.clone()
    }
}

/// Decoded bytes of a robots.txt that are read; what follows is ignored. RFC 9309 section 2.5
/// asks for at least 500 KiB.
pub const ROBOTS_BYTES_MAX: usize = 500 * 1024;
/// Redirects followed for one robots.txt; after that it counts as unavailable, so all is
/// allowed (RFC 9309 section 2.3.1.2).
pub const ROBOTS_HOPS_MAX: u8 = 5;
/// How long a robots.txt is used before it is asked for again (RFC 9309 section 2.4).
pub const ROBOTS_FRESH: Duration = Duration::from_hours(24);
/// How much longer a copy is used when the server cannot give a newer one. Long enough to ride
/// out an outage, short enough that new rules are noticed the same day.
pub const ROBOTS_STALE_EXTENSION: Duration = Duration::from_hours(1);
/// Verdicts kept, in authorities. At some 200 bytes each this is 20 MiB; the oldest tenth goes
/// first, and costs one more robots.txt request if its host comes again.
pub const ROBOTS_CACHE_MAX: usize = 100_000;
/// Bytes of all rules kept together: a robots.txt of 500 KiB takes some megabytes once it is read,
/// and anybody can make a name have one. The oldest go first here, too.
pub const ROBOTS_CACHE_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Sitemaps taken from one robots.txt: sites have one or a few, and a list of many is itself one.
pub const ROBOTS_SITEMAPS_MAX: usize = 64;
/// Bytes shown of the line of a robots.txt that decided: what a person reads.
pub const ROBOTS_RULE_SHOWN_BYTES_MAX: usize = 512;
/// A longer crawl-delay is taken as this: a day, which is also how long the broker keeps a pace.
pub const CRAWL_DELAY_MAX: Duration = Duration::from_hours(24);
/// Authorities whose robots.txt was redirected, and of which the next hop is awaited. Few sites do
/// that; a forgotten one starts again at the beginning.
pub const ROBOTS_WALKS_MAX: usize = 10_000;
/// A walk through redirects that nobody went on with for this long begins anew: what was said of it
/// may not be so any more. Many times what a busy host makes the next hop wait.
pub const ROBOTS_WALK_FRESH: Duration = Duration::from_mins(10);
/// A robots.txt that has been unreachable for this long, and of which no copy is known, is taken for
/// one that does not exist (RFC 9309 section 2.3.1.4 names these 30 days, too).
pub const ROBOTS_OUTAGE_LONG: Duration = Duration::from_hours(30 * 24);
/// A robots.txt that cannot be had is not asked for again for as long as it could not be had already, but at least for
/// this long, and at most for [`ROBOTS_OUTAGE_PAUSE_MAX`]. As long as a group waits after a first failure: a name that
/// will never answer holds up no job.
pub const ROBOTS_OUTAGE_PAUSE_MIN: Duration = Duration::from_secs(2);
/// A host that is back after long is noticed within this time.
pub const ROBOTS_OUTAGE_PAUSE_MAX: Duration = Duration::from_mins(5);
/// Authorities kept of which the robots.txt cannot be had, each with a line of text. One that is forgotten costs a request.
pub const ROBOTS_OUTAGES_MAX: usize = 10_000;
/// How long a copy, and that there is an outage, is remembered on disk after it was last heard of:
/// past the moment at which the outage is a long one.
pub const ROBOTS_KEPT: Duration = Duration::from_hours(60 * 24);

/// Values that wait to be read from or written to `crawler.db`. Beyond it what is to be remembered is
/// dropped.
pub const STATE_QUEUE_MAX: usize = 4096;
/// Bytes of values that wait to be written, in all: one slow disk holds this much memory.
pub const STATE_QUEUE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Values in one transaction: bounds how long the first waits for the last.
pub const STATE_BATCH_MAX: usize = 512;
/// A larger value is not remembered: above the largest robots.txt ([`ROBOTS_BYTES_MAX`]).
pub const STATE_VALUE_BYTES_MAX: usize = 1024 * 1024;
/// A longer key is not remembered: an authority can be as long as a URL, and has a token before it.
pub const STATE_KEY_BYTES_MAX: usize = 16 * 1024;
/// Values kept: one or two for each host of a large crawl. What expires soonest goes first.
pub const STATE_ROWS_MAX: u64 = 1_000_000;
/// Bytes of `crawler.db`, as far as it is used.
pub const STATE_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// How often what has expired is taken out; sooner if much was stored ([`STATE_SWEEP_ROWS`],
/// [`STATE_QUEUE_BYTES_MAX`]).
pub const STATE_SWEEP_EVERY: Duration = Duration::from_mins(10);
/// Values taken out at a time, and stored until they are counted: some tens of milliseconds.
pub const STATE_SWEEP_ROWS: u32 = 10_000;
/// How long a task waits for what may be remembered: a request costs about as much.
pub const STATE_PATIENCE: Duration = Duration::from_secs(1);
/// How long `SQLite` waits for another process that writes to `crawler.db`.
pub const STATE_BUSY_TIMEOUT: Duration = Duration::from_secs(2);

/// What sitemaps of a site are remembered as.
pub const SITEMAPS_KIND: &str = "sitemaps";
/// Bytes of a watched feed that are read at a time.
pub const FEED_READ_BYTES: usize = 64 * 1024;
/// Different links kept from one page. Indexes of large manuals have some thousands.
pub const LINKS_MAX: usize = 16 * 1024;
/// Bytes of all links of one page together, before they are made absolute: what one page may
/// hold in memory until it is stored.
pub const LINKS_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Bytes of all links of one page together, made absolute; each counts at least as much as what it is below, up to its
/// query, and also if it leads nowhere or was met before. Short links below a long `<base>` or URL grow a thousandfold;
/// honest pages of [`LINKS_MAX`] links stay below this.
pub const LINKS_ABSOLUTE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Links of one page that are made absolute at once, where others wait meanwhile ..
pub const QUICK_LINKS_MAX: usize = 500;
/// .. if they are below no longer base. A link may cost that its base is parsed, at some 12 ns a byte.
pub const QUICK_BASE_BYTES_MAX: usize = 1024;
/// Links taken from the headers of an answer. Servers name a canonical URL, or the next page.
pub const HEADER_LINKS_MAX: usize = 100;
/// A longer attribute is no link that anybody meant; also the canonical URL's own limit.
pub const LINK_BYTES_MAX: usize = 8 * 1024;
/// A longer tag says nothing but its name. Images in `data:` URLs are longer; links are not.
pub const TAG_BYTES_MAX: usize = 64 * 1024;
/// Elements open in pictures and formulas of which the names are known. Drawing programs nest some tens.
pub const FOREIGN_DEPTH_MAX: usize = 256;
/// Feeds that one page may name. Blogs have one of each kind, and one for comments.
pub const FEEDS_MAX: usize = 16;
/// Bytes looked at for a `<meta charset>`, as browsers do.
pub const CHARSET_PRESCAN_BYTES: usize = 1024;
/// Bytes held back of a page that declares no encoding, from the first that is not ASCII on, to see what
/// it is. Some hundred words of text between markup; more does not make the guess better.
pub const CHARSET_GUESS_BYTES: usize = 16 * 1024;
/// A title is cut after this many bytes, at a character.
pub const TITLE_BYTES_MAX: usize = 1024;
/// Bytes kept of a title as it is written. Entities and white space make it longer than it reads.
pub const TITLE_WRITTEN_BYTES_MAX: usize = 8 * TITLE_BYTES_MAX;

/// Bytes looked at for what a document is that does not call itself HTML. Before the first element of a feed there may be
/// a comment and a style sheet.
pub const DOCUMENT_SNIFF_BYTES: usize = 2 * 1024;
/// Bytes of a document, decoded, that are read before others have their turn: less than a few milliseconds, whatever is in
/// them.
pub const DOCUMENT_STEP_BYTES: usize = 4 * 1024;
/// Bytes of the references of one document that are no whole URLs, each with its base, that are put together: a tenth of a
/// second, when each is parsed. Honest ones of [`SITEMAP_URLS_MAX`] places stay below this.
pub const JOINED_BYTES_MAX: usize = 8 * 1024 * 1024;
/// A tag of XML, attributes included. What looks like a longer one is none, and ends the reading.
pub const MARKUP_TAG_BYTES_MAX: usize = 64 * 1024;

/// Bytes of a feed that are read, decoded. Those of busy sites with whole articles in them have some
/// megabytes.
pub const FEED_BYTES_MAX: usize = 8 * 1024 * 1024;
/// The same of a JSON feed, which is held until its end: there is no order in it.
pub const FEED_JSON_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Items kept of a feed. Most have 10 to 50, archives some thousands.
pub const FEED_ENTRIES_MAX: usize = 10_000;
/// Bytes of the ids, links, titles and dates of a feed together: 400 for each of [`FEED_ENTRIES_MAX`] items.
pub const FEED_TEXTS_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Elements in one another. Articles written as XHTML have some dozens; each that is closed is looked for among those that
/// are open.
pub const FEED_DEPTH_MAX: usize = 100;
/// A longer `xml:base` is none, as it is written and made absolute.
pub const FEED_BASE_BYTES_MAX: usize = 2_000;
/// Hubs kept of a feed; most name one, and the others are for when that refuses.
pub const FEED_HUBS_MAX: usize = 4;
/// All of their URLs together; the first one fits. What is told of a feed has to fit into one event.
pub const FEED_HUBS_BYTES_MAX: usize = URL_BYTES_MAX;
/// Items of a watched feed that are remembered, besides those that are in it: as many as a feed may have dropped and
/// bring back. At 32 bytes each.
pub const FEED_KNOWN_MAX: usize = 2_000;
/// What is known of a feed is forgotten when nobody has looked at it for this long: a feed that is watched is looked at
/// more often.
pub const FEED_KNOWN_FOR: Duration = Duration::from_hours(24 * 365);
/// Items of a feed that are told to who is told by its hub, 32 bytes each.
pub const FEED_TOLD_MAX: usize = 500;
/// A longer id of an item is announced as its hash.
pub const FEED_ITEM_BYTES_MAX: usize = 512;
/// New items of a feed that are on their way to the broker at once.
pub const FEED_ANNOUNCED_AT_ONCE: usize = 64;
/// A watched page that has another version this often in a row, at looks that follow from the announcement of one, is a page
/// that differs in each answer. Its versions are announced no more by such looks, nor while a hub tells of it.
pub const FEED_RESTLESS_MAX: u32 = 3;
/// Validators (`ETag`, `Last-Modified`) that are longer are not kept, so the feed is read whole.
pub const FEED_VALIDATOR_BYTES_MAX: usize = 1024;

/// Bytes of a sitemap that are read, decoded (sitemaps.org allows 50 MB).
pub const SITEMAP_BYTES_MAX: u64 = 50 * 1024 * 1024;
/// URLs taken from a sitemap (sitemaps.org allows as many).
pub const SITEMAP_URLS_MAX: usize = 50_000;
/// Bytes of all of them together: 160 for each.
pub const SITEMAP_LINKS_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Names in a list of tracking parameters: more than any list that goes around has.
pub const TRACKING_PARAMS_MAX: usize = 1_000;
/// What [`Known`](crate::known::Known) takes: of 450,000 links at least, and mostly of twice as many.
pub const KNOWN_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Passes of which links are known. A worker that has tasks of more sends the links of the others anew.
pub const KNOWN_PASSES_MAX: usize = 1_024;

/// A longer URL grew by itself: browsers and servers cut at about this, and so do sitemaps' makers.
pub const URL_WISE_BYTES_MAX: usize = 2_000;
/// Segments of a path. Deep trees of sources and archives have a dozen.
pub const SEGMENTS_MAX: usize = 32;
/// How often one segment that is no number may be in a path. Three times is rare, and happens.
pub const SEGMENT_REPEATS_MAX: usize = 3;
/// Parameters of a query. The largest search forms have some twenty.
pub const PARAMS_MAX: usize = 32;
/// Different lists of parameter names of one path, numbers and ids left out. The programs behind the
/// largest sites (one wiki, one forum) have some fifty; ten filters in any order have millions.
pub const QUERY_SHAPES_MAX: u16 = 200;
/// From so many parameters on, a page is a view of others ..
pub const FACETED_PARAMS: usize = 4;
/// .. and this many with the same names are enough.
pub const FACETED_PAGES_MAX: u32 = 2_000;
/// How often a page is read with another session id in its URL. Twice could be by chance.
pub const SESSION_COPIES_MAX: u8 = 3;
/// So many pages whose links have new values, and so many equal readings, show that a parameter is a session id. Two could
/// be by chance.
pub const SESSION_EVIDENCE_MIN: u16 = 3;
/// .. and so many of them for each page or reading that speaks against it: one link in a forum has an old session id.
pub const SESSION_EVIDENCE_PER_DOUBT: u16 = 4;
/// After so many different readings, or pages with values of before, a parameter means something for good.
pub const SESSION_DOUBTS_MAX: u16 = 8;
/// Names of parameters that are watched on one site. The largest search forms have some twenty; later names are not watched.
pub const SESSION_PARAMS_MAX: usize = 32;
/// Names of one site that may be session ids at a time, those that are included. A further one is watched until there is
/// room: a site has one, or two with a time.
pub const SESSION_VOLATILE_MAX: usize = 4;
/// Links with a query that are looked at for session ids on one page. A session id is in all of them.
pub const SESSION_LINKS_MAX: usize = 128;
/// Values that are remembered of one name, to see that they come again: those of the last 256 pages, if a page has one. An
/// older value counts as new.
pub const SESSION_VALUES_MAX: usize = 256;
/// Calendars are believed to be useful until so many years after this one ..
pub const CALENDAR_YEARS_AHEAD: u16 = 5;
/// .. and from so many before: newspapers have archives of that age.
pub const CALENDAR_YEARS_BACK: u16 = 200;
/// So many pages with dates of our times, and no others, make numbers a calendar. Topics of a forum
/// that are numbered like years are followed by others sooner.
pub const CALENDAR_PAGES_MIN: u32 = 24;
/// Pages of a calendar: every day of thirty years, and a few.
pub const CALENDAR_PAGES_MAX: u32 = 12_000;
/// Links in a row from the first page that differs in numbers only to the last: pages of a list, each
/// of which is found on the one before. Lists that are so long have shortcuts.
pub const CHAIN_MAX: u32 = 1_000;
/// Pages that differ in numbers, ids and values only: the products of a very large shop.
pub const SHAPE_PAGES_MAX: u32 = 100_000;
/// Pages of one site in one pass: what one a second gives in twelve days.
pub const HOST_PAGES_MAX: u64 = 1_000_000;
/// URLs of a site under which the same body is taken. A site that is there twice, or in all its
/// languages, stays below.
pub const SAME_CONTENT_MAX: u16 = 100;
/// The same body under so many URLs that have not even their shape in common is what a site says
/// instead of 404.
pub const SOFT_NOT_FOUND_SHAPES: u32 = 8;
/// Shapes, bodies and so on that are known of one site, each. Those that were met once go first.
pub const TRAP_ENTRIES_MAX: usize = 14_000;
/// What is known of all sites together takes no more than this in bytes, and a page or two: 30,000
/// small sites, or ten of the largest.
pub const TRAPS_BYTES_MAX: usize = 32 * 1024 * 1024;

/// A look-up of a name may take this long from its begin; the system's resolver tries several servers meanwhile.
pub const DNS_TIMEOUT: Duration = Duration::from_secs(5);
/// Look-ups at once. Each takes a thread of the system's resolver until it ends by itself, which for a name that nobody
/// answers for takes tens of seconds: as many as half of the runtime's threads for such work.
pub const DNS_LOOKUPS_MAX: usize = 256;
/// Names remembered. At some 200 bytes each this is 6 MiB; the oldest tenth goes first.
pub const DNS_CACHE_MAX: usize = 32 * 1024;
/// How long an address is used. The system's resolver says nothing about that; browsers take a
/// minute, too.
pub const DNS_FRESH: Duration = Duration::from_mins(1);
/// How long a name that does not resolve is not asked for again.
pub const DNS_FRESH_FAILURE: Duration = Duration::from_secs(10);
/// Addresses of one name that are looked at.
pub const DNS_ADDRESSES_MAX: usize = 16;
/// Addresses of one name that are tried for one connection, both families together.
pub const DIAL_ADDRESSES_MAX: usize = 4;
/// How long one address may take before the next is tried beside it (RFC 8305 section 5).
pub const DIAL_HEAD_START: Duration = Duration::from_millis(250);
/// A proxy's answer to `CONNECT` may have this many bytes.
pub const PROXY_HEAD_BYTES_MAX: usize = 8 * 1024;
/// User and password of a SOCKS5 proxy together. The protocol allows 255 bytes each; the library holds all messages of a
/// handshake in 262 bytes, with the name of the host, which has some dozens.
pub const SOCKS_CREDENTIALS_BYTES_MAX: usize = 128;
/// Limits per address that are kept before those that nobody needs are removed.
pub const ADDRESS_LIMITS_KEPT: usize = 1024;

/// The head of an answer may have this many bytes. Browsers take 256 KiB; what honest servers send
/// stays below 16 KiB.
pub const HEAD_BYTES_MAX: usize = 64 * 1024;
/// .. and this many headers.
pub const HEADERS_MAX: usize = 256;
/// Bytes that may come before the end of a head: `1xx` answers, and the head itself. One read may
/// bring a part of the body as well, so this is more than a head.
pub const BEFORE_HEAD_BYTES_MAX: u64 = 256 * 1024;
/// A body must come at this rate, on the average of each [`SLOW_WINDOW`]: a server that says a byte
/// now and then holds a connection for nothing.
pub const SLOW_BYTES_PER_SECOND: u64 = 64;
/// See [`SLOW_BYTES_PER_SECOND`]. Longer than a hiccup.
pub const SLOW_WINDOW: Duration = Duration::from_secs(30);
/// Content codings on top of each other.
pub const CONTENT_ENCODINGS_MAX: usize = 2;
/// An `ETag` or `Last-Modified` that is longer is not kept.
pub const VALIDATOR_BYTES_MAX: usize = 1024;
/// A cookie's name, value and path together, as browsers have it.
pub const COOKIE_BYTES_MAX: usize = 4 * 1024;
/// Bytes of all cookies of one scheme, host and port: what a request may grow by.
pub const COOKIES_BYTES_MAX: usize = 8 * 1024;
/// Schemes, hosts and ports with cookies. 32 MiB at most together.
pub const COOKIE_ORIGINS_MAX: usize = 4 * 1024;

/// Bytes read of a body that is not wanted (redirects, errors), so that the connection can be
/// used again. A longer one costs the connection.
pub const UNWANTED_BODY_BYTES_MAX: u64 = 256 * 1024;
/// A body that grows more than this many times while it is decoded is a bomb ..
pub const DECODED_RATIO_MAX: u64 = 250;
/// .. but only from this size on: small pages of one repeated byte are harmless.
pub const DECODED_RATIO_FROM_BYTES: u64 = 4 * 1024 * 1024;
/// A window of the zstd format may not be larger than two to this: 8 MiB, what RFC 9659 asks of
/// senders. It bounds the decoder's memory.
pub const ZSTD_WINDOW_LOG_MAX: u32 = 23;
/// Empty frames of the zstd format that may follow each other: each costs more than its nine bytes.
pub const ZSTD_EMPTY_FRAMES_MAX: u32 = 100;
/// Bytes of a robots.txt as it comes, if it is encoded: no coding makes it much longer than it is.
pub const ROBOTS_WIRE_BYTES_MAX: u64 = 2 * ROBOTS_BYTES_MAX as u64;
/// What each decoder may remember of what it has decoded before it needs a share of [`WINDOWS_ROOM_BYTES`]. Most pages are
/// shorter, and then nothing of a window is used.
pub const WINDOW_FREE_BYTES: usize = 256 * 1024;
/// Windows of decoders, of all requests together: three of the zstd format, or six of what servers use of brotli.
pub const WINDOWS_ROOM_BYTES: usize = 24 * 1024 * 1024;
/// What the links of a document may take until it is stored before it needs a share of [`LINKS_ROOM_BYTES`]: about a
/// thousand.
pub const LINKS_FREE_BYTES: usize = 128 * 1024;
/// Links of large documents, of all requests together, until they are stored.
pub const LINKS_ROOM_BYTES: usize = 24 * 1024 * 1024;
/// The share of a page: [`LINKS_BYTES_MAX`] and [`LINKS_ABSOLUTE_BYTES_MAX`].
pub const PAGE_ROOM_BYTES: usize = 6 * 1024 * 1024;
/// The share of a sitemap or feed: [`SITEMAP_LINKS_BYTES_MAX`], and what its URLs are known by; or
/// [`FEED_JSON_BYTES_MAX`] twice.
pub const SITEMAP_ROOM_BYTES: usize = 12 * 1024 * 1024;
/// Bytes taken from a decoder at a time.
pub const DECODED_CHUNK_BYTES: usize = 16 * 1024;
/// A connection that nobody used for this long is closed: longer than usual delays between two
/// requests to a host, short enough that many hosts do not use up the file descriptors.
pub const POOL_IDLE: Duration = Duration::from_secs(20);
/// Idle connections kept, over all hosts. Each is a file descriptor and some 20 KiB.
pub const POOL_CONNECTIONS_MAX: usize = 4096;
/// When there are so many, one in as many that come takes the place of another.
pub const POOL_EXCHANGE: u32 = 16;
/// After a server has ended a kept connection instead of answering, no connection to it is kept for so
/// long: each such end costs one more request and one more delay.
pub const POOL_NONE_KEPT: Duration = Duration::from_mins(10);
/// Origins that this is remembered of. Each takes some 100 bytes.
pub const POOL_NONE_KEPT_MAX: usize = 4096;
/// How often idle connections are looked at: those that the server has closed need not wait for
/// [`POOL_IDLE`] to be over.
pub const POOL_SWEEP_EVERY: Duration = Duration::from_secs(5);
/// HTTP/2 flow control: what a server may send ahead of us per stream and per connection.
pub const HTTP2_STREAM_WINDOW_BYTES: u32 = 256 * 1024;
/// See [`HTTP2_STREAM_WINDOW_BYTES`]. One request per host at a time: twice a stream is enough.
pub const HTTP2_CONNECTION_WINDOW_BYTES: u32 = 512 * 1024;
/// A header value is recorded up to this many bytes.
pub const HEADER_VALUE_BYTES_MAX: usize = 256;
/// An error text is cut after this many bytes, so that it fits in a line everywhere.
pub const ERROR_TEXT_BYTES_MAX: usize = 400;
/// A longer `Retry-After` is taken as this; the broker caps it again.
pub const RETRY_AFTER_MAX: Duration = Duration::from_hours(24);

/// A body that a sink wants to have whole is in memory up to this size, and beyond it in a file, which it is written to
/// in pieces of this size.
pub const SPOOL_BYTES_MAX: usize = 64 * 1024;
/// All such bodies together have this much memory; what finds none left is in a file.
pub const SPOOLS_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Pages waiting for a sink. Senders wait when it is full.
pub const STORE_QUEUE_MAX: usize = 1024;
/// Pages that are made safe together: bounds how long the first waits for the last.
pub const STORE_BATCH_MAX: usize = 512;
/// While pages stream in, a batch is begun no sooner than so long after the one before ..
pub const STORE_PACE: Duration = Duration::from_millis(5);
/// .. unless none came in so much time.
pub const STORE_PACE_STEP: Duration = Duration::from_millis(1);
/// A batch of pages that have these bytes is full before it has as many pages. Usual ones have some KiB, nearly all
/// of them links; a few with [`LINKS_ABSOLUTE_BYTES_MAX`] are as much work as many others.
pub const STORE_BATCH_BYTES_MAX: usize = 16 * 1024 * 1024;
/// How long `SQLite` waits for another process that writes.
pub const STORE_BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// The log of `SQLite` is written to the database when it has these bytes, and cut to them: seconds of a fast
/// crawl, so that what is touched often is written once.
pub const STORE_WAL_BYTES: u32 = 16 * 1024 * 1024;
/// How long a `PostgreSQL` server may take to let us in.
pub const POSTGRES_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// .. and to store a batch; then the connection is given up.
pub const POSTGRES_STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);
/// A server that has not answered after this is taken for gone, connecting included: later than those two, so that what it
/// says itself is heard.
pub const POSTGRES_BATCH_TIMEOUT: Duration = Duration::from_secs(45);
/// How often the machine of a silent server is asked whether it is there: between batches nobody else would notice
/// for hours.
pub const POSTGRES_KEEPALIVE: Duration = Duration::from_secs(10);
/// So many questions in a row without an answer mean that it is not.
pub const POSTGRES_KEEPALIVE_TRIES: u32 = 3;
/// Programs that run at a time, each for a page.
pub const EXEC_AT_ONCE_MAX: usize = 8;
/// A program may take this long for a page; then it is ended, and the page is refused.
pub const EXEC_TIME_MAX: Duration = Duration::from_mins(5);
/// Questions about earlier records that wait; who asks waits when it is full.
pub const LOOKUP_QUEUE_MAX: usize = 1024;
/// Questions that are answered in one transaction.
pub const LOOKUP_BATCH_MAX: usize = 128;
/// Records that an export reads in one transaction, and after which it says how far it is ..
pub const EXPORT_STEP_RECORDS: u32 = 1_000;
/// .. and bytes of their links, which are nearly all of them: what it holds of a file at a time.
pub const EXPORT_STEP_BYTES: usize = 8 * 1024 * 1024;
/// Memory that each database of an export works with; the rest of it is on disk.
pub const EXPORT_CACHE_BYTES: i64 = 64 * 1024 * 1024;
/// Bytes of lines that are written to a file at a time.
pub const JSONL_CHUNK_BYTES: usize = 256 * 1024;
/// A line of JSON is never longer: links have [`SITEMAP_LINKS_BYTES_MAX`] and some words each, and in JSON no character
/// of theirs is more than two.
pub const JSONL_LINE_BYTES_MAX: u64 = 32 * 1024 * 1024;
/// Bytes of a WARC file that are handed on at a time, and of a body that are read.
pub const WARC_CHUNK_BYTES: usize = 64 * 1024;
/// How much work is put into compressing WARC records, of 9: little, since most bodies are small or come
/// compressed already.
pub const WARC_LEVEL: u32 = 3;
/// The header of a record of ours is never longer (two URLs, and short words), nor what it says of a page.
pub const WARC_HEAD_BYTES_MAX: u64 = 64 * 1024;
/// Bodies that are known to be in the output already. At some 300 bytes each this is 10 MiB.
pub const WARC_SEEN_MAX: usize = 32 * 1024;
/// Bytes of the URLs that they were found under.
pub const WARC_SEEN_BYTES_MAX: usize = 8 * 1024 * 1024;
/// How often the mark beside a file that only grows is written: what a crash costs is to read the pages of
/// this time.
pub const MARK_EVERY: Duration = Duration::from_secs(1);
/// Pages of such a file that may come again, of which it is known: more than all crawlers of a machine
/// hold, and than are written between two marks. At some 100 bytes each this is 6 MiB.
pub const UNSETTLED_PAGES_MAX: usize = 64 * 1024;
/// How long a fetched page waits for a full or failing disk before it is handed back; its lease
/// is extended meanwhile.
pub const STORE_PATIENCE: Duration = Duration::from_mins(1);
/// Pause between two tries of a sink that fails, and of the disk that bodies are on.
pub const STORE_RETRY: Duration = Duration::from_secs(1);
/// A page whose links the group has no room for comes back after this, and is fetched again: so many others must have
/// ended before that it is of use.
pub const NO_ROOM_NACK_AFTER: Duration = Duration::from_mins(10);
/// A page for which this crawler had no room comes back after this. It has waited for its turn for a while before.
pub const BUSY_NACK_AFTER: Duration = Duration::from_secs(1);

/// First and longest pause between tries to reach the broker; doubled each time, with jitter.
pub const RECONNECT_FIRST: Duration = Duration::from_millis(100);
/// See [`RECONNECT_FIRST`].
pub const RECONNECT_LONGEST: Duration = Duration::from_secs(10);
/// How often the broker's clock is compared with ours.
pub const CLOCK_SAMPLE_EVERY: Duration = Duration::from_secs(10);
/// Samples of the broker's clock that count: the tightest of the last minute or so.
pub const CLOCK_SAMPLES: usize = 6;

/// A broker that does not answer `PING` within this time is taken for gone.
pub const BROKER_SILENCE_MAX: Duration = Duration::from_secs(10);

/// After a stop, running requests may go on for this long; then they are abandoned.
pub const STOP_GRACE: Duration = Duration::from_millis(400);
/// After that, answers may take this long to be sent.
pub const STOP_ANSWERS: Duration = Duration::from_millis(200);
/// After that, the sinks may take this long to be closed. Together below a second.
pub const STOP_CLOSE: Duration = Duration::from_millis(200);

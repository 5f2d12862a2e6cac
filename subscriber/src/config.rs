//! The settings of a crawler, and all its limits, each with unit, default and reason.

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
    /// TLS settings of the connection to the broker. Default: no encryption.
    pub security: Security,
    /// The group to join. Default: `crawlers`.
    pub group: GroupName,
    /// Tasks held at once, at most. Default: 1000. An open request is cheap, and a host never has
    /// two, so this bounds memory and file descriptors; politeness does not depend on it.
    pub credit: u32,
    /// The `User-Agent` header; the part before the first `/` is the product token that
    /// robots.txt rules are matched with. Default: `tidings/<version>`.
    pub agent: String,
    /// A URL or an e-mail address for questions about this crawler, which [`agent`](Self::agent)
    /// contains already. Default: none, which is reported as a warning at the start.
    pub contact: Option<String>,
    /// What counts as a link of a page.
    pub links: LinkConfig,
    /// Whether pages are always fetched whole, without conditional requests. Default: no.
    pub refetch: bool,
    /// The limits beyond which a site counts as a trap.
    pub traps: TrapLimits,
    /// The member to resume. Default `None`: the broker assigns a new identity.
    pub member: Option<MemberId>,
    /// A label for operators, shown by the broker. Default: `crawler`.
    pub name: String,
    /// The directory for the crawler's own files; created if missing. Default: `tidings-data`.
    pub data: PathBuf,
    /// The sinks; a page is stored in all of them. Default: none, which means `pages.db` in `data`.
    pub sinks: Vec<SinkConfig>,
    /// Environment variables that programs run for pages inherit, in addition to the usual ones.
    pub exec_variables: Vec<String>,
    /// Addresses outside the public internet that may be crawled anyway. Default: none.
    pub allow_private: AllowPrivate,
    /// Time limit for a connection, name resolution and TLS included. Default: 10 s.
    pub connect_timeout: Duration,
    /// The longest silence of a server, before its answer begins and within the body. Default: 15
    /// s.
    pub read_timeout: Duration,
    /// Time limit for one request. Default: 40 s; never more than eight tenths of the task's lease,
    /// so that a request ends before the broker can release the host to another crawler.
    pub request_timeout: Duration,
    /// Limit of a decoded body in bytes; a longer one fails the page. Default: 64 MiB. Bodies are
    /// streamed, so this bounds work rather than memory.
    pub body_bytes_max: u64,
    /// The proxy for all requests: `http://[user:password@]host:port`. Default: none.
    pub proxy: Option<String>,
    /// Additional headers of requests. Default: none.
    pub headers: Vec<AddedHeader>,
    /// Whether cookies are returned to the server that set them. Default: no.
    pub cookies: bool,
    /// Requests at once to one address, under any host name. Default: no limit.
    pub per_address: Option<u32>,
}

/// What counts as a link of a page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkConfig {
    /// Whether images of a page count. Default: no.
    pub images: bool,
    /// Whether the sitemaps named in robots.txt are read for links. Default: no.
    pub sitemaps: bool,
    /// Tracking parameters that are removed from links. Default: a built-in list.
    pub tracking: TrackingParams,
}

impl LinkConfig {
    /// How links are extracted, if not by the defaults. Stored with each page: a page that has not
    /// changed may have other links under other settings.
    pub fn extraction_mode(&self) -> Option<String> {
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
    /// The sinks, with the default filled in.
    pub fn sinks(&self) -> Vec<SinkConfig> {
        if self.sinks.is_empty() {
            return vec![SinkConfig::Sqlite(self.data.join("pages.db"))];
        }
        self.sinks.clone()
    }
}

/// Decoded bytes of a robots.txt that are read; the rest is ignored. RFC 9309 section 2.5 requires
/// at least 500 KiB.
pub const ROBOTS_BYTES_MAX: usize = 500 * 1024;
/// Redirects followed for one robots.txt; after that it counts as unavailable, so everything is
/// allowed (RFC 9309 section 2.3.1.2).
pub const ROBOTS_HOPS_MAX: u8 = 5;
/// How long a robots.txt is used before it is fetched again (RFC 9309 section 2.4).
pub const ROBOTS_FRESH: Duration = Duration::from_hours(24);
/// How much longer a copy is used while the server has no newer one. Long enough to bridge an
/// outage, short enough that new rules take effect the same day.
pub const ROBOTS_STALE_EXTENSION: Duration = Duration::from_hours(1);
/// Authorities in the robots cache. At some 200 bytes each this is 20 MiB; the oldest tenth is
/// evicted first, and costs one more robots.txt request if its host comes again.
pub const ROBOTS_CACHE_MAX: usize = 100_000;
/// Bytes of all cached rules: a robots.txt of 500 KiB takes some megabytes once it is parsed, and a
/// hostile site can have many names. The oldest are evicted first, here too.
pub const ROBOTS_CACHE_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Sitemaps taken from one robots.txt: sites have few, and a sitemap can list others.
pub const ROBOTS_SITEMAPS_MAX: usize = 64;
/// Bytes shown of the robots.txt line that decided.
pub const ROBOTS_RULE_SHOWN_BYTES_MAX: usize = 512;
/// A longer crawl-delay is cut to this: a day, which is also how long the broker keeps a pace.
pub const CRAWL_DELAY_MAX: Duration = Duration::from_hours(24);
/// Authorities with a redirected robots.txt that wait for the next hop. Few sites redirect it; an
/// evicted one starts again from the first request.
pub const ROBOTS_REDIRECTS_MAX: usize = 10_000;
/// A redirect of a robots.txt that was not followed for this long starts again, as it may have
/// changed. A busy host delays the next hop far less than this.
pub const ROBOTS_REDIRECT_FRESH: Duration = Duration::from_mins(10);
/// A robots.txt that was unreachable for this long, without a stored copy, counts as missing (RFC
/// 9309 section 2.3.1.4 also says 30 days).
pub const ROBOTS_OUTAGE_LONG: Duration = Duration::from_hours(30 * 24);
/// The next retry of an unreachable robots.txt comes after as much time as the outage has lasted,
/// but at least this and at most [`ROBOTS_OUTAGE_PAUSE_MAX`]. The minimum is the group's first
/// backoff, so that a name which never answers does not delay a job.
pub const ROBOTS_OUTAGE_PAUSE_MIN: Duration = Duration::from_secs(2);
/// A host that is back after a long outage is noticed within this time.
pub const ROBOTS_OUTAGE_PAUSE_MAX: Duration = Duration::from_mins(5);
/// Authorities with an unreachable robots.txt, each with a line of text. An evicted one costs a
/// request.
pub const ROBOTS_OUTAGES_MAX: usize = 10_000;
/// How long a copy or an outage stays on disk after its last update: longer than the time after
/// which a missing file is assumed.
pub const ROBOTS_STORED_FOR: Duration = Duration::from_hours(60 * 24);

/// Reads and writes of `crawler.db` that wait. Beyond it, values are dropped instead of stored.
pub const STATE_QUEUE_MAX: usize = 4096;
/// Bytes of values that wait to be written: the memory that a slow disk can hold.
pub const STATE_QUEUE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Values in one transaction: bounds how long the first waits for the last.
pub const STATE_BATCH_MAX: usize = 512;
/// A larger value is not stored: above the largest robots.txt ([`ROBOTS_BYTES_MAX`]).
pub const STATE_VALUE_BYTES_MAX: usize = 1024 * 1024;
/// A longer key is not stored: an authority can be as long as a URL, with a token in front.
pub const STATE_KEY_BYTES_MAX: usize = 16 * 1024;
/// Values kept: one or two for each host of a large crawl. The soonest to expire are removed first.
pub const STATE_ROWS_MAX: u64 = 1_000_000;
/// Used bytes of `crawler.db`.
pub const STATE_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// How often expired values are removed; sooner after many writes ([`STATE_SWEEP_ROWS`],
/// [`STATE_QUEUE_BYTES_MAX`]).
pub const STATE_SWEEP_EVERY: Duration = Duration::from_mins(10);
/// Values removed at a time, and stored before the next count: some tens of milliseconds.
pub const STATE_SWEEP_ROWS: u32 = 10_000;
/// How long a task waits for a stored value: a request costs about as much.
pub const STATE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long `SQLite` waits for another process that writes to `crawler.db`.
pub const STATE_BUSY_TIMEOUT: Duration = Duration::from_secs(2);

/// The kind of a site's sitemaps in `crawler.db`.
pub const SITEMAPS_KIND: &str = "sitemaps";
/// Bytes of a watched feed that are read at a time.
pub const FEED_READ_BYTES: usize = 64 * 1024;
/// Links kept from one page, without duplicates. Indexes of large manuals have some thousands.
pub const LINKS_MAX: usize = 16 * 1024;
/// Bytes of all links of one page, before they are made absolute: what one page may hold in memory
/// until it is stored.
pub const LINKS_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Bytes of all links of one page, made absolute. Each link counts at least as much as its base up
/// to the query, even if it is invalid or a duplicate. Short links under a long `<base>` or URL
/// grow a thousandfold; honest pages of [`LINKS_MAX`] links stay below this.
pub const LINKS_ABSOLUTE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Links of one page that are made absolute on the runtime's thread ..
pub const QUICK_LINKS_MAX: usize = 500;
/// .. if their base is at most this long. A link may need its base parsed, at some 12 ns a byte.
pub const QUICK_BASE_BYTES_MAX: usize = 1024;
/// Links taken from the headers of an answer. Servers send a canonical URL, or the next page.
pub const HEADER_LINKS_MAX: usize = 100;
/// A longer attribute is ignored as a link; also the limit of a canonical URL.
pub const LINK_BYTES_MAX: usize = 8 * 1024;
/// Of a longer tag only the name counts. Images in `data:` URLs are longer; links are not.
pub const TAG_BYTES_MAX: usize = 64 * 1024;
/// Open elements inside SVG and `MathML` that are tracked by name. Drawing programs nest some tens.
pub const FOREIGN_DEPTH_MAX: usize = 256;
/// Feeds that one page may name. Blogs have one of each kind, and one for comments.
pub const FEEDS_MAX: usize = 16;
/// Bytes searched for a `<meta charset>`, as in browsers.
pub const CHARSET_PRESCAN_BYTES: usize = 1024;
/// Bytes buffered of a page without a declared encoding, from the first that is not ASCII, to guess
/// the encoding. Some hundred words between markup; more does not improve the guess.
pub const CHARSET_GUESS_BYTES: usize = 16 * 1024;
/// A title is cut after this many bytes, at a character.
pub const TITLE_BYTES_MAX: usize = 1024;
/// Bytes kept of a title as written. Entities and white space make it longer than its text.
pub const TITLE_WRITTEN_BYTES_MAX: usize = 8 * TITLE_BYTES_MAX;

/// Bytes examined to find the type of a document that is not declared as HTML. A comment and a
/// style sheet may come before the first element of a feed.
pub const DOCUMENT_SNIFF_BYTES: usize = 2 * 1024;
/// Decoded bytes of a document that are parsed before other tasks run: less than a few milliseconds
/// for any content.
pub const DOCUMENT_STEP_BYTES: usize = 4 * 1024;
/// Bytes of the relative references of one document that are joined, each with its base: a tenth of
/// a second, when each is parsed. Honest documents of [`SITEMAP_URLS_MAX`] entries stay below this.
pub const JOINED_BYTES_MAX: usize = 8 * 1024 * 1024;
/// An XML tag, attributes included. A longer one is invalid and ends the parsing.
pub const MARKUP_TAG_BYTES_MAX: usize = 64 * 1024;

/// Decoded bytes of a feed that are read. Feeds of busy sites with whole articles have some
/// megabytes.
pub const FEED_BYTES_MAX: usize = 8 * 1024 * 1024;
/// The same limit for a JSON feed, which is buffered to its end: its fields may come in any order.
pub const FEED_JSON_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Items kept of a feed. Most have 10 to 50, archives some thousands.
pub const FEED_ENTRIES_MAX: usize = 10_000;
/// Bytes of the ids, links, titles and dates of a feed: 400 for each of [`FEED_ENTRIES_MAX`] items.
pub const FEED_TEXTS_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Nested elements. Articles written as XHTML have some dozens; a closing tag is matched against
/// the open ones.
pub const FEED_DEPTH_MAX: usize = 100;
/// A longer `xml:base` is ignored, both as written and made absolute.
pub const FEED_BASE_BYTES_MAX: usize = 2_000;
/// Hubs kept of a feed; most name one, and the others are fallbacks.
pub const FEED_HUBS_MAX: usize = 4;
/// Bytes of all hub URLs; the first one fits. A feed's hubs must fit into one event.
pub const FEED_HUBS_BYTES_MAX: usize = URL_BYTES_MAX;
/// Items that are remembered of a watched feed after they have left it: as many as a feed may drop
/// and show again. 32 bytes each.
pub const FEED_SEEN_MAX: usize = 2_000;
/// The state of a feed expires this long after its last check: a watched feed is checked more
/// often.
pub const FEED_STATE_STORED_FOR: Duration = Duration::from_hours(24 * 365);
/// Items of a feed that are sent with its hubs, 32 bytes each.
pub const FEED_HUB_ITEMS_MAX: usize = 500;
/// A longer id of an item is announced as its hash.
pub const FEED_ITEM_BYTES_MAX: usize = 512;
/// Published new items of a feed that wait for their confirmation.
pub const FEED_PUBLISHES_MAX: usize = 64;
/// A watched page that changed this often in a row, in checks triggered by its own announcements,
/// differs in each answer. Such checks announce its versions no more, nor does a scheduled one
/// while a hub reports it.
pub const FEED_RESTLESS_MAX: u32 = 3;
/// Longer validators (`ETag`, `Last-Modified`) are not kept, so the feed is fetched whole.
pub const FEED_VALIDATOR_BYTES_MAX: usize = 1024;

/// Bytes of a sitemap that are read, decoded (sitemaps.org allows 50 MB).
pub const SITEMAP_BYTES_MAX: u64 = 50 * 1024 * 1024;
/// URLs taken from a sitemap (sitemaps.org allows as many).
pub const SITEMAP_URLS_MAX: usize = 50_000;
/// Bytes of all URLs of a sitemap: 160 for each.
pub const SITEMAP_LINKS_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Names in a list of tracking parameters: more than any published list has.
pub const TRACKING_PARAMS_MAX: usize = 1_000;
/// Memory of [`AckedLinks`](crate::acked_links::AckedLinks): enough for 450,000 links at least, and
/// mostly for twice as many.
pub const ACKED_LINKS_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Passes with known links. A worker with tasks of more passes sends some links again.
pub const ACKED_LINKS_PASSES_MAX: usize = 1_024;

/// A longer URL counts as a trap: browsers, servers and sitemaps have about this limit.
pub const TRAP_URL_BYTES_MAX: usize = 2_000;
/// Segments of a path. Deep trees of sources and archives have a dozen.
pub const SEGMENTS_MAX: usize = 32;
/// How often one segment that is not a number may occur in a path. Three times is rare, but
/// happens.
pub const SEGMENT_REPEATS_MAX: usize = 3;
/// Parameters of a query. The largest search forms have some twenty.
pub const PARAMS_MAX: usize = 32;
/// Different lists of parameter names of one path, numbers and ids left out. The software of the
/// largest wikis and forums has some fifty; ten filters in any order have millions.
pub const QUERY_SHAPES_MAX: u16 = 200;
/// A page with this many parameters is a view of others ..
pub const FACETED_PARAMS: usize = 4;
/// .. and this many pages with the same parameter names are enough.
pub const FACETED_PAGES_MAX: u32 = 2_000;
/// How often a page is read with another session id in its URL. Two could be chance.
pub const SESSION_COPIES_MAX: u8 = 3;
/// This many pages with new values in their links, and as many equal readings, show that a
/// parameter is a session id. Two could be chance.
pub const SESSION_EVIDENCE_MIN: u16 = 3;
/// .. and this many for each page or reading against it: one forum link may contain an old session
/// id.
pub const SESSION_EVIDENCE_PER_DOUBT: u16 = 4;
/// After this many different readings, or pages with earlier values, a parameter is final as
/// meaningful.
pub const SESSION_DOUBTS_MAX: u16 = 8;
/// Parameter names tracked on one site. The largest search forms have some twenty; later names are
/// ignored.
pub const SESSION_PARAMS_MAX: usize = 32;
/// Names of one site that may be session ids at a time, recognized ones included. A further name
/// waits until there is room: a site has one, or two together with a timestamp.
pub const SESSION_VOLATILE_MAX: usize = 4;
/// Links with a query that are examined on one page. A session id is in all of them.
pub const SESSION_LINKS_MAX: usize = 128;
/// Values remembered of one name, to notice repetition: those of the last 256 pages, at one value a
/// page. An older value counts as new.
pub const SESSION_VALUES_MAX: usize = 256;
/// Calendar pages up to this many years ahead are fetched ..
pub const CALENDAR_YEARS_AHEAD: u16 = 5;
/// .. and up to this many years back: newspapers have archives of that age.
pub const CALENDAR_YEARS_BACK: u16 = 200;
/// After this many pages, all of them with plausible dates, a series of numbers counts as a
/// calendar. Forum topics that are numbered like years have other numbers sooner.
pub const CALENDAR_PAGES_MIN: u32 = 24;
/// Pages of a calendar: every day of thirty years, and a few.
pub const CALENDAR_PAGES_MAX: u32 = 12_000;
/// Links in a row between the first page and the last of those that differ in numbers only: pages
/// of a list, each found on the one before. Such long lists have shortcuts.
pub const CHAIN_MAX: u32 = 1_000;
/// Pages that differ in numbers, ids and values only: the products of a very large shop.
pub const SHAPE_PAGES_MAX: u32 = 100_000;
/// Pages of one site in one pass: one a second for twelve days.
pub const HOST_PAGES_MAX: u64 = 1_000_000;
/// URLs of a site that may have the same body. A site that exists twice, or in all its languages,
/// stays below.
pub const SAME_CONTENT_MAX: u16 = 100;
/// The same body under this many different URL shapes is what a site sends instead of 404.
pub const SOFT_NOT_FOUND_SHAPES: u32 = 8;
/// Entries in each table of one site (shapes, bodies ..). Those that were met once are evicted
/// first.
pub const TRAP_ENTRIES_MAX: usize = 14_000;
/// Memory of the trap tables of all sites, exceeded by a page or two at most: 30,000 small sites,
/// or ten of the largest.
pub const TRAPS_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Time limit of a name look-up; the system's resolver tries several servers meanwhile.
pub const DNS_TIMEOUT: Duration = Duration::from_secs(5);
/// Look-ups at once. Each takes a thread of the system's resolver until it ends by itself, which
/// takes tens of seconds for a name without an answering server. Half of the runtime's threads for
/// such work.
pub const DNS_LOOKUPS_MAX: usize = 256;
/// Names in the cache. At some 200 bytes each this is 6 MiB; the oldest tenth is evicted first.
pub const DNS_CACHE_MAX: usize = 32 * 1024;
/// How long an address is used. The system's resolver returns no lifetime; browsers also use a
/// minute.
pub const DNS_FRESH: Duration = Duration::from_mins(1);
/// How long a failed look-up is cached.
pub const DNS_FRESH_FAILURE: Duration = Duration::from_secs(10);
/// Addresses of one name that are used.
pub const DNS_ADDRESSES_MAX: usize = 16;
/// Addresses of one name that are tried for one connection, both families together.
pub const DIAL_ADDRESSES_MAX: usize = 4;
/// How long one address may take before the next is tried in parallel (RFC 8305 section 5).
pub const DIAL_HEAD_START: Duration = Duration::from_millis(250);
/// Limit of a proxy's answer to `CONNECT` in bytes.
pub const PROXY_HEAD_BYTES_MAX: usize = 8 * 1024;
/// User and password of a SOCKS5 proxy together. The protocol allows 255 bytes each; the library
/// holds all messages of a handshake in 262 bytes, with the host name, which has some dozens.
pub const SOCKS_CREDENTIALS_BYTES_MAX: usize = 128;
/// Limits per address that are kept before unused ones are removed.
pub const ADDRESS_LIMITS_KEPT: usize = 1024;

/// Limit of the head of an answer in bytes. Browsers allow 256 KiB; honest servers stay below 16
/// KiB.
pub const HEAD_BYTES_MAX: usize = 64 * 1024;
/// .. and the limit of its headers.
pub const HEADERS_MAX: usize = 256;
/// Bytes read before the end of a head: `1xx` answers, and the head itself. One read may include a
/// part of the body, so this is more than a head.
pub const BEFORE_HEAD_BYTES_MAX: u64 = 256 * 1024;
/// A body must arrive at this rate, on the average of each [`SLOW_WINDOW`]: a server that trickles
/// bytes would hold a connection for nothing.
pub const SLOW_BYTES_PER_SECOND: u64 = 64;
/// See [`SLOW_BYTES_PER_SECOND`]. Longer than a short stall.
pub const SLOW_WINDOW: Duration = Duration::from_secs(30);
/// Nested content codings.
pub const CONTENT_ENCODINGS_MAX: usize = 2;
/// A longer `ETag` or `Last-Modified` is not kept.
pub const VALIDATOR_BYTES_MAX: usize = 1024;
/// A cookie's name, value and path together, as in browsers.
pub const COOKIE_BYTES_MAX: usize = 4 * 1024;
/// Bytes of all cookies of one scheme, host and port: what a request may grow by.
pub const COOKIES_BYTES_MAX: usize = 8 * 1024;
/// Schemes, hosts and ports with cookies. 32 MiB at most together.
pub const COOKIE_ORIGINS_MAX: usize = 4 * 1024;

/// Bytes read of an unwanted body (redirects, errors), so that the connection can be used again. A
/// longer body costs the connection.
pub const DISCARDED_BODY_BYTES_MAX: u64 = 256 * 1024;
/// A body that grows more than this many times while it is decoded is a decompression bomb ..
pub const DECODED_RATIO_MAX: u64 = 250;
/// .. but only from this size on: small pages of one repeated byte are harmless.
pub const DECODED_RATIO_FROM_BYTES: u64 = 4 * 1024 * 1024;
/// The largest window of the zstd format, as a power of two: 8 MiB, which RFC 9659 requires of
/// senders. It bounds the decoder's memory.
pub const ZSTD_WINDOW_LOG_MAX: u32 = 23;
/// Empty frames of the zstd format in a row: each costs more than its nine bytes.
pub const ZSTD_EMPTY_FRAMES_MAX: u32 = 100;
/// Bytes of an encoded robots.txt: no coding makes it much longer than its text.
pub const ROBOTS_WIRE_BYTES_MAX: u64 = 2 * ROBOTS_BYTES_MAX as u64;
/// Memory of a decoder's window before it needs a permit of [`WINDOWS_BUDGET_BYTES`]. Most pages
/// are shorter and use no window.
pub const WINDOW_FREE_BYTES: usize = 256 * 1024;
/// Decoder windows of all requests together: three of the zstd format, or six of brotli's usual
/// size.
pub const WINDOWS_BUDGET_BYTES: usize = 24 * 1024 * 1024;
/// Memory of a document's links until it is stored, before it needs a permit of
/// [`LINKS_BUDGET_BYTES`]: about a thousand links.
pub const LINKS_FREE_BYTES: usize = 128 * 1024;
/// Links of large documents, of all requests together, until they are stored.
pub const LINKS_BUDGET_BYTES: usize = 24 * 1024 * 1024;
/// The permit of a page: [`LINKS_BYTES_MAX`] and [`LINKS_ABSOLUTE_BYTES_MAX`].
pub const PAGE_BUDGET_BYTES: usize = 6 * 1024 * 1024;
/// The permit of a sitemap or feed: [`SITEMAP_LINKS_BYTES_MAX`] and the keys of its URLs; or
/// [`FEED_JSON_BYTES_MAX`] twice.
pub const SITEMAP_BUDGET_BYTES: usize = 12 * 1024 * 1024;
/// Bytes taken from a decoder at a time.
pub const DECODED_CHUNK_BYTES: usize = 16 * 1024;
/// An unused connection is closed after this time: longer than usual delays between two requests to
/// a host, short enough that many hosts do not use up the file descriptors.
pub const POOL_IDLE: Duration = Duration::from_secs(20);
/// Idle connections kept, over all hosts. Each is a file descriptor and some 20 KiB.
pub const POOL_CONNECTIONS_MAX: usize = 4096;
/// When the pool is full, one of this many new connections replaces another.
pub const POOL_REPLACE_ONE_IN: u32 = 16;
/// After a server has closed a kept connection instead of answering, its connections are not kept
/// for this long: each such closure costs one more request and one more delay.
pub const POOL_DISABLED_FOR: Duration = Duration::from_mins(10);
/// Origins in this state. Each takes some 100 bytes.
pub const POOL_DISABLED_MAX: usize = 4096;
/// How often idle connections are checked: those that the server has closed go before
/// [`POOL_IDLE`].
pub const POOL_SWEEP_EVERY: Duration = Duration::from_secs(5);
/// HTTP/2 flow control: what a server may send ahead on a stream or a connection.
pub const HTTP2_STREAM_WINDOW_BYTES: u32 = 256 * 1024;
/// See [`HTTP2_STREAM_WINDOW_BYTES`]. One request per host at a time: twice a stream is enough.
pub const HTTP2_CONNECTION_WINDOW_BYTES: u32 = 512 * 1024;
/// A header value is recorded up to this many bytes.
pub const HEADER_VALUE_BYTES_MAX: usize = 256;
/// An error text is cut after this many bytes, so that it fits in a line everywhere.
pub const ERROR_TEXT_BYTES_MAX: usize = 400;
/// A longer `Retry-After` is cut to this; the broker limits it again.
pub const RETRY_AFTER_MAX: Duration = Duration::from_hours(24);

/// A body that a sink needs whole is in memory up to this size; beyond it, it is in a file, which
/// is written in pieces of this size.
pub const SPOOL_BYTES_MAX: usize = 64 * 1024;
/// Memory of all such bodies; a body that finds none left goes to a file.
pub const SPOOLS_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Pages waiting for a sink. Senders wait when the queue is full.
pub const STORE_QUEUE_MAX: usize = 1024;
/// Pages that are synced together: bounds how long the first waits for the last.
pub const STORE_BATCH_MAX: usize = 512;
/// While pages stream in, a batch begins at least this long after the one before ..
pub const STORE_BATCH_INTERVAL: Duration = Duration::from_millis(5);
/// .. unless no page came in this time.
pub const STORE_BATCH_GATHER: Duration = Duration::from_millis(1);
/// A batch with this many bytes is full, even with few pages. Usual pages have some KiB, nearly all
/// of it links; a few pages with [`LINKS_ABSOLUTE_BYTES_MAX`] are as much work as many others.
pub const STORE_BATCH_BYTES_MAX: usize = 16 * 1024 * 1024;
/// How long `SQLite` waits for another process that writes.
pub const STORE_BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// `SQLite` moves its write-ahead log into the database at this size, and cuts it to this size:
/// seconds of a fast crawl, so that pages of the database which change often are written once.
pub const STORE_WAL_BYTES: u32 = 16 * 1024 * 1024;
/// How long a `PostgreSQL` server may take to accept the login.
pub const POSTGRES_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// .. and to store a batch; then the connection is closed.
pub const POSTGRES_STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);
/// A server that has not answered after this counts as lost, connecting included. Later than the
/// two limits above, so that the server's own error arrives first.
pub const POSTGRES_BATCH_TIMEOUT: Duration = Duration::from_secs(45);
/// Keepalive interval of an idle connection: without it a lost server machine would go unnoticed
/// between batches for hours.
pub const POSTGRES_KEEPALIVE: Duration = Duration::from_secs(10);
/// Unanswered keepalive probes in a row after which the machine counts as lost.
pub const POSTGRES_KEEPALIVE_TRIES: u32 = 3;
/// Programs that run at a time, one for each page.
pub const EXEC_CONCURRENT_MAX: usize = 8;
/// Time limit of a program for a page; then it is killed, and the page is refused.
pub const EXEC_TIME_MAX: Duration = Duration::from_mins(5);
/// Look-ups of earlier records that wait. Tasks wait when the queue is full.
pub const LOOKUP_QUEUE_MAX: usize = 1024;
/// Look-ups answered in one transaction.
pub const LOOKUP_BATCH_MAX: usize = 128;
/// Records that an export reads in one transaction, and after which it reports its progress ..
pub const EXPORT_STEP_RECORDS: u32 = 1_000;
/// .. and bytes of their links, which are nearly all of a record: what it holds of a file at a
/// time.
pub const EXPORT_STEP_BYTES: usize = 8 * 1024 * 1024;
/// Cache of each database of an export; the rest of it is on disk.
pub const EXPORT_CACHE_BYTES: i64 = 64 * 1024 * 1024;
/// Bytes of lines that are written to a file at a time.
pub const JSONL_CHUNK_BYTES: usize = 256 * 1024;
/// The longest line of JSON: links have [`SITEMAP_LINKS_BYTES_MAX`] and some words each, and JSON
/// doubles a character at most.
pub const JSONL_LINE_BYTES_MAX: u64 = 32 * 1024 * 1024;
/// Bytes of a WARC file that are written at a time, and of a body that are read.
pub const WARC_CHUNK_BYTES: usize = 64 * 1024;
/// Compression level of WARC records, of 9: low, since most bodies are small or compressed already.
pub const WARC_LEVEL: u32 = 3;
/// The longest header of a record written here (two URLs and short words), and the longest
/// `metadata` block.
pub const WARC_HEAD_BYTES_MAX: u64 = 64 * 1024;
/// Bodies that are known to be in the output already. At some 300 bytes each this is 10 MiB.
pub const WARC_SEEN_MAX: usize = 32 * 1024;
/// Bytes of the URLs of those bodies.
pub const WARC_SEEN_BYTES_MAX: usize = 8 * 1024 * 1024;
/// How often the mark file of an append-only file is written: after a crash the pages of this time
/// are read again.
pub const MARK_INTERVAL: Duration = Duration::from_secs(1);
/// Unsettled pages that an append-only file remembers: more than all crawlers of a machine hold,
/// and than are written between two marks. At some 100 bytes each this is 6 MiB.
pub const UNSETTLED_PAGES_MAX: usize = 64 * 1024;
/// How long a fetched page waits for a full or failing disk before its task is returned; its lease
/// is renewed meanwhile.
pub const STORE_TIMEOUT: Duration = Duration::from_mins(1);
/// Pause between two retries of a failing sink, and of the spool's disk.
pub const STORE_RETRY: Duration = Duration::from_secs(1);
/// The delay of a page, before it is fetched again, if the group had no room for its links: many
/// entries must end before a retry helps.
pub const NO_ROOM_NACK_AFTER: Duration = Duration::from_mins(10);
/// The delay of a page for which this crawler had no room. It has waited for a while already.
pub const BUSY_NACK_AFTER: Duration = Duration::from_secs(1);

/// First and longest pause between two attempts to connect to the broker; doubled each time, with
/// jitter.
pub const RECONNECT_BACKOFF_MIN: Duration = Duration::from_millis(100);
/// See [`RECONNECT_BACKOFF_MIN`].
pub const RECONNECT_BACKOFF_MAX: Duration = Duration::from_secs(10);
/// How often the broker's clock is compared with ours.
pub const CLOCK_SAMPLE_EVERY: Duration = Duration::from_secs(10);
/// Samples of the broker's clock that count: the tightest of the last minute or so.
pub const CLOCK_SAMPLES: usize = 6;

/// A broker that does not answer `PING` within this time counts as lost.
pub const BROKER_TIMEOUT: Duration = Duration::from_secs(10);

/// After a stop, running requests may go on for this long; then they are aborted.
pub const STOP_GRACE: Duration = Duration::from_millis(400);
/// After that, replies may take this long to be sent.
pub const STOP_ANSWERS: Duration = Duration::from_millis(200);
/// After that, the sinks may take this long to close. Less than a second together.
pub const STOP_CLOSE: Duration = Duration::from_millis(200);

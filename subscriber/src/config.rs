//! What a crawler is told, and every limit it keeps, each with its unit, default and reason.

use std::path::PathBuf;
use std::time::Duration;

use tidings_protocol::{GroupName, MemberId};

use crate::address::AllowPrivate;

/// A crawler's settings. Start from [`CrawlerConfig::default`] and change what is needed.
#[derive(Clone, Debug)]
pub struct CrawlerConfig {
    /// `host:port` of the broker. Default: `127.0.0.1:12345`.
    pub broker: String,
    /// The group to join. Default: `crawlers`.
    pub group: GroupName,
    /// Tasks held at once, at most. Default: 1000. An open request is cheap and no host ever has
    /// two, so this bounds memory and file descriptors, not politeness.
    pub credit: u32,
    /// The `User-Agent` header; the part before the first `/` is the product token that
    /// robots.txt rules are matched with. Default: `tidings/<version>`.
    pub agent: String,
    /// The identity by which the broker knows this worker again. Default `None`: the broker gives it
    /// one.
    pub member: Option<MemberId>,
    /// A label for people, shown by the broker. Default: `crawler`.
    pub name: String,
    /// Where `pages.db` lives; created if missing. Default: `tidings-data`.
    pub data: PathBuf,
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
    /// Headers that requests carry besides the usual ones: `Name: value`, or
    /// `https://host=Name: value` for those that are for one server only. Default: none.
    pub headers: Vec<String>,
    /// Whether cookies that a server sets are sent back to it. Default: no.
    pub cookies: bool,
    /// Requests at once to one address, whatever names lead there. Default: no limit.
    pub per_address: Option<u32>,
}

impl Default for CrawlerConfig {
    fn default() -> Self {
        Self {
            broker: format!("127.0.0.1:{}", tidings_protocol::PORT),
            group: tidings_protocol::DEFAULT_GROUP
                .parse()
                .expect("the default group has a valid name"),
            credit: 1000,
            agent: concat!("tidings/", env!("CARGO_PKG_VERSION")).to_owned(),
            member: None,
            name: "crawler".to_owned(),
            data: PathBuf::from("tidings-data"),
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
/// A longer crawl-delay is taken as this: a day, which is also how long the broker keeps a pace.
pub const CRAWL_DELAY_MAX: Duration = Duration::from_hours(24);
/// Tasks whose robots.txt was redirected, and of which the next hop is awaited. Few sites do
/// that; a forgotten one starts again at the beginning.
pub const ROBOTS_WALKS_MAX: usize = 10_000;

/// Different links kept from one page. Indexes of large manuals have some thousands.
pub const LINKS_MAX: usize = 16 * 1024;
/// Bytes of all links of one page together, before they are made absolute: what one page may
/// hold in memory until it is stored.
pub const LINKS_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Bytes of all links of one page together, made absolute. Short links below a long `<base>` or URL
/// grow a thousandfold; honest pages of [`LINKS_MAX`] links stay below this.
pub const LINKS_ABSOLUTE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// A longer attribute is no link that anybody meant; also the canonical URL's own limit.
pub const LINK_BYTES_MAX: usize = 8 * 1024;
/// What the HTML parser may hold: one token that is split between chunks, and the names of the
/// elements that are open, 128 bytes each (some 8,000; old pages leave many a `<p>` open). Beyond
/// it the reading of that page ends; links before it are kept.
pub const PARSER_BYTES_MAX: usize = 1024 * 1024;
/// Bytes kept of a page's `<noscript>` and `<noframes>` together until its end, where they are read.
pub const WITHOUT_SCRIPTS_BYTES_MAX: usize = 128 * 1024;
/// Bytes looked at for a `<meta charset>`, as browsers do.
pub const CHARSET_PRESCAN_BYTES: usize = 1024;
/// A title is cut after this many bytes, at a character.
pub const TITLE_BYTES_MAX: usize = 1024;

/// A look-up of a name may take this long; the system's resolver tries several servers meanwhile.
pub const DNS_TIMEOUT: Duration = Duration::from_secs(5);
/// Look-ups at once. Each takes a thread of the system's resolver until it ends by itself.
pub const DNS_LOOKUPS_MAX: usize = 64;
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
/// Bytes taken from a decoder at a time.
pub const DECODED_CHUNK_BYTES: usize = 16 * 1024;
/// A connection that nobody used for this long is closed: longer than usual delays between two
/// requests to a host, short enough that many hosts do not use up the file descriptors.
pub const POOL_IDLE: Duration = Duration::from_secs(20);
/// Idle connections kept, over all hosts. Each is a file descriptor and some 20 KiB.
pub const POOL_CONNECTIONS_MAX: usize = 2048;
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

/// A body that a sink wants to have whole is in memory up to this size, and beyond it in a file.
pub const SPOOL_BYTES_MAX: usize = 64 * 1024;
/// All such bodies together have this much memory; what finds none left is in a file.
pub const SPOOLS_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Pages waiting for the disk. Senders wait when it is full.
pub const STORE_QUEUE_MAX: usize = 1024;
/// Pages in one transaction: bounds how long the first waits for the last.
pub const STORE_BATCH_MAX: usize = 512;
/// How long `SQLite` waits for another process that writes.
pub const STORE_BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a fetched page waits for a full or failing disk before it is handed back; its lease
/// is extended meanwhile.
pub const STORE_PATIENCE: Duration = Duration::from_mins(1);
/// Pause between two tries to store.
pub const STORE_RETRY: Duration = Duration::from_secs(1);
/// A page that could not be stored comes back after this.
pub const STORE_NACK_AFTER: Duration = Duration::from_mins(1);

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
/// After that, the database may take this long to be closed. Together below a second.
pub const STOP_CLOSE: Duration = Duration::from_millis(200);

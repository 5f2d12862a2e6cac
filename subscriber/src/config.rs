//! What a crawler is told, and every limit it keeps, each with its unit, default and reason.

use std::path::PathBuf;
use std::time::Duration;

use tidings_protocol::{GroupName, MemberId};

use crate::address::AllowPrivate;
use crate::sink::SinkConfig;

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
    /// Where a crawler keeps what it needs; created if missing. Default: `tidings-data`.
    pub data: PathBuf,
    /// Where pages are stored: in all of these. Default: none, which is `pages.db` in `data`.
    pub sinks: Vec<SinkConfig>,
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
            sinks: Vec::new(),
            allow_private: AllowPrivate::None,
            connect_timeout: Duration::from_secs(10),
            read_timeout: Duration::from_secs(15),
            request_timeout: Duration::from_secs(40),
            body_bytes_max: 64 * 1024 * 1024,
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

/// Pages waiting for a sink. Senders wait when it is full.
pub const STORE_QUEUE_MAX: usize = 1024;
/// Pages that are made safe together: bounds how long the first waits for the last.
pub const STORE_BATCH_MAX: usize = 512;
/// How long `SQLite` waits for another process that writes.
pub const STORE_BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// The log of `SQLite` is written to the database when it has these bytes, and cut to them: seconds of a fast
/// crawl, so that what is touched often is written once.
pub const STORE_WAL_BYTES: u32 = 16 * 1024 * 1024;
/// Questions about earlier records that wait; who asks waits when it is full.
pub const LOOKUP_QUEUE_MAX: usize = 1024;
/// Questions that are answered in one transaction.
pub const LOOKUP_BATCH_MAX: usize = 128;
/// Bytes of lines that are written to a file at a time.
pub const JSONL_CHUNK_BYTES: usize = 256 * 1024;
/// A line of JSON is never longer: links have [`LINKS_ABSOLUTE_BYTES_MAX`], and in JSON no character of theirs is
/// more than two.
pub const JSONL_LINE_BYTES_MAX: u64 = 16 * 1024 * 1024;
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
/// Pause between two tries of a sink that fails.
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
/// After that, the sinks may take this long to be closed. Together below a second.
pub const STOP_CLOSE: Duration = Duration::from_millis(200);

//! The Tidings crawler: a worker that takes tasks from a group of the broker and, for each, makes
//! the one request that it was given permission for.
//!
//! The group decides when a host may be asked; the crawler decides nothing of that kind. It
//! fetches, reads, stores, says what it found, and hands back what it could not do. One task
//! goes like this:
//!
//! ```text
//! TASK ──► is the host's robots.txt known?
//!            │ no   request robots.txt ──► NACK again=<page>     (the page's turn comes later)
//!            │ yes, and it says no ──────────────────► store ──► ACK outcome=robots
//!            ▼ yes, and the page may be asked for
//!          request the page ──► TOUCH over=yes        (the host's delay runs from here)
//!            ├─ complete ──► read, store ──► LINK .. ACK
//!            ├─ redirect ──────────► store ──► LINK kind=redirect, ACK outcome=redirect
//!            ├─ hopeless ──────────► store ──► ACK outcome=failed
//!            └─ maybe next time ───► store ──► NACK
//! ```
//!
//! | module | what it knows |
//! |---|---|
//! | [`address`] | which addresses may be asked |
//! | [`robots`] | what a robots.txt allows |
//! | [`page`] | what a page says |
//! | [`feed`], [`sitemap`] | what a feed or a sitemap says; which feeds are watched, and how often |
//! | [`document`] | which of these a document is |
//! | [`tracking`] | which parameters of a link say nothing about the page |
//! | [`known`] | which links the broker knows already |
//! | [`traps`] | when a site has no end |
//! | [`connect`] | how connections are made, and to whom |
//! | [`fetch`] | how one request is made and bounded |
//! | [`outcome`] | every reason why there is no page |
//! | [`program`] | how programs are run |
//! | [`sink`] | where pages are kept |
//! | [`spool`] | bodies that somebody wants to have whole |
//! | [`database`], [`digest`] | checking and reading databases; digests of their rows |
//! | [`state`] | what is remembered over restarts |
//! | `worker` | the tasks, and the connection to the broker |
//! | [`config`] | every setting and every limit |

pub mod address;
pub mod config;
pub mod connect;
pub mod database;
pub mod digest;
pub mod document;
pub mod feed;
pub mod fetch;
#[doc(hidden)]
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod known;
mod markup;
pub mod outcome;
pub mod page;
pub mod pass;
pub mod program;
pub mod report;
pub mod robots;
mod room;
pub mod sink;
pub mod sitemap;
pub mod spool;
pub mod state;
#[cfg(test)]
mod testing;
pub mod tracking;
pub mod traps;
mod worker;

pub use address::AllowPrivate;
pub use config::CrawlerConfig;
pub use report::{Exchange, Keep, PageId, PageOutcome, PageRecord, PageReport, Validators};
pub use sink::SinkConfig;
pub use worker::{CrawlError, run};

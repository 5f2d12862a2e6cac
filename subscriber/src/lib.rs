//! The Tidings crawler: a worker that takes tasks from a group of the broker and makes, for each
//! task, the one request that it was released for.
//!
//! The group decides when a host may be requested; the crawler never does. It fetches, parses and
//! stores pages, sends their links, and returns tasks that it could not finish. A task takes this
//! path:
//!
//! ```text
//! TASK ──► is the host's robots.txt known?
//!            │ no   request robots.txt ──► NACK again=<page>     (the page is released again later)
//!            │ yes, disallowed ──────────────────────► store ──► ACK outcome=robots
//!            ▼ yes, allowed
//!          request the page ──► TOUCH over=yes        (the host's delay runs from here)
//!            ├─ complete ──► parse, store ──► LINK .. ACK
//!            ├─ redirect ──────────► store ──► LINK kind=redirect, ACK outcome=redirect
//!            ├─ permanent failure ─► store ──► ACK outcome=failed
//!            └─ temporary failure ─► store ──► NACK
//! ```
//!
//! | module | what it does |
//! |---|---|
//! | [`robots`] | parses robots.txt |
//! | [`acked_links`] | remembers links that the broker has already |
//! | [`traps`] | recognizes sites without end |
//! | [`fetch`] | fetches one document |
//! | [`metrics`] | what a crawler counts |
//! | [`images`] | stores screenshots and PDF files |
//! | [`program`] | runs programs |
//! | [`render_auto`] | decides which pages a browser renders |
//! | [`rendered_page`] | translates between a page in a browser and the crawler |
//! | [`sink`] | stores pages |
//! | [`spool`] | holds whole bodies for the sinks that need them |
//! | [`state`] | stores what a crawler keeps over restarts |
//! | `worker` | works on tasks, and holds the connection to the broker |
//! | [`config`] | the settings; limits stand in the module that they bound |
//!
//! Three crates hold what the crawler shares with other parts: `tidings-documents` parses pages,
//! feeds and sitemaps, `tidings-database` checks the rows of databases, and `tidings-egress` makes
//! all connections to sites. This crate knows neither the broker nor the connectors: it meets the
//! broker on a socket, and `.ci/run` checks that it does not depend on them.

pub mod acked_links;
pub mod config;
pub mod fetch;
#[doc(hidden)]
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod images;
pub mod metrics;
pub mod pass;
pub mod program;
pub mod render_auto;
pub mod rendered_page;
pub mod report;
pub mod robots;
pub mod sink;
pub mod spool;
pub mod state;
mod store_error;
#[cfg(test)]
mod testing;
pub mod traps;
mod worker;

pub use config::{CrawlerConfig, RenderConfig};
pub use report::{
    Exchange, KeepBodies, PageId, PageOutcome, PageRecord, PageReport, RenderReport, Rendering,
};
pub use sink::SinkConfig;
pub use worker::{CrawlError, run};

//! Reads documents of the web: pages, feeds and sitemaps, chunk by chunk and within limits.
//!
//! | module | what it does |
//! |---|---|
//! | [`document`] | recognises the kind of a document and reads its links |
//! | [`page`] | reads a page |
//! | [`feed`], [`sitemap`] | read feeds and sitemaps; which items of a watched feed are new |
//! | [`tracking`] | removes tracking parameters from links |
//!
//! Pure: bytes come in and values go out. This crate knows no runtime, socket, file or clock; time
//! is an argument. `.ci/run` checks that no runtime is among its dependencies, and clippy forbids
//! clocks (`clippy.toml`). So the crawler, the connectors and `tidings probe` use the same parsers.

pub mod document;
pub mod feed;
#[doc(hidden)]
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod markup;
pub mod page;
pub mod sitemap;
mod text;
pub mod tracking;

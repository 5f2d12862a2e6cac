//! The web that crawlers are measured with: an [`origin`] that records every request and judges a
//! crawl. The program `tidings-bench` measures and compares with it, and with the generator of
//! `tidings bench` (`tidings-load`); end-to-end tests judge crawls with it.

pub mod origin;

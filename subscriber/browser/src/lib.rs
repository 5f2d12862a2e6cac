//! Renders pages in headless Chromium, which has no network of its own.
//!
//! - [`pool`]: decides which browser takes which page, and when a browser is replaced; pure

pub mod pool;

//! The Tidings crawler.

pub mod address;
pub mod charset;
pub mod config;
pub mod links;
pub mod robots;

//! The HTTP interface and webhooks.

mod browser;
pub(crate) mod disk;
mod hooks;
pub(crate) mod openapi;
mod requests;

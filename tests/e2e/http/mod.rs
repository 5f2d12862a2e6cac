//! The HTTP interface and webhooks.

mod browser;
mod config;
mod dashboard;
mod dashboards;
pub(crate) mod disk_faults;
mod generated;
mod history;
mod live;
pub(crate) mod openapi;
mod requests;
mod rules;
mod schemathesis;
mod traces;
mod webhooks;

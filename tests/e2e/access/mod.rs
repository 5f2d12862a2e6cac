//! Tokens, permissions, TLS, limits and hostile clients.

mod access_table;
mod anonymous;
mod audit;
mod crowds;
mod descriptors;
mod hardened;
mod hostile_lines;
mod injection;
mod limits;
mod revoked;
mod tls;
mod tls_client;
pub(crate) mod tokens;
mod worker_permissions;

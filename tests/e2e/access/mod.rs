//! Tokens, permissions, TLS, limits and hostile clients.

mod anonymous;
pub(crate) mod audit;
mod connection_floods;
mod expiry;
mod foreign_protocols;
mod hardening;
mod injection;
mod limits;
mod open_file_limit;
mod permission_table;
mod revocation;
mod tls;
mod tls_client;
pub(crate) mod tokens;
mod worker_permissions;

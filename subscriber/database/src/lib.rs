//! `SQLite` databases with a digest in each row, so that a changed byte in a stored text is
//! noticed.
//!
//! | module | what it does |
//! |---|---|
//! | [`digest`] | writes and checks the digests of rows |
//! | [`read_only`] | checks and reads a database without changing it or the files beside it |
//! | [`schema_version`] | opens a database, and brings it to the newest version |
//!
//! This crate knows no table: a program that keeps a database describes its tables as a
//! [`Schema`](digest::Schema). It depends on no other crate of this workspace; `.ci/run` checks
//! this.

pub mod digest;
pub mod read_only;
pub mod schema_version;

pub use read_only::{CheckReport, ReadOnlyDatabase, check, with_suffix};

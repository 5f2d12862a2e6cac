//! The log on a real directory.

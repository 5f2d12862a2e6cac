//! Directories whose complete files are announced.

pub mod name;
pub mod select;
pub mod tracker;

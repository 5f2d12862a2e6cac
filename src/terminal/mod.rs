//! What a person reads and types: output, the end of a command, and lines of standard input.

pub(crate) mod failure;
pub(crate) mod lines;
pub(crate) mod output;
pub(crate) mod page_line;

//! Ways into Tidings and out of it that are clients of the line protocol, as anybody's programs are: the broker
//! knows nothing of them.
//!
//! | module | what it is |
//! |---|---|
//! | [`files`] | directories whose complete files are announced |
//! | [`signal`] | programs that can do nothing but look into a directory when they are sent a signal |

pub mod files;
pub mod signal;

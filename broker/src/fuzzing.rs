//! Fuzz targets of this crate. Their functions are next to the code that they test, and panic if a
//! property does not hold. For the feature `fuzzing` and for tests only.

use crate::access;
use crate::net::http::hooks;

/// The name and the function of a target.
pub type Target = (&'static str, fn(&[u8]));

/// The targets of this crate.
pub const TARGETS: &[Target] =
    &[("hook", hooks::fuzzing::fuzz_webhook), ("access", access::fuzzing::access)];

#[cfg(test)]
#[path = "../../fuzz/replay.rs"]
mod replay;

//! The wall clock and the randomness of the system.

#![expect(clippy::disallowed_methods, reason = "leases and messages are dated by the wall clock")]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use data_encoding::HEXLOWER;

/// The time since 1970.
pub(crate) fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The time since 1970 in milliseconds.
pub(crate) fn unix_now_ms() -> u64 {
    milliseconds(unix_time())
}

pub(crate) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// 256 random bits, which cannot be guessed.
pub(crate) fn random_token() -> String {
    let mut bits = [0_u8; 32];
    aws_lc_rs::rand::fill(&mut bits).expect("the system has randomness");
    HEXLOWER.encode(&bits)
}

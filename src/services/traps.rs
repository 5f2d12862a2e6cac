//! Flags for the detection of traps.

use clap::{Args, value_parser};
use tidings_subscriber::traps::{
    SEGMENT_REPEATS_MAX, SEGMENTS_MAX, SHAPE_PAGES_MAX, TRAP_URL_BYTES_MAX, TrapLimits,
};

/// The limits beyond which a site counts as a trap. Limits without a flag rarely need a change.
#[derive(Debug, Clone, Args)]
#[command(
    next_help_heading = "Sites without an end (pages of a job that are beyond this are traps)"
)]
pub(crate) struct TrapFlags {
    /// Longest URL, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = TRAP_URL_BYTES_MAX as u64, value_parser = value_parser!(u64).range(1..))]
    max_url: u64,

    /// Most segments in a path
    #[arg(long, value_name = "N", default_value_t = SEGMENTS_MAX as u64, value_parser = value_parser!(u64).range(1..))]
    max_segments: u64,

    /// Most repetitions of one segment in a path; numbers may repeat more often
    #[arg(long, value_name = "N", default_value_t = SEGMENT_REPEATS_MAX as u64, value_parser = value_parser!(u64).range(1..))]
    max_repeats: u64,

    /// Most pages of a host with URLs that differ only in numbers, ids and parameter values
    #[arg(long, value_name = "N", default_value_t = SHAPE_PAGES_MAX, value_parser = value_parser!(u32).range(1..))]
    max_alike: u32,

    /// Do not detect traps; only scope, depth, patterns and budgets end a crawl
    #[arg(long)]
    no_traps: bool,
}

impl TrapFlags {
    pub(crate) fn limits(&self) -> TrapLimits {
        let whole = |count| usize::try_from(count).unwrap_or(usize::MAX);
        TrapLimits {
            enabled: !self.no_traps,
            url_bytes_max: whole(self.max_url),
            segments_max: whole(self.max_segments),
            segment_repeats_max: whole(self.max_repeats),
            shape_pages_max: self.max_alike,
            ..TrapLimits::default()
        }
    }
}

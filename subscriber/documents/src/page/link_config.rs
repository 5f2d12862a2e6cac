//! What counts as a link of a page.

use xxhash_rust::xxh3::xxh3_64;

use crate::tracking::TrackingParams;

/// What counts as a link of a page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkConfig {
    /// Whether images of a page count. Default: no.
    pub images: bool,
    /// Whether the sitemaps named in robots.txt are read for links. Default: no.
    pub sitemaps: bool,
    /// Tracking parameters that are removed from links. Default: a built-in list.
    pub tracking: TrackingParams,
}

impl LinkConfig {
    /// How links are extracted, if not by the defaults. Stored with each page: a page that has not
    /// changed may have other links under other settings.
    pub fn extraction_mode(&self) -> Option<String> {
        let mut words = Vec::new();
        words.extend(self.images.then(|| "images".to_owned()));
        words.extend(self.sitemaps.then(|| "sitemaps".to_owned()));
        if self.tracking != TrackingParams::default() {
            // The list may be long.
            words.push(format!("tracking={:016x}", xxh3_64(self.tracking.to_string().as_bytes())));
        }
        (!words.is_empty()).then(|| words.join(" "))
    }
}

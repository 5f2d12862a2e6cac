//! `--render auto`: decides which fetched pages are rendered.
//!
//! The signs in a page show whether its content is missing without scripts ([`Verdict`]). For each
//! host it remembers the directories in which rendering such pages added nothing ([`Gain`]). There,
//! only one page in fifty is rendered, to notice a changed site, until one gains something. A page
//! that could not be rendered changes nothing.
//!
//! The memory is bounded. It is passed in and out as values, one for each host, which the crawler
//! stores for thirty days. Pure; the time is an argument.

mod gain;
#[cfg(test)]
mod tests;
mod verdict;

use std::fmt::Write;
use std::time::Duration;

use bytes::Bytes;
use indexmap::IndexMap;
use tidings_documents::page::PageSigns;
use tidings_protocol::CanonicalUrl;

pub use self::gain::{FetchedForm, Gain};
pub use self::verdict::{RenderCause, Verdict};
use crate::traps::shape;

/// Pages of a directory that are rendered in a row without gain. One or two may be the exceptions
/// of a site, such as its imprint.
pub const VISITS_WITHOUT_GAIN_MAX: u8 = 8;
/// After that, one of this many pages is rendered.
pub const RENDERED_OF: u8 = 50;
/// Hosts in the memory, each of at most 1.5 KiB. If there are more, the oldest tenth is evicted; a
/// host is loaded again with its next page.
const AUTO_HOSTS_MAX: usize = 10_000;
/// Directories of one host. The least recently used one is evicted first.
const AUTO_DIRECTORIES_MAX: usize = 64;
/// How long the memory of a host is stored after its last rendered page.
const AUTO_STORED_FOR: Duration = Duration::from_hours(30 * 24);
/// Raise it to discard stored values of older versions.
const VERSION: u8 = 1;

/// The kind of the values in `crawler.db`. The key is the origin.
pub const AUTO_KIND: &str = "render-gain";

/// Decides which pages are rendered, and remembers the gains.
#[derive(Debug, Default)]
pub struct AutoRender {
    /// By origin; `<= AUTO_HOSTS_MAX`.
    hosts: IndexMap<String, HostMemory>,
}

/// Whether a page is rendered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It is, for this reason.
    Render(RenderCause),
    /// It has its content.
    Complete,
    /// Its content may be missing, but rendering pages like it has added nothing.
    NoGain,
}

/// A value to store for a host.
#[derive(Debug, PartialEq, Eq)]
pub struct StoredHost {
    /// What [`AutoRender::restore`] reads.
    pub value: Bytes,
    /// In seconds since 1970.
    pub expires_unix_s: u64,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct HostMemory {
    /// Rendering has added something to one of its pages.
    has_gained: bool,
    /// In the order of their last use; `<= AUTO_DIRECTORIES_MAX`.
    directories: Vec<DirectoryMemory>,
}

/// The memory of a directory: of pages with URLs of the same form up to the last segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct DirectoryMemory {
    shape: u64,
    /// Rendered pages since the last gain; `<= VISITS_WITHOUT_GAIN_MAX`.
    without_gain: u8,
    /// Pages that were not rendered, since the last one that was; `< RENDERED_OF`.
    skipped: u8,
}

impl AutoRender {
    /// Whether the memory of this page's host was restored, or began without a stored value.
    pub fn knows(&self, page: &CanonicalUrl<'_>) -> bool {
        self.hosts.contains_key(page.origin())
    }

    /// Restores the memory of a page's host from the stored value, unless it is known. A value that
    /// cannot be read counts as missing.
    pub fn restore(&mut self, page: &CanonicalUrl<'_>, stored: Option<&[u8]>) {
        if !self.knows(page) {
            let host = stored.and_then(HostMemory::read).unwrap_or_default();
            self.insert(page, host);
        }
    }

    /// Decides about a fetched page. The memory of its host must be [restored](Self::restore).
    pub fn decide(&mut self, page: &CanonicalUrl<'_>, signs: &PageSigns) -> Decision {
        let verdict = Verdict::of(signs);
        if verdict == Verdict::No {
            return Decision::Complete;
        }
        let host = self.host(page);
        let reason = match verdict {
            Verdict::Render(reason) => reason,
            _ if host.has_gained => RenderCause::HostGained,
            _ => return Decision::Complete,
        };
        let directory = host.directory(page);
        if directory.without_gain == VISITS_WITHOUT_GAIN_MAX {
            directory.skipped = (directory.skipped + 1) % RENDERED_OF;
            if directory.skipped > 0 {
                return Decision::NoGain;
            }
        }
        Decision::Render(reason)
    }

    /// Learns from a page that was rendered. Returns the value to store for its host.
    pub fn learn(&mut self, page: &CanonicalUrl<'_>, gain: Gain, now_unix_s: u64) -> StoredHost {
        let host = self.host(page);
        host.has_gained |= gain.is_some();
        let directory = host.directory(page);
        let visits = directory.without_gain + 1;
        directory.without_gain =
            if gain.is_some() { 0 } else { visits.min(VISITS_WITHOUT_GAIN_MAX) };
        StoredHost {
            value: host.write().into(),
            expires_unix_s: now_unix_s.saturating_add(AUTO_STORED_FOR.as_secs()),
        }
    }

    fn host(&mut self, page: &CanonicalUrl<'_>) -> &mut HostMemory {
        let index = self.hosts.get_index_of(page.origin());
        let index = index.unwrap_or_else(|| self.insert(page, HostMemory::default()));
        &mut self.hosts[index]
    }

    /// Inserts a new host at the end; returns its index.
    fn insert(&mut self, page: &CanonicalUrl<'_>, host: HostMemory) -> usize {
        if self.hosts.len() == AUTO_HOSTS_MAX {
            self.hosts.drain(..AUTO_HOSTS_MAX.div_ceil(10));
        }
        self.hosts.insert_full(page.origin().to_owned(), host).0
    }
}

impl HostMemory {
    fn directory(&mut self, page: &CanonicalUrl<'_>) -> &mut DirectoryMemory {
        let shape = shape::of_directory(page);
        let all = &mut self.directories;
        if let Some(at) = all.iter().position(|known| known.shape == shape) {
            all[at..].rotate_left(1);
        } else {
            if all.len() == AUTO_DIRECTORIES_MAX {
                all.remove(0);
            }
            all.push(DirectoryMemory { shape, ..DirectoryMemory::default() });
        }
        all.last_mut().expect("the directory was moved or pushed there")
    }

    /// A line with the version and whether the host has gained, and one for each directory.
    fn write(&self) -> String {
        let mut text = format!("{VERSION} {}\n", u8::from(self.has_gained));
        for DirectoryMemory { shape, without_gain, skipped } in &self.directories {
            writeln!(text, "{shape:x} {without_gain} {skipped}").expect("a String can be written");
        }
        text
    }

    fn read(value: &[u8]) -> Option<Self> {
        let mut lines = std::str::from_utf8(value).ok()?.lines();
        let (version, has_gained) = lines.next()?.split_once(' ')?;
        if version.parse() != Ok(VERSION) {
            return None;
        }
        let directory = |line: &str| {
            let mut words = line.split(' ');
            let shape = u64::from_str_radix(words.next()?, 16).ok()?;
            let mut number = || words.next()?.parse().ok();
            let (without_gain, skipped) = (number()?, number()?);
            let is_valid = without_gain <= VISITS_WITHOUT_GAIN_MAX && skipped < RENDERED_OF;
            is_valid.then_some(DirectoryMemory { shape, without_gain, skipped })
        };
        let directories = lines.map(directory).collect::<Option<Vec<_>>>()?;
        let is_valid = directories.len() <= AUTO_DIRECTORIES_MAX;
        is_valid.then_some(Self { has_gained: has_gained == "1", directories })
    }
}

//! The ledger of an append-only file: the pages in it that may come again.
//!
//! A page is *settled* when the broker has applied its final reply: it never comes again. A page
//! that was written but is not settled may come again, if the reply was lost: then it must be
//! recognized. In memory the ledger is a set. So that a crash does not lose it, there is a *mark*,
//! a small file beside the output with a position in the output and some pages:
//!
//! > **Every page with a record before the position is settled, or the mark names it.** The
//! > position is never beyond what is synced.
//!
//! So after a crash the pages that may come again are those in the mark and those after its
//! position, which are read from the output. This holds for a mark of any age, since pages are
//! written in order and a settled page stays settled; an old mark only names too many. So it is
//! enough to write the mark at intervals. (A position alone would not do: if the reply was applied
//! just before a crash, the page never comes again and is never settled, so the position could
//! never advance.)
//!
//! Pages that never come again, but are never settled, would collect, so the ledger is bounded
//! (`UNSETTLED_PAGES_MAX`): the oldest are evicted first. The limit is above the tasks that a
//! crawler holds.
//!
//! ```text
//! tidings mark 1
//! <position, in the words of the output>
//! output <id>       made with the first mark
//! <page>            any number of these
//! end
//! ```

#![expect(clippy::disallowed_methods, reason = "the mark is written at intervals")]

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tidings_database::with_suffix;

use super::append::sync_directory_of;
use crate::report::PageId;

/// How often the mark file of an append-only file is written: after a crash the pages of this time
/// are read again.
const MARK_INTERVAL: Duration = Duration::from_secs(1);
/// Unsettled pages that an append-only file remembers: more than all crawlers of a machine hold,
/// and than are written between two marks. At some 100 bytes each this is 6 MiB.
const UNSETTLED_PAGES_MAX: usize = 64 * 1024;

const FIRST_LINE: &str = "tidings mark 1";
const LAST_LINE: &str = "end";
const ID: &str = "output ";

/// The pages of an output that may come again.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// The path of the mark; `None` for an output that ends with the process.
    mark: Option<PathBuf>,
    /// The id of the output.
    id: String,
    /// By page: the order of writing.
    pages: HashMap<PageId, u64>,
    /// By order of writing: the page.
    order: BTreeMap<u64, PageId>,
    next: u64,
    /// The ledger has changed since the mark was written.
    changed: bool,
    written: Option<Instant>,
    /// The mark could not be written; logged once.
    failing: bool,
}

impl Ledger {
    /// Reads the mark of an output. Returns also the position after which its pages must be read,
    /// if there is a mark.
    pub(super) fn open(mark: &Path) -> io::Result<(Self, Option<String>)> {
        let id = format!("{:016x}", fastrand::u64(..));
        let mut ledger = Self { mark: Some(mark.to_owned()), id, ..Self::default() };
        let text = match fs::read(mark) {
            Ok(text) => String::from_utf8_lossy(&text).into_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((ledger, None)),
            Err(error) => return Err(error),
        };
        let mut lines = text.lines();
        let (first, position) = (lines.next(), lines.next());
        let Some(position) = position.filter(|_| first == Some(FIRST_LINE)) else {
            tracing::warn!("{} is not a mark file; ignoring it", mark.display());
            return Ok((ledger, None));
        };
        // A mark is never incomplete: it replaces the one before in one step.
        for line in lines.take_while(|line| *line != LAST_LINE) {
            match (line.strip_prefix(ID), PageId::parse(line)) {
                (Some(id), _) => id.clone_into(&mut ledger.id),
                (None, Some(page)) => ledger.insert(page),
                (None, None) => {}
            }
        }
        Ok((ledger, Some(position.to_owned())))
    }

    /// The id of the output, for as long as its mark exists.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn contains(&self, page: &PageId) -> bool {
        self.pages.contains_key(page)
    }

    /// Adds a page that was written and synced.
    pub(super) fn insert(&mut self, page: PageId) {
        self.changed = true;
        if self.pages.contains_key(&page) {
            return;
        }
        self.pages.insert(page.clone(), self.next);
        self.order.insert(self.next, page);
        self.next += 1;
        if self.order.len() > UNSETTLED_PAGES_MAX
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.pages.remove(&oldest);
        }
    }

    /// Removes pages that never come again.
    pub(super) fn settle(&mut self, pages: &[PageId]) {
        for page in pages {
            if let Some(number) = self.pages.remove(page) {
                self.order.remove(&number);
                self.changed = true;
            }
        }
    }

    /// Writes the mark if it has changed and the last write is long ago. A failure only leaves an
    /// older mark.
    pub(super) fn write_if_due(&mut self, position: impl FnOnce() -> String) {
        self.write_if_due_at(Instant::now(), position);
    }

    fn write_if_due_at(&mut self, now: Instant, position: impl FnOnce() -> String) {
        if !self.changed || self.written.is_some_and(|written| now - written < MARK_INTERVAL) {
            return;
        }
        self.written = Some(now);
        let result = self.write(&position());
        if let (Err(error), false, Some(mark)) = (&result, self.failing, &self.mark) {
            tracing::warn!("{}: {error}", mark.display());
        }
        self.failing = result.is_err();
    }

    /// Writes the mark: everything before this position is synced.
    pub(super) fn write(&mut self, position: &str) -> io::Result<()> {
        let Some(mark) = &self.mark else { return Ok(()) };
        let mut text = format!("{FIRST_LINE}\n{position}\n{ID}{}\n", self.id);
        for page in self.order.values() {
            writeln!(text, "{page}").expect("a String takes everything");
        }
        text.push_str(LAST_LINE);
        text.push('\n');
        let new = with_suffix(mark, ".new");
        let mut file = File::create(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_data()?;
        fs::rename(&new, mark)?;
        sync_directory_of(mark)?;
        self.changed = false;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(entry: u64) -> PageId {
        PageId::parse(&format!("crawlers.7.{entry}")).unwrap()
    }

    #[test]
    fn a_mark_names_the_unsettled_pages() {
        let folder = tempfile::tempdir().unwrap();
        let mark = folder.path().join("out.mark");
        let (mut ledger, position) = Ledger::open(&mark).unwrap();
        assert_eq!(position, None);
        (0..5).for_each(|entry| ledger.insert(page(entry)));
        ledger.settle(&[page(1), page(3), page(9)]);
        ledger.write("123").unwrap();
        let id = ledger.id().to_owned();
        let (ledger, position) = Ledger::open(&mark).unwrap();
        assert_eq!(position.as_deref(), Some("123"));
        assert_eq!(ledger.id(), id);
        let known: Vec<_> = (0..6).filter(|entry| ledger.contains(&page(*entry))).collect();
        assert_eq!(known, [0, 2, 4]);
    }

    #[test]
    fn a_damaged_mark_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        for text in ["", "x", "tidings mark 1", "tidings mark 2\n5\nend\n", "\u{fffd}\n\n"] {
            let mark = folder.path().join("mark");
            fs::write(&mark, text).unwrap();
            assert_eq!(Ledger::open(&mark).unwrap().1, None, "{text:?}");
        }
    }

    #[test]
    fn the_oldest_are_evicted_first() {
        let mut ledger = Ledger::default();
        (0..=UNSETTLED_PAGES_MAX as u64).for_each(|entry| ledger.insert(page(entry)));
        assert!(!ledger.contains(&page(0)));
        assert!(ledger.contains(&page(1)));
        assert_eq!(ledger.pages.len(), UNSETTLED_PAGES_MAX);
    }

    #[test]
    fn a_mark_is_written_at_intervals() {
        let folder = tempfile::tempdir().unwrap();
        let (mut ledger, _) = Ledger::open(&folder.path().join("mark")).unwrap();
        let (mut writes, began) = (0, Instant::now());
        for entry in 0..20_u32 {
            ledger.insert(page(entry.into()));
            ledger.write_if_due_at(began + MARK_INTERVAL * entry / 10, || {
                writes += 1;
                "0".to_owned()
            });
        }
        assert_eq!(writes, 2);
    }
}

//! References to dormant entries, and the parts of an entry that are stored as its text.

use tidings_protocol::CanonicalUrl;

use super::keys::KeyId;
use super::lane::Lane;
use super::runs::{PackedLane, SlotId};
use super::texts::{self, TextError, TextLocation};
use crate::entry::{Admission, EntryId, JobNumber, Key, PassId};
use crate::moment::Moment;

/// Bytes of the header of a text: its length, the length of the attributes, depth, hops, priority.
const HEADER_BYTES: usize = 18;

/// What is known of a dormant entry without reading its text.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DormantRef {
    pub(crate) id: EntryId,
    pub(crate) url_fingerprint: u64,
    pub(crate) key: KeyId,
    pub(crate) lane: PackedLane,
    pub(super) slot: SlotId,
}

impl DormantRef {
    /// Returns the job of its lane.
    pub(crate) fn job(&self) -> Option<JobNumber> {
        self.lane.job()
    }

    /// Reports whether only a member with a browser may receive it.
    pub(crate) fn needs_render(&self) -> bool {
        self.lane.needs_render()
    }
}

/// A text that is to be read: its entry, its place, and its length.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WantedText {
    pub(crate) dormant: DormantRef,
    pub(super) place: TextLocation,
    pub(super) len: usize,
}

impl WantedText {
    /// Parses the text that was read.
    pub(crate) fn parse(self, bytes: &[u8]) -> Result<EntryText<'_>, TextError> {
        let id = self.dormant.id;
        let parsed = texts::text_of(id, bytes).and_then(EntryText::parse);
        let whole = parsed.filter(|parsed| parsed.len() == self.len);
        whole.ok_or_else(|| TextError::new(format!("the text of entry {id} is damaged")))
    }
}

/// The parts of an entry that are stored as its text.
pub(crate) struct EntryText<'a> {
    pub(super) text: &'a str,
    forwarded: &'a str,
    depth: u32,
    hops: u32,
    prio: i16,
}

impl<'a> EntryText<'a> {
    /// Parses a text; `None` if it is damaged.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (header, texts) = bytes.split_first_chunk::<HEADER_BYTES>()?;
        let (numbers, prio) = header.split_first_chunk::<{ 4 * size_of::<u32>() }>()?;
        let (numbers, _) = numbers.as_chunks();
        let &[text_len, depth, hops, forwarded_len] = numbers else { return None };
        let len = |bytes| usize::try_from(u32::from_le_bytes(bytes)).ok();
        let (text, forwarded) = texts.split_at_checked(len(text_len)?)?;
        Some(Self {
            text: std::str::from_utf8(text).ok()?,
            forwarded: std::str::from_utf8(forwarded)
                .ok()
                .filter(|forwarded| Some(forwarded.len()) == len(forwarded_len))?,
            depth: u32::from_le_bytes(depth),
            hops: u32::from_le_bytes(hops),
            prio: i16::from_le_bytes(prio.try_into().ok()?),
        })
    }

    fn len(&self) -> usize {
        HEADER_BYTES + self.text.len() + self.forwarded.len()
    }

    /// Returns the entry as it was admitted, except that its due time is lost.
    pub(crate) fn admission(
        &self,
        dormant: DormantRef,
        key: Key,
        job: Option<PassId>,
    ) -> Admission {
        let Self { text, forwarded, depth, hops, prio } = *self;
        Admission {
            id: dormant.id,
            text: text.into(),
            url_key: (dormant.url_fingerprint != 0).then(|| CanonicalUrl::key_of(text)),
            key,
            job,
            depth,
            hops,
            redirect: false,
            announced: dormant.lane.lane() == Lane::Announced,
            prio,
            due: Moment(0),
            forwarded: forwarded.into(),
        }
    }
}

/// Returns the header of the text of an entry, and the length of the whole text.
pub(super) fn header_of(admission: &Admission) -> ([u8; HEADER_BYTES], u32) {
    let Admission { text, forwarded, depth, hops, prio, .. } = admission;
    let len = |text: &str| u32::try_from(text.len()).expect("a text is shorter than 4 GiB");
    let mut header = [0; HEADER_BYTES];
    let fields = [len(text), *depth, *hops, len(forwarded)];
    for (bytes, field) in header.chunks_exact_mut(4).zip(fields) {
        bytes.copy_from_slice(&field.to_le_bytes());
    }
    header[16..].copy_from_slice(&prio.to_le_bytes());
    let header_len = u32::try_from(HEADER_BYTES).expect("the header is short");
    (header, header_len + len(text) + len(forwarded))
}

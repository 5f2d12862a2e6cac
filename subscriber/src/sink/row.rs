//! The fields of a page for people: the same names in every sink.

use jiff::Timestamp;
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use tidings_documents::page::PageLink;

use crate::report::PageRecord;

/// A page, with the names and the order of the fields. As JSON its `links` are an array.
#[derive(Debug)]
pub(super) struct PageRow<'a> {
    /// `<group>.<since>.<entry>`: the id of the page.
    pub(super) page: String,
    /// `<group>:<run>.<entry>`, as in the broker's answers, without the attempt.
    pub(super) task: String,
    /// The end of the answer, RFC 3339, UTC.
    pub(super) fetched_at: String,
    pub(super) duration_ms: u64,
    /// BLAKE3 of the decoded body, hexadecimal.
    pub(super) hash: Option<String>,
    /// Address and port of the server.
    pub(super) remote: Option<String>,
    pub(super) record: &'a PageRecord,
}

/// The largest number of fields.
const FIELDS: usize = 25;

/// URLs of links, as an array.
pub(super) struct LinkUrls<'a>(pub(super) &'a [PageLink]);

impl<'a> PageRow<'a> {
    pub(super) fn of(record: &'a PageRecord) -> Self {
        let task = &record.task;
        let fetched_at = Timestamp::from_millisecond(record.fetched_unix_ms).unwrap_or_default();
        Self {
            page: record.page.to_string(),
            task: format!("{}:{}.{}", task.group, task.run, task.entry),
            fetched_at: format!("{fetched_at:.3}"),
            duration_ms: u64::try_from(record.report.duration.as_millis()).unwrap_or(u64::MAX),
            hash: record.hash.map(|hash| hash.to_hex().to_string()),
            remote: record.remote.map(|remote| remote.to_string()),
            record,
        }
    }

    /// The positions of `nofollow` links; `None` if there are none.
    pub(super) fn nofollow(&self) -> Option<Vec<usize>> {
        let links = self.record.links.iter().enumerate();
        let nofollow: Vec<_> = links.filter(|(_, link)| link.nofollow).map(|(at, _)| at).collect();
        (!nofollow.is_empty()).then_some(nofollow)
    }
}

impl Serialize for LinkUrls<'_> {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_seq(self.0.iter().map(|link| &*link.url))
    }
}

/// Omits unknown fields, to keep lines short.
impl Serialize for PageRow<'_> {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        fn some<T: Serialize, O: SerializeStruct>(
            out: &mut O,
            name: &'static str,
            value: Option<&T>,
        ) -> Result<(), O::Error> {
            value.map_or(Ok(()), |value| out.serialize_field(name, value))
        }
        let (record, report) = (self.record, &self.record.report);
        let mut fields = out.serialize_struct("page", FIELDS)?;
        let out = &mut fields;
        // The first field, so that a line can be recognized by its beginning.
        out.serialize_field("page", &self.page)?;
        out.serialize_field("url", &report.url)?;
        out.serialize_field("outcome", report.outcome.as_str())?;
        some(out, "reason", report.reason.as_ref())?;
        some(out, "error", report.error.as_ref())?;
        some(out, "status", report.status.as_ref())?;
        out.serialize_field("fetched_at", &self.fetched_at)?;
        out.serialize_field("duration_ms", &self.duration_ms)?;
        out.serialize_field("bytes", &report.bytes)?;
        some(out, "content_type", record.content_type.as_ref())?;
        some(out, "hash", self.hash.as_ref())?;
        some(out, "etag", record.validators.etag.as_ref())?;
        some(out, "last_modified", record.validators.last_modified.as_ref())?;
        some(out, "remote", self.remote.as_ref())?;
        some(out, "redirect", record.redirect.as_ref())?;
        some(out, "canonical", record.canonical.as_ref())?;
        some(out, "title", report.title.as_ref())?;
        some(out, "noindex", record.noindex.then_some(&true))?;
        some(out, "job", report.job.as_ref())?;
        some(out, "pass", record.pass.as_ref())?;
        some(out, "depth", record.depth.as_ref())?;
        out.serialize_field("task", &self.task)?;
        out.serialize_field("attempt", &record.task.attempt)?;
        out.serialize_field("links", &LinkUrls(&record.links))?;
        some(out, "nofollow", self.nofollow().as_ref())?;
        fields.end()
    }
}

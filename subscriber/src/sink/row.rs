//! The row of a page for people: the same names in every sink. Sinks write rows, and an export
//! reads them back.

use std::borrow::Cow;

use jiff::Timestamp;
use rusqlite::{CachedStatement, Row, params};
use serde::{Deserialize, Serialize};

use super::rendered::RenderRow;
use crate::report::{PageId, PageRecord};

/// A page, with the names and the order of the fields. As JSON its `links` are an array, and a
/// field without a value is omitted, to keep lines short.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PageRow<'a> {
    /// `<group>.<since>.<entry>`: the id of the page. The first field, so that a line can be
    /// recognized by its beginning.
    pub(super) page: String,
    pub(super) url: Cow<'a, str>,
    pub(super) outcome: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) status: Option<i64>,
    /// The end of the answer, RFC 3339, UTC.
    pub(super) fetched_at: String,
    pub(super) duration_ms: i64,
    pub(super) bytes: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) content_type: Option<Cow<'a, str>>,
    /// BLAKE3 of the decoded body, hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) hash: Option<String>,
    /// BLAKE3 of the rendered HTML, hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rendered_hash: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) etag: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) last_modified: Option<Cow<'a, str>>,
    /// Address and port of the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) remote: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) redirect: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) canonical: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) title: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) noindex: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) job: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pass: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) depth: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) item: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) source: Option<Cow<'a, str>>,
    /// `<group>:<run>.<entry>`, as in the broker's answers, without the attempt.
    pub(super) task: String,
    pub(super) attempt: i64,
    pub(super) links: Vec<Cow<'a, str>>,
    /// The positions of `nofollow` links; `None` if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) nofollow: Option<Vec<usize>>,
    /// The result of rendering the page; `None` if that was not tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) render: Option<RenderRow<'a>>,
    /// BLAKE3 of what a reader sees, hexadecimal. Only in databases.
    #[serde(skip)]
    pub(super) text_hash: Option<String>,
    /// The settings under which links were extracted, if not the defaults. Only in databases.
    #[serde(skip)]
    pub(super) reading: Option<Cow<'a, str>>,
    /// Where the body is: [`Original`](crate::report::Original) as JSON. Only in databases.
    #[serde(skip)]
    pub(super) original: Option<Cow<'a, str>>,
}

/// For a line: no conditional request is made for such a page.
const READING_UNKNOWN: &str = "unknown";

const JSON: &str = "strings and numbers are always JSON";

impl<'a> PageRow<'a> {
    pub(super) fn of(record: &'a PageRecord) -> Self {
        let (task, report) = (&record.task, &record.report);
        let fetched_at = Timestamp::from_millisecond(record.fetched_unix_ms).unwrap_or_default();
        let nofollow = record.links.iter().enumerate().filter(|(_, link)| link.nofollow);
        let nofollow: Vec<_> = nofollow.map(|(at, _)| at).collect();
        Self {
            page: record.page.to_string(),
            url: (&*report.url).into(),
            outcome: report.outcome.as_str().into(),
            reason: some(report.reason),
            error: some(report.error.as_deref()),
            status: report.status.map(Into::into),
            fetched_at: format!("{fetched_at:.3}"),
            duration_ms: signed(report.duration.as_millis()),
            bytes: signed(report.bytes),
            content_type: some(record.content_type.as_deref()),
            hash: record.hash.map(hexadecimal),
            rendered_hash: record.rendered_hash().map(hexadecimal),
            etag: some(record.validators.etag.as_deref()),
            last_modified: some(record.validators.last_modified.as_deref()),
            remote: record.remote.map(|remote| remote.to_string()),
            redirect: some(record.redirect.as_deref()),
            canonical: some(record.canonical.as_deref()),
            title: some(report.title.as_deref()),
            noindex: record.noindex,
            job: some(report.job.as_deref()),
            pass: record.pass.map(signed),
            depth: record.depth.map(signed),
            item: some(record.item.as_deref()),
            source: some(record.source.as_deref()),
            task: format!("{}:{}.{}", task.group, task.run, task.entry),
            attempt: task.attempt.into(),
            links: record.links.iter().map(|link| (&*link.url).into()).collect(),
            nofollow: (!nofollow.is_empty()).then_some(nofollow),
            render: record.rendering.as_ref().map(RenderRow::of),
            text_hash: record.text_hash.map(hexadecimal),
            reading: None,
            original: record
                .original
                .as_ref()
                .map(|original| serde_json::to_string(original).expect(JSON).into()),
        }
    }

    /// The JSON line, without its end.
    pub(super) fn to_json(&self) -> String {
        serde_json::to_string(self).expect(JSON)
    }

    /// Bytes of its lists, which are nearly all of a row.
    pub(super) fn list_bytes(&self) -> usize {
        let links: usize = self.links.iter().map(|link| link.len()).sum();
        links + self.render.as_ref().map_or(0, RenderRow::list_bytes)
    }

    /// Runs a statement with the columns of [`PAGES`](super::sqlite) as parameters.
    pub(super) fn upsert(&self, statement: &mut CachedStatement<'_>) -> rusqlite::Result<()> {
        statement.execute(params![
            self.page,
            self.task,
            self.url,
            self.status,
            self.content_type,
            self.bytes,
            self.hash,
            self.title,
            self.fetched_at,
            self.duration_ms,
            self.job,
            self.pass,
            self.depth,
            self.attempt,
            self.outcome,
            self.reason,
            self.error,
            self.redirect,
            self.canonical,
            self.noindex,
            self.etag,
            self.last_modified,
            self.remote,
            super::sqlite::url_fingerprint(&self.url),
            signed(self.links.len()),
            serde_json::to_string(&self.links).expect(JSON),
            self.nofollow.as_ref().map(|nofollow| serde_json::to_string(nofollow).expect(JSON)),
            self.reading,
            self.rendered_hash,
            self.render.as_ref().map(|render| serde_json::to_string(render).expect(JSON)),
            self.item,
            self.source,
            self.original,
            self.text_hash,
        ])?;
        Ok(())
    }
}

impl PageRow<'static> {
    /// Reads a row of the table `pages`. Users may have changed the file: malformed JSON is read as
    /// empty.
    pub(super) fn from_row(row: &Row<'_>) -> rusqlite::Result<Self> {
        let text = |name: &str| row.get::<_, String>(name).map(Cow::Owned);
        let some = |name: &str| row.get::<_, Option<String>>(name).map(|text| text.map(Cow::Owned));
        let links: String = row.get("link_urls")?;
        let nofollow: Option<String> = row.get("nofollow")?;
        // Older files do not have these columns.
        let added = |name: &str| match row.get::<_, Option<String>>(name) {
            Err(rusqlite::Error::InvalidColumnName(_)) => Ok(None),
            found => found,
        };
        let render = added("render")?;
        Ok(Self {
            page: row.get("page")?,
            url: text("url")?,
            outcome: text("outcome")?,
            reason: some("reason")?,
            error: some("error")?,
            status: row.get("status")?,
            fetched_at: row.get("fetched_at")?,
            duration_ms: row.get("duration_ms")?,
            bytes: row.get("bytes")?,
            content_type: some("content_type")?,
            hash: row.get("hash")?,
            rendered_hash: added("rendered_hash")?,
            etag: some("etag")?,
            last_modified: some("last_modified")?,
            remote: row.get("remote")?,
            redirect: some("redirect")?,
            canonical: some("canonical")?,
            title: some("title")?,
            noindex: row.get("noindex")?,
            job: some("job")?,
            pass: row.get("pass")?,
            depth: row.get("depth")?,
            item: added("item")?.map(Cow::Owned),
            source: added("source")?.map(Cow::Owned),
            task: row.get("task")?,
            attempt: row.get("attempt")?,
            links: serde_json::from_str(&links).unwrap_or_default(),
            nofollow: nofollow.and_then(|nofollow| serde_json::from_str(&nofollow).ok()),
            render: render.and_then(|render| serde_json::from_str(&render).ok()),
            text_hash: added("text_hash")?,
            reading: some("reading")?,
            original: added("original")?.map(Cow::Owned),
        })
    }

    /// Reads a line; the error is text for a person.
    pub(super) fn from_json(line: &[u8]) -> Result<Self, String> {
        let mut row: Self = serde_json::from_slice(line).map_err(|error| error.to_string())?;
        row.reading = Some(READING_UNKNOWN.into());
        if PageId::parse(&row.page).is_none() {
            return Err(format!("{:?} is not a page id", row.page));
        }
        Ok(row)
    }
}

fn some(text: Option<&str>) -> Option<Cow<'_, str>> {
    text.map(Cow::Borrowed)
}

fn hexadecimal(hash: blake3::Hash) -> String {
    hash.to_hex().to_string()
}

/// `SQLite` has no unsigned integers.
fn signed(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

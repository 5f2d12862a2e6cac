//! The row of a page for people: the same names in every sink. Sinks write rows, and an export
//! reads them back.

use std::borrow::Cow;

use jiff::Timestamp;
use rusqlite::{CachedStatement, Result, Row, params};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::rendered::RenderRow;
use crate::report::{PageId, PageRecord};

/// Declares the row. In a database each field is the column of its name, and those of `json` are
/// JSON.
macro_rules! page_row {
    (
        $(#[$meta:meta])*
        struct PageRow<$life:lifetime> { $($(#[$attribute:meta])* $field:ident: $kind:ty,)* }
        json { $($(#[$list_attribute:meta])* $list:ident: $list_kind:ty,)* }
        databases { $($(#[$last_attribute:meta])* $last:ident: $last_kind:ty,)* }
    ) => {
        $(#[$meta])*
        pub(super) struct PageRow<$life> {
            $($(#[$attribute])* pub(super) $field: $kind,)*
            $($(#[$list_attribute])* pub(super) $list: $list_kind,)*
            $($(#[$last_attribute])* pub(super) $last: $last_kind,)*
        }

        impl PageRow<'_> {
            /// The columns of the table `pages` that [`upsert`](Self::upsert) sets, in its order.
            pub(super) const COLUMNS: &'static [&'static str] = &[
                $(stringify!($field),)* $(stringify!($list),)* $(stringify!($last),)*
                "url_print", "links",
            ];

            /// Runs a statement with the [`COLUMNS`](Self::COLUMNS) as parameters.
            pub(super) fn upsert(&self, statement: &mut CachedStatement<'_>) -> Result<()> {
                statement.execute(params![
                    $(self.$field,)* $(json_column(&self.$list),)* $(self.$last,)*
                    super::sqlite::url_fingerprint(&self.url), signed(self.link_urls.len()),
                ])?;
                Ok(())
            }
        }

        impl PageRow<'static> {
            /// Reads a row of the table `pages`. Users may have changed the file: malformed JSON is
            /// read as empty.
            pub(super) fn from_row(row: &Row<'_>) -> Result<Self> {
                Ok(Self {
                    $($field: row.get(stringify!($field))?,)*
                    $($list: from_json_column(row.get(stringify!($list))?),)*
                    $($last: row.get(stringify!($last))?,)*
                })
            }
        }
    };
}

page_row! {
    /// A page, with the names and the order of the fields. As JSON its `links` are an array, and a
    /// field without a value is omitted, to keep lines short.
    #[derive(Debug, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct PageRow<'a> {
        /// `<group>.<since>.<entry>`: the id of the page. The first field, so that a line can be
        /// recognized by its beginning.
        page: String,
        url: Cow<'a, str>,
        outcome: Cow<'a, str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<Cow<'a, str>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<Cow<'a, str>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        status: Option<i64>,
        /// The end of the answer, RFC 3339, UTC.
        fetched_at: String,
        duration_ms: i64,
        bytes: i64,
        #[serde(skip_serializing_if = "Option::is_none")]
        content_type: Option<Cow<'a, str>>,
        /// BLAKE3 of the decoded body, hexadecimal.
        #[serde(skip_serializing_if = "Option::is_none")]
        hash: Option<String>,
        /// BLAKE3 of the rendered HTML, hexadecimal.
        #[serde(skip_serializing_if = "Option::is_none")]
        rendered_hash: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        etag: Option<Cow<'a, str>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        last_modified: Option<Cow<'a, str>>,
        /// Address and port of the server.
        #[serde(skip_serializing_if = "Option::is_none")]
        remote: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        redirect: Option<Cow<'a, str>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        canonical: Option<Cow<'a, str>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        title: Option<Cow<'a, str>>,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        noindex: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        job: Option<Cow<'a, str>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        pass: Option<i64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        depth: Option<i64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        item: Option<Cow<'a, str>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        source: Option<Cow<'a, str>>,
        /// `<group>:<run>.<entry>`, as in the broker's answers, without the attempt.
        task: String,
        attempt: i64,
    }
    json {
        #[serde(rename = "links")]
        link_urls: Vec<Cow<'a, str>>,
        /// The positions of `nofollow` links; `None` if there are none.
        #[serde(skip_serializing_if = "Option::is_none")]
        nofollow: Option<Vec<usize>>,
        /// The result of rendering the page; `None` if that was not tried.
        #[serde(skip_serializing_if = "Option::is_none")]
        render: Option<RenderRow<'a>>,
    }
    databases {
        /// BLAKE3 of what a reader sees, hexadecimal.
        #[serde(skip)]
        text_hash: Option<String>,
        /// The settings under which links were extracted, if not the defaults.
        #[serde(skip)]
        reading: Option<Cow<'a, str>>,
        /// Where the body is: [`Original`](crate::report::Original) as JSON.
        #[serde(skip)]
        original: Option<Cow<'a, str>>,
    }
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
            link_urls: record.links.iter().map(|link| (&*link.url).into()).collect(),
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
        let links: usize = self.link_urls.iter().map(|link| link.len()).sum();
        links + self.render.as_ref().map_or(0, RenderRow::list_bytes)
    }
}

impl PageRow<'static> {
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

/// A column with JSON; `None` is NULL.
fn json_column(value: &impl Serialize) -> Option<String> {
    Some(serde_json::to_string(value).expect(JSON)).filter(|json| json != "null")
}

fn from_json_column<T: DeserializeOwned + Default>(json: Option<String>) -> T {
    json.and_then(|json| serde_json::from_str(&json).ok()).unwrap_or_default()
}

/// `SQLite` has no unsigned integers.
fn signed(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

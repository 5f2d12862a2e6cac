//! The result of rendering a page, as the sinks store it.
//!
//! | field of `render` | |
//! |---|---|
//! | `outcome` | `rendered`; `cut`: the page was read while it still changed; `failed`: the page is stored as it was fetched |
//! | `reason`, `error` | why it failed: a word of a closed list, and one line for people |
//! | `final_url` | the URL after the scripts have run |
//! | `duration_ms` | from the request for a browser to its answer |
//! | `requests` | for each request of the page `url`, `kind`, and `status` and `bytes` of the response; or why it was `refused`, or has `failed`; none of these if the page ended first |
//! | `requests_unlisted` | how many more there were |
//! | `console_errors` | the first errors of scripts |
//! | `dialogs` | how many were dismissed |
//! | `opened` | URLs that the page tried to go to: `how` (`navigation`, `popup`, `download`) and `url` |
//! | `screenshot`, `pdf` | files, relative to the data directory of the crawler |
//! | `image_errors` | `screenshot` or `pdf`, with the reason why there is no file |
//!
//! A `kind` is `frame`, `script`, `style`, `data`, `image`, `font`, `media` or `unneeded`. A field
//! without a value, a number that is 0 and an empty list are omitted. Long texts are cut.

use std::borrow::Cow;
use std::path::Path;
use std::{io, mem};

use serde::{Deserialize, Serialize};
use tidings_browser::visit::{RequestRecord, RequestResult};

use super::Sinks;
use crate::images::{ImageKind, StoredImage};
use crate::report::{RenderReason, Rendering};
use crate::spool::Spools;

/// Bytes of a text that the browser does not bound.
const TEXT_BYTES_MAX: usize = 2048;

/// The value of the field `render`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RenderRow<'a> {
    outcome: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    final_url: Option<Cow<'a, str>>,
    duration_ms: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    requests: Vec<RequestRow<'a>>,
    #[serde(skip_serializing_if = "is_zero")]
    requests_unlisted: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    console_errors: Vec<Cow<'a, str>>,
    #[serde(skip_serializing_if = "is_zero")]
    dialogs: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    opened: Vec<OpenedRow<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    screenshot: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pdf: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    image_errors: Vec<Cow<'a, str>>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct RequestRow<'a> {
    url: Cow<'a, str>,
    kind: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<Cow<'a, str>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct OpenedRow<'a> {
    how: Cow<'a, str>,
    url: Cow<'a, str>,
}

impl<'a> RenderRow<'a> {
    /// What sinks store of a rendering.
    pub fn of(rendering: &'a Rendering) -> Self {
        let image = |image: &'a Option<StoredImage>| Some((&*image.as_ref()?.name).into());
        let row = Self {
            duration_ms: u64::try_from(rendering.duration.as_millis()).unwrap_or(u64::MAX),
            screenshot: image(&rendering.screenshot),
            pdf: image(&rendering.pdf),
            ..Self::default()
        };
        let page = match &rendering.result {
            Ok(page) => page,
            Err(error) => {
                let text = error.to_string();
                return Self {
                    outcome: "failed".into(),
                    reason: Some(RenderReason::from(error).as_str().into()),
                    error: Some(cut(&text).to_owned().into()),
                    ..row
                };
            }
        };
        let opened = page.opened.iter().map(|opened| OpenedRow {
            how: opened.how.as_str().into(),
            url: cut(&opened.url).into(),
        });
        Self {
            outcome: if page.cut.is_some() { "cut" } else { "rendered" }.into(),
            final_url: Some(cut(&page.final_url).into()),
            requests: page.requests.iter().map(RequestRow::of).collect(),
            requests_unlisted: page.requests_unlisted,
            console_errors: page.console_errors.iter().map(|error| cut(error).into()).collect(),
            dialogs: page.dialogs.into(),
            opened: opened.collect(),
            image_errors: page.image_errors.iter().map(|error| cut(error).into()).collect(),
            ..row
        }
    }

    /// Bytes of its lists.
    pub(super) fn list_bytes(&self) -> usize {
        let requests = self.requests.iter().map(|request| request.url.len());
        let opened = self.opened.iter().map(|opened| opened.url.len());
        let errors = self.console_errors.iter().chain(&self.image_errors);
        let errors = errors.map(|error| error.len());
        requests.chain(opened).chain(errors).sum()
    }
}

impl<'a> RequestRow<'a> {
    fn of(record: &'a RequestRecord) -> Self {
        let (url, kind) = (cut(&record.url).into(), record.kind.as_str().into());
        let row = Self { url, kind, ..Self::default() };
        match &record.result {
            RequestResult::Unanswered => row,
            RequestResult::Response(status, bytes) => {
                Self { status: Some(*status), bytes: Some(*bytes), ..row }
            }
            RequestResult::Refused(reason) => Self { refused: Some(cut(reason).into()), ..row },
            RequestResult::Failed(reason) => Self { failed: Some(cut(reason).into()), ..row },
        }
    }
}

impl Sinks {
    /// Stores the image and the PDF, and keeps the HTML if a sink needs it. Afterwards the rendered
    /// page is without them, and without its links, which the record has. An error means that this
    /// machine cannot store the page.
    pub async fn keep_rendering(
        &self,
        rendering: &mut Rendering,
        spools: &Spools,
        data: &Path,
    ) -> io::Result<()> {
        let Ok(page) = &mut rendering.result else { return Ok(()) };
        page.links = Vec::new();
        let html = mem::take(&mut page.html);
        if self.keep.raw || self.keep.decoded {
            let mut spool = spools.begin();
            spool.write(html.as_bytes()).await?;
            if self.need_files {
                spool.path().await?;
            }
            rendering.html = Some(spool);
        }
        if let Some(bytes) = page.screenshot.take() {
            let stored = StoredImage::store(ImageKind::Screenshot, bytes, data, spools);
            rendering.screenshot = Some(stored.await?);
        }
        if let Some(bytes) = page.pdf.take() {
            let stored = StoredImage::store(ImageKind::Pdf, bytes, data, spools);
            rendering.pdf = Some(stored.await?);
        }
        Ok(())
    }
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_BYTES_MAX)]
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidings_browser::visit::{Cut, PageError};

    use super::*;
    use crate::sink::testing::{folder, rendering};

    fn json(rendering: &Rendering) -> String {
        serde_json::to_string(&RenderRow::of(rendering)).unwrap()
    }

    #[test]
    fn a_rendered_page_is_one_object_that_can_be_read_back() {
        let data = folder();
        let spools = Spools::open(&data.path().join("spool")).unwrap();
        let mut page = rendering(&spools, data.path());
        let expected = concat!(
            r#"{"outcome":"rendered","final_url":"http://site.example/1?tab=2","duration_ms":1200,"#,
            r#""requests":[{"url":"http://site.example/api","kind":"data","status":200,"bytes":5},"#,
            r#"{"url":"http://site.example/i.png","kind":"image","refused":"kind"},"#,
            r#"{"url":"http://site.example/s.js","kind":"script","failed":"reset"},"#,
            r#"{"url":"http://site.example/late","kind":"data"}],"requests_unlisted":3,"#,
            r#""console_errors":["Uncaught \"x\""],"dialogs":1,"#,
            r#""opened":[{"how":"popup","url":"http://a.example/"}],"#,
            r#""screenshot":"screenshots/"#,
        );
        let written = json(&page);
        assert!(written.starts_with(expected), "{written}");
        let read: RenderRow<'_> = serde_json::from_str(&written).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), written);
        let rendered = page.result.as_mut().unwrap();
        rendered.cut = Some(Cut::Time);
        rendered.image_errors = vec!["pdf: not made within 8 s".to_owned()];
        rendered.final_url = format!("http://site.example/{}", "\u{e9}".repeat(5000));
        let value: serde_json::Value = serde_json::from_str(&json(&page)).unwrap();
        assert_eq!(value["outcome"], "cut");
        assert_eq!(value["image_errors"][0], "pdf: not made within 8 s");
        assert!(
            (TEXT_BYTES_MAX - 1..=TEXT_BYTES_MAX)
                .contains(&value["final_url"].as_str().unwrap().len())
        );
    }

    #[test]
    fn a_page_that_was_not_rendered_has_the_reason_only() {
        let failed = |error| json(&Rendering::new(Err(error), None, Duration::ZERO, Vec::new()));
        assert_eq!(
            failed(PageError::Left("x".repeat(5000))),
            format!(
                r#"{{"outcome":"failed","reason":"left","error":"the page has left its document for {}","duration_ms":0}}"#,
                "x".repeat(TEXT_BYTES_MAX - "the page has left its document for ".len())
            )
        );
    }

    #[test]
    fn an_image_is_stored_once_below_its_digest() {
        let data = folder();
        let spools = Spools::open(&data.path().join("spool")).unwrap();
        let [one, two] = [(), ()].map(|()| rendering(&spools, data.path()));
        assert_eq!(one.screenshot, two.screenshot);
        let (image, pdf) = (one.screenshot.unwrap(), one.pdf.unwrap());
        let digits = &blake3::hash(b"\x89PNG").to_hex()[..32];
        assert_eq!(image.name, format!("screenshots/{digits}.png"));
        assert_eq!(std::fs::read(data.path().join(&image.name)).unwrap(), b"\x89PNG");
        assert_eq!(std::fs::read(pdf.path).unwrap(), b"%PDF");
        let screenshots = data.path().join("screenshots");
        assert_eq!(std::fs::read_dir(&screenshots).unwrap().count(), 1);
        let damaged = crate::images::damaged_files;
        assert!(damaged(&screenshots).unwrap().is_empty());
        std::fs::write(&image.path, b"\x89PNX").unwrap();
        assert_eq!(damaged(&screenshots).unwrap(), [image.path]);
        let html = one.html.unwrap();
        assert_eq!(std::fs::read(html.file().unwrap()).unwrap(), b"<title>Rendered</title>");
    }
}

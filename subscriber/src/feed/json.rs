//! JSON Feed, versions 1 and 1.1.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::xml::own_id;
use super::{Entry, Feed, Kind};
use crate::config::{FEED_ENTRIES_MAX, FEED_HUBS_MAX, FEED_TEXTS_BYTES_MAX, TITLE_BYTES_MAX};
use crate::markup::{absolute, fold};

/// By its first bytes.
pub(super) fn is_json(head: &[u8]) -> bool {
    let head = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head);
    head.trim_ascii_start().starts_with(b"{")
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Document {
    version: Text,
    title: Text,
    home_page_url: Text,
    feed_url: Text,
    hubs: Few<Hub, FEED_HUBS_MAX>,
    items: Few<Item, FEED_ENTRIES_MAX>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Hub {
    url: Text,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Item {
    id: Text,
    url: Text,
    external_url: Text,
    title: Text,
    summary: Text,
    date_modified: Text,
    date_published: Text,
}

/// Reads a document as a whole.
pub(super) fn read(bytes: &[u8], base: Option<&str>) -> Feed {
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim_start_matches(['\u{feff}', ' ', '\t', '\r', '\n']);
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let Ok(document) = Document::deserialize(&mut deserializer) else { return Feed::default() };
    // Anything may be JSON.
    if !document.version.0.is_some_and(|version| version.contains("jsonfeed.org/version/")) {
        return Feed::default();
    }
    let url = |text: Text| text.0.map(|text| absolute(&text, &[base]).unwrap_or(text));
    let mut cut = document.items.cut.then_some("too many items; the rest were left out");
    let (mut entries, mut texts_bytes) = (Vec::new(), 0);
    for item in document.items.kept {
        let link = url(item.url).or_else(|| url(item.external_url));
        let title = item.title.0.map(|title| fold(&title, TITLE_BYTES_MAX));
        let title = title.filter(|title| !title.is_empty());
        let updated = item.date_modified.0.or(item.date_published.0);
        let id = item.id.0.unwrap_or_else(|| {
            let texts = [title.as_deref(), updated.as_deref(), item.summary.0.as_deref()];
            own_id(link.as_deref(), texts)
        });
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        texts_bytes += id.len() + text(&link) + text(&title) + text(&updated);
        if texts_bytes > FEED_TEXTS_BYTES_MAX {
            cut = Some("items too long together; the rest were left out");
            break;
        }
        entries.push(Entry { id, link, title, updated });
    }
    Feed {
        kind: Some(Kind::Json),
        title: document.title.0.map(|title| fold(&title, TITLE_BYTES_MAX)),
        site: url(document.home_page_url),
        own: url(document.feed_url),
        hubs: document.hubs.kept.into_iter().filter_map(|hub| url(hub.url)).collect(),
        entries,
        hints: super::Hints::default(),
        cut,
    }
}

/// A string, or a number or truth as a string; anything else is as if it were not there.
#[derive(Default)]
struct Text(Option<String>);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Text;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_str<E>(self, text: &str) -> Result<Text, E> {
        let text = text.trim();
        Ok(Text((!text.is_empty()).then(|| text.to_owned())))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Text, E> {
        Ok(Text(Some(number.to_string())))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Text, E> {
        Ok(Text(Some(number.to_string())))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Text, E> {
        Ok(Text(Some(number.to_string())))
    }

    fn visit_bool<E>(self, truth: bool) -> Result<Text, E> {
        Ok(Text(Some(truth.to_string())))
    }

    fn visit_unit<E>(self) -> Result<Text, E> {
        Ok(Text(None))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Text, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Text(None))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut items: A) -> Result<Text, A::Error> {
        while items.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Text(None))
    }
}

/// The first so many of a list; anything else than a list is none.
struct Few<T, const MAX: usize> {
    kept: Vec<T>,
    cut: bool,
}

impl<T, const MAX: usize> Default for Few<T, MAX> {
    fn default() -> Self {
        Self { kept: Vec::new(), cut: false }
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for Few<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List<T, const MAX: usize>(Few<T, MAX>);
        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for List<T, MAX> {
            type Value = Few<T, MAX>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(self.0)
            }

            fn visit_seq<A: SeqAccess<'de>>(
                mut self,
                mut items: A,
            ) -> Result<Self::Value, A::Error> {
                while self.0.kept.len() < MAX {
                    let Some(item) = items.next_element()? else { return Ok(self.0) };
                    self.0.kept.push(item);
                }
                while items.next_element::<IgnoredAny>()?.is_some() {
                    self.0.cut = true;
                }
                Ok(self.0)
            }
        }
        deserializer.deserialize_any(List(Few::default()))
    }
}

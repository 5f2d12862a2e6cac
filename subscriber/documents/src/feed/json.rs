//! JSON Feed, versions 1 and 1.1.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use tidings_protocol::CanonicalUrl;

use super::entry_draft::derived_id;
use super::{BREAKS_OFF, EntryList, Feed, FeedEntry, FeedKind};
use crate::feed::FEED_ENTRIES_MAX;
use crate::markup::ReferenceResolver;
use crate::page::{FEED_HUBS_MAX, TITLE_BYTES_MAX};
use crate::text::fold_whitespace;

/// Recognises JSON by its first bytes.
pub(super) fn is_json(head: &[u8]) -> bool {
    let head = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head);
    head.trim_ascii_start().starts_with(b"{")
}

#[derive(Default)]
struct JsonFeed {
    version: Option<String>,
    title: Option<String>,
    home_page_url: Option<String>,
    feed_url: Option<String>,
    hubs: BoundedList<JsonUrl, FEED_HUBS_MAX>,
    items: BoundedList<JsonItem, FEED_ENTRIES_MAX>,
}

#[derive(Default)]
struct JsonUrl {
    url: Option<String>,
}

#[derive(Default)]
struct JsonItem {
    id: Option<String>,
    url: Option<String>,
    external_url: Option<String>,
    attachments: BoundedList<JsonUrl, 1>,
    title: Option<String>,
    summary: Option<String>,
    date_modified: Option<String>,
    date_published: Option<String>,
}

/// Reads a document as far as it is valid JSON.
pub(super) fn read(bytes: &[u8], base: Option<&str>) -> Feed {
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim_start_matches(['\u{feff}', ' ', '\t', '\r', '\n']);
    let mut document = JsonFeed::default();
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let is_whole = Lenient(Object(&mut document)).deserialize(&mut deserializer).is_ok();
    // Any JSON document may arrive here.
    if !document.version.is_some_and(|version| version.contains("jsonfeed.org/version/")) {
        return Feed::default();
    }
    let base = base.and_then(|base| CanonicalUrl::parse(base).ok());
    let mut joining = ReferenceResolver::default();
    let mut url = |text: Option<String>| {
        text.map(|text| joining.absolute(&text, base.as_ref()).unwrap_or(text))
    };
    let (mut cut, mut entries) = (document.items.cut, EntryList::default());
    if !is_whole {
        cut = Some(BREAKS_OFF);
    }
    for item in document.items.kept {
        let attachment = item.attachments.kept.into_iter().find_map(|file| file.url);
        let id = item.id.as_ref().filter(|id| CanonicalUrl::parse(id).is_ok());
        let link = item.url.or(item.external_url).or(attachment).or_else(|| id.cloned());
        let link = url(link);
        let title = item.title.map(|title| fold_whitespace(&title, TITLE_BYTES_MAX));
        let title = title.filter(|title| !title.is_empty());
        let updated = item.date_modified.or(item.date_published);
        let id = item.id.unwrap_or_else(|| {
            let texts = [title.as_deref(), updated.as_deref(), item.summary.as_deref()];
            derived_id(link.as_deref(), texts)
        });
        if let Err(too_long) = entries.add(FeedEntry { id, link, title, updated }) {
            cut = Some(too_long);
            break;
        }
    }
    Feed {
        kind: Some(FeedKind::Json),
        title: document.title.map(|title| fold_whitespace(&title, TITLE_BYTES_MAX)),
        site: url(document.home_page_url),
        self_url: url(document.feed_url),
        hubs: document.hubs.kept.into_iter().filter_map(|hub| url(hub.url)).collect(),
        cloud: None,
        entries: entries.kept,
        hints: super::PollHints::default(),
        version: None,
        cut,
    }
}

/// Reads a JSON value of any type: what it does not expect is ignored.
trait LenientRead<'de>: Sized {
    type Value: Default;

    /// Reads a string; also a number or a boolean, as a string.
    fn read_text(self, _: String) -> Self::Value {
        Self::Value::default()
    }

    fn read_list<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Self::Value::default())
    }

    fn read_object<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        while members.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Self::Value::default())
    }
}

struct Lenient<R>(R);

impl<'de, R: LenientRead<'de>> DeserializeSeed<'de> for Lenient<R> {
    type Value = R::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<R::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, R: LenientRead<'de>> Visitor<'de> for Lenient<R> {
    type Value = R::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_str<E>(self, text: &str) -> Result<R::Value, E> {
        Ok(self.0.read_text(text.trim().to_owned()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<R::Value, E> {
        Ok(self.0.read_text(number.to_string()))
    }

    fn visit_i64<E>(self, number: i64) -> Result<R::Value, E> {
        Ok(self.0.read_text(number.to_string()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<R::Value, E> {
        Ok(self.0.read_text(number.to_string()))
    }

    fn visit_bool<E>(self, truth: bool) -> Result<R::Value, E> {
        Ok(self.0.read_text(truth.to_string()))
    }

    fn visit_unit<E>(self) -> Result<R::Value, E> {
        Ok(R::Value::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<R::Value, A::Error> {
        self.0.read_list(items)
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<R::Value, A::Error> {
        self.0.read_object(members)
    }
}

/// A text; anything else is ignored.
struct Text;

impl LenientRead<'_> for Text {
    type Value = Option<String>;

    fn read_text(self, text: String) -> Option<String> {
        Some(text).filter(|text| !text.is_empty())
    }
}

/// Fills in an object, member by member, so that a document that breaks off keeps what was read
/// before. Returns whether the value is an object.
struct Object<'a, M>(&'a mut M);

trait JsonObject: Default {
    /// The text of a member with this name.
    fn text(&mut self, name: &str) -> Option<&mut Option<String>>;

    /// Reads a member with this name that is not a text.
    fn read_other<'de, A: MapAccess<'de>>(
        &mut self,
        _: &str,
        object: &mut A,
    ) -> Result<(), A::Error> {
        object.next_value::<IgnoredAny>().map(drop)
    }
}

impl<'de, M: JsonObject> LenientRead<'de> for Object<'_, M> {
    type Value = bool;

    fn read_object<A: MapAccess<'de>>(self, mut members: A) -> Result<bool, A::Error> {
        while let Some(name) = members.next_key::<String>()? {
            match self.0.text(&name) {
                Some(text) => *text = members.next_value_seed(Lenient(Text))?,
                None => self.0.read_other(&name, &mut members)?,
            }
        }
        Ok(true)
    }
}

impl JsonObject for JsonFeed {
    fn text(&mut self, name: &str) -> Option<&mut Option<String>> {
        match name {
            "version" => Some(&mut self.version),
            "title" => Some(&mut self.title),
            "home_page_url" => Some(&mut self.home_page_url),
            "feed_url" => Some(&mut self.feed_url),
            _ => None,
        }
    }

    fn read_other<'de, A: MapAccess<'de>>(
        &mut self,
        name: &str,
        object: &mut A,
    ) -> Result<(), A::Error> {
        match name {
            "hubs" => object.next_value_seed(Lenient(&mut self.hubs)),
            "items" => object.next_value_seed(Lenient(&mut self.items)),
            _ => object.next_value::<IgnoredAny>().map(drop),
        }
    }
}

impl JsonObject for JsonUrl {
    fn text(&mut self, name: &str) -> Option<&mut Option<String>> {
        (name == "url").then_some(&mut self.url)
    }
}

impl JsonObject for JsonItem {
    fn text(&mut self, name: &str) -> Option<&mut Option<String>> {
        match name {
            "id" => Some(&mut self.id),
            "url" => Some(&mut self.url),
            "external_url" => Some(&mut self.external_url),
            "title" => Some(&mut self.title),
            "summary" => Some(&mut self.summary),
            "date_modified" => Some(&mut self.date_modified),
            "date_published" => Some(&mut self.date_published),
            _ => None,
        }
    }

    fn read_other<'de, A: MapAccess<'de>>(
        &mut self,
        name: &str,
        object: &mut A,
    ) -> Result<(), A::Error> {
        match name {
            "attachments" => object.next_value_seed(Lenient(&mut self.attachments)),
            _ => object.next_value::<IgnoredAny>().map(drop),
        }
    }
}

/// The first objects of a list, up to a limit.
struct BoundedList<T, const MAX: usize> {
    kept: Vec<T>,
    cut: Option<&'static str>,
}

impl<T, const MAX: usize> Default for BoundedList<T, MAX> {
    fn default() -> Self {
        Self { kept: Vec::new(), cut: None }
    }
}

impl<'de, T: JsonObject, const MAX: usize> LenientRead<'de> for &mut BoundedList<T, MAX> {
    type Value = ();

    fn read_list<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while self.kept.len() < MAX {
            let mut item = T::default();
            match items.next_element_seed(Lenient(Object(&mut item)))? {
                Some(true) => self.kept.push(item),
                Some(false) => self.cut = Some("entries that are not objects were left out"),
                None => return Ok(()),
            }
        }
        while items.next_element::<IgnoredAny>()?.is_some() {
            self.cut = Some("too many items; the rest were left out");
        }
        Ok(())
    }
}

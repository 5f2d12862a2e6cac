//! JSON Feed, versions 1 and 1.1.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use tidings_protocol::CanonicalUrl;

use super::xml::derived_id;
use super::{EntryList, Feed, FeedEntry, FeedKind};
use crate::feed::FEED_ENTRIES_MAX;
use crate::markup::{ReferenceResolver, fold_whitespace};
use crate::page::{FEED_HUBS_MAX, TITLE_BYTES_MAX};

/// Recognises JSON by its first bytes.
pub(super) fn is_json(head: &[u8]) -> bool {
    let head = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head);
    head.trim_ascii_start().starts_with(b"{")
}

#[derive(Default)]
struct JsonFeed {
    version: JsonText,
    title: JsonText,
    home_page_url: JsonText,
    feed_url: JsonText,
    hubs: BoundedList<JsonHub, FEED_HUBS_MAX>,
    items: BoundedList<JsonItem, FEED_ENTRIES_MAX>,
}

#[derive(Default)]
struct JsonHub {
    url: JsonText,
}

#[derive(Default)]
struct JsonItem {
    id: JsonText,
    url: JsonText,
    external_url: JsonText,
    title: JsonText,
    summary: JsonText,
    date_modified: JsonText,
    date_published: JsonText,
}

/// Reads a document as far as it is valid JSON.
pub(super) fn read(bytes: &[u8], base: Option<&str>) -> Feed {
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim_start_matches(['\u{feff}', ' ', '\t', '\r', '\n']);
    let mut document = JsonFeed::default();
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let is_whole = ObjectSeed(&mut document).deserialize(&mut deserializer).is_ok();
    // Any JSON document may arrive here.
    if !document.version.0.is_some_and(|version| version.contains("jsonfeed.org/version/")) {
        return Feed::default();
    }
    let base = base.and_then(|base| CanonicalUrl::parse(base).ok());
    let mut joining = ReferenceResolver::default();
    let mut url =
        |text: JsonText| text.0.map(|text| joining.absolute(&text, base.as_ref()).unwrap_or(text));
    let (mut cut, mut entries) = (document.items.cut, EntryList::default());
    if !is_whole {
        cut = Some("broken JSON; the rest of the feed was left out");
    }
    for item in document.items.kept {
        let link = url(item.url).or_else(|| url(item.external_url));
        let title = item.title.0.map(|title| fold_whitespace(&title, TITLE_BYTES_MAX));
        let title = title.filter(|title| !title.is_empty());
        let updated = item.date_modified.0.or(item.date_published.0);
        let id = item.id.0.unwrap_or_else(|| {
            let texts = [title.as_deref(), updated.as_deref(), item.summary.0.as_deref()];
            derived_id(link.as_deref(), texts)
        });
        if let Err(too_long) = entries.add(FeedEntry { id, link, title, updated }) {
            cut = Some(too_long);
            break;
        }
    }
    Feed {
        kind: Some(FeedKind::Json),
        title: document.title.0.map(|title| fold_whitespace(&title, TITLE_BYTES_MAX)),
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

/// Reads the members of an object one by one, so that a document that breaks off keeps what was
/// read before.
trait JsonObject: Default {
    fn read_member<'de, A: MapAccess<'de>>(
        &mut self,
        name: &str,
        object: &mut A,
    ) -> Result<(), A::Error>;
}

impl JsonObject for JsonFeed {
    fn read_member<'de, A: MapAccess<'de>>(
        &mut self,
        name: &str,
        object: &mut A,
    ) -> Result<(), A::Error> {
        match name {
            "version" => self.version = object.next_value()?,
            "title" => self.title = object.next_value()?,
            "home_page_url" => self.home_page_url = object.next_value()?,
            "feed_url" => self.feed_url = object.next_value()?,
            "hubs" => object.next_value_seed(ListSeed(&mut self.hubs))?,
            "items" => object.next_value_seed(ListSeed(&mut self.items))?,
            _ => drop(object.next_value::<IgnoredAny>()?),
        }
        Ok(())
    }
}

impl JsonObject for JsonHub {
    fn read_member<'de, A: MapAccess<'de>>(
        &mut self,
        name: &str,
        object: &mut A,
    ) -> Result<(), A::Error> {
        match name {
            "url" => self.url = object.next_value()?,
            _ => drop(object.next_value::<IgnoredAny>()?),
        }
        Ok(())
    }
}

impl JsonObject for JsonItem {
    fn read_member<'de, A: MapAccess<'de>>(
        &mut self,
        name: &str,
        object: &mut A,
    ) -> Result<(), A::Error> {
        let field = match name {
            "id" => &mut self.id,
            "url" => &mut self.url,
            "external_url" => &mut self.external_url,
            "title" => &mut self.title,
            "summary" => &mut self.summary,
            "date_modified" => &mut self.date_modified,
            "date_published" => &mut self.date_published,
            _ => return object.next_value::<IgnoredAny>().map(drop),
        };
        *field = object.next_value()?;
        Ok(())
    }
}

/// A string; numbers and booleans become strings, anything else is ignored.
#[derive(Default)]
struct JsonText(Option<String>);

impl<'de> Deserialize<'de> for JsonText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = JsonText;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_str<E>(self, text: &str) -> Result<JsonText, E> {
        let text = text.trim();
        Ok(JsonText((!text.is_empty()).then(|| text.to_owned())))
    }

    fn visit_u64<E>(self, number: u64) -> Result<JsonText, E> {
        Ok(JsonText(Some(number.to_string())))
    }

    fn visit_i64<E>(self, number: i64) -> Result<JsonText, E> {
        Ok(JsonText(Some(number.to_string())))
    }

    fn visit_f64<E>(self, number: f64) -> Result<JsonText, E> {
        Ok(JsonText(Some(number.to_string())))
    }

    fn visit_bool<E>(self, truth: bool) -> Result<JsonText, E> {
        Ok(JsonText(Some(truth.to_string())))
    }

    fn visit_unit<E>(self) -> Result<JsonText, E> {
        Ok(JsonText(None))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<JsonText, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(JsonText(None))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut items: A) -> Result<JsonText, A::Error> {
        while items.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(JsonText(None))
    }
}

/// Fills in an object, and returns whether the value is an object.
struct ObjectSeed<'a, M>(&'a mut M);

impl<'de, M: JsonObject> DeserializeSeed<'de> for ObjectSeed<'_, M> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, M: JsonObject> Visitor<'de> for ObjectSeed<'_, M> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<bool, A::Error> {
        while let Some(name) = object.next_key::<String>()? {
            self.0.read_member(&name, &mut object)?;
        }
        Ok(true)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<bool, A::Error> {
        TextVisitor.visit_seq(list).map(|_| false)
    }

    fn visit_str<E>(self, _: &str) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_u64<E>(self, _: u64) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_i64<E>(self, _: i64) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_f64<E>(self, _: f64) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_bool<E>(self, _: bool) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_unit<E>(self) -> Result<bool, E> {
        Ok(false)
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

/// Fills in a list; any other value is ignored.
struct ListSeed<'a, T, const MAX: usize>(&'a mut BoundedList<T, MAX>);

impl<'de, T: JsonObject, const MAX: usize> DeserializeSeed<'de> for ListSeed<'_, T, MAX> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, T: JsonObject, const MAX: usize> Visitor<'de> for ListSeed<'_, T, MAX> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while self.0.kept.len() < MAX {
            let mut item = T::default();
            match items.next_element_seed(ObjectSeed(&mut item))? {
                Some(true) => self.0.kept.push(item),
                Some(false) => self.0.cut = Some("entries that are not objects were left out"),
                None => return Ok(()),
            }
        }
        while items.next_element::<IgnoredAny>()?.is_some() {
            self.0.cut = Some("too many items; the rest were left out");
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<(), A::Error> {
        TextVisitor.visit_map(object).map(drop)
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

//! JSON Feed, versions 1 and 1.1.

use std::fmt;
use std::mem::take;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
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

/// The members that are read as text, of all objects.
const TEXTS: &[&str] = &[
    "date_modified",
    "date_published",
    "external_url",
    "feed_url",
    "home_page_url",
    "id",
    "summary",
    "title",
    "url",
    "version",
];

/// The lists that are read, of the document.
const LISTS: &[ListKind] = &[
    ListKind { name: "hubs", objects_max: FEED_HUBS_MAX, lists: &[] },
    ListKind {
        name: "items",
        objects_max: FEED_ENTRIES_MAX,
        lists: &[ListKind { name: "attachments", objects_max: 1, lists: &[] }],
    },
];

/// A member that is a list of objects.
struct ListKind {
    name: &'static str,
    /// Further objects are left out.
    objects_max: usize,
    /// The lists of each object.
    lists: &'static [ListKind],
}

/// What was read of an object.
#[derive(Default)]
struct JsonObject {
    /// By their names; none of them is empty.
    texts: Vec<(&'static str, String)>,
    lists: Vec<(&'static str, BoundedList)>,
}

/// The first objects of a list, up to its limit.
#[derive(Default)]
struct BoundedList {
    kept: Vec<JsonObject>,
    /// What was left out.
    cut: Option<&'static str>,
}

impl JsonObject {
    fn take_text(&mut self, name: &str) -> Option<String> {
        let at = self.texts.iter().position(|(known, _)| *known == name)?;
        Some(self.texts.swap_remove(at).1)
    }

    fn list(&mut self, name: &'static str) -> &mut BoundedList {
        let known = self.lists.iter().position(|(known, _)| *known == name);
        let at = known.unwrap_or_else(|| {
            self.lists.push((name, BoundedList::default()));
            self.lists.len() - 1
        });
        &mut self.lists[at].1
    }
}

/// Reads a document as far as it is valid JSON.
pub(super) fn read(bytes: &[u8], base: Option<&str>) -> Feed {
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim_start_matches(['\u{feff}', ' ', '\t', '\r', '\n']);
    let mut document = JsonObject::default();
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let target = JsonTarget::Object(&mut document, LISTS);
    let is_whole = target.deserialize(&mut deserializer).is_ok();
    // Any JSON document may arrive here.
    let version = document.take_text("version");
    if !version.is_some_and(|version| version.contains("jsonfeed.org/version/")) {
        return Feed::default();
    }
    let base = base.and_then(|base| CanonicalUrl::parse(base).ok());
    let mut joining = ReferenceResolver::default();
    let mut url = |text: Option<String>| {
        text.map(|text| joining.absolute(&text, base.as_ref()).unwrap_or(text))
    };
    let BoundedList { kept: items, mut cut } = take(document.list("items"));
    let mut entries = EntryList::default();
    if !is_whole {
        cut = Some(BREAKS_OFF);
    }
    for mut item in items {
        let attachments = &mut item.list("attachments").kept;
        let attachment = attachments.iter_mut().find_map(|file| file.take_text("url"));
        let id = item.take_text("id");
        let link = item.take_text("url").or_else(|| item.take_text("external_url")).or(attachment);
        let link = link.or_else(|| id.clone().filter(|id| CanonicalUrl::parse(id).is_ok()));
        let link = url(link);
        let title = item.take_text("title").map(|title| fold_whitespace(&title, TITLE_BYTES_MAX));
        let title = title.filter(|title| !title.is_empty());
        let updated = item.take_text("date_modified").or_else(|| item.take_text("date_published"));
        let id = id.unwrap_or_else(|| {
            let summary = item.take_text("summary");
            derived_id(link.as_deref(), [title.as_deref(), updated.as_deref(), summary.as_deref()])
        });
        if let Err(too_long) = entries.add(FeedEntry { id, link, title, updated }) {
            cut = Some(too_long);
            break;
        }
    }
    let title = document.take_text("title");
    let hubs = take(&mut document.list("hubs").kept).into_iter();
    Feed {
        kind: Some(FeedKind::Json),
        title: title.map(|title| fold_whitespace(&title, TITLE_BYTES_MAX)),
        site: url(document.take_text("home_page_url")),
        self_url: url(document.take_text("feed_url")),
        hubs: hubs.filter_map(|mut hub| url(hub.take_text("url"))).collect(),
        cloud: None,
        entries: entries.kept,
        hints: super::PollHints::default(),
        version: None,
        cut,
    }
}

/// Where a value is stored, member by member, so that a document that breaks off keeps what was
/// read before. Many feeds have a wrong type somewhere: a value of another type is left out, and a
/// number is a text. The result is whether the value is an object.
enum JsonTarget<'a> {
    Object(&'a mut JsonObject, &'static [ListKind]),
    List(&'a mut BoundedList, &'static ListKind),
    /// The text of this name.
    Text(&'a mut JsonObject, &'static str),
}

impl<'de> DeserializeSeed<'de> for JsonTarget<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for JsonTarget<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<bool, E> {
        let text = text.trim();
        if let (Self::Text(object, name), false) = (self, text.is_empty()) {
            object.texts.push((name, text.to_owned()));
        }
        Ok(false)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<bool, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<bool, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<bool, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_bool<E: Error>(self, truth: bool) -> Result<bool, E> {
        self.visit_str(&truth.to_string())
    }

    fn visit_unit<E>(self) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<bool, A::Error> {
        let Self::List(list, kind) = self else {
            while items.next_element::<IgnoredAny>()?.is_some() {}
            return Ok(false);
        };
        while list.kept.len() < kind.objects_max {
            let mut item = JsonObject::default();
            match items.next_element_seed(JsonTarget::Object(&mut item, kind.lists))? {
                Some(true) => list.kept.push(item),
                Some(false) => list.cut = Some("entries that are not objects were left out"),
                None => return Ok(false),
            }
        }
        while items.next_element::<IgnoredAny>()?.is_some() {
            list.cut = Some("too many items; the rest were left out");
        }
        Ok(false)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<bool, A::Error> {
        let Self::Object(object, lists) = self else {
            while members.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            return Ok(false);
        };
        while let Some(name) = members.next_key::<String>()? {
            let target = if let Some(kind) = lists.iter().find(|kind| kind.name == name) {
                JsonTarget::List(object.list(kind.name), kind)
            } else if let Some(text) = TEXTS.iter().find(|text| **text == name) {
                // Of members with one name the last one counts.
                object.take_text(text);
                JsonTarget::Text(object, text)
            } else {
                members.next_value::<IgnoredAny>()?;
                continue;
            };
            members.next_value_seed(target)?;
        }
        Ok(true)
    }
}

//! Counts signs that a page has its content, or that its scripts must add it.
//!
//! Only if wanted ([`PageOptions::signs`](super::PageOptions::signs)), because each byte of text
//! is examined.

use super::link_set::has_other_scheme;
use super::tag::{HtmlTag, TagName, TagPosition, tag_name, tag_names};
use crate::page::TAG_BYTES_MAX;

/// An application's element with more text than this is not empty. Less is a word such as
/// `Loading`.
const ROOT_CHARS_MAX: usize = 40;

/// What shows whether a page needs its scripts. Nothing in `<noscript>`, in an SVG image or in an
/// inert `<template>` counts, except for `asks_for_scripts`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageSigns {
    /// Characters of the text, without white space. Chinese, Japanese and Korean characters count
    /// three times, because a word has fewer of them. Style sheets are not read, so hidden text
    /// counts, too.
    pub text_chars: usize,
    /// Links (`a`, `area`) that lead to a page, or to a view of a script (`script_links`).
    pub links: usize,
    /// Links with a fragment that begins with `!` or `/`, as in `#!/about`.
    pub script_links: usize,
    /// Images, fields of forms, frames, sound and video, except those of no size.
    pub parts: usize,
    /// Scripts with `src`.
    pub script_files: usize,
    /// Bytes of the scripts in the page, with their end tags. Data such as JSON does not count.
    pub script_bytes: usize,
    /// The element in which a common framework shows its application has no content.
    pub has_empty_root: bool,
    /// A `<noscript>` with the word JavaScript.
    pub asks_for_scripts: bool,
    /// `<meta name=fragment content=!>`, by which a page declares that scripts make its content.
    pub declares_scripts: bool,
}

/// Counts the signs of one page.
#[derive(Debug, Default)]
pub(super) struct SignCounter {
    signs: PageSigns,
    /// The open element with hidden content. An element of the same name inside of it is not
    /// recognized.
    hidden: Option<TagName>,
    root: Option<OpenRoot>,
    /// The raw text is that of a script.
    is_script: bool,
    /// The number of bytes of `JAVASCRIPT` before the position in a `<noscript>`.
    word_bytes: usize,
    /// The position is in an entity, which counts as one character.
    is_in_entity: bool,
}

/// The open element of an application.
#[derive(Debug)]
struct OpenRoot {
    name: TagName,
    /// Open elements of this name in it.
    depth: usize,
    /// The signs before it.
    before: PageSigns,
}

impl SignCounter {
    /// Reads a piece of the text outside of raw text.
    pub(super) fn text(&mut self, bytes: &[u8]) {
        match self.hidden {
            None => self.visible_text(bytes),
            Some(NOSCRIPT) => bytes.iter().for_each(|byte| self.noscript_byte(*byte)),
            Some(_) => {}
        }
    }

    fn visible_text(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if self.is_in_entity {
                if byte.is_ascii_alphanumeric() || *byte == b'#' {
                    continue;
                }
                self.is_in_entity = false;
                if *byte == b';' {
                    continue;
                }
            }
            self.is_in_entity = *byte == b'&';
            self.signs.text_chars += usize::from(CHARS[usize::from(*byte)]);
        }
    }

    fn noscript_byte(&mut self, byte: u8) {
        let byte = byte.to_ascii_lowercase();
        // Its first letter occurs in it once.
        let is_next = byte == JAVASCRIPT[self.word_bytes];
        self.word_bytes =
            if is_next { self.word_bytes + 1 } else { usize::from(byte == JAVASCRIPT[0]) };
        if self.word_bytes == JAVASCRIPT.len() {
            self.word_bytes = 0;
            self.signs.asks_for_scripts = true;
        }
    }

    /// Reads this many bytes of the raw text after the last tag.
    pub(super) fn raw_text(&mut self, bytes: usize) {
        if self.is_script {
            self.signs.script_bytes += bytes;
        }
    }

    /// Reads a tag from `<` to `>`, which may be cut after the limit.
    pub(super) fn tag(&mut self, bytes: &[u8], last: TagPosition) {
        (self.is_in_entity, self.is_script) = (false, false);
        let (is_end, bytes) = match bytes {
            [b'<', b'/', rest @ ..] => (true, rest),
            _ => (false, &bytes[1..bytes.len().min(TAG_BYTES_MAX)]),
        };
        let tag = HtmlTag::new(bytes, last);
        if let Some(hidden) = self.hidden {
            if is_end && tag.name == hidden {
                self.hidden = None;
            }
        } else if is_end {
            self.end_tag(tag.name);
        } else {
            self.start_tag(&tag);
        }
    }

    fn start_tag(&mut self, tag: &HtmlTag<'_>) {
        if let Some(root) = self.root.as_mut().filter(|root| root.name == tag.name) {
            root.depth += 1;
        }
        match tag.name {
            A | AREA => self.link(tag),
            SCRIPT => self.script(tag),
            SVG if tag.is_self_closing => {}
            TEMPLATE if tag.value("shadowrootmode").is_some() => {}
            NOSCRIPT | SVG | TEMPLATE => {
                (self.hidden, self.word_bytes) = (Some(tag.name), 0);
            }
            META => {
                let [name, content] = tag.values(["name", "content"]);
                self.signs.declares_scripts |= name.is_some_and(|it| it.is("fragment"))
                    && content.is_some_and(|it| it.is("!"));
            }
            DIV | APP_ROOT if self.root.is_none() => {
                let is_root = |id: &str| ROOT_IDS.contains(&id);
                if tag.name == APP_ROOT || tag.value("id").is_some_and(|id| is_root(&id.text())) {
                    self.root = Some(OpenRoot { name: tag.name, depth: 0, before: self.signs });
                }
            }
            name if PARTS.contains(&name) => {
                let [width, height, kind] = tag.values(["width", "height", "type"]);
                let is_tiny =
                    [width, height].into_iter().flatten().any(|it| it.is("0") || it.is("1"));
                let is_hidden = kind.is_some_and(|kind| kind.is("hidden"));
                self.signs.parts += usize::from(!is_tiny && !is_hidden);
            }
            _ => {}
        }
    }

    fn end_tag(&mut self, name: TagName) {
        let Some(root) = self.root.as_mut().filter(|root| root.name == name) else { return };
        match root.depth.checked_sub(1) {
            Some(depth) => root.depth = depth,
            None => self.end_root(),
        }
    }

    fn end_root(&mut self) {
        let Some(OpenRoot { before, .. }) = self.root.take() else { return };
        let PageSigns { text_chars, links, parts, .. } = self.signs;
        self.signs.has_empty_root |= text_chars - before.text_chars <= ROOT_CHARS_MAX
            && (links, parts) == (before.links, before.parts);
    }

    fn link(&mut self, tag: &HtmlTag<'_>) {
        let Some(href) = tag.value("href") else { return };
        let href = href.text();
        let href = href.trim_matches(|c| c <= ' ');
        let (target, fragment) = href.split_once('#').unwrap_or((href, ""));
        let is_script = fragment.starts_with(['!', '/']);
        let is_link = is_script || !target.is_empty();
        if is_link && !has_other_scheme(target) {
            self.signs.links += 1;
            self.signs.script_links += usize::from(is_script);
        }
    }

    fn script(&mut self, tag: &HtmlTag<'_>) {
        let [src, kind] = tag.values(["src", "type"]);
        let is_code = kind.is_none_or(|kind| {
            let kind = kind.text().to_ascii_lowercase();
            kind.trim().is_empty()
                || ["module", "script", "babel"].iter().any(|it| kind.contains(it))
        });
        self.signs.script_files += usize::from(is_code && src.is_some());
        self.is_script = is_code && src.is_none();
    }

    /// Ends the page.
    pub(super) fn finish(mut self) -> PageSigns {
        self.end_root();
        self.signs
    }
}

const JAVASCRIPT: &[u8] = b"javascript";

const A: TagName = tag_name(b"a");
const AREA: TagName = tag_name(b"area");
const APP_ROOT: TagName = tag_name(b"app-root");
const DIV: TagName = tag_name(b"div");
const META: TagName = tag_name(b"meta");
const NOSCRIPT: TagName = tag_name(b"noscript");
const SCRIPT: TagName = tag_name(b"script");
const SVG: TagName = tag_name(b"svg");
const TEMPLATE: TagName = tag_name(b"template");

/// Elements that show something other than text. A `<canvas>` needs a script.
const PARTS: [TagName; 11] =
    tag_names("img image input textarea select iframe frame video audio object embed");

/// The ids of React (with Vite and others), Vue, Next, Nuxt, Svelte, Quasar, and others.
const ROOT_IDS: [&str; 7] = ["root", "app", "__next", "__nuxt", "main-app", "svelte", "q-app"];

/// By the first byte of a character in UTF-8: for how many characters it counts.
const CHARS: [u8; 256] = {
    let mut chars = [0; 256];
    let mut byte = 0_u8;
    while byte < u8::MAX {
        chars[byte as usize] = match byte {
            // White space and control characters; the later bytes of a character.
            0..=b' ' | 0x7f..=0xbf => 0,
            // U+3000 to U+FFFF
            0xe3..=0xef => 3,
            _ => 1,
        };
        byte += 1;
    }
    chars
};

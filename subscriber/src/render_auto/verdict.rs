//! Judges from the signs in a fetched page whether its content is missing without scripts.

use tidings_documents::page::PageSigns;
use tidings_protocol::word_enum;

/// A page with less text than this shows only a heading or a notice.
const LITTLE_CHARS: usize = 200;
/// With this many links, images and fields, a page with little text may be complete: a form, an
/// index or an image.
const SHORT_PAGE_ITEMS: usize = 2;
/// A page with this much text, about three paragraphs, has its content although its `<noscript>`
/// asks for JavaScript.
const SOME_CHARS: usize = 1_000;
/// A page with this much text ..
const FULL_CHARS: usize = 2_000;
/// .. and this many links to pages has its content. An empty element in it is for a part, such as a
/// chat.
const FULL_LINKS: usize = 10;
/// Scripts in the page with this many bytes may make its content. Visit counters have some hundred
/// bytes.
const SCRIPT_BYTES: usize = 2 * 1024;
/// A page with fewer links ..
const FEW_LINKS: usize = 3;
/// .. and more scripts than this may lack a part of its content.
const MANY_SCRIPTS: usize = 5;

/// Whether a page should be rendered, judged without other pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Its content is missing, for this reason.
    Render(RenderCause),
    /// Part of it may be missing: render it if another page of the host has gained by that.
    Maybe,
    /// It has its content, or no scripts.
    No,
}

word_enum! {
    /// Why a page is rendered.
    pub enum RenderCause {
        /// The page declares that scripts make its content.
        Declared = "declared",
        /// The element of its application is empty.
        EmptyRoot = "empty-root",
        /// A `<noscript>` says that it needs JavaScript.
        Noscript = "noscript",
        /// Its links lead to views of a script.
        ScriptLinks = "script-links",
        /// It has scripts, and hardly any text.
        LittleText = "little-text",
        /// It has scripts and little text or few links, and other pages of its host gained.
        HostGained = "host-gained",
    }
}

impl RenderCause {
    /// A line for a person.
    pub fn explanation(self) -> &'static str {
        match self {
            Self::Declared => "the page declares that scripts make its content",
            Self::EmptyRoot => "the element of its application is empty",
            Self::Noscript => "it says that it needs JavaScript",
            Self::ScriptLinks => "its links lead to views of a script",
            Self::LittleText => "it has scripts, and hardly any text",
            Self::HostGained => {
                "it has few links or little text, and other pages of its host gained"
            }
        }
    }
}

impl Verdict {
    /// Judges a page.
    pub fn of(signs: &PageSigns) -> Self {
        let PageSigns {
            text_chars, links, script_links, parts, script_files, script_bytes, ..
        } = *signs;
        if script_files == 0 && script_bytes == 0 {
            return Self::No;
        }
        if text_chars >= FULL_CHARS && links - script_links >= FULL_LINKS {
            let has_gap = signs.has_empty_root || signs.declares_scripts;
            return if has_gap { Self::Maybe } else { Self::No };
        }
        if signs.declares_scripts {
            return Self::Render(RenderCause::Declared);
        }
        if signs.has_empty_root {
            return Self::Render(RenderCause::EmptyRoot);
        }
        if signs.asks_for_scripts && text_chars < SOME_CHARS {
            return Self::Render(RenderCause::Noscript);
        }
        if script_links > 0 && script_links >= links - script_links {
            return Self::Render(RenderCause::ScriptLinks);
        }
        // The script of a blank page may be short, because it loads others.
        let has_code = script_files > 0 || script_bytes >= SCRIPT_BYTES || text_chars == 0;
        if has_code && text_chars < LITTLE_CHARS {
            let is_short_page = links + parts >= SHORT_PAGE_ITEMS;
            return if is_short_page { Self::Maybe } else { Self::Render(RenderCause::LittleText) };
        }
        if links < FEW_LINKS && text_chars < SOME_CHARS && script_files > MANY_SCRIPTS {
            return Self::Maybe;
        }
        Self::No
    }
}

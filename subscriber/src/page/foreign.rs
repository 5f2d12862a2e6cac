//! SVG and `MathML` in a page (foreign content), where other rules apply: a `<title>` or `<style>`
//! is an ordinary element there, and `<![CDATA[` begins a text (HTML standard, 13.2.6.5).
//!
//! It keeps no tree, only the open foreign elements, and the number of open HTML elements inside of
//! them. This is exact if elements are closed in order. An end tag that matches no open foreign
//! element counts as the end of an element around the foreign content, and so ends it.

use super::tag::{Name, Tag, name};
use crate::config::FOREIGN_DEPTH_MAX;

const SVG: Name = name(b"svg");
const MATH: Name = name(b"math");
const ANNOTATION_XML: Name = name(b"annotation-xml");

/// The open foreign elements.
#[derive(Debug, Default)]
pub(super) struct Foreign {
    /// `<= FOREIGN_DEPTH_MAX`
    open: Vec<Open>,
    /// The number of open elements beyond that limit.
    beyond: usize,
}

#[derive(Debug)]
struct Open {
    name: Name,
    is_svg: bool,
    /// The number of open HTML elements in it, if HTML is allowed there; otherwise `None`.
    html: Option<usize>,
}

impl Foreign {
    /// Whether the current position is in foreign content, and not in HTML inside of it.
    pub(super) fn is_inside(&self) -> bool {
        self.open.last().is_some_and(|top| top.html.unwrap_or(0) == 0)
    }

    /// Whether no foreign element is open.
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Handles a start tag; returns whether its element is foreign.
    pub(super) fn start(&mut self, tag: &Tag<'_>) -> bool {
        if let Some(top) = self.open.last().filter(|top| !top.takes_html(tag.name)) {
            if !breaks_out(tag) {
                let is_svg = top.is_svg;
                self.push(tag, is_svg);
                return true;
            }
            self.leave();
        }
        if matches!(tag.name, SVG | MATH) {
            self.push(tag, tag.name == SVG);
            return true;
        }
        if let Some(Open { html: Some(inside), .. }) = self.open.last_mut() {
            *inside += usize::from(is_counted(tag.name));
        }
        false
    }

    /// Handles an end tag, except that of a raw text.
    pub(super) fn end(&mut self, ended: Name) {
        if self.beyond > 0 {
            self.beyond -= 1;
            return;
        }
        if matches!(ended, P | BR) && self.is_inside() {
            return self.leave();
        }
        for (index, open) in self.open.iter_mut().enumerate().rev() {
            if let Some(inside @ 1..) = &mut open.html {
                *inside -= 1;
                return self.open.truncate(index + 1);
            }
            if open.name == ended {
                return self.open.truncate(index);
            }
        }
        self.open.clear();
    }

    fn push(&mut self, tag: &Tag<'_>, is_svg: bool) {
        if tag.closes_itself {
        } else if self.open.len() == FOREIGN_DEPTH_MAX {
            self.beyond += 1;
        } else {
            let html = begins_html(tag, is_svg).then_some(0);
            self.open.push(Open { name: tag.name, is_svg, html });
        }
    }

    /// Closes elements up to where HTML is allowed, around or inside of the foreign content.
    fn leave(&mut self) {
        self.beyond = 0;
        let html = self.open.iter().rposition(|open| open.html.is_some());
        self.open.truncate(html.map_or(0, |html| html + 1));
    }
}

impl Open {
    /// Whether a start tag directly inside of it is HTML.
    fn takes_html(&self, started: Name) -> bool {
        match self.html {
            Some(1..) => true,
            // In MathML text these two elements are still MathML.
            Some(0) => {
                self.is_svg
                    || self.name == ANNOTATION_XML
                    || !matches!(started, MGLYPH | MALIGNMARK)
            }
            None => !self.is_svg && self.name == ANNOTATION_XML && started == SVG,
        }
    }
}

const MGLYPH: Name = name(b"mglyph");
const MALIGNMARK: Name = name(b"malignmark");
const P: Name = name(b"p");
const BR: Name = name(b"br");

/// Whether HTML is allowed in the element: the integration points of the standard.
fn begins_html(tag: &Tag<'_>, is_svg: bool) -> bool {
    const OF_SVG: [Name; 3] = [name(b"foreignobject"), name(b"desc"), name(b"title")];
    const OF_MATH: [Name; 5] = [name(b"mi"), name(b"mo"), name(b"mn"), name(b"ms"), name(b"mtext")];
    if is_svg {
        return OF_SVG.contains(&tag.name);
    }
    OF_MATH.contains(&tag.name)
        || tag.name == ANNOTATION_XML
            && tag.value("encoding").is_some_and(|it| {
                let encoding = it.text();
                ["text/html", "application/xhtml+xml"]
                    .iter()
                    .any(|html| encoding.eq_ignore_ascii_case(html))
            })
}

/// Elements that never occur in foreign content: its end tag is missing.
fn breaks_out(tag: &Tag<'_>) -> bool {
    const ELEMENTS: [Name; 44] = [
        name(b"b"),
        name(b"big"),
        name(b"blockquote"),
        name(b"body"),
        BR,
        name(b"center"),
        name(b"code"),
        name(b"dd"),
        name(b"div"),
        name(b"dl"),
        name(b"dt"),
        name(b"em"),
        name(b"embed"),
        name(b"h1"),
        name(b"h2"),
        name(b"h3"),
        name(b"h4"),
        name(b"h5"),
        name(b"h6"),
        name(b"head"),
        name(b"hr"),
        name(b"i"),
        name(b"img"),
        name(b"li"),
        name(b"listing"),
        name(b"menu"),
        name(b"meta"),
        name(b"nobr"),
        name(b"ol"),
        P,
        name(b"pre"),
        name(b"ruby"),
        name(b"s"),
        name(b"small"),
        name(b"span"),
        name(b"strong"),
        name(b"strike"),
        name(b"sub"),
        name(b"sup"),
        name(b"table"),
        name(b"tt"),
        name(b"u"),
        name(b"ul"),
        name(b"var"),
    ];
    const FONT: Name = name(b"font");
    ELEMENTS.contains(&tag.name)
        || tag.name == FONT && tag.values(["color", "face", "size"]).iter().any(Option::is_some)
}

/// Whether the end tag of an HTML element reaches [`Foreign::end`]. Void elements have none, and
/// the end tag of a raw text is found with the text.
fn is_counted(started: Name) -> bool {
    const UNCOUNTED: [Name; 21] = [
        name(b"area"),
        name(b"base"),
        BR,
        name(b"col"),
        name(b"embed"),
        name(b"hr"),
        name(b"image"),
        name(b"img"),
        name(b"input"),
        name(b"link"),
        name(b"meta"),
        name(b"source"),
        name(b"track"),
        name(b"wbr"),
        name(b"title"),
        name(b"textarea"),
        name(b"style"),
        name(b"script"),
        name(b"xmp"),
        name(b"iframe"),
        name(b"noembed"),
    ];
    !UNCOUNTED.contains(&started)
}

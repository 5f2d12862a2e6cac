//! SVG and `MathML` in a page (foreign content), where other rules apply: a `<title>` or `<style>`
//! is an ordinary element there, and `<![CDATA[` begins a text (HTML standard, 13.2.6.5).
//!
//! It keeps no tree, only the open foreign elements, and the number of open HTML elements inside of
//! them. This is exact if elements are closed in order. An end tag that matches no open foreign
//! element counts as the end of an element around the foreign content, and so ends it.

use super::tag::{HtmlTag, TagName, tag_name, tag_names};

/// Open elements inside SVG and `MathML` that are tracked by name. Drawing programs nest some tens.
pub(crate) const FOREIGN_DEPTH_MAX: usize = 256;

const SVG: TagName = tag_name(b"svg");
const MATH: TagName = tag_name(b"math");
const ANNOTATION_XML: TagName = tag_name(b"annotation-xml");

/// The open foreign elements.
#[derive(Debug, Default)]
pub(super) struct ForeignContent {
    /// `<= FOREIGN_DEPTH_MAX`
    open: Vec<ForeignElement>,
    /// The number of open elements beyond that limit.
    overflow_depth: usize,
}

#[derive(Debug)]
struct ForeignElement {
    name: TagName,
    is_svg: bool,
    /// The number of open HTML elements in it, if HTML is allowed there; otherwise `None`.
    html_depth: Option<usize>,
}

impl ForeignContent {
    /// Whether the current position is in foreign content, and not in HTML inside of it.
    pub(super) fn is_inside(&self) -> bool {
        self.open.last().is_some_and(|top| top.html_depth.unwrap_or(0) == 0)
    }

    /// Whether no foreign element is open.
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Handles a start tag; returns whether its element is foreign.
    pub(super) fn start(&mut self, tag: &HtmlTag<'_>) -> bool {
        if let Some(top) = self.open.last().filter(|top| !top.accepts_html(tag.name)) {
            if !breaks_out(tag) {
                let is_svg = top.is_svg;
                self.push(tag, is_svg);
                return true;
            }
            self.leave_foreign();
        }
        if matches!(tag.name, SVG | MATH) {
            self.push(tag, tag.name == SVG);
            return true;
        }
        if let Some(ForeignElement { html_depth: Some(inside), .. }) = self.open.last_mut() {
            *inside += usize::from(is_counted(tag.name));
        }
        false
    }

    /// Handles an end tag, except that of a raw text.
    pub(super) fn end(&mut self, ended: TagName) {
        if self.overflow_depth > 0 {
            self.overflow_depth -= 1;
            return;
        }
        if matches!(ended, P | BR) && self.is_inside() {
            return self.leave_foreign();
        }
        for (index, open) in self.open.iter_mut().enumerate().rev() {
            if let Some(inside @ 1..) = &mut open.html_depth {
                *inside -= 1;
                return self.open.truncate(index + 1);
            }
            if open.name == ended {
                return self.open.truncate(index);
            }
        }
        self.open.clear();
    }

    fn push(&mut self, tag: &HtmlTag<'_>, is_svg: bool) {
        if tag.is_self_closing {
        } else if self.open.len() == FOREIGN_DEPTH_MAX {
            self.overflow_depth += 1;
        } else {
            let html = begins_html(tag, is_svg).then_some(0);
            self.open.push(ForeignElement { name: tag.name, is_svg, html_depth: html });
        }
    }

    /// Closes elements up to where HTML is allowed, around or inside of the foreign content.
    fn leave_foreign(&mut self) {
        self.overflow_depth = 0;
        let html = self.open.iter().rposition(|open| open.html_depth.is_some());
        self.open.truncate(html.map_or(0, |html| html + 1));
    }
}

impl ForeignElement {
    /// Whether a start tag directly inside of it is HTML.
    fn accepts_html(&self, started: TagName) -> bool {
        match self.html_depth {
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

const MGLYPH: TagName = tag_name(b"mglyph");
const MALIGNMARK: TagName = tag_name(b"malignmark");
const P: TagName = tag_name(b"p");
const BR: TagName = tag_name(b"br");

/// Whether HTML is allowed in the element: the integration points of the standard.
fn begins_html(tag: &HtmlTag<'_>, is_svg: bool) -> bool {
    const OF_SVG: [TagName; 3] = tag_names("foreignobject desc title");
    const OF_MATH: [TagName; 5] = tag_names("mi mo mn ms mtext");
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
fn breaks_out(tag: &HtmlTag<'_>) -> bool {
    const ELEMENTS: [TagName; 44] = tag_names(
        "b big blockquote body br center code dd div dl dt em embed h1 h2 h3 h4 h5 h6 head hr i \
         img li listing menu meta nobr ol p pre ruby s small span strong strike sub sup table \
         tt u ul var",
    );
    const FONT: TagName = tag_name(b"font");
    ELEMENTS.contains(&tag.name)
        || tag.name == FONT && tag.values(["color", "face", "size"]).iter().any(Option::is_some)
}

/// Whether the end tag of an HTML element reaches [`ForeignContent::end`]. Void elements have none,
/// and the end tag of a raw text is found with the text.
fn is_counted(started: TagName) -> bool {
    const UNCOUNTED: [TagName; 21] = tag_names(
        "area base br col embed hr image img input link meta source track wbr title textarea \
         style script xmp iframe noembed",
    );
    !UNCOUNTED.contains(&started)
}

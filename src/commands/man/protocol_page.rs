//! The manual page of the protocol: its pages in the language of manual pages.

use clap_mangen::roff::{Inline, Roff, bold, roman};
use tidings_protocol::SPECIFICATION;

use super::head;

const ABOUT: &str = "line protocol of Tidings";

/// The page.
pub(super) fn page() -> String {
    let mut writer = Writer::new(head("tidings-protocol", "7", ABOUT));
    writer.heading("SH", "DESCRIPTION");
    // The title of the first page says what that of the manual page says.
    SPECIFICATION.lines().skip(1).for_each(|line| writer.line(line));
    writer.heading("SH", "SEE ALSO");
    writer.roff.text([roman("tidings(1), tidings.toml(5)")]);
    writer.roff.to_roff()
}

/// Converts the parts of Markdown that the pages have.
struct Writer {
    roff: Roff,
    /// How deep the text stands in lists.
    depth: usize,
    paragraph: String,
    /// Directly behind a heading, where no macro begins a paragraph.
    is_behind_heading: bool,
    /// The spaces before a block of code, inside of it.
    code: Option<usize>,
    /// The headings of a table, inside of it.
    columns: Vec<String>,
}

impl Writer {
    fn new(roff: Roff) -> Self {
        let (paragraph, columns) = (String::new(), Vec::new());
        Self { roff, depth: 0, paragraph, is_behind_heading: false, code: None, columns }
    }

    fn line(&mut self, line: &str) {
        let text = line.trim_start();
        let spaces = line.len() - text.len();
        if let Some(before) = self.code {
            if text.starts_with("```") {
                self.roff.control("fi", []);
                self.code = None;
            } else {
                self.roff.text([roman(line.get(before..).unwrap_or_default())]);
            }
            return;
        }
        if !text.starts_with('|') {
            self.columns.clear();
        }
        if text.starts_with("```") {
            self.begin(spaces / 2, "PP", &[]);
            self.roff.control("nf", []);
            self.code = Some(spaces);
        } else if let Some(title) = text.strip_prefix("# ") {
            self.heading("SH", title);
        } else if text.starts_with("## ") || text.starts_with("### ") {
            self.heading("SS", text.trim_start_matches(['#', ' ']));
        } else if text.starts_with('|') {
            self.row(spaces / 2, text);
        } else if let Some(item) = text.strip_prefix("- ") {
            self.begin(spaces / 2, "IP", &["\\(bu", "2"]);
            item.clone_into(&mut self.paragraph);
        } else if text.is_empty() {
            self.end_paragraph();
        } else if !self.paragraph.is_empty() {
            self.paragraph.push(' ');
            self.paragraph.push_str(text);
        } else {
            match (spaces / 2).checked_sub(1) {
                Some(depth) => self.begin(depth, "IP", &[]),
                None => self.begin(0, "PP", &[]),
            }
            text.clone_into(&mut self.paragraph);
        }
    }

    fn heading(&mut self, name: &str, title: &str) {
        self.end_paragraph();
        self.nest(0);
        self.roff.control(name, [title]);
        self.is_behind_heading = true;
    }

    /// Begins a paragraph with this macro.
    fn begin(&mut self, depth: usize, name: &str, arguments: &[&str]) {
        self.end_paragraph();
        self.nest(depth);
        if name != "PP" || !std::mem::take(&mut self.is_behind_heading) {
            self.roff.control(name, arguments.iter().copied());
        }
        self.is_behind_heading = false;
    }

    fn nest(&mut self, depth: usize) {
        let (name, arguments) =
            if depth > self.depth { ("RS", &["2"][..]) } else { ("RE", &[][..]) };
        for _ in 0..depth.abs_diff(self.depth) {
            self.roff.control(name, arguments.iter().copied());
        }
        self.depth = depth;
    }

    fn end_paragraph(&mut self) {
        let paragraph = std::mem::take(&mut self.paragraph);
        if !paragraph.is_empty() {
            self.roff.text(inlines(&paragraph));
        }
    }

    /// A row becomes a paragraph behind its first cell, in which the other cells have the names of
    /// their columns.
    fn row(&mut self, depth: usize, text: &str) {
        let cells = text.replace("\\|", "\0");
        let cells = cells.trim_matches('|').split('|').map(|cell| cell.trim().replace('\0', "|"));
        let cells: Vec<_> = cells.collect();
        if self.columns.is_empty() {
            self.columns = cells;
            return;
        }
        let columns = self.columns.iter().zip(&cells).filter(|(_, cell)| !cell.is_empty());
        let mut columns = columns.map(|(name, cell)| match name.as_str() {
            _ if self.columns.len() < 3 => cell.clone(),
            "" => cell.clone(),
            name => format!("{name}: {cell}"),
        });
        let first = cells.iter().find(|cell| !cell.is_empty()).cloned().unwrap_or_default();
        if first.starts_with("---") {
            return;
        }
        let rest = columns.by_ref().skip(1).collect::<Vec<_>>().join("; ");
        self.begin(depth, "TP", &[]);
        self.roff.text(inlines(&first));
        if !rest.is_empty() {
            self.roff.text(inlines(&rest));
        }
    }
}

/// Code and strong text become bold, links their text.
fn inlines(text: &str) -> Vec<Inline> {
    let (mut parts, mut rest, mut plain) = (Vec::new(), text, String::new());
    while let Some(at) = rest.find(['`', '[', '*']) {
        let (before, behind) = rest.split_at(at);
        plain.push_str(before);
        let mark = if behind.starts_with("**") { "**" } else { &behind[..1] };
        let inner = &behind[mark.len()..];
        let (found, is_bold) = match mark {
            "[" => (inner.split_once("](").and_then(link), false),
            _ if mark == "*" => (None, false),
            mark => (inner.split_once(mark), true),
        };
        let Some((inner, after)) = found else {
            plain.push_str(mark);
            rest = inner;
            continue;
        };
        if is_bold {
            parts.extend([roman(std::mem::take(&mut plain)), bold(inner)]);
        } else {
            plain.push_str(inner);
        }
        rest = after;
    }
    plain.push_str(rest);
    parts.push(roman(plain));
    parts
}

/// The text of a link and what follows the link, from the text before and behind `](`.
fn link<'a>((text, target): (&'a str, &'a str)) -> Option<(&'a str, &'a str)> {
    let (_, after) = target.split_once(')')?;
    (!text.contains([']', '['])).then_some((text, after))
}

#[cfg(test)]
mod tests {
    use tidings_protocol::Verb;

    use super::*;

    #[track_caller]
    fn assert_roff(markdown: &str, expected: &str) {
        let mut writer = Writer::new(Roff::new());
        markdown.lines().for_each(|line| writer.line(line));
        writer.heading("SH", "END");
        assert_eq!(writer.roff.to_roff(), format!("{expected}.SH END\n"));
    }

    #[test]
    fn markdown_becomes_roff() {
        assert_roff(
            "# Page\n\n## A part\nOne `a-b`\nline [L1].\n\n.dot **(not yet)** [text](x.md#y), [P1].\n",
            ".SH Page\n.SS \"A part\"\nOne \\fBa\\-b\\fR line [L1].\n.PP\n\\&.dot \\fB(not yet)\\fR text, [P1].\n",
        );
        assert_roff(
            "- item\n  goes on\n\n  more\n\n  - inner\n- last\n\n  ```text\n  x\n    \\y\n  ```\n\nend\n",
            ".IP \\(bu 2\nitem goes on\n.IP\nmore\n.RS 2\n.IP \\(bu 2\ninner\n.RE\n.IP \\(bu 2\nlast\n\
             .RS 2\n.PP\n.nf\nx\n  \\\\y\n.fi\n.RE\n.PP\nend\n",
        );
        assert_roff(
            "| a | b |\n|---|---|\n| `x\\|y` | z |\n| | only |\n\n| a | b | c |\n|---|---|---|\n| 1 | | 3 |\n",
            ".TP\n\\fBx|y\\fR\nz\n.TP\nonly\n.TP\n1\nc: 3\n",
        );
    }

    #[test]
    fn each_command_and_sentence_is_on_the_page() {
        let page = page();
        let headings: Vec<_> = page.lines().filter(|line| line.starts_with(".SS ")).collect();
        for verb in Verb::ALL {
            assert!(headings.iter().any(|heading| heading.contains(verb.as_str())), "{verb}");
        }
        let lines = SPECIFICATION.lines().filter_map(|line| line.trim().strip_prefix("- ["));
        let numbers = lines.filter_map(|line| Some(line.split_once(']')?.0));
        for number in numbers {
            assert!(page.contains(&format!("\n[{number}] ")), "{number}");
        }
    }
}

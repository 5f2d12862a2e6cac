//! The manual page of the protocol: its pages in the language of manual pages.

use clap_mangen::roff::{Inline, Roff, bold, roman};
use pulldown_cmark::{Event, HeadingLevel, Options, Parser, Tag, TagEnd, TextMergeStream};
use tidings_protocol::SPECIFICATION;

use super::head;

const ABOUT: &str = "line protocol of Tidings";

/// The page.
pub(super) fn page() -> String {
    let mut writer = Writer { roff: head("tidings-protocol", "7", ABOUT), ..Writer::default() };
    writer.roff.control("SH", ["DESCRIPTION"]);
    writer.is_begun = true;
    // The title of the first page says what that of the manual page says.
    writer.markdown(SPECIFICATION.split_once('\n').map_or("", |(_, text)| text));
    writer.roff.control("SH", ["SEE ALSO"]);
    writer.roff.text([roman("tidings(1), tidings.toml(5)")]);
    writer.roff.to_roff()
}

/// A text in parts, and whether each is bold.
type Text = Vec<(String, bool)>;

/// Converts what the pages have of Markdown: code and strong text become bold, links their text, and
/// a row of a table a paragraph behind its first cell.
#[derive(Default)]
struct Writer {
    roff: Roff,
    /// How many lists the text stands in.
    lists: usize,
    is_strong: bool,
    is_code: bool,
    /// Directly behind a heading or the mark of an item, where no macro begins a paragraph.
    is_begun: bool,
    /// The present paragraph, heading or cell.
    text: Text,
    /// The cells of the present row.
    cells: Vec<Text>,
    /// The headings of the present table.
    columns: Vec<String>,
}

impl Writer {
    fn markdown(&mut self, markdown: &str) {
        let parser = Parser::new_ext(markdown, Options::ENABLE_TABLES);
        TextMergeStream::new(parser).for_each(|event| self.event(event));
    }

    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start(&tag),
            Event::End(tag) => self.end(tag),
            Event::Text(code) if self.is_code => {
                for line in code.lines() {
                    self.roff.text([roman(line)]);
                }
            }
            Event::Text(text) | Event::InlineHtml(text) => {
                self.text.push((text.into_string(), self.is_strong));
            }
            Event::Code(text) => self.text.push((text.into_string(), true)),
            Event::SoftBreak | Event::HardBreak => self.text.push((" ".to_owned(), false)),
            _ => {}
        }
    }

    fn start(&mut self, tag: &Tag<'_>) {
        match tag {
            Tag::Strong => self.is_strong = true,
            Tag::Paragraph => self.begin_paragraph(),
            Tag::List(_) => {
                self.begin_nested();
                self.lists += 1;
            }
            Tag::Item => {
                self.roff.control("IP", ["\\(bu", "2"]);
                self.is_begun = true;
            }
            Tag::CodeBlock(_) => {
                self.begin_nested();
                if !std::mem::take(&mut self.is_begun) {
                    self.roff.control("PP", []);
                }
                self.roff.control("nf", []);
                self.is_code = true;
            }
            Tag::Table(_) => self.begin_nested(),
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Strong => self.is_strong = false,
            TagEnd::Heading(level) => {
                let name = if level == HeadingLevel::H1 { "SH" } else { "SS" };
                self.roff.control(name, [&*plain(&std::mem::take(&mut self.text))]);
                self.is_begun = true;
            }
            TagEnd::Paragraph | TagEnd::Item => self.end_paragraph(),
            TagEnd::List(_) => {
                self.lists -= 1;
                self.end_nested();
            }
            TagEnd::CodeBlock => {
                self.is_code = false;
                self.roff.control("fi", []);
                self.end_nested();
            }
            TagEnd::Table => self.end_nested(),
            TagEnd::TableCell => self.cells.push(std::mem::take(&mut self.text)),
            TagEnd::TableHead => {
                self.columns = std::mem::take(&mut self.cells).iter().map(plain).collect();
            }
            TagEnd::TableRow => self.end_row(),
            _ => {}
        }
    }

    fn begin_paragraph(&mut self) {
        if !std::mem::take(&mut self.is_begun) {
            self.roff.control(if self.lists > 0 { "IP" } else { "PP" }, []);
        }
    }

    fn end_paragraph(&mut self) {
        if !self.text.is_empty() {
            self.roff.text(inlines(std::mem::take(&mut self.text)));
            self.is_begun = false;
        }
    }

    /// Begins a list, code or a table, which is indented in an item.
    fn begin_nested(&mut self) {
        self.end_paragraph();
        if self.lists > 0 {
            self.roff.control("RS", ["2"]);
        }
    }

    fn end_nested(&mut self) {
        if self.lists > 0 {
            self.roff.control("RE", []);
        }
    }

    /// In a table of more than two columns, each cell behind the first has the name of its column.
    fn end_row(&mut self) {
        let cells = std::mem::take(&mut self.cells);
        let mut cells = self.columns.iter().zip(cells).filter(|(_, cell)| !cell.is_empty());
        let first = cells.next().map(|(_, cell)| cell).unwrap_or_default();
        let mut rest = Text::new();
        for (name, cell) in cells {
            let separator = if rest.is_empty() { "" } else { "; " };
            let is_named = self.columns.len() > 2 && !name.is_empty();
            let name = if is_named { format!("{name}: ") } else { String::new() };
            rest.push((format!("{separator}{name}"), false));
            rest.extend(cell);
        }
        self.is_begun = false;
        self.roff.control("TP", []);
        self.roff.text(inlines(first));
        if !rest.is_empty() {
            self.roff.text(inlines(rest));
        }
    }
}

fn plain(text: &Text) -> String {
    text.iter().map(|(part, _)| part.as_str()).collect()
}

fn inlines(text: Text) -> Vec<Inline> {
    let part = |(part, is_bold)| if is_bold { bold(part) } else { roman(part) };
    text.into_iter().map(part).collect()
}

#[cfg(test)]
mod tests {
    use tidings_protocol::Verb;

    use super::*;

    #[track_caller]
    fn assert_roff(markdown: &str, expected: &str) {
        let mut writer = Writer::default();
        writer.markdown(markdown);
        assert_eq!(writer.roff.to_roff(), expected);
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

//! Converts help texts to the language of manual pages.

use clap_mangen::roff::{Roff, roman};

/// The longest line that is a heading, in characters.
const HEADING_CHARS_MAX: usize = 40;

/// Paragraphs of text, separated by empty lines, and this macro between them. Indented lines keep
/// their form.
pub(super) fn paragraphs(roff: &mut Roff, text: &str, separator: &str) {
    for (index, paragraph) in text.split("\n\n").enumerate() {
        if index > 0 {
            roff.control(separator, []);
        }
        lines(roff, &paragraph.lines().collect::<Vec<_>>());
    }
}

/// The text behind a help: `Examples:` and indented lines become a section, `Exit codes:` as well.
pub(super) fn sections(roff: &mut Roff, text: &str) {
    let mut has_section = false;
    for paragraph in text.split("\n\n").filter(|paragraph| !paragraph.is_empty()) {
        let lines: Vec<_> = paragraph.lines().collect();
        let heading = lines[0].strip_suffix(':').filter(|line| line.len() <= HEADING_CHARS_MAX);
        let heading = heading.filter(|_| lines.get(1).is_some_and(|line| line.starts_with(' ')));
        if let Some(heading) = heading {
            roff.control("SH", [&*heading.to_uppercase()]);
            self::lines(roff, &lines[1..]);
        } else if let Some(codes) = paragraph.strip_prefix("Exit codes: ") {
            roff.control("SH", ["EXIT STATUS"]);
            self::lines(roff, &codes.lines().collect::<Vec<_>>());
        } else {
            if has_section {
                roff.control("PP", []);
            } else {
                roff.control("SH", ["NOTES"]);
            }
            self::lines(roff, &lines);
        }
        has_section = true;
    }
}

/// Lines of a paragraph: indented ones as they are, others filled.
fn lines(roff: &mut Roff, lines: &[&str]) {
    for chunk in lines.chunk_by(|one, next| one.starts_with(' ') == next.starts_with(' ')) {
        let is_verbatim = chunk[0].starts_with(' ');
        if is_verbatim {
            roff.control("nf", []);
        }
        for line in chunk {
            roff.text([roman(*line)]);
        }
        if is_verbatim {
            roff.control("fi", []);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_and_exit_codes_become_sections() {
        let text = "Examples:\n  tidings x   a\n  tidings y\n\nMore text\nof two lines.\n\nExit codes: 0 \
                    fine; 1 not.";
        let mut roff = Roff::new();
        sections(&mut roff, text);
        let expected = ".SH EXAMPLES\n.nf\n  tidings x   a\n  tidings y\n.fi\n.PP\nMore text\nof two \
                        lines.\n.SH \"EXIT STATUS\"\n0 fine; 1 not.\n";
        assert_eq!(roff.to_roff(), expected);
    }
}

//! What a person or a pipe reads: results on standard output, notes and one redrawn progress line
//! on standard error. The only place that writes to either.

use std::{
    fmt::Write as _,
    io::{self, IsTerminal, Write},
};

use crate::failure::Failure;

/// Goes back to the start of the terminal's line and clears it.
const CLEAR_LINE: &str = "\r\x1b[K";

/// Standard output and standard error, used together so that a progress line never stands in the
/// middle of a result.
#[derive(Debug)]
pub(crate) struct Console {
    progress_allowed: bool,
    progress_shown: bool,
    /// Standard output is for something else.
    stdout_is_taken: bool,
}

impl Console {
    /// Progress is drawn only where somebody can see it: standard error is a terminal.
    pub(crate) fn new() -> Self {
        let progress_allowed = io::stderr().is_terminal();
        Self { progress_allowed, progress_shown: false, stdout_is_taken: false }
    }

    /// Whether [`Console::progress`] would draw anything.
    pub(crate) fn shows_progress(&self) -> bool {
        self.progress_allowed
    }

    /// Leaves standard output to something else: results go to standard error from now on.
    pub(crate) fn leave_stdout(&mut self) {
        self.stdout_is_taken = true;
    }

    /// Prints a result line to standard output.
    pub(crate) fn line(&mut self, text: &str) -> Result<(), Failure> {
        self.clear_progress();
        if self.stdout_is_taken {
            note(text);
            return Ok(());
        }
        let mut output = io::stdout().lock();
        writeln!(output, "{text}").and_then(|()| output.flush()).map_err(Failure::from_output)
    }

    /// Prints a note to standard error.
    pub(crate) fn note(&mut self, text: &str) {
        self.clear_progress();
        note(text);
    }

    /// Redraws the progress line; nothing off a terminal.
    pub(crate) fn progress(&mut self, text: &str) {
        if self.progress_allowed {
            // Nobody is told about a progress line that could not be drawn.
            let _ = write!(io::stderr().lock(), "{CLEAR_LINE}{text}");
            self.progress_shown = true;
        }
    }

    /// Removes the progress line.
    pub(crate) fn clear_progress(&mut self) {
        if self.progress_shown {
            let _ = write!(io::stderr().lock(), "{CLEAR_LINE}");
            self.progress_shown = false;
        }
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        self.clear_progress();
    }
}

/// Prints a line to standard error. A closed standard error is nobody's problem.
pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Prints text as it is to standard output, as for `--help`.
pub(crate) fn tell(text: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    output.write_all(text.as_bytes())?;
    output.flush()
}

/// Text from the network made safe for a terminal and at most `chars_max` characters long: what
/// could move the cursor or reverse the reading direction is escaped, white space is one space.
pub(crate) fn printable(text: &str, chars_max: usize) -> String {
    let mut out = String::new();
    let mut chars = 0;
    for (index, word) in text.split_whitespace().enumerate() {
        for c in (index > 0).then_some(' ').into_iter().chain(word.chars()) {
            if chars >= chars_max {
                // The last one makes room for the sign that something is left out.
                out.pop();
                out.push('…');
                return out;
            }
            if c.is_control() || is_invisible_format(c) {
                let _ = write!(out, "{}", c.escape_unicode());
            } else {
                out.push(c);
            }
            chars += 1;
        }
    }
    out
}

/// Characters without a picture that change how the rest of the line looks (bidirectional marks
/// and overrides, line separators, zero-width spaces and joiners).
fn is_invisible_format(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// A count of bytes for people: `512 B`, `3.4 kB`, `12 MB`.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 4] = ["kB", "MB", "GB", "TB"];
    if count < 1000 {
        return format!("{count} B");
    }
    #[expect(clippy::cast_precision_loss, reason = "two digits are shown")]
    let mut value = count as f64 / 1000.0;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = usize::from(value < 9.95);
    format!("{value:.digits$} {}", UNITS[unit])
}

/// A count for people: digits in groups of three.
pub(crate) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A count with its noun: `1 page`, `2,000 pages`.
pub(crate) fn plural(n: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(n), if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_title_cannot_move_the_cursor() {
        assert_eq!(printable("a\u{1b}[2Jb", 80), "a\\u{1b}[2Jb");
        assert_eq!(printable("a\u{202e}b", 80), "a\\u{202e}b");
        assert_eq!(printable(" one \r\n\t two ", 80), "one two");
    }

    #[test]
    fn long_text_ends_in_an_ellipsis() {
        assert_eq!(printable("abcdef", 6), "abcdef");
        assert_eq!(printable("abcdefg", 6), "abcde…");
        assert_eq!(printable("äöüßéè", 3), "äö…");
    }

    #[test]
    fn bytes_for_people() {
        let shown = [0, 999, 1000, 9_949, 9_950, 12_345, 999_499, 999_500, 10_000_000_000];
        let shown = shown.map(bytes).join(" | ");
        assert_eq!(
            shown,
            "0 B | 999 B | 1.0 kB | 9.9 kB | 10 kB | 12 kB | 999 kB | 1.0 MB | 10 GB"
        );
    }

    #[test]
    fn counts_in_groups_of_three() {
        assert_eq!(
            [0, 12, 123, 1234, 1_234_567].map(count),
            ["0", "12", "123", "1,234", "1,234,567"]
        );
    }
}

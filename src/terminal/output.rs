//! The output of the command: results on standard output; notes and redrawn progress on standard
//! error. The only module that writes to either.

#![expect(clippy::disallowed_methods, reason = "redraws are limited in rate")]

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use tidings_protocol::parse_ms;
pub(crate) use tidings_protocol::readable::{format_bytes, format_count, format_duration, plural};
use tidings_protocol::text::{escape_json, is_invisible};

use crate::terminal::failure::Failure;

/// The shortest time between two redraws of progress below results that follow each other fast. The
/// progress reappears when they pause.
const REDRAW_INTERVAL: Duration = Duration::from_millis(50);

/// Whether standard output is a terminal. Unit tests do not depend on where they run.
static STDOUT_IS_TERMINAL: LazyLock<bool> =
    LazyLock::new(|| !cfg!(test) && io::stdout().is_terminal());

/// The width of a terminal that does not report it, in characters.
const WIDTH_DEFAULT: usize = 80;

/// Standard output and standard error, used together so that progress never splits a result.
#[derive(Debug)]
pub(crate) struct Console {
    progress_allowed: bool,
    /// Results and progress appear on the same terminal.
    shares_terminal: bool,
    /// Something else writes to standard output.
    stdout_is_reserved: bool,
    /// The progress as it should appear, and the number of its lines on the terminal.
    progress: String,
    lines_shown: usize,
    drawn: Option<Instant>,
}

impl Console {
    /// Progress is drawn only if standard error is a terminal.
    pub(crate) fn new() -> Self {
        Self {
            progress_allowed: io::stderr().is_terminal(),
            shares_terminal: *STDOUT_IS_TERMINAL,
            stdout_is_reserved: false,
            progress: String::new(),
            lines_shown: 0,
            drawn: None,
        }
    }

    /// Whether [`Console::progress`] draws anything.
    pub(crate) fn shows_progress(&self) -> bool {
        self.progress_allowed
    }

    /// Leaves standard output to another writer: results go to standard error from now on.
    pub(crate) fn use_stderr(&mut self) {
        self.stdout_is_reserved = true;
    }

    /// Prints a result line to standard output, in place of the progress.
    pub(crate) fn line(&mut self, text: &str) -> Result<(), Failure> {
        self.clear_progress();
        if self.stdout_is_reserved {
            note(text);
            return Ok(());
        }
        print(text)
    }

    /// Prints a result line to standard output, above the progress.
    pub(crate) fn line_above(&mut self, text: &str) -> Result<(), Failure> {
        if self.stdout_is_reserved {
            return self.line(text);
        }
        if self.shares_terminal {
            self.erase();
        }
        print(text)?;
        let is_due = self.drawn.is_none_or(|drawn| drawn.elapsed() >= REDRAW_INTERVAL);
        if self.lines_shown == 0 && !self.progress.is_empty() && is_due {
            self.draw();
        }
        Ok(())
    }

    /// Prints a note to standard error.
    pub(crate) fn note(&mut self, text: &str) {
        self.clear_progress();
        note(text);
    }

    /// Redraws the progress; nothing without a terminal.
    pub(crate) fn progress(&mut self, text: &str) {
        if self.progress_allowed {
            text.clone_into(&mut self.progress);
            self.draw();
        }
    }

    /// Removes the progress.
    pub(crate) fn clear_progress(&mut self) {
        self.erase();
        self.progress.clear();
    }

    /// Draws in one write to avoid flicker; the cursor stays after the last character.
    fn draw(&mut self) {
        let lines = fit_lines(&self.progress, width());
        let text = format!("{}{}", erase_sequence(self.lines_shown), lines.join("\r\n"));
        // Progress is not important enough to report a failed write.
        let _ = io::stderr().lock().write_all(text.as_bytes());
        self.lines_shown = lines.len();
        self.drawn = Some(Instant::now());
    }

    fn erase(&mut self) {
        if self.lines_shown > 0 {
            let _ = io::stderr().lock().write_all(erase_sequence(self.lines_shown).as_bytes());
            self.lines_shown = 0;
        }
    }
}

/// Prints a line to standard output and flushes it.
fn print(text: &str) -> Result<(), Failure> {
    let mut output = io::stdout().lock();
    writeln!(output, "{text}").and_then(|()| output.flush()).map_err(Failure::from_output)
}

/// Moves from the end of the last of these lines to the start of the first, and clears everything
/// below.
fn erase_sequence(lines: usize) -> String {
    match lines {
        0 => String::new(),
        1 => "\r\x1b[J".to_owned(),
        _ => format!("\r\x1b[{}A\x1b[J", lines - 1),
    }
}

/// The lines of a text, each cut to one line of the terminal.
fn fit_lines(text: &str, width: usize) -> Vec<String> {
    // A full line makes some terminals wrap.
    text.lines().map(|line| printable(line, width.saturating_sub(1).max(1))).collect()
}

/// The width of the terminal in characters.
fn width() -> usize {
    #[cfg(unix)]
    let columns = rustix::termios::tcgetwinsize(io::stderr()).map_or(0, |size| size.ws_col.into());
    #[cfg(not(unix))]
    let columns = 0;
    if columns == 0 { WIDTH_DEFAULT } else { columns }
}

impl Drop for Console {
    fn drop(&mut self) {
        self.clear_progress();
    }
}

/// Prints lines to standard error, with control characters escaped. A closed standard error is
/// ignored.
pub(crate) fn note(text: &str) {
    let mut shown = escape_controls(text).into_owned();
    shown.push('\n');
    let _ = io::stderr().lock().write_all(shown.as_bytes());
}

/// Whether a person can answer a question.
pub(crate) fn can_ask() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Asks a question that is answered with yes or no; without an answer it is no.
pub(crate) fn ask(question: &str) -> Result<bool, Failure> {
    let shown = printable(question, usize::MAX);
    // If the question cannot be shown, no answer may be read.
    let mut error = io::stderr().lock();
    let asked = write!(error, "{shown} [y/N] ").and_then(|()| error.flush());
    asked.map_err(|error| Failure::Failed(error.into()))?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(|error| Failure::Failed(error.into()))?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

/// Whether a person reads standard output.
pub(crate) fn is_terminal() -> bool {
    *STDOUT_IS_TERMINAL
}

/// Text of others for standard output: with control characters escaped on a terminal, unchanged for
/// programs and files.
pub(crate) fn terminal_safe(text: &str) -> Cow<'_, str> {
    if *STDOUT_IS_TERMINAL { escape_controls(text) } else { Cow::Borrowed(text) }
}

/// The same for JSON, which keeps its meaning.
pub(crate) fn terminal_safe_json(json: &str) -> Cow<'_, str> {
    if *STDOUT_IS_TERMINAL { escape_json(json) } else { Cow::Borrowed(json) }
}

/// Text with control characters escaped, except for line ends and tabs.
fn escape_controls(text: &str) -> Cow<'_, str> {
    let acts = |c: char| is_invisible(c) && !matches!(c, '\n' | '\t');
    if !text.contains(acts) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if acts(c) {
            let _ = write!(shown, "{}", c.escape_unicode());
        } else {
            shown.push(c);
        }
    }
    Cow::Owned(shown)
}

/// Prints text unchanged to standard output, such as a help text.
pub(crate) fn print_text(text: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    output.write_all(text.as_bytes())?;
    output.flush()
}

/// Text from the network in a form that is safe for a terminal and at most `chars_max` characters
/// long: control characters and changes of the reading direction are escaped, and white space
/// becomes one space.
pub(crate) fn printable(text: &str, chars_max: usize) -> String {
    let mut out = String::new();
    let mut chars = 0;
    for (index, word) in text.split_whitespace().enumerate() {
        for c in (index > 0).then_some(' ').into_iter().chain(word.chars()) {
            if chars >= chars_max {
                // The last character makes room for the ellipsis.
                out.pop();
                out.push('…');
                return out;
            }
            if is_invisible(c) {
                let _ = write!(out, "{}", c.escape_unicode());
            } else {
                out.push(c);
            }
            chars += 1;
        }
    }
    out
}

/// A duration in the form of [`format_duration`] if standard output is a terminal, else this exact
/// form.
pub(crate) fn time_or(duration: Duration, exact: String) -> String {
    if *STDOUT_IS_TERMINAL { format_duration(duration) } else { exact }
}

/// Keys of names and numbers that identify something. A name may consist of digits.
const NAME_KEYS: [&str; 9] =
    ["cursor", "group", "job", "key", "member", "name", "pid", "serial", "topic"];

/// The value of a `key=value` word of the broker: on a terminal, durations as `9m 59s` and counts
/// with separators. Otherwise it is unchanged, so that scripts read exact values.
pub(crate) fn readable(key: &str, value: &str) -> String {
    if *STDOUT_IS_TERMINAL { with_units(key, value) } else { value.to_owned() }
}

/// A line of the broker with the values of its `key=value` words as in [`readable`].
pub(crate) fn readable_line(line: &str) -> String {
    let is_key = |key: &str| key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
    let words = line.split(' ').map(|word| match word.split_once('=') {
        Some((key, value)) if is_key(key) => format!("{key}={}", readable(key, value)),
        _ => word.to_owned(),
    });
    words.collect::<Vec<_>>().join(" ")
}

/// The value of a `key=value` word of the broker with units and separators.
pub(crate) fn with_units(key: &str, value: &str) -> String {
    let ms = match key {
        _ if key.ends_with("-ms") => value.parse().ok(),
        _ if key.ends_with("-in") => parse_ms(value).ok(),
        _ => None,
    };
    match (ms, value.parse()) {
        // Of a job: no more seeds are expected.
        _ if (key, value) == ("state", "closed") => "running".to_owned(),
        (Some(ms), _) => format_duration(Duration::from_millis(ms)),
        (None, Ok(number)) if !NAME_KEYS.contains(&key) => format_count(number),
        _ => value.to_owned(),
    }
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
    fn progress_is_cut_to_the_terminal_and_erased_as_it_was_drawn() {
        assert_eq!(fit_lines("abcdef\nab", 5), ["abc…", "ab"]);
        assert_eq!(fit_lines("ab", 0), ["…"]);
        assert_eq!(erase_sequence(1), "\r\x1b[J");
        assert_eq!(erase_sequence(3), "\r\x1b[2A\x1b[J");
    }

    #[test]
    fn values_have_units_on_a_terminal() {
        let words = [("free-in", "599123ms"), ("left-ms", "1204700"), ("next", "1043")];
        assert_eq!(
            words.map(|(key, value)| with_units(key, value)),
            ["9m 59s", "20m 04s", "1,043"]
        );
        let words = [("retain-bytes", "1g"), ("job", "2026"), ("sync", "always"), ("due-in", "?")];
        assert!(words.iter().all(|(key, value)| with_units(key, value) == *value));
        let line = "http://a.example/?check-in=30s pending free-in=599123ms";
        assert_eq!(readable_line(line), line, "exact without a terminal");
    }
}

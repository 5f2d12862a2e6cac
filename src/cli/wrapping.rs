//! Fits help texts to the width of the terminal. They are written for 100 columns; wrapping their
//! lines once more would leave a short line after each long one.

use std::io;

use clap::Command;
use clap::builder::StyledStr;

/// The width without a terminal, and the largest one.
const WIDTH_MAX: usize = 100;

/// The narrowest column of descriptions beside examples. A narrower one moves below them.
const COLUMN_MIN: usize = 30;

/// The indent of a description below its example.
const BELOW: usize = 6;

/// Fits the texts of a command and its subcommands to this width.
pub(super) fn fit_command(mut command: Command, width: usize) -> Command {
    let fitted = |text: Option<&StyledStr>, width| Some(fit(&text?.to_string(), width));
    // The parser fills it, also beside the name of the command.
    if let Some(about) = fitted(command.get_about(), usize::MAX) {
        command = command.about(about);
    }
    if let Some(after) = fitted(command.get_after_help(), width) {
        command = command.after_help(after);
    }
    if let Some(after) = fitted(command.get_after_long_help(), width) {
        command = command.after_long_help(after);
    }
    command.term_width(width).mut_subcommands(|subcommand| fit_command(subcommand, width))
}

/// The width of standard output, or of `COLUMNS`.
pub(super) fn width() -> usize {
    let terminal = rustix::termios::tcgetwinsize(io::stdout()).map(|size| size.ws_col.into());
    let named = || std::env::var("COLUMNS").ok()?.parse().ok();
    let width = terminal.ok().filter(|columns| *columns > 0).or_else(named);
    width.unwrap_or(WIDTH_MAX).min(WIDTH_MAX)
}

/// A part of a help text.
enum Block {
    /// Lines of text, which may be broken anywhere.
    Text(String),
    /// An item of a list.
    Item { indent: usize, text: String },
    /// An example or a value, and its description in this column.
    Row { indent: usize, name: String, description: Option<(usize, String)> },
}

/// Fills paragraphs; keeps the columns of examples if there is room for them.
fn fit(text: &str, width: usize) -> String {
    let paragraphs = text.split("\n\n").map(|paragraph| {
        let (blocks, mut lines) = (blocks(paragraph), Vec::new());
        let has_room = blocks.iter().all(|block| block.has_room(width));
        for block in &blocks {
            block.write(width, has_room, &mut lines);
        }
        lines.join("\n")
    });
    paragraphs.collect::<Vec<_>>().join("\n\n")
}

fn blocks(paragraph: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    for line in paragraph.lines() {
        let words = line.trim_start();
        let indent = line.len() - words.len();
        let more = match blocks.last_mut() {
            // A line that ends in a colon is a heading.
            Some(Block::Text(text)) if indent == 0 && !text.ends_with(':') => Some(text),
            Some(Block::Item { indent: of_item, text }) if indent > *of_item => Some(text),
            Some(Block::Row { indent: of_row, description, .. }) if indent > *of_row => {
                Some(&mut description.get_or_insert((indent, String::new())).1)
            }
            _ => None,
        };
        if let Some(text) = more {
            if !text.is_empty() {
                text.push(' ');
            }
            text.push_str(words);
        } else if indent == 0 {
            blocks.push(Block::Text(words.to_owned()));
        } else if words.starts_with("- ") {
            blocks.push(Block::Item { indent, text: words.to_owned() });
        } else {
            let (name, rest) = words.split_once("  ").unwrap_or((words, ""));
            let rest = rest.trim_start();
            let description =
                (!rest.is_empty()).then(|| (line.len() - rest.len(), rest.to_owned()));
            blocks.push(Block::Row { indent, name: name.to_owned(), description });
        }
    }
    blocks
}

impl Block {
    /// Whether a description fits into its column.
    fn has_room(&self, width: usize) -> bool {
        match self {
            Self::Row { description: Some((column, text)), .. } => {
                column + COLUMN_MIN.min(text.len()) <= width
            }
            _ => true,
        }
    }

    /// Writes lines. Without room, descriptions are below their examples.
    fn write(&self, width: usize, has_room: bool, lines: &mut Vec<String>) {
        match self {
            Self::Text(text) => fill(text.split(' '), (0, 0), width, lines),
            Self::Item { indent, text } => {
                fill(text.split(' '), (*indent, indent + 2), width, lines);
            }
            Self::Row { indent, name, description } => {
                let first = lines.len();
                fill_command(name, *indent, width, lines);
                let Some((column, text)) = description else { return };
                let column = if has_room { *column } else { BELOW };
                let mut described = Vec::new();
                fill(text.split(' '), (column, column), width, &mut described);
                // Beside the name, if it is one line and ends before the column.
                if has_room && lines.len() == first + 1 && lines[first].len() + 2 <= column {
                    let beside = described.remove(0);
                    lines[first] = format!("{:column$}{}", lines[first], beside.trim_start());
                }
                lines.append(&mut described);
            }
        }
    }
}

/// Fills lines with words, behind these indents of the first and of further lines.
fn fill<'a>(
    words: impl Iterator<Item = &'a str>,
    indents: (usize, usize),
    width: usize,
    lines: &mut Vec<String>,
) {
    let mut line = " ".repeat(indents.0);
    let mut is_empty = true;
    for word in words {
        if !is_empty && line.len() + 1 + word.len() > width {
            lines.push(std::mem::replace(&mut line, " ".repeat(indents.1)));
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    lines.push(line);
}

/// Breaks a command that is too long before some of its flags, as a shell allows it.
fn fill_command(command: &str, indent: usize, width: usize, lines: &mut Vec<String>) {
    let first = lines.len();
    let is_long = indent + command.len() > width;
    // Room for the backslash.
    let width = if is_long { width.saturating_sub(2) } else { width };
    let flags = command.match_indices(" -").map(|(at, _)| at);
    let mut begin = 0;
    let parts = flags.chain([command.len()]).map(|end| {
        let part = command[begin..end].trim_start();
        begin = end;
        part
    });
    fill(parts, (indent, indent + 4), width, lines);
    let last = lines.len() - 1;
    lines[first..last].iter_mut().for_each(|line| line.push_str(" \\"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;

    #[test]
    fn examples_keep_their_columns_where_there_is_room() {
        let text = "\
Examples:
  tidings a                the first one, with a text of a few more words
  tidings bb --long c
                           below

Text of two lines, of which the first
one is short:
  - an item of a list
    with two lines";
        assert_eq!(fit(text, 100).lines().nth(1), text.lines().nth(1));
        assert_eq!(
            fit(text, 60),
            "\
Examples:
  tidings a                the first one, with a text of a
                           few more words
  tidings bb --long c      below

Text of two lines, of which the first one is short:
  - an item of a list with two lines"
        );
        assert_eq!(
            fit(text, 20),
            "\
Examples:
  tidings a
      the first one,
      with a text of
      a few more
      words
  tidings bb \\
      --long c
      below

Text of two lines,
of which the first
one is short:
  - an item of a
    list with two
    lines"
        );
    }

    /// The help texts of a command and its subcommands.
    fn texts(command: &mut Command, all: &mut Vec<String>) {
        let name = command.get_bin_name().unwrap_or_default().to_owned();
        for help in [command.render_help(), command.render_long_help()] {
            all.push(format!("{name}\n{help}"));
        }
        command.get_subcommands_mut().for_each(|subcommand| texts(subcommand, all));
    }

    #[test]
    fn each_help_fits_a_terminal_and_is_wrapped_once() {
        let mut command = fit_command(cli::definition(), 80);
        command.build();
        let mut all = Vec::new();
        texts(&mut command, &mut all);
        assert!(all.len() > 150, "{}", all.len());
        for text in all {
            let lines: Vec<_> = text.lines().skip(1).collect();
            for pair in lines.windows(2) {
                let [line, next] = pair else { unreachable!("of two lines") };
                assert!(line.len() <= 80, "{text}\n---\n{line}");
                let indent = |line: &str| line.len() - line.trim_start().len();
                let is_text = |line: &str| !line.trim().is_empty() && !line.ends_with([':', '.']);
                // The words that the next line begins with would have had room.
                let word = next.split_whitespace().next().unwrap_or_default();
                let has_room = line.len() + 1 + word.len() <= 80;
                let continues = word.starts_with(|c: char| c.is_lowercase());
                let is_ragged = has_room
                    && continues
                    && is_text(line)
                    && indent(line) == indent(next)
                    && (indent(line) == 0 || indent(line) >= 10);
                assert!(!is_ragged, "{text}\n---\n{line}\n{next}");
            }
        }
    }
}

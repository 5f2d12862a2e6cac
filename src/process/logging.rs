//! Logs on standard error. The default level is low, so that the output of the command dominates.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::sync::{Mutex, OnceLock, PoisonError};

use tidings_broker::access::mask_tokens;
use tidings_protocol::text::{escape_json, is_invisible};
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{fmt, registry, reload};

const FILTER_DEFAULT: &str = "warn";

/// The target under which the broker logs received lines, if that is enabled.
const LINE_TARGET: &str = "tidings::line";

/// The log format for child processes, and the handle that changes the filter.
static LOGGING: OnceLock<Logging> = OnceLock::new();

struct Logging {
    #[cfg(feature = "_zmq")]
    is_json: bool,
    /// The filter as it was given, for child processes.
    filter: Mutex<Option<String>>,
    change: Box<dyn Fn(Targets) + Send + Sync>,
}

/// Starts logging with this filter, and of received lines if `lines` is set. Call it once.
pub(crate) fn start(json: bool, text: Option<&str>, lines: bool) {
    let variable = |name| std::env::var_os(name).unwrap_or_default();
    let is_coloured = !json
        && io::IsTerminal::is_terminal(&io::stderr())
        && allows_colour(&variable("NO_COLOR"), &variable("TERM"));
    let form = if json { RecordFormat::Json } else { RecordFormat::Text { is_coloured } };
    let (filter, handle) = reload::Layer::new(filter(text, lines));
    let layer = fmt::layer().with_writer(move || RecordWriter(form));
    let registry = registry().with(filter);
    if json {
        registry.with(layer.json()).init();
    } else {
        registry.with(layer.with_ansi(is_coloured)).init();
    }
    // A reload fails only without a subscriber, and this one is never removed.
    let change = Box::new(move |filter| drop(handle.reload(filter)));
    let filter = Mutex::new(text.map(str::to_owned));
    let _ = LOGGING.set(Logging {
        #[cfg(feature = "_zmq")]
        is_json: json,
        filter,
        change,
    });
}

/// Whether these variables allow colour; an empty one is not set. See <https://no-color.org>.
fn allows_colour(no_color: &OsStr, term: &OsStr) -> bool {
    no_color.is_empty() && term != "dumb"
}

/// The format of log records.
#[derive(Debug, Clone, Copy)]
enum RecordFormat {
    Json,
    Text {
        /// With escape sequences from the formatter, which escapes those in values.
        is_coloured: bool,
    },
}

/// Writes each record as one line. A record may contain text of peers: control characters in it are
/// escaped, and tokens are masked.
#[derive(Debug)]
struct RecordWriter(RecordFormat);

impl Write for RecordWriter {
    fn write(&mut self, record: &[u8]) -> io::Result<usize> {
        let line = to_one_line(&mask_tokens(&String::from_utf8_lossy(record)), self.0);
        io::stderr().lock().write_all(line.as_bytes())?;
        Ok(record.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// The record with exactly one line end, at its end.
fn to_one_line(record: &str, form: RecordFormat) -> String {
    let record = record.strip_suffix('\n').unwrap_or(record);
    let is_coloured = match form {
        RecordFormat::Json => return format!("{}\n", escape_json(record)),
        RecordFormat::Text { is_coloured } => is_coloured,
    };
    let mut line = String::with_capacity(record.len() + 1);
    for c in record.chars() {
        if is_invisible(c) && !(is_coloured && c == '\x1b') {
            write!(line, "{}", c.escape_default()).expect("a string takes everything");
        } else {
            line.push(c);
        }
    }
    line.push('\n');
    line
}

/// Changes the filter.
pub(crate) fn set_filter(text: Option<&str>, lines: bool) {
    if let Some(logging) = LOGGING.get() {
        (logging.change)(filter(text, lines));
        *logging.filter.lock().unwrap_or_else(PoisonError::into_inner) = text.map(str::to_owned);
    }
}

/// Whether logs are written as JSON, for child processes.
#[cfg(feature = "_zmq")]
pub(crate) fn is_json() -> bool {
    LOGGING.get().is_some_and(|logging| logging.is_json)
}

/// The filter as it was given.
pub(crate) fn filter_text() -> Option<String> {
    let filter = LOGGING.get().map(|logging| &logging.filter);
    filter.and_then(|filter| filter.lock().unwrap_or_else(PoisonError::into_inner).clone())
}

/// Whether the filter names the target of received lines. A general level such as `info` does not
/// log them: they are many, and contain the data of clients.
pub(crate) fn filter_names_lines() -> bool {
    filter_text().is_some_and(|filter| filter.contains(LINE_TARGET))
}

/// Parses the value of `--log` and returns it unchanged.
pub(crate) fn parse_filter(text: &str) -> Result<String, String> {
    let text = text.trim();
    // An empty variable counts as unset.
    let text = if text.is_empty() { FILTER_DEFAULT } else { text };
    match text.parse::<Targets>() {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => {
            Err(format!("{error}; expected a level such as info, or tidings_broker=debug"))
        }
    }
}

fn filter(text: Option<&str>, lines: bool) -> Targets {
    let filter = text.unwrap_or(FILTER_DEFAULT).parse::<Targets>();
    let filter = filter.expect("`parse_filter` has checked it");
    if lines { filter.with_target(LINE_TARGET, Level::DEBUG) } else { filter }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_can_turn_colour_off() {
        for (no_color, term, expected) in [
            ("", "", true),
            ("", "xterm-256color", true),
            ("1", "xterm", false),
            ("", "dumb", false),
        ] {
            let allows = allows_colour(OsStr::new(no_color), OsStr::new(term));
            assert_eq!(allows, expected, "{no_color} {term}");
        }
    }

    #[test]
    fn the_default_level_is_warn() {
        assert_eq!(filter(None, false).to_string(), "warn");
        assert_eq!(parse_filter(" ").unwrap(), "warn");
        let one = parse_filter("tidings_broker=debug ").unwrap();
        assert_eq!(filter(Some(&one), false).to_string(), "tidings_broker=debug");
    }

    #[test]
    fn lines_are_added_to_the_filter() {
        let text = filter(Some("error"), true).to_string();
        assert!(text.contains("error") && text.contains("tidings::line=debug"), "{text}");
    }

    #[test]
    fn a_wrong_filter_is_rejected_with_a_hint() {
        assert!(parse_filter("==").unwrap_err().contains("such as info"));
    }

    #[test]
    fn a_record_is_one_line() {
        let (text, coloured) =
            (RecordFormat::Text { is_coloured: false }, RecordFormat::Text { is_coloured: true });
        let record = "WARN a\nb\r\x1b[2J\u{85}\u{2028}\u{202e}\tc\n";
        let escaped = "WARN a\\nb\\r\\u{1b}[2J\\u{85}\\u{2028}\\u{202e}\\tc\n";
        assert_eq!(to_one_line(record, text), escaped);
        assert_eq!(
            to_one_line("\x1b[33mWARN\x1b[0m a\nb\n", coloured),
            "\x1b[33mWARN\x1b[0m a\\nb\n"
        );
        assert_eq!(
            to_one_line("{\"a\":\"\u{2028}\u{9b}\"}\n", RecordFormat::Json),
            "{\"a\":\"\\u2028\\u009b\"}\n"
        );
    }

    #[test]
    fn a_record_is_written_in_one_piece() {
        #[derive(Clone, Default)]
        struct Pieces(std::sync::Arc<Mutex<Vec<String>>>);
        impl Write for Pieces {
            fn write(&mut self, record: &[u8]) -> io::Result<usize> {
                self.0.lock().unwrap().push(String::from_utf8(record.to_vec()).unwrap());
                Ok(record.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let pieces = Pieces::default();
        let writer = pieces.clone();
        let subscriber = fmt().with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(said = %"one\ntwo", "three\nfour");
        });
        let pieces = pieces.0.lock().unwrap();
        assert_eq!(pieces.len(), 1, "{pieces:?}");
        assert!(pieces[0].contains("one\ntwo") && pieces[0].ends_with('\n'), "{pieces:?}");
    }
}

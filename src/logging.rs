//! Structured logs on standard error: quiet unless asked, so that what a person sees is the
//! command's own output.

use std::{
    io,
    sync::{Mutex, OnceLock, PoisonError},
};

use tracing_subscriber::EnvFilter;

/// What is logged when nobody says what.
const FILTER_DEFAULT: &str = "warn";

/// The target under which the broker logs every line that it receives, when it is told to.
const LINE_TARGET: &str = "tidings::line";

/// How logs are written, for processes that write theirs beside ours, and the way to change what is.
static LOGGING: OnceLock<Logging> = OnceLock::new();

struct Logging {
    is_json: bool,
    /// The filter as it was said, for processes of ours.
    filter: Mutex<Option<String>>,
    change: Box<dyn Fn(EnvFilter) + Send + Sync>,
}

/// Starts logging what the filter says, and lines if they are wanted. Call once.
pub(crate) fn start(json: bool, text: Option<&str>, lines: bool) {
    let (builder, first) = (tracing_subscriber::fmt().with_writer(io::stderr), filter(text, lines));
    // To change it is refused only once there is no subscriber any more, which is never.
    let change: Box<dyn Fn(EnvFilter) + Send + Sync> = if json {
        let builder = builder.json().with_env_filter(first).with_filter_reloading();
        let handle = builder.reload_handle();
        builder.init();
        Box::new(move |filter| drop(handle.reload(filter)))
    } else {
        let builder = builder.with_ansi(io::IsTerminal::is_terminal(&io::stderr()));
        let builder = builder.with_env_filter(first).with_filter_reloading();
        let handle = builder.reload_handle();
        builder.init();
        Box::new(move |filter| drop(handle.reload(filter)))
    };
    let filter = Mutex::new(text.map(str::to_owned));
    let _ = LOGGING.set(Logging { is_json: json, filter, change });
}

/// From here on what this filter says is logged.
pub(crate) fn change(text: Option<&str>, lines: bool) {
    if let Some(logging) = LOGGING.get() {
        (logging.change)(filter(text, lines));
        *logging.filter.lock().unwrap_or_else(PoisonError::into_inner) = text.map(str::to_owned);
    }
}

/// Whether logs are written as JSON.
pub(crate) fn is_json() -> bool {
    LOGGING.get().is_some_and(|logging| logging.is_json)
}

/// What is logged, as it was said.
pub(crate) fn said() -> Option<String> {
    let filter = LOGGING.get().map(|logging| &logging.filter);
    filter.and_then(|filter| filter.lock().unwrap_or_else(PoisonError::into_inner).clone())
}

/// Whether the filter names the lines. Being verbose about everything (`info`) does not ask for them: they are other people's
/// words, and many.
pub(crate) fn lines_are_asked_for() -> bool {
    said().is_some_and(|filter| filter.contains(LINE_TARGET))
}

/// A filter, as a flag has it: as it was said, if it is one.
pub(crate) fn parse_filter(text: &str) -> Result<String, String> {
    let text = text.trim();
    // A variable that is set to nothing is as good as none.
    let text = if text.is_empty() { FILTER_DEFAULT } else { text };
    match EnvFilter::try_new(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(format!("{error}; write a level such as info, or tidings_broker=debug")),
    }
}

fn filter(text: Option<&str>, lines: bool) -> EnvFilter {
    let filter = EnvFilter::new(text.unwrap_or(FILTER_DEFAULT));
    if lines {
        filter
            .add_directive(format!("{LINE_TARGET}=debug").parse().expect("a constant that parses"))
    } else {
        filter
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quiet_unless_asked() {
        assert_eq!(filter(None, false).to_string(), "warn");
        assert_eq!(parse_filter(" ").unwrap(), "warn");
        let one = parse_filter("tidings_broker=debug ").unwrap();
        assert_eq!(filter(Some(&one), false).to_string(), "tidings_broker=debug");
    }

    #[test]
    fn lines_come_on_top_of_the_filter() {
        let text = filter(Some("error"), true).to_string();
        assert!(text.contains("error") && text.contains("tidings::line=debug"), "{text}");
    }

    #[test]
    fn a_wrong_filter_is_told_what_is_right() {
        assert!(parse_filter("==").unwrap_err().contains("such as info"));
    }
}

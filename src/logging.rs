//! Structured logs on standard error: quiet unless asked, so that what a person sees is the
//! command's own output.

use std::{
    io,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use tracing_subscriber::EnvFilter;

use crate::failure::Failure;

/// The environment variable with the filter: `info`, `tidings_broker=debug`, ..
const FILTER_VARIABLE: &str = "TIDINGS_LOG";

/// What is logged when `TIDINGS_LOG` is not set.
const FILTER_DEFAULT: &str = "warn";

/// The target under which the broker logs every line that it receives, when it is told to.
const LINE_TARGET: &str = "tidings::line";

/// Whether logs are JSON, for processes that write theirs beside ours.
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// Starts logging. Call once.
pub(crate) fn start(json: bool, lines: bool) -> Result<(), Failure> {
    IS_JSON.store(json, Relaxed);
    let filter = filter(std::env::var(FILTER_VARIABLE).ok().as_deref(), lines)?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    if json {
        builder.json().init();
    } else {
        builder.with_ansi(io::IsTerminal::is_terminal(&io::stderr())).init();
    }
    Ok(())
}

/// Whether logs are written as JSON.
pub(crate) fn is_json() -> bool {
    IS_JSON.load(Relaxed)
}

/// Whether the filter in the environment names the lines. Being verbose about everything (`info`)
/// does not ask for them: they are other people's words, and many.
pub(crate) fn lines_are_asked_for() -> bool {
    std::env::var(FILTER_VARIABLE).is_ok_and(|filter| filter.contains(LINE_TARGET))
}

fn filter(variable: Option<&str>, lines: bool) -> Result<EnvFilter, Failure> {
    let text = variable.map(str::trim).filter(|text| !text.is_empty()).unwrap_or(FILTER_DEFAULT);
    let filter = EnvFilter::try_new(text).map_err(|error| {
        Failure::Usage(format!(
            "{FILTER_VARIABLE}={text} is no log filter ({error}); write a level such as info, or \
             tidings_broker=debug"
        ))
    })?;
    Ok(if lines {
        filter
            .add_directive(format!("{LINE_TARGET}=debug").parse().expect("a constant that parses"))
    } else {
        filter
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quiet_unless_asked() {
        assert_eq!(filter(None, false).unwrap().to_string(), "warn");
        assert_eq!(filter(Some(" "), false).unwrap().to_string(), "warn");
        assert_eq!(
            filter(Some("tidings_broker=debug"), false).unwrap().to_string(),
            "tidings_broker=debug"
        );
    }

    #[test]
    fn lines_come_on_top_of_the_filter() {
        let text = filter(Some("error"), true).unwrap().to_string();
        assert!(text.contains("error") && text.contains("tidings::line=debug"), "{text}");
    }

    #[test]
    fn a_wrong_filter_is_a_usage_error() {
        assert!(matches!(filter(Some("=="), false), Err(Failure::Usage(_))));
    }
}

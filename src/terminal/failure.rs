//! The ways in which a command ends without plain success, and their exit codes.

use std::io;
use std::process::ExitCode;

/// The end of a command other than plain success. Each has one line of text for a person and an
/// exit code for a script.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Not an error: the text (help, version) was requested. Exit code 0.
    Help(String),
    /// A wrong flag, address or configuration file; nothing was started. Exit code 2.
    Usage(String),
    /// Tables of the configuration file that are wrong beside others, or whose secrets are; nothing
    /// was started. Exit code 2.
    BadTables {
        /// The name of their list.
        key: &'static str,
        /// The place of each in the list, from 0, and what is wrong; at least one.
        problems: Vec<(usize, String)>,
    },
    /// A wrong configuration; its problems were already printed. Exit code 2.
    Misconfigured,
    /// The command started and failed. Exit code 1.
    Failed(anyhow::Error),
    /// The command worked, and its bad result was already printed. Exit code 1.
    Unsuccessful,
    /// Stopped by a signal before the end. Exit code 130.
    Interrupted(String),
    /// The reader of standard output has closed it (`| head -1`) and needs no more. Exit code 0.
    OutputClosed,
}

impl Failure {
    /// A failure while running, in one line.
    pub(crate) fn failed(text: impl Into<String>) -> Self {
        Self::Failed(anyhow::Error::msg(text.into()))
    }

    /// The meaning of a failed write to standard output.
    pub(crate) fn from_output(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Self::OutputClosed
        } else {
            Self::Failed(anyhow::Error::new(error).context("cannot write to standard output"))
        }
    }

    /// The line for standard error, without the program's name.
    pub(crate) fn text(&self) -> Option<String> {
        match self {
            Self::Help(_) | Self::Misconfigured | Self::Unsuccessful | Self::OutputClosed => None,
            Self::Usage(text) | Self::Interrupted(text) => Some(text.clone()),
            Self::BadTables { problems, .. } => problems.first().map(|(_, text)| text.clone()),
            Self::Failed(error) => Some(one_line(error)),
        }
    }

    /// The exit code for scripts.
    pub(crate) fn code(&self) -> ExitCode {
        match self {
            Self::Help(_) | Self::OutputClosed => ExitCode::SUCCESS,
            Self::Failed(_) | Self::Unsuccessful => ExitCode::FAILURE,
            Self::Usage(_) | Self::BadTables { .. } | Self::Misconfigured => ExitCode::from(2),
            Self::Interrupted(_) => ExitCode::from(130),
        }
    }
}

/// An error with its causes. Many errors of libraries already end with the text of their cause, which
/// is not repeated.
fn one_line(error: &anyhow::Error) -> String {
    let mut line = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        let reason = cause.rsplit(": ").next().unwrap_or_default();
        if !line.ends_with(reason) {
            line.push_str(": ");
            line.push_str(&cause);
        }
    }
    line
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_output_is_not_an_error() {
        let failure = Failure::from_output(io::ErrorKind::BrokenPipe.into());
        assert!(matches!(failure, Failure::OutputClosed));
        assert!(failure.text().is_none());
    }

    #[test]
    fn no_cause_is_said_twice() {
        let error = anyhow::anyhow!("Error code 26: file is not a database")
            .context("file is not a database")
            .context("pages.db: file is not a database");
        assert_eq!(Failure::from(error).text().unwrap(), "pages.db: file is not a database");
        let error = anyhow::anyhow!("not found").context("a.db").context("cannot read");
        assert_eq!(Failure::from(error).text().unwrap(), "cannot read: a.db: not found");
    }

    #[test]
    fn a_full_disk_is_an_error() {
        let failure = Failure::from_output(io::ErrorKind::StorageFull.into());
        let text = failure.text().unwrap();
        assert!(text.starts_with("cannot write to standard output: "), "{text}");
    }
}

//! How a command ends when it does not simply succeed, and the exit code for it.

use std::{io, process::ExitCode};

/// The end of a command that is not plain success. One line of text each, so that a person sees
/// what to do and a script sees the exit code.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Nothing went wrong: the text (help, version) is what was asked for. Exit code 0.
    Told(String),
    /// A wrong flag, address or configuration file; nothing was started. Exit code 2.
    Usage(String),
    /// A wrong configuration, of which everything was said already. Exit code 2.
    Misconfigured,
    /// It was started and did not work. Exit code 1.
    Failed(anyhow::Error),
    /// It worked, and the result is a bad one that was already printed. Exit code 1.
    Unsuccessful,
    /// Stopped by a signal before it was finished. Exit code 130.
    Interrupted(String),
    /// Whoever read our standard output has gone (`| head -1`): they have what they wanted. Exit
    /// code 0.
    OutputClosed,
}

impl Failure {
    /// A failure while running, told in one line.
    pub(crate) fn failed(text: impl Into<String>) -> Self {
        Self::Failed(anyhow::Error::msg(text.into()))
    }

    /// What an error of a write to standard output means.
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
            Self::Told(_) | Self::Misconfigured | Self::Unsuccessful | Self::OutputClosed => None,
            Self::Usage(text) | Self::Interrupted(text) => Some(text.clone()),
            Self::Failed(error) => Some(format!("{error:#}")),
        }
    }

    /// The exit code that a script sees.
    pub(crate) fn code(&self) -> ExitCode {
        match self {
            Self::Told(_) | Self::OutputClosed => ExitCode::SUCCESS,
            Self::Failed(_) | Self::Unsuccessful => ExitCode::FAILURE,
            Self::Usage(_) | Self::Misconfigured => ExitCode::from(2),
            Self::Interrupted(_) => ExitCode::from(130),
        }
    }
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
    fn a_reader_that_left_is_no_error() {
        let failure = Failure::from_output(io::ErrorKind::BrokenPipe.into());
        assert!(matches!(failure, Failure::OutputClosed));
        assert!(failure.text().is_none());
    }

    #[test]
    fn a_full_disk_is_one() {
        let failure = Failure::from_output(io::ErrorKind::StorageFull.into());
        let text = failure.text().unwrap();
        assert!(text.starts_with("cannot write to standard output: "), "{text}");
    }
}

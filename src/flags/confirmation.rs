//! The question before a command that cannot be undone.

use clap::Args;

use crate::terminal::failure::Failure;
use crate::terminal::output;

/// The flag of commands that cannot be undone. It is typed for each of them: neither the
/// environment nor the configuration file can set it.
#[derive(Debug, Clone, Args)]
pub(crate) struct YesFlag {
    /// Do not ask for confirmation; without a terminal, the command needs this flag
    #[arg(id = "typed_yes", long = "yes")]
    yes: bool,
}

impl YesFlag {
    /// Asks on the terminal, unless `--yes` is given. Only then is the question computed. Fails
    /// unless the answer is yes.
    pub(crate) async fn confirm(
        &self,
        question: impl Future<Output = Result<String, Failure>>,
    ) -> Result<(), Failure> {
        if self.yes {
            return Ok(());
        }
        if !output::can_ask() {
            let text = "this cannot be undone; confirm it with --yes, or run it on a terminal";
            return Err(Failure::Usage(text.to_owned()));
        }
        if output::ask(&question.await?)? {
            return Ok(());
        }
        Err(Failure::failed("not confirmed; nothing was changed"))
    }
}

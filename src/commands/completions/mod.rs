//! `tidings completions`: scripts that complete subcommands, flags and names in a shell.

pub(crate) mod names;

use clap::{Arg, Args, Command, ValueHint};
use clap_complete::{Shell, generate};

use self::names::NameKind;
use crate::terminal::failure::Failure;
use crate::terminal::output;

const EXAMPLES: &str = "\
Examples:
  tidings completions bash > ~/.local/share/bash-completion/completions/tidings
  tidings completions zsh > ~/.zfunc/_tidings       with fpath+=~/.zfunc in ~/.zshrc
  tidings completions fish > ~/.config/fish/completions/tidings.fish

In bash, zsh and fish, names of topics, groups and jobs are those of the broker that the line names,
if it answers within 200 ms.";

/// Marks arguments that are names of the broker: the scripts complete them by a function of their
/// own. No argument of this program has this hint by itself.
const NAME_HINT: ValueHint = ValueHint::Hostname;

/// The flags of `tidings completions`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// Prints the script for a shell, by the definition of the command line.
pub(crate) fn run(args: &CompletionsArgs, definition: &Command) -> Result<(), Failure> {
    output::print_text(&script(args.shell, definition)).map_err(Failure::from_output)
}

fn script(shell: Shell, definition: &Command) -> String {
    let mut script = Vec::new();
    generate(shell, &mut visible(definition), "tidings", &mut script);
    let script = String::from_utf8(script).expect("the definition is text");
    match shell {
        Shell::Bash => {
            let complete = "complete -F _tidings ";
            debug_assert!(script.contains(complete));
            let script = script.replace(complete, "complete -F _tidings_with_names ");
            format!("{}{script}", include_str!("names.bash"))
        }
        Shell::Zsh => {
            let autoload = "autoload -U is-at-least\n";
            debug_assert!(script.contains(autoload));
            let names = format!("{autoload}{}", include_str!("names.zsh"));
            script.replace(autoload, &names).replace(":_hosts'", ":_tidings_names'")
        }
        Shell::Fish => {
            let script = script.replace("__fish_print_hostnames", "__fish_tidings_names");
            script + include_str!("names.fish")
        }
        _ => script,
    }
}

/// The definition without hidden subcommands and without `help`, which the generators would list.
/// Arguments that are names of the broker get [`NAME_HINT`].
fn visible(command: &Command) -> Command {
    let with_hint = |arg: &Arg| match NameKind::of(arg) {
        Some(_) => arg.clone().value_hint(NAME_HINT),
        None => arg.clone(),
    };
    let shown = |command: &&Command| !command.is_hide_set();
    Command::new(command.get_name().to_owned())
        .about(command.get_about().cloned().unwrap_or_default())
        .version(command.get_version().map(str::to_owned).unwrap_or_default())
        .visible_aliases(command.get_visible_aliases().map(str::to_owned).collect::<Vec<_>>())
        .disable_help_subcommand(true)
        .groups(command.get_groups().cloned())
        .args(command.get_arguments().map(with_hint))
        .subcommands(command.get_subcommands().filter(shown).map(visible))
}

//! The manual page of the configuration file: a key for each flag.

use std::collections::BTreeMap;

use clap::{Arg, ArgAction, Command};
use clap_mangen::roff::{bold, italic, roman};

use super::{head, text};
use crate::config::is_key;
use crate::config::tables::LISTS;
use crate::flags::arguments::env_variable;

const ABOUT: &str = "configuration file of Tidings";

const INTRODUCTION: &str = "\
A TOML file, named by --config or TIDINGS_CONFIG. Its keys are the long names of the flags. At the
top of the file a key applies to each subcommand that has the flag; in a section, such as [crawl] or
[bench.fan-out], to that subcommand. A flag on the command line overrides the variable in the
environment, which overrides the context, which overrides a section of the file, which overrides its
top.

Switches are true or false. A flag that may be repeated is a list, or a list of tables such as
[[feed]]. Other values are text or numbers, as on the command line. A relative path is relative to
the working directory of the process, not to the file.

  data = \"/var/lib/tidings\"
  allow-private = [\"10.0.0.0/8\"]

  [crawl]
  max-pages = 10_000

tidings config check reports every mistake in a file, and tidings config show prints each value with
its origin.";

/// Subcommands that are listed for a key; more are counted.
const COMMANDS_MAX: usize = 6;

/// The page, by the definition of the command line.
pub(super) fn page(definition: &Command) -> String {
    let mut roff = head("tidings.toml", "5", ABOUT);
    roff.control("SH", ["DESCRIPTION"]);
    text::paragraphs(&mut roff, INTRODUCTION, "PP");
    roff.control("SH", ["KEYS"]);
    let mut keys = BTreeMap::new();
    collect(definition, &mut Vec::new(), &mut keys);
    for ((key, help), (arg, commands)) in &keys {
        let value = match arg.get_action() {
            ArgAction::SetTrue => "true|false".to_owned(),
            action => {
                let names = arg.get_value_names().unwrap_or_default().join(" ");
                if matches!(action, ArgAction::Append) { format!("[{names}, ..]") } else { names }
            }
        };
        roff.control("TP", []);
        // A flag for tables is hidden on the command line.
        roff.text(if arg.is_hide_set() {
            vec![bold(format!("[[{key}]]"))]
        } else {
            vec![bold(key.as_str()), roman(" = "), italic(value)]
        });
        text::paragraphs(&mut roff, help, "IP");
        let shown = commands[..commands.len().min(COMMANDS_MAX)].join(", ");
        let more = commands.len().saturating_sub(COMMANDS_MAX);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let variable = env_variable(arg).unwrap_or_default();
        roff.control("br", []);
        roff.text([roman(format!("Variable: {variable}. Subcommands: {shown}{more}."))]);
    }
    for (key, help) in LISTS {
        roff.control("TP", []);
        roff.text([bold(format!("[[{key}]]"))]);
        roff.text([roman(format!("{help} Subcommands: up, broker."))]);
    }
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman("tidings(1), tidings-config(1)")]);
    roff.to_roff()
}

/// A key with its help, and the commands that have it. The same name may be different flags.
type Keys<'a> = BTreeMap<(String, String), (&'a Arg, Vec<String>)>;

fn collect<'a>(command: &'a Command, names: &mut Vec<&'a str>, keys: &mut Keys<'a>) {
    // Without a subcommand, `tidings` has the flags of `up`.
    let is_own = |arg: &&Arg| arg.is_global_set() || !names.is_empty();
    for arg in command.get_arguments().filter(is_own) {
        let Some(key) = arg.get_long().filter(|key| is_key(arg, key)) else { continue };
        let help = arg.get_long_help().or_else(|| arg.get_help());
        let help = help.map(ToString::to_string).unwrap_or_default();
        let (_, commands) = keys.entry((key.to_owned(), help)).or_insert((arg, Vec::new()));
        commands.push(if names.is_empty() { "all".to_owned() } else { names.join(" ") });
    }
    for subcommand in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        names.push(subcommand.get_name());
        collect(subcommand, names, keys);
        names.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;

    #[test]
    fn each_key_of_the_file_is_on_the_page() {
        fn check(command: &Command, page: &str) -> usize {
            let mut tables = 0;
            for arg in command.get_arguments() {
                let Some(key) = arg.get_long().filter(|key| is_key(arg, key)) else { continue };
                let key = key.replace('-', "\\-");
                let table = page.contains(&format!("\n\\fB[[{key}]]\\fR\n"));
                assert!(table || page.contains(&format!("\n\\fB{key}\\fR = ")), "no {key}");
                tables += usize::from(table);
            }
            let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
            tables + shown.map(|command| check(command, page)).sum::<usize>()
        }
        let definition = cli::definition();
        let page = page(&definition);
        assert!(check(&definition, &page) >= 1, "feed is a table");
        for (list, _) in LISTS {
            assert!(page.contains(&format!("\n\\fB[[{list}]]\\fR\n")), "no {list}");
        }
    }
}

//! `tidings man`: writes the manual pages. They are made of the definition of the command line, so
//! they have every flag.

mod config_page;
mod protocol_page;
mod text;

use std::path::{Path, PathBuf};
use std::{fs, io};

use clap::{Args, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::terminal::failure::Failure;
use crate::terminal::output::{Console, plural};

const EXAMPLES: &str = "\
Examples:
  tidings man --dir /usr/local/share/man      for `man tidings` and `man tidings-crawl`
  tidings man --dir man; man -M man tidings   look at them without an installation";

/// The name and version, for the end of each page.
const SOURCE: &str = concat!("tidings ", env!("CARGO_PKG_VERSION"));

/// The date at the end of each page: when the form of the pages was last changed. It is fixed, so
/// that the same program writes the same pages.
const DATE: &str = "2026-11-26";

/// The flags of `tidings man`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ManArgs {
    /// Write the pages below this directory, in man1, man5 and man7; created if it does not exist
    #[arg(long, value_name = "DIR", required = true)]
    dir: PathBuf,
}

/// Writes all pages, by the definition of the command line.
pub(crate) fn run(args: &ManArgs, definition: Command) -> Result<(), Failure> {
    let pages = pages(definition);
    for (section, name, page) in &pages {
        let folder = args.dir.join(format!("man{section}"));
        let path = folder.join(format!("{name}.{section}"));
        write(&folder, &path, page).map_err(|error| {
            Failure::failed(format!("cannot write {}: {error}", path.display()))
        })?;
    }
    let pages = plural(pages.len() as u64, "page");
    Console::new().line(&format!("{pages} in {}", args.dir.display()))
}

fn write(folder: &Path, path: &Path, page: &str) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    fs::write(path, page)
}

/// All pages with their sections and names.
fn pages(definition: Command) -> Vec<(u8, String, String)> {
    let config = config_page::page(&definition);
    let mut pages = vec![
        (5, "tidings.toml".to_owned(), config),
        (7, "tidings-protocol".to_owned(), protocol_page::page()),
    ];
    let mut definition = with_all_help(definition).disable_help_subcommand(true);
    definition.build();
    collect(&definition, &mut pages);
    pages
}

/// The page of a command and those of its subcommands.
fn collect(command: &Command, pages: &mut Vec<(u8, String, String)>) {
    let page = command_page(command);
    pages.push((1, page_name(command), page));
    for subcommand in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        collect(subcommand, pages);
    }
}

/// `clap_mangen` leaves out the help of flags that only `--help` lists.
fn with_all_help(command: Command) -> Command {
    let command = command.mut_args(|arg| arg.hide_short_help(false));
    command.mut_subcommands(with_all_help)
}

fn page_name(command: &Command) -> String {
    command.get_display_name().unwrap_or(command.get_name()).to_owned()
}

fn command_page(command: &Command) -> String {
    let name = page_name(command);
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let (first, rest) = about.split_once("\n\n").unwrap_or((&about, ""));
    let mut roff = head(&name, "1", first);
    roff.control("SH", ["SYNOPSIS"]);
    synopsis(&mut roff, command);
    roff.control("SH", ["DESCRIPTION"]);
    text::paragraphs(&mut roff, if rest.is_empty() { first } else { rest }, "PP");
    let mut page = roff.to_roff().into_bytes();
    let man = Man::new(command.clone());
    let render = |page: &mut Vec<u8>| {
        man.render_options_section(page)?;
        if command.get_subcommands().any(|command| !command.is_hide_set()) {
            man.render_subcommands_section(page)?;
        }
        io::Result::Ok(())
    };
    render(&mut page).expect("a vector takes every write");
    let after = command.get_after_long_help().or_else(|| command.get_after_help());
    let mut roff = Roff::new();
    text::sections(&mut roff, &after.map(ToString::to_string).unwrap_or_default());
    see_also(&mut roff, &name);
    let page = String::from_utf8(page).expect("the definition is text");
    // Two breaks around an empty line, before the possible values of a flag.
    page.replace("\n.br\n\n.br\n", "\n.br\n") + &roff.to_roff()
}

/// The title and the section NAME.
fn head(name: &str, section: &str, about: &str) -> Roff {
    let mut roff = Roff::new();
    roff.control("TH", [&*name.to_uppercase(), section, DATE, SOURCE, "Tidings"]);
    roff.control("SH", ["NAME"]);
    roff.text([roman(format!("{name} - {}", about.trim_end_matches('.')))]);
    roff
}

fn synopsis(roff: &mut Roff, command: &Command) {
    let usage = command.clone().render_usage().to_string();
    let forms = usage.trim_start_matches("Usage: ").lines().map(str::trim);
    for (index, form) in forms.filter(|form| !form.is_empty()).enumerate() {
        if index > 0 {
            roff.control("br", []);
        }
        let name = command.get_bin_name().unwrap_or(command.get_name());
        match form.strip_prefix(name) {
            Some(rest) => roff.text([bold(name), roman(rest)]),
            None => roff.text([roman(form)]),
        };
    }
}

fn see_also(roff: &mut Roff, name: &str) {
    let mut pages = vec!["tidings.toml(5)".to_owned()];
    match name.rsplit_once('-') {
        Some((parent, _)) => pages.insert(0, format!("{parent}(1)")),
        None => pages.push("tidings-protocol(7)".to_owned()),
    }
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman(pages.join(", "))]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;

    #[test]
    fn each_flag_is_on_the_page_of_its_command() {
        fn check(command: &Command, pages: &[(u8, String, String)]) {
            let name = page_name(command);
            let (_, _, page) = pages.iter().find(|(_, page, _)| *page == name).unwrap();
            let flags = command.get_arguments().filter(|arg| !arg.is_hide_set());
            for flag in flags.filter_map(|arg| arg.get_long()) {
                let flag = format!("--{flag}").replace('-', "\\-");
                assert!(page.contains(&flag), "{name}: no {flag}");
            }
            for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
                check(command, pages);
            }
        }
        let mut definition = cli::definition().disable_help_subcommand(true);
        let pages = pages(definition.clone());
        definition.build();
        check(&definition, &pages);
        assert!(pages.len() > 60, "{}", pages.len());
    }
}

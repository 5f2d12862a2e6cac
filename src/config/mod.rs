//! `--config FILE`: a TOML file with an equivalent of every flag of every subcommand.
//!
//! A key is the long name of a flag. At the top of the file it applies to every subcommand with
//! that flag; in a section (`[crawl]`, `[bench.fan-out]`) it applies to that subcommand, and
//! overrides the top:
//!
//! ```toml
//! data = "/var/lib/tidings"
//! allow-private = ["10.0.0.0/8"]
//!
//! [crawl]
//! max-pages = 10_000
//!
//! [[feed]]
//! url = "https://example.org/feed.xml"
//! ```
//!
//! A list of tables is a repeatable flag, such as `[[feed]]`, where each table becomes a line; or
//! one of the [`Tables`] of a server, which have no flag.
//!
//! The values of the file become the *defaults* of the flags. So the argument parser itself
//! implements the precedence flag, environment, file, built-in default; the parser of the flag
//! checks the value; and a new flag needs no code here.

mod combination;
pub(crate) mod contexts;
mod effective;
mod secrets;
pub(crate) mod tables;
mod value;

use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, Command};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

pub(crate) use self::effective::{
    Setting, as_file, context_of, environment_problems, find_subcommand, settings,
};
use self::tables::Tables;
use self::value::{FlagValue, flag_values, items};
use crate::flags::address::BrokerAddress;
use crate::flags::arguments::{is_setting, one_line_message};
use crate::terminal::failure::Failure;

/// The key of the file with the token for a broker.
const TOKEN_KEY: &str = "token-file";

/// A configuration file that was read.
#[derive(Debug)]
pub(crate) struct ConfigFile {
    path: PathBuf,
    text: String,
    /// Its valid entries; more specific sections come later.
    entries: Vec<ConfigEntry>,
    /// The problems in the order of the file.
    problems: Vec<ConfigProblem>,
}

/// A problem and its byte position in the file.
#[derive(Debug)]
struct ConfigProblem {
    at: usize,
    text: String,
}

/// One `key = value` of the file.
#[derive(Debug)]
struct ConfigEntry {
    /// The names of the sections that contain it, outermost first.
    sections: Vec<String>,
    key: String,
    /// The byte position of the key.
    at: usize,
    values: Vec<FlagValue>,
    /// The same tables with their types, if this is a list of [`Tables`].
    tables: Tables,
}

/// A key of the file before its value is checked.
struct FoundKey<'a> {
    sections: Vec<&'a str>,
    key: &'a str,
    at: usize,
    value: &'a Spanned<DeValue<'a>>,
}

impl ConfigFile {
    /// Reads a file and finds all its problems, by the definition of the command line.
    pub(crate) fn read(path: &Path, definition: &Command) -> Result<Self, Failure> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            let file = path.display();
            Failure::Usage(format!("cannot read the configuration file {file}: {error}"))
        })?;
        Ok(Self::parse(path, text, definition))
    }

    fn parse(path: &Path, text: String, definition: &Command) -> Self {
        let (table, errors) = DeTable::parse_recoverable(&text);
        let mut problems: Vec<_> = errors
            .into_iter()
            .map(|error| ConfigProblem {
                at: error.span().map_or(0, |span| span.start),
                text: error.message().replace('\n', "; "),
            })
            .collect();
        // Later errors in the same line are usually consequences of the first.
        problems.dedup_by_key(|problem| line_and_column(&text, problem.at).0);
        let (mut found, mut entries) = (Vec::new(), Vec::new());
        // In a file that is not TOML, further problems would be misleading.
        if problems.is_empty() {
            collect_keys(definition, &mut Vec::new(), table.get_ref(), &mut found, &mut problems);
        }
        for found in found {
            match found.check(definition) {
                Ok((values, tables)) => entries.push(found.into_entry(values, tables)),
                Err(wrong) => problems.extend(wrong),
            }
        }
        problems.sort_by_key(|problem| problem.at);
        // Deeper sections are more specific: they are applied later and so override others.
        entries.sort_by_key(|entry| entry.sections.len());
        Self { path: path.to_owned(), text, entries, problems }
    }

    /// The problems with their places, in the order of the file.
    pub(crate) fn problems(&self) -> impl Iterator<Item = String> {
        self.problems.iter().map(|ConfigProblem { at, text }| self.problem_at(*at, text))
    }

    /// The number of valid keys.
    pub(crate) fn key_count(&self) -> usize {
        self.entries.len()
    }

    /// `command` with the values of the file as defaults of its flags, or the first problem.
    pub(crate) fn apply(&self, mut command: Command) -> Result<Command, Failure> {
        if let Some(problem) = self.problems().next() {
            return Err(Failure::Usage(problem));
        }
        for entry in &self.entries {
            let sections: Vec<_> = entry.sections.iter().map(String::as_str).collect();
            command = set_default(command, &sections, entry);
            if sections == ["up"] {
                // `tidings` is `tidings up`, so its flags exist twice.
                command = command.mut_args(|arg| set_arg_default(arg, entry));
            }
        }
        Ok(command)
    }

    /// Removes the token that this subcommand would send to another broker than the one that the
    /// file names beside it, in the same section or above. `broker` overrides that of the file.
    /// Returns why no token is sent, if one was removed.
    pub(crate) fn withhold_token(
        &mut self,
        names: &[&str],
        broker: Option<&BrokerAddress>,
    ) -> Option<String> {
        let token = self.find_entry(names, |key| key == TOKEN_KEY)?;
        let sections: Vec<_> = token.sections.iter().map(String::as_str).collect();
        let own = self.broker(&sections)?;
        let broker = broker.cloned().or_else(|| self.broker(names)).filter(|it| *it != own)?;
        let place = self.place(token);
        self.entries.retain(|entry| entry.key != TOKEN_KEY);
        Some(format!("no token is sent to {broker}, because that of {place} is for {own}"))
    }

    /// The broker of this subcommand in the file.
    fn broker(&self, names: &[&str]) -> Option<BrokerAddress> {
        self.find_entry(names, |key| key == "broker")?.texts().concat().parse().ok()
    }

    /// The tables of this subcommand in the file.
    pub(crate) fn tables(&self, names: &[&str]) -> Tables {
        let list = |name| Some(self.find_entry(names, |key| key == name)?.tables.clone());
        Tables {
            hooks: list("hook").unwrap_or_default().hooks,
            pushes: list("push").unwrap_or_default().pushes,
        }
    }

    /// The values of a key of this subcommand in the file, and their place `file:line`.
    fn find(&self, names: &[&str], is_key: impl Fn(&str) -> bool) -> Option<(Vec<String>, String)> {
        let entry = self.find_entry(names, is_key)?;
        Some((entry.texts(), self.place(entry)))
    }

    fn place(&self, entry: &ConfigEntry) -> String {
        let (line, _) = line_and_column(&self.text, entry.at);
        format!("{}:{line}", self.path.display())
    }

    /// A problem with one of the tables of a list, with its place.
    pub(crate) fn table_problem(
        &self,
        names: &[&str],
        list: &str,
        index: usize,
        text: &str,
    ) -> Option<String> {
        let entry = self.find_entry(names, |key| key == list)?;
        let at = entry.values.get(index)?.place_of(text);
        Some(self.problem_at(at, &format!("`{list}`: {text}")))
    }

    fn find_entry(&self, names: &[&str], is_key: impl Fn(&str) -> bool) -> Option<&ConfigEntry> {
        self.entries.iter().rfind(|entry| {
            let sections = entry.sections.iter().map(String::as_str);
            entry.sections.len() <= names.len()
                && sections.zip(names).all(|(section, name)| section == *name)
                && is_key(&entry.key)
        })
    }

    fn problem_at(&self, at: usize, text: &str) -> String {
        let (line, column) = line_and_column(&self.text, at);
        format!("{}:{line}:{column}: {text}", self.path.display())
    }
}

impl ConfigEntry {
    fn texts(&self) -> Vec<String> {
        self.values.iter().map(|value| value.text.clone()).collect()
    }
}

impl FoundKey<'_> {
    /// Its values, after the check of each.
    fn check(&self, definition: &Command) -> Result<(Vec<FlagValue>, Tables), Vec<ConfigProblem>> {
        let values = flag_values(self.key, self.value).map_err(|problem| vec![problem])?;
        let mut tables = Tables::default();
        let problems = if tables::is_list(self.key) {
            let add = |(value, table): (&FlagValue, _)| {
                let text = tables.add(self.key, table).err()?;
                Some((value.place_of(&text), text))
            };
            values.iter().zip(items(self.value)).filter_map(add).collect()
        } else {
            entry_problems(definition, self, &values)
        };
        if problems.is_empty() {
            return Ok((values, tables));
        }
        let problem = |(at, text)| ConfigProblem { at, text: format!("`{}`: {text}", self.key) };
        Err(problems.into_iter().map(problem).collect())
    }

    fn into_entry(self, values: Vec<FlagValue>, tables: Tables) -> ConfigEntry {
        ConfigEntry {
            sections: self.sections.into_iter().map(str::to_owned).collect(),
            key: self.key.to_owned(),
            at: self.at,
            values,
            tables,
        }
    }
}

fn collect_keys<'a>(
    command: &Command,
    sections: &mut Vec<&'a str>,
    table: &'a DeTable<'a>,
    found: &mut Vec<FoundKey<'a>>,
    problems: &mut Vec<ConfigProblem>,
) {
    for (key, value) in table {
        let (name, at) = (key.get_ref().as_ref(), key.span().start);
        let is_known = find_with_flag(command, name).is_some()
            || tables::is_list(name) && find_with_flag(command, tables::FLAG).is_some();
        if let DeValue::Table(inner) = value.get_ref() {
            let Some(subcommand) = command.find_subcommand(name) else {
                let known = subcommand_names(command);
                let text = if is_known {
                    format!("`{name}` is not a section; write [[{name}]] for each entry")
                } else {
                    format!("unknown section `{name}`; known: {known}")
                };
                problems.push(ConfigProblem { at, text });
                continue;
            };
            sections.push(name);
            collect_keys(subcommand, sections, inner, found, problems);
            sections.pop();
        } else if is_known {
            found.push(FoundKey { sections: sections.clone(), key: name, at, value });
        } else {
            let text = match typed_alias(command, name) {
                Some(long) => format!("unknown key `{name}`; write `{long}`"),
                None => {
                    format!("unknown key `{name}`; the keys are the long names of the flags")
                }
            };
            problems.push(ConfigProblem { at, text });
        }
    }
}

/// The long name of the flag with this visible alias.
fn typed_alias<'c>(command: &'c Command, key: &str) -> Option<&'c str> {
    let has = |arg: &&Arg| arg.get_visible_aliases().is_some_and(|all| all.contains(&key));
    command.get_arguments().find(has)?.get_long()
}

fn subcommand_names(command: &Command) -> String {
    let names: Vec<_> = command.get_subcommands().map(Command::get_name).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// The path of names from `command` to the first subcommand with the flag.
fn find_with_flag<'c>(command: &'c Command, key: &str) -> Option<Vec<&'c str>> {
    if command.get_arguments().any(|arg| is_flag(arg, key)) {
        return Some(Vec::new());
    }
    // Hidden subcommands are not for configuration files.
    let mut subcommands = command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set());
    subcommands.find_map(|subcommand| {
        let mut names = find_with_flag(subcommand, key)?;
        names.insert(0, subcommand.get_name());
        Some(names)
    })
}

/// Whether this key of a file can set the flag.
pub(crate) fn is_key(arg: &Arg, key: &str) -> bool {
    // `--config` cannot be set by the file that it names.
    is_setting(arg) && key != "config"
}

/// Hidden aliases are earlier names of the flag. A visible one is for typing only: in a file the
/// name may mean a flag of another subcommand.
fn is_flag(arg: &Arg, key: &str) -> bool {
    let is_visible = || arg.get_visible_aliases().is_some_and(|aliases| aliases.contains(&key));
    let is_alias = || arg.get_all_aliases().is_some_and(|aliases| aliases.contains(&key));
    (arg.get_long() == Some(key) || is_alias() && !is_visible()) && is_key(arg, key)
}

/// The argument parser's problems with a value, as if the flag had been typed, with their places.
fn entry_problems(
    command: &Command,
    entry: &FoundKey<'_>,
    values: &[FlagValue],
) -> Vec<(usize, String)> {
    let at = entry.value.span().start;
    let mut names = entry.sections.clone();
    let mut target = command;
    for name in &entry.sections {
        target = target.find_subcommand(name).expect("collect() found the sections");
    }
    for name in find_with_flag(target, entry.key).expect("collect() found the flag") {
        names.push(name);
        target = target.find_subcommand(name).expect("just found");
    }
    let arg = target.get_arguments().find(|arg| is_flag(arg, entry.key)).expect("just found");
    if matches!(arg.get_action(), ArgAction::SetTrue) {
        return match entry.value.get_ref() {
            DeValue::Boolean(_) => Vec::new(),
            _ => vec![(at, "expected true or false".to_owned())],
        };
    }
    let judge = |values: &[&str]| check_values(command, &names, entry.key, values);
    let texts: Vec<&str> = values.iter().map(|value| value.text.as_str()).collect();
    if !matches!(arg.get_action(), ArgAction::Append) {
        return judge(&[&texts.join(",")]).err().map(|text| (at, text)).into_iter().collect();
    }
    let Err(text) = judge(&texts) else { return Vec::new() };
    let wrong = |value: &FlagValue| {
        let text = judge(&[&value.text]).err()?;
        Some((value.place_of(&text), text))
    };
    let found: Vec<_> = values.iter().filter_map(wrong).collect();
    if found.is_empty() { vec![(at, text)] } else { found }
}

/// The argument parser's error for these values of a flag, without secrets.
fn check_values(
    command: &Command,
    names: &[&str],
    key: &str,
    values: &[&str],
) -> Result<(), String> {
    let flags: Vec<_> = values.iter().map(|value| format!("--{key}={value}")).collect();
    let flags = flags.iter().map(String::as_str);
    let words = ["tidings"].into_iter().chain(names.iter().copied()).chain(flags);
    match command.clone().try_get_matches_from(words) {
        Ok(_) => Ok(()),
        // The parser checks values first, so this value is valid; the missing arguments are typed
        // later.
        Err(error) if error.kind() == ErrorKind::MissingRequiredArgument => Ok(()),
        Err(error) => {
            let mut text = one_line_message(&error);
            for value in values {
                text = text.replace(value, &secrets::hide(key, value));
            }
            Err(text)
        }
    }
}

/// Sets the default of the flag in the subcommand of `sections` and in all below it.
fn set_default(mut command: Command, sections: &[&str], entry: &ConfigEntry) -> Command {
    if let [name, rest @ ..] = sections {
        return command.mut_subcommand(name, |inner| set_default(inner, rest, entry));
    }
    command = command.mut_args(|arg| set_arg_default(arg, entry));
    command.mut_subcommands(|inner| set_default(inner, &[], entry))
}

fn set_arg_default(arg: Arg, entry: &ConfigEntry) -> Arg {
    match arg.get_action() {
        _ if !is_flag(&arg, &entry.key) => arg,
        ArgAction::Append => arg.default_values(entry.texts()),
        _ => arg.default_value(entry.texts().join(",")),
    }
}

/// The line and column of a byte, both from 1, with columns in characters.
fn line_and_column(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{command, definition};

    fn problem(text: &str) -> String {
        problems(text).into_iter().next().expect("there is one")
    }

    fn problems(text: &str) -> Vec<String> {
        let file = ConfigFile::parse(Path::new("f"), text.to_owned(), &definition());
        file.problems().map(|problem| problem["f:".len()..].to_owned()).collect()
    }

    fn with_text(command: Command, text: &str) -> Result<Command, Failure> {
        ConfigFile::parse(Path::new("f"), text.to_owned(), &definition()).apply(command)
    }

    fn crawl_depth(text: &str, words: &[&str]) -> Option<u32> {
        let command = with_text(command(), text).unwrap();
        let words = ["tidings", "crawl", "http://a.example/"].iter().chain(words);
        let matches = command.try_get_matches_from(words).unwrap();
        matches.subcommand_matches("crawl").unwrap().get_one::<u32>("depth").copied()
    }

    #[test]
    fn a_flag_overrides_the_file() {
        assert_eq!(crawl_depth("", &[]), None);
        assert_eq!(crawl_depth("[crawl]\ndepth = 3", &[]), Some(3));
        assert_eq!(crawl_depth("[crawl]\ndepth = 3", &["--depth", "4"]), Some(4));
    }

    #[test]
    fn a_section_overrides_the_top_of_the_file() {
        assert_eq!(crawl_depth("depth = 2", &[]), Some(2));
        assert_eq!(crawl_depth("depth = 2\n[crawl]\ndepth = 3", &[]), Some(3));
    }

    #[test]
    fn a_shared_key_applies_to_every_subcommand() {
        let command = with_text(command(), "listen = '127.0.0.1:7'").unwrap();
        let bare = command.clone().try_get_matches_from(["tidings"]).unwrap();
        let broker = command.try_get_matches_from(["tidings", "broker"]).unwrap();
        let broker = broker.subcommand_matches("broker").unwrap();
        for matches in [&bare, broker] {
            let listen = matches.get_one::<crate::flags::address::Listen>("listen").unwrap();
            assert_eq!(listen.to_string(), "127.0.0.1:7");
        }
    }

    #[test]
    fn the_section_up_applies_without_a_subcommand() {
        let command = with_text(command(), "[up]\nconcurrency = 5").unwrap();
        let bare = command.try_get_matches_from(["tidings"]).unwrap();
        assert_eq!(bare.get_one::<u32>("concurrency"), Some(&5));
    }

    #[test]
    fn problems_name_their_place_and_key() {
        assert_eq!(
            problem("# c\n\ndepht = 3"),
            "3:1: unknown key `depht`; the keys are the long names of the flags"
        );
        let text = problem("[crawl]\n  depth = 'x'");
        assert!(text.starts_with("2:11: `depth`: invalid value 'x' for '--depth <N>'"), "{text}");
        let text = problem("[crwl]\ndepth = 1");
        assert!(text.starts_with("1:2: unknown section `crwl`; known: up, "), "{text}");
        assert_eq!(problem("log-json = 3"), "1:12: `log-json`: expected true or false");
        assert!(problem("a = = 1").starts_with("1:5: "), "{}", problem("a = = 1"));
        assert!(problem("config = 'x'").contains("unknown key"));
        assert!(problem("into = 'x'").contains("unknown key"), "of a hidden subcommand");
    }

    #[test]
    fn problems_are_reported_in_the_order_of_the_file() {
        let text = "a = 1\ndelay = 'soon'\n[crawl]\ndepth = 'x'\nb = 1\n[nowhere]\n";
        let problems = problems(text);
        let places: Vec<_> = problems.iter().map(|text| text.split_once(": ").unwrap().0).collect();
        assert_eq!(places, ["1:1", "2:9", "4:9", "5:1", "6:2"], "{problems:#?}");
        let problems = self::problems("a = = 1\nlisten = 'x'\nb = ]");
        let places: Vec<_> = problems.iter().map(|text| text.split_once(": ").unwrap().0).collect();
        assert_eq!(places, ["1:5", "3:5"], "{problems:#?}");
    }

    #[test]
    fn a_problem_contains_no_secret() {
        let text =
            "postgres = 'postgres://u:hush@'\nproxy = 'http://u:hu/sh@a'\nheader = ['X-A: hush\r']";
        for problem in problems(&text.replace("\\r", "\r")) {
            assert!(!problem.contains("hush") && !problem.contains("sh@"), "{problem}");
        }
    }

    #[test]
    fn lists_and_switches_become_flag_values() {
        let text = "allow-private = ['10.0.0.0/8', '127.0.0.1']\nlog-json = true";
        let command = with_text(command(), text).unwrap();
        let bare = command.try_get_matches_from(["tidings"]).unwrap();
        assert!(bare.get_flag("log_json"));
        let mut raw = bare.get_raw("allow_private").unwrap();
        assert_eq!(raw.next().unwrap(), "10.0.0.0/8,127.0.0.1");
    }

    #[test]
    fn a_repeatable_flag_takes_a_list() {
        let text = "[crawl]\nheader = ['Accept: a, b', 'X-Team: c']\nexclude = ['/a', '*.pdf$']";
        let command = with_text(command(), text).unwrap();
        let crawl =
            command.try_get_matches_from(["tidings", "crawl", "http://a.example/"]).unwrap();
        let crawl = crawl.subcommand_matches("crawl").unwrap();
        let values = |id| crawl.get_raw(id).unwrap().collect::<Vec<_>>();
        assert_eq!(values("header"), ["Accept: a, b", "X-Team: c"]);
        assert_eq!(values("exclude"), ["/a", "*.pdf$"]);
        assert!(problem("header = ['a: b', 'c']").starts_with("1:19: `header`: "));
    }

    #[test]
    fn feeds_are_a_list_of_tables() {
        let text =
            "[[feed]]\nevery = '2h'\nurl = 'http://a.example/'\n[[feed]]\nurl = 'http://b.example'";
        let command = with_text(command(), text).unwrap();
        let bare = command.try_get_matches_from(["tidings"]).unwrap();
        let raw: Vec<_> = bare.get_raw("feed").unwrap().collect();
        assert_eq!(raw, ["http://a.example/ every=2h", "http://b.example"]);
        let text =
            problem("[[feed]]\nurl = 'http://a.example/'\n[[feed]]\nurll = 'http://b.example'");
        assert!(text.starts_with("3:1: `feed`: ") && text.contains("a `url`"), "{text}");
        assert!(problem("[feed]\nurl = 'http://a.example/'").contains("write [[feed]]"));
        assert_eq!(problem("[[feed]]\nurl = 'a b'"), "2:7: expected one word");
    }

    #[test]
    fn tables_of_a_server_have_types() {
        let hook = "[[hook]]\nname = 'a'\nsecret-env = 'A'\nsignature = 'github'\n\
                    url = { pointer = '/a' }\nprefixes = ['http://a.example/']\nrate = 0x10\n";
        let file = ConfigFile::parse(Path::new("f"), hook.to_owned(), &definition());
        let tables = file.tables(&["up"]);
        assert_eq!((&*tables.hooks[0].name, tables.pushes.len()), ("a", 0));
        let text = problem(&format!("{hook}[[hook]]\nname = 'b'\nsecret = 'hush'"));
        assert!(text.starts_with("10:1: `hook`: unknown field `secret`, expected "), "{text}");
        let text = problem(&format!("{hook}{}", hook.replace("'github'", "'gitbul'")));
        assert!(text.starts_with("11:1: `hook`: the hook \"a\": `signature`: "), "{text}");
        for (text, reason) in [
            ("push = ['x']", "1:9: `push`: expected a table: "),
            ("[[push]]\n\nname = 7", "3:1: `push`: `name`: invalid type: integer `7`, expected "),
            ("[[push]]\nwhere = [1]", "1:1: `push`: `where[0]`: invalid type: integer `1`, "),
            ("[[push]]\nname = 'a'", "1:1: `push`: missing field `topic`"),
            ("[[crawl.hook]]\nname = 'a'", "1:9: unknown key `hook`"),
        ] {
            let text = problem(text);
            assert!(text.starts_with(reason), "{text}");
        }
    }

    #[test]
    fn a_value_is_checked_without_the_required_arguments() {
        assert!(with_text(command(), "[sub]\ncount = 1\njson = true").is_ok());
        assert!(problem("[sub]\ncount = 0").starts_with("2:9: `count`: "));
    }

    #[test]
    fn a_switch_of_crawlers_does_not_name_the_file_of_a_probe() {
        let command = with_text(command(), "screenshot = true").unwrap();
        let words = ["tidings", "probe", "render", "http://a.example/"];
        let matches = command.clone().try_get_matches_from(words).unwrap();
        let probe = matches.subcommand_matches("probe").unwrap();
        let render = probe.subcommand_matches("render").unwrap();
        assert!(render.get_raw("typed_screenshot").is_none());
        assert!(command.try_get_matches_from(["tidings"]).unwrap().get_flag("screenshot"));
    }

    #[test]
    fn columns_are_characters() {
        assert_eq!(line_and_column("ä = 1\nöö=2", 0), (1, 1));
        assert_eq!(line_and_column("ä = 1\nöö=2", 11), (2, 3));
        assert_eq!(line_and_column("ab", 99), (1, 3));
    }
}

//! The command line: its definition, and messages for mistakes.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::error::{ContextKind, Error, ErrorKind};
use clap::parser::ValueSource;
use clap::{
    ArgAction, ArgMatches, Args, Command, CommandFactory, FromArgMatches, Id, Parser, Subcommand,
};
use tidings_protocol::ProtocolError;

use crate::client::broker_message;
use crate::client::manage::OutputFlags;
#[cfg(feature = "_zmq")]
use crate::commands::bridge::Bridge;
#[cfg(feature = "cluster")]
use crate::commands::cluster::Cluster;
use crate::commands::completions::names::LastWord;
use crate::commands::config::Config;
use crate::commands::context::ContextCommand;
use crate::commands::dead::Dead;
use crate::commands::group::Group;
use crate::commands::host::Host;
use crate::commands::identity::IdentityCommand;
use crate::commands::job::Job;
use crate::commands::probe::Probe;
use crate::commands::token::Token;
use crate::commands::topic::Topic;
use crate::commands::{self};
use crate::config::ConfigFile;
use crate::config::contexts::Context;
use crate::flags::address::BrokerAddress;
use crate::flags::arguments::{env_variable, one_line_message, subcommand_of};
use crate::process::logging;
use crate::services::server_flags::ServerFlags;
use crate::terminal::failure::Failure;
use crate::terminal::output::printable;

mod absent;
mod help;
pub(crate) mod server_config;
mod wrapping;

const ABOUT: &str = "\
A notification broker with polite web crawlers.

Each line that nc sends is an event for all subscribers; crawlers fetch its URL and store the page.
Without a subcommand, `tidings` is `tidings up`: broker and crawler in one process, with their data
in ./tidings-data. `tidings up --help` lists all its flags, `-h` the most common ones of a command.";

/// The limit in characters of a wrong value in a message.
const VALUE_CHARS_MAX: usize = 300;

const EXAMPLES: &str = "\
Examples:
  tidings                                            broker and crawler, on 127.0.0.1:12345
  echo https://example.org/ | nc -N 127.0.0.1 12345  fetch that page
  tidings crawl https://example.org/ --depth 2       crawl a site, with a summary at the end
  tidings sub new-url                                print events as they arrive
  tidings pub file-ready /srv/out/report.pdf         announce a file to all subscribers
  tidings watch /srv/out                             announce every complete file
  tidings explain example.org                        why this host waits

Every flag is also an environment variable (TIDINGS_ALLOW_PRIVATE for --allow-private) and a key of
the file of --config (allow-private). A flag overrides the environment, which overrides the context
(tidings context), which overrides the file. `tidings completions` makes the Tab key complete
commands, flags and names.

Exit codes: 0 success; 1 failure, or some pages failed; 2 wrong flag, address or configuration;
130 interrupted by Ctrl-C.";

/// The command line.
#[derive(Debug, Parser)]
#[command(name = "tidings", version, about = ABOUT, after_help = EXAMPLES)]
#[command(subcommand_help_heading = "Subcommands")]
pub(crate) struct Cli {
    /// The flags of `up`, for `tidings` without a subcommand.
    #[command(flatten)]
    up: commands::up::UpArgs,

    #[command(flatten)]
    common: GeneralFlags,

    #[command(subcommand)]
    subcommand: Option<Cmd>,
}

/// The flags of every subcommand.
#[derive(Debug, Args)]
#[command(next_help_heading = "General options")]
pub(crate) struct GeneralFlags {
    /// Read settings from this TOML file
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) config: Option<PathBuf>,

    /// Log level: error, warn, info, debug or trace; or a filter such as
    /// `info,tidings_broker=debug` [default: warn]
    #[arg(long, value_name = "FILTER", global = true, value_parser = logging::parse_filter)]
    pub(crate) log: Option<String>,

    /// Write logs as JSON
    #[arg(long, global = true, hide_short_help = true)]
    pub(crate) log_json: bool,
}

/// A subcommand with its flags.
#[derive(Debug, Subcommand)]
pub(crate) enum Cmd {
    /// Run a broker and a crawler in one process (same as `tidings` alone)
    Up(commands::up::UpArgs),
    /// Run only the broker
    Broker(commands::broker::BrokerArgs),
    /// Several brokers on machines of their own, with a shared log in NATS
    #[cfg(feature = "cluster")]
    #[command(subcommand)]
    Cluster(Cluster),
    /// Crawl URLs as a job, or fetch for a broker until stopped
    Crawl(commands::crawl::CrawlArgs),
    /// Publish the arguments, or the lines of standard input
    Pub(commands::publish::PubArgs),
    /// Print the events of a topic, or run a program for each
    Sub(commands::subscribe::SubArgs),
    /// Announce files in directories when they are complete
    Watch(commands::watch::WatchArgs),
    /// List, configure, delete and verify topics
    #[command(subcommand)]
    Topic(Topic),
    /// Check a data directory: topics, groups, catalog and databases
    Verify(commands::verify::VerifyArgs),
    /// Manage tokens and permissions
    #[command(subcommand)]
    Token(Token),
    /// Create and rotate the keys with which a crawler signs its requests
    #[command(subcommand)]
    Identity(IdentityCommand),
    /// List, inspect, configure, pause and purge groups
    #[command(subcommand)]
    Group(Group),
    /// Open jobs, add seeds; watch, pause and cancel jobs
    #[command(subcommand)]
    Job(Job),
    /// Say whether all is well, with the figures of a broker on one screen
    #[command(after_help = commands::status::EXAMPLES)]
    Status(OutputFlags),
    /// Show groups, jobs and topics on a full screen, as they change
    #[cfg(feature = "top")]
    Top(commands::top::TopArgs),
    /// Print `healthy` or `unhealthy`, for containers and monitors
    Health(commands::health::HealthArgs),
    /// Print the address of the dashboard, with a token that expires
    Dashboard(commands::dashboard::DashboardArgs),
    /// Block, pause and slow hosts
    #[command(subcommand)]
    Host(Host),
    /// Explain why a URL or a host waits and what comes next
    Explain(commands::explain::ExplainArgs),
    /// List, retry or drop dead letters
    #[command(subcommand)]
    Dead(Dead),
    /// Watch feeds; announce and fetch their new items
    WatchFeed(commands::watch_feed::WatchFeedArgs),
    /// Export pages of crawlers as JSON lines or as one database
    Export(commands::export::ExportArgs),
    /// Show how the crawler reads a URL, page, feed or robots.txt
    #[command(subcommand)]
    Probe(Probe),
    /// Publish messages of another system
    #[cfg(feature = "_zmq")]
    #[command(subcommand)]
    Bridge(Bridge),
    /// Print a script that completes commands, flags and names in a shell
    #[command(visible_alias = "completion")]
    Completions(commands::completions::CompletionsArgs),
    /// Write the manual pages
    Man(commands::man::ManArgs),
    /// Name brokers, with the flags to connect to them
    #[command(subcommand)]
    Context(ContextCommand),
    /// Check or print the configuration
    #[command(subcommand)]
    Config(Config),
    /// Run the ZeroMQ process (internal)
    #[cfg(feature = "_zmq")]
    #[command(hide = true)]
    Zmq(commands::zmq::ZmqArgs),
    /// Measure the performance of a broker
    #[cfg(feature = "bench")]
    #[command(subcommand, after_help = commands::bench::EXAMPLES)]
    Bench(commands::bench::Bench),
}

impl Cmd {
    /// The flags of a command that runs a broker for other processes.
    pub(crate) fn server(&self) -> Option<&ServerFlags> {
        match self {
            Self::Up(args) => Some(&args.server),
            Self::Broker(args) => Some(&args.server),
            _ => None,
        }
    }
}

/// A command line that was understood.
#[derive(Debug)]
pub(crate) struct Parsed {
    pub(crate) common: GeneralFlags,
    pub(crate) cmd: Cmd,
    /// The configuration file, if one is named.
    pub(crate) file: Option<ConfigFile>,
    /// The long names and values of the flags that were typed.
    pub(crate) typed: BTreeMap<String, Vec<String>>,
}

/// The definition of the command line, with a variable in the environment for every flag.
pub(crate) fn command() -> Command {
    fn with_environment(command: Command) -> Command {
        let command = command.mut_args(|arg| match env_variable(&arg) {
            Some(variable) => arg.env(variable).hide_env(true),
            None => arg,
        });
        command.mut_subcommands(with_environment)
    }
    wrapping::fit_command(with_environment(definition()), wrapping::width())
}

/// The definition without environment variables.
pub(crate) fn definition() -> Command {
    fn with_switches(command: Command) -> Command {
        let command = command.mut_args(|arg| match arg.get_action() {
            ArgAction::SetTrue => arg.value_parser(BoolishValueParser::new()),
            _ => arg,
        });
        command.mut_subcommands(with_switches)
    }
    help::arrange(with_switches(Cli::command()))
}

/// Parses a command line (the first word is the program), with the environment and the
/// configuration file as defaults.
pub(crate) fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Parsed, Failure> {
    let words: Vec<_> = words.into_iter().collect();
    let refuse = |error: Error| failure_of(&words, &error);
    // `tidings config` reports all problems of the environment and the file, so they must not end
    // it here.
    let plain = definition().try_get_matches_from(&words).ok();
    if let Some(plain) = plain.filter(|plain| plain.subcommand_name() == Some("config")) {
        let Cli { mut common, subcommand, .. } = Cli::from_arg_matches(&plain).map_err(refuse)?;
        common.config =
            common.config.or_else(|| std::env::var_os("TIDINGS_CONFIG").map(Into::into));
        let cmd = subcommand.expect("it has just been found");
        return Ok(Parsed { common, cmd, file: None, typed: BTreeMap::new() });
    }
    let (mut matches, file) = match_words(command(), &words)?;
    let path = matches.subcommand().map(|(name, deeper)| (name, deeper.subcommand_name()));
    if path == Some(("context", Some("add"))) {
        // A context has only what was typed, and nothing of this shell or of a file.
        matches = definition().try_get_matches_from(&words).map_err(refuse)?;
    }
    if let Some(subcommand) = matches.subcommand_name() {
        reject_misplaced_flags(subcommand, &matches)?;
    }
    let cli = Cli::from_arg_matches(&matches).map_err(refuse)?;
    let mut cmd = cli.subcommand.unwrap_or(Cmd::Up(cli.up));
    let section = server_config::section_of(&cmd);
    let tables = file.as_ref().map(|file| file.tables(&[section])).unwrap_or_default();
    match (&mut cmd, matches.subcommand()) {
        (Cmd::Up(args), _) => args.server.set_tables(tables),
        (Cmd::Broker(args), _) => args.server.set_tables(tables),
        (Cmd::Crawl(crawl), Some((_, matches))) => crawl.typed_flags = typed_flags(matches),
        (Cmd::Health(health), Some((_, matches))) => {
            health.typed_flags = typed_flags(matches);
            health.ca = matches.get_one::<PathBuf>("ca").cloned();
        }
        (Cmd::Topic(Topic::Verify(verify)), Some((_, matches))) => {
            let matches = matches.subcommand().map(|(_, matches)| matches);
            verify.offline =
                matches.is_some_and(|matches| typed_flags(matches).contains(&"data".into()));
        }
        _ => {}
    }
    let all = [Some(&matches), matches.subcommand().map(|(_, matches)| matches)];
    let typed = all.into_iter().flatten().flat_map(typed_values).collect();
    Ok(Parsed { common: cli.common, cmd, file, typed })
}

/// Matches the words, with the environment, the context and the configuration file as defaults. If a
/// token of a file or context is for another broker, a refusal of the broker will say so.
fn match_words(
    mut command: Command,
    words: &[OsString],
) -> Result<(ArgMatches, Option<ConfigFile>), Failure> {
    let refuse = |error: Error| failure_of(words, &error);
    let plain = command.clone();
    let mut matches = command.clone().try_get_matches_from(words).map_err(refuse)?;
    let path = matches.get_one::<PathBuf>("config");
    let mut file = path.map(|path| ConfigFile::read(path, &definition())).transpose()?;
    let mut unsent = None;
    if let Some(file) = &mut file {
        let (names, own) = subcommand_of(&matches);
        unsent = file.withhold_token(&names, named_broker(own));
        command = file.apply(command)?;
        matches = command.clone().try_get_matches_from(words).map_err(refuse)?;
    }
    let context = Context::of(&command, &matches)?;
    if let Some(file) = &file {
        let (names, own) = subcommand_of(&matches);
        let misfits = file.misfits(&plain, &names, Some(own), context.is_some());
        if let Some(problem) = misfits.into_iter().next() {
            return Err(Failure::Usage(problem));
        }
    }
    if let Some(context) = context {
        matches = context.apply(command).try_get_matches_from(words).map_err(refuse)?;
    } else {
        let (_, own) = subcommand_of(&matches);
        let of_context = || Context::unsent_token(own, named_broker(own)?);
        if let Some(reason) = unsent.or_else(of_context) {
            broker_message::explain_unsent_token(reason);
        }
    }
    Ok((matches, file))
}

/// The broker that a flag or a variable names.
fn named_broker(matches: &ArgMatches) -> Option<&BrokerAddress> {
    let broker = matches.try_get_one("broker").ok()??;
    (matches.value_source("broker") != Some(ValueSource::DefaultValue)).then_some(broker)
}

/// The names that may stand at the end of a line which is being typed, such as
/// `tidings topic show ne`.
pub(crate) async fn names_for(line: &str) -> Vec<String> {
    let mut words: Vec<_> = line.split_whitespace().collect();
    if line.ends_with(char::is_whitespace) {
        words.push("");
    }
    // Other words may stand before the program.
    let is_program = |word: &&str| word.rsplit('/').next() == Some("tidings");
    let first = words.iter().position(is_program).unwrap_or(0);
    let words = &words[first..];
    let mut definition = definition();
    // Gives the general flags to all subcommands.
    definition.build();
    let Some(last) = LastWord::find(&definition, words) else { return Vec::new() };
    let before: Vec<_> = words[..words.len() - 1].iter().map(OsString::from).collect();
    match match_words(command().ignore_errors(true), &before) {
        Ok((matches, _)) => last.names(&matches).await,
        Err(_) => Vec::new(),
    }
}

/// Long names of the flags that were typed, as opposed to set by environment, file or default.
fn typed_flags(matches: &ArgMatches) -> Vec<String> {
    typed_values(matches).map(|(name, _)| name).collect()
}

/// The same with their values.
fn typed_values(matches: &ArgMatches) -> impl Iterator<Item = (String, Vec<String>)> {
    let ids = matches.ids().map(Id::as_str);
    let typed = ids.filter(|id| matches.value_source(id) == Some(ValueSource::CommandLine));
    typed.map(|id| {
        let values = matches.get_raw(id).into_iter().flatten();
        let values = values.map(|value| value.to_string_lossy().into_owned());
        (id.replace('_', "-"), values.collect())
    })
}

/// Rejects flags before the subcommand: `tidings --listen X broker` would set a flag of `tidings
/// up` and ignore it.
fn reject_misplaced_flags(subcommand: &str, matches: &ArgMatches) -> Result<(), Failure> {
    let up = commands::up::UpArgs::augment_args(Command::new("up"));
    let typed = typed_flags(matches);
    let misplaced = up
        .get_arguments()
        .filter_map(|arg| arg.get_long())
        .find(|long| typed.iter().any(|name| name == long));
    misplaced.map_or(Ok(()), |long| {
        Err(Failure::Usage(format!(
            "--{long} stands before `{subcommand}` and would be ignored; write it after the subcommand: \
             tidings {subcommand} --{long} .."
        )))
    })
}

/// The failure for a command line that did not parse, or the help text.
fn failure_of(words: &[OsString], error: &Error) -> Failure {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            Failure::Help(error.render().to_string())
        }
        kind => {
            let (mut name, definition) = (String::new(), definition());
            let mut command = &definition;
            for word in words.iter().skip(1).filter_map(|word| word.to_str()) {
                if let Some(subcommand) = command.find_subcommand(word) {
                    name.push(' ');
                    name.push_str(word);
                    command = subcommand;
                }
            }
            let problem = match kind {
                ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
                    "a subcommand or an argument is missing".to_owned()
                }
                _ => invalid_value_message(error).unwrap_or_else(|| one_line_message(error)),
            };
            let hint = match kind {
                ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand => {
                    absent::hint(words).or_else(|| detached_value_hint(words, command))
                }
                _ => None,
            };
            let hint = hint.unwrap_or_default();
            Failure::Usage(format!("{problem}{hint} (see tidings{name} --help)"))
        }
    }
}

/// The hint for a flag with a value that must follow an equals sign, and does not.
fn detached_value_hint(words: &[OsString], command: &Command) -> Option<String> {
    let accepts = |flag: &str, value: &str| {
        let mut arguments = command.get_arguments().filter(|arg| arg.is_require_equals_set());
        let typed = ["tidings".to_owned(), format!("--{flag}={value}")];
        let is_valid = || match command.clone().try_get_matches_from(typed) {
            Ok(_) => true,
            Err(error) => error.kind() != ErrorKind::ValueValidation,
        };
        arguments.any(|arg| arg.get_long() == Some(flag)) && !value.starts_with('-') && is_valid()
    };
    words.windows(2).find_map(|pair| {
        let (flag, value) = (pair[0].to_str()?.strip_prefix("--")?, pair[1].to_str()?);
        let shown = printable(value, VALUE_CHARS_MAX);
        accepts(flag, value)
            .then(|| format!("; a value of --{flag} follows an equals sign: --{flag}={shown}"))
    })
}

/// `--flag value: what is expected`, if a parser of this program rejected the value.
fn invalid_value_message(error: &Error) -> Option<String> {
    let context = |kind| error.get(kind).map(ToString::to_string);
    let reason = std::error::Error::source(error)?;
    let reason = match reason.downcast_ref::<ProtocolError>() {
        Some(error) => broker_message::flag_value_error(&error.text),
        None => reason.to_string(),
    };
    let (arg, value) = (context(ContextKind::InvalidArg)?, context(ContextKind::InvalidValue)?);
    let flag = arg.split([' ', '[', '=']).next().filter(|word| word.starts_with("--"));
    let flag = flag.map_or(String::new(), |flag| format!("{flag} "));
    // Replaces the standard library's words for an invalid number.
    let reason = reason.replace("invalid digit found in string", "write a whole number");
    let (value, reason) = (printable(&value, VALUE_CHARS_MAX), printable(&reason, usize::MAX));
    Some(format!("{flag}{value}: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_words(words: &str) -> Result<Parsed, Failure> {
        parse(words.split_whitespace().map(OsString::from))
    }

    fn usage(words: &str) -> String {
        match parse_words(words) {
            Err(Failure::Usage(text)) => text,
            other => panic!("{words}: {other:?}"),
        }
    }

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn no_subcommand_means_up() {
        assert!(matches!(parse_words("tidings").unwrap().cmd, Cmd::Up(_)));
        assert!(matches!(parse_words("tidings --data d").unwrap().cmd, Cmd::Up(_)));
        assert!(matches!(parse_words("tidings up").unwrap().cmd, Cmd::Up(_)));
    }

    #[test]
    fn a_usage_error_is_one_line_with_a_hint() {
        for words in [
            "tidings --lisen 127.0.0.1:1",
            "tidings brocker",
            "tidings crawl --depth x http://a.example/",
            "tidings up --listen nonsense",
            "tidings pub",
            "tidings topic",
            "tidings topic create t sync=no",
            "tidings group",
            "tidings group set crawlers delay=soon",
            "tidings group tasks --state lost",
            "tidings job open j scope=galaxy",
            "tidings job add j not-a-url",
            "tidings job wait",
            "tidings explain a b",
            "tidings dead drop",
            "tidings dead retry 1 --all",
            "tidings watch-feed",
            "tidings watch",
            "tidings watch --spool d --all",
            "tidings watch d --pattern a/b",
            "tidings sub t --signal KILL --pid-file p --spool d",
            "tidings sub t --jobs 3",
            "tidings export --format csv",
            "tidings export --format sqlite",
            "tidings watch-feed http://a.example/ --list",
            "tidings watch-feed http://a.example/ --data d",
        ] {
            let text = usage(words);
            assert!(!text.contains('\n'), "{text}");
            assert!(text.contains("--help)"), "{text}");
        }
        assert_eq!(
            usage("tidings up --lisen 127.0.0.1:1"),
            "unexpected argument '--lisen' found; a similar argument exists: '--listen' \
             (see tidings up --help)"
        );
    }

    #[test]
    fn an_unknown_flag_is_not_suggested_as_a_value() {
        for words in ["tidings crawl --max-pages -1 http://a.example/", "tidings pub t x --y"] {
            let text = usage(words);
            assert!(text.contains(" found (see tidings ") && !text.contains("-- -"), "{text}");
        }
    }

    #[test]
    fn a_wrong_value_is_shown_without_protocol_words() {
        assert_eq!(
            usage("tidings sub t --from yesterday"),
            "--from yesterday: expected first, last, a number, -N or a time such as \
             2026-01-31T12:00:00Z (see tidings sub --help)"
        );
        let text = usage("tidings topic create t sync=maybe");
        assert!(text.starts_with("sync=maybe: "), "{text}");
        let text = usage("tidings crawl --depth x http://a.example/");
        assert_eq!(text, "--depth x: write a whole number (see tidings crawl --help)");
    }

    #[test]
    fn a_value_without_its_equals_sign_is_reported_with_the_right_form() {
        let hint = "a value of --allow-private follows an equals sign: --allow-private=10.0.0.0/8";
        for words in ["tidings", "tidings up", "tidings probe feed"] {
            let text = usage(&format!("{words} --allow-private 10.0.0.0/8 x"));
            assert!(text.contains(hint), "{text}");
        }
        for words in ["tidings up --quiet 10.0.0.0/8", "tidings --allow-private brocker"] {
            let text = usage(words);
            assert!(!text.contains("equals sign"), "{text}");
        }
        // It might be a seed; seeds are read later.
        assert!(parse_words("tidings crawl --allow-private 10.0.0.0/8").is_ok());
    }

    #[test]
    fn help_of_token_commands_lists_permissions() {
        for words in ["tidings token create --help", "tidings token set --help"] {
            let Err(Failure::Help(text)) = parse_words(words) else { panic!("{words}") };
            assert!(text.contains("pub:TOPIC") && text.contains("url:PREFIX"), "{text}");
        }
    }

    #[test]
    fn a_flag_before_the_subcommand_is_rejected() {
        let text = usage("tidings --listen 127.0.0.1:1 broker");
        assert!(text.contains("tidings broker --listen"), "{text}");
        assert!(parse_words("tidings --log-json broker").unwrap().common.log_json);
        assert!(parse_words("tidings broker --log-json").unwrap().common.log_json);
    }

    #[test]
    fn only_a_typed_data_flag_verifies_offline() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "data = 'd'").unwrap();
        let config = format!("--config {}", file.path().display());
        for (words, offline) in [("--data d", true), ("", false), (config.as_str(), false)] {
            let parsed = parse_words(&format!("tidings topic verify {words}")).unwrap();
            let Cmd::Topic(Topic::Verify(verify)) = parsed.cmd else { panic!("{words}") };
            assert_eq!(verify.offline, offline, "{words:?}");
        }
    }

    #[test]
    fn help_and_version_are_not_errors() {
        for words in
            ["tidings --help", "tidings crawl -h", "tidings help topic set", "tidings --version"]
        {
            assert!(matches!(parse_words(words), Err(Failure::Help(_))), "{words}");
        }
    }

    #[test]
    fn a_missing_configuration_file_is_a_usage_error_wherever_it_is_named() {
        for words in
            ["tidings --config /no/such/file sub t", "tidings sub --config /no/such/file t"]
        {
            assert!(usage(words).contains("/no/such/file"), "{words}");
        }
    }
}

//! Arranges the help of commands with many flags: `-h` shows the flags that most users need,
//! `--help` shows all of them under headings.

use clap::Command;

use crate::flags::arguments::connects;

/// A heading and the long names of its flags.
type Section = (&'static str, &'static str);

/// The flags that `-h` lists, by the name of the command; the others appear only in `--help`.
const SHORT: &[(&str, &str)] = &[
    ("up", UP),
    // Without a subcommand, `tidings` is `tidings up`.
    ("tidings", UP),
    ("broker", "listen http data delay sync retain-bytes tls-cert tls-key public-url audit"),
    ("crawl", "seeds depth max-pages scope include exclude delay broker data allow-private"),
    ("sub", "from no-follow as count json group jobs exec broker token-file"),
    ("watch", "topic pattern recursive once new-only settle spool data quiet broker"),
];

const UP: &str =
    "listen http data quiet delay contact allow-private concurrency retain-bytes jsonl";

/// Flags of almost every command.
const CONNECTION: Section =
    ("Connection to the broker", "context tls ca crl cert cert-key token-file");

/// Flags of [`CONNECTION`] that only `--help` lists.
const CERTIFICATES: &str = "ca crl cert cert-key";

/// Flags of the commands that run a broker or a crawler.
const SERVER: &[Section] = &[
    ("Job", "job seeds strict-seeds depth max-pages max-per-host max-time scope include exclude"),
    (
        "Network",
        "listen http crawler-http http-token-file http-host dashboard public-url unix unix-mode",
    ),
    ("Storage of the broker", "data sync retain-bytes retain-age"),
    ("TLS", "tls-cert tls-key client-ca client-crl"),
    ("Login and permissions", "strangers notifier insecure require-login grant"),
    ("Limits", "limit limit-loopback hook-events"),
    ("Politeness", "delay agent contact per-address never"),
    ("Signed identity", "sign-key sign-agent sign-form"),
    (
        "Fetching",
        "concurrency timeout max-body header cookies refetch ignore proxy allow-private images \
         sitemaps tracking-params",
    ),
    (
        "Feeds, hubs and callbacks",
        "no-websub websub-sha1 websub-lease hub hub-publishers hub-lease hub-lease-max \
         hub-subscribers hub-failures hub-rate callback-secret-file",
    ),
    (
        "Process and logs",
        "user group landlock stop-timeout max-tasks max-age threads log-lines audit pid-file",
    ),
    ("Output", "quiet json"),
];

const SUB: &[Section] = &[
    ("Shared work", "group jobs timeout"),
    ("Programs", "exec exec-env"),
    ("Signals", "signal pid-file spool program spool-max"),
];

/// Whether a list of flags has this one.
fn has(flags: &str, long: &str) -> bool {
    flags.split(' ').any(|flag| flag == long)
}

/// Adds headings to a command, and a short help if it has many flags.
pub(super) fn arrange(command: Command) -> Command {
    let name = command.get_name().to_owned();
    let sections = match name.as_str() {
        "tidings" | "up" | "broker" | "crawl" => SERVER,
        "sub" => SUB,
        _ => &[],
    };
    let short = SHORT.iter().find(|(of, _)| *of == name).map(|(_, flags)| *flags);
    // `--tls` of `bench` is another flag.
    let connects = connects(&command);
    let command = command.mut_args(|arg| {
        let Some(long) = arg.get_long().map(str::to_owned) else { return arg };
        let is_in = |(_, flags): &&Section| has(flags, &long);
        let section = sections.iter().chain(connects.then_some(&CONNECTION)).find(is_in);
        let arg = match section {
            Some((heading, _)) => arg.help_heading(*heading),
            None => arg,
        };
        let is_hidden = match short {
            Some(flags) => !has(flags, &long),
            None => connects && has(CERTIFICATES, &long),
        };
        // Subcommands have the general flags, too; the others are in `tidings up --help`.
        let is_of_up = name == "tidings" && !arg.is_global_set();
        // A flag that is hidden by its definition stays so.
        if is_hidden { arg.hide_short_help(true).hide_long_help(is_of_up) } else { arg }
    });
    with_short_examples(command).mut_subcommands(arrange)
}

/// `-h` ends after the examples; the text behind them appears only in `--help`.
fn with_short_examples(command: Command) -> Command {
    let text = command.get_after_help().map(ToString::to_string);
    let Some((examples, _)) = text.as_deref().and_then(|text| text.split_once("\n\n")) else {
        return command;
    };
    let examples = examples.to_owned();
    command.after_help(examples).after_long_help(text.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;
    use crate::cli;

    /// Whether a help text lists this flag.
    fn lists(help: &str, flag: &str) -> bool {
        let flag = format!("--{flag}");
        help.lines().any(|line| line.split([' ', '[', '=']).any(|word| word == flag))
    }

    fn command(name: &str) -> Command {
        let mut command = cli::command();
        command.build();
        command.find_subcommand(name).unwrap().clone()
    }

    #[test]
    fn the_short_help_names_ten_flags_that_exist() {
        for (name, flags) in SHORT.iter().filter(|(name, _)| *name != "tidings") {
            let mut command = command(name);
            let short = command.render_help().to_string();
            assert_eq!(flags.split(' ').count(), 10, "{name}");
            for flag in flags.split(' ') {
                assert!(lists(&short, flag), "{name}: no --{flag}: {short}");
            }
            let all = command.get_arguments().filter(|arg| arg.get_long().is_some()).count();
            let seen = command.get_arguments().filter(|arg| {
                arg.get_long().is_some() && !arg.is_hide_short_help_set() && !arg.is_hide_set()
            });
            // The ten flags, and `--config`, `--log` and `--help`.
            assert!(seen.count() <= 14 && all > 14, "{name}: {short}");
        }
    }

    #[test]
    fn the_long_help_has_every_flag_under_a_heading() {
        for name in ["up", "broker", "crawl"] {
            let mut command = command(name);
            let long = command.render_long_help().to_string();
            for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
                let Some(flag) = arg.get_long().filter(|flag| *flag != "help") else { continue };
                assert!(long.contains(&format!("--{flag}")), "{name}: no --{flag}");
                let is_main = name == "crawl" && flag == "broker" || flag == "version";
                assert!(arg.get_help_heading().is_some() || is_main, "{name}: --{flag}");
            }
            for heading in ["Network:", "Politeness:", "TLS:", "Limits:"] {
                let is_of_broker = heading != "Politeness:" && name == "crawl";
                assert!(is_of_broker || long.contains(heading), "{name}: no {heading}");
            }
        }
    }

    #[test]
    fn the_help_without_a_subcommand_leaves_most_flags_to_up() {
        let help = cli::command().render_long_help().to_string();
        let listed = |flag: &&str| lists(&help, flag);
        let others = ["sync", "unix", "max-age", "websub-lease", "tls-cert"];
        assert_eq!(others.iter().filter(|flag| listed(flag)).count(), 0, "{help}");
        assert!(UP.split(' ').all(|flag| listed(&flag)), "{help}");
        assert!(["config", "log", "log-json"].iter().all(listed), "{help}");
        let begin = help.split_once("Usage:").expect("it has a usage").0;
        assert!(begin.contains("`tidings up --help`") && begin.contains("`-h`"), "{begin}");
    }

    /// Every help text, with the name of its command above it.
    fn all_help(command: &mut Command, out: &mut String) {
        let help = command.render_long_help();
        writeln!(out, "# {}\n{help}", command.get_name()).unwrap();
        command.get_subcommands_mut().for_each(|sub| all_help(sub, out));
    }

    /// `.ci/long features` runs this test again without the features.
    #[test]
    fn a_feature_that_is_off_leaves_nothing_in_the_help() {
        let mut command = cli::command();
        command.build();
        let mut help = String::new();
        all_help(&mut command, &mut help);
        let zmq = cfg!(feature = "_zmq");
        for (text, is_on) in [
            ("--hub", cfg!(feature = "hub")),
            ("--postgres", cfg!(feature = "postgres")),
            ("--zmq-pub", zmq),
            ("# bridge\n", zmq),
            ("# zmq\n", zmq),
            ("--zmq-key", cfg!(feature = "libzmq")),
        ] {
            assert_eq!(help.contains(text), is_on, "{text}");
        }
        for (text, is_on) in [("zmq", zmq), ("postgres", cfg!(feature = "postgres"))] {
            assert!(is_on || !help.to_lowercase().contains(text), "{text}: {help}");
        }
    }

    #[cfg(not(feature = "hub"))]
    #[test]
    fn a_flag_and_a_key_of_an_absent_feature_are_unknown() {
        let problem = |word: &str| {
            let parsed = cli::parse(["tidings", word].map(Into::into));
            parsed.expect_err("it is unknown").text().unwrap_or_default()
        };
        let text = problem("--hub=http://a.example/");
        assert!(text.starts_with("unexpected argument '--hub'"), "{text}");
        let file = tempfile::NamedTempFile::new().unwrap();
        let config = format!("--config={}", file.path().display());
        std::fs::write(file.path(), "hub = ['http://a.example/']").unwrap();
        let hub = problem(&config);
        std::fs::write(file.path(), "nonsense = ['http://a.example/']").unwrap();
        assert_eq!(hub, problem(&config).replace("nonsense", "hub"));
    }

    #[test]
    fn help_is_in_plain_words() {
        fn check(command: &Command) {
            let texts = command
                .get_arguments()
                .filter_map(|arg| arg.get_help())
                .chain(command.get_about())
                .map(ToString::to_string);
            for text in texts {
                for word in text.to_lowercase().split(|c: char| !c.is_alphabetic()) {
                    let unwanted =
                        ["who", "whoever", "whose", "whom", "nobody", "somebody", "told"];
                    assert!(!unwanted.contains(&word), "{}: {text}", command.get_name());
                }
            }
            command.get_subcommands().for_each(check);
        }
        check(&cli::command());
    }
}

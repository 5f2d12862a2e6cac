//! `tidings config`: shows the effective configuration and reports its mistakes.

use std::ffi::OsString;
use std::path::Path;

use clap::{Args, Command, Subcommand};

use crate::config::{
    ConfigFile, as_file, context_of, environment_problems, find_subcommand, settings,
};
use crate::terminal::failure::Failure;
use crate::terminal::output::{self, note, plural};

const CHECK: &str = "\
Exit codes: 0 the configuration is valid; 2 it is not. Each mistake is a line on standard error,
with file, line and column, or the environment variable. For up and broker, what flags name is
checked too, if that changes nothing: the certificates and keys of TLS, access.toml, --never,
--sign-key, the secrets of webhooks, pushes and callbacks, the directories of --audit and --unix, and
--user and --group. It opens no port and no database.";

const SHOW: &str = "\
The output is an equivalent configuration file. A comment behind each value names its origin: a
variable, file and line, or the default. Passwords and headers with secrets are left out.";

/// The subcommands of `tidings config`.
#[derive(Debug, Subcommand)]
pub(crate) enum Config {
    /// Report every mistake in the configuration file and the environment
    #[command(after_help = CHECK)]
    Check(SubcommandArg),
    /// Print the value of each flag and its origin
    #[command(after_help = SHOW)]
    Show(SubcommandArg),
}

/// The subcommand that is checked.
#[derive(Debug, Args)]
pub(crate) struct SubcommandArg {
    /// The subcommand to check
    #[arg(value_name = "SUBCOMMAND", default_values = ["up"])]
    subcommand: Vec<String>,
}

/// The problems of the configuration of the server that these words would start.
pub(crate) type CheckServer = fn(Vec<OsString>) -> Vec<String>;

/// The values of the file that do not fit together for this subcommand.
pub(crate) type Misfits = fn(&ConfigFile, names: &[&str], with_context: bool) -> Vec<String>;

/// Reads the file and the environment, by the definition of the command line; starts nothing.
pub(crate) fn run(
    what: &Config,
    path: Option<&Path>,
    definition: &Command,
    check_server: CheckServer,
    misfits: Misfits,
) -> Result<(), Failure> {
    let (Config::Check(of) | Config::Show(of)) = what;
    let names: Vec<_> = of.subcommand.iter().map(String::as_str).collect();
    let shown = names.join(" ");
    if find_subcommand(definition, &names).is_none_or(Command::is_hide_set) {
        return Err(Failure::Usage(format!("unknown subcommand {shown:?}; see tidings --help")));
    }
    let mut file = path.map(|path| ConfigFile::read(path, definition)).transpose()?;
    let mut problems: Vec<_> = file.iter().flat_map(ConfigFile::problems).collect();
    problems.extend(environment_problems(definition, &names));
    let mut context = None;
    if problems.is_empty() {
        context = context_of(definition, &names, file.as_ref())?;
        let has_context = context.is_some();
        problems.extend(file.iter().flat_map(|file| misfits(file, &names, has_context)));
    }
    if problems.is_empty() {
        problems.extend(server_problems(&names, path, check_server));
    }
    if !problems.is_empty() {
        for problem in &problems {
            note(problem);
        }
        return Err(Failure::Misconfigured);
    }
    let text = match what {
        Config::Show(_) => {
            if let Some(file) = &mut file {
                let broker = std::env::var("TIDINGS_BROKER").ok();
                file.withhold_token(&names, broker.and_then(|text| text.parse().ok()).as_ref());
            }
            let settings = settings(definition, &names, file.as_ref(), context.as_ref());
            as_file(&names, &settings)
        }
        Config::Check(_) => match &file {
            Some(file) => {
                let (path, keys) = (path.unwrap_or(Path::new("")).display(), file.key_count());
                format!("{path}: valid for tidings {shown}, {}\n", plural(keys as u64, "key"))
            }
            None => {
                format!("no configuration file; the environment is valid for tidings {shown}\n")
            }
        },
    };
    output::print_text(&text).map_err(Failure::from_output)
}

/// The problems of values that are valid one by one.
fn server_problems(names: &[&str], path: Option<&Path>, check_server: CheckServer) -> Vec<String> {
    if !matches!(names, ["up" | "broker"]) {
        return Vec::new();
    }
    let mut words = vec!["tidings".into()];
    if let Some(path) = path {
        words.extend(["--config".into(), path.into()]);
    }
    words.extend(names.iter().map(Into::into));
    check_server(words)
}

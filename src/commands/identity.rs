//! `tidings identity`: the keys with which a crawler signs its requests.

use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use jiff::Timestamp;
use tidings_signature::identity::{Identity, KeySummary};

use crate::client::manage::json_line;
use crate::process::atomic_file;
use crate::services::identity::{now_unix_s, parse, read};
use crate::terminal::failure::Failure;
use crate::terminal::output::Console;

const EXAMPLES: &str = "\
Examples:
  tidings identity create crawler.jwks
  tidings crawl https://example.org/ --sign-key crawler.jwks --sign-agent https://crawler.example
  tidings identity directory crawler.jwks
  tidings identity rotate crawler.jwks
  tidings identity rotate --now crawler.jwks

Sites find the public keys at /.well-known/http-message-signatures-directory of --sign-agent. A
broker with --http and --sign-key serves them there; or let any web server serve the output of
`directory`, as application/http-message-signatures-directory+json.

Exit codes: 0 success; 1 failure; 2 wrong usage.";

/// The subcommands of `tidings identity`.
#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub(crate) enum IdentityCommand {
    /// Create a file with a new key, which is valid for a year
    Create(FileArg),
    /// List the keys: which one signs, and how long each is valid
    Show(ShowArgs),
    /// Print the public keys
    Directory(FileArg),
    /// Add a key; it signs from tomorrow on, and the others expire a day after that
    ///
    /// Within this day, sites that keep an earlier directory fetch the new one. Running crawlers
    /// and brokers read the changed file.
    Rotate(RotateArgs),
}

/// The file of an identity.
#[derive(Debug, Args)]
pub(crate) struct FileArg {
    /// File of the keys, private and public: a JSON Web Key Set
    file: PathBuf,
}

/// The flags of `tidings identity show`.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    file: FileArg,

    /// Print one JSON object for each key
    #[arg(long)]
    json: bool,
}

/// The flags of `tidings identity rotate`.
#[derive(Debug, Args)]
pub(crate) struct RotateArgs {
    #[command(flatten)]
    file: FileArg,

    /// Drop all other keys, so that the new one signs at once: for a file that was stolen
    #[arg(long)]
    now: bool,
}

/// Printed after `rotate --now`.
const DROPPED_KEYS_WARNING: &str = "warning: sites that keep the earlier directory refuse this \
    crawler, and accept the dropped keys, until they fetch it again: for up to an hour if a broker \
    serves it; a directory on another web server must be written again now";

/// Runs a subcommand.
pub(crate) fn run(what: IdentityCommand) -> Result<(), Failure> {
    let now = now_unix_s();
    match what {
        IdentityCommand::Create(FileArg { file }) => {
            let identity = Identity::create(now);
            create(&file, &identity.to_private_text()).map_err(|error| failure(&file, &error))?;
            print_keys(&identity.summary(now), false)
        }
        IdentityCommand::Show(ShowArgs { file, json }) => {
            print_keys(&open(&file)?.summary(now), json)
        }
        IdentityCommand::Directory(file) => {
            Console::new().line(open(&file)?.directory(now).trim_end())
        }
        IdentityCommand::Rotate(RotateArgs { file: arg, now: drops_keys }) => {
            let mut identity = open(&arg)?;
            if drops_keys {
                // The file holds every key, so all of them are stolen.
                identity = Identity::create(now);
            } else {
                identity.rotate(now).map_err(|error| failure(&arg.file, &error))?;
            }
            atomic_file::replace(&arg.file, &identity.to_private_text())
                .map_err(|error| failure(&arg.file, &error))?;
            if drops_keys {
                Console::new().note(DROPPED_KEYS_WARNING);
            }
            print_keys(&identity.summary(now), false)
        }
    }
}

fn open(FileArg { file }: &FileArg) -> Result<Identity, Failure> {
    read(file).and_then(|text| parse(file, &text)).map_err(Failure::failed)
}

fn failure(file: &Path, error: &dyn fmt::Display) -> Failure {
    Failure::failed(format!("{}: {error}", file.display()))
}

/// Writes a new file, which only its owner may read. A file that exists is not replaced: its keys
/// would be lost.
fn create(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

fn print_keys(keys: &[KeySummary], json: bool) -> Result<(), Failure> {
    let mut console = Console::new();
    for key in keys {
        let KeySummary { id, begins_unix_s, ends_unix_s, signs } = key;
        let state = if *signs { "signs" } else { "does not sign" };
        console.line(&if json {
            json_line(key)
        } else {
            let (from, until) = (time(*begins_unix_s), time(*ends_unix_s));
            format!("{state}  from {from}  until {until}  {id}")
        })?;
    }
    Ok(())
}

fn time(unix_s: u64) -> String {
    i64::try_from(unix_s)
        .ok()
        .and_then(|unix_s| Timestamp::from_second(unix_s).ok())
        .map_or_else(|| unix_s.to_string(), |time| time.to_string())
}

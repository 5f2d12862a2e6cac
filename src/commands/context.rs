//! `tidings context`: names for brokers and the flags with which commands connect to them.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::client::manage::print_table;
use crate::config::contexts::{self, ContextFlags, Contexts};
use crate::flags::address::BrokerAddress;
use crate::flags::broker::SecurityFlags;
use crate::flags::parse_plain_name;
use crate::process::atomic_file::{self, DirectoryLock};
use crate::terminal::failure::Failure;
use crate::terminal::output::Console;

const EXAMPLES: &str = "\
Examples:
  tidings context add prod --broker broker.example:12345 --ca ca.pem --token-file operator.token
  tidings job ls --context prod     with the broker, the certificate and the token of prod
  tidings context use prod          from now on, for all commands that name no broker
  tidings context use               none again

The contexts are in ~/.config/tidings/contexts.toml (or below XDG_CONFIG_HOME). The file has the paths
of tokens and keys, not their contents. TIDINGS_CONTEXT names a context for a shell. A flag overrides
the environment, which overrides the context, which overrides the file of --config.

Exit codes: 0 success; 1 failure; 2 wrong usage, or an unknown context.";

/// The subcommands of `tidings context`.
#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub(crate) enum ContextCommand {
    /// Store the flags for a broker under a name
    Add(Box<AddArgs>),
    /// Use a context in all commands that name no broker; without a name, none
    Use(UseArgs),
    /// List all contexts
    #[command(alias = "list")]
    Ls(LsArgs),
    /// Show the flags of a context
    Show(ShowArgs),
    /// Remove a context
    Rm(RmArgs),
}

/// The flags of `tidings context add`.
#[derive(Debug, Args)]
pub(crate) struct AddArgs {
    /// The name: letters, digits, `.`, `_` and `-`
    #[arg(value_parser = parse_plain_name)]
    name: String,

    /// Address of the broker: HOST:PORT or unix:PATH
    #[arg(id = "typed_broker", long = "broker", value_name = "HOST:PORT", required = true)]
    broker: BrokerAddress,

    #[command(flatten)]
    security: SecurityFlags,
}

/// The flags of `tidings context use`.
#[derive(Debug, Args)]
pub(crate) struct UseArgs {
    /// The context
    #[arg(value_name = "CONTEXT")]
    name: Option<String>,
}

/// The flags of `tidings context ls`.
#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// Print one JSON object on each line
    #[arg(long)]
    json: bool,
}

/// The flags of `tidings context show`.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// The context [default: the one in use]
    #[arg(value_name = "CONTEXT")]
    name: Option<String>,

    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// The flags of `tidings context rm`.
#[derive(Debug, Args)]
pub(crate) struct RmArgs {
    /// The context
    #[arg(value_name = "CONTEXT")]
    name: String,
}

/// Runs the subcommand.
pub(crate) fn run(command: ContextCommand) -> Result<(), Failure> {
    match command {
        ContextCommand::Add(args) => {
            let name = args.name.clone();
            change(|contexts| add(contexts, *args))?;
            Console::new().line(&format!(
                "added {name}; use it with --context {name}, or in all commands with: \
                 tidings context use {name}"
            ))
        }
        ContextCommand::Use(UseArgs { name }) => change(|contexts| {
            if let Some(name) = &name {
                contexts.find(name)?;
            }
            contexts.current = name;
            Ok(())
        }),
        ContextCommand::Ls(LsArgs { json }) => ls(json),
        ContextCommand::Show(args) => show(args),
        ContextCommand::Rm(RmArgs { name }) => change(|contexts| {
            contexts.find(&name)?;
            contexts.all.remove(&name);
            contexts.current.take_if(|current| *current == name);
            Ok(())
        }),
    }
}

fn add(contexts: &mut Contexts, args: AddArgs) -> Result<(), Failure> {
    let AddArgs { name, broker, security } = args;
    if contexts.all.contains_key(&name) {
        let text = format!("context {name} exists; remove it with: tidings context rm {name}");
        return Err(Failure::failed(text));
    }
    let SecurityFlags { tls, ca, crl, cert, cert_key, token_file } = security;
    let absolute = |path: Option<PathBuf>| path.map(std::path::absolute).transpose();
    let flags = || {
        io::Result::Ok(ContextFlags {
            broker: broker.to_string(),
            tls: tls.then_some(true),
            ca: absolute(ca)?,
            crl: absolute(crl)?,
            cert: absolute(cert)?,
            cert_key: absolute(cert_key)?,
            token_file: absolute(token_file)?,
        })
    };
    let flags = flags().map_err(|error| Failure::failed(error.to_string()))?;
    contexts.all.insert(name, flags);
    Ok(())
}

/// Changes the file while no other command can.
fn change(change: impl FnOnce(&mut Contexts) -> Result<(), Failure>) -> Result<(), Failure> {
    let Some(path) = contexts::path() else {
        let text = "no place for contexts: set HOME or XDG_CONFIG_HOME to a directory";
        return Err(Failure::Usage(text.to_owned()));
    };
    let failed = |error| Failure::failed(format!("cannot write {}: {error}", path.display()));
    let _lock = lock(&path).map_err(failed)?;
    let mut contexts = Contexts::read()?;
    change(&mut contexts)?;
    let text = toml::to_string(&contexts).expect("names and flags are text");
    atomic_file::replace(&path, &text).map_err(failed)
}

fn lock(path: &Path) -> io::Result<DirectoryLock> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    if !fs::exists(folder)? {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    DirectoryLock::acquire(folder)
}

fn ls(json: bool) -> Result<(), Failure> {
    let contexts = Contexts::read()?;
    let mut console = Console::new();
    let is_current = |name: &str| contexts.current.as_deref() == Some(name);
    if json {
        let lines = contexts.all.iter().map(|(name, flags)| object(name, flags, is_current(name)));
        return lines.into_iter().try_for_each(|line| console.line(&line.to_string()));
    }
    let rows = contexts.all.iter().map(|(name, flags)| {
        let used = if is_current(name) { "yes" } else { "-" };
        vec![name.clone(), flags.broker.clone(), used.to_owned()]
    });
    print_table(&mut console, "CONTEXT BROKER USED", rows)
}

fn show(args: ShowArgs) -> Result<(), Failure> {
    let contexts = Contexts::read()?;
    let Some(name) = args.name.or(contexts.current.clone()) else {
        return Err(Failure::failed("no context is in use; name one (see tidings context ls)"));
    };
    let flags = contexts.find(&name)?;
    let mut console = Console::new();
    if args.json {
        let is_current = contexts.current.as_ref() == Some(&name);
        return console.line(&object(&name, flags, is_current).to_string());
    }
    console.line(&name)?;
    flags
        .pairs()
        .into_iter()
        .try_for_each(|(key, value)| console.line(&format!("  {key} = {value}")))
}

fn object(name: &str, flags: &ContextFlags, is_current: bool) -> Value {
    let mut object = json!({ "context": name, "used": is_current });
    for (key, value) in flags.pairs() {
        object[key] = value.into();
    }
    object
}

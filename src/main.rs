//! The `tidings` command: reads flags and configuration, connects broker and crawler, and prints
//! for people. The crates `tidings-broker` and `tidings-subscriber` do the work.
//!
//! Each folder imports only those after it in this list. The test `docs::modules` finds circles:
//!
//! 1. `cli`: the parser of the command line, help, and the configuration of a server
//! 2. `commands`: one module for each subcommand, with what only that subcommand uses
//! 3. `services`: flags and wiring of what runs in a server or crawler
//! 4. `process`: signals, log, files, privileges, service manager
//! 5. `config`: the configuration file and the environment
//! 6. `client`: this program as a client of a broker
//! 7. `flags`: flags that several subcommands share, and the forms of their values
//! 8. `terminal`: output, the end of a command, lines of input

mod cli;
mod client;
mod commands;
mod config;
mod flags;
mod process;
mod services;
mod terminal;

use std::env;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use tidings_browser::process::sandbox;
use tokio::runtime::{Builder, Runtime};

use crate::cli::{Cmd, Parsed, server_config};
use crate::commands::completions::names;
use crate::config::ConfigFile;
use crate::process::service::StartContext;
use crate::process::{descriptors, logging, privileges};
use crate::terminal::failure::Failure;
use crate::terminal::output;

#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The time limit for blocking calls (name resolution, a write to the disk) that still run at the
/// end.
const BLOCKING_CALLS_MAX: Duration = Duration::from_millis(50);

fn main() -> ExitCode {
    // It must run before descriptors are closed and threads are started.
    let mut args = env::args_os().skip(1).peekable();
    if args.next_if(|word| word == privileges::SANDBOX_COMMAND).is_some() {
        return sandbox::run(args);
    }
    // Two providers are linked; unless one is installed, the first use of TLS panics.
    rustls::crypto::aws_lc_rs::default_provider()
        .install_default()
        .expect("no provider is installed before the first line of main()");
    if args.next_if(|word| word == names::COMMAND).is_some() {
        return print_names(&args.next().unwrap_or_default().to_string_lossy());
    }
    let Err(failure) = cli::parse(env::args_os()).and_then(run) else {
        return ExitCode::SUCCESS;
    };
    if let Failure::Help(text) = &failure {
        // A closed standard output needs no help text.
        let _ = output::print_text(text);
    }
    if let Some(text) = failure.text() {
        output::note(&format!("tidings: {text}"));
    }
    failure.code()
}

/// Prints the names that may stand at the end of a line of a shell. Errors are left out: they would
/// appear within the line.
fn print_names(line: &str) -> ExitCode {
    if let Ok(runtime) = Builder::new_current_thread().enable_all().build() {
        let names = runtime.block_on(cli::names_for(line));
        let lines: String = names.into_iter().flat_map(|name| [name, "\n".to_owned()]).collect();
        let _ = output::print_text(&lines);
        runtime.shutdown_timeout(BLOCKING_CALLS_MAX);
    }
    ExitCode::SUCCESS
}

fn run(parsed: Parsed) -> Result<(), Failure> {
    let Parsed { common, cmd, .. } = &parsed;
    match cmd {
        Cmd::Config(what) => {
            // It reports problems of the log settings too.
            let (path, definition) = (common.config.as_deref(), cli::definition());
            let misfits = |file: &ConfigFile, names: &[&str], with_context| {
                file.misfits(&cli::command(), names, None, with_context)
            };
            return commands::config::run(
                what,
                path,
                &definition,
                server_config::problems,
                misfits,
            );
        }
        Cmd::Man(args) => return commands::man::run(args, cli::definition()),
        Cmd::Completions(args) => return commands::completions::run(args, &cli::definition()),
        _ => {}
    }
    let logs_lines = cmd.server().is_some_and(|server| server.log_lines);
    logging::start(common.log_json, common.log.as_deref(), logs_lines);
    descriptors::raise_limit();
    privileges::close_descriptors_on_exec();
    let started = start(&parsed)?;
    let runtime = runtime(cmd)?;
    let section = server_config::section_of(cmd);
    let Parsed { cmd, file, .. } = parsed;
    let result = runtime.block_on(dispatch(cmd, started));
    runtime.shutdown_timeout(BLOCKING_CALLS_MAX);
    result.map_err(|failure| server_config::with_place(failure, section, file.as_ref()))
}

/// Prepares a server process while it has only one thread.
fn start(parsed: &Parsed) -> Result<Option<StartContext>, Failure> {
    let config = parsed.common.config.as_deref();
    let resources = match &parsed.cmd {
        Cmd::Up(args) => args.resources(config),
        Cmd::Broker(args) => args.resources(config),
        _ => return Ok(None),
    };
    let (sockets, starter) = privileges::prepare(&resources)?;
    let settings = server_config::untyped_settings(parsed);
    let shown = server_config::set_by_operator(parsed);
    Ok(Some(StartContext { sockets, starter, settings, shown, read_config: server_config::read }))
}

/// Servers and crawlers use all cores, or `--threads`; other commands need one thread.
fn runtime(cmd: &Cmd) -> Result<Runtime, Failure> {
    let threads = match (cmd, cmd.server()) {
        (_, Some(server)) => server.threads,
        (Cmd::Crawl(_), None) => None,
        _ => Some(0),
    };
    let mut builder = match threads {
        Some(0) => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    if let Some(threads @ 1..) = threads {
        builder.worker_threads(threads.into());
    }
    #[cfg(feature = "_zmq")]
    if let Cmd::Zmq(_) = cmd {
        // All subscribers get a turn before more messages arrive for them.
        builder.event_interval(commands::zmq::EVENT_INTERVAL);
    }
    Ok(builder.enable_all().build().context("cannot start the runtime's threads")?)
}

async fn dispatch(cmd: Cmd, started: Option<StartContext>) -> Result<(), Failure> {
    let started = || started.expect("servers are prepared before the runtime");
    match cmd {
        Cmd::Up(args) => commands::up::run(args, started()).await,
        Cmd::Broker(args) => commands::broker::run(args, started()).await,
        #[cfg(feature = "cluster")]
        Cmd::Cluster(what) => commands::cluster::run(what).await,
        Cmd::Crawl(args) => Box::pin(commands::crawl::run(args)).await,
        Cmd::Pub(args) => commands::publish::run(args).await,
        Cmd::Sub(args) => commands::subscribe::run(args).await,
        Cmd::Topic(args) => commands::topic::run(args).await,
        Cmd::Verify(args) => commands::verify::run(&args),
        Cmd::Group(args) => commands::group::run(args).await,
        Cmd::Job(args) => commands::job::run(args).await,
        Cmd::Status(output) => commands::status::run(output).await,
        Cmd::Dashboard(args) => commands::dashboard::run(&args).await,
        Cmd::Health(args) => commands::health::run(args).await,
        Cmd::Host(args) => commands::host::run(args).await,
        Cmd::Explain(args) => commands::explain::run(args).await,
        Cmd::Dead(args) => commands::dead::run(args).await,
        #[cfg(feature = "top")]
        Cmd::Top(args) => commands::top::run(args).await,
        Cmd::Token(args) => commands::token::run(args).await,
        Cmd::Identity(args) => commands::identity::run(args),
        Cmd::Context(args) => commands::context::run(args),
        Cmd::Export(args) => commands::export::run(args).await,
        Cmd::Probe(probe) => commands::probe::run(probe).await,
        Cmd::Watch(args) => commands::watch::run(args).await,
        Cmd::WatchFeed(args) => commands::watch_feed::run(args).await,
        #[cfg(feature = "_zmq")]
        Cmd::Bridge(args) => commands::bridge::run(args).await,
        Cmd::Config(_) | Cmd::Completions(_) | Cmd::Man(_) => {
            unreachable!("they run without a runtime")
        }
        #[cfg(feature = "_zmq")]
        Cmd::Zmq(args) => commands::zmq::run(args).await,
        #[cfg(feature = "bench")]
        Cmd::Bench(args) => commands::bench::run(args).await,
    }
}

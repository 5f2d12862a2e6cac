//! The `tidings` command: reads flags and configuration, connects broker and crawler, and prints
//! for people. The crates `tidings-broker` and `tidings-subscriber` do the work.

mod access;
mod address;
mod arguments;
mod atomic_file;
mod broker_flag;
mod broker_message;
mod broker_process;
mod callbacks;
mod cli;
mod cmd;
mod companions;
mod config;
mod connection;
mod contact;
mod crawler_flags;
mod descriptors;
mod failure;
mod flags;
mod hooks;
mod hub;
mod job;
mod job_watch;
mod lines;
mod logging;
mod manage;
mod outgoing;
mod output;
mod page_line;
mod pid_file;
mod principals;
mod process;
mod public_url;
mod publisher;
mod quotas;
mod screen;
mod seeds;
mod server_flags;
mod service;
mod signals;
mod sinks;
mod stack;
mod tally;
mod tls;
mod traps;
mod waiting;
mod websub;
mod window;
mod zmq;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use tokio::runtime::{Builder, Runtime};

use crate::cli::{Cmd, Parsed, server_config};
use crate::failure::Failure;
use crate::service::StartContext;

/// The time limit for blocking calls (name resolution, a write to the disk) that still run at the
/// end.
const BLOCKING_CALLS_MAX: Duration = Duration::from_millis(50);

fn main() -> ExitCode {
    // Two providers are linked; unless one is installed, the first use of TLS panics.
    rustls::crypto::aws_lc_rs::default_provider()
        .install_default()
        .expect("no provider is installed before the first line of main()");
    let Err(failure) = cli::parse(std::env::args_os()).and_then(run) else {
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

fn run(parsed: Parsed) -> Result<(), Failure> {
    let Parsed { common, cmd, .. } = &parsed;
    if let Cmd::Config(what) = cmd {
        // It reports problems of the log settings too.
        let check_server = |words| server_config::read_from(words).map(drop);
        let definition = cli::definition();
        return cmd::config::run(what, common.config.as_deref(), &definition, check_server);
    }
    logging::start(common.log_json, common.log.as_deref(), logs_lines(cmd));
    descriptors::raise_limit();
    process::close_descriptors_on_exec();
    let started = start(&parsed)?;
    let runtime = runtime(cmd)?;
    let result = runtime.block_on(dispatch(parsed.cmd, started));
    runtime.shutdown_timeout(BLOCKING_CALLS_MAX);
    result
}

/// Prepares a server process while it has only one thread.
fn start(parsed: &Parsed) -> Result<Option<StartContext>, Failure> {
    let config = parsed.common.config.as_deref();
    let resources = match &parsed.cmd {
        Cmd::Up(args) => args.resources(config),
        Cmd::Broker(args) => args.server.resources(&args.data, config, Vec::new(), false),
        _ => return Ok(None),
    };
    let sockets = process::prepare(&resources)?;
    let settings = server_config::untyped_settings(parsed);
    Ok(Some(StartContext { sockets, settings, read_config: server_config::read }))
}

fn logs_lines(cmd: &Cmd) -> bool {
    match cmd {
        Cmd::Up(args) => args.server.log_lines,
        Cmd::Broker(args) => args.server.log_lines,
        _ => false,
    }
}

/// Servers and crawlers use all cores, or `--threads`; other commands need one thread.
fn runtime(cmd: &Cmd) -> Result<Runtime, Failure> {
    let threads = match cmd {
        Cmd::Up(args) => args.server.threads,
        Cmd::Broker(args) => args.server.threads,
        Cmd::Crawl(_) => None,
        Cmd::Pub(_)
        | Cmd::Sub(_)
        | Cmd::Topic(_)
        | Cmd::Verify(_)
        | Cmd::Group(_)
        | Cmd::Job(_)
        | Cmd::Explain(_)
        | Cmd::Dead(_)
        | Cmd::Token(_)
        | Cmd::Export(_)
        | Cmd::Probe(_)
        | Cmd::Watch(_)
        | Cmd::WatchFeed(_)
        | Cmd::Bridge(_)
        | Cmd::Config(_)
        | Cmd::Zmq(_)
        | Cmd::Bench(_) => Some(0),
    };
    let mut builder = match threads {
        Some(0) => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    if let Some(threads @ 1..) = threads {
        builder.worker_threads(threads.into());
    }
    if let Cmd::Zmq(_) = cmd {
        // All subscribers get a turn before more messages arrive for them.
        builder.event_interval(cmd::zmq::EVENT_INTERVAL);
    }
    Ok(builder.enable_all().build().context("cannot start the runtime's threads")?)
}

async fn dispatch(cmd: Cmd, started: Option<StartContext>) -> Result<(), Failure> {
    let started = || started.expect("servers are prepared before the runtime");
    match cmd {
        Cmd::Up(args) => cmd::up::run(args, started()).await,
        Cmd::Broker(args) => cmd::broker::run(args, started()).await,
        Cmd::Crawl(args) => cmd::crawl::run(args).await,
        Cmd::Pub(args) => cmd::publish::run(args).await,
        Cmd::Sub(args) => cmd::subscribe::run(args).await,
        Cmd::Topic(args) => cmd::topic::run(args).await,
        Cmd::Verify(args) => cmd::verify::run(&args),
        Cmd::Group(args) => cmd::group::run(args).await,
        Cmd::Job(args) => cmd::job::run(args).await,
        Cmd::Explain(args) => cmd::explain::run(args).await,
        Cmd::Dead(args) => cmd::dead::run(args).await,
        Cmd::Token(args) => cmd::token::run(args),
        Cmd::Export(args) => cmd::export::run(args).await,
        Cmd::Probe(probe) => cmd::probe::run(probe).await,
        Cmd::Watch(args) => cmd::watch::run(args).await,
        Cmd::WatchFeed(args) => cmd::watch_feed::run(args).await,
        Cmd::Bridge(args) => cmd::bridge::run(args).await,
        Cmd::Config(_) => unreachable!("`config` runs without a runtime"),
        Cmd::Zmq(args) => cmd::zmq::run(args).await,
        Cmd::Bench(args) => cmd::bench::run(args).await,
    }
}

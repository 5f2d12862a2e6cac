//! The `tidings` command: reads flags and configuration, wires broker and crawler together, and
//! prints for people. What they do is in the crates `tidings-broker` and `tidings-subscriber`.

mod access;
mod address;
mod announcer;
mod beside;
mod broker_flag;
mod callbacks;
mod cli;
mod cmd;
mod config;
mod contact;
mod descriptors;
mod failure;
mod files;
mod flags;
mod hooks;
mod hub;
mod job;
mod lines;
mod link;
mod logging;
mod manage;
mod node;
mod outgoing;
mod output;
mod own_broker;
mod page_line;
mod pid_file;
mod principals;
mod process;
mod public_url;
mod quotas;
mod screen;
mod secure;
mod seeds;
mod service;
mod signals;
mod sinks;
mod tally;
mod traps;
mod waiting;
mod watch;
mod websub;
mod window;
mod wire;
mod zmq;

use std::{process::ExitCode, time::Duration};

use anyhow::Context;
use tokio::runtime::{Builder, Runtime};

use crate::{
    cli::{Cmd, Parsed},
    failure::Failure,
    process::Places,
    service::Started,
};

/// What blocking calls that still run (a name that is looked up, a page that is written) have when
/// everything else has ended.
const LAST_CALLS: Duration = Duration::from_millis(50);

fn main() -> ExitCode {
    // Two providers in one process would each be none: the first use of TLS panics then.
    rustls::crypto::aws_lc_rs::default_provider()
        .install_default()
        .expect("nobody installs one before the first line of main()");
    let Err(failure) = cli::parse(std::env::args_os()).and_then(run) else {
        return ExitCode::SUCCESS;
    };
    if let Failure::Told(text) = &failure {
        // A reader that has left does not want help any more.
        let _ = output::tell(text);
    }
    if let Some(text) = failure.text() {
        output::note(&format!("tidings: {text}"));
    }
    failure.code()
}

fn run(parsed: Parsed) -> Result<(), Failure> {
    let Parsed { common, cmd, .. } = &parsed;
    if let Cmd::Config(what) = cmd {
        // It speaks for itself, and says what is wrong with the settings of logs, too.
        return cmd::config::run(what, common.config.as_deref());
    }
    logging::start(common.log_json, common.log.as_deref(), lines_logged(cmd));
    descriptors::take_all();
    process::keep_descriptors();
    let started = start(&parsed)?;
    let runtime = runtime(cmd)?;
    let result = runtime.block_on(dispatch(parsed.cmd, started));
    runtime.shutdown_timeout(LAST_CALLS);
    result
}

/// What those who serve do before there is a second thread.
fn start(parsed: &Parsed) -> Result<Option<Started>, Failure> {
    let config = parsed.common.config.as_deref();
    let (server, places) = match &parsed.cmd {
        Cmd::Up(args) => (&args.server, args.places(config)),
        Cmd::Broker(args) => {
            let (data, written, runs_programs) = (&args.data, Vec::new(), false);
            (&args.server, Places { data, config, written, runs_programs })
        }
        _ => return Ok(None),
    };
    let sockets = process::prepare(server, &places)?;
    Ok(Some(Started::new(parsed, sockets)))
}

fn lines_logged(cmd: &Cmd) -> bool {
    match cmd {
        Cmd::Up(args) => args.server.log_lines,
        Cmd::Broker(args) => args.server.log_lines,
        _ => false,
    }
}

/// Servers and crawlers use all cores, or as many as they are told; the rest has one thing to do.
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
        // All of its subscribers have their turn before there is more for them.
        builder.event_interval(cmd::zmq::TURNS);
    }
    Ok(builder.enable_all().build().context("cannot start the runtime's threads")?)
}

async fn dispatch(cmd: Cmd, started: Option<Started>) -> Result<(), Failure> {
    let started = || started.expect("what serves was started");
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
        Cmd::Config(_) => unreachable!("it needs no runtime"),
        Cmd::Zmq(args) => cmd::zmq::run(args).await,
        Cmd::Bench(args) => cmd::bench::run(args).await,
    }
}

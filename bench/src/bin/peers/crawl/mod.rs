//! `peers crawl`: compares Tidings with other crawlers on this machine, with the same origin.
//! `peers origin`: the origin alone, for a crawler that is started by hand.

mod crawlers;
mod workloads;

use std::fs;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use clap::Args;
use serde_json::{Map, json};
use tidings_bench::origin::{Origin, Site};
use tidings_load::disk::{self, Disk};

use self::crawlers::{Crawler, CrawlerPaths};
use self::workloads::{CrawlWorkload, WORKLOADS};
use crate::results::{Contestant, Results};
use crate::{DataDir, clear_progress, machine, print_note, raise_limits, show_progress};

#[derive(Debug, Args)]
pub(crate) struct CrawlArgs {
    /// The program `tidings`
    #[arg(long, value_name = "FILE", default_value = "target/release/tidings")]
    tidings: PathBuf,

    /// The program `spider-peer`
    #[arg(long, value_name = "FILE", default_value = "target/release/spider-peer")]
    spider: PathBuf,

    /// The Python of an environment with Scrapy, aiohttp, Crawlee and RQ
    #[arg(long, value_name = "FILE", default_value = "python3")]
    python: PathBuf,

    /// Directory of the Python scripts
    #[arg(long, value_name = "DIR", default_value = "bench/peers")]
    scripts: PathBuf,

    /// Number of rounds; each crawler runs once per round
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,

    /// One round of a tenth, to test whether everything works; do not quote its figures
    #[arg(long)]
    quick: bool,

    /// Send no `Connection: keep-alive`: HTTP/1.1 does not need it, but some crawlers do
    #[arg(long)]
    terse: bool,

    /// Run only these works, such as flat,polite-1000
    #[arg(long, value_name = "WORK,..", value_delimiter = ',')]
    only: Vec<String>,

    /// Run only these crawlers, such as tidings,wget2
    #[arg(long, value_name = "CRAWLER,..", value_delimiter = ',')]
    servers: Vec<String>,

    /// Data directory of the crawlers, on a disk [default: a temporary directory in the current
    /// one]
    #[arg(long, value_name = "DIR", env = "PEERS_DATA")]
    data: Option<PathBuf>,

    /// Also write all values to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct OriginArgs {
    /// Address to listen on; it must cover 127.1.0.0/16
    #[arg(long, default_value = "0.0.0.0:8080")]
    listen: SocketAddr,

    /// The site of this work, such as polite-1000
    #[arg(long, default_value = "flat")]
    work: String,

    /// Number of hosts [default: that of the work]
    #[arg(long, value_name = "N")]
    hosts: Option<u32>,

    /// Pages per host [default: that of the work]
    #[arg(long, value_name = "N")]
    pages: Option<u32>,

    /// Write the URL of the first page of each host to this file
    #[arg(long, value_name = "FILE")]
    seeds: Option<PathBuf>,
}

/// Serves until standard input ends, and then prints the verdict.
pub(crate) fn origin(args: &OriginArgs) -> anyhow::Result<()> {
    raise_limits()?;
    let site = workloads::site_of(&args.work).with_context(|| unknown_workload(&args.work))?;
    let hosts = args.hosts.unwrap_or(site.hosts);
    let site = Site { hosts, pages: args.pages.unwrap_or(site.pages), ..site };
    let origin = Origin::serve(site, args.listen)?;
    if let Some(file) = &args.seeds {
        fs::write(file, origin.seeds().collect::<Vec<_>>().join("\n") + "\n")?;
    }
    print_note(&format!("{} hosts, the first at {}", site.hosts, origin.url(0, 0)));
    io::stdin().read_to_end(&mut Vec::new())?;
    let log = origin.request_log();
    let verdict = log.judge(&site);
    writeln!(
        io::stdout(),
        "{} requests on {} connections in {:.3} s: {verdict}",
        log.requests.len(),
        verdict.connections,
        verdict.span.as_secs_f64()
    )?;
    Ok(())
}

/// Runs the comparison and prints a table in Markdown.
pub(crate) fn compare(args: &CrawlArgs) -> anyhow::Result<()> {
    raise_limits()?;
    let works = selected_workloads(args)?;
    ensure!(args.tidings.is_file(), "{} does not exist; build it first", args.tidings.display());
    let data = DataDir::new(args.data.as_deref())?;
    disk::check_not_in_memory(&data.path)?;
    let heading = heading(&data.path, args)?;
    let mut all: Vec<(CrawlWorkload, Results<Crawler>)> = Vec::new();
    for work in works {
        let results = run_rounds(args, &work, &data.path)?;
        all.push((work, results));
    }
    clear_progress();
    let mut output = io::stdout().lock();
    let titles = ["| work | Tidings | others | goal |", "|---|---|---|---|"].map(str::to_owned);
    let rows = all.iter().map(|(work, results)| results.row(&work.row()));
    let failures = all.iter().flat_map(|(work, results)| results.failures(work.name));
    let failures = failures.map(|failure| format!("\n- {failure}"));
    for line in heading.into_iter().chain(titles).chain(rows).chain(failures) {
        writeln!(output, "{line}")?;
    }
    if let Some(file) = &args.json {
        let entries = all.iter().map(|(work, results)| (work.name.to_owned(), results.to_json()));
        fs::write(file, json!(entries.collect::<Map<_, _>>()).to_string())?;
    }
    Ok(())
}

fn selected_workloads(args: &CrawlArgs) -> anyhow::Result<Vec<CrawlWorkload>> {
    for name in &args.only {
        ensure!(WORKLOADS.iter().any(|work| work.name == name), unknown_workload(name));
    }
    let is_named = |work: &&CrawlWorkload| {
        args.only.is_empty() || args.only.iter().any(|name| name == work.name)
    };
    let chosen = WORKLOADS.iter().filter(is_named).copied();
    let chosen = chosen.map(|work| if args.quick { work.quick() } else { work });
    Ok(chosen.map(|work| if args.terse { work.without_keep_alive() } else { work }).collect())
}

fn unknown_workload(work: &str) -> String {
    let known: Vec<_> = WORKLOADS.iter().map(|work| work.name).collect();
    format!("no work {work}; expected one of {}", known.join(", "))
}

/// In each round every crawler runs once, so that a change on the machine affects all of them.
fn run_rounds(
    args: &CrawlArgs,
    work: &CrawlWorkload,
    data: &Path,
) -> anyhow::Result<Results<Crawler>> {
    let mut results = Results::default();
    let rounds = if args.quick { 1 } else { args.rounds };
    let takes_part = |crawler: &Crawler| {
        args.servers.is_empty() || args.servers.iter().any(|name| *name == crawler.flag())
    };
    for round in 1..=rounds {
        results.begin_round();
        for crawler in work.crawlers.iter().copied().filter(takes_part) {
            let what = format!("{} {round}/{rounds}, {}", work.name, crawler.name());
            let paths = prepare_paths(args, data, crawler)?;
            let outcome = work.measure(&paths, crawler, &mut |text| {
                show_progress(&format!("{what}: {text}"));
                Ok(())
            });
            // The directory around it is removed at the end.
            let _ = fs::remove_dir_all(&paths.dir);
            if let Err(error) = &outcome {
                print_note(&format!("{what}: {error:#}"));
            }
            results.add(crawler, outcome);
        }
    }
    Ok(results)
}

fn prepare_paths(args: &CrawlArgs, data: &Path, crawler: Crawler) -> anyhow::Result<CrawlerPaths> {
    let dir = data.join(crawler.flag());
    if dir.exists() {
        fs::remove_dir_all(&dir)?;
    }
    fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    // Programs run in that directory. The path of Python is not resolved if it is a link, because
    // its environment is where the link is.
    let absolute = |path: &Path| std::path::absolute(path);
    let python = if args.python.components().count() > 1 {
        absolute(&args.python)?
    } else {
        args.python.clone()
    };
    Ok(CrawlerPaths {
        tidings: absolute(&args.tidings)?,
        spider: absolute(&args.spider)?,
        python,
        scripts: absolute(&args.scripts)?,
        dir,
    })
}

/// Date, machine, and settings.
fn heading(data: &Path, args: &CrawlArgs) -> anyhow::Result<Vec<String>> {
    let disk = Disk::of(data)?;
    let runs = if args.quick {
        "one round of a tenth".to_owned()
    } else {
        format!("rounds: {}, medians", args.rounds)
    };
    Ok(vec![
        format!("{}, origin and crawler on all of them,", machine()?),
        format!(
            "10.2 KB a page, 30 links, keep-alive; {runs}, data on {} ({}).",
            disk.source, disk.file_system
        ),
        format!("Versions: {}.", versions(args).join("; ")),
        String::new(),
    ])
}

/// The versions, as the programs print them.
fn versions(args: &CrawlArgs) -> Vec<String> {
    let packages = "from importlib.metadata import version\n\
                    print(', '.join(p + ' ' + version(p) for p in ['aiohttp', 'crawlee', 'scrapy', 'rq']))";
    let commands: [(&Path, &[&str]); 3] = [
        (&args.tidings, &["--version"]),
        (Path::new("wget2"), &["--version"]),
        (&args.python, &["-c", packages]),
    ];
    let first_line = |(program, arguments): &(&Path, &[&str])| {
        let output = Command::new(program).args(*arguments).output().ok()?;
        Some(String::from_utf8_lossy(&output.stdout).lines().next()?.to_owned())
    };
    commands.iter().filter_map(first_line).collect()
}

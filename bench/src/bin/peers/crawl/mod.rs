//! `peers crawl`: compares Tidings with other crawlers on this machine, with the same origin.
//! `peers origin`: the origin alone, for a crawler that is started by hand.

mod crawlers;
mod workloads;

use std::fs;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use tidings_bench::origin::{Origin, Site};
use tidings_load::disk::Disk;

use self::crawlers::CrawlerPaths;
use self::workloads::{CrawlWorkload, WORKLOADS};
use crate::comparison::{self, ComparisonFlags, RunDir, machine, table, unknown_workload};
use crate::{print_note, raise_limits, render};

#[derive(Debug, Args)]
pub(crate) struct CrawlArgs {
    #[command(flatten)]
    flags: ComparisonFlags,

    /// The program `spider-peer`
    #[arg(long, value_name = "FILE", default_value = "target/spider-peer/release/spider-peer")]
    spider: PathBuf,

    /// The Python of an environment with Scrapy, aiohttp, Crawlee and RQ
    #[arg(long, value_name = "FILE", default_value = "python3")]
    python: PathBuf,

    /// Directory of the Python scripts
    #[arg(long, value_name = "DIR", default_value = "bench/peers")]
    scripts: PathBuf,

    /// Send no `Connection: keep-alive`: HTTP/1.1 does not need it, but some crawlers do
    #[arg(long)]
    terse: bool,
}

#[derive(Debug, Args)]
pub(crate) struct OriginArgs {
    /// Address to listen on; it must cover 127.1.0.0/16
    #[arg(long, default_value = "0.0.0.0:8080")]
    listen: SocketAddr,

    /// The site of this work of crawlers, such as polite-1000 or scripted
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
pub(crate) fn origin(args: &OriginArgs) -> Result<()> {
    raise_limits()?;
    let site = workloads::site_of(&args.work)
        .or_else(|| render::site_of(&args.work))
        .with_context(|| unknown_workload(&args.work, WORKLOADS))?;
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
pub(crate) fn compare(args: &CrawlArgs) -> Result<()> {
    raise_limits()?;
    let works = args.flags.select(WORKLOADS)?.into_iter().map(|work| {
        let load = if args.flags.quick { work.load.quick() } else { work.load };
        CrawlWorkload { load: if args.terse { load.without_keep_alive() } else { load }, ..*work }
    });
    let data = args.flags.data_dir()?;
    let heading = heading(data.path(), args)?;
    let takes_part = |crawler| args.flags.names(crawler);
    let all = args.flags.run(works.collect(), takes_part, |task, crawler, progress| {
        // Programs run in that directory.
        let dir = RunDir::new(&std::path::absolute(data.path())?, crawler)?;
        task.measure(&crawler_paths(args, dir.path())?, crawler, progress)
    });
    let failures = all.iter().flat_map(|(work, results)| results.failures(work.name));
    let failures = failures.map(|failure| format!("\n- {failure}"));
    args.flags.write(heading.into_iter().chain(table(&all)).chain(failures), &all)
}

fn crawler_paths(args: &CrawlArgs, dir: &Path) -> Result<CrawlerPaths> {
    // The path of Python is not resolved if it is a link, because its environment is where the link
    // is.
    let absolute = |path: &Path| std::path::absolute(path);
    let python = if args.python.components().count() > 1 {
        absolute(&args.python)?
    } else {
        args.python.clone()
    };
    Ok(CrawlerPaths {
        tidings: absolute(&args.flags.tidings)?,
        spider: absolute(&args.spider)?,
        python,
        scripts: absolute(&args.scripts)?,
        dir: dir.to_owned(),
    })
}

/// Date, machine, and settings.
fn heading(data: &Path, args: &CrawlArgs) -> Result<Vec<String>> {
    let disk = Disk::of(data)?;
    let runs = args.flags.rounds_text("one round of a tenth");
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
        (&args.flags.tidings, &["--version"]),
        (Path::new("wget2"), &["--version"]),
        (&args.python, &["-c", packages]),
    ];
    comparison::versions(&commands)
}

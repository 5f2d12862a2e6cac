//! `frontier`: links a second that become waiting URLs.

use clap::Args;
use serde_json::{Value, json};
use tidings_bench::frontier::Frontier;
use tidings_load::command::broker_process::BrokerProcess;
use tidings_load::command::flags::CommonFlags;
use tidings_load::command::text::{format_count, plural};
use tidings_load::command::{Benchmark, Outcome, Subject};
use tidings_load::{ProgressFn, Server};

/// The flags of `frontier`.
#[derive(Debug, Clone, Args)]
pub(crate) struct FrontierArgs {
    /// URLs that wait at the end
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    urls: u64,

    /// Hosts that they are on
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=9_999_999))]
    hosts: u64,

    /// Links of a page; four in five lead to what is known already
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(5..=5_000))]
    links: u64,

    /// Links a second, on average [default: as many as the broker takes]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1_000..))]
    rate: Option<u64>,

    #[command(flatten)]
    common: CommonFlags,
}

impl Benchmark for FrontierArgs {
    const NAME: &'static str = "frontier";

    const MEASURES_DISK: bool = true;

    fn common(&self) -> &CommonFlags {
        &self.common
    }

    fn settings(&self) -> Value {
        json!({ "urls": self.urls, "hosts": self.hosts, "links": self.links, "rate": self.rate })
    }

    fn title(&self) -> String {
        format!(
            "{} URLs on {}, {} links a page",
            format_count(self.urls),
            plural(self.hosts, "host"),
            format_count(self.links)
        )
    }

    fn measure(
        &self,
        subject: &Subject<'_>,
        watch: &mut ProgressFn<'_>,
    ) -> anyhow::Result<Outcome> {
        let &Self { urls, hosts, links, rate, .. } = self;
        let frontier = Frontier { urls, hosts, links, rate };
        let Some(data) = subject.data else {
            return frontier.measure(subject.target, None, watch).map(Outcome::from);
        };
        let processor = self.common.pin.map(|(server, _)| server);
        let launch =
            || BrokerProcess::launch(subject.program, data, self.common.threads, processor);
        let again = || launch().and_then(Server::start);
        frontier.measure(subject.target, Some(&again), watch).map(Outcome::from)
    }
}

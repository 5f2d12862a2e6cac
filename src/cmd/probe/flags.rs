use clap::Args;
use tidings_subscriber::{AllowPrivate, CrawlerConfig};

use crate::flags::parse_allow_private;

/// How the crawler would ask.
#[derive(Debug, Args)]
pub(crate) struct FetchFlags {
    /// Also fetch from private, loopback and link-local addresses: all, or only these networks
    #[arg(
        long,
        value_name = "NET,..",
        num_args = 0..=1,
        require_equals = true,
        default_value = "none",
        default_missing_value = "all",
        hide_default_value = true,
        value_parser = parse_allow_private,
    )]
    allow_private: AllowPrivate,

    /// What the crawler calls itself (User-Agent; its first word is looked up in robots.txt)
    #[arg(long, value_name = "TEXT")]
    agent: Option<String>,
}

impl FetchFlags {
    /// The configuration of a crawler with these flags.
    pub(super) fn config(&self) -> CrawlerConfig {
        let mut config =
            CrawlerConfig { allow_private: self.allow_private.clone(), ..CrawlerConfig::default() };
        if let Some(agent) = &self.agent {
            config.agent.clone_from(agent);
        }
        config
    }
}

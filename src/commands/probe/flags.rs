use clap::Args;
use tidings_subscriber::fetch::FetchConfig;

use crate::flags::AllowPrivateFlag;

/// How the crawler requests something.
#[derive(Debug, Args)]
pub(crate) struct FetchFlags {
    #[command(flatten)]
    allow_private: AllowPrivateFlag,

    /// User-Agent of requests; its first word selects the rules in robots.txt
    #[arg(long, value_name = "TEXT")]
    agent: Option<String>,
}

impl FetchFlags {
    /// The configuration of requests with these flags.
    pub(super) fn config(&self) -> FetchConfig {
        let mut config = FetchConfig::default();
        config.connect.allow_private = self.allow_private.networks.clone();
        if let Some(agent) = &self.agent {
            config.agent.clone_from(agent);
        }
        config
    }
}

//! The HTTP client for requests other than pages, and the flags for all outgoing requests.

use std::time::Duration;

use clap::Args;
use hyper::header::HeaderValue;
#[cfg(feature = "hub")]
use tidings_egress::AllowPrivate;
use tidings_egress::client::OutgoingClient;
use tidings_egress::connect::Connector;
use tidings_subscriber::fetch::FetchConfig;

use crate::flags::AllowPrivateFlag;
use crate::services::contact;
use crate::services::identity::IdentityFlags;
use crate::terminal::failure::Failure;

/// The time limit of such a request.
const REQUEST_MAX: Duration = Duration::from_secs(20);

/// Flags of everything that sends requests.
#[derive(Debug, Clone, Args)]
pub(crate) struct OutgoingFlags {
    #[command(flatten)]
    allow_private: AllowPrivateFlag,

    /// User-Agent of requests; its first word selects the rules in robots.txt
    #[arg(long, value_name = "TEXT")]
    agent: Option<String>,

    /// Contact for site owners, added to the User-Agent
    #[arg(long, value_name = "URL|MAIL", value_parser = contact::parse)]
    contact: Option<String>,

    /// Send all requests through this proxy: http://, socks5:// or socks5h://
    ///
    /// With socks5:// names are resolved and checked here. With http:// and socks5h:// the proxy
    /// resolves them, and must itself refuse private addresses.
    #[arg(long, value_name = "URL")]
    proxy: Option<String>,

    #[command(flatten)]
    pub(crate) identity: IdentityFlags,
}

impl OutgoingFlags {
    /// Writes the flags into the configuration of a fetcher.
    pub(crate) fn apply(&self, config: &mut FetchConfig) {
        config.connect.allow_private = self.allow_private.networks.clone();
        config.connect.proxy.clone_from(&self.proxy);
        config.contact.clone_from(&self.contact);
        if let Some(agent) = &self.agent {
            config.agent.clone_from(agent);
        }
        if let Some(contact) = &self.contact {
            config.agent = contact::user_agent(&config.agent, contact);
        }
    }

    /// The client for requests other than pages.
    pub(crate) fn http_client(&self) -> Result<OutgoingClient, Failure> {
        let mut config = FetchConfig::default();
        self.apply(&mut config);
        self.http_client_of(&config)
    }

    /// The same without limits on addresses, for hosts that the operator has named.
    #[cfg(feature = "hub")]
    pub(crate) fn http_client_for_named_hosts(&self) -> Result<OutgoingClient, Failure> {
        let mut config = FetchConfig::default();
        self.apply(&mut config);
        config.connect.allow_private = AllowPrivate::All;
        self.http_client_of(&config)
    }

    fn http_client_of(&self, config: &FetchConfig) -> Result<OutgoingClient, Failure> {
        let agent = HeaderValue::from_str(&config.agent).map_err(|_| {
            Failure::Usage(format!(
                "--agent {:?}: this text cannot be a header value",
                config.agent
            ))
        })?;
        let connector =
            Connector::new(&config.connect).map_err(|error| Failure::Usage(error.to_string()))?;
        let client = OutgoingClient::new(connector, agent, REQUEST_MAX);
        Ok(client.with_signer(self.identity.signer()?))
    }

    /// Whether requests lack a contact for site owners.
    pub(crate) fn lack_contact(&self) -> bool {
        self.agent.is_none() && self.contact.is_none()
    }
}

//! Flags for login, permissions and exposure, and their effect on the configuration of a broker.

use std::iter;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use clap::Args;
use tidings_broker::access::{Permission, PermissionSet, PrivilegedAttribute, Transport};
use tidings_broker::{Broker, BrokerConfig, Sockets};
use tidings_protocol::TopicName;

use crate::services::principals::AccessFile;
use crate::terminal::failure::Failure;

/// Flags for login and for anonymous clients.
#[derive(Debug, Clone, Args)]
pub(crate) struct AccessFlags {
    /// Permissions of anonymous clients when login is required; see `tidings token create --help`
    /// [default: none]
    ///
    /// May be repeated.
    #[arg(long, value_name = "PERMISSION")]
    strangers: Vec<Permission>,

    /// Topic for plain lines from nc and telnet [default: new-url; off when login is required]
    #[arg(long, value_name = "TOPIC")]
    notifier: Option<TopicName>,

    /// Accept other machines without login or encryption; anyone on the network can then read and
    /// publish
    #[arg(long)]
    insecure: bool,

    /// Refuse to start when no token, certificate or user has been set up
    ///
    /// This protects against a wrong data directory or a lost access.toml, on loopback too.
    #[arg(long, conflicts_with = "insecure")]
    require_login: bool,
}

impl AccessFlags {
    /// Whether other machines may connect without login and encryption.
    pub(crate) fn is_insecure(&self) -> bool {
        self.insecure
    }

    /// Passes changes of `access.toml` to a running broker. Never ends.
    pub(crate) async fn watch_principals(&self, broker: &Broker, data: &Path) {
        let principals = AccessFile::at(data);
        if broker.is_open() {
            // Clients are connected without login, and so are the parts of this process: a first
            // principal takes effect at the next start.
            return std::future::pending().await;
        }
        principals.watch(broker).await;
    }

    /// Writes the flags and the principals of the data directory into a configuration.
    pub(crate) fn apply(&self, config: &mut BrokerConfig, data: &Path) -> Result<(), Failure> {
        let principals = AccessFile::at(data).read()?;
        config.access.principals = principals;
        config.access.anonymous = PermissionSet::new(self.strangers.clone(), Vec::new());
        config.access.peer_topic.clone_from(&self.notifier);
        // This user and root can change all files of the broker, so they may do everything.
        config.access.own_users = vec![rustix::process::geteuid().as_raw(), 0];
        Ok(())
    }

    /// Refuses to start if login is required without any principal, or if other machines can
    /// reach an address that has no login or no TLS. A socket that is already open counts instead
    /// of the address in the configuration.
    pub(crate) fn check_exposure(
        &self,
        config: &BrokerConfig,
        sockets: &Sockets,
        data: &Path,
    ) -> Result<(), Failure> {
        let known = config.access.principals.as_ref();
        if self.require_login && known.is_none_or(Vec::is_empty) {
            let (file, data) = (AccessFile::at(data), data.display());
            let lacks = match known {
                None => "does not exist, so every client could do everything",
                Some(_) => "lists no principal, so no client could log in",
            };
            return Err(Failure::Usage(format!(
                "--require-login: {} {lacks}. Restore the file, choose the right directory with --data, or create the first \
                 principal: `tidings token create NAME --allow PERMISSION --data {data}`",
                file.path().display()
            )));
        }
        let real = |socket: &Option<TcpListener>| {
            socket.as_ref().and_then(|socket| socket.local_addr().ok())
        };
        let lines = ("--listen", real(&sockets.line).unwrap_or(config.listen));
        let http = config.http.as_ref();
        let http = http.map(|http| ("--http", real(&sockets.http).unwrap_or(http.listen)));
        for (flag, address) in iter::once(lines).chain(http).filter(|(_, at)| self.is_exposed(*at))
        {
            let data = data.display();
            if config.access.principals.is_none() {
                return Err(Failure::Usage(format!(
                    "{flag} {address} is open to other machines, and every client there could publish, read and crawl. \
                     Require login: `tidings token create NAME --allow PERMISSION --data {data}`, and encrypt: --tls-cert FILE \
                     --tls-key FILE. To accept all clients as they are: --insecure"
                )));
            }
            if config.tls.is_none() {
                return Err(Failure::Usage(format!(
                    "{flag} {address} is open to other machines, and tokens would be sent unencrypted. Encrypt: --tls-cert \
                     FILE --tls-key FILE, or listen on 127.0.0.1 behind a TLS proxy. With --insecure it is open without \
                     encryption, but only to anonymous clients: tokens are rejected there"
                )));
            }
        }
        Ok(())
    }

    /// Whether other machines can reach the address although `--insecure` is not set.
    pub(crate) fn is_exposed(&self, address: SocketAddr) -> bool {
        !self.insecure && !address.ip().to_canonical().is_loopback()
    }
}

/// The privileged attributes that a transport accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TransportGrant {
    pub(crate) transport: Transport,
    pub(crate) attributes: Vec<PrivilegedAttribute>,
}

/// The value of `--grant`.
pub(crate) fn parse_grant(text: &str) -> Result<TransportGrant, String> {
    let (transport, attributes) =
        text.split_once('=').ok_or("expected TRANSPORT=ATTRIBUTE,.., such as http=prio")?;
    let attributes = attributes.split(',').filter(|attribute| !attribute.is_empty());
    Ok(TransportGrant {
        transport: transport.parse()?,
        attributes: attributes.map(str::parse).collect::<Result<_, _>>()?,
    })
}

//! Flags about who may come in, and what is read from the file that says who that is.

use std::{
    iter,
    net::{SocketAddr, TcpListener},
    path::Path,
};

use clap::Args;
use tidings_broker::{
    Broker, BrokerConfig, Sockets,
    access::{Power, Right, Rights, Way},
};
use tidings_protocol::TopicName;

use crate::{failure::Failure, principals::Principals, zmq::ZmqFlags};

/// Who may come in, and what those may do who do not say who they are.
#[derive(Debug, Clone, Args)]
pub(crate) struct AccessFlags {
    /// Permissions of anonymous clients when login is required; see `tidings token create --help`
    /// [default: none]
    ///
    /// May be repeated.
    #[arg(long, value_name = "RIGHT")]
    strangers: Vec<Right>,

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
    /// Whether other machines may come in as they are.
    pub(crate) fn is_insecure(&self) -> bool {
        self.insecure
    }

    /// Has a broker know who may log in when that changes. Never ends.
    pub(crate) async fn follow(&self, broker: &Broker, data: &Path) {
        let principals = Principals::at(data);
        if broker.is_open() {
            // Whoever is connected came in without saying who it is, as the parts of this process do.
            return std::future::pending().await;
        }
        principals.follow(broker).await;
    }

    /// Writes them into a configuration, with what the data directory knows of people and programs.
    pub(crate) fn apply(&self, config: &mut BrokerConfig, data: &Path) -> Result<(), Failure> {
        let principals = Principals::at(data).read()?;
        config.access.principals = principals;
        config.access.strangers = Rights::new(self.strangers.clone(), Vec::new());
        config.access.notifier.clone_from(&self.notifier);
        // Who has all the files may do everything that they say.
        config.access.own_users = vec![rustix::process::geteuid().as_raw(), 0];
        Ok(())
    }

    /// Refuses to serve where somebody has to be known and nobody is; and addresses that other machines reach, unless who
    /// comes from there has to say who it is, within TLS. Sockets that are open already are what counts, not what the
    /// configuration says in their place.
    pub(crate) fn judge(
        &self,
        config: &BrokerConfig,
        sockets: &Sockets,
        zmq: &ZmqFlags,
        data: &Path,
    ) -> Result<(), Failure> {
        // The argument parser sees it only where both are flags.
        if self.require_login && self.insecure {
            return Err(Failure::Usage(
                "`require-login` and `insecure` are both set: the one keeps out everybody who does not say who it is, the \
                 other lets other machines in as they are; take one of them away"
                    .to_owned(),
            ));
        }
        let known = config.access.principals.as_ref();
        if self.require_login && known.is_none_or(Vec::is_empty) {
            let (file, data) = (Principals::at(data), data.display());
            let lacks = match known {
                None => "is not there: whoever reaches this broker could do everything",
                Some(_) => "has nobody in it: only who needs no token could do anything",
            };
            return Err(Failure::Usage(format!(
                "--require-login, and {} {lacks}. If it was lost, put it back; if this is the wrong directory, say --data; \
                 if nobody was let in yet: `tidings token create NAME --allow RIGHT --data {data}`",
                file.path().display()
            )));
        }
        let real = |socket: &Option<TcpListener>| {
            socket.as_ref().and_then(|socket| socket.local_addr().ok())
        };
        let lines = ("--listen", real(&sockets.line).unwrap_or(config.listen));
        let http = config.http.as_ref();
        let http = http.map(|http| ("--http", real(&sockets.http).unwrap_or(http.listen)));
        for (flag, address) in iter::once(lines).chain(http).filter(|(_, at)| self.minds(*at)) {
            let data = data.display();
            if config.access.principals.is_none() {
                return Err(Failure::Usage(format!(
                    "{flag} {address} is open to other machines, and anybody there could publish, listen and crawl. \
                     Say who may: `tidings token create NAME --allow RIGHT --data {data}`, and encrypt it: --tls-cert \
                     FILE --tls-key FILE. Or, where everybody who reaches it may do everything: --insecure"
                )));
            }
            if config.tls.is_none() {
                return Err(Failure::Usage(format!(
                    "{flag} {address} is open to other machines, and tokens would be read on the way. Encrypt it: \
                     --tls-cert FILE --tls-key FILE, or listen on 127.0.0.1 behind something that does. With --insecure it \
                     is open all the same, for who needs no token: none is taken there"
                )));
            }
        }
        match zmq.unlocked().find(|(_, at)| self.minds(*at)) {
            None => Ok(()),
            Some((flag, address)) => Err(Failure::Usage(format!(
                "{flag} tcp://{address} is open to other machines, and ZeroMQ does not say who is there. Give it a key: \
                 --zmq-key FILE, or keep it on 127.0.0.1. Or, where everybody who reaches it may come in: --insecure"
            ))),
        }
    }

    /// Whether that is an address at which not everybody may come in.
    fn minds(&self, address: SocketAddr) -> bool {
        !self.insecure && !address.ip().to_canonical().is_loopback()
    }
}

/// What a way in may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) way: Way,
    pub(crate) powers: Vec<Power>,
}

/// The value of `--grant`.
pub(crate) fn parse_grant(text: &str) -> Result<Grant, String> {
    let (way, powers) = text.split_once('=').ok_or("write WAY=ATTRIBUTE,.., such as zmq=prio")?;
    let powers = powers.split(',').filter(|power| !power.is_empty());
    Ok(Grant { way: way.parse()?, powers: powers.map(str::parse).collect::<Result<_, _>>()? })
}

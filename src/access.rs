//! Flags about who may come in, and what is read from the file that says who that is.

use std::path::Path;

use clap::Args;
use tidings_broker::{
    Broker, BrokerConfig,
    access::{Right, Rights},
};
use tidings_protocol::TopicName;

use crate::{failure::Failure, principals::Principals};

/// Who may come in, and what those may do who do not say who they are.
#[derive(Debug, Clone, Args)]
pub(crate) struct AccessFlags {
    /// What those may do who do not log in, once `tidings token` knows somebody: rights as in `tidings token create`; may be
    /// given several times [default: nothing]
    #[arg(long, value_name = "RIGHT")]
    strangers: Vec<Right>,

    /// The topic that plain lines go to and come from, as nc and telnet have them [default: new-url; off once `tidings token`
    /// knows somebody]
    #[arg(long, value_name = "TOPIC")]
    notifier: Option<TopicName>,

    /// Listen for other machines although anybody there may then do everything, or read what is sent
    #[arg(long)]
    insecure: bool,
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

    /// Writes them into a configuration, with what the data directory knows of people and programs. Refuses addresses that
    /// other machines reach, unless who comes from there has to say who it is, within TLS.
    pub(crate) fn apply(&self, config: &mut BrokerConfig, data: &Path) -> Result<(), Failure> {
        let principals = Principals::at(data).read()?;
        config.access.principals = principals;
        config.access.strangers = Rights::new(self.strangers.clone(), Vec::new());
        config.access.notifier.clone_from(&self.notifier);
        // Who has all the files may do everything that they say.
        config.access.own_users = vec![rustix::process::geteuid().as_raw(), 0];
        self.judge(config, data)
    }

    fn judge(&self, config: &BrokerConfig, data: &Path) -> Result<(), Failure> {
        let http = config.http.as_ref().map(|http| ("--http", http.listen));
        let lines = Some(("--listen", config.listen));
        for (flag, address) in lines.into_iter().chain(http) {
            if self.insecure || address.ip().to_canonical().is_loopback() {
                continue;
            }
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
                     --tls-cert FILE --tls-key FILE, or listen on 127.0.0.1 behind something that does. Or, where nobody \
                     listens in: --insecure"
                )));
            }
        }
        Ok(())
    }
}

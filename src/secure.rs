//! Flags of listeners that are encrypted, or reached from this machine only.

use std::path::{Path, PathBuf};

use clap::Args;
use tidings_broker::{BrokerConfig, TlsConfig, UnixConfig};

use crate::{failure::Failure, principals::Principals};

/// The unix socket in the data directory of a broker whose other listeners are encrypted.
const SOCKET: &str = "broker.sock";

/// What --listen and --http are encrypted with, and where else the broker listens.
#[derive(Debug, Clone, Args)]
pub(crate) struct SecureFlags {
    /// PEM file with the certificate chain for --listen and --http; reloaded when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// PEM file with the private key of --tls-cert
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// PEM file with the authorities that may sign client certificates; a client may connect
    /// without one
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    client_ca: Option<PathBuf>,

    /// PEM file with revocation lists, at least one for each authority of --client-ca
    ///
    /// Without a current list, certificates of that authority are rejected.
    #[arg(long, value_name = "FILE", requires = "client_ca")]
    client_crl: Option<PathBuf>,

    /// Also listen for the line protocol on this unix socket [default with TLS or tokens:
    /// DIR/broker.sock]
    #[arg(long, value_name = "PATH")]
    unix: Option<PathBuf>,

    /// Permissions of the --unix socket, in octal
    #[arg(long, value_name = "MODE", default_value = "600", value_parser = parse_mode)]
    unix_mode: u32,
}

impl SecureFlags {
    /// Whether what comes over the network is encrypted.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.tls_cert.is_some()
    }

    /// Files that are read while it serves.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        let files = [&self.tls_cert, &self.tls_key, &self.client_ca, &self.client_crl].into_iter();
        files.filter_map(|file| file.as_deref())
    }

    /// Where the unix socket is made, outside of the data directory.
    pub(crate) fn socket(&self) -> Option<&Path> {
        self.unix.as_deref()
    }

    /// Writes them into a configuration; `data` is the data directory.
    pub(crate) fn apply(&self, config: &mut BrokerConfig, data: &Path) -> Result<(), Failure> {
        config.tls = match (&self.tls_cert, &self.tls_key) {
            (Some(cert), Some(key)) => {
                if self.client_crl.is_some() && self.client_ca.is_none() {
                    // The one may be in the configuration file without the other.
                    let text = "--client-crl is about certificates of --client-ca FILE";
                    return Err(Failure::Usage(text.to_owned()));
                }
                Some(TlsConfig {
                    cert: cert.clone(),
                    key: key.clone(),
                    client_ca: self.client_ca.clone(),
                    client_crl: self.client_crl.clone(),
                })
            }
            (None, None) => None,
            // One of them may be in the configuration file.
            _ => {
                let text = "TLS needs a certificate and its key: --tls-cert FILE --tls-key FILE";
                return Err(Failure::Usage(text.to_owned()));
            }
        };
        // What works for the broker on this machine, its own crawler first of all, connects as any other client does.
        // It would have to trust a certificate that is for a name under which others reach this machine, and that
        // may change at any time. A socket that is this user's alone needs none of that, and commands on the same data
        // directory find it there.
        let is_closed = config.tls.is_some() || Principals::at(data).path().exists();
        let own = || is_closed.then(|| data.join(SOCKET));
        if let Some(path) = self.unix.clone().or_else(own) {
            // Others find it from where they are.
            let path = std::path::absolute(&path)
                .map_err(|error| Failure::Usage(format!("{}: {error}", path.display())))?;
            config.unix = Some(UnixConfig { path, mode: self.unix_mode });
        }
        Ok(())
    }
}

fn parse_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "write permissions in octal digits, such as 600 or 660".to_owned())
}

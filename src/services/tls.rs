//! Flags for TLS and for the unix socket.

use std::os::unix::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use tidings_broker::{BrokerConfig, TlsConfig, UnixConfig};

use crate::services::principals::AccessFile;
use crate::services::sinks::check_parent;
use crate::terminal::failure::Failure;

/// The unix socket in the data directory of a broker that requires TLS or login.
pub(crate) const BROKER_SOCKET: &str = "broker.sock";

/// The certificates of --listen and --http, and the unix socket.
#[derive(Debug, Clone, Args)]
pub(crate) struct TlsFlags {
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

impl TlsFlags {
    /// Whether network listeners use TLS.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.tls_cert.is_some()
    }

    /// Files that the broker reads while it runs.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        let files = [&self.tls_cert, &self.tls_key, &self.client_ca, &self.client_crl].into_iter();
        files.filter_map(|file| file.as_deref())
    }

    /// The path of the unix socket, if a flag sets it.
    pub(crate) fn unix_path(&self) -> Option<&Path> {
        self.unix.as_deref()
    }

    fn config(&self) -> Option<TlsConfig> {
        match (&self.tls_cert, &self.tls_key) {
            (Some(cert), Some(key)) => Some(TlsConfig {
                cert: cert.clone(),
                key: key.clone(),
                client_ca: self.client_ca.clone(),
                client_crl: self.client_crl.clone(),
            }),
            (None, None) => None,
            _ => unreachable!("the parser accepts only both, also in the file"),
        }
    }

    /// Whether the files can be used.
    pub(crate) fn check_files(&self) -> Result<(), Failure> {
        let checked = self.config().map_or(Ok(()), |config| config.check());
        checked.map_err(|error| Failure::Usage(format!("TLS: {error}")))
    }

    /// Whether a socket can be made at the path of `--unix`.
    pub(crate) fn check_unix(&self) -> Result<(), Failure> {
        let Some(path) = &self.unix else { return Ok(()) };
        SocketAddr::from_pathname(path)
            .map_err(|error| Failure::Usage(format!("--unix {}: {error}", path.display())))?;
        check_parent("--unix", path)
    }

    /// Writes the flags into a configuration; `data` is the data directory.
    pub(crate) fn apply(&self, config: &mut BrokerConfig, data: &Path) -> Result<(), Failure> {
        config.tls = self.config();
        // The parts of this process, such as its crawler, connect like other clients. Over TLS they
        // would have to trust a certificate that is issued for a public name and may change at any
        // time. A socket that only this user can open avoids that, and commands on the same data
        // directory find it there.
        let is_closed = config.tls.is_some() || AccessFile::at(data).path().exists();
        let own = || is_closed.then(|| data.join(BROKER_SOCKET));
        if let Some(path) = self.unix.clone().or_else(own) {
            // Other processes may run in another directory.
            let path = std::path::absolute(&path)
                .map_err(|error| Failure::Usage(format!("{}: {error}", path.display())))?;
            config.unix = Some(UnixConfig { path, mode: self.unix_mode });
        }
        Ok(())
    }
}

fn parse_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "expected permissions in octal digits, such as 600 or 660".to_owned())
}

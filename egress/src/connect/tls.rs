//! TLS with rustls and the certificate authorities of the system.

use std::io;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::ServerName;
use rustls::{CertificateError, ClientConfig, RootCertStore};
use tidings_protocol::partial_debug;
use tidings_protocol::readable::plural;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::{HttpProtocol, Stream};
use crate::failure::{Failure, Reason, causes};

const SECONDS_PER_DAY: u64 = 24 * 60 * 60;

const HTTP2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

pub(super) struct TlsClient(TlsConnector);

/// The certificate authorities of the system, or those in `SSL_CERT_FILE` and `SSL_CERT_DIR`.
/// Without any, only plain HTTP can be crawled, and a warning is logged.
pub fn system_roots() -> RootCertStore {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let errors: Vec<String> = found.errors.iter().map(ToString::to_string).collect();
        let reason =
            if errors.is_empty() { "none were found".to_owned() } else { errors.join("; ") };
        tracing::warn!("https pages will fail until this system has CA certificates: {reason}");
    }
    roots
}

/// The settings of a client that trusts these certificate authorities.
pub fn client_config(roots: RootCertStore) -> ClientConfig {
    ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider supports the TLS versions of rustls")
        .with_root_certificates(roots)
        .with_no_client_auth()
}

impl TlsClient {
    pub(super) fn new(roots: RootCertStore) -> Self {
        let mut config = client_config(roots);
        config.alpn_protocols = vec![HTTP2.to_vec(), HTTP1.to_vec()];
        Self(TlsConnector::from(Arc::new(config)))
    }

    /// Trusts these authorities, and offers HTTP/2 and HTTP/1.1.
    pub(super) fn config(&self) -> ClientConfig {
        ClientConfig::clone(self.0.config())
    }

    /// `host` as in a URL.
    pub(super) async fn handshake(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> Result<(Stream, HttpProtocol), Failure> {
        let name = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(name)
            .map_err(|error| Failure::of(Reason::Tls, &error).with_context("TLS: "))?
            .to_owned();
        let stream =
            self.0.connect(name, stream).await.map_err(|error| handshake_failure(&error))?;
        let protocol = match stream.get_ref().1.alpn_protocol() {
            Some(HTTP2) => HttpProtocol::Http2,
            _ => HttpProtocol::Http1,
        };
        Ok((Stream::Right(Box::new(stream)), protocol))
    }
}

partial_debug!(TlsClient {});

fn handshake_failure(error: &io::Error) -> Failure {
    let tls = causes(error).find_map(|error| error.downcast_ref::<rustls::Error>());
    if let Some(rustls::Error::InvalidCertificate(CertificateError::ExpiredContext {
        time,
        not_after,
    })) = tls
    {
        let days = time.as_secs().saturating_sub(not_after.as_secs()) / SECONDS_PER_DAY;
        let text = format!("TLS: the certificate expired {} ago", plural(days, "day"));
        return Failure::new(Reason::Certificate, text);
    }
    let reason = match tls {
        Some(rustls::Error::InvalidCertificate(_)) => Reason::Certificate,
        Some(_) => Reason::Tls,
        None => Reason::Reset,
    };
    Failure::of(reason, error).with_context("TLS: ")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustls::pki_types::UnixTime;

    use super::*;

    #[test]
    fn an_expired_certificate_is_reported_in_days() {
        let at =
            |days: u64| UnixTime::since_unix_epoch(Duration::from_secs(days * SECONDS_PER_DAY + 5));
        let expired = CertificateError::ExpiredContext { time: at(20_000), not_after: at(19_000) };
        let error = io::Error::other(rustls::Error::InvalidCertificate(expired));
        let failure = handshake_failure(&error);
        let expected =
            Failure::new(Reason::Certificate, "TLS: the certificate expired 1,000 days ago");
        assert_eq!(failure, expected);
    }
}

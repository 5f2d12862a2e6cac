//! Opens connections to a broker: over TCP, with or without TLS, or to a unix socket.

#![expect(clippy::disallowed_methods, reason = "tries several addresses")]

use std::net::SocketAddr;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use jiff::Timestamp;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName, UnixTime,
};
use rustls::{AlertDescription, CertificateError, ClientConfig, RootCertStore};
use socket2::{SockRef, TcpKeepalive};
use tidings_protocol::{ALPN, Token};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_rustls::TlsConnector;

use crate::error::ClientError;

/// The beginning of the address of a unix socket.
pub const UNIX_PREFIX: &str = "unix:";

/// TLS settings. The files are read for every connection, so the next one uses files that were
/// replaced.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientTls {
    /// The trusted authorities of the broker's certificate (PEM). Default: those of the system.
    pub ca: Option<PathBuf>,
    /// Lists of revoked certificates (PEM); each authority that the broker's certificate rests on
    /// needs one. Default: revocation is not checked.
    pub crl: Option<PathBuf>,
    /// The client certificate, followed by those between it and its authority (PEM). Default: none.
    pub cert: Option<PathBuf>,
    /// Its key (PEM, not encrypted). Default: in the same file.
    pub key: Option<PathBuf>,
}

/// How a connection is protected, and how the client logs in. Default: neither.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Security {
    /// TLS, unless the address is a unix socket.
    pub tls: Option<ClientTls>,
    /// The token to log in with. It is sent over the network only within TLS.
    pub token: Option<TokenSource>,
}

/// Where the token comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenSource {
    /// The token itself.
    Given(Token),
    /// A file that contains only the token, and is read for every connection.
    File(PathBuf),
}

impl TokenSource {
    /// Reads the token.
    pub(super) fn token(&self) -> Result<Token, String> {
        let path = match self {
            Self::Given(token) => return Ok(token.clone()),
            Self::File(path) => path,
        };
        let text = String::from_utf8(read(path)?);
        let token = text.ok().and_then(|text| Token::new(text.trim()).ok());
        token.ok_or_else(|| {
            format!("{} does not contain a token: expected one word", path.display())
        })
    }
}

type BoxedReader = Box<dyn AsyncRead + Unpin + Send>;
type BoxedWriter = Box<dyn AsyncWrite + Unpin + Send>;

/// How long one of several addresses may take before the next one is tried beside it.
const NEXT_AFTER: Duration = Duration::from_secs(1);

/// The two halves of a connection to the first of these addresses that answers; with commas between
/// them. The error is that of the last one.
pub(super) async fn dial(
    addresses: &str,
    security: &Security,
) -> Result<(BoxedReader, BoxedWriter), ClientError> {
    if addresses.starts_with(UNIX_PREFIX) || !addresses.contains(',') {
        return dial_one(addresses, security).await;
    }
    let mut left = addresses.split(',').peekable();
    let mut tried = JoinSet::new();
    loop {
        if let Some(address) = left.next() {
            let (address, security) = (address.to_owned(), security.clone());
            tried.spawn(async move { dial_one(&address, &security).await });
        }
        let is_last = left.peek().is_none();
        tokio::select! {
            Some(dialled) = tried.join_next() => match dialled {
                Err(error) => resume_unwind(error.into_panic()),
                Ok(Ok(halves)) => return Ok(halves),
                Ok(Err(error)) if is_last && tried.is_empty() => return Err(error),
                Ok(Err(_)) => {}
            },
            () = sleep(NEXT_AFTER), if !is_last => {}
        }
    }
}

/// The two halves of a connection to `HOST:PORT` or `unix:PATH`; the latter never has TLS.
async fn dial_one(
    address: &str,
    Security { tls, token }: &Security,
) -> Result<(BoxedReader, BoxedWriter), ClientError> {
    let failed = |error: io::Error| ClientError::Connect {
        address: address.to_owned(),
        reason: error.to_string(),
    };
    if let Some(path) = address.strip_prefix(UNIX_PREFIX) {
        #[cfg(unix)]
        {
            let stream = tokio::net::UnixStream::connect(path).await.map_err(failed)?;
            let (reader, writer) = stream.into_split();
            return Ok((Box::new(reader), Box::new(writer)));
        }
        #[cfg(not(unix))]
        return Err(failed(io::Error::other(format!(
            "unix sockets are not available on this system: {path}"
        ))));
    }
    let unsafe_ = |reason: String| ClientError::Tls { address: address.to_owned(), reason };
    // A mistake in the files is reported even if no broker is running.
    let config = tls.as_ref().map(tls_config).transpose().map_err(unsafe_)?;
    let stream = TcpStream::connect(address).await.map_err(failed)?;
    // The client batches lines itself, so the kernel need not wait for more.
    let _ = stream.set_nodelay(true);
    // Without it, a lost connection is noticed late.
    let _ = SockRef::from(&stream).set_tcp_keepalive(&keepalive());
    let Some(config) = config else {
        let is_here = |peer: SocketAddr| peer.ip().to_canonical().is_loopback();
        if token.is_some() && !stream.peer_addr().is_ok_and(is_here) {
            let reason = "a token is sent only over an encrypted connection; add --tls";
            return Err(unsafe_(reason.to_owned()));
        }
        let (reader, writer) = stream.into_split();
        return Ok((Box::new(reader), Box::new(writer)));
    };
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let name = ServerName::try_from(host.to_owned()).map_err(|_| {
        unsafe_(format!("{host} is not a host name or address, so no certificate can match it"))
    })?;
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
    let stream = stream.map_err(|error| match tls_cause(&error) {
        Some(tls) => unsafe_(handshake_error(tls, host)),
        None if error.kind() == io::ErrorKind::UnexpectedEof => ClientError::Closed(format!(
            "{address} closed it before it was encrypted; a broker does so at its limit of connections"
        )),
        None => failed(error),
    })?;
    let (reader, writer) = tokio::io::split(stream);
    Ok((Box::new(reader), Box::new(writer)))
}

/// A client that only receives would not notice that the broker's machine is gone. The system
/// probes after a minute of silence, and gives up after another.
fn keepalive() -> TcpKeepalive {
    let (silence, pause) = (Duration::from_mins(1), Duration::from_secs(15));
    TcpKeepalive::new().with_time(silence).with_interval(pause).with_retries(4)
}

fn tls_config(ClientTls { ca, crl, cert, key }: &ClientTls) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    if let Some(path) = ca {
        for authority in certificates(path)? {
            roots.add(authority).map_err(|error| format!("{}: {error}", path.display()))?;
        }
    } else {
        let found = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(found.certs);
        if roots.is_empty() {
            return Err(
                "this system has no trusted authorities; name one with --ca FILE".to_owned()
            );
        }
    }
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("the provider knows the versions of TLS that rustls does");
    let builder = match crl {
        None => builder.with_root_certificates(roots),
        Some(path) => {
            let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
                .with_crls(revocation_lists(path)?)
                .enforce_revocation_expiration()
                .build()
                .map_err(|error| format!("{}: {error}", path.display()))?;
            builder.with_webpki_verifier(verifier)
        }
    };
    let mut config = match cert {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let chain = certificates(path)?;
            let path = key.as_ref().unwrap_or(path);
            let key = PrivateKeyDer::from_pem_slice(&read(path)?).map_err(|_| {
                format!("{} contains no private key in PEM (--cert-key)", path.display())
            })?;
            builder.with_client_auth_cert(chain, key).map_err(|error| {
                if is_old(&error) {
                    return OLD_CERTIFICATE.replace("the certificate", "the certificate of --cert");
                }
                format!(
                    "the key in {} does not fit the certificate of --cert: {error}",
                    path.display()
                )
            })?
        }
    };
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// What to do about a certificate of an earlier version.
const OLD_CERTIFICATE: &str = "the certificate is X.509 version 1, and version 3 is needed; sign it again with extensions, such \
     as openssl x509 -req .. -extfile FILE";

/// Whether the error is about such a certificate, for which rustls has no variant.
fn is_old(error: &dyn ToString) -> bool {
    error.to_string().contains("UnsupportedCertVersion")
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(path)?).collect();
    let found = found.map_err(|error| format!("{}: {error}", path.display()))?;
    if found.is_empty() {
        return Err(format!("{} contains no certificate in PEM", path.display()));
    }
    Ok(found)
}

/// All revocation lists of a file, at least one.
fn revocation_lists(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, String> {
    let lists: Result<Vec<_>, _> =
        CertificateRevocationListDer::pem_slice_iter(&read(path)?).collect();
    let lists = lists.map_err(|error| format!("{}: {error}", path.display()))?;
    if lists.is_empty() {
        return Err(format!("{} contains no list of revoked certificates in PEM", path.display()));
    }
    Ok(lists)
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

/// Explains a failed handshake, and says what to do.
fn handshake_error(error: &rustls::Error, host: &str) -> String {
    match error {
        rustls::Error::InvalidCertificate(error) => certificate_error_text(error, host),
        rustls::Error::InvalidMessage(_) => {
            "the server does not speak TLS; if it is the broker, leave --tls out".into()
        }
        rustls::Error::PeerIncompatible(_)
        | rustls::Error::AlertReceived(AlertDescription::ProtocolVersion) => {
            format!("the server supports neither TLS 1.2 nor TLS 1.3 ({error})")
        }
        rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol) => {
            "the server does not offer the line protocol".into()
        }
        error => tls_error_text(error),
    }
}

/// The TLS error inside an error of a socket.
fn tls_cause(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// The text of an error after the handshake, such as a rejected client certificate.
pub(super) fn io_error_text(error: &io::Error) -> String {
    tls_cause(error).map_or_else(|| error.to_string(), tls_error_text)
}

fn tls_error_text(error: &rustls::Error) -> String {
    use AlertDescription as Alert;

    match error {
        rustls::Error::AlertReceived(Alert::CertificateRequired) => {
            "the broker requires a client certificate: --cert FILE --cert-key FILE".into()
        }
        rustls::Error::AlertReceived(
            alert @ (Alert::UnknownCA
            | Alert::BadCertificate
            | Alert::CertificateExpired
            | Alert::CertificateRevoked
            | Alert::CertificateUnknown
            | Alert::UnsupportedCertificate
            | Alert::DecryptError
            | Alert::AccessDenied),
        ) => format!("the broker rejected the client certificate (--cert): {alert:?}"),
        error => error.to_string(),
    }
}

fn certificate_error_text(error: &CertificateError, host: &str) -> String {
    match error {
        CertificateError::NotValidForNameContext { presented, .. } if !presented.is_empty() => {
            let names: Vec<_> = presented.iter().map(|name| dns_name(name)).collect();
            format!("the certificate is for {}, not for {host}", names.join(", "))
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!("the certificate is not for {host}: it has no matching subjectAltName")
        }
        CertificateError::ExpiredContext { not_after, .. } => {
            format!("the certificate expired on {}", format_date(*not_after))
        }
        CertificateError::Expired => "the certificate has expired".into(),
        CertificateError::NotValidYetContext { not_before, .. } => {
            let from = format_date(*not_before);
            format!("the certificate is not valid before {from}, or the clock here is wrong")
        }
        CertificateError::UnknownIssuer => {
            "the certificate is not signed by a trusted authority; name its authority with --ca FILE, and make sure \
             that the certificate file of the broker holds the whole chain"
                .into()
        }
        CertificateError::UnsupportedSignatureAlgorithmContext { .. }
        | CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. }
        | CertificateError::BadSignature => {
            "the certificate is not signed by a trusted authority: one of the same name has another key; name the \
             right authority with --ca FILE"
                .into()
        }
        CertificateError::Revoked => "the certificate was revoked (--crl)".into(),
        CertificateError::UnknownRevocationStatus => {
            "cannot check whether the certificate was revoked: --crl has no list of its authority".into()
        }
        CertificateError::ExpiredRevocationList
        | CertificateError::ExpiredRevocationListContext { .. } => {
            "cannot check whether the certificate was revoked: the list of --crl is out of date".into()
        }
        error if is_old(error) => OLD_CERTIFICATE.into(),
        // rustls has no variant for it.
        error if error.to_string().contains("CaUsedAsEndEntity") => {
            "the broker uses the certificate of an authority (basicConstraints CA:TRUE); it needs one of its own"
                .into()
        }
        error => format!("the certificate cannot be trusted: {error}"),
    }
}

/// `broker.example` from `DnsName("broker.example")`, the form in which rustls lists names.
fn dns_name(presented: &str) -> &str {
    let inner = presented.split_once('(').map_or(presented, |(_, inner)| inner);
    inner.trim_end_matches(')').trim_matches('"')
}

fn format_date(time: UnixTime) -> String {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).map_or_else(|_| "?".to_owned(), |time| time.to_string())
}

//! TLS: the broker's certificate, the client certificates that it accepts, and the reload of their
//! files.
//!
//! - TLS 1.2 and 1.3. No session is resumed: a client shows its certificate each time, so a revoked
//!   one opens nothing, and an idle connection stores no ticket secret.
//! - Lines and HTTP have different protocol names (ALPN). A browser that is led to the port of
//!   lines offers only its own names, and fails in the handshake.

mod certificate_name;
mod chain;
mod file_watch;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, VerifierBuilderError, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{InconsistentKeys, RootCertStore, ServerConfig};
use tidings_protocol::ALPN;

pub(crate) use self::certificate_name::certificate_name;
use self::chain::Gap;
use self::file_watch::FileWatch;
use crate::clock::wall_unix_ms;

/// The name of HTTP in the handshake (ALPN).
const ALPN_HTTP: &[u8] = b"http/1.1";

/// Bytes of one file. A chain of certificates has a few kibibytes, a bundle of authorities some
/// hundred.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Bytes that are encrypted at once before the socket has accepted them, and thus the most that
/// waits here for a client that does not read. This much, one record, if the socket did not take
/// everything the last time;
pub(crate) const ENCRYPT_BYTES_MIN: usize = 16 << 10;
/// and in steps up to this much if it did, because each write costs the kernel and the reader.
/// Together with the overhead of its records this is at most what the kernel buffers for a client
/// that does not read (`Limits::unsent_bytes`).
pub(crate) const ENCRYPT_BYTES_MAX: usize = (128 << 10) - 512;

/// What to do about a certificate of an earlier version.
const OLD_CERTIFICATE: &str = "the certificate is X.509 version 1, and version 3 is needed; sign it again with extensions, such \
     as openssl x509 -req .. -extfile FILE";

/// The files of keys and certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsConfig {
    /// The broker's certificate, followed by those between it and an authority, in this order
    /// (PEM).
    pub cert: PathBuf,
    /// The key of the first certificate (PEM; PKCS#8, PKCS#1 or SEC1; not encrypted).
    pub key: PathBuf,
    /// The authorities of client certificates (PEM, any number). Default `None`: no certificate is
    /// requested. With authorities, a client may still connect without a certificate.
    pub client_ca: Option<PathBuf>,
    /// Lists of revoked client certificates (PEM, any number); each authority that a client's
    /// certificate rests on needs one. Default `None`: revocation is not checked. Ignored without
    /// `client_ca`.
    pub client_crl: Option<PathBuf>,
}

/// Why the files cannot be used. The operator's fault; the text names the file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The file cannot be read.
    #[error("cannot read {}: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        reason: String,
    },
    /// The file does not contain what it should.
    #[error("{} contains no {what}: expected {expected}{hint}", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// What is missing.
        what: &'static str,
        /// How it begins in PEM.
        expected: &'static str,
        /// What else may be wrong, or nothing.
        hint: &'static str,
    },
    /// The file ends in the middle of a block of PEM.
    #[error("{} is cut off: -----END {label}----- is missing; copy the whole file again", path.display())]
    CutOff {
        /// The file.
        path: PathBuf,
        /// What the block contains.
        label: String,
    },
    /// The key is encrypted.
    #[error(
        "the key in {} is encrypted, which is not supported; decrypt it with: openssl pkey -in {} -out FILE",
        path.display(),
        path.display()
    )]
    Encrypted {
        /// The file.
        path: PathBuf,
    },
    /// Key and certificate do not belong together.
    #[error("the key in {} does not belong to the certificate in {}; {hint}", key.display(), cert.display())]
    Mismatch {
        /// The file of the key.
        key: PathBuf,
        /// The file of the certificate.
        cert: PathBuf,
        /// What to do.
        hint: &'static str,
    },
    /// The file has a form that cannot be used.
    #[error("cannot use {}: {reason}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// Bytes that are read in a handshake: today's have 2 KiB, and data directly behind one is read 4
/// KiB at a time.
const HANDSHAKE_BYTES_MAX: usize = 8 << 10;

/// The same if the client may show a certificate, with its chain.
const CLIENT_CERT_HANDSHAKE_BYTES_MAX: usize = 32 << 10;

/// The TLS configuration from the last good state of the files.
#[derive(Debug)]
pub(crate) struct Tls {
    config: TlsConfig,
    current: ArcSwap<ListenerConfigs>,
    file_watch: Mutex<FileWatch>,
}

/// One configuration for each listener; they differ in the protocol name.
#[derive(Debug)]
struct ListenerConfigs {
    lines: Arc<ServerConfig>,
    http: Arc<ServerConfig>,
    /// When the broker's certificate expires, in seconds since 1970.
    not_after_unix_s: Option<u64>,
}

impl TlsConfig {
    /// Whether the files can be used. The error is the first mistake found.
    pub fn check(&self) -> Result<(), TlsError> {
        load(self).map(drop)
    }
}

impl Tls {
    /// Reads the files. The error is the first mistake found.
    pub(crate) fn open(config: TlsConfig) -> Result<Self, TlsError> {
        // Before the files are read, so that a later change is noticed.
        let watched = FileWatch::new(&config);
        let current = ArcSwap::from_pointee(load(&config)?);
        Ok(Self { config, current, file_watch: Mutex::new(watched) })
    }

    /// The configuration of the line protocol, and the bytes that a handshake may have.
    pub(crate) fn line_config(&self) -> (Arc<ServerConfig>, usize) {
        (Arc::clone(&self.current.load().lines), self.handshake_bytes_max())
    }

    /// The same for HTTP.
    pub(crate) fn http_config(&self) -> (Arc<ServerConfig>, usize) {
        (Arc::clone(&self.current.load().http), self.handshake_bytes_max())
    }

    /// When the broker's certificate expires, in seconds since 1970.
    pub(crate) fn not_after_unix_s(&self) -> Option<u64> {
        self.current.load().not_after_unix_s
    }

    fn handshake_bytes_max(&self) -> usize {
        if self.config.client_ca.is_some() {
            CLIENT_CERT_HANDSHAKE_BYTES_MAX
        } else {
            HANDSHAKE_BYTES_MAX
        }
    }

    /// Reloads the files if they have changed, and not since the last call. If they cannot be used,
    /// the old configuration stays, and the log reports it once for each change. To be called every
    /// second or so.
    pub(crate) fn reload_if_changed(&self) {
        if !self.file_watch.lock().have_settled(&self.config) {
            return;
        }
        match load(&self.config) {
            Ok(fresh) => {
                self.current.store(Arc::new(fresh));
                tracing::info!("TLS: the new certificate is used for new connections");
            }
            Err(error) => {
                tracing::error!(%error, "TLS: the files have changed and cannot be used; the old certificate stays");
            }
        }
    }
}

fn load(config: &TlsConfig) -> Result<ListenerConfigs, TlsError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let key = Arc::new(certified_key(config, &provider)?);
    let not_after_unix_s = key.cert.first().and_then(chain::not_after_unix_s);
    let now_s = wall_unix_ms().unsigned_abs() / 1_000;
    if not_after_unix_s.is_some_and(|end_s| end_s < now_s) {
        // Not an error: a broker that does not start would help nobody.
        tracing::warn!(
            "{} has expired; clients cannot connect until it is renewed",
            config.cert.display()
        );
    }
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("the provider knows the versions of TLS that rustls does");
    let builder = match &config.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let unusable = |reason: &dyn ToString| TlsError::Unusable {
                path: path.clone(),
                reason: reason.to_string(),
            };
            let mut roots = RootCertStore::empty();
            for authority in certificates(path)? {
                roots.add(authority).map_err(|error| unusable(&error))?;
            }
            let mut verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                    .allow_unauthenticated();
            if let Some(path) = &config.client_crl {
                // An attacker may withhold a list, so a missing or expired one rejects the client.
                verifier =
                    verifier.with_crls(revocation_lists(path)?).enforce_revocation_expiration();
            }
            let verifier =
                verifier.build().map_err(|error: VerifierBuilderError| unusable(&error))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut lines = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(key)));
    lines.session_storage = Arc::new(NoServerSessionStorage {});
    lines.send_tls13_tickets = 0;
    let mut http = lines.clone();
    lines.alpn_protocols = vec![ALPN.to_vec()];
    http.alpn_protocols = vec![ALPN_HTTP.to_vec()];
    Ok(ListenerConfigs { lines: Arc::new(lines), http: Arc::new(http), not_after_unix_s })
}

fn certified_key(
    TlsConfig { cert, key, .. }: &TlsConfig,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, TlsError> {
    let chain = certificates(cert).map_err(|error| with_swap_hint(error, cert))?;
    let secret = private_key(key)?;
    let is_of_key = |certificate: &CertificateDer<'static>| {
        CertifiedKey::from_der(vec![certificate.clone()], secret.clone_key(), provider).is_ok()
    };
    let hint = if chain.iter().skip(1).any(is_of_key) {
        "put the certificate of the key first in the file"
    } else {
        "use the key with which the certificate was requested"
    };
    // Not an error: clients may have the missing certificate, for example as their authority.
    if let Some(Gap { subject, issuer }) = chain::gap(&chain) {
        tracing::warn!(
            "{} lacks the certificate of {issuer:?}, which issued {subject:?}; clients without it cannot \
             connect; append the certificates of its issuers to the file (fullchain.pem of certbot)",
            cert.display()
        );
    }
    CertifiedKey::from_der(chain, secret, provider).map_err(|error| match error {
        rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            TlsError::Mismatch { key: key.clone(), cert: cert.clone(), hint }
        }
        rustls::Error::InvalidCertificate(error) => {
            let error = error.to_string();
            let is_old = error.contains("UnsupportedCertVersion");
            let reason = if is_old { OLD_CERTIFICATE.to_owned() } else { error };
            TlsError::Unusable { path: cert.clone(), reason }
        }
        error => TlsError::Unusable { path: key.clone(), reason: error.to_string() },
    })
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let bytes = read(path)?;
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| {
        if memchr::memmem::find(&bytes, b"ENCRYPTED").is_some() {
            return TlsError::Encrypted { path: path.to_owned() };
        }
        match error {
            pem::Error::NoItemsFound => TlsError::Missing {
                path: path.to_owned(),
                what: "private key",
                expected: "-----BEGIN PRIVATE KEY-----",
                hint: "",
            },
            error => bad_pem(path, error),
        }
    })
}

/// A file with a key and no certificate is probably that of the other flag.
fn with_swap_hint(error: TlsError, path: &Path) -> TlsError {
    let holds_key = || read(path).is_ok_and(|bytes| PrivateKeyDer::from_pem_slice(&bytes).is_ok());
    match error {
        TlsError::Missing { path, what, expected, .. } if holds_key() => {
            let hint = "; it contains a private key, so --tls-cert and --tls-key may be swapped";
            TlsError::Missing { path, what, expected, hint }
        }
        error => error,
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    pem_items(path, "certificate", "-----BEGIN CERTIFICATE-----")
}

fn revocation_lists(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsError> {
    pem_items(path, "list of revoked certificates", "-----BEGIN X509 CRL-----")
}

/// All items of this type in a file, at least one.
fn pem_items<T: PemObject>(
    path: &Path,
    what: &'static str,
    expected: &'static str,
) -> Result<Vec<T>, TlsError> {
    let found: Result<Vec<T>, _> = T::pem_slice_iter(&read(path)?).collect();
    let found = found.map_err(|error| bad_pem(path, error))?;
    if found.is_empty() {
        return Err(TlsError::Missing { path: path.to_owned(), what, expected, hint: "" });
    }
    Ok(found)
}

fn bad_pem(path: &Path, error: pem::Error) -> TlsError {
    let path = path.to_owned();
    match error {
        pem::Error::MissingSectionEnd { end_marker } => {
            TlsError::CutOff { path, label: String::from_utf8_lossy(&end_marker).into_owned() }
        }
        error => TlsError::Unusable { path, reason: error.to_string() },
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let unreadable = |error: io::Error| TlsError::Unreadable {
        path: path.to_owned(),
        reason: error.to_string(),
    };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(unreadable)?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        let reason = format!("it has more than {FILE_BYTES_MAX} bytes");
        return Err(TlsError::Unusable { path: path.to_owned(), reason });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests;

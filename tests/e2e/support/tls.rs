//! Certificates, and TLS programs of other projects.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use data_encoding::HEXUPPER;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair, RevokedCertParams, SanType, SerialNumber,
    date_time_ymd,
};

use super::openssl::openssl;
use super::process::Process;

/// A certificate authority. Its folder contains the certificates and keys that it signs, as
/// NAME.pem and NAME.key.
pub(crate) struct CertificateAuthority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: PathBuf,
    name: String,
}

impl CertificateAuthority {
    /// Creates an authority with this name; its own certificate is NAME.pem.
    pub(crate) fn new(folder: &Path, name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        fs::write(folder.join(format!("{name}.key")), key.serialize_pem()).unwrap();
        let issuer = CertifiedIssuer::self_signed(params, key).unwrap();
        fs::write(folder.join(format!("{name}.pem")), issuer.pem()).unwrap();
        Self { issuer, folder: folder.to_owned(), name: name.to_owned() }
    }

    /// The file of its own certificate.
    pub(crate) fn certificate_file(&self) -> String {
        self.signed_file(&self.name, "pem")
    }

    /// The file of a signed certificate (`pem`) or its key (`key`).
    pub(crate) fn signed_file(&self, name: &str, kind: &str) -> String {
        self.folder.join(format!("{name}.{kind}")).to_str().unwrap().to_owned()
    }

    /// Signs a certificate for localhost and for a client with this name.
    pub(crate) fn sign(&self, name: &str) {
        self.sign_with(name, |_| ());
    }

    /// Like `sign`, but `adjust` may change the contents.
    pub(crate) fn sign_with(&self, name: &str, adjust: impl FnOnce(&mut CertificateParams)) {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.subject_alt_names.push(SanType::IpAddress("127.0.0.1".parse().unwrap()));
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        adjust(&mut params);
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        // A rename replaces the file of a running server atomically.
        for (kind, text) in [("pem", cert.pem()), ("key", key.serialize_pem())] {
            let (path, fresh) = (self.signed_file(name, kind), self.signed_file(name, "new"));
            fs::write(&fresh, text).unwrap();
            fs::rename(fresh, path).unwrap();
        }
    }
}

impl CertificateAuthority {
    /// Writes a revocation list with the certificates of these names; the list is current or
    /// expired.
    pub(crate) fn write_revocation_list(&self, names: &[&str], is_good: bool) -> String {
        let revoked = names.iter().map(|name| RevokedCertParams {
            serial_number: self.serial(name),
            revocation_time: date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 2),
            next_update: date_time_ymd(if is_good { 2120 } else { 2021 }, 1, 2),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = params.signed_by(&self.issuer).unwrap().pem().unwrap();
        let (path, fresh) =
            (self.signed_file("revoked", "crl"), self.signed_file("revoked", "new"));
        fs::write(&fresh, list).unwrap();
        fs::rename(fresh, &path).unwrap();
        path
    }

    /// The serial number of a signed certificate.
    fn serial(&self, name: &str) -> SerialNumber {
        let arguments = ["x509", "-noout", "-serial", "-in", &self.signed_file(name, "pem")];
        let output = String::from_utf8(openssl(&arguments, b"")).unwrap();
        let digits = output.trim().strip_prefix("serial=").unwrap();
        SerialNumber::from(HEXUPPER.decode(digits.as_bytes()).unwrap())
    }
}

/// Makes a certificate expired.
pub(crate) fn make_expired(params: &mut CertificateParams) {
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(2021, 2, 3);
}

/// Makes a certificate expire in five days.
pub(crate) fn make_nearly_expired(params: &mut CertificateParams) {
    params.not_after = (SystemTime::now() + Duration::from_hours(5 * 24)).into();
}

/// Makes a certificate valid for another host only.
pub(crate) fn make_for_other_host(params: &mut CertificateParams) {
    params.subject_alt_names = vec![SanType::DnsName("broker.example".try_into().unwrap())];
}

/// Starts `socat - OPENSSL:..`, which trusts this file.
#[track_caller]
pub(crate) fn start_socat(address: SocketAddr, ca: &str) -> Process {
    let target = format!("OPENSSL:localhost:{},cafile={ca}", address.port());
    // Waits for the last output as long as a test may take.
    Process::start(Command::new("socat").args(["-t", "60", "-", &target]))
}

/// Starts `openssl s_client`, which trusts this file, with more flags.
#[track_caller]
pub(crate) fn start_s_client(address: SocketAddr, ca: &str, flags: &[&str]) -> Process {
    let mut command = Command::new("openssl");
    command.args(["s_client", "-connect", &address.to_string(), "-CAfile", ca]);
    Process::start(command.arg("-verify_return_error").args(flags))
}

/// Starts `openssl s_server` on a free port, with more flags.
#[track_caller]
pub(crate) fn start_s_server(flags: &[&str]) -> (Process, SocketAddr) {
    let mut command = Command::new("openssl");
    let server = Process::start(command.args(["s_server", "-accept", "127.0.0.1:0"]).args(flags));
    let address =
        server.wait_for_line("address", |line| line.strip_prefix("ACCEPT ")?.trim().parse().ok());
    (server, address)
}

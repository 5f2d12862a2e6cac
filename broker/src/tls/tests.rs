use std::fs;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair,
    SanType,
};
use tempfile::TempDir;

use super::*;

/// A self-signed certificate and its key.
fn pair() -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

/// Files with these contents.
fn files(cert: &str, key: &str) -> (TempDir, TlsConfig) {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let (cert, key) = (at("cert", cert), at("key", key));
    (dir, TlsConfig { cert, key, client_ca: None, client_crl: None })
}

fn refused(cert: &str, key: &str) -> String {
    let (dir, config) = files(cert, key);
    let text = Tls::open(config).map(drop).unwrap_err().to_string();
    text.replace(dir.path().to_str().unwrap(), "DIR")
}

#[test]
fn mistakes_in_the_files_are_reported_with_their_names() {
    let ((cert, key), (_, other)) = (pair(), pair());
    let (_dir, config) = files(&cert, &key);
    assert!(Tls::open(config).is_ok());
    assert_eq!(refused("", &key), "DIR/cert holds no certificate in PEM");
    assert_eq!(refused(&key, &key), "DIR/cert holds no certificate in PEM");
    assert!(refused(&cert, &cert).starts_with("DIR/key holds no private key in PEM"));
    let mismatch = "the key in DIR/key is not that of the certificate in DIR/cert";
    assert_eq!(refused(&cert, &other), mismatch);
    let garbage = "-----BEGIN CERTIFICATE-----\n????\n-----END CERTIFICATE-----\n";
    assert!(refused(garbage, &key).starts_with("cannot use DIR/cert: "));
    let none = || "/none".into();
    let missing = TlsConfig { cert: none(), key: none(), client_ca: None, client_crl: None };
    assert!(Tls::open(missing).unwrap_err().to_string().starts_with("cannot read /none: "));
}

#[test]
fn changed_files_are_applied_when_they_are_valid_and_stable() {
    let (first, second) = (pair(), pair());
    let (_dir, config) = files(&first.0, &first.1);
    let tls = Tls::open(config.clone()).unwrap();
    let old = tls.lines().0;
    let is_old = || Arc::ptr_eq(&old, &tls.lines().0);
    tls.refresh();
    assert!(is_old(), "nothing has changed");
    // A new inode, so that the resolution of the file system's clock does not matter.
    let replace = |path: &Path, text: &str| {
        let fresh = path.with_extension("new");
        fs::write(&fresh, text).unwrap();
        fs::rename(fresh, path).unwrap();
    };
    replace(&config.cert, &second.0);
    for _ in 0..3 {
        tls.refresh();
        assert!(is_old(), "without its key it is good for nothing");
    }
    replace(&config.key, &second.1);
    tls.refresh();
    assert!(is_old(), "it may still be being written");
    tls.refresh();
    assert!(!is_old());
    let new = tls.lines().0;
    fs::remove_file(&config.key).unwrap();
    tls.refresh();
    tls.refresh();
    assert!(Arc::ptr_eq(&new, &tls.lines().0), "one that is gone changes nothing");
}

/// The name of a certificate with this subject and these alternative names.
fn called(common: &[DnType], text: &str, others: Vec<SanType>) -> Option<Box<str>> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    for kind in common {
        params.distinguished_name.push(kind.clone(), text);
    }
    params.subject_alt_names = others;
    let key = KeyPair::generate().unwrap();
    name(params.self_signed(&key).unwrap().der())
}

#[test]
fn a_client_has_its_common_name_or_its_first_alternative_name() {
    let san = |text: &str| SanType::DnsName(text.try_into().unwrap());
    let uri = SanType::URI("spiffe://example.org/crawler".try_into().unwrap());
    let common = [DnType::CommonName];
    assert_eq!(called(&common, "alice", vec![san("b.example")]).as_deref(), Some("alice"));
    assert_eq!(called(&common, "Jürgen", vec![]).as_deref(), Some("Jürgen"));
    assert_eq!(called(&[], "", vec![san("b.example"), uri.clone()]).as_deref(), Some("b.example"));
    let is_uri = Some("spiffe://example.org/crawler");
    assert_eq!(called(&[DnType::OrganizationName], "x", vec![uri]).as_deref(), is_uri);
    assert_eq!(called(&[], "", vec![]), None);
    for odd in ["", "a b", "a\nb", "a\u{202e}b", "a\u{0}", "*", &"a".repeat(257)] {
        assert_eq!(called(&common, odd, vec![san("b.example")]), None, "{odd:?}");
    }
}

#[test]
fn client_authorities_are_read_from_their_file() {
    let (cert, key) = pair();
    let (dir, mut config) = files(&cert, &key);
    let path = dir.path().join("authorities");
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    fs::write(&path, authority.pem()).unwrap();
    config.client_ca = Some(path.clone());
    assert!(Tls::open(config.clone()).is_ok());
    fs::write(&path, "").unwrap();
    let error = Tls::open(config.clone()).map(drop).unwrap_err();
    assert_eq!(error, TlsError::Missing { path: path.clone(), what: "certificate in PEM" });
    // Without a revocation list, revocation cannot be checked.
    fs::write(&path, authority.pem()).unwrap();
    config.client_crl = Some(path.clone());
    let error = Tls::open(config).map(drop).unwrap_err();
    let what = "list of revoked certificates in PEM";
    assert_eq!(error, TlsError::Missing { path, what });
}

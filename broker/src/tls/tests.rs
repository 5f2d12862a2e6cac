use std::fs;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, CustomExtension, DistinguishedName,
    DnType, IsCa, KeyPair, SanType,
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

fn open_error(cert: &str, key: &str) -> String {
    let (dir, config) = files(cert, key);
    let text = Tls::open(config).map(drop).unwrap_err().to_string();
    text.replace(dir.path().to_str().unwrap(), "DIR")
}

#[test]
fn mistakes_in_the_files_are_reported_with_their_names() {
    let ((cert, key), (_, other)) = (pair(), pair());
    let (_dir, config) = files(&cert, &key);
    assert!(Tls::open(config).is_ok());
    let no_certificate = "DIR/cert contains no certificate: expected -----BEGIN CERTIFICATE-----";
    assert_eq!(open_error("", &key), no_certificate);
    let swapped = open_error(&key, &cert);
    assert!(swapped.starts_with(no_certificate), "{swapped}");
    assert!(
        swapped.ends_with("it contains a private key, so --tls-cert and --tls-key may be swapped")
    );
    let no_key = "DIR/key contains no private key: expected -----BEGIN PRIVATE KEY-----";
    assert!(open_error(&cert, "").starts_with(no_key));
    assert!(open_error(&cert, &cert).starts_with(no_key));
    let encrypted = key.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
    let encrypted = open_error(&cert, &encrypted);
    assert!(encrypted.contains("DIR/key is encrypted") && encrypted.contains("openssl pkey"));
    let mismatch = open_error(&cert, &other);
    assert!(
        mismatch.starts_with("the key in DIR/key does not belong to the certificate in DIR/cert;")
    );
    let garbage = "-----BEGIN CERTIFICATE-----\n????\n-----END CERTIFICATE-----\n";
    assert!(open_error(garbage, &key).starts_with("cannot use DIR/cert: "));
    let none = || "/none".into();
    let missing = TlsConfig { cert: none(), key: none(), client_ca: None, client_crl: None };
    assert!(Tls::open(missing).unwrap_err().to_string().starts_with("cannot read /none: "));
}

#[test]
fn a_file_that_ends_within_a_block_is_named_with_what_is_missing() {
    let (cert, key) = pair();
    let cut = |text: &str| text[..text.len() / 2].to_owned();
    let in_cert = open_error(&cut(&cert), &key);
    assert_eq!(
        in_cert,
        "DIR/cert is cut off: -----END CERTIFICATE----- is missing; copy the whole file again"
    );
    assert_eq!(open_error(&format!("{cert}{}", cut(&cert)), &key), in_cert, "the second of two");
    assert_eq!(
        open_error(&cert, &cut(&key)),
        "DIR/key is cut off: -----END PRIVATE KEY----- is missing; copy the whole file again"
    );
}

/// A chain of three as PEM, from the authority down, and the key of the last one. With
/// `has_address`, the last one names where its issuer's certificate can be had.
fn chain(has_address: bool) -> ([String; 3], String) {
    let named = |name: &str| {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params
    };
    let authority = |name: &str| {
        let mut params = named(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        (params, KeyPair::generate().unwrap())
    };
    let (params, key) = authority("Root");
    let root = CertifiedIssuer::self_signed(params, key).unwrap();
    let (params, key) = authority("Middle");
    let middle = CertifiedIssuer::signed_by(params, key, &root).unwrap();
    let mut params = named("broker.example");
    if has_address {
        // Authority information access (RFC 5280, 4.2.2.1): caIssuers at the URL http://a/
        let url = b"http://a/";
        let issuers = b"\x06\x08\x2b\x06\x01\x05\x05\x07\x30\x02\x86\x09";
        let content = [b"\x30\x17\x30\x15".as_slice(), issuers, url].concat();
        let oid = [1, 3, 6, 1, 5, 5, 7, 1, 1];
        params.custom_extensions.push(CustomExtension::from_oid_content(&oid, content));
    }
    let key = KeyPair::generate().unwrap();
    let last = params.signed_by(&key, &middle).unwrap();
    ([root.pem(), middle.pem(), last.pem()], key.serialize_pem())
}

#[test]
fn a_gap_in_the_chain_is_found() {
    let ([root, middle, last], key) = chain(true);
    let gap = |text: &str| {
        let (_dir, config) = files(text, &key);
        chain::gap(&certificates(&config.cert).unwrap())
    };
    let missing = || Some(Gap { subject: "broker.example".into(), issuer: "Middle".into() });
    assert_eq!(gap(&last), missing());
    assert_eq!(gap(&format!("{last}{root}")), missing());
    // In any order but for the first, and with others (RFC 8446, 4.4.2).
    let (other, _) = pair();
    for complete in [
        format!("{last}{middle}"),
        format!("{last}{middle}{root}"),
        format!("{last}{root}{middle}"),
        format!("{last}{other}{middle}"),
    ] {
        assert_eq!(gap(&complete), None);
    }
    // A private authority may have signed it itself, and clients have that.
    let ([_, _, private], _) = chain(false);
    assert_eq!(gap(&private), None);
    // The clients may also have what is missing, so the broker starts.
    let (_dir, config) = files(&last, &key);
    assert!(Tls::open(config).is_ok());
    let wrong_first = open_error(&format!("{middle}{last}"), &key);
    assert!(
        wrong_first.ends_with("put the certificate of the key first in the file"),
        "{wrong_first}"
    );
}

#[test]
fn changed_files_are_applied_when_they_are_valid_and_stable() {
    let (first, second) = (pair(), pair());
    let (_dir, config) = files(&first.0, &first.1);
    let tls = Tls::open(config.clone()).unwrap();
    let old = tls.line_config().0;
    let is_old = || Arc::ptr_eq(&old, &tls.line_config().0);
    tls.reload_if_changed();
    assert!(is_old(), "nothing has changed");
    // A new inode, so that the resolution of the file system's clock does not matter.
    let replace = |path: &Path, text: &str| {
        let fresh = path.with_extension("new");
        fs::write(&fresh, text).unwrap();
        fs::rename(fresh, path).unwrap();
    };
    replace(&config.cert, &second.0);
    for _ in 0..3 {
        tls.reload_if_changed();
        assert!(is_old(), "without its key it cannot be used");
    }
    replace(&config.key, &second.1);
    tls.reload_if_changed();
    assert!(is_old(), "the file may still be changing");
    tls.reload_if_changed();
    assert!(!is_old());
    let new = tls.line_config().0;
    fs::remove_file(&config.key).unwrap();
    tls.reload_if_changed();
    tls.reload_if_changed();
    assert!(Arc::ptr_eq(&new, &tls.line_config().0), "a missing file changes nothing");
}

/// The name of a certificate with this subject and these alternative names.
fn name_of(common: &[DnType], text: &str, others: Vec<SanType>) -> Option<Box<str>> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    for kind in common {
        params.distinguished_name.push(kind.clone(), text);
    }
    params.subject_alt_names = others;
    let key = KeyPair::generate().unwrap();
    certificate_name(params.self_signed(&key).unwrap().der())
}

#[test]
fn a_client_has_its_common_name_or_its_first_alternative_name() {
    let san = |text: &str| SanType::DnsName(text.try_into().unwrap());
    let uri = SanType::URI("spiffe://example.org/crawler".try_into().unwrap());
    let common = [DnType::CommonName];
    assert_eq!(name_of(&common, "alice", vec![san("b.example")]).as_deref(), Some("alice"));
    assert_eq!(name_of(&common, "Jürgen", vec![]).as_deref(), Some("Jürgen"));
    assert_eq!(name_of(&[], "", vec![san("b.example"), uri.clone()]).as_deref(), Some("b.example"));
    let is_uri = Some("spiffe://example.org/crawler");
    assert_eq!(name_of(&[DnType::OrganizationName], "x", vec![uri]).as_deref(), is_uri);
    assert_eq!(name_of(&[], "", vec![]), None);
    for odd in ["", "a b", "a\nb", "a\u{202e}b", "a\u{0}", "*", &"a".repeat(257)] {
        assert_eq!(name_of(&common, odd, vec![san("b.example")]), None, "{odd:?}");
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
    assert!(error.to_string().contains("authorities contains no certificate"), "{error}");
    // Without a revocation list, revocation cannot be checked.
    fs::write(&path, authority.pem()).unwrap();
    config.client_crl = Some(path.clone());
    let error = Tls::open(config).map(drop).unwrap_err();
    assert!(error.to_string().contains("contains no list of revoked certificates"), "{error}");
}

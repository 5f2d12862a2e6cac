//! The name in a client's certificate.

use rustls::pki_types::CertificateDer;
use x509_cert::Certificate;
use x509_cert::der::asn1::{Ia5StringRef, PrintableStringRef, Utf8StringRef};
use x509_cert::der::oid::ObjectIdentifier;
use x509_cert::der::{Any, Decode};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::name::Name;

/// Bytes of a name. X.520 allows 64 characters for a common name; mail addresses have up to 254.
const NAME_BYTES_MAX: usize = 256;

/// The attribute "common name" (X.520, 6.2.2).
const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");

/// The common name of the subject. Without one, the first alternative name that is a URI, a host or
/// a mail address. `None` if that cannot be a name: it is empty, too long, or contains invisible
/// characters.
///
/// To be called with a verified certificate only. With two common names the result is `None`,
/// because it is not defined which of them counts.
pub(crate) fn certificate_name(certificate: &CertificateDer<'_>) -> Option<Box<str>> {
    let certificate = Certificate::from_der(certificate).ok()?.tbs_certificate;
    let attributes = certificate.subject.0.iter().flat_map(|set| set.0.iter());
    let mut common = attributes.filter(|attribute| attribute.oid == COMMON_NAME);
    if let Some(first) = common.next() {
        return common.next().is_none().then(|| text(&first.value)).flatten().and_then(check_name);
    }
    let (_, others) = certificate.get::<SubjectAltName>().ok()??;
    let other = others.0.into_iter().find_map(|name| match name {
        GeneralName::UniformResourceIdentifier(name)
        | GeneralName::DnsName(name)
        | GeneralName::Rfc822Name(name) => Some(name.to_string()),
        _ => None,
    })?;
    check_name(other)
}

/// The first common name in a name.
pub(super) fn common_name(name: &Name) -> Option<String> {
    let mut attributes = name.0.iter().flat_map(|set| set.0.iter());
    attributes.find(|attribute| attribute.oid == COMMON_NAME).and_then(|found| text(&found.value))
}

/// The forms of text that are in use, as ASCII or UTF-8.
fn text(value: &Any) -> Option<String> {
    if let Ok(text) = value.decode_as::<Utf8StringRef<'_>>() {
        return Some(text.as_str().to_owned());
    }
    if let Ok(text) = value.decode_as::<PrintableStringRef<'_>>() {
        return Some(text.as_str().to_owned());
    }
    value.decode_as::<Ia5StringRef<'_>>().ok().map(|text| text.as_str().to_owned())
}

/// A name is logged and compared, so a text that may look like another name or like several words
/// is rejected.
fn check_name(name: String) -> Option<Box<str>> {
    let is_plain = |c: char| c.is_alphanumeric() || "-_.:/@+~=".contains(c);
    let is_name = !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.chars().all(is_plain);
    is_name.then(|| name.into())
}

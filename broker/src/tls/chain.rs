//! Finds a gap in the chain of certificates of a file.

use rustls::pki_types::CertificateDer;
use x509_cert::der::Decode;
use x509_cert::der::oid::ObjectIdentifier;
use x509_cert::ext::pkix::{AuthorityInfoAccessSyntax, BasicConstraints};
use x509_cert::name::Name;
use x509_cert::{Certificate, TbsCertificate};

use super::certificate_name::common_name;

/// The access method "caIssuers" (RFC 5280, 4.2.2.1).
const CA_ISSUERS: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.48.2");

/// A certificate without the one of its issuer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Gap {
    pub(super) subject: String,
    pub(super) issuer: String,
}

/// Finds the certificate that is missing between the first one and its authority.
///
/// The certificates after the first one may have any order, and there may be others (RFC 8446,
/// 4.4.2). The authority itself is optional, because clients have it, so a chain may end with any
/// authority. A server's certificate without its issuer is probably incomplete if it says where the
/// issuer's certificate can be downloaded, as public authorities write it: these never sign with
/// their root. Private authorities may do both. What cannot be parsed is left to rustls.
pub(super) fn gap(chain: &[CertificateDer<'_>]) -> Option<Gap> {
    let parse = |der: &CertificateDer<'_>| Certificate::from_der(der).ok();
    let parsed: Vec<TbsCertificate> =
        chain.iter().map(|der| Some(parse(der)?.tbs_certificate)).collect::<Option<_>>()?;
    let (mut last, others) = parsed.split_first()?;
    let mut others: Vec<&TbsCertificate> = others.iter().collect();
    while last.issuer != last.subject {
        let issuer = others.iter().position(|other| other.subject == last.issuer);
        let Some(issuer) = issuer else { break };
        last = others.swap_remove(issuer);
    }
    let is_complete =
        last.issuer == last.subject || is_authority(last) || !has_issuer_address(last);
    (!is_complete).then(|| Gap { subject: shown(&last.subject), issuer: shown(&last.issuer) })
}

/// When a certificate expires, in seconds since 1970.
pub(super) fn not_after_unix_s(der: &CertificateDer<'_>) -> Option<u64> {
    let validity = Certificate::from_der(der).ok()?.tbs_certificate.validity;
    Some(validity.not_after.to_unix_duration().as_secs())
}

fn is_authority(certificate: &TbsCertificate) -> bool {
    certificate.get::<BasicConstraints>().is_ok_and(|found| found.is_some_and(|(_, it)| it.ca))
}

fn has_issuer_address(certificate: &TbsCertificate) -> bool {
    let Ok(Some((_, access))) = certificate.get::<AuthorityInfoAccessSyntax>() else {
        return false;
    };
    access.0.iter().any(|description| description.access_method == CA_ISSUERS)
}

fn shown(name: &Name) -> String {
    common_name(name).unwrap_or_else(|| name.to_string())
}

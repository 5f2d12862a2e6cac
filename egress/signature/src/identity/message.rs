//! The signature of an HTTP message (RFC 9421 section 3.1).

use std::fmt::Write as _;

use data_encoding::BASE64;

use super::SigningKey;

/// A covered component: its identifier as it stands in `Signature-Input`, and its value.
pub(super) type Covered<'a> = (&'a str, &'a str);

/// Parameters of a signature, beside those that the key decides.
pub(super) struct SignatureParams {
    pub(super) created_unix_s: u64,
    pub(super) expires_unix_s: u64,
    pub(super) nonce: String,
    pub(super) tag: &'static str,
}

/// Values of the members of `Signature-Input` and `Signature`.
pub(super) struct Signature {
    pub(super) input: String,
    pub(super) value: String,
}

/// Signs components of a message, in this order.
pub(super) fn sign(
    key: &SigningKey,
    covered: &[Covered<'_>],
    params: &SignatureParams,
) -> Signature {
    let SignatureParams { created_unix_s, expires_unix_s, nonce, tag } = params;
    let identifiers: Vec<_> = covered.iter().map(|(identifier, _)| *identifier).collect();
    let input = format!(
        "({});created={created_unix_s};keyid=\"{}\";alg=\"ed25519\";expires={expires_unix_s};\
         nonce=\"{nonce}\";tag=\"{tag}\"",
        identifiers.join(" "),
        key.jwk.kid
    );
    let mut base = String::new();
    for (identifier, value) in covered {
        let _ = writeln!(base, "{identifier}: {value}");
    }
    let _ = write!(base, "\"@signature-params\": {input}");
    let value = format!(":{}:", BASE64.encode(key.pair.sign(base.as_bytes()).as_ref()));
    Signature { input, value }
}

//! The signature of a delivery: `X-Hub-Signature: sha256=<hex>` over the body (W3C `WebSub` section
//! 7).

use aws_lc_rs::hmac;
use data_encoding::HEXLOWER_PERMISSIVE;
use tidings_signature::{Secret, SignatureError, SignatureScheme};

/// How far the signature proves that a delivery is from the hub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SignatureTrust {
    /// The body is from the hub.
    Content,
    /// The hub has sent something. SHA-1 does not prove that this is the body.
    Ping,
}

/// Verifies the signature of a delivery. `sha1`: whether the content of one signed with SHA-1 is
/// trusted.
pub(super) fn verify(
    value: &str,
    secret: &str,
    body: &[u8],
    sha1: bool,
) -> Result<SignatureTrust, SignatureError> {
    if let Some(hex) = value.strip_prefix("sha1=") {
        let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, secret.as_bytes());
        let signature = HEXLOWER_PERMISSIVE.decode(hex.as_bytes()).unwrap_or_default();
        let trust = if sha1 { SignatureTrust::Content } else { SignatureTrust::Ping };
        return hmac::verify(&key, body, &signature)
            .map(|()| trust)
            .map_err(|_| SignatureError::Mismatch);
    }
    let scheme = SignatureScheme::from_header_value(value)?;
    let secrets = [Secret::from(secret.as_bytes().to_vec())];
    let find = |name: &str| name.eq_ignore_ascii_case(scheme.header()).then_some(value);
    scheme.verify_without_time(&secrets, &find, body).map(|_| SignatureTrust::Content)
}

#[cfg(test)]
mod tests {
    use data_encoding::HEXLOWER;

    use super::*;

    fn signed(algorithm: hmac::Algorithm, name: &str, body: &[u8]) -> String {
        let tag = hmac::sign(&hmac::Key::new(algorithm, b"secret"), body);
        format!("{name}={}", HEXLOWER.encode(tag.as_ref()))
    }

    // PROTOCOL: V4
    #[test]
    fn sha256_and_longer_are_trusted_and_sha1_only_if_configured() {
        let body = b"<rss/>";
        for (algorithm, name) in [
            (hmac::HMAC_SHA256, "sha256"),
            (hmac::HMAC_SHA384, "sha384"),
            (hmac::HMAC_SHA512, "sha512"),
        ] {
            let value = signed(algorithm, name, body);
            assert_eq!(
                verify(&value, "secret", body, false),
                Ok(SignatureTrust::Content),
                "{name}"
            );
            assert!(verify(&value, "another", body, false).is_err(), "{name}");
            assert!(verify(&value, "secret", b"<rss>", false).is_err(), "{name}");
            assert!(verify(&value[..value.len() - 2], "secret", body, false).is_err(), "{name}");
        }
        let value = signed(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, "sha1", body);
        assert_eq!(verify(&value, "secret", body, false), Ok(SignatureTrust::Ping));
        assert_eq!(verify(&value, "secret", body, true), Ok(SignatureTrust::Content));
        assert!(verify(&value, "another", body, false).is_err());
        assert!(verify(&value, "another", body, true).is_err());
        for none in ["", "sha1=", "sha256=", "md5=00", "sha1=zz", "sha256"] {
            assert!(verify(none, "secret", body, true).is_err(), "{none}");
        }
    }
}

//! Signatures of HTTP messages: those of webhooks, in the forms of forges, CMSs and payment
//! services, and those of a crawler's requests ([`identity`]).
//!
//! Pure: the caller looks up headers, time is an argument, and no file is read here. So this crate
//! knows no runtime, socket or HTTP library; `.ci/run` checks its dependencies.

mod encoding;
pub mod identity;
mod table;

use std::fmt;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::{digest, hmac};
use serde::Deserialize;

use self::encoding::Encoding;

/// Returns the value of a header, if the request has the header exactly once and it is ASCII.
pub type HeaderLookup<'a> = &'a dyn Fn(&str) -> Option<&'a str>;

/// Names and values of headers.
pub type SignatureHeaders = Vec<(String, Vec<u8>)>;

/// The default of the largest difference between the signed time and the broker's clock.
const DEFAULT_TOLERANCE_MS: u64 = 5 * 60 * 1_000;

/// A timestamp from this number on is in ms, else in seconds: the year 1973 in ms, 5138 in seconds.
const MS_THRESHOLD: i64 = 100_000_000_000;

/// Digits of a timestamp.
const TIMESTAMP_DIGITS_MAX: usize = 15;

/// A secret that the sender and the broker share. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl From<Vec<u8>> for Secret {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl Secret {
    /// The number of its bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Why a request is not verified. The operator sees the reason in the log; the sender does not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SignatureError {
    /// A header of the scheme is missing, occurs twice, or is not ASCII.
    #[error("the header {0} is missing, occurs twice or is not ASCII")]
    BadHeader(String),
    /// The header has no signature of the expected form.
    #[error("the header has no signature of the form {0}")]
    Malformed(String),
    /// The signature is not the one of this body with this secret.
    #[error("the signature does not match this body and this secret")]
    Mismatch,
    /// The scheme signs a timestamp, and the request has no valid one.
    #[error("no valid timestamp in {0}")]
    NoTimestamp(String),
    /// The request was signed too long ago, or in the future.
    #[error("the signature is dated {} s {}", age_ms.unsigned_abs() / 1_000, if *age_ms < 0 { "in the future" } else { "ago" })]
    OutsideTolerance {
        /// The broker's time less the signed time, in ms.
        age_ms: i64,
    },
}

/// A hash function for HMAC. Weaker ones are not supported.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithm {
    /// SHA-256.
    #[default]
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

impl Algorithm {
    const ALL: [Self; 3] = [Self::Sha256, Self::Sha384, Self::Sha512];

    fn as_str(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha384 => "sha384",
            Self::Sha512 => "sha512",
        }
    }

    fn hmac(self) -> hmac::Algorithm {
        match self {
            Self::Sha256 => hmac::HMAC_SHA256,
            Self::Sha384 => hmac::HMAC_SHA384,
            Self::Sha512 => hmac::HMAC_SHA512,
        }
    }
}

/// The encoding of a secret in its file or environment variable.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum SecretEncoding {
    /// The bytes of the text.
    #[default]
    Text,
    Hex,
    /// With or without the prefix `whsec_` of Standard Webhooks.
    Base64,
}

/// How a sender signs its requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignatureScheme(SchemeKind);

#[derive(Debug, Clone, PartialEq, Eq)]
enum SchemeKind {
    /// The header contains the secret itself. Nothing is signed.
    Token {
        header: String,
    },
    Hmac(HmacScheme),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct HmacScheme {
    header: String,
    /// Separates the items of the header; `None` if it has a single item.
    separator: Option<char>,
    /// The prefix of an item that is a signature.
    prefix: String,
    encoding: Encoding,
    algorithm: Algorithm,
    /// The signed bytes are these parts in their order. The body is one of them, once.
    signed_parts: Vec<SignedPart>,
    /// If it is `Some`, the timestamp is one of `signed_parts`.
    timestamp: Option<TimestampSource>,
    tolerance_ms: u64,
    /// The header of the message id. If it is `Some`, the id is one of `signed_parts`.
    id_header: Option<String>,
    secret_encoding: SecretEncoding,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum SignedPart {
    Text(String),
    Body,
    Timestamp,
    Id,
}

/// Where the signed timestamp is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum TimestampSource {
    Header(String),
    /// The item of the signature's header that has this prefix.
    Item(String),
}

/// A request with a valid signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedRequest {
    /// Identifies the message: equal for a request that is repeated, also by a third party.
    pub digest: [u8; 32],
    /// The signed timestamp in ms of Unix time, if the scheme has one.
    pub signed_unix_ms: Option<i64>,
}

impl SignatureScheme {
    /// The scheme of a header such as `sha256=<hex>`, which signs the body alone, as hubs of
    /// `WebSub` and GitHub send it. The header names the algorithm: `sha256`, `sha384` or `sha512`.
    pub fn from_header_value(value: &str) -> Result<Self, SignatureError> {
        let method = value.split_once('=').map(|(method, _)| method);
        let named = Algorithm::ALL.into_iter().find(|known| method == Some(known.as_str()));
        let Some(algorithm) = named else {
            let forms = Algorithm::ALL.map(|known| format!("{}=<hex>", known.as_str()));
            return Err(SignatureError::Malformed(forms.join(" or ")));
        };
        Ok(Self(SchemeKind::Hmac(HmacScheme {
            header: String::new(),
            separator: None,
            prefix: format!("{}=", algorithm.as_str()),
            encoding: Encoding::Hex,
            algorithm,
            signed_parts: vec![SignedPart::Body],
            timestamp: None,
            tolerance_ms: DEFAULT_TOLERANCE_MS,
            id_header: None,
            secret_encoding: SecretEncoding::Text,
        })))
    }

    /// The header of the signature, or of the token.
    pub fn header(&self) -> &str {
        match &self.0 {
            SchemeKind::Token { header } | SchemeKind::Hmac(HmacScheme { header, .. }) => header,
        }
    }

    /// Decodes a secret from a file or an environment variable.
    pub fn parse_secret(&self, text: &str) -> Result<Secret, String> {
        let encoding = match &self.0 {
            SchemeKind::Token { .. } => SecretEncoding::Text,
            SchemeKind::Hmac(scheme) => scheme.secret_encoding,
        };
        let bytes = match encoding {
            SecretEncoding::Text => Some(text.as_bytes().to_vec()),
            SecretEncoding::Hex => Encoding::Hex.decode(text),
            SecretEncoding::Base64 => {
                Encoding::Base64.decode(text.strip_prefix("whsec_").unwrap_or(text))
            }
        };
        match bytes {
            Some(bytes) if !bytes.is_empty() => Ok(Secret(bytes)),
            Some(_) => Err("the secret is empty".to_owned()),
            None => Err("the secret does not have the encoding that `secret` of the signature \
                         configures"
                .to_owned()),
        }
    }

    /// Verifies that a request is signed with one of the secrets, at a time within the tolerance
    /// around `now_unix_ms`.
    pub fn verify(
        &self,
        secrets: &[Secret],
        headers: HeaderLookup<'_>,
        body: &[u8],
        now_unix_ms: i64,
    ) -> Result<VerifiedRequest, SignatureError> {
        let verified = self.verify_without_time(secrets, headers, body)?;
        if let (Some(unix_ms), SchemeKind::Hmac(scheme)) = (verified.signed_unix_ms, &self.0) {
            let age_ms = now_unix_ms.saturating_sub(unix_ms);
            if age_ms.unsigned_abs() > scheme.tolerance_ms {
                return Err(SignatureError::OutsideTolerance { age_ms });
            }
        }
        Ok(verified)
    }

    /// Returns the headers that sign a request with these secrets. A scheme with a single signature
    /// uses the first secret. The headers have the id and the time only if the scheme signs them.
    pub fn sign(&self, secrets: &[Secret], id: &str, unix_s: u64, body: &[u8]) -> SignatureHeaders {
        match &self.0 {
            SchemeKind::Token { header } => {
                let token = secrets.first().map(|secret| secret.0.clone()).unwrap_or_default();
                vec![(header.clone(), token)]
            }
            SchemeKind::Hmac(scheme) => scheme.sign(secrets, id, unix_s, body),
        }
    }

    /// Verifies like [`verify`](Self::verify), at any signed time.
    pub fn verify_without_time(
        &self,
        secrets: &[Secret],
        headers: HeaderLookup<'_>,
        body: &[u8],
    ) -> Result<VerifiedRequest, SignatureError> {
        match &self.0 {
            SchemeKind::Token { header } => verify_token(header, secrets, headers, body),
            SchemeKind::Hmac(scheme) => scheme.verify_signature(secrets, headers, body),
        }
    }
}

fn verify_token(
    header: &str,
    secrets: &[Secret],
    headers: HeaderLookup<'_>,
    body: &[u8],
) -> Result<VerifiedRequest, SignatureError> {
    // Computed before any check, so that a missing or wrong token takes as long as a valid one.
    let digest = digest_parts(&[body]);
    let token = headers(header).ok_or_else(|| SignatureError::BadHeader(header.to_owned()))?;
    let is_known = |secret: &Secret| verify_slices_are_equal(&secret.0, token.as_bytes()).is_ok();
    if secrets.iter().any(is_known) {
        Ok(VerifiedRequest { digest, signed_unix_ms: None })
    } else {
        Err(SignatureError::Mismatch)
    }
}

impl HmacScheme {
    fn verify_signature(
        &self,
        secrets: &[Secret],
        headers: HeaderLookup<'_>,
        body: &[u8],
    ) -> Result<VerifiedRequest, SignatureError> {
        let value = headers(&self.header);
        let time = match &self.timestamp {
            None => None,
            Some(TimestampSource::Header(name)) => headers(name),
            Some(TimestampSource::Item(prefix)) => self
                .header_items(value.unwrap_or_default())
                .find_map(|item| item.strip_prefix(&**prefix)),
        };
        let id = self.id_header.as_deref().and_then(headers);
        // Computed before any check, so that a request without a signature takes as long.
        let expected: Vec<hmac::Tag> =
            secrets.iter().map(|secret| self.compute_tag(secret, time, id, body)).collect();

        let value = value.ok_or_else(|| SignatureError::BadHeader(self.header.clone()))?;
        if let (Some(name), None) = (&self.id_header, id) {
            return Err(SignatureError::BadHeader(name.clone()));
        }
        let unix_ms = self.parse_timestamp(time)?;
        let signatures: Vec<_> = self
            .header_items(value)
            .filter_map(|item| item.strip_prefix(&*self.prefix))
            .filter_map(|encoded| self.decode(encoded))
            .collect();
        if signatures.is_empty() {
            return Err(SignatureError::Malformed(self.signature_form()));
        }
        let is_match = |tag: &hmac::Tag| {
            signatures.iter().any(|bytes| verify_slices_are_equal(tag.as_ref(), bytes).is_ok())
        };
        if !expected.iter().any(is_match) {
            return Err(SignatureError::Mismatch);
        }
        // The id identifies a message also when it is signed again at another time.
        let digest = match id {
            Some(id) => digest_parts(&[id.as_bytes()]),
            None => digest_parts(&[time.unwrap_or_default().as_bytes(), body]),
        };
        Ok(VerifiedRequest { digest, signed_unix_ms: unix_ms })
    }

    fn sign(&self, secrets: &[Secret], id: &str, unix_s: u64, body: &[u8]) -> SignatureHeaders {
        let time = unix_s.to_string();
        let signatures = secrets.iter().map(|secret| {
            let tag = self.compute_tag(secret, Some(&time), Some(id), body);
            self.prefix.clone() + &self.encoding.encode(tag.as_ref())
        });
        let mut headers = SignatureHeaders::new();
        headers.extend(self.id_header.iter().map(|name| (name.clone(), id.into())));
        let mut items: Vec<String> = Vec::new();
        match &self.timestamp {
            None => {}
            Some(TimestampSource::Header(name)) => {
                headers.push((name.clone(), time.clone().into()));
            }
            Some(TimestampSource::Item(prefix)) => items.push(format!("{prefix}{time}")),
        }
        items.extend(signatures.take(if self.separator.is_some() { secrets.len() } else { 1 }));
        let separator = self.separator.map(String::from).unwrap_or_default();
        headers.push((self.header.clone(), items.join(&separator).into()));
        headers
    }

    fn compute_tag(
        &self,
        secret: &Secret,
        time: Option<&str>,
        id: Option<&str>,
        body: &[u8],
    ) -> hmac::Tag {
        let key = hmac::Key::new(self.algorithm.hmac(), &secret.0);
        let mut context = hmac::Context::with_key(&key);
        for part in &self.signed_parts {
            context.update(match part {
                SignedPart::Text(text) => text.as_bytes(),
                SignedPart::Body => body,
                SignedPart::Timestamp => time.unwrap_or_default().as_bytes(),
                SignedPart::Id => id.unwrap_or_default().as_bytes(),
            });
        }
        context.sign()
    }

    fn header_items<'a>(&self, value: &'a str) -> impl Iterator<Item = &'a str> + use<'a> {
        let separator = self.separator;
        let items = value.split(move |c| Some(c) == separator);
        items.map(move |item| if separator.is_some() { item.trim() } else { item })
    }

    /// Decodes a signature; `None` if it does not have the length of the algorithm.
    fn decode(&self, text: &str) -> Option<Vec<u8>> {
        let bytes = self.encoding.decode(text)?;
        let len = self.algorithm.hmac().digest_algorithm().output_len();
        (bytes.len() == len).then_some(bytes)
    }

    fn parse_timestamp(&self, time: Option<&str>) -> Result<Option<i64>, SignatureError> {
        let location = match &self.timestamp {
            None => return Ok(None),
            Some(TimestampSource::Header(name)) => name.clone(),
            Some(TimestampSource::Item(prefix)) => format!("{} as {prefix}..", self.header),
        };
        let number = time.filter(|time| {
            // Without leading zeros, so that a time has only one form.
            let is_digits = time.bytes().all(|byte| byte.is_ascii_digit());
            time.len() <= TIMESTAMP_DIGITS_MAX && is_digits && !time.starts_with('0')
        });
        let number: Option<i64> = number.and_then(|time| time.parse().ok());
        let to_ms = |number| if number < MS_THRESHOLD { number * 1_000 } else { number };
        number.map(|number| Some(to_ms(number))).ok_or(SignatureError::NoTimestamp(location))
    }

    /// The expected form of a signature, for error messages.
    fn signature_form(&self) -> String {
        format!("{}<{} in {}>", self.prefix, self.algorithm.as_str(), self.encoding.as_str())
    }
}

/// Checks the name of a header.
pub fn parse_header_name(name: &str) -> Result<String, String> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if !name.is_empty() && name.bytes().all(is_token) {
        return Ok(name.to_owned());
    }
    Err(format!("{name:?} is not a valid header name"))
}

/// The SHA-256 of parts. The length of each part is hashed too, so that the limits between parts
/// matter.
pub fn digest_parts(parts: &[&[u8]]) -> [u8; 32] {
    let mut context = digest::Context::new(&digest::SHA256);
    for part in parts {
        context.update(&(part.len() as u64).to_le_bytes());
        context.update(part);
    }
    let digest = context.finish();
    digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

#[cfg(test)]
mod tests;

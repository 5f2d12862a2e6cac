//! Who has sent a request: signatures over its body, in the forms that forges, CMSs and payment
//! services give them, and ourselves where we tell others. Pure: headers are looked up by the
//! caller, and time is an argument.

mod table;

use std::fmt;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::{digest, hmac};
use serde::Deserialize;

use super::encoding::Encoding;

/// A header's value, if the request has that header exactly once, and its value is ASCII.
pub type HeaderLookup<'a> = &'a dyn Fn(&str) -> Option<&'a str>;

/// Names of headers, and their values.
pub type SignatureHeaders = Vec<(String, Vec<u8>)>;

/// How long a signed time is believed where a scheme does not say it.
const DEFAULT_TOLERANCE_MS: u64 = 5 * 60 * 1_000;

/// The first number that is a time in ms and not in seconds: the year 1973, and the year 5138.
const MS_THRESHOLD: i64 = 100_000_000_000;

/// Digits of a time.
const TIMESTAMP_DIGITS_MAX: usize = 15;

/// What only the sender and this broker know. It is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl From<Vec<u8>> for Secret {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl Secret {
    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One as long that nobody has.
    pub(super) fn random_of_same_len(&self) -> Self {
        Self(std::iter::repeat_with(|| fastrand::u8(..)).take(self.0.len()).collect())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Why a request is not taken for the sender's. The sender is not told; whoever runs the broker is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SignatureError {
    /// A header that the scheme needs is not there, is there twice, or is not ASCII.
    #[error("there is no header {0}, or there are several")]
    BadHeader(String),
    /// The header is there, and has no signature of the form that is expected.
    #[error("the header has no signature of the form {0}")]
    Malformed(String),
    /// The signature is another one than that of this body with this secret.
    #[error("the signature is not that of this body with this secret")]
    Mismatch,
    /// No time where one is signed.
    #[error("there is no time in {0}")]
    NoTimestamp(String),
    /// It was signed too long ago, or in the future.
    #[error("it was signed {} s {}", off_ms.unsigned_abs() / 1_000, if *off_ms < 0 { "in the future" } else { "ago" })]
    OutsideTolerance {
        /// Our time less that of the sender, in ms.
        off_ms: i64,
    },
}

/// A hash function for HMAC. There are none that are weaker.
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

/// How a secret is written in its file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum SecretEncoding {
    /// It is the bytes of the text.
    #[default]
    Text,
    Hex,
    /// Also with `whsec_` before it, as the Standard Webhooks have it.
    Base64,
}

/// How a sender shows that a request is its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignatureScheme(SchemeKind);

#[derive(Debug, Clone, PartialEq, Eq)]
enum SchemeKind {
    /// The secret itself is in the header. Nothing is signed.
    Token {
        header: String,
    },
    Hmac(HmacScheme),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct HmacScheme {
    header: String,
    /// Between the items of the header. Without one it has a single item.
    separator: Option<char>,
    /// What a signature begins with among them.
    prefix: String,
    encoding: Encoding,
    algorithm: Algorithm,
    /// What is signed, one after the other. The body is among it once.
    signed_parts: Vec<SignedPart>,
    /// Signed if it is there.
    timestamp: Option<TimestampSource>,
    tolerance_ms: u64,
    /// The header of an id of the message. Signed if it is there.
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

/// Where the time of signing is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum TimestampSource {
    Header(String),
    /// The item of the signature's header that begins so.
    Item(String),
}

/// A request that is the sender's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedRequest {
    /// What was said: the same for a request that is sent again, by whomever.
    pub digest: [u8; 32],
    /// When the sender says that it was, in ms of Unix time, if that is signed.
    pub signed_unix_ms: Option<i64>,
}

impl SignatureScheme {
    /// That of a header such as `sha256=<hex>`, for the body alone: what hubs of `WebSub` and
    /// GitHub send. The header says the algorithm, `sha256`, `sha384` or `sha512`.
    pub fn from_header_value(value: &str) -> Result<Self, SignatureError> {
        let method = value.split_once('=').map(|(method, _)| method);
        let known = Algorithm::ALL.into_iter().find(|known| method == Some(known.as_str()));
        let Some(algorithm) = known else {
            let known = Algorithm::ALL.map(|known| format!("{}=<hex>", known.as_str()));
            return Err(SignatureError::Malformed(known.join(" or ")));
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

    /// A secret as it is written in a file or a variable.
    pub fn parse_secret(&self, written: &str) -> Result<Secret, String> {
        let form = match &self.0 {
            SchemeKind::Token { .. } => SecretEncoding::Text,
            SchemeKind::Hmac(signed) => signed.secret_encoding,
        };
        let bytes = match form {
            SecretEncoding::Text => Some(written.as_bytes().to_vec()),
            SecretEncoding::Hex => Encoding::Hex.decode(written),
            SecretEncoding::Base64 => {
                Encoding::Base64.decode(written.strip_prefix("whsec_").unwrap_or(written))
            }
        };
        match bytes {
            Some(bytes) if !bytes.is_empty() => Ok(Secret(bytes)),
            Some(_) => Err("the secret is empty".to_owned()),
            None => Err("the secret is not written as the signature's `secret` says".to_owned()),
        }
    }

    /// Whether a request is of somebody who knows one of the secrets, and was signed not long
    /// before `now_unix_ms`, or after it.
    pub fn verify(
        &self,
        secrets: &[Secret],
        headers: HeaderLookup<'_>,
        body: &[u8],
        now_unix_ms: i64,
    ) -> Result<VerifiedRequest, SignatureError> {
        let authentic = self.verify_without_time(secrets, headers, body)?;
        if let (Some(unix_ms), SchemeKind::Hmac(signed)) = (authentic.signed_unix_ms, &self.0) {
            let off_ms = now_unix_ms.saturating_sub(unix_ms);
            if off_ms.unsigned_abs() > signed.tolerance_ms {
                return Err(SignatureError::OutsideTolerance { off_ms });
            }
        }
        Ok(authentic)
    }

    /// The headers that show others that a request is of somebody who knows these secrets, one or
    /// several; with several in a form that has room for one, it is the first. `id` and the time
    /// are left out where the form has no place for them.
    pub fn sign(&self, secrets: &[Secret], id: &str, unix_s: u64, body: &[u8]) -> SignatureHeaders {
        match &self.0 {
            SchemeKind::Token { header } => {
                let token = secrets.first().map(|secret| secret.0.clone()).unwrap_or_default();
                vec![(header.clone(), token)]
            }
            SchemeKind::Hmac(signed) => signed.sign(secrets, id, unix_s, body),
        }
    }

    /// The same, whenever it was signed.
    pub fn verify_without_time(
        &self,
        secrets: &[Secret],
        headers: HeaderLookup<'_>,
        body: &[u8],
    ) -> Result<VerifiedRequest, SignatureError> {
        match &self.0 {
            SchemeKind::Token { header } => verify_token(header, secrets, headers, body),
            SchemeKind::Hmac(signed) => signed.verify_signature(secrets, headers, body),
        }
    }
}

fn verify_token(
    header: &str,
    secrets: &[Secret],
    headers: HeaderLookup<'_>,
    body: &[u8],
) -> Result<VerifiedRequest, SignatureError> {
    // Before anything is judged, so that it takes as long for a token that is none.
    let said = digest_parts(&[body]);
    let token = headers(header).ok_or_else(|| SignatureError::BadHeader(header.to_owned()))?;
    let is_known = |secret: &Secret| verify_slices_are_equal(&secret.0, token.as_bytes()).is_ok();
    if secrets.iter().any(is_known) {
        Ok(VerifiedRequest { digest: said, signed_unix_ms: None })
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
        // Before anything is judged, so that it takes as long for a request that has no signature.
        let tags: Vec<hmac::Tag> =
            secrets.iter().map(|secret| self.compute_tag(secret, time, id, body)).collect();

        let value = value.ok_or_else(|| SignatureError::BadHeader(self.header.clone()))?;
        if let (Some(name), None) = (&self.id_header, id) {
            return Err(SignatureError::BadHeader(name.clone()));
        }
        let unix_ms = self.parse_timestamp(time)?;
        let given = self.header_items(value).filter_map(|item| item.strip_prefix(&*self.prefix));
        let given: Vec<_> = given.filter_map(|written| self.decode(written)).collect();
        if given.is_empty() {
            return Err(SignatureError::Malformed(self.signature_form()));
        }
        let is_one = |tag: &hmac::Tag| {
            given.iter().any(|given| verify_slices_are_equal(tag.as_ref(), given).is_ok())
        };
        if !tags.iter().any(is_one) {
            return Err(SignatureError::Mismatch);
        }
        // A message with an id is the same one when it is signed again, at another time.
        let said = match id {
            Some(id) => digest_parts(&[id.as_bytes()]),
            None => digest_parts(&[time.unwrap_or_default().as_bytes(), body]),
        };
        Ok(VerifiedRequest { digest: said, signed_unix_ms: unix_ms })
    }

    fn sign(&self, secrets: &[Secret], id: &str, unix_s: u64, body: &[u8]) -> SignatureHeaders {
        let time = unix_s.to_string();
        let tags =
            secrets.iter().map(|secret| self.compute_tag(secret, Some(&time), Some(id), body));
        let tags = tags.map(|tag| self.prefix.clone() + &self.encoding.encode(tag.as_ref()));
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
        items.extend(tags.take(if self.separator.is_some() { secrets.len() } else { 1 }));
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
        for piece in &self.signed_parts {
            context.update(match piece {
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

    /// The bytes of a signature, if it has as many as it must.
    fn decode(&self, written: &str) -> Option<Vec<u8>> {
        let bytes = self.encoding.decode(written)?;
        let len = self.algorithm.hmac().digest_algorithm().output_len();
        (bytes.len() == len).then_some(bytes)
    }

    fn parse_timestamp(&self, time: Option<&str>) -> Result<Option<i64>, SignatureError> {
        let place = match &self.timestamp {
            None => return Ok(None),
            Some(TimestampSource::Header(name)) => name.clone(),
            Some(TimestampSource::Item(prefix)) => format!("{} as {prefix}..", self.header),
        };
        let number = time.filter(|time| {
            // With a zero before it, it would be another text of the same time.
            let digits = time.bytes().all(|byte| byte.is_ascii_digit());
            time.len() <= TIMESTAMP_DIGITS_MAX && digits && !time.starts_with('0')
        });
        let number: Option<i64> = number.and_then(|time| time.parse().ok());
        let to_ms = |number| if number < MS_THRESHOLD { number * 1_000 } else { number };
        number.map(|number| Some(to_ms(number))).ok_or(SignatureError::NoTimestamp(place))
    }

    /// What a signature looks like.
    fn signature_form(&self) -> String {
        format!("{}<{} in {}>", self.prefix, self.algorithm.as_str(), self.encoding.as_str())
    }
}

/// The name of a header.
pub(super) fn parse_header_name(name: &str) -> Result<String, String> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if !name.is_empty() && name.bytes().all(is_token) {
        return Ok(name.to_owned());
    }
    Err(format!("{name:?} is no name of a header"))
}

/// SHA-256 of parts that cannot be mistaken for each other.
pub(super) fn digest_parts(parts: &[&[u8]]) -> [u8; 32] {
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

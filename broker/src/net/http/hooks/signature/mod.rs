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
pub type Headers<'a> = &'a dyn Fn(&str) -> Option<&'a str>;

/// Names of headers, and their values.
pub type SignedHeaders = Vec<(String, Vec<u8>)>;

/// How long a signed time is believed where a scheme does not say it.
const TOLERANCE_MS: u64 = 5 * 60 * 1_000;

/// The first number that is a time in ms and not in seconds: the year 1973, and the year 5138.
const FIRST_MS: i64 = 100_000_000_000;

/// Digits of a time.
const TIME_DIGITS_MAX: usize = 15;

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
    pub(super) fn another(&self) -> Self {
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
pub enum Doubt {
    /// A header that the scheme needs is not there, is there twice, or is not ASCII.
    #[error("there is no header {0}, or there are several")]
    Header(String),
    /// The header is there, and has no signature of the form that is expected.
    #[error("the header has no signature of the form {0}")]
    Form(String),
    /// The signature is another one than that of this body with this secret.
    #[error("the signature is not that of this body with this secret")]
    Wrong,
    /// No time where one is signed.
    #[error("there is no time in {0}")]
    NoTime(String),
    /// It was signed too long ago, or in the future.
    #[error("it was signed {} s {}", off_ms.unsigned_abs() / 1_000, if *off_ms < 0 { "in the future" } else { "ago" })]
    Stale {
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
enum SecretForm {
    /// It is the bytes of the text.
    #[default]
    Text,
    Hex,
    /// Also with `whsec_` before it, as the Standard Webhooks have it.
    Base64,
}

/// How a sender shows that a request is its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scheme(Kind);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    /// The secret itself is in the header. Nothing is signed.
    Token {
        header: String,
    },
    Hmac(Signed),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Signed {
    header: String,
    /// Between the items of the header. Without one it has a single item.
    separator: Option<char>,
    /// What a signature begins with among them.
    prefix: String,
    encoding: Encoding,
    algorithm: Algorithm,
    /// What is signed, one after the other. The body is among it once.
    signs: Vec<Piece>,
    /// Signed if it is there.
    time: Option<Time>,
    tolerance_ms: u64,
    /// The header of an id of the message. Signed if it is there.
    id: Option<String>,
    secret: SecretForm,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    Body,
    Time,
    Id,
}

/// Where the time of signing is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Time {
    Header(String),
    /// The item of the signature's header that begins so.
    Item(String),
}

/// A request that is the sender's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authentic {
    /// What was said: the same for a request that is sent again, by whomever.
    pub said: [u8; 32],
    /// When the sender says that it was, in ms of Unix time, if that is signed.
    pub unix_ms: Option<i64>,
}

impl Scheme {
    /// That of a header such as `sha256=<hex>`, for the body alone: what hubs of `WebSub` and
    /// GitHub send. The header says the algorithm, `sha256`, `sha384` or `sha512`.
    pub fn of_method(value: &str) -> Result<Self, Doubt> {
        let method = value.split_once('=').map(|(method, _)| method);
        let known = Algorithm::ALL.into_iter().find(|known| method == Some(known.as_str()));
        let Some(algorithm) = known else {
            let known = Algorithm::ALL.map(|known| format!("{}=<hex>", known.as_str()));
            return Err(Doubt::Form(known.join(" or ")));
        };
        Ok(Self(Kind::Hmac(Signed {
            header: String::new(),
            separator: None,
            prefix: format!("{}=", algorithm.as_str()),
            encoding: Encoding::Hex,
            algorithm,
            signs: vec![Piece::Body],
            time: None,
            tolerance_ms: TOLERANCE_MS,
            id: None,
            secret: SecretForm::Text,
        })))
    }

    /// The header of the signature, or of the token.
    pub fn header(&self) -> &str {
        match &self.0 {
            Kind::Token { header } | Kind::Hmac(Signed { header, .. }) => header,
        }
    }

    /// A secret as it is written in a file or a variable.
    pub fn secret(&self, written: &str) -> Result<Secret, String> {
        let form = match &self.0 {
            Kind::Token { .. } => SecretForm::Text,
            Kind::Hmac(signed) => signed.secret,
        };
        let bytes = match form {
            SecretForm::Text => Some(written.as_bytes().to_vec()),
            SecretForm::Hex => Encoding::Hex.decode(written),
            SecretForm::Base64 => {
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
        headers: Headers<'_>,
        body: &[u8],
        now_unix_ms: i64,
    ) -> Result<Authentic, Doubt> {
        let authentic = self.authenticate(secrets, headers, body)?;
        if let (Some(unix_ms), Kind::Hmac(signed)) = (authentic.unix_ms, &self.0) {
            let off_ms = now_unix_ms.saturating_sub(unix_ms);
            if off_ms.unsigned_abs() > signed.tolerance_ms {
                return Err(Doubt::Stale { off_ms });
            }
        }
        Ok(authentic)
    }

    /// The headers that show others that a request is of somebody who knows these secrets, one or
    /// several; with several in a form that has room for one, it is the first. `id` and the time
    /// are left out where the form has no place for them.
    pub fn sign(&self, secrets: &[Secret], id: &str, unix_s: u64, body: &[u8]) -> SignedHeaders {
        match &self.0 {
            Kind::Token { header } => {
                let token = secrets.first().map(|secret| secret.0.clone()).unwrap_or_default();
                vec![(header.clone(), token)]
            }
            Kind::Hmac(signed) => signed.sign(secrets, id, unix_s, body),
        }
    }

    /// The same, whenever it was signed.
    pub fn authenticate(
        &self,
        secrets: &[Secret],
        headers: Headers<'_>,
        body: &[u8],
    ) -> Result<Authentic, Doubt> {
        match &self.0 {
            Kind::Token { header } => token(header, secrets, headers, body),
            Kind::Hmac(signed) => signed.authenticate(secrets, headers, body),
        }
    }
}

fn token(
    header: &str,
    secrets: &[Secret],
    headers: Headers<'_>,
    body: &[u8],
) -> Result<Authentic, Doubt> {
    // Before anything is judged, so that it takes as long for a token that is none.
    let said = digest_of(&[body]);
    let token = headers(header).ok_or_else(|| Doubt::Header(header.to_owned()))?;
    let is_known = |secret: &Secret| verify_slices_are_equal(&secret.0, token.as_bytes()).is_ok();
    if secrets.iter().any(is_known) {
        Ok(Authentic { said, unix_ms: None })
    } else {
        Err(Doubt::Wrong)
    }
}

impl Signed {
    fn authenticate(
        &self,
        secrets: &[Secret],
        headers: Headers<'_>,
        body: &[u8],
    ) -> Result<Authentic, Doubt> {
        let value = headers(&self.header);
        let time = match &self.time {
            None => None,
            Some(Time::Header(name)) => headers(name),
            Some(Time::Item(prefix)) => {
                self.items(value.unwrap_or_default()).find_map(|item| item.strip_prefix(&**prefix))
            }
        };
        let id = self.id.as_deref().and_then(headers);
        // Before anything is judged, so that it takes as long for a request that has no signature.
        let tags: Vec<hmac::Tag> =
            secrets.iter().map(|secret| self.tag(secret, time, id, body)).collect();

        let value = value.ok_or_else(|| Doubt::Header(self.header.clone()))?;
        if let (Some(name), None) = (&self.id, id) {
            return Err(Doubt::Header(name.clone()));
        }
        let unix_ms = self.unix_ms(time)?;
        let given = self.items(value).filter_map(|item| item.strip_prefix(&*self.prefix));
        let given: Vec<_> = given.filter_map(|written| self.decode(written)).collect();
        if given.is_empty() {
            return Err(Doubt::Form(self.form()));
        }
        let is_one = |tag: &hmac::Tag| {
            given.iter().any(|given| verify_slices_are_equal(tag.as_ref(), given).is_ok())
        };
        if !tags.iter().any(is_one) {
            return Err(Doubt::Wrong);
        }
        // A message with an id is the same one when it is signed again, at another time.
        let said = match id {
            Some(id) => digest_of(&[id.as_bytes()]),
            None => digest_of(&[time.unwrap_or_default().as_bytes(), body]),
        };
        Ok(Authentic { said, unix_ms })
    }

    fn sign(&self, secrets: &[Secret], id: &str, unix_s: u64, body: &[u8]) -> SignedHeaders {
        let time = unix_s.to_string();
        let tags = secrets.iter().map(|secret| self.tag(secret, Some(&time), Some(id), body));
        let tags = tags.map(|tag| self.prefix.clone() + &self.encoding.encode(tag.as_ref()));
        let mut headers = SignedHeaders::new();
        headers.extend(self.id.iter().map(|name| (name.clone(), id.into())));
        let mut items: Vec<String> = Vec::new();
        match &self.time {
            None => {}
            Some(Time::Header(name)) => headers.push((name.clone(), time.clone().into())),
            Some(Time::Item(prefix)) => items.push(format!("{prefix}{time}")),
        }
        items.extend(tags.take(if self.separator.is_some() { secrets.len() } else { 1 }));
        let separator = self.separator.map(String::from).unwrap_or_default();
        headers.push((self.header.clone(), items.join(&separator).into()));
        headers
    }

    fn tag(&self, secret: &Secret, time: Option<&str>, id: Option<&str>, body: &[u8]) -> hmac::Tag {
        let key = hmac::Key::new(self.algorithm.hmac(), &secret.0);
        let mut context = hmac::Context::with_key(&key);
        for piece in &self.signs {
            context.update(match piece {
                Piece::Text(text) => text.as_bytes(),
                Piece::Body => body,
                Piece::Time => time.unwrap_or_default().as_bytes(),
                Piece::Id => id.unwrap_or_default().as_bytes(),
            });
        }
        context.sign()
    }

    fn items<'a>(&self, value: &'a str) -> impl Iterator<Item = &'a str> + use<'a> {
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

    fn unix_ms(&self, time: Option<&str>) -> Result<Option<i64>, Doubt> {
        let place = match &self.time {
            None => return Ok(None),
            Some(Time::Header(name)) => name.clone(),
            Some(Time::Item(prefix)) => format!("{} as {prefix}..", self.header),
        };
        let number = time.filter(|time| {
            // With a zero before it, it would be another text of the same time.
            let digits = time.bytes().all(|byte| byte.is_ascii_digit());
            time.len() <= TIME_DIGITS_MAX && digits && !time.starts_with('0')
        });
        let number: Option<i64> = number.and_then(|time| time.parse().ok());
        let to_ms = |number| if number < FIRST_MS { number * 1_000 } else { number };
        number.map(|number| Some(to_ms(number))).ok_or(Doubt::NoTime(place))
    }

    /// What a signature looks like.
    fn form(&self) -> String {
        format!("{}<{} in {}>", self.prefix, self.algorithm.as_str(), self.encoding.as_str())
    }
}

/// The name of a header.
pub(super) fn header(name: &str) -> Result<String, String> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if !name.is_empty() && name.bytes().all(is_token) {
        return Ok(name.to_owned());
    }
    Err(format!("{name:?} is no name of a header"))
}

/// SHA-256 of parts that cannot be mistaken for each other.
pub(super) fn digest_of(parts: &[&[u8]]) -> [u8; 32] {
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

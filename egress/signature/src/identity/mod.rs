//! The identity of a crawler: Ed25519 keys with which it signs its requests, so that a site can
//! tell it from a program that only copies its `User-Agent`.
//!
//! The form is HTTP Message Signatures (RFC 9421) as the working group `webbotauth` profiles them
//! (draft-ietf-webbotauth-httpsig-protocol). A site finds the public keys in the directory of the
//! crawler, at [`DIRECTORY_PATH`] of the origin that the crawler names in each request.
//!
//! The file of an identity is a JWK Set (RFC 7517, RFC 8037) of private keys, newest first. Without
//! the member `d` of each key it is the directory.

mod message;
#[cfg(test)]
mod tests;

use std::fmt::{self, Write as _};

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::encoding::AsBigEndian;
use aws_lc_rs::rand;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use data_encoding::{BASE64, BASE64URL_NOPAD};
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use tidings_protocol::CanonicalUrl;

use self::message::{Covered, SignatureParams, sign};

/// The path of a directory (section 4 of the draft).
pub const DIRECTORY_PATH: &str = "/.well-known/http-message-signatures-directory";

/// The media type of a directory.
pub const DIRECTORY_MEDIA_TYPE: &str = "application/http-message-signatures-directory+json";

/// How long a verifier may keep a directory, in seconds.
pub const DIRECTORY_MAX_AGE_S: u64 = 3_600;

/// How long a signature is valid, in seconds. It also bounds how far the clocks of the crawler and
/// a site may differ. The draft allows a day.
const SIGNATURE_VALIDITY_S: u64 = 300;

/// How long a key is valid, in seconds.
const KEY_VALIDITY_S: u64 = 365 * DAY_S;

/// How long a new key is only published before it signs, and its predecessor is still published
/// after that, in seconds. A verifier that keeps a directory as long as it may has the new key in
/// time, and a crawler has time to read the file again.
const ROTATION_S: u64 = DAY_S;

const DAY_S: u64 = 24 * 3_600;

/// Keys of an identity: rotations within the life of a key.
const KEYS_MAX: usize = 8;

/// Bytes of a random nonce, as section 4.2.3 of the draft recommends.
const NONCE_BYTES: usize = 64;

/// Thumbprints of keys in public examples, where the private half is published too: RFC 9421
/// appendix B.1.4.
const EXAMPLE_KEYS: [&str; 1] = ["poqkLGiymh_W0uP6PZFw-dvez3QJT5SolqXBCW38r0U"];

/// Why an identity cannot be used or changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// The text is not a JWK Set of Ed25519 keys.
    #[error("expected a JSON Web Key Set with Ed25519 keys ({0})")]
    Malformed(String),
    /// The parts of a key do not belong together.
    #[error("the parts of key {0} do not belong together")]
    WrongKey(String),
    /// A key of public examples.
    #[error("key {0} is an example of a specification, so everybody has it; create another one")]
    ExampleKey(String),
    /// No key, or more than an identity may have.
    #[error("{0} keys; expected 1 to {KEYS_MAX}")]
    KeyCount(usize),
    /// No key is valid at present.
    #[error("no key is valid now; create one with `tidings identity rotate`")]
    Expired,
    /// A rotation has not ended.
    #[error(
        "the newest key begins to sign at {0} (Unix time); rotate again after that, or with --now \
         if the file was stolen"
    )]
    RotationPending(u64),
    /// Not the address of a directory.
    #[error("{0}: expected an origin such as https://crawler.example")]
    BadAgent(String),
}

/// A key as a JSON Web Key. Times are Unix times in seconds.
#[derive(Clone, Serialize, Deserialize)]
struct Jwk {
    kty: String,
    crv: String,
    #[serde(default)]
    kid: String,
    x: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    d: Option<String>,
    #[serde(rename = "use", default = "usage")]
    usage: String,
    /// The first second in which it signs.
    nbf: u64,
    /// The first second in which it is no longer valid.
    exp: u64,
}

fn usage() -> String {
    "sig".to_owned()
}

#[derive(Serialize, Deserialize)]
struct JwkSet {
    keys: Vec<Jwk>,
}

/// A key of an identity.
struct SigningKey {
    jwk: Jwk,
    pair: Ed25519KeyPair,
}

impl SigningKey {
    fn generate(begins_unix_s: u64) -> Self {
        let pair = Ed25519KeyPair::generate().expect("the system has randomness");
        let seed = pair.seed().and_then(|seed| seed.as_be_bytes()).expect("it was generated");
        let x = BASE64URL_NOPAD.encode(pair.public_key().as_ref());
        let jwk = Jwk {
            kty: "OKP".to_owned(),
            crv: "Ed25519".to_owned(),
            kid: thumbprint(&x),
            x,
            d: Some(BASE64URL_NOPAD.encode(seed.as_ref())),
            usage: usage(),
            nbf: begins_unix_s,
            exp: begins_unix_s + KEY_VALIDITY_S,
        };
        Self { jwk, pair }
    }

    fn from_jwk(mut jwk: Jwk) -> Result<Self, IdentityError> {
        if jwk.kty != "OKP" || jwk.crv != "Ed25519" {
            return Err(IdentityError::Malformed(format!("{} {}", jwk.kty, jwk.crv)));
        }
        let part = |name, text: &str| {
            let wrong = |_| IdentityError::Malformed(format!("{name} is not base64url"));
            BASE64URL_NOPAD.decode(text.as_bytes()).map_err(wrong)
        };
        let missing = || IdentityError::Malformed("d, the private part, is missing".to_owned());
        let seed = part("d", jwk.d.as_deref().ok_or_else(missing)?)?;
        let public = part("x", &jwk.x)?;
        let id = thumbprint(&jwk.x);
        let pair = Ed25519KeyPair::from_seed_and_public_key(&seed, &public)
            .map_err(|_| IdentityError::WrongKey(id.clone()))?;
        jwk.kid = id;
        Ok(Self { jwk, pair })
    }

    fn is_valid(&self, now_unix_s: u64) -> bool {
        (self.jwk.nbf..self.jwk.exp).contains(&now_unix_s)
    }
}

/// The SHA-256 thumbprint of an Ed25519 key (RFC 7638, RFC 8037 appendix A.3), in base64url.
fn thumbprint(x: &str) -> String {
    let canonical = format!(r#"{{"crv":"Ed25519","kty":"OKP","x":"{x}"}}"#);
    BASE64URL_NOPAD.encode(digest(&SHA256, canonical.as_bytes()).as_ref())
}

/// The keys of a crawler. `Debug` does not show their private parts.
pub struct Identity {
    /// Newest first, never empty.
    keys: Vec<SigningKey>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.keys.iter().map(|key| &key.jwk.kid)).finish()
    }
}

/// A key as it is listed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeySummary {
    /// The thumbprint, with which a signature names its key.
    pub id: String,
    /// The first second of Unix time in which it signs.
    pub begins_unix_s: u64,
    /// The first second of Unix time in which it is no longer valid.
    pub ends_unix_s: u64,
    /// Whether it signs at present.
    pub signs: bool,
}

impl Identity {
    /// An identity with one new key, which is valid for a year.
    pub fn create(now_unix_s: u64) -> Self {
        Self { keys: vec![SigningKey::generate(now_unix_s)] }
    }

    /// Reads the text of an identity's file.
    pub fn parse(text: &str) -> Result<Self, IdentityError> {
        // The error of serde_json contains positions, and no part of a key.
        let set: JwkSet = serde_json::from_str(text)
            .map_err(|error| IdentityError::Malformed(error.to_string()))?;
        if !(1..=KEYS_MAX).contains(&set.keys.len()) {
            return Err(IdentityError::KeyCount(set.keys.len()));
        }
        let keys: Vec<_> =
            set.keys.into_iter().map(SigningKey::from_jwk).collect::<Result<_, _>>()?;
        match keys.iter().find(|key| EXAMPLE_KEYS.contains(&key.jwk.kid.as_str())) {
            Some(example) => Err(IdentityError::ExampleKey(example.jwk.kid.clone())),
            None => Ok(Self { keys }),
        }
    }

    /// The text of its file. It contains the private keys.
    pub fn to_private_text(&self) -> String {
        to_text(self.keys.iter().map(|key| key.jwk.clone()))
    }

    /// The directory: the public keys that are valid, or will be.
    pub fn directory(&self, now_unix_s: u64) -> String {
        to_text(self.published(now_unix_s).map(|key| Jwk { d: None, ..key.jwk.clone() }))
    }

    fn published(&self, now_unix_s: u64) -> impl Iterator<Item = &SigningKey> {
        self.keys.iter().filter(move |key| key.jwk.exp > now_unix_s)
    }

    /// Adds a key that begins to sign a day later, and lets the others expire a day after that.
    /// Expired keys are dropped.
    pub fn rotate(&mut self, now_unix_s: u64) -> Result<(), IdentityError> {
        self.keys.retain(|key| key.jwk.exp > now_unix_s);
        // Without a valid key there is nothing to wait for.
        let lead = if self.keys.is_empty() { 0 } else { ROTATION_S };
        match self.keys.first() {
            Some(newest) if newest.jwk.nbf > now_unix_s => {
                return Err(IdentityError::RotationPending(newest.jwk.nbf));
            }
            _ if self.keys.len() == KEYS_MAX => return Err(IdentityError::KeyCount(KEYS_MAX + 1)),
            _ => {}
        }
        let begins = now_unix_s + lead;
        for key in &mut self.keys {
            key.jwk.exp = key.jwk.exp.min(begins + ROTATION_S);
        }
        self.keys.insert(0, SigningKey::generate(begins));
        Ok(())
    }

    /// The key that signs: the newest valid one.
    fn current(&self, now_unix_s: u64) -> Option<&SigningKey> {
        self.keys.iter().find(|key| key.is_valid(now_unix_s))
    }

    /// Fails if no key can sign.
    pub fn check_valid(&self, now_unix_s: u64) -> Result<(), IdentityError> {
        self.current(now_unix_s).map(drop).ok_or(IdentityError::Expired)
    }

    /// Its keys, newest first.
    pub fn summary(&self, now_unix_s: u64) -> Vec<KeySummary> {
        let current = self.current(now_unix_s).map(|key| key.jwk.kid.as_str());
        let of = |SigningKey { jwk, .. }: &SigningKey| KeySummary {
            id: jwk.kid.clone(),
            begins_unix_s: jwk.nbf,
            ends_unix_s: jwk.exp,
            signs: current == Some(&jwk.kid),
        };
        self.keys.iter().map(of).collect()
    }
}

fn to_text(keys: impl Iterator<Item = Jwk>) -> String {
    let set = JwkSet { keys: keys.collect() };
    serde_json::to_string_pretty(&set).expect("only strings and numbers") + "\n"
}

/// The origin at which the directory of a crawler is: `https://host[:port]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentOrigin(String);

impl AgentOrigin {
    /// The host, and the port unless it is 443.
    fn authority(&self) -> &str {
        &self.0["https://".len()..]
    }
}

impl fmt::Display for AgentOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::str::FromStr for AgentOrigin {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, IdentityError> {
        let bad = || IdentityError::BadAgent(text.to_owned());
        let url: CanonicalUrl = text.parse().map_err(|_| bad())?;
        let is_origin = url.scheme() == "https" && url.path_and_query() == "/";
        if is_origin { Ok(Self(format!("https://{}", url.authority()))) } else { Err(bad()) }
    }
}

/// The form of the header `Signature-Agent`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AgentForm {
    /// `sig1="https://crawler.example"`, a dictionary: the draft of the working group.
    #[default]
    Dictionary,
    /// `"https://crawler.example"`, a string: earlier drafts, which some verifiers still expect.
    String,
}

/// Names and values of headers.
pub type SignedHeaders = Vec<(&'static str, String)>;

/// Signs requests of a crawler.
#[derive(Debug)]
pub struct RequestSigner {
    identity: RwLock<Identity>,
    agent: Option<AgentOrigin>,
    form: AgentForm,
}

impl RequestSigner {
    /// Signs with the keys of `identity`, and names `agent` as the place of their directory.
    pub fn new(identity: Identity, agent: Option<AgentOrigin>, form: AgentForm) -> Self {
        Self { identity: RwLock::new(identity), agent, form }
    }

    /// Signs later requests with the keys of another version of the file.
    pub fn replace_identity(&self, identity: Identity) {
        *self.identity.write() = identity;
    }

    /// The headers that sign a request. `None`: the URL is not `https`, so every system on the way
    /// could repeat the request, or no key is valid.
    pub fn sign(
        &self,
        method: &str,
        url: &CanonicalUrl<'_>,
        now_unix_s: u64,
    ) -> Option<SignedHeaders> {
        if url.scheme() != "https" {
            return None;
        }
        let identity = self.identity.read();
        let key = identity.current(now_unix_s)?;
        let agent = self.agent.as_ref().map(|agent| match self.form {
            AgentForm::Dictionary => (r#""signature-agent";key="sig1""#, format!("\"{agent}\"")),
            AgentForm::String => (r#""signature-agent""#, format!("\"{agent}\"")),
        });
        let query = &url.path_and_query()[url.path().len()..];
        let mut covered: Vec<Covered<'_>> = vec![
            (r#""@authority""#, url.authority()),
            (r#""@method""#, method),
            (r#""@path""#, url.path()),
        ];
        // Also `?` alone is a query (RFC 9421 section 2.2.7).
        if !query.is_empty() {
            covered.push((r#""@query""#, query));
        }
        if let Some((name, value)) = &agent {
            covered.push((name, value));
        }
        let signature = sign(key, &covered, &params(now_unix_s, "web-bot-auth"));
        let mut headers = SignedHeaders::with_capacity(3);
        if let Some((_, value)) = agent {
            let label = if self.form == AgentForm::Dictionary { "sig1=" } else { "" };
            headers.push(("signature-agent", format!("{label}{value}")));
        }
        headers.push(("signature-input", format!("sig1={}", signature.input)));
        headers.push(("signature", format!("sig1={}", signature.value)));
        Some(headers)
    }

    /// The directory, and the headers of its response. Each key signs it for the origin of the
    /// agent: a directory that another site copies to itself has no valid signature there.
    pub fn directory(&self, now_unix_s: u64) -> (String, SignedHeaders) {
        let identity = self.identity.read();
        let text = identity.directory(now_unix_s);
        let digest = BASE64.encode(digest(&SHA256, text.as_bytes()).as_ref());
        let digest = format!("sha-256=:{digest}:");
        let (mut inputs, mut values) = (String::new(), String::new());
        let mut headers = SignedHeaders::new();
        if let Some(agent) = &self.agent {
            for (at, key) in (1..).zip(identity.published(now_unix_s)) {
                let covered = [
                    (r#""@authority";req"#, agent.authority()),
                    (r#""content-digest""#, digest.as_str()),
                ];
                let tag = "http-message-signatures-directory";
                let signature = sign(key, &covered, &params(now_unix_s, tag));
                let comma = if at == 1 { "" } else { ", " };
                let _ = write!(inputs, "{comma}sig{at}={}", signature.input);
                let _ = write!(values, "{comma}sig{at}={}", signature.value);
            }
            headers.extend([("signature-input", inputs), ("signature", values)]);
        }
        headers.push(("content-digest", digest));
        (text, headers)
    }
}

fn params(now_unix_s: u64, tag: &'static str) -> SignatureParams {
    let mut nonce = [0; NONCE_BYTES];
    rand::fill(&mut nonce).expect("the system has randomness");
    SignatureParams {
        created_unix_s: now_unix_s,
        expires_unix_s: now_unix_s + SIGNATURE_VALIDITY_S,
        nonce: BASE64URL_NOPAD.encode(&nonce),
        tag,
    }
}

//! Tokens: 256 random bits that are shown once and stored as a hash. Pure, except for the system's
//! random source.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::{BASE64URL_NOPAD, HEXLOWER, HEXLOWER_PERMISSIVE};
use tidings_protocol::{Token, partial_debug};

/// The beginning of every token, by which people and scanners of leaked secrets recognize one.
const TOKEN_PREFIX: &str = "tdg_";

/// Random bytes in a token, and bytes of its hash.
const TOKEN_BYTES: usize = 32;

/// Characters of a token behind its prefix.
const SECRET_CHARS: usize = (TOKEN_BYTES * 4).div_ceil(3);

/// The beginning of a hash in text form.
const HASH_PREFIX: &str = "sha256:";

/// Makes a new token.
///
/// Panics if the system has no random source, because then no secret can be made.
pub fn new_token() -> Token {
    let mut bits = [0; TOKEN_BYTES];
    aws_lc_rs::rand::fill(&mut bits).expect("the system has a random source");
    let text = format!("{TOKEN_PREFIX}{}", BASE64URL_NOPAD.encode(&bits));
    Token::new(&text).expect("it is one short word")
}

/// Whether it has the prefix of our tokens.
pub(crate) fn is_token(token: &Token) -> bool {
    token.secret().starts_with(TOKEN_PREFIX)
}

/// A line for the log, with tokens removed: what is given as `token=`, and what has the prefix of a
/// token.
pub(crate) fn redact_tokens(line: &str) -> Cow<'_, str> {
    const OPTION: &str = "token=";
    let lower = line.to_ascii_lowercase();
    if !lower.contains(OPTION) && !lower.contains(TOKEN_PREFIX) {
        return Cow::Borrowed(line);
    }
    let shown = |word: &str| {
        let lower = word.to_ascii_lowercase();
        let ends = [(OPTION, OPTION.len()), (TOKEN_PREFIX, TOKEN_PREFIX.len())];
        let end = ends.iter().filter_map(|(mark, len)| lower.find(mark).map(|at| at + len)).min();
        end.map_or_else(|| word.to_owned(), |end| format!("{}..", &word[..end]))
    };
    Cow::Owned(line.split(char::is_whitespace).map(shown).collect::<Vec<_>>().join(" "))
}

/// Removes the tokens from a text of any form; only their prefix is left.
pub fn mask_tokens(text: &str) -> Cow<'_, str> {
    let mut parts = text.split(TOKEN_PREFIX);
    let first = parts.next().unwrap_or_default();
    if first.len() == text.len() {
        return Cow::Borrowed(text);
    }
    let masked =
        parts.flat_map(|part| [TOKEN_PREFIX, "..", part.trim_start_matches(is_secret_char)]);
    Cow::Owned([first].into_iter().chain(masked).collect())
}

fn is_secret_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_')
}

pub(crate) fn contains_token(text: &str) -> bool {
    let secret = |part: &str| part.len() - part.trim_start_matches(is_secret_char).len();
    text.split(TOKEN_PREFIX).skip(1).any(|part| secret(part) >= SECRET_CHARS)
}

/// The hash that is stored instead of a token, with which no client can log in. One round of
/// SHA-256 is enough, because nothing can try 2^256 tokens.
#[derive(Clone, Copy)]
pub struct TokenHash([u8; TOKEN_BYTES]);

impl TokenHash {
    /// The hash of this token.
    pub fn of(token: &Token) -> Self {
        let mut hash = [0; TOKEN_BYTES];
        hash.copy_from_slice(digest(&SHA256, token.secret().as_bytes()).as_ref());
        Self(hash)
    }

    /// Whether both are equal. Takes the same time however much of them is equal.
    pub fn matches(&self, other: &Self) -> bool {
        verify_slices_are_equal(&self.0, &other.0).is_ok()
    }
}

impl FromStr for TokenHash {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("expected {HASH_PREFIX} and {} hexadecimal digits", 2 * TOKEN_BYTES);
        let digits = text.strip_prefix(HASH_PREFIX).ok_or_else(wrong)?;
        let hash = HEXLOWER_PERMISSIVE.decode(digits.as_bytes()).map_err(|_| wrong())?;
        hash.try_into().map(Self).map_err(|_| wrong())
    }
}

impl fmt::Display for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HASH_PREFIX)?;
        HEXLOWER.encode_display(&self.0).fmt(f)
    }
}

partial_debug!(TokenHash {});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_differ_and_match_their_hash() {
        let (one, other) = (new_token(), new_token());
        assert_ne!(one, other);
        assert_eq!(one.secret().len(), TOKEN_PREFIX.len() + 43, "256 bits in base64");
        assert!(TokenHash::of(&one).matches(&TokenHash::of(&one)));
        assert!(!TokenHash::of(&one).matches(&TokenHash::of(&other)));
        assert!(!format!("{one:?} {:?}", TokenHash::of(&one)).contains(one.secret()));
    }

    #[test]
    fn tokens_are_redacted_in_any_context() {
        let token = new_token();
        let secret = token.secret();
        for (line, shown) in [
            (format!("HELLO token={secret} echo=1"), "HELLO token=.. echo=1".to_owned()),
            (format!("HELO Token={secret}"), "HELO Token=..".to_owned()),
            (format!("x\t{secret}"), "x tdg_..".to_owned()),
            (format!("PUB t http://a/?{secret}&x"), "PUB t http://a/?tdg_..".to_owned()),
            (secret.to_uppercase(), "TDG_..".to_owned()),
            ("PUB t  nothing  here".to_owned(), "PUB t  nothing  here".to_owned()),
            ("é token=ö".to_owned(), "é token=..".to_owned()),
        ] {
            assert_eq!(redact_tokens(&line), shown, "{line}");
        }
    }

    #[test]
    fn hashes_round_trip_and_agree_with_sha256sum() {
        // printf tdg_x | sha256sum
        let known = "sha256:8591e3934ea14bee52b89fbab8caccfc7bbb2ea647635a348f7a34e63ca51987";
        let hash = TokenHash::of(&Token::new("tdg_x").unwrap());
        assert_eq!(hash.to_string(), known);
        assert!(hash.to_string().parse::<TokenHash>().unwrap().matches(&hash));
        for wrong in ["", "sha256:", "sha256:00", "md5:00", &known[..known.len() - 1], "sha256:é"]
        {
            assert!(wrong.parse::<TokenHash>().is_err(), "{wrong}");
        }
        let signs = format!("sha256:{}", "+1".repeat(32));
        assert!(signs.parse::<TokenHash>().is_err());
    }

    #[test]
    fn tokens_are_masked_and_the_rest_is_kept() {
        let token = new_token();
        let token = token.secret();
        for (text, masked) in [
            ("", ""),
            ("nothing tdg", "nothing tdg"),
            ("T", "tdg_.."),
            (r#"{"name":"T","x":"a T\n"}"#, r#"{"name":"tdg_..","x":"a tdg_..\n"}"#),
            ("aT.T/é", "atdg_...tdg_../é"),
            ("TT", "tdg_..tdg_.."),
        ] {
            assert_eq!(mask_tokens(&text.replace('T', token)), masked, "{text}");
            assert_eq!(contains_token(&text.replace('T', token)), text.contains('T'), "{text}");
        }
        assert!(!contains_token(&token[..token.len() - 1]));
    }
}

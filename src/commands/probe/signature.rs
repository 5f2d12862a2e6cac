//! `tidings probe signature`: verifies the signature of a webhook.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, Read};
use std::path::PathBuf;

use clap::Args;
use data_encoding::HEXLOWER_PERMISSIVE;
use serde_json::{Value, json};
use tidings_signature::{Secret, SignatureError, SignatureScheme};

use super::{JsonQuery, header, headers, optional_text, required_text};
use crate::services::hooks::read_secrets;
use crate::terminal::failure::Failure;

/// The longest body on standard input, in bytes.
const BODY_BYTES_MAX: u64 = 64 << 20;

/// The arguments of `tidings probe signature`.
#[derive(Debug, Args)]
pub(crate) struct SignatureArgs {
    /// Value of the signature header, such as sha256=..; the body is read from standard input
    ///
    /// Without it, JSON lines are read from standard input.
    #[arg(value_name = "HEADER", requires = "key_file")]
    pub(super) what: Option<String>,

    /// File with the secrets, one on each line
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,

    /// Signature scheme: a preset of `[[hook]]` such as slack, or a table as JSON
    ///
    /// The default takes the scheme from the header (sha256=, sha384= or sha512=, then hex) and
    /// verifies the body.
    #[arg(long, value_name = "SCHEME", value_parser = parse_scheme)]
    scheme: Option<SignatureScheme>,

    /// Another signed header, such as the time; may be repeated
    #[arg(long, value_name = "NAME: VALUE", value_parser = parse_header)]
    with_header: Vec<(String, String)>,
}

fn parse_scheme(written: &str) -> Result<SignatureScheme, String> {
    let value = if written.starts_with('{') {
        serde_json::from_str(written).map_err(|error| error.to_string())?
    } else {
        Value::String(written.to_owned())
    };
    SignatureScheme::from_config(&value)
}

fn parse_header(written: &str) -> Result<(String, String), String> {
    let (name, value) = written.split_once(':').ok_or("write NAME: VALUE")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

/// Reads `key_hex`, `body_hex` and `header` (its value); optionally `scheme` as in a recipe, and
/// `headers` for further signed headers.
pub(super) fn answer(query: &JsonQuery, args: &SignatureArgs) -> Result<Value, String> {
    let bytes = |name| {
        let hex = required_text(query, name)?;
        let bytes = HEXLOWER_PERMISSIVE.decode(hex.as_bytes());
        bytes.map_err(|_| format!("`{name}` is not hexadecimal"))
    };
    let (key, body) = (bytes("key_hex")?, bytes("body_hex")?);
    let (value, others) = (optional_text(query, "header")?, headers(query)?);
    let scheme = match query.get("scheme") {
        None | Some(Value::Null) => args.scheme.clone(),
        Some(scheme) => Some(
            SignatureScheme::from_config(scheme).map_err(|error| format!("`scheme`: {error}"))?,
        ),
    };
    Ok(match verify(scheme.as_ref(), &[Secret::from(key)], value, &others, &body) {
        Ok(()) => json!({ "valid": true }),
        Err(doubt) => json!({ "valid": false, "why": doubt.to_string() }),
    })
}

/// Verifies a signature. Its time is not checked here.
fn verify(
    scheme: Option<&SignatureScheme>,
    secrets: &[Secret],
    value: Option<&str>,
    others: &[(String, String)],
    body: &[u8],
) -> Result<(), SignatureError> {
    let scheme = match scheme {
        Some(scheme) => Cow::Borrowed(scheme),
        None => Cow::Owned(SignatureScheme::from_header_value(value.unwrap_or_default())?),
    };
    let find = |name: &str| {
        if name.eq_ignore_ascii_case(scheme.header()) { value } else { header(others, name) }
    };
    scheme.verify_without_time(secrets, &find, body).map(drop)
}

pub(super) fn describe(value: &str, args: &SignatureArgs) -> Result<String, Failure> {
    let usage = |error: String| Failure::Usage(error);
    let file = args.key_file.as_deref().expect("the parser requires it beside the header");
    let written = read_secrets(file).map_err(usage)?;
    let form = match &args.scheme {
        Some(scheme) => scheme.clone(),
        // Its secrets are plain text, and the scheme is taken from the header.
        None => parse_scheme("github").map_err(usage)?,
    };
    let lines = written.lines().filter(|line| !line.is_empty());
    let secrets = lines.map(|line| form.parse_secret(line)).collect::<Result<Vec<_>, _>>();
    let secrets = secrets.map_err(usage)?;
    let mut body = Vec::new();
    let read = io::stdin().lock().take(BODY_BYTES_MAX + 1).read_to_end(&mut body);
    read.map_err(|error| Failure::failed(format!("cannot read standard input: {error}")))?;
    if body.len() as u64 > BODY_BYTES_MAX {
        return Err(Failure::failed(format!("the body is longer than {BODY_BYTES_MAX} bytes")));
    }
    let judge =
        |body: &[u8]| verify(args.scheme.as_ref(), &secrets, Some(value), &args.with_header, body);
    let mut text = String::new();
    // Writing into a string cannot fail.
    let _ = match judge(&body) {
        Ok(()) => writeln!(text, "valid: {} bytes of body", body.len()),
        Err(doubt) => writeln!(text, "not valid: {doubt}"),
    };
    if judge(&body) == Err(SignatureError::Mismatch)
        && let Some(found) = body_variants(&body).into_iter().find(|(_, body)| judge(body).is_ok())
    {
        let _ = writeln!(text, "the signature fits the body {}", found.0);
    }
    Ok(text)
}

/// The body with the changes that editors and shells often make.
fn body_variants(body: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let without = body.strip_suffix(b"\n").unwrap_or(body);
    let without = without.strip_suffix(b"\r").unwrap_or(without);
    vec![
        ("without its line end", without.to_vec()),
        ("with a line end (LF)", [body, b"\n"].concat()),
        ("with a line end (CRLF)", [without, b"\r\n"].concat()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer_query(question: Value) -> Result<Value, String> {
        let Value::Object(query) = question else { panic!("questions are objects") };
        let question =
            SignatureArgs { what: None, key_file: None, scheme: None, with_header: Vec::new() };
        answer(&query, &question)
    }

    /// RFC 4231, 4.3.
    const KEY: &str = "4a656665";
    const BODY: &str = "7768617420646f2079612077616e7420666f72206e6f7468696e673f";
    const TAG: &str = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";

    #[test]
    fn an_invalid_signature_has_a_reason() {
        let valid = |header: &str| {
            let answer =
                answer_query(json!({ "key_hex": KEY, "body_hex": BODY, "header": header }))
                    .unwrap();
            assert_eq!(answer["why"].is_null(), answer["valid"] == true, "{answer}");
            answer["valid"] == true
        };
        assert!(valid(&format!("sha256={TAG}")));
        for wrong in
            ["sha256=", "sha1=effcdf6ae5eb2fa2d27416d5f184df9c259a7c79", TAG, "", "=", "v1"]
        {
            assert!(!valid(wrong), "{wrong}");
        }
        let without =
            answer_query(json!({ "key_hex": KEY, "body_hex": BODY, "header": null })).unwrap();
        assert_eq!(without["valid"], false);
        let bare = json!({ "key_hex": KEY, "body_hex": BODY, "header": TAG, "scheme": "gitea" });
        assert_eq!(answer_query(bare).unwrap(), json!({ "valid": true }));
    }

    #[test]
    fn a_scheme_needs_the_headers_that_it_signs() {
        // HMAC-SHA256 of `v0:1:{}` with the key `Jefe`, by `openssl dgst`.
        let tag = "cbef42d67cb93b1a22e906398678b8f19040e5181900240d074b783dc4003a78";
        let mut question = json!({
            "key_hex": KEY,
            "body_hex": "7b7d",
            "header": format!("v0={tag}"),
            "scheme": "slack",
            "headers": { "x-slack-request-timestamp": "1" },
        });
        assert_eq!(answer_query(question.clone()).unwrap(), json!({ "valid": true }));
        question["headers"] = json!({});
        assert_eq!(answer_query(question).unwrap()["valid"], false);
    }

    #[test]
    fn a_wrong_query_is_rejected_with_the_reason() {
        for (question, error) in [
            (json!({}), "`key_hex` is missing"),
            (json!({ "key_hex": "", "body_hex": "0" }), "`body_hex` is not hexadecimal"),
            (json!({ "key_hex": "0g", "body_hex": "" }), "`key_hex` is not hexadecimal"),
            (json!({ "key_hex": "", "body_hex": "", "header": 7 }), "`header` is not a string"),
            (json!({ "key_hex": "", "body_hex": "", "scheme": "x" }), "`scheme`: "),
            (json!({ "key_hex": "", "body_hex": "", "headers": 7 }), "`headers` must be an object"),
        ] {
            let rejected = answer_query(question).unwrap_err();
            assert!(rejected.starts_with(error), "{rejected}");
        }
    }
}

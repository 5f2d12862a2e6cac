use data_encoding::{BASE64, HEXLOWER};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::table::PRESETS;
use super::*;

const NOW_MS: i64 = 1_700_000_000_000;

fn scheme(value: &Value) -> SignatureScheme {
    SignatureScheme::from_config(value).unwrap_or_else(|error| panic!("{value}: {error}"))
}

fn verify(
    scheme: &SignatureScheme,
    secret: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Result<VerifiedRequest, SignatureError> {
    let secret = scheme.parse_secret(secret).unwrap();
    let find = |name: &str| {
        let mut found = headers.iter().filter(|(key, _)| key.eq_ignore_ascii_case(name));
        found.next().filter(|_| found.next().is_none()).map(|(_, value)| *value)
    };
    scheme.verify(&[secret], &find, body.as_bytes(), NOW_MS)
}

/// A signature as a sender computes it.
fn sign_hex(algorithm: Algorithm, secret: &[u8], text: &str) -> String {
    let tag = hmac::sign(&hmac::Key::new(algorithm.hmac(), secret), text.as_bytes());
    HEXLOWER.encode(tag.as_ref())
}

#[test]
fn the_published_examples_are_valid() {
    // RFC 4231, section 4.3, in the form of Gitea.
    let body = "what do ya want for nothing?";
    let tag = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
    let gitea = scheme(&json!("gitea"));
    assert!(verify(&gitea, "Jefe", &[("X-Gitea-Signature", tag)], body).is_ok());
    // The example in the documentation of GitHub.
    let github = scheme(&json!("github"));
    let value = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
    let secret = "It's a Secret to Everybody";
    assert!(verify(&github, secret, &[("x-hub-signature-256", value)], "Hello, World!").is_ok());
    // The example in the specification of Standard Webhooks, at the time of its timestamp.
    let standard = scheme(&json!("standard-webhooks"));
    let headers = [
        ("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek"),
        ("webhook-timestamp", "1614265330"),
        ("webhook-signature", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="),
    ];
    let secret = standard.parse_secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
    let find = |name: &str| headers.iter().find(|(key, _)| *key == name).map(|(_, value)| *value);
    let body = br#"{"test": 2432232314}"#;
    let verified = standard.verify(&[secret], &find, body, 1_614_265_330_000).unwrap();
    assert_eq!(verified.signed_unix_ms, Some(1_614_265_330_000));
}

#[test]
fn every_preset_accepts_only_the_signature_of_its_sender() {
    let (secret, body) = ("a secret of the sender", "{\"a\":1}");
    let sign = |text: &str| sign_hex(Algorithm::Sha256, secret.as_bytes(), text);
    let base64 = |text: &str| {
        let tag =
            hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()), text.as_bytes());
        BASE64.encode(tag.as_ref())
    };
    let (seconds, ms) = ("1699999900", "1699999900123");
    let base64_secret = format!("whsec_{}", BASE64.encode(secret.as_bytes()));
    let mut names = Vec::new();
    for (name, headers) in [
        ("github", vec![("X-Hub-Signature-256", format!("sha256={}", sign(body)))]),
        ("gitea", vec![("X-Gitea-Signature", sign(body))]),
        ("gitlab", vec![("X-Gitlab-Token", secret.to_owned())]),
        (
            "standard-webhooks",
            vec![
                ("webhook-id", "m1".to_owned()),
                ("webhook-timestamp", seconds.to_owned()),
                (
                    "webhook-signature",
                    format!("v1a,xx v1,AAAA v1,{}", base64(&format!("m1.{seconds}.{body}"))),
                ),
            ],
        ),
        (
            "slack",
            vec![
                ("X-Slack-Request-Timestamp", seconds.to_owned()),
                ("X-Slack-Signature", format!("v0={}", sign(&format!("v0:{seconds}:{body}")))),
            ],
        ),
        (
            "stripe",
            vec![(
                "Stripe-Signature",
                format!("t={seconds},v1={},v0=aa", sign(&format!("{seconds}.{body}"))),
            )],
        ),
        (
            "ghost",
            vec![("X-Ghost-Signature", format!("sha256={}, t={ms}", sign(&format!("{body}{ms}"))))],
        ),
        ("woocommerce", vec![("X-WC-Webhook-Signature", base64(body))]),
    ] {
        let scheme = scheme(&json!(name));
        let secret = if name == "standard-webhooks" { &base64_secret } else { secret };
        let headers: Vec<_> = headers.iter().map(|(key, value)| (*key, value.as_str())).collect();
        let result = verify(&scheme, secret, &headers, body);
        assert!(result.is_ok(), "{name}: {result:?}");
        if name != "gitlab" {
            assert_eq!(
                verify(&scheme, secret, &headers, "{\"a\":2}"),
                Err(SignatureError::Mismatch),
                "{name}"
            );
        }
        let other = BASE64.encode(b"another secret");
        assert_eq!(
            verify(&scheme, &other, &headers, body),
            Err(SignatureError::Mismatch),
            "{name}"
        );
        for index in 0..headers.len() {
            let mut fewer = headers.clone();
            let (removed, _) = fewer.remove(index);
            assert!(verify(&scheme, secret, &fewer, body).is_err(), "{name} without {removed}");
            let twice = [&headers[..], &headers[index..=index]].concat();
            assert!(verify(&scheme, secret, &twice, body).is_err(), "{name} with two {removed}");
        }
        names.push(name);
    }
    assert_eq!(names, PRESETS.map(|(name, _)| name));
}

#[test]
fn signed_requests_verify_with_each_secret() {
    let table = json!({
        "header": "X-Sign", "encoding": "base64", "algorithm": "sha512", "separator": ";",
        "signs": "{timestamp}:{id}:{body}", "timestamp-item": "t=", "id": "X-Id", "prefix": "s=",
    });
    let presets = PRESETS.iter().map(|(name, _)| json!(name));
    for config in presets.chain([table]) {
        let scheme = scheme(&config);
        let secrets = [Secret(b"the new secret".to_vec()), Secret(b"the old secret".to_vec())];
        let (unix_s, body) = (1_700_000_000, b"{\"a\":1}");
        let headers = scheme.sign(&secrets, "m-1", unix_s, body);
        let find = |name: &str| {
            let mut found = headers.iter().filter(|(key, _)| key.eq_ignore_ascii_case(name));
            let value = std::str::from_utf8(&found.next()?.1).unwrap();
            assert!(found.next().is_none(), "{config}: {headers:?}");
            Some(value)
        };
        let verify = |secret: &Secret, body: &[u8]| {
            scheme.verify(std::slice::from_ref(secret), &find, body, NOW_MS)
        };
        let signs_with_each =
            matches!(&scheme.0, SchemeKind::Hmac(scheme) if scheme.separator.is_some());
        assert!(verify(&secrets[0], body).is_ok(), "{config}: {headers:?}");
        assert_eq!(verify(&secrets[1], body).is_ok(), signs_with_each, "{config}: {headers:?}");
        assert!(verify(&Secret(b"another".to_vec()), body).is_err(), "{config}");
        let signs_body = matches!(scheme.0, SchemeKind::Hmac(_));
        assert_eq!(verify(&secrets[0], b"{}").is_err(), signs_body, "{config}");
    }
}

// PROTOCOL: W2
#[test]
fn timestamps_outside_the_tolerance_are_rejected() {
    let scheme = scheme(&json!("slack"));
    for (seconds, age_ms) in [
        (1_700_000_000, None),
        (1_699_999_700, None),
        (1_699_999_699, Some(301_000)),
        (1_700_000_300, None),
        (1_700_000_301, Some(-301_000)),
    ] {
        let signature = sign_hex(Algorithm::Sha256, b"s", &format!("v0:{seconds}:x"));
        let headers = [
            ("X-Slack-Request-Timestamp", &*seconds.to_string()),
            ("X-Slack-Signature", &*format!("v0={signature}")),
        ];
        let error = verify(&scheme, "s", &headers, "x").err();
        assert_eq!(
            error,
            age_ms.map(|age_ms| SignatureError::OutsideTolerance { age_ms }),
            "{seconds}"
        );
    }
    let now = "1700000000";
    for time in ["", "-1", "1700000000.5", " 1700000000", "9999999999999999", "1e9"] {
        let signature = sign_hex(Algorithm::Sha256, b"s", &format!("v0:{time}:x"));
        let headers = [
            ("X-Slack-Request-Timestamp", time),
            ("X-Slack-Signature", &*format!("v0={signature}")),
        ];
        let result = verify(&scheme, "s", &headers, "x");
        assert!(matches!(result, Err(SignatureError::NoTimestamp(_))), "{time}: {result:?}");
    }
    // The time is signed: a signature of another time does not match.
    let signature = sign_hex(Algorithm::Sha256, b"s", "v0:1600000000:x");
    let headers =
        [("X-Slack-Request-Timestamp", now), ("X-Slack-Signature", &*format!("v0={signature}"))];
    assert_eq!(verify(&scheme, "s", &headers, "x"), Err(SignatureError::Mismatch));
}

// PROTOCOL: W5
#[test]
fn the_digest_identifies_a_repeated_message() {
    let github = scheme(&json!("github"));
    let digest = |body: &str, prefix: &str| {
        let value = format!("{prefix}{}", sign_hex(Algorithm::Sha256, b"s", body));
        verify(&github, "s", &[("X-Hub-Signature-256", &value)], body).unwrap().digest
    };
    assert_eq!(digest("a", "sha256="), digest("a", "sha256="));
    assert_ne!(digest("a", "sha256="), digest("b", "sha256="));
    let standard = scheme(&json!("standard-webhooks"));
    let digest = |id: &str, seconds: &str| {
        let text = format!("{id}.{seconds}.x");
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, b"key"), text.as_bytes());
        let value = format!("v1,{}", BASE64.encode(tag.as_ref()));
        let headers = [
            ("webhook-id", id),
            ("webhook-timestamp", seconds),
            ("webhook-signature", value.as_str()),
        ];
        verify(&standard, &BASE64.encode(b"key"), &headers, "x").unwrap().digest
    };
    assert_eq!(digest("m1", "1700000000"), digest("m1", "1700000060"), "a second attempt");
    assert_ne!(digest("m1", "1700000000"), digest("m2", "1700000000"));
}

#[test]
fn algorithms_weaker_than_sha256_are_rejected() {
    let valid = |header: &str| {
        let scheme = SignatureScheme::from_header_value(header)?;
        scheme.verify_without_time(&[Secret(b"k".to_vec())], &|_| Some(header), b"body").map(drop)
    };
    for algorithm in Algorithm::ALL {
        let tag = sign_hex(algorithm, b"k", "body");
        let name = algorithm.as_str();
        assert_eq!(valid(&format!("{name}={tag}")), Ok(()));
        assert_eq!(valid(&format!("{name}={}", tag.to_uppercase())), Ok(()));
        for invalid in [
            format!("{name}={}", &tag[1..]),
            format!("{name}={}", &tag[2..]),
            format!("{name}={tag}00"),
            format!("{name}={tag} "),
            format!("{name}="),
            format!("{name}={}g", &tag[1..]),
            format!("sha1={tag}"),
            format!("{}={tag}", name.to_uppercase()),
            tag.clone(),
            String::new(),
        ] {
            assert!(matches!(valid(&invalid), Err(SignatureError::Malformed(_))), "{invalid}");
        }
    }
    assert_eq!(valid(&format!("sha256={}", "0".repeat(64))), Err(SignatureError::Mismatch));
    let sha1 = "sha1=0123456789012345678901234567890123456789";
    assert!(valid(sha1).unwrap_err().to_string().contains("sha256=<hex>"));
}

#[test]
fn invalid_scheme_tables_are_rejected_with_a_reason() {
    for (table, part) in [
        (json!("gitub"), "use github, gitea"),
        (json!(7), "a table"),
        (json!({}), "missing field `header`"),
        (json!({ "header": "a b" }), "not a valid header name"),
        (json!({ "header": "" }), "not a valid header name"),
        (json!({ "header": "X-A", "prefx": "a" }), "unknown field `prefx`"),
        (json!({ "header": "X-A", "algorithm": "sha1" }), "unknown variant `sha1`"),
        (json!({ "header": "X-A", "signs": "{bdoy}" }), "not \"bdoy\""),
        (json!({ "header": "X-A", "signs": "x" }), "{body} once"),
        (json!({ "header": "X-A", "signs": "{body}{body}" }), "{body} once"),
        (json!({ "header": "X-A", "signs": "{timestamp}{body}" }), "check {timestamp}"),
        (json!({ "header": "X-A", "timestamp": "X-T" }), "check {timestamp}"),
        (json!({ "header": "X-A", "id": "X-I" }), "check {id}"),
        (json!({ "header": "X-A", "timestamp-item": "t=" }), "needs a `separator`"),
        (json!({ "header": "X-A", "tolerance": "soon" }), "`tolerance`"),
        (json!({ "token": "X-A", "prefix": "a" }), "unknown field `prefix`"),
    ] {
        let error = SignatureScheme::from_config(&table).unwrap_err();
        assert!(error.contains(part), "{table}: {error}");
    }
}

#[test]
fn a_secret_is_decoded_and_never_shown() {
    let text = scheme(&json!("github"));
    assert_eq!(text.parse_secret("ab"), Ok(Secret(b"ab".to_vec())));
    assert!(text.parse_secret("").is_err());
    let hex = scheme(&json!({ "header": "X-A", "secret": "hex" }));
    assert_eq!(hex.parse_secret("6162"), Ok(Secret(b"ab".to_vec())));
    assert!(hex.parse_secret("616").is_err());
    let standard = scheme(&json!("standard-webhooks"));
    assert_eq!(standard.parse_secret("whsec_YWI="), Ok(Secret(b"ab".to_vec())));
    assert_eq!(standard.parse_secret("YWI"), Ok(Secret(b"ab".to_vec())));
    assert!(standard.parse_secret("whsec_%").is_err());
    assert_eq!(format!("{:?}", text.parse_secret("hush").unwrap()), "Secret { .. }");
}

proptest! {
    #[test]
    fn random_headers_are_rejected_without_a_panic(value in "\\PC{0,100}", time in "\\PC{0,20}") {
        for (name, _) in PRESETS {
            let scheme = scheme(&json!(name));
            let secret = Secret(b"a secret that cannot be guessed".to_vec());
            let find = |name: &str| {
                Some(if name.to_ascii_lowercase().contains("timestamp") { &*time } else { &*value })
            };
            prop_assert!(scheme.verify_without_time(&[secret], &find, b"body").is_err());
        }
    }

    // PROTOCOL: W2
    #[test]
    fn a_signature_with_one_changed_bit_is_rejected(at in 0..32_usize, bit in 0..8_u32, body in ".{0,50}") {
        let mut tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, b"k"), body.as_bytes()).as_ref().to_vec();
        tag[at] ^= 1 << bit;
        let header = format!("sha256={}", HEXLOWER.encode(&tag));
        let scheme = SignatureScheme::from_header_value(&header).unwrap();
        let result = scheme.verify_without_time(&[Secret(b"k".to_vec())], &|_| Some(&header), body.as_bytes());
        prop_assert_eq!(result, Err(SignatureError::Mismatch));
    }
}

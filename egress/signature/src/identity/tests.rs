use aws_lc_rs::signature::{ED25519, UnparsedPublicKey};

use super::*;

const NOW: u64 = 1_800_000_000;

fn url(text: &str) -> CanonicalUrl<'_> {
    text.parse().unwrap()
}

fn example_key() -> SigningKey {
    // RFC 9421 appendix B.1.4, as a JSON Web Key.
    let jwk = r#"{"kty": "OKP", "crv": "Ed25519", "nbf": 0, "exp": 4889289600,
        "d": "n4Ni-HpISpVObnQMW0wOhCKROaIKqKtW_2ZYb2p9KcU",
        "x": "JrQLj5P_89iXES9-vFgrIy29clF9CC_oPPsw3c5D0bs"}"#;
    SigningKey::from_jwk(serde_json::from_str(jwk).unwrap()).unwrap()
}

/// The test vectors of the draft, for this key: with `@authority` alone, and with the agent.
#[test]
fn the_vectors_of_the_draft() {
    let agent = (r#""signature-agent";key="agent2""#, r#""https://signature-agent.test""#);
    let authority = (r#""@authority""#, "example.com");
    for (covered, nonce, signature) in [
        (
            vec![authority],
            "zIW8+cdmA3vdYagbxojpONwa/l0EKJ/O3/wD486VvsQjO/RxPaSt6ZxvQaMcQzNnqKN/mQ6hpGiFro2L2qkz5A==",
            "QKN4fTdIYfh82fvoZCQiQA1weuozfCS/Led2zTMbewMMqH8PI2Wsy/5c4ao6B6D09nraNQdBNOADg8aM1MqfCg==",
        ),
        (
            vec![authority, agent],
            "n9p433xm+NJ3ph3upfBIGmsuwHw387YV7Q/F+6BSpGCVjYCqQw6rznNA8PVVLySrAWsv0hQtFioQb6E1YsauiA==",
            "RdNFx5Bj6au3YgAMQL/RzmUlZE8QZLIaXGRpw985hWnwPfMxT228NMk6ehRS1PSl4e8PhbNZACSanGdhEwYCCg==",
        ),
    ] {
        let params = SignatureParams {
            created_unix_s: 1_735_689_600,
            expires_unix_s: 4_889_289_600,
            nonce: nonce.to_owned(),
            tag: "web-bot-auth",
        };
        assert_eq!(sign(&example_key(), &covered, &params).value, format!(":{signature}:"));
    }
}

#[test]
fn keys_of_examples_and_broken_files_are_refused() {
    let example = to_text([example_key().jwk].into_iter());
    assert!(matches!(Identity::parse(&example), Err(IdentityError::ExampleKey(_))));
    let text = Identity::create(NOW).to_private_text();
    let public = Identity::parse(&text).unwrap().directory(NOW);
    assert!(
        matches!(Identity::parse(&public), Err(IdentityError::Malformed(_))),
        "no private part"
    );
    for broken in ["", "{}", r#"{"keys": []}"#, &text.replace("OKP", "RSA"), &text[1..]] {
        let error = Identity::parse(broken).unwrap_err();
        let private = serde_json::from_str::<JwkSet>(&text).unwrap().keys[0].d.clone().unwrap();
        assert!(!error.to_string().contains(&private), "{error}");
    }
    let (one, other) = (Identity::create(NOW), Identity::create(NOW));
    let mixed = Jwk { x: other.keys[0].jwk.x.clone(), ..one.keys[0].jwk.clone() };
    let mixed = to_text([mixed].into_iter());
    assert!(matches!(Identity::parse(&mixed), Err(IdentityError::WrongKey(_))));
    assert!(!format!("{one:?}").contains(one.keys[0].jwk.d.as_ref().unwrap()));
}

/// At every moment of a rotation, the key that signs has been in the directory for as long as a
/// verifier may keep an old one, and stays there for as long as its signatures are valid.
#[test]
fn a_rotation_has_no_gap() {
    let mut identity = Identity::create(NOW);
    let first = identity.summary(NOW)[0].id.clone();
    let mut directories = Vec::new();
    let mut used = std::collections::BTreeSet::new();
    for now in (NOW..NOW + 4 * DAY_S).step_by(600) {
        if now == NOW + DAY_S {
            identity.rotate(now).unwrap();
            assert!(matches!(identity.rotate(now + 1), Err(IdentityError::RotationPending(_))));
            identity = Identity::parse(&identity.to_private_text()).unwrap();
        }
        directories.push((now, identity.directory(now)));
        let key = &identity.current(now).unwrap().jwk.kid;
        used.insert(key.clone());
        let cached = directories.iter().filter(|(at, _)| at + DIRECTORY_MAX_AGE_S >= now);
        assert!(cached.clone().all(|(_, text)| text.contains(key)), "at {now}");
        assert!(identity.directory(now + SIGNATURE_VALIDITY_S).contains(key), "at {now}");
    }
    assert_eq!(used.len(), 2);
    assert!(!identity.directory(NOW + 4 * DAY_S).contains(&first));
    identity.rotate(NOW + 4 * DAY_S).unwrap();
    assert_eq!(identity.keys.len(), 2, "the expired key is dropped");
}

#[test]
fn nothing_of_a_replaced_identity_signs_or_is_published() {
    let (old, new) = (Identity::create(NOW), Identity::create(NOW));
    let [old_id, new_id] = [&old, &new].map(|identity| identity.summary(NOW)[0].id.clone());
    let agent = "https://crawler.example".parse().unwrap();
    let signer = RequestSigner::new(old, Some(agent), AgentForm::Dictionary);
    signer.replace_identity(new);
    let request = signer.sign("GET", &url("https://a.example/"), NOW).unwrap();
    let sent = format!("{request:?} {:?}", signer.directory(NOW));
    assert!(!sent.contains(&old_id), "{sent}");
    let names = sent.matches(&new_id).count();
    assert_eq!(names, 3, "the request, the directory and its signature: {sent}");
}

#[test]
fn an_expired_identity_signs_nothing_and_can_be_rotated() {
    let mut identity = Identity::create(NOW);
    let late = NOW + KEY_VALIDITY_S;
    assert_eq!(identity.check_valid(late - 1), Ok(()));
    assert_eq!(identity.check_valid(late), Err(IdentityError::Expired));
    let signer = RequestSigner::new(Identity::create(NOW), None, AgentForm::Dictionary);
    assert_eq!(signer.sign("GET", &url("https://a.example/"), late), None);
    identity.rotate(late).unwrap();
    assert_eq!(identity.check_valid(late), Ok(()), "without a valid key the new one signs at once");
}

#[test]
fn a_request_names_its_parts_and_a_plain_one_is_not_signed() {
    let agent: AgentOrigin = "https://Crawler.example:443".parse().unwrap();
    for (form, name, value) in [
        (
            AgentForm::Dictionary,
            r#""signature-agent";key="sig1""#,
            "sig1=\"https://crawler.example\"",
        ),
        (AgentForm::String, r#""signature-agent""#, "\"https://crawler.example\""),
    ] {
        let signer = RequestSigner::new(Identity::create(NOW), Some(agent.clone()), form);
        assert_eq!(signer.sign("GET", &url("http://a.example/"), NOW), None);
        let page = url("https://a.example:8443/x/y?");
        let headers = signer.sign("GET", &page, NOW).unwrap();
        assert_eq!(headers[0], ("signature-agent", value.to_owned()));
        let input = headers[1].1.strip_prefix("sig1=").unwrap();
        let covered = format!(r#"("@authority" "@method" "@path" "@query" {name});created={NOW};"#);
        assert!(input.starts_with(&covered), "{input}");
        let base = format!(
            "\"@authority\": a.example:8443\n\"@method\": GET\n\"@path\": /x/y\n\"@query\": ?\n\
             {name}: \"https://crawler.example\"\n\"@signature-params\": {input}"
        );
        let value = headers[2].1.strip_prefix("sig1=:").and_then(|value| value.strip_suffix(':'));
        let value = BASE64.decode(value.unwrap().as_bytes()).unwrap();
        let identity = signer.identity.read();
        let public = UnparsedPublicKey::new(&ED25519, identity.keys[0].pair.public_key());
        public.verify(base.as_bytes(), &value).unwrap();
        assert!(public.verify(base.replace("GET", "PUT").as_bytes(), &value).is_err());
    }
    let signer = RequestSigner::new(Identity::create(NOW), None, AgentForm::Dictionary);
    let names = signer.sign("GET", &url("https://a.example/"), NOW).unwrap();
    assert_eq!(
        names.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
        ["signature-input", "signature"]
    );
    for bad in ["http://a.example", "https://a.example/x", "a.example", "https://a.example/?"] {
        assert!(bad.parse::<AgentOrigin>().is_err(), "{bad}");
    }
}

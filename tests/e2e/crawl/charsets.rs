//! Pages with known encodings and contents, through `tidings probe links`.

use std::fs;

use data_encoding::BASE64;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::process::{probe_json, run_tidings};

/// Files with another detected encoding than expected: the file, the detected encoding, and the
/// reason.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("html5lib/tests1/55", "windows-1252", "a script writes the <meta>, and no script is run"),
    (
        "charset_normalizer/sample-russian.txt",
        "windows-1252",
        "x-mac-cyrillic has to be declared: browsers do not guess it, either",
    ),
];

#[test]
fn pages_are_decoded_in_the_expected_encodings() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/charset/cases.jsonl");
    let cases = fs::read_to_string(path).unwrap();
    let cases: Vec<Value> = cases.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let inputs = cases.iter().map(|case| probe_input(&case["body_b64"], &json!({})));
    let responses = probe_json("links", inputs);
    assert_eq!(responses.len(), cases.len());
    let (mut right, mut failures) = (0, Vec::new());
    for (case, response) in cases.iter().zip(&responses) {
        let file = case["file"].as_str().unwrap();
        let exception = EXCEPTIONS.iter().find(|(excepted, ..)| *excepted == file);
        let expected = exception.map_or_else(|| case["charset"].clone(), |it| json!(it.1));
        if response["charset"] == expected {
            right += usize::from(exception.is_none());
        } else {
            failures.push(format!("{file}: {}, not {expected}", response["charset"]));
        }
    }
    eprintln!("{right} of {} as the tables expect; exceptions: {EXCEPTIONS:#?}", cases.len());
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn probe_links_answers_in_json() {
    let page = "<title>A \u{e9}</title><link rel=canonical href=/c><a href=b>b</a><a rel=nofollow href=b>b</a>\
        <a href=mailto:x>m</a><meta name=robots content=noindex>";
    let body = json!(BASE64.encode(page.as_bytes()));
    let headers = json!({ "Content-Type": "text/html; charset=UTF-8", "Link": ["</n>; rel=next", "</s>; rel=stylesheet"] });
    let mut invalid = probe_input(&body, &json!({}));
    invalid["base"] = json!("mailto:x");
    let responses = probe_json(
        "links",
        [
            probe_input(&body, &headers),
            probe_input(&json!(""), &json!([["x-robots-tag", "none"]])),
            invalid,
        ],
    );
    let site = |path| format!("http://site.example/{path}");
    let expected = json!({
        "charset": "utf-8", "title": "A \u{e9}", "canonical": site("c"),
        "links": [site("n"), site("c"), site("dir/b")], "noindex": true, "nofollow": false,
    });
    assert_eq!(responses[0], expected);
    let nothing = json!({ "charset": "windows-1252", "title": null, "links": [], "noindex": true, "nofollow": true });
    assert_eq!(responses[1], nothing);
    assert!(responses[2]["error"].as_str().unwrap().starts_with("`base`: "), "{}", responses[2]);
}

#[test]
fn probe_links_prints_text() {
    let folder = TempDir::new().unwrap();
    let page = "<meta charset=koi8-r><title>Page</title><link rel=alternate type=application/rss+xml href=feed>\
        <meta name=mybot content=none><a href=\"a\x1b[2J\">x</a>";
    fs::write(folder.path().join("page.html"), page).unwrap();
    let output = run_tidings(folder.path(), &["probe", "links", "page.html", "--agent", "mybot/1"])
        .expect_code(0);
    let expected = "Page
  page       page.html, as if it were http://localhost/
  charset    KOI8-R
  robots     noindex, nofollow
  feed       http://localhost/feed
1 link
  http://localhost/a%1B[2J  (nofollow)";
    assert_eq!(output.stdout().join("\n"), expected);
    run_tidings(folder.path(), &["probe", "links", "none.html"])
        .expect_code(1)
        .expect_stderr("cannot read none.html");
}

fn probe_input(body: &Value, headers: &Value) -> Value {
    json!({ "body_b64": body, "headers": headers, "base": "http://site.example/dir/page" })
}

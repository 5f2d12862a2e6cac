//! URLs and addresses through the real binary: the public test tables of the URL standard and of
//! the public suffix list, and the special-purpose address registries.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::process::{probe_json, run_tidings};

#[track_caller]
fn read_test_data(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The cases of a file of the standard's tests; its other elements are comments. Escaped surrogates
/// stay escaped, as `\\ud800` in a string, because half of a pair is not valid text.
#[track_caller]
fn read_cases(file: &str) -> Vec<Value> {
    let text = read_test_data(file).replace("\\ud", "\\\\ud").replace("\\uD", "\\\\uD");
    let cases: Vec<Value> = serde_json::from_str(&text).unwrap();
    cases.into_iter().filter(Value::is_object).collect()
}

/// An input with its surrogates as in the file.
fn probe_input(input: &Value, base: &Value) -> String {
    let question = json!({ "input": input, "base": base }).to_string();
    question.replace("\\\\ud", "\\ud").replace("\\\\uD", "\\uD")
}

/// The number of `file:` URLs, which no crawler fetches, that the `url` crate parses differently.
/// Nearly all concern hosts and drive letters.
const DIFFERING_FILE_URLS: usize = 39;
/// A URL with the path segment `C:`. The crate reads it as a drive letter, although the scheme has
/// no drives.
const DIFFERING_URL: &str = "abc://x/y/z/";

/// Hosts that these older files reject and that the standard accepts since June 2026 (whatwg/url
/// pull request 914). An ASCII host is accepted in lower case, even if its labels are not valid
/// Punycode.
const ASCII_HOSTS: [&str; 10] = [
    "10.0.0.xn--pokxncvks",
    "a.b.c.xn--pokxncvks",
    "xn--",
    "xn--0.com",
    "xn--1ug.example",
    "xn--a",
    "xn--a-yoc",
    "xn--a.xn--zca",
    "xn--ls8h=",
    "xn--zn7c.com",
];

/// Whether the response contains one of those hosts.
fn is_ascii_host(response: &Value) -> bool {
    response["host"].as_str().is_some_and(|host| ASCII_HOSTS.contains(&host))
}

#[test]
fn urls_are_parsed_as_the_standard_requires() {
    let mut cases = read_cases("wpt/urltestdata.json");
    cases.extend(read_cases("wpt/urltestdata-javascript-only.json"));
    assert_eq!(cases.len(), 874);
    let inputs: Vec<_> =
        cases.iter().map(|case| probe_input(&case["input"], &case["base"])).collect();
    let (mut file_urls, mut ascii_hosts) = (0, 0);
    for (case, response) in cases.iter().zip(probe_json("url", &inputs)) {
        let expected = &case["href"];
        if case["failure"] == true && is_ascii_host(&response) {
            ascii_hosts += 1;
        } else if case["failure"] == true {
            assert!(response["href"].is_null(), "{case}: {response}");
            assert!(response["why"].is_string(), "{case}: {response}");
        } else if response["href"] == *expected {
            let hostname = case["hostname"].as_str().unwrap_or_default();
            assert_eq!(response["host"].as_str().unwrap_or_default(), hostname, "{case}");
        } else if expected.as_str().unwrap().starts_with("file:") {
            file_urls += 1;
        } else {
            assert_eq!(*expected, DIFFERING_URL, "{case}: {response}");
        }
        // Exactly the URLs that can be fetched have a key.
        let href = response["href"].as_str().unwrap_or_default();
        let credentials =
            ["username", "password"].iter().any(|name| case[name].as_str() > Some(""));
        let is_page = href.starts_with("http://") || href.starts_with("https://");
        // Without their trailing dots, these are not hosts.
        let is_host =
            ![".", "..", "foo.09.."].contains(&response["host"].as_str().unwrap_or_default());
        let has_key = is_page && !credentials && is_host;
        assert_eq!(response["key"].is_string(), has_key, "{case}: {response}");
        assert_eq!(response["why"].is_string(), response["key"].is_null(), "{case}: {response}");
    }
    assert_eq!(file_urls, DIFFERING_FILE_URLS);
    assert_eq!(ascii_hosts, 8);
}

#[test]
fn hosts_become_ascii_as_the_standard_requires() {
    let cases = read_cases("wpt/toascii.json");
    assert_eq!(cases.len(), 87);
    let url = |case: &Value| format!("https://{}/x", case["input"].as_str().unwrap());
    let inputs: Vec<_> =
        cases.iter().map(|case| probe_input(&url(case).into(), &Value::Null)).collect();
    for (case, response) in cases.iter().zip(probe_json("url", &inputs)) {
        // These inputs are in lower case.
        let is_newer = case["output"].is_null() && is_ascii_host(&response);
        let host = if is_newer { &case["input"] } else { &case["output"] };
        assert_eq!(response["host"], *host, "{case}: {response}");
        let href = host.as_str().map(|host| format!("https://{host}/x"));
        assert_eq!(response["href"].as_str(), href.as_deref(), "{case}: {response}");
    }
}

// PROTOCOL: U3
#[test]
fn domains_follow_the_public_suffix_list() {
    let table = read_test_data("psl/test_psl.txt");
    let pairs: Vec<_> = table
        .lines()
        .filter_map(|line| line.strip_prefix("checkPublicSuffix(")?.strip_suffix(");"))
        .map(|pair| pair.split_once(", ").unwrap())
        .filter(|(host, _)| *host != "null")
        .map(|(host, domain)| (host.trim_matches('\''), domain.trim_matches('\'')))
        .collect();
    assert_eq!(pairs.len(), 77);
    let probe_line = |host: &str| probe_input(&format!("http://{host}/").into(), &Value::Null);
    let hosts: Vec<_> = pairs.iter().map(|(host, _)| probe_line(host)).collect();
    // The domains as hosts, because a URL has names in lower case and in Punycode.
    let domains: Vec<_> = pairs.iter().map(|(_, domain)| probe_line(domain)).collect();
    for ((pair, response), domain) in
        pairs.iter().zip(probe_json("url", &hosts)).zip(probe_json("url", &domains))
    {
        let expected = if pair.1 == "null" { &Value::Null } else { &domain["host"] };
        assert_eq!(response["domain"], *expected, "{pair:?}: {response}");
    }
    let without =
        ["http://127.0.0.1/", "http://[::1]/", "http://localhost/", "mailto:a@example.org"];
    let inputs = without.map(|url| probe_input(&url.into(), &Value::Null));
    for response in probe_json("url", &inputs) {
        assert_eq!(response["domain"], Value::Null, "{response}");
    }
}

#[test]
fn special_addresses_are_forbidden_but_their_neighbours_are_not() {
    let table = read_test_data("addresses/addresses.csv");
    let rows: Vec<Vec<&str>> =
        table.lines().skip(1).map(|line| line.splitn(3, ',').collect()).collect();
    assert_eq!(rows.len(), 126);
    let inputs: Vec<_> = rows.iter().map(|row| json!({ "address": row[0] }).to_string()).collect();
    for (row, response) in rows.iter().zip(probe_json("address", &inputs)) {
        assert_eq!(response["forbidden"], row[1] == "yes", "{row:?}: {response}");
        assert_eq!(response["why"].is_string(), row[1] == "yes", "{row:?}: {response}");
    }
    for response in
        probe_json("address", [r#"{"address":"localhost"}"#, r#"{"address":7}"#].map(str::to_owned))
    {
        assert!(response["error"].is_string(), "{response}");
    }
}

#[test]
fn probe_prints_one_line_per_field() {
    let folder = TempDir::new().unwrap();
    let run_probe_command =
        |arguments: &[&str]| run_tidings(folder.path(), arguments).expect_code(0).stdout();
    assert_eq!(
        run_probe_command(&[
            "probe",
            "url",
            "../c?utm_source=x#d",
            "https://www.example.co.uk/a/b"
        ]),
        [
            "url     https://www.example.co.uk/c?utm_source=x#d",
            "key     https://www.example.co.uk/c",
            "host    www.example.co.uk",
            "domain  example.co.uk",
        ]
    );
    let url = "https://example.org/?utm_source=x&ref=y";
    assert_eq!(
        run_probe_command(&["probe", "url", url, "--tracking-params", "ref"])[1],
        "key     https://example.org/?utm_source=x"
    );
    assert_eq!(
        run_probe_command(&["probe", "url", "mailto:a@example.org"])[1..],
        ["key     none: only http and https URLs can be fetched", "host    none", "domain  none"]
    );
    run_tidings(folder.path(), &["probe", "url", "a b"])
        .expect_code(1)
        .expect_stderr("a b: not a URL");
    assert_eq!(
        run_probe_command(&["probe", "address", "0x7f.1"]),
        ["127.0.0.1 is a loopback address: refused"]
    );
    let allowed = run_probe_command(&["probe", "address", "localhost", "--allow-private"]);
    assert!(allowed.contains(&"127.0.0.1 may be fetched from".to_owned()), "{allowed:?}");
    assert_eq!(
        run_probe_command(&["probe", "address", "8.8.8.8"]),
        ["8.8.8.8 may be fetched from"]
    );
}

//! robots.txt: the test tables of other parsers through the real binary.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::origin::{Origin, Site};
use crate::support::process::{probe_json, run_tidings};

/// A case of a table with its expected result.
struct RobotsCase {
    name: String,
    probe_input: Value,
    /// `allowed` or `delay`.
    key: &'static str,
    expected: Value,
}

fn read_cases() -> Vec<RobotsCase> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/robots/tables.jsonl");
    let tables = fs::read_to_string(file).unwrap();
    let mut cases = Vec::new();
    for table in tables.lines() {
        let table: Value = serde_json::from_str(table).unwrap();
        let list = |key: &str| table[key].as_array().cloned().unwrap_or_default();
        let mut add = |agent: &Value, url: &Value, key, expected: &Value| {
            let mut input = json!({ "agent": agent, "url": url });
            for key in ["robots", "robots_b64"] {
                if let Some(text) = table.get(key) {
                    input[key] = text.clone();
                }
            }
            let [source, test] = ["source", "test"].map(|key| table[key].as_str().unwrap());
            let name = format!("{source}: {test}");
            cases.push(RobotsCase { name, probe_input: input, key, expected: expected.clone() });
        };
        for case in list("allowed") {
            add(&case[0], &case[1], "allowed", &case[2]);
        }
        for case in list("delays") {
            add(&case[0], &json!("/"), "delay", &case[1]);
        }
    }
    cases
}

fn matches_expected(case: &RobotsCase, response: &Value) -> bool {
    match (response.get(case.key), &case.expected) {
        (None, expected) => {
            case.key == "delay" && expected.is_null() && response["error"].is_null()
        }
        (Some(found), expected) => {
            found == expected || found.as_f64() == expected.as_f64() && found.is_number()
        }
    }
}

#[test]
fn robots_rules_match_the_tables_of_other_parsers() {
    let cases = read_cases();
    let inputs: Vec<_> = cases.iter().map(|case| case.probe_input.clone()).collect();
    let responses = probe_json("robots", &inputs);
    assert_eq!(responses.len(), cases.len());
    let mut failures: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut counts: BTreeMap<&str, [usize; 2]> = BTreeMap::new();
    for (case, response) in cases.iter().zip(&responses) {
        let source = case.name.split(':').next().unwrap();
        let right = matches_expected(case, response);
        counts.entry(source).or_default()[usize::from(!right)] += 1;
        if !right {
            let text = format!("{} is {}, not {response}", case.probe_input, case.expected);
            failures.entry(&case.name).or_default().push(text);
        }
    }
    eprintln!("robots.txt, [as expected, exceptions] of each source: {counts:?}");
    assert!(cases.len() > 900, "only {} cases", cases.len());
    let found: BTreeMap<_, _> = failures.iter().map(|(name, cases)| (*name, cases.len())).collect();
    let expected: BTreeMap<_, _> =
        EXCEPTIONS.iter().map(|(name, count, _)| (*name, *count)).collect();
    for (name, cases) in &failures {
        if expected.get(name) != Some(&cases.len()) {
            eprintln!("{name}:\n  {}", cases.join("\n  "));
        }
    }
    assert_eq!(found, expected);
}

/// Where the suites disagree with RFC 9309 or with each other: the test, how many of its cases, and
/// why.
const EXCEPTIONS: &[(&str, usize, &str)] = &[
    ("protego: test_1994rfc_example", 1, "the crawler does not fetch ftp URLs"),
    ("protego: test_allowed_wildcards", 1, "`xyz/foo.js` is not a URL"),
    ("protego: test_empty_user_agent_line", 1, "`user agent` alone is not a line of robots.txt"),
    (
        "protego: test_generosity",
        2,
        "a field name of two words needs a colon; names have no wildcards",
    ),
    ("protego: test_grouping_unknown_keys", 3, "unknown lines do not end a group (section 2.2.4)"),
    ("protego: test_index_html_is_directory", 1, "`/d/index.html` does not cover `/d/` (2.2.2)"),
    ("protego: test_special_symbols_dual_behaviour", 2, "`$` at the end is an anchor (2.2.3)"),
    ("protego: test_user_agent_boundary_matching", 2, "product tokens are equal or not (2.2.1)"),
    ("protego: test_user_agent_precedence", 5, "the same"),
    ("protego: test_with_absolute_urls", 1, "a pattern begins with a slash or a star (2.2)"),
    (
        "robots-parser: should handle Unicode and urlencoded paths",
        1,
        "escaped or not, a colon is a colon (2.2.2)",
    ),
    ("texting_robots: test_google_encoding", 1, "escapes of letters are undone (2.2.2)"),
    (
        "texting_robots: test_google_order_of_precedence",
        3,
        "rules before the first User-agent apply to no crawler (2.2), as in Google's parser",
    ),
    ("texting_robots: test_repcpp_no_leading_user_agent", 2, "the same"),
    ("texting_robots: test_repcpp_well_formed_crawl_delay", 2, "the same"),
    ("texting_robots: test_reppy_no_leading_user_agent", 2, "the same"),
    ("texting_robots: test_robot_excessive_crawl_delay", 1, "a crawl-delay is at most one day"),
    ("texting_robots: test_robot_many_star_rule_simplifier", 1, "as above: no User-agent"),
    ("texting_robots: test_robot_starts_with_crawl_delay", 1, "the same"),
    (
        "texting_robots: test_robot_starts_with_wildcard",
        4,
        "the same; `bob/a/home.html` is not a URL",
    ),
];

#[test]
fn probe_robots_names_the_file_and_the_deciding_line() {
    let site = Site {
        robots: Some(
            "User-agent: *\nDisallow: /private/\nCrawl-delay: 2.5\nSitemap: http://a.example/s\n",
        ),
        ..Site::default()
    };
    let origin = Origin::serve(site);
    let folder = TempDir::new().unwrap();
    let run_probe_command = |url: &str, flags: &[&str]| {
        let arguments = [&["probe", "robots", url], flags].concat();
        run_tidings(folder.path(), &arguments).expect_code(0).stdout()
    };
    let found = format!("robots.txt   {} (HTTP 200, 79 B)", origin.url(0, "/robots.txt"));
    assert_eq!(
        run_probe_command(&origin.url(0, "/private/1"), &["--allow-private", "--agent", "bot/1"]),
        [
            found.as_str(),
            "allowed      no, for bot: by the line `Disallow: /private/`",
            "crawl-delay  2.5 s",
            "sitemaps     1 sitemap",
            "             http://a.example/s",
        ]
    );
    let public = run_probe_command(&origin.url(0, "/p/0"), &["--allow-private"]);
    assert_eq!(public[1], "allowed      yes, for tidings: no line matches");
    let rejected = run_probe_command(&origin.url(0, "/p/0"), &[]);
    assert!(
        rejected[1].starts_with("allowed      no: robots.txt could not be read: "),
        "{rejected:?}"
    );
    run_tidings(folder.path(), &["probe", "robots", "nonsense"]).expect_code(2);
}

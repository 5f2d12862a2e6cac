//! Checks that tests cite every numbered sentence of the specification, without running them.
//!
//! A test that fails when a sentence is broken has a line `// PROTOCOL: S3, S5` directly above its
//! attributes. Other code cites sentences as `[S3]`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const CITATION_PREFIX: &str = "// PROTOCOL: ";

#[test]
fn every_numbered_sentence_is_cited_by_a_test() {
    let sentences = sentences();
    let mut citations: BTreeMap<String, usize> = BTreeMap::new();
    let mut failures = Vec::new();
    for path in sources() {
        let source = read_source(&path);
        for cited in cited_by_tests(&source) {
            match cited {
                Ok(names) => names.into_iter().for_each(|name| {
                    *citations.entry(name.to_owned()).or_default() += 1;
                }),
                Err(reason) => failures.push(format!("{}: {reason}", path.display())),
            }
        }
    }
    let unknown = citations.keys().filter(|name| !sentences.contains(*name));
    failures.extend(unknown.map(|name| format!("a test cites [{name}], which does not exist")));
    let uncited = sentences.iter().filter(|name| !citations.contains_key(*name));
    failures.extend(uncited.map(|name| format!("no test cites [{name}]")));
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(sentences.len() >= 150, "{} sentences found", sentences.len());
}

#[test]
fn every_sentence_that_code_cites_exists() {
    let sentences = sentences();
    let mut citations = 0;
    for path in sources() {
        for name in cited_by_code(&read_source(&path)) {
            assert!(sentences.contains(name), "{}: no sentence [{name}]", path.display());
            citations += 1;
        }
    }
    assert!(citations >= 30, "{citations} citations found");
}

#[test]
fn citations_are_valid_only_above_tests() {
    let found = |source: &'static str| cited_by_tests(source).collect::<Vec<_>>();
    let test = "    // PROTOCOL: S3, L10\n    #[cfg(unix)]\n    #[tokio::test(start_paused = true)]\n    async fn a() {";
    assert_eq!(found(test), [Ok(vec!["S3", "L10"])]);
    let of_both = "// PROTOCOL: A1\n#[test]\nfn a() {}\n\n// PROTOCOL: A2\n#[test]\nfn b() {}";
    assert_eq!(found(of_both), [Ok(vec!["A1"]), Ok(vec!["A2"])]);
    for invalid in [
        "// PROTOCOL: A1\nfn helper() {}",
        "// PROTOCOL: A1\n\n#[test]\nfn a() {}",
        "// PROTOCOL: A1 A2\n#[test]\nfn a() {}",
        "// PROTOCOL: a1\n#[test]\nfn a() {}",
        "// PROTOCOL: A1, A1\n#[test]\nfn a() {}",
    ] {
        assert!(matches!(found(invalid)[..], [Err(_)]), "{invalid}");
    }
    assert_eq!(cited_by_code("`[A1]` and [Z10], not [a1], [A], [1], [AB1]").count(), 2);
}

/// The names of all numbered sentences, such as `S3`. Each name must be unique.
fn sentences() -> BTreeSet<String> {
    let mut sentences = BTreeSet::new();
    let names = tidings_protocol::SPECIFICATION.lines();
    let names = names.filter_map(|line| line.strip_prefix("- [")?.split_once("] "));
    for (name, _) in names.filter(|(name, _)| is_sentence_name(name)) {
        assert!(sentences.insert(name.to_owned()), "two sentences are called [{name}]");
    }
    sentences
}

/// The sentences that each marked test cites, or what is wrong with the mark.
fn cited_by_tests(source: &str) -> impl Iterator<Item = Result<Vec<&str>, String>> {
    let lines: Vec<_> = source.lines().map(str::trim).collect();
    (0..lines.len()).filter_map(move |at| {
        let names: Vec<_> = lines[at].strip_prefix(CITATION_PREFIX)?.split(", ").collect();
        let attributes = lines[at + 1..].iter().take_while(|line| line.starts_with("#["));
        let is_test = |line: &&str| line.starts_with("#[test]") || line.contains("::test");
        let is_once = names.iter().collect::<BTreeSet<_>>().len() == names.len();
        let is_good = names.iter().all(|name| is_sentence_name(name)) && is_once;
        Some(if is_good && attributes.copied().any(|line| is_test(&line)) {
            Ok(names)
        } else {
            Err(format!("line {}: expected names and then a test: {}", at + 1, lines[at]))
        })
    })
}

/// The sentences in every `[S3]` of a source.
fn cited_by_code(source: &str) -> impl Iterator<Item = &str> {
    let bracketed = source.split('[').skip(1).filter_map(|rest| rest.split_once(']'));
    bracketed.map(|(name, _)| name).filter(|name| is_sentence_name(name))
}

/// Whether a name is a capital letter and a number.
fn is_sentence_name(name: &str) -> bool {
    let number = name.strip_prefix(|c: char| c.is_ascii_uppercase()).unwrap_or_default();
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}

/// All Rust sources of the repository except this one: its names are examples.
fn sources() -> Vec<PathBuf> {
    let (mut open, mut sources) = (vec![repository().to_owned()], Vec::new());
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir() && !path.is_symlink() {
                if !name.starts_with('.') && name != "target" {
                    open.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs")
                && name != "citations.rs"
            {
                sources.push(path);
            }
        }
    }
    assert!(sources.len() > 100, "{} sources found", sources.len());
    sources
}

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[track_caller]
fn read_source(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

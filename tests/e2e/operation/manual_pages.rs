//! The pages of `tidings man`, read by mandoc and man.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use crate::docs::pages::{help_texts, long_flags};
use crate::support::process::{Process, run_tidings};

/// Writes the pages and returns their paths.
fn write_pages(folder: &TempDir) -> Vec<PathBuf> {
    run_tidings(folder.path(), &["man", "--dir", "man"]).expect_code(0);
    let mut pages = Vec::new();
    for section in fs::read_dir(folder.path().join("man")).unwrap() {
        let files = fs::read_dir(section.unwrap().path()).unwrap();
        pages.extend(files.map(|file| file.unwrap().path()));
    }
    pages
}

#[test]
#[ignore = "needs foreign programs"]
fn mandoc_finds_nothing_to_warn_about() {
    let folder = TempDir::new().unwrap();
    let pages = write_pages(&folder);
    let lint = Command::new("mandoc").args(["-T", "lint", "-W", "warning"]).args(pages).output();
    let lint = lint.unwrap();
    assert!(lint.stdout.is_empty(), "{}", String::from_utf8_lossy(&lint.stdout));
}

#[test]
#[ignore = "needs foreign programs"]
fn man_shows_each_page_with_its_flags() {
    let folder = TempDir::new().unwrap();
    let pages = write_pages(&folder);
    let show = |name: &str| {
        let path = folder.path().join("man").join(name);
        let mut man = Command::new("man");
        man.arg("-l")
            .arg(&path)
            .env("MANWIDTH", "200")
            .env("MAN_KEEP_FORMATTING", "")
            .env("LC_ALL", "C.UTF-8");
        Process::start(&mut man).finish().expect_code(0).stdout().join("\n")
    };
    let helps = help_texts();
    assert_eq!(pages.len(), helps.len() + 2, "each command, the file, the protocol");
    for (command, help) in &helps {
        let page = show(&format!("man1/{}.1", command.replace(' ', "-")));
        assert!(page.contains("NAME") && page.contains("SYNOPSIS"), "{command}: {page}");
        for flag in long_flags(help) {
            assert!(page.contains(flag), "{command}: no {flag}: {page}");
        }
    }
    let page = show("man5/tidings.toml.5");
    for key in ["data = DIR", "retain-bytes = BYTES", "TIDINGS_MAX_PAGES", "[crawl]"] {
        assert!(page.contains(key), "no {key}: {page}");
    }
    assert!(!page.contains("yes = "), "it has no key");
    let page = show("man7/tidings-protocol.7");
    for text in ["Protocol: clients", "TOUCH <id> [over=yes|no]", "[S3]"] {
        assert!(page.contains(text), "no {text}: {page}");
    }
}

#[test]
fn the_pages_are_the_same_each_time() {
    let [first, second] = [TempDir::new().unwrap(), TempDir::new().unwrap()];
    let read = |folder: &TempDir| {
        let mut pages: Vec<_> = write_pages(folder)
            .iter()
            .map(|path| (path.file_name().unwrap().to_owned(), fs::read(path).unwrap()))
            .collect();
        pages.sort();
        pages
    };
    assert_eq!(read(&first), read(&second));
}

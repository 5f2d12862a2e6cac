//! Checks the links and the sizes of the documentation, without a network.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::docs::pages::{SPECIFICATION, pages};

/// In bytes. A front page is read at one sitting.
const README_BYTES_MAX: usize = 10_000;

/// In bytes. A longer page covers more than one task of a reader.
const PAGE_BYTES_MAX: usize = 15_000;

/// In bytes. The author of a client reads one page; that of managing is longest.
const SPECIFICATION_PAGE_BYTES_MAX: usize = 43_000;

#[test]
fn every_link_of_every_page_has_a_target() {
    let mut documents = Vec::new();
    find_documents(Path::new(env!("CARGO_MANIFEST_DIR")), &mut documents);
    let mut links = 0;
    let mut broken = Vec::new();
    for document in &documents {
        for link in links_of(&read_document(document)) {
            links += 1;
            if let Err(reason) = check_link(document, &link) {
                broken.push(format!("{}: {link}: {reason}", document.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert!(links >= 200, "{links} links found");
}

#[test]
fn no_page_is_too_long() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    for page in pages() {
        let max = match &*page {
            "README.md" => README_BYTES_MAX,
            page if page.starts_with(SPECIFICATION) => SPECIFICATION_PAGE_BYTES_MAX,
            _ => PAGE_BYTES_MAX,
        };
        let bytes = read_document(&repository.join(&page)).len();
        assert!(bytes <= max, "{page} has {bytes} bytes, over the limit of {max}");
    }
}

#[test]
fn the_index_and_the_book_list_every_page_of_the_manual() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    for list in ["docs/index.md", "docs/SUMMARY.md"] {
        let mut links = links_of(&read_document(&repository.join(list)));
        // The decisions have an index of their own.
        let decisions = read_document(&repository.join("docs/internals/decisions/index.md"));
        if list == "docs/index.md" {
            links.extend(
                links_of(&decisions).iter().map(|link| format!("internals/decisions/{link}")),
            );
        }
        for page in pages().iter().filter_map(|page| page.strip_prefix("docs/")) {
            let is_list = page == "index.md" || page == "SUMMARY.md";
            assert!(is_list || links.iter().any(|link| link == page), "{list} lacks {page}");
        }
    }
}

#[test]
fn anchors_match_those_of_github_and_mdbook() {
    let text = "# Top\n## What `sync=` means\n```\n# no heading\n```\n## Don't, ever\n## Top\n";
    let expected = ["top", "what-sync-means", "dont-ever", "top-1"];
    assert_eq!(anchors_of(text), BTreeSet::from(expected.map(str::to_owned)));
}

/// All Markdown files of the repository, except those of builds and tools.
fn find_documents(folder: &Path, documents: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && !path.is_symlink() {
            if !name.starts_with('.') && name != "target" {
                find_documents(&path, documents);
            }
        } else if path.extension().is_some_and(|extension| extension == "md") {
            documents.push(path);
        }
    }
}

pub(crate) fn check_link(document: &Path, link: &str) -> Result<(), &'static str> {
    if ["https://", "http://", "mailto:"].iter().any(|scheme| link.starts_with(scheme)) {
        return Ok(());
    }
    let (file, anchor) = link.split_once('#').map_or((link, None), |(f, a)| (f, Some(a)));
    let target = match file {
        "" => document.to_owned(),
        file => document.parent().unwrap().join(file),
    };
    if !target.exists() {
        return Err("the file does not exist");
    }
    match anchor {
        Some(anchor) if !anchors_of(&read_document(&target)).contains(anchor) => {
            Err("the page has no such heading")
        }
        _ => Ok(()),
    }
}

/// The targets of all `[text](target)` outside of code.
fn links_of(text: &str) -> Vec<String> {
    let mut links = Vec::new();
    for line in prose_of(text) {
        let without_code: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
        let targets = without_code.split("](").skip(1);
        links.extend(targets.filter_map(|rest| rest.split(')').next()).map(str::to_owned));
    }
    links
}

/// The anchors of all headings, as GitHub and mdBook generate them.
fn anchors_of(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for line in prose_of(text).filter(|line| line.starts_with('#')) {
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || "-_ ".contains(*c));
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let numbered = (1..).map(|n| format!("{anchor}-{n}"));
        let free = std::iter::once(anchor.clone()).chain(numbered).find(|a| !anchors.contains(a));
        anchors.extend(free);
    }
    anchors
}

/// The lines outside of fenced code.
fn prose_of(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

#[track_caller]
fn read_document(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

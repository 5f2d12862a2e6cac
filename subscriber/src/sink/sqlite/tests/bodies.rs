//! Bodies of pages, and the results of rendering them.

use std::io::Read as _;

use flate2::read::GzDecoder;

use super::*;
use crate::sink::testing::{body_of, file_of, rendering};
use crate::spool::{Spool, Spools};

/// A page with this body.
fn page_with(entry: u64, body: Spool, bytes: &[u8]) -> PageRecord {
    PageRecord { hash: Some(blake3::hash(bytes)), body: Some(body), ..record(entry, 1) }
}

/// The decoded bodies, in the order of their rows.
fn bodies(path: &Path) -> Vec<String> {
    let decode = |row: Vec<Value>| {
        let [Value::Text(hash), Value::Integer(bytes), Value::Blob(gzip)] = &row[..] else {
            panic!("{row:?}")
        };
        let mut body = String::new();
        GzDecoder::new(&gzip[..]).read_to_string(&mut body).unwrap();
        assert_eq!(*hash, blake3::hash(body.as_bytes()).to_hex().as_str());
        assert_eq!(*bytes, i64::try_from(body.len()).unwrap());
        body
    };
    let sql = "SELECT hash, bytes, body FROM bodies WHERE encoding = 'gzip' ORDER BY rowid";
    rows(path, sql).into_iter().map(decode).collect()
}

/// A database with bodies, and a place for them.
fn open_with_bodies(folder: &Path) -> (Sqlite, Spools) {
    let on = BodyCompressor::new(true);
    let sqlite = Sqlite::open(&folder.join("pages.db"), None, on).unwrap().0;
    (sqlite, Spools::open(&folder.join("spool")).unwrap())
}

#[test]
fn each_body_is_stored_once_and_stays_when_its_page_changes() {
    let data = tempfile::tempdir().unwrap();
    let path = data.path().join("pages.db");
    let (mut sqlite, spools) = open_with_bodies(data.path());
    let page =
        |entry, bytes: &str| page_with(entry, body_of(&spools, bytes.as_bytes()), bytes.as_bytes());
    store(&mut sqlite, [page(1, "same"), page(2, "same")]);
    store(&mut open_with_bodies(data.path()).0, [page(3, "same"), page(4, "")]);
    assert_eq!(bodies(&path), ["same", ""]);
    store(&mut sqlite, [PageRecord { task: record(1, 2).task, ..page(1, "changed") }]);
    assert_eq!(bodies(&path), ["same", "", "changed"]);
    let pages = "SELECT count(*) FROM pages JOIN bodies USING (hash)";
    assert_eq!(rows(&path, pages), [[Value::Integer(4)]]);
    assert_eq!(tidings_database::check(&path, Some(&SCHEMA)).unwrap(), CheckReport::default());
    // Only with the flag.
    store(&mut open(&path), [page(5, "other")]);
    assert_eq!(bodies(&path).len(), 3);
}

#[test]
fn only_complete_bodies_of_limited_size_are_stored() {
    let data = tempfile::tempdir().unwrap();
    let (mut sqlite, spools) = open_with_bodies(data.path());
    let page = |entry, bytes: &[u8]| page_with(entry, body_of(&spools, bytes), bytes);
    // The hash of an unchanged page is that of an earlier body.
    let mut unchanged = PageRecord { hash: Some(blake3::hash(b"earlier")), ..page(1, b"") };
    unchanged.report.status = Some(304);
    let incomplete = PageRecord { hash: None, ..page(2, b"incomplete") };
    let largest = vec![b'x'; 8 << 20];
    let larger = [&largest[..], b"x"].concat();
    let records = [unchanged, incomplete, page(3, &larger), page(4, &largest), record(5, 1)];
    let added = records.each_ref().map(|it| sqlite.batch_bytes(it) - it.bytes_in_memory());
    assert_eq!(added, [0, 0, 0, largest.len(), 0]);
    store(&mut sqlite, records);
    let path = data.path().join("pages.db");
    assert!(bodies(&path) == [String::from_utf8(largest).unwrap()]);
    assert_eq!(rows(&path, "SELECT count(*) FROM pages"), [[Value::Integer(5)]]);
}

#[test]
fn a_page_whose_body_is_lost_is_refused_unless_the_content_is_known() {
    let data = tempfile::tempdir().unwrap();
    let (mut sqlite, spools) = open_with_bodies(data.path());
    store(&mut sqlite, [page_with(1, body_of(&spools, b"known"), b"known")]);
    let lost = |entry, bytes: &[u8]| {
        let body = file_of(&spools, bytes);
        std::fs::remove_file(body.file().unwrap()).unwrap();
        page_with(entry, body, bytes)
    };
    store(&mut sqlite, [lost(2, b"known"), lost(3, b"new")]);
    let refused: Vec<_> = sqlite.take_refused().into_iter().map(|(page, _)| page).collect();
    assert_eq!(refused, [page(3)]);
    assert_eq!(bodies(&data.path().join("pages.db")), ["known"]);
}

#[test]
fn rendered_pages_are_found_and_damage_to_them_is_seen() {
    let data = tempfile::tempdir().unwrap();
    let path = data.path().join("pages.db");
    let (mut sqlite, spools) = open_with_bodies(data.path());
    store(&mut sqlite, [page_with(1, body_of(&spools, b"body"), b"body")]);
    drop(sqlite);
    let other = Connection::open(&path).unwrap();
    let check = || tidings_database::check(&path, Some(&SCHEMA)).unwrap();
    let rendered = |entry| PageRecord {
        rendering: Some(rendering(&spools, data.path())),
        ..page_with(entry, body_of(&spools, b"body"), b"body")
    };
    let (mut sqlite, lookup) = Sqlite::open(&path, None, BodyCompressor::new(true)).unwrap();
    store(&mut sqlite, [rendered(2)]);
    assert_eq!(check(), CheckReport::default());
    assert_eq!(bodies(&path), ["body", "<title>Rendered</title>"]);
    let html = "SELECT page FROM pages JOIN bodies ON rendered_hash = bodies.hash";
    assert_eq!(rows(&path, html), [[text("crawlers.3.2")]]);
    let fields = "SELECT json_extract(render, '$.outcome', '$.requests[0].status') FROM pages";
    assert_eq!(rows(&path, fields), [[Value::Null], [text(r#"["rendered",200]"#)]]);

    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let last = |entry| {
        let url = record(entry, 1).report.url;
        runtime.block_on(lookup.find(&url, &page(99))).newest().unwrap().rendered_hash
    };
    assert_eq!([1, 2].map(last), [None, Some(blake3::hash(b"<title>Rendered</title>"))]);

    let damage = |sql: &str| {
        other.execute_batch(sql).unwrap();
        check().problems.concat()
    };
    for column in ["render", "rendered_hash"] {
        let found = damage(&format!("UPDATE pages SET {column} = NULL WHERE id = 2"));
        assert!(found.starts_with("row 2 of pages: its values"), "{found}");
    }
    let found = damage("UPDATE bodies SET body = zeroblob(24) WHERE rowid = 2");
    assert!(found.contains("row 2 of bodies: its values"), "{found}");
}

#[test]
fn a_rendered_page_is_kept_without_a_body_of_its_own() {
    let data = tempfile::tempdir().unwrap();
    let (mut sqlite, spools) = open_with_bodies(data.path());
    let page =
        PageRecord { rendering: Some(rendering(&spools, data.path())), hash: None, ..record(1, 1) };
    assert!(sqlite.batch_bytes(&page) > page.bytes_in_memory());
    let plain = record(1, 1).bytes_in_memory();
    assert!(page.bytes_in_memory() > plain + "http://site.example/".len() * 5);
    store(&mut sqlite, [page]);
    assert_eq!(bodies(&data.path().join("pages.db")), ["<title>Rendered</title>"]);
}

mod bodies;

use std::time::Duration;

use rusqlite::types::Value;
use tidings_browser::visit::PageError;
use tidings_database::CheckReport;
use tidings_egress::http::Validators;
use tidings_protocol::PageChange;

use super::*;
use crate::report::{PageId, PageOutcome, Rendering};
use crate::sink::testing::{record, transient};

const OFF: BodyCompressor = BodyCompressor::new(false);

fn open(path: &Path) -> Sqlite {
    Sqlite::open(path, None, OFF).unwrap().0
}

fn page(entry: u64) -> PageId {
    record(entry, 1).page
}

fn store(sqlite: &mut Sqlite, records: impl IntoIterator<Item = PageRecord>) {
    let batch: Vec<_> = records.into_iter().map(Arc::new).collect();
    sqlite.write(&batch).unwrap();
}

fn rows(path: &Path, sql: &str) -> Vec<Vec<Value>> {
    let connection = Connection::open(path).unwrap();
    let mut statement = connection.prepare(sql).unwrap();
    let columns = statement.column_count();
    let rows = statement.query_map([], |row| (0..columns).map(|at| row.get(at)).collect()).unwrap();
    rows.map(Result::unwrap).collect()
}

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

#[test]
fn a_page_is_one_readable_row() {
    let data = tempfile::tempdir().unwrap();
    let path = data.path().join("new/pages.db");
    store(&mut open(&path), [record(42, 1)]);
    let expected = vec![
        Value::Integer(1),
        text("crawlers.3.42"),
        text("crawlers:7.42"),
        text("http://site.example/42"),
        Value::Integer(200),
        text("text/html"),
        Value::Integer(1234),
        text(blake3::hash(b"body").to_hex().as_str()),
        text("attempt 1"),
        text("2023-11-14T22:13:20.007Z"),
        Value::Integer(56),
        text("docs"),
        Value::Integer(2),
        Value::Integer(3),
        Value::Integer(1),
        text("done"),
        Value::Null,
        Value::Null,
        Value::Null,
        text("http://site.example/"),
        Value::Integer(0),
        text("W/\"x\""),
        Value::Null,
        text("192.0.2.1:80"),
        Value::Integer(url_fingerprint("http://site.example/42")),
        Value::Integer(2),
        text(r#"["http://site.example/\"x\"","http://a.example/"]"#),
        text("[1]"),
        Value::Null,
        Value::Null,
        Value::Null,
        Value::Null,
        Value::Null,
        Value::Null,
        Value::Null,
        // As in version 5.
        Value::Integer(-6_362_503_647_461_313_201),
    ];
    assert_eq!(rows(&path, "SELECT * FROM pages"), [expected]);
}

#[test]
fn a_later_attempt_replaces_the_row_and_an_earlier_one_does_not() {
    let data = tempfile::tempdir().unwrap();
    let path = data.path().join("pages.db");
    let mut sqlite = open(&path);
    for attempt in [1, 3, 2, 3] {
        store(&mut sqlite, [record(1, attempt)]);
    }
    let row = "SELECT attempt, title FROM pages";
    assert_eq!(rows(&path, row), [[Value::Integer(3), text("attempt 3")]]);
    // The same attempt at an earlier time.
    let mut earlier = record(1, 3);
    (earlier.fetched_unix_ms, earlier.report.title) = (1_600_000_000_000, None);
    store(&mut sqlite, [earlier]);
    assert_eq!(rows(&path, row), [[Value::Integer(3), text("attempt 3")]]);
}

#[test]
fn a_page_of_another_run_of_the_broker_is_the_same_page() {
    let data = tempfile::tempdir().unwrap();
    let path = data.path().join("pages.db");
    let mut again = record(1, 2);
    again.task.run = 8;
    store(&mut open(&path), [transient(1, 1), again]);
    let row = "SELECT task, outcome FROM pages";
    assert_eq!(rows(&path, row), [[text("crawlers:8.1"), text("done")]]);
}

#[test]
fn the_newest_complete_record_of_a_url_is_found() {
    let data = tempfile::tempdir().unwrap();
    let (mut sqlite, lookup) = Sqlite::open(&data.path().join("pages.db"), None, OFF).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let earlier = |url: &str| runtime.block_on(lookup.find(url, &page(99)));
    let last = |url: &str| earlier(url).newest().unwrap().clone();
    let url = record(1, 1).report.url;
    assert_eq!(earlier(&url), EarlierRecord::Never);
    let pass = |entry, title: &str| {
        let mut record = record(entry, 1);
        record.report.url.clone_from(&url);
        record.report.title = Some(title.to_owned());
        record.text_hash = Some(blake3::hash(b"text"));
        record
    };
    let mut failed = pass(4, "failed");
    failed.report.outcome = PageOutcome::Failed;
    let mut bare = pass(5, "bare");
    bare.report.url.push('x');
    (bare.content_type, bare.canonical, bare.links) = (None, None, Vec::new());
    let mut unasked = pass(6, "unasked");
    unasked.report.url.push('y');
    unasked.validators.etag = None;
    let unread = PageRecord { hash: None, ..pass(7, "unread") };
    let records =
        [pass(1, "first"), pass(3, "second"), failed, record(2, 1), bare, unasked, unread];
    store(&mut sqlite, records);
    let record = record(3, 1);
    let expected = LastRecord {
        validators: record.validators,
        hash: record.hash,
        text_hash: Some(blake3::hash(b"text")),
        rendered_hash: None,
        title: Some("second".to_owned()),
        content_type: record.content_type,
        bytes: record.report.bytes,
        canonical: record.canonical,
        noindex: false,
        links: record.links,
        original: None,
    };
    assert_eq!(last(&url), expected);
    assert_eq!(last(&format!("{url}x")).links, []);
    let unasked = last(&format!("{url}y"));
    assert!(unasked.validators.is_empty() && unasked.links.is_empty(), "{unasked:?}");
    assert_eq!(unasked.hash, record.hash);
    assert_eq!(earlier("http://site.example/other"), EarlierRecord::Never);
}

#[test]
fn a_record_of_the_page_itself_is_no_earlier_one_and_one_with_other_links_has_no_validators() {
    let data = tempfile::tempdir().unwrap();
    let path = data.path().join("pages.db");
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let images = || Some("images".to_owned());
    let (sqlite, lookup) = Sqlite::open(&path, None, OFF).unwrap();
    let has_records = |lookup: &LastRecordReader| runtime.block_on(lookup.has_records());
    assert!(!has_records(&lookup));
    let first = record(1, 1);
    let url = first.report.url.clone();
    // Another crawler.
    store(&mut open(&path), [first]);
    assert!(has_records(&lookup));
    let find = |lookup: &LastRecordReader, entry| {
        runtime.block_on(lookup.find(&url, &page(entry))).newest().cloned()
    };
    assert_eq!(find(&lookup, 1), None);
    assert!(!find(&lookup, 2).unwrap().validators.is_empty());
    drop((sqlite, lookup));

    let (mut sqlite, lookup) = Sqlite::open(&path, images(), OFF).unwrap();
    assert!(has_records(&lookup));
    assert!(find(&lookup, 9).unwrap().validators.is_empty());
    let again = PageRecord { page: page(2), ..record(1, 1) };
    store(&mut sqlite, [again]);
    assert_eq!(find(&lookup, 9).unwrap().links.len(), 2);
    drop((sqlite, lookup));
    let (_sqlite, lookup) = Sqlite::open(&path, None, OFF).unwrap();
    let other = find(&lookup, 1).unwrap();
    assert!(other.validators.is_empty() && other.hash.is_some(), "it has more links: {other:?}");
}

#[test]
fn a_page_that_was_retried_after_another_pass_is_the_newest() {
    let data = tempfile::tempdir().unwrap();
    let path = data.path().join("pages.db");
    let (mut sqlite, lookup) = Sqlite::open(&path, None, OFF).unwrap();
    let mut other_pass = PageRecord { page: page(2), ..record(1, 1) };
    other_pass.fetched_unix_ms += 1;
    let mut retried = record(1, 2);
    retried.fetched_unix_ms += 2;
    let url = retried.report.url.clone();
    store(&mut sqlite, [transient(1, 1), other_pass, retried]);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let last = runtime.block_on(lookup.find(&url, &page(99)));
    assert_eq!(last.newest().unwrap().title.as_deref(), Some("attempt 2"));
    let result = newest_result(&path, &url).unwrap().unwrap();
    assert_eq!(result.fetched_at, "2023-11-14T22:13:20.009Z");
}

#[test]
fn a_url_is_looked_up_by_its_fingerprint() {
    let data = tempfile::tempdir().unwrap();
    let path = data.path().join("pages.db");
    drop(open(&path));
    let newest = last_record::NEWEST.replace("?1", "1");
    let newest = ["?2", "?3", "?4"].iter().fold(newest, |sql, name| sql.replace(name, "'x'"));
    for (sql, by) in
        [(newest.as_str(), "pages_by_url (url_print=?)"), (last_record::ANY, "pages_by_url")]
    {
        let plan = format!("{:?}", rows(&path, &format!("EXPLAIN QUERY PLAN {sql}")));
        // The few rows of the subquery are sorted after it.
        let by_url = plan.split("SCAN (subquery").next().unwrap();
        let is_by_index = by_url.contains(&format!("INDEX {by}"));
        assert!(is_by_index && !by_url.contains("B-TREE"), "{plan}");
    }
}

#[test]
fn the_fingerprints_of_a_hosts_pages_are_adjacent() {
    let half = |url| url_fingerprint(url) >> 32;
    assert_eq!(half("http://a.example/1"), half("https://a.example/2?x"));
    assert_ne!(half("http://a.example/1"), half("http://b.example/1"));
    assert_ne!(url_fingerprint("http://a.example/1"), url_fingerprint("http://a.example/2"));
}

#[test]
fn damaged_and_foreign_changes_are_found_by_their_digests() {
    let data = tempfile::tempdir().unwrap();
    let path = data.path().join("pages.db");
    let announced = |entry| PageRecord {
        item: Some("5".into()),
        source: Some("http://a.example/feed".into()),
        ..record(entry, 1)
    };
    let mut sqlite = open(&path);
    store(&mut sqlite, [announced(1), record(2, 1), record(3, 1)]);
    store(&mut sqlite, [record(3, 2)]);
    let check = || tidings_database::check(&path, Some(&SCHEMA)).unwrap();
    assert_eq!(check(), CheckReport::default());
    // Another program may write to it. If that ignores the digests, the row counts as damaged.
    let other = Connection::open(&path).unwrap();
    for column in ["title", "item", "source"] {
        other.execute_batch(&format!("UPDATE pages SET {column} = 'mine' WHERE id = 1")).unwrap();
        let found = check().problems.concat();
        assert!(found.starts_with("row 1 of pages: its values"), "{found}");
        store(&mut sqlite, [announced(1)]);
    }
    other.execute_batch("UPDATE pages SET title = 'mine', digest = NULL WHERE id = 2").unwrap();
    let checked = check();
    assert_eq!(checked.problems, [""; 0]);
    assert!(checked.notes[0].contains("1 row of pages has no digest"), "{checked:?}");
    other.execute_batch("ALTER TABLE pages RENAME COLUMN title TO titlf").unwrap();
    assert!(check().problems[0].contains("title"), "{:?}", check());
}

#[test]
fn a_page_is_new_or_the_same_or_has_changed() {
    let last = LastRecord {
        validators: Validators::default(),
        hash: record(1, 1).hash,
        text_hash: None,
        rendered_hash: None,
        title: None,
        content_type: None,
        bytes: 0,
        canonical: None,
        noindex: false,
        links: Vec::new(),
        original: None,
    };
    let newest = |last: &LastRecord| EarlierRecord::Newest(last.clone().into());
    let before = newest(&last);
    let other = PageRecord { hash: Some(blake3::hash(b"other")), ..record(1, 1) };
    assert_eq!(EarlierRecord::Unknown.change_of(&other), None);
    assert_eq!(EarlierRecord::Never.change_of(&other), Some(PageChange::New));
    assert_eq!(before.change_of(&other), Some(PageChange::Yes));
    // What a reader sees is compared, unless the earlier record has no hash of it.
    let seen = |text: &str| Some(blake3::hash(text.as_bytes()));
    let read = LastRecord { text_hash: seen("text"), ..last.clone() };
    let alike = PageRecord { text_hash: seen("text"), hash: other.hash, ..record(1, 1) };
    assert_eq!(newest(&read).change_of(&alike), Some(PageChange::No));
    assert_eq!(before.change_of(&alike), Some(PageChange::Yes));
    let edited = PageRecord { text_hash: seen("edited"), ..record(1, 1) };
    assert_eq!(newest(&read).change_of(&edited), Some(PageChange::No), "equal bytes");
    let edited = PageRecord { hash: other.hash, ..edited };
    assert_eq!(newest(&read).change_of(&edited), Some(PageChange::Yes));
    assert_eq!(before.change_of(&record(1, 1)), Some(PageChange::No));
    assert_eq!(before.change_of(&transient(1, 1)), None);
    let mut confirmed = PageRecord { hash: None, ..record(1, 1) };
    assert_eq!(before.change_of(&confirmed), None, "its body is unknown");
    confirmed.report.status = Some(304);
    assert_eq!(EarlierRecord::Unknown.change_of(&confirmed), Some(PageChange::No));
    // Of rendered pages the documents are not compared.
    let hash = |text: &str| Some(blake3::hash(text.as_bytes()));
    let rendering = |text| {
        let failed = Err(PageError::Crashed);
        Some(Rendering::new(failed, hash(text), Duration::ZERO, Vec::new()))
    };
    let same = LastRecord { rendered_hash: hash("now"), ..last.clone() };
    let rendered = |record| PageRecord { rendering: rendering("now"), ..record };
    assert_eq!(newest(&same).change_of(&rendered(other)), Some(PageChange::No));
    let changed = LastRecord { rendered_hash: hash("then"), ..last };
    assert_eq!(newest(&changed).change_of(&rendered(record(1, 1))), Some(PageChange::Yes));
    assert_eq!(newest(&changed).change_of(&record(1, 1)), Some(PageChange::No));
}

#[test]
fn two_crawlers_can_share_a_file() {
    let data = tempfile::tempdir().unwrap();
    let path = data.path().join("pages.db");
    thread::scope(|scope| {
        for crawler in 0..2 {
            let mut sqlite = open(&path);
            scope.spawn(move || {
                (0..100).for_each(|n| store(&mut sqlite, [record(2 * n + crawler, 1)]));
            });
        }
    });
    assert_eq!(rows(&path, "SELECT count(*) FROM pages"), [[Value::Integer(200)]]);
}

#[test]
fn a_file_of_another_version_is_refused_and_left_alone() {
    let data = tempfile::tempdir().unwrap();
    let path = data.path().join("pages.db");
    Connection::open(&path).unwrap().pragma_update(None, "user_version", VERSION + 1).unwrap();
    let before = std::fs::read(&path).unwrap();
    let error = Sqlite::open(&path, None, OFF).unwrap_err();
    assert!(error.to_string().contains("its schema version is 2"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), before);
    assert_eq!(std::fs::read_dir(data.path()).unwrap().count(), 1);
}

#[test]
fn a_file_that_is_not_a_database_is_named_in_the_error() {
    let data = tempfile::tempdir().unwrap();
    std::fs::write(
        data.path().join("pages.db"),
        "not a database, but long enough to be read as one".repeat(30),
    )
    .unwrap();
    let path = data.path().join("pages.db");
    let error = Sqlite::open(&path, None, OFF).unwrap_err();
    assert!(error.to_string().contains("pages.db: file is not a database"), "{error}");
    let error = Sqlite::open(&path.join("pages.db"), None, OFF).unwrap_err();
    assert!(matches!(error, OpenError::Io { .. }), "{error}");
}

/// `max_page_count` makes `SQLite` behave as on a full disk.
#[test]
fn a_full_disk_stores_nothing_of_a_batch_and_a_retry_succeeds_later() {
    let data = tempfile::tempdir().unwrap();
    let path = data.path().join("pages.db");
    let mut sqlite = open(&path);
    let batch: Vec<_> = (0..100).map(|entry| Arc::new(record(entry, 1))).collect();
    sqlite.connection.pragma_update(None, "max_page_count", 4).unwrap();
    let error = sqlite.write(&batch).unwrap_err();
    assert!(error.text.contains("full"), "{error}");
    assert_eq!(rows(&path, "SELECT count(*) FROM pages"), [[Value::Integer(0)]]);
    sqlite.connection.pragma_update(None, "max_page_count", 100_000).unwrap();
    sqlite.write(&batch).unwrap();
    assert_eq!(rows(&path, "SELECT count(*) FROM pages"), [[Value::Integer(100)]]);
}

#[test]
fn many_crawlers_can_begin_in_a_new_data_directory_at_once() {
    for _ in 0..20 {
        let data = tempfile::tempdir().unwrap();
        let barrier = std::sync::Barrier::new(8);
        thread::scope(|scope| {
            let open = || {
                barrier.wait();
                Sqlite::open(&data.path().join("pages.db"), None, OFF).map(drop)
            };
            let opened: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
            for opened in opened {
                opened.join().unwrap().unwrap();
            }
        });
    }
}

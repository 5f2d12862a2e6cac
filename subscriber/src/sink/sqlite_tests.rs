use std::time::Duration;

use futures_util::future::join_all;
use rusqlite::types::Value;

use super::*;
use crate::links::Link;
use crate::report::{PageOutcome, PageReport};

fn record(entry: u64, attempt: u32) -> Arc<PageRecord> {
    Arc::new(PageRecord {
        task: format!("crawlers:7.{entry}.{attempt}").parse().unwrap(),
        report: PageReport {
            url: format!("http://site.example/{entry}"),
            status: Some(200),
            outcome: PageOutcome::Done,
            bytes: 1234,
            duration: Duration::from_millis(56),
            title: Some(format!("attempt {attempt}")),
            links: 1,
            job: Some("docs".to_owned()),
            error: None,
        },
        transient: false,
        content_type: Some("text/html".to_owned()),
        hash: Some(blake3::hash(b"body")),
        fetched_unix_ms: 1_700_000_000_007,
        redirect: None,
        pass: Some(2),
        depth: Some(3),
        links: vec![Link { url: "http://site.example/\"x\"".into(), nofollow: false }],
    })
}

fn rows(data: &Path, sql: &str) -> Vec<Vec<Value>> {
    let connection = Connection::open(data.join("pages.db")).unwrap();
    let mut statement = connection.prepare(sql).unwrap();
    let columns = statement.column_count();
    let rows = statement.query_map([], |row| (0..columns).map(|at| row.get(at)).collect()).unwrap();
    rows.map(Result::unwrap).collect()
}

#[tokio::test]
async fn a_page_is_one_readable_row() {
    let data = tempfile::tempdir().unwrap();
    let (store, closing) = PageStore::open(&data.path().join("new")).unwrap();
    store.store(record(42, 1)).await.unwrap();
    drop(store);
    closing.wait().await;
    let text = |text: &str| Value::Text(text.to_owned());
    let expected = vec![
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
        Value::Integer(1),
        text(r#"["http://site.example/\"x\""]"#),
    ];
    assert_eq!(rows(&data.path().join("new"), "SELECT * FROM pages"), [expected]);
}

#[tokio::test]
async fn a_later_attempt_replaces_the_row_and_an_overtaken_one_does_not() {
    let data = tempfile::tempdir().unwrap();
    let (store, _closing) = PageStore::open(data.path()).unwrap();
    for attempt in [1, 3, 2, 3] {
        store.store(record(1, attempt)).await.unwrap();
    }
    let expected = vec![Value::Integer(3), Value::Text("attempt 3".to_owned())];
    assert_eq!(rows(data.path(), "SELECT attempt, title FROM pages"), [expected]);
}

#[tokio::test]
async fn many_pages_at_once_are_all_kept_when_answered() {
    let data = tempfile::tempdir().unwrap();
    let (store, _closing) = PageStore::open(data.path()).unwrap();
    let stored = join_all((0..3000).map(|entry| store.store(record(entry, 1)))).await;
    assert!(stored.iter().all(Result::is_ok));
    assert_eq!(rows(data.path(), "SELECT count(*) FROM pages"), [[Value::Integer(3000)]]);
}

#[tokio::test]
async fn two_crawlers_can_share_a_data_directory() {
    let data = tempfile::tempdir().unwrap();
    let (one, _) = PageStore::open(data.path()).unwrap();
    let (two, _) = PageStore::open(data.path()).unwrap();
    let stored = join_all((0..200).map(|entry| {
        let store = if entry % 2 == 0 { &one } else { &two };
        store.store(record(entry, 1))
    }));
    assert!(stored.await.iter().all(Result::is_ok));
    assert_eq!(rows(data.path(), "SELECT count(*) FROM pages"), [[Value::Integer(200)]]);
}

#[test]
fn a_newer_file_is_refused_and_left_alone() {
    let data = tempfile::tempdir().unwrap();
    let path = data.path().join("pages.db");
    Connection::open(&path).unwrap().pragma_update(None, "user_version", VERSION + 1).unwrap();
    let before = std::fs::read(&path).unwrap();
    let error = PageStore::open(data.path()).unwrap_err();
    assert!(error.to_string().contains("schema version 2, this Tidings knows up to 1"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), before);
    assert_eq!(std::fs::read_dir(data.path()).unwrap().count(), 1);
}

#[test]
fn what_is_no_database_is_named() {
    let data = tempfile::tempdir().unwrap();
    std::fs::write(
        data.path().join("pages.db"),
        "not a database, but long enough to be read as one".repeat(30),
    )
    .unwrap();
    let error = PageStore::open(data.path()).unwrap_err();
    assert!(error.to_string().contains("pages.db: file is not a database"), "{error}");
    let error = PageStore::open(&data.path().join("pages.db")).unwrap_err();
    assert!(matches!(error, OpenError::Io { .. }), "{error}");
}

/// `max_page_count` makes `SQLite` behave as on a full disk.
#[tokio::test]
async fn a_full_disk_is_an_answer_and_space_that_returns_is_used() {
    let data = tempfile::tempdir().unwrap();
    let (store, _closing) = PageStore::open(data.path()).unwrap();
    drop(store);
    let mut connection = prepare(&data.path().join("pages.db")).unwrap();
    connection.pragma_update(None, "max_page_count", 4).unwrap();
    let mut writer = Writer { connection, path: PathBuf::new(), failing: false };
    let write = |writer: &mut Writer| {
        let mut batch = Vec::new();
        for entry in 0..100 {
            let (answer, _) = oneshot::channel();
            batch.push(Letter { record: record(entry, 1), answer });
        }
        writer.write(&batch)
    };
    let error = write(&mut writer).unwrap_err();
    assert!(error.to_string().contains("full"), "{error}");
    writer.connection.pragma_update(None, "max_page_count", 100_000).unwrap();
    write(&mut writer).unwrap();
    assert_eq!(rows(data.path(), "SELECT count(*) FROM pages"), [[Value::Integer(100)]]);
    connection = writer.connection;
    drop(connection);
}

#[test]
fn many_crawlers_can_begin_in_a_new_data_directory_at_once() {
    for _ in 0..20 {
        let data = tempfile::tempdir().unwrap();
        let barrier = std::sync::Barrier::new(8);
        thread::scope(|scope| {
            let open = || {
                barrier.wait();
                PageStore::open(data.path()).map(drop)
            };
            let opened: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
            for opened in opened {
                opened.join().unwrap().unwrap();
            }
        });
    }
}

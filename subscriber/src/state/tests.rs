use futures_util::future::join_all;
use tidings_database::CheckReport;

use super::*;

/// A time long after these tests.
const LATER: u64 = 1 << 40;

fn value(text: impl Into<Vec<u8>>) -> Bytes {
    text.into().into()
}

fn rows(path: &Path) -> i64 {
    let connection = Connection::open(path).unwrap();
    connection.query_row("SELECT count(*) FROM state", [], |row| row.get(0)).unwrap()
}

fn files(data: &Path) -> Vec<String> {
    let entries = fs::read_dir(data).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

async fn close(state: StateStore, closing: StateClosing) {
    drop(state);
    closing.wait().await;
}

#[tokio::test]
async fn values_survive_a_restart_and_the_last_one_counts() {
    let data = tempfile::tempdir().unwrap();
    let data = data.path().join("new");
    let (state, closing) = StateStore::open(&data);
    assert_eq!(state.load("a", "key").await, None);
    state.store("a", "key", value("1"), LATER);
    state.store("a", "key", value("2"), LATER);
    state.store("b", "key", value([0, 255]), LATER);
    assert_eq!(state.load("a", "key").await, Some(value("2")));
    close(state, closing).await;
    let (state, closing) = StateStore::open(&data);
    assert_eq!(state.load("a", "key").await, Some(value("2")));
    assert_eq!(state.load("b", "key").await, Some(value([0, 255])));
    assert_eq!(state.load("a", "other").await, None);
    state.store("a", "key", Bytes::new(), 0);
    assert_eq!(state.load("a", "key").await, None);
    close(state, closing).await;
    assert_eq!(rows(&data.join(NAME)), 1);
}

#[tokio::test]
async fn two_crawlers_can_share_a_data_directory() {
    let data = tempfile::tempdir().unwrap();
    let (one, one_closing) = StateStore::open(data.path());
    let (two, two_closing) = StateStore::open(data.path());
    for number in 0..200 {
        let state = if number % 2 == 0 { &one } else { &two };
        state.store("a", &number.to_string(), value(number.to_string()), LATER);
    }
    // A synced write is answered when it is committed, and with it those before it. A read is answered
    // before the commit of the writes around it.
    for (state, key) in [(&one, "200"), (&two, "201")] {
        assert_eq!(state.store_synced("a", key, value(key), LATER).await, Ok(()));
    }
    let found =
        join_all((0..202).map(async |number: i32| one.load("a", &number.to_string()).await));
    assert!(found.await.iter().all(Option::is_some));
    close(one, one_closing).await;
    close(two, two_closing).await;
}

#[tokio::test]
async fn values_beyond_the_limits_are_dropped_and_cost_no_memory() {
    let data = tempfile::tempdir().unwrap();
    let (state, closing) = StateStore::open(data.path());
    let shared = Arc::clone(&state.shared);
    state.store("a", "large", value(vec![0; STATE_VALUE_BYTES_MAX + 1]), LATER);
    state.store("a", &"k".repeat(STATE_KEY_BYTES_MAX + 1), value("x"), LATER);
    assert_eq!(shared.queued_bytes.load(Ordering::Relaxed), 0);
    // Writes wait: another process has locked the file.
    let holder = Connection::open(data.path().join(NAME)).unwrap();
    holder.execute_batch("BEGIN IMMEDIATE").unwrap();
    for number in 0..STATE_QUEUE_BYTES_MAX / STATE_VALUE_BYTES_MAX + 9 {
        state.store("a", &number.to_string(), value(vec![0; STATE_VALUE_BYTES_MAX]), LATER);
        assert!(shared.queued_bytes.load(Ordering::Relaxed) <= STATE_QUEUE_BYTES_MAX);
    }
    assert!(shared.dropped.load(Ordering::Relaxed));
    drop(holder);
    close(state, closing).await;
    assert_eq!(shared.queued_bytes.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn synced_writes_and_checked_reads_return_errors() {
    let data = tempfile::tempdir().unwrap();
    let (state, closing) = StateStore::open(data.path());
    assert_eq!(state.load_checked("a", "key").await, Ok(None));
    assert_eq!(state.store_synced("a", "key", value("1"), LATER).await, Ok(()));
    // Not only in the queue.
    let reader = Connection::open(data.path().join(NAME)).unwrap();
    let count = reader.query_row("SELECT count(*) FROM state", [], |row| row.get::<_, i64>(0));
    assert_eq!(count.unwrap(), 1);
    let large = value(vec![0; STATE_VALUE_BYTES_MAX + 1]);
    assert_eq!(state.store_synced("a", "key", large, LATER).await, Err(StateUnavailable));
    reader.execute_batch("ALTER TABLE state RENAME TO away").unwrap();
    assert_eq!(state.store_synced("a", "key", value("2"), LATER).await, Err(StateUnavailable));
    assert_eq!(state.load_checked("a", "key").await, Err(StateUnavailable));
    reader.execute_batch("ALTER TABLE away RENAME TO state").unwrap();
    assert_eq!(state.load_checked("a", "key").await, Ok(Some(value("1"))));
    close(state, closing).await;
}

#[tokio::test]
async fn a_damaged_file_is_renamed_and_replaced() {
    let data = tempfile::tempdir().unwrap();
    let path = data.path().join(NAME);
    let garbage = "not a database, but long enough to be read as one".repeat(30);
    fs::write(&path, &garbage).unwrap();
    let (state, closing) = StateStore::open(data.path());
    state.store("a", "key", value("1"), LATER);
    assert_eq!(state.load("a", "key").await, Some(value("1")));
    close(state, closing).await;
    let [new, aside] = &files(data.path())[..] else { panic!("{:?}", files(data.path())) };
    assert!(new == NAME && aside.starts_with("crawler.db.damaged-"), "{aside}");
    assert_eq!(fs::read(data.path().join(aside)).unwrap(), garbage.as_bytes());
}

#[tokio::test]
async fn damage_that_is_found_later_stops_nothing_either() {
    let data = tempfile::tempdir().unwrap();
    let path = data.path().join(NAME);
    let (state, closing) = StateStore::open(data.path());
    for number in 0..200 {
        state.store("a", &number.to_string(), value(vec![7; 1000]), LATER);
    }
    close(state, closing).await;
    // The first page, with the version and the schema, stays intact.
    let mut bytes = fs::read(&path).unwrap();
    bytes[4096..].fill(0xa5);
    fs::write(&path, bytes).unwrap();
    let (state, closing) = StateStore::open(data.path());
    assert_eq!(state.load("a", "3").await, None);
    state.store("a", "3", value("new"), LATER);
    assert_eq!(state.load("a", "3").await, Some(value("new")));
    close(state, closing).await;
    assert_eq!(files(data.path()).len(), 2);
}

#[tokio::test]
async fn a_file_of_another_version_is_left_alone_and_nothing_is_stored() {
    let data = tempfile::tempdir().unwrap();
    let path = data.path().join(NAME);
    Connection::open(&path).unwrap().pragma_update(None, "user_version", VERSION + 1).unwrap();
    let before = fs::read(&path).unwrap();
    let (state, closing) = StateStore::open(data.path());
    state.store("a", "key", value("1"), LATER);
    assert_eq!(state.load("a", "key").await, None);
    close(state, closing).await;
    assert_eq!(fs::read(&path).unwrap(), before);
    assert_eq!(files(data.path()), [NAME]);
}

#[tokio::test]
async fn without_a_directory_only_the_store_is_lost() {
    let data = tempfile::tempdir().unwrap();
    let file = data.path().join("file");
    fs::write(&file, "").unwrap();
    let (state, closing) = StateStore::open(&file);
    state.store("a", "key", value("1"), LATER);
    assert_eq!(state.load("a", "key").await, None);
    close(state, closing).await;
}

/// `max_page_count` makes `SQLite` behave as on a full disk.
#[test]
fn a_full_disk_is_logged_once_and_a_later_write_succeeds() {
    let data = tempfile::tempdir().unwrap();
    let mut database = StateDatabase::open(data.path().join(NAME), Arc::default());
    let limit = |database: &StateDatabase, pages: u32| {
        let connection = database.connection.as_ref().unwrap();
        connection.pragma_update(None, "max_page_count", pages).unwrap();
    };
    let store = |database: &mut StateDatabase| {
        let place = StateKey { kind: "a", key: "key".to_owned() };
        let letter = StateCommand::Store {
            place,
            value: value(vec![1; 50_000]),
            expires_unix_s: LATER,
            kept: None,
        };
        database.shared.queued_bytes.store(50_000, Ordering::Relaxed);
        database.serve(&mut vec![letter]);
        assert_eq!(database.shared.queued_bytes.load(Ordering::Relaxed), 0);
        database.failing
    };
    limit(&database, 6);
    assert!(store(&mut database) && store(&mut database));
    limit(&database, 1000);
    assert!(!store(&mut database));
    assert_eq!(rows(&data.path().join(NAME)), 1);
}

#[test]
fn expired_values_are_removed_then_the_soonest_to_expire() {
    let data = tempfile::tempdir().unwrap();
    let mut connection = prepare(&data.path().join(NAME)).unwrap();
    let transaction = connection.transaction().unwrap();
    for number in 0..u64::from(STATE_SWEEP_ROWS) * 2 {
        let expires = if number % 4 == 0 { 1 } else { LATER + number };
        let sql = "INSERT INTO state VALUES ('a', ?1, ?2, zeroblob(100), NULL)";
        let row = params![number.to_string(), i64::try_from(expires).unwrap()];
        transaction.prepare_cached(sql).unwrap().execute(row).unwrap();
    }
    transaction.commit().unwrap();
    let number = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    sweep(&connection, STATE_ROWS_MAX, STATE_BYTES_MAX).unwrap();
    assert_eq!(number("SELECT count(*) FROM state"), 15_000);
    sweep(&connection, 14_999, STATE_BYTES_MAX).unwrap();
    assert_eq!(number("SELECT count(*) FROM state"), 5_000);
    let least = number("SELECT min(expires) FROM state");
    assert!(least > i64::try_from(LATER).unwrap() + 13_000, "{least}");
    sweep(&connection, STATE_ROWS_MAX, 0).unwrap();
    assert_eq!(number("SELECT count(*) FROM state"), 0);
}

#[test]
fn damaged_values_are_found_by_their_digests() {
    let data = tempfile::tempdir().unwrap();
    let path = data.path().join(NAME);
    let connection = prepare(&path).unwrap();
    let place = |key: &str| StateKey { kind: "a", key: key.to_owned() };
    let letter = StateCommand::Store {
        place: place("new"),
        value: Bytes::from_static(b"y"),
        expires_unix_s: 9_999_999_999,
        kept: None,
    };
    letter.serve(&connection).unwrap();
    drop(connection);
    let checked = tidings_database::check(&path, Some(&SCHEMA)).unwrap();
    assert_eq!(checked, CheckReport::default());
    // In the row, the value comes after the key and a number.
    let mut damaged = fs::read(&path).unwrap();
    let key = damaged.windows(3).position(|it| it == b"new").unwrap();
    let value = key + damaged[key..].iter().position(|byte| *byte == b'y').unwrap();
    damaged[value] ^= 1;
    fs::write(&path, damaged).unwrap();
    let checked = tidings_database::check(&path, Some(&SCHEMA)).unwrap();
    assert!(checked.problems[0].starts_with("row 1 of state: "), "{checked:?}");
}

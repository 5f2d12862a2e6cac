//! The `SQLite` database of subscriptions and of the known items of their feeds. Each write is
//! synced when it returns.

use std::path::Path;
use std::str::FromStr;

use rusqlite::{Connection, OptionalExtension, params};
use tidings_database::ReadOnlyDatabase;
use tidings_database::digest::{Schema, Table};
use tidings_database::schema_version::{self, BUSY_TIMEOUT, SchemaError, check_version};
use tidings_documents::feed::watched_feed::KnownItems;

use super::subscription::Subscription;

const CREATE_TABLE: &str = "
    CREATE TABLE subscription (
        token TEXT PRIMARY KEY,
        -- of `Subscription`, as JSON
        text TEXT NOT NULL,
        -- of `Known`
        known TEXT NOT NULL DEFAULT '',
        digest INTEGER
    ) STRICT, WITHOUT ROWID;";

/// The schema, with the digest of each row.
pub const SCHEMA: Schema = Schema {
    file: "websub.db",
    // A schema with another meaning gets another number.
    version: 1,
    create: CREATE_TABLE,
    tables: &[Table {
        name: "subscription",
        key: "token",
        // The id in the name of the cursor.
        also: &["(SELECT application_id FROM pragma_application_id)"],
    }],
};

#[derive(Debug)]
pub(super) struct SubscriptionStore {
    connection: Connection,
    /// A random number of this database, drawn when the file was created.
    pub(super) database_id: u32,
}

impl SubscriptionStore {
    /// Opens the file, or creates it. Only its owner may read it, because it contains secrets.
    pub(super) fn open(path: &Path) -> Result<Self, SchemaError> {
        let connection = schema_version::open(path, &SCHEMA, BUSY_TIMEOUT, prepare, |_| Ok(()))?;
        let _ = rustix::fs::chmod(path, rustix::fs::Mode::from_raw_mode(0o600));
        SCHEMA.add_digest_triggers(&connection)?;
        let mut id: i32 =
            connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
        if id == 0 {
            id = random_database_id();
            connection.pragma_update(None, "application_id", id)?;
        }
        Ok(Self { connection, database_id: id.cast_unsigned() })
    }

    /// Disables the sync of writes, for tests that write much.
    #[cfg(test)]
    pub(super) fn disable_sync(&self) {
        self.connection.pragma_update(None, "synchronous", "OFF").unwrap();
    }

    /// All subscriptions; unreadable ones are left out.
    pub(super) fn load_all(&self) -> Result<Vec<Subscription>, SchemaError> {
        select_all(&self.connection)
    }

    /// All subscriptions of a database that another process may be writing; none without a file.
    pub(super) fn load_read_only(path: &Path) -> Result<Vec<Subscription>, SchemaError> {
        if !path.exists() {
            return Ok(Vec::new());
        }
        let mut reading = ReadOnlyDatabase::open(path)?;
        loop {
            let read = check_version(&reading.connection, SCHEMA.version)
                .and_then(|()| select_all(&reading.connection));
            if reading.is_current() {
                return read;
            }
            reading.reopen()?;
        }
    }

    pub(super) fn put(&self, subscription: &Subscription) -> Result<(), SchemaError> {
        let text = serde_json::to_string(subscription).expect("only strings and numbers");
        let upsert = "INSERT INTO subscription (token, text) VALUES (?1, ?2)
            ON CONFLICT (token) DO UPDATE SET text = excluded.text";
        self.connection.execute(upsert, params![subscription.token, text])?;
        Ok(())
    }

    /// Replaces a subscription by its successor, which keeps the known items.
    pub(super) fn replace(&self, token: &str, by: &Subscription) -> Result<(), SchemaError> {
        let text = serde_json::to_string(by).expect("only strings and numbers");
        let update = "UPDATE subscription SET token = ?2, text = ?3 WHERE token = ?1";
        self.connection.execute(update, params![token, by.token, text])?;
        Ok(())
    }

    pub(super) fn remove(&self, token: &str) -> Result<(), SchemaError> {
        self.connection.execute("DELETE FROM subscription WHERE token = ?1", [token])?;
        Ok(())
    }

    /// The known items of the feed.
    pub(super) fn known_items(&self, token: &str) -> Result<KnownItems, SchemaError> {
        let query = "SELECT known FROM subscription WHERE token = ?1";
        let known: Option<String> =
            self.connection.query_row(query, [token], |row| row.get(0)).optional()?;
        Ok(known.and_then(|known| KnownItems::from_str(&known).ok()).unwrap_or_default())
    }

    /// Stores the known items.
    pub(super) fn put_known_items(
        &self,
        token: &str,
        known: KnownItems,
    ) -> Result<(), SchemaError> {
        let update = "UPDATE subscription SET known = ?2 WHERE token = ?1";
        self.connection.execute(update, params![token, String::from(known)])?;
        Ok(())
    }
}

fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update(None, "synchronous", "FULL")
}

fn select_all(connection: &Connection) -> Result<Vec<Subscription>, SchemaError> {
    let mut query = connection.prepare("SELECT text FROM subscription")?;
    let texts = query.query_map([], |row| row.get::<_, String>(0))?;
    let texts = texts.collect::<Result<Vec<_>, _>>()?;
    Ok(texts.iter().filter_map(|text| serde_json::from_str(text).ok()).collect())
}

/// Never 0, which marks a database without an id.
fn random_database_id() -> i32 {
    let mut bits = [0_u8; 4];
    aws_lc_rs::rand::fill(&mut bits).expect("the system has randomness");
    i32::from_be_bytes(bits) | 1
}

#[cfg(test)]
mod tests {
    use tidings_database::CheckReport;
    use tidings_documents::feed::FeedEntry;

    use super::super::subscription::HubEndpoint;
    use super::*;

    #[test]
    fn subscriptions_and_known_items_survive_a_reopen() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("websub.db");
        let endpoint = HubEndpoint::RssCloud { register: "http://a.example/".into() };
        let mut subscription =
            Subscription::new("http://b.example/".into(), "x".into(), endpoint, 5);
        let known = KnownItems::newest(&[FeedEntry { id: "1".into(), ..FeedEntry::default() }], 9);
        let id;
        {
            let store = SubscriptionStore::open(&path).unwrap();
            id = store.database_id;
            store.put(&subscription).unwrap();
            store.put_known_items(&subscription.token, known.clone()).unwrap();
            subscription.start_request(6);
            store.put(&subscription).unwrap();
        }
        let store = SubscriptionStore::open(&path).unwrap();
        assert_eq!(store.load_all().unwrap(), [subscription.clone()]);
        assert_eq!(
            SubscriptionStore::load_read_only(&path).unwrap(),
            [subscription.clone()],
            "while it is open"
        );
        assert_eq!(SubscriptionStore::load_read_only(&directory.path().join("none")).unwrap(), []);
        assert!(store.database_id == id && id != 0);
        assert_eq!(store.known_items(&subscription.token).unwrap(), known);
        let mut other = subscription.clone();
        other.token = "other".into();
        store.replace(&subscription.token, &other).unwrap();
        assert_eq!(store.load_all().unwrap(), [other.clone()]);
        assert_eq!(store.known_items("other").unwrap(), known);
        store.remove("other").unwrap();
        assert_eq!(store.load_all().unwrap(), []);
        assert_eq!(store.known_items(&subscription.token).unwrap(), KnownItems::default());
        store.connection.pragma_update(None, "user_version", 3).unwrap();
        drop(store);
        assert!(matches!(
            SubscriptionStore::open(&path),
            Err(SchemaError::Unknown { found: 3, .. })
        ));
        assert!(matches!(
            SubscriptionStore::load_read_only(&path),
            Err(SchemaError::Unknown { found: 3, .. })
        ));
    }

    #[test]
    fn digests_cover_the_database_id() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("websub.db");
        let endpoint = HubEndpoint::RssCloud { register: "http://a.example/".into() };
        let subscription = Subscription::new("http://b.example/".into(), "x".into(), endpoint, 5);
        SubscriptionStore::open(&path).unwrap().put(&subscription).unwrap();
        let check = || tidings_database::check(&path, Some(&SCHEMA)).unwrap();
        assert_eq!(check(), CheckReport::default());
        let other = Connection::open(&path).unwrap();
        other.execute_batch("PRAGMA application_id = 76").unwrap();
        let checked = check();
        assert!(checked.problems[0].starts_with("a row of subscription: "), "{checked:?}");
        assert!(!format!("{checked:?}").contains(&subscription.token), "a token is a secret");
    }

    #[test]
    fn only_the_owner_may_read_the_file() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("websub.db");
        let _store = SubscriptionStore::open(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
}

//! A digest of each row's values, in a column of the row. `SQLite` has no checksum for values, so
//! without it a changed byte in a stored text would go unnoticed.
//!
//! The column `digest` holds XXH3-64 of the row's other values that the program knows, each with
//! its type and length, in a fixed order. It is NULL in rows written by another program. A program
//! that changes a row must set it to NULL: the digest of the old values would count as damage.
//!
//! Rows are written with the SQL function `DIGEST_FUNCTION`, which exists on our own connections
//! only. So no trigger in the file needs it, and other programs can write to the file.

use std::fmt::Write as _;

use rusqlite::functions::FunctionFlags;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Result};
use xxhash_rust::xxh3::Xxh3;

/// The SQL function: the digest of its arguments.
pub const DIGEST_FUNCTION: &str = "row_digest";

/// A table with digests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table {
    /// Its name.
    pub name: &'static str,
    /// The key of a row: `rowid`, or the key of a table without one.
    pub key: &'static str,
    /// Values in the digest beside the columns: expressions in SQL.
    pub also: &'static [&'static str],
}

/// A database of this program.
#[derive(Debug, Clone, Copy)]
pub struct Schema {
    /// Its file in a data directory.
    pub file: &'static str,
    /// The schema version, as in `PRAGMA user_version`.
    pub version: i64,
    /// The SQL that creates it. Each column of a table stands at the beginning of a line, and
    /// `digest` is the last one.
    pub create: &'static str,
    /// Its tables with digests.
    pub tables: &'static [Table],
}

impl Schema {
    /// The columns in the digest of a table, in order. Row numbers are not among them: indexes show
    /// whether they are right.
    pub fn columns(&self, table: &str) -> Vec<&'static str> {
        let head = format!("CREATE TABLE {table} (");
        let (_, body) = self.create.split_once(&head).expect("the schema creates its tables");
        let lines = body.lines().map(str::trim_start).filter(|line| {
            !line.is_empty() && !line.starts_with("--") && !line.contains("INTEGER PRIMARY KEY")
        });
        let names = lines.map(|line| line.split([' ', ',']).next().unwrap_or_default());
        names.take_while(|name| *name != "digest").collect()
    }

    /// The digest of a row of a table, in SQL.
    pub(crate) fn digest(&self, table: &Table) -> String {
        digest_of(&[&self.columns(table.name)[..], table.also].concat())
    }

    /// Adds temporary triggers that update the digest of each row that this connection writes. For
    /// databases that change seldom: each change writes its row twice.
    pub fn add_digest_triggers(&self, connection: &Connection) -> Result<()> {
        let mut statements = String::new();
        for table in self.tables {
            let (Table { name, key, .. }, digest) = (table, self.digest(table));
            let updates = format!("UPDATE OF {}", self.columns(name).join(", "));
            for (event, on) in [("insert", "INSERT"), ("update", &updates)] {
                let _ = write!(
                    statements,
                    "CREATE TEMP TRIGGER IF NOT EXISTS {name}_{event}_digest AFTER {on} ON main.{name} BEGIN
                        UPDATE {name} SET digest = {digest} WHERE {key} = NEW.{key};
                    END;"
                );
            }
        }
        connection.execute_batch(&statements)
    }
}

/// The digest of these values, in SQL.
pub fn digest_of<T: AsRef<str>>(values: &[T]) -> String {
    let list: Vec<_> = values.iter().map(AsRef::as_ref).collect();
    format!("{DIGEST_FUNCTION}({})", list.join(", "))
}

/// Registers the function on a connection.
pub fn register(connection: &Connection) -> Result<()> {
    let pure = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
    connection.create_scalar_function(DIGEST_FUNCTION, -1, pure, |arguments| {
        Ok(digest((0..arguments.len()).map(|at| arguments.get_raw(at))))
    })
}

/// The digest of values.
fn digest<'a>(values: impl Iterator<Item = ValueRef<'a>>) -> i64 {
    let mut hasher = Xxh3::new();
    let mut add = |kind: u8, bytes: &[u8]| {
        hasher.update(&[kind]);
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    for value in values {
        match value {
            ValueRef::Null => add(0, &[]),
            ValueRef::Integer(number) => add(1, &number.to_le_bytes()),
            ValueRef::Real(number) => add(2, &number.to_le_bytes()),
            ValueRef::Text(text) => add(3, text),
            ValueRef::Blob(bytes) => add(4, bytes),
        }
    }
    hasher.digest().cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEMA: Schema = Schema {
        file: "t.db",
        version: 1,
        create: "
            CREATE TABLE u (x, digest INTEGER);
            CREATE TABLE t (                    -- a comment, as on each of these lines
                id INTEGER PRIMARY KEY,         -- of the row
                -- The first one.
                a,
                b TEXT UNIQUE DEFAULT 'c, d',   -- the second one
                digest INTEGER,
                UNIQUE (a, b)
            )",
        tables: &[Table { name: "t", key: "id", also: &["(SELECT 7)"] }],
    };

    fn connection() -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        register(&connection).unwrap();
        connection
    }

    #[test]
    fn values_of_other_types_and_lengths_have_other_digests() {
        let connection = connection();
        let arguments =
            ["", "NULL", "0", "1", "0.0", "''", "'1'", "x'31'", "'a', 'bc'", "'ab', 'c'", "'abc'"];
        let mut digests: Vec<i64> = arguments
            .iter()
            .map(|it| {
                connection.query_row(&format!("SELECT row_digest({it})"), [], |row| row.get(0))
            })
            .collect::<Result<_>>()
            .unwrap();
        // The digest is stored on disks, so its value must never change.
        assert_eq!(digests[8], -8_641_163_627_453_405_046);
        digests.sort_unstable();
        digests.dedup();
        assert_eq!(digests.len(), arguments.len());
    }

    #[test]
    fn rows_that_change_have_new_digests() {
        let connection = connection();
        connection.execute_batch(SCHEMA.create).unwrap();
        assert_eq!(SCHEMA.columns("t"), ["a", "b"]);
        connection.execute("INSERT INTO t (a, b) VALUES (0, 0)", []).unwrap();
        SCHEMA.add_digest_triggers(&connection).unwrap();
        connection.execute_batch("INSERT INTO t (a, b) VALUES (1, 1), (2, 2), (3, 3)").unwrap();
        let changed = connection.execute("UPDATE t SET a = a + 10 WHERE a > 1", []).unwrap();
        assert_eq!((changed, connection.last_insert_rowid()), (2, 4));
        connection
            .execute_batch("INSERT INTO t (a, b) VALUES (4, 1) ON CONFLICT DO UPDATE SET a = 9")
            .unwrap();
        let count = |which: &str| {
            let sql = format!("SELECT count(*) FROM t WHERE {which}");
            connection.query_row(&sql, [], |row| row.get::<_, i64>(0)).unwrap()
        };
        assert_eq!((count("digest IS NULL"), count("digest = row_digest(a, b, 7)")), (1, 3));
    }
}

//! A digest of each row's values, in a column of the row. `SQLite` has no checksum for values, so
//! without it a changed byte in a stored text would go unnoticed.
//!
//! The column `digest` holds XXH3-64 of the row's other values that the program knows, each with
//! its type and length, in a fixed order. It is NULL in rows of older versions, and in rows written
//! by another program. A program that changes a row must set it to NULL: the digest of the old
//! values would count as damage.
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
    /// The first schema version in which its rows have digests, as in `PRAGMA user_version`.
    pub since: i64,
    /// The values in the digest, in order: columns, or expressions in parentheses. Row numbers are
    /// not included: indexes show whether they are right.
    pub columns: &'static [&'static str],
    /// Columns of later schema versions, in their order. The digest of a row without values in the
    /// columns of a version is that of the version before, so that digests of older rows stay valid.
    pub added: &'static [AddedColumns],
}

/// Columns that a schema version has added to a table with digests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddedColumns {
    /// That schema version.
    pub since: i64,
    /// Their names.
    pub names: &'static [&'static str],
}

/// A database of this program.
#[derive(Debug, Clone, Copy)]
pub struct Schema {
    /// Its file in a data directory.
    pub file: &'static str,
    /// The newest schema version.
    pub newest: i64,
    /// Its tables.
    pub tables: &'static [Table],
}

impl Table {
    /// The columns of the newest schema version.
    pub fn newest_columns(&self) -> impl Iterator<Item = &'static str> + use<> {
        let added = self.added.iter().flat_map(|added| added.names);
        self.columns.iter().chain(added).copied()
    }

    /// The digest in SQL of these values: those of `columns`, and of the added columns that the
    /// table has.
    pub fn digest_of<T: AsRef<str>>(&self, values: &[T]) -> String {
        let call = |count: usize| {
            let list: Vec<_> = values[..count].iter().map(AsRef::as_ref).collect();
            format!("{DIGEST_FUNCTION}({})", list.join(", "))
        };
        let mut count = self.columns.len();
        let mut digest = call(count);
        for added in self.added {
            if count == values.len() {
                break;
            }
            let before = count;
            count += added.names.len();
            let values = values[before..count].iter();
            let nulls: Vec<_> = values.map(|it| format!("{} IS NULL", it.as_ref())).collect();
            let are_null = nulls.join(" AND ");
            digest = format!("CASE WHEN {are_null} THEN {digest} ELSE {} END", call(count));
        }
        digest
    }

    /// The digest in SQL of a row of a table of this schema version.
    pub(crate) fn digest_of_row(&self, version: i64) -> String {
        let later = self.added.iter().filter(|added| added.since > version);
        let columns: Vec<_> = self.newest_columns().collect();
        let later: usize = later.map(|added| added.names.len()).sum();
        self.digest_of(&columns[..columns.len() - later])
    }

    /// The statement that adds the column to an older table.
    pub fn add_column(&self) -> String {
        format!("ALTER TABLE {} ADD COLUMN digest INTEGER;", self.name)
    }

    /// Adds temporary triggers that update the digest of each row that this connection writes. For
    /// tables that change seldom: each change writes its row twice.
    pub fn add_digest_triggers(&self, connection: &Connection) -> Result<()> {
        let Self { name, key, .. } = self;
        let (digest, mut statements) = (self.digest_of_row(i64::MAX), String::new());
        let columns = self.newest_columns().filter(|column| !column.starts_with('('));
        let updates = format!("UPDATE OF {}", columns.collect::<Vec<_>>().join(", "));
        for (event, on) in [("insert", "INSERT"), ("update", &updates)] {
            let _ = write!(
                statements,
                "CREATE TEMP TRIGGER IF NOT EXISTS {name}_{event}_digest AFTER {on} ON main.{name} BEGIN
                    UPDATE {name} SET digest = {digest} WHERE {key} = NEW.{key};
                END;"
            );
        }
        connection.execute_batch(&statements)
    }
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

    const T: Table = Table { name: "t", key: "rowid", since: 1, columns: &["a", "b"], added: &[] };

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
        connection.execute_batch("CREATE TABLE t (a, b UNIQUE, c)").unwrap();
        connection.execute_batch(&T.add_column()).unwrap();
        connection.execute("INSERT INTO t (a, b) VALUES (0, 0)", []).unwrap();
        T.add_digest_triggers(&connection).unwrap();
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
        assert_eq!((count("digest IS NULL"), count("digest = row_digest(a, b)")), (1, 3));
    }

    #[test]
    fn added_columns_count_only_when_they_have_values() {
        const TABLE: Table = Table {
            added: &[
                AddedColumns { since: 2, names: &["c", "d"] },
                AddedColumns { since: 4, names: &["e"] },
            ],
            ..T
        };
        let connection = connection();
        let digest = |values: &[&str]| -> i64 {
            let sql = format!("SELECT {}", TABLE.digest_of(values));
            connection.query_row(&sql, [], |row| row.get(0)).unwrap()
        };
        let before = digest(&["1", "2"]);
        let first: i64 =
            connection.query_row("SELECT row_digest(1, 2)", [], |row| row.get(0)).unwrap();
        assert_eq!(before, first);
        assert_eq!(digest(&["1", "2", "NULL", "NULL"]), before);
        assert_eq!(digest(&["1", "2", "NULL", "NULL", "NULL"]), before);
        assert_eq!(digest(&["1", "2", "3", "NULL", "NULL"]), digest(&["1", "2", "3", "NULL"]));
        let added = [
            ["3", "NULL", "NULL"],
            ["NULL", "3", "NULL"],
            ["NULL", "4", "NULL"],
            ["NULL", "NULL", "3"],
            ["3", "NULL", "3"],
        ];
        let mut others = added.map(|[c, d, e]| digest(&["1", "2", c, d, e])).to_vec();
        others.push(before);
        others.sort_unstable();
        others.dedup();
        assert_eq!(others.len(), 6);
        for (version, columns) in [(1, "a, b"), (2, "a, b, c, d"), (3, "a, b, c, d")] {
            let digest = TABLE.digest_of_row(version);
            let last = digest.rsplit("row_digest(").next().unwrap();
            assert!(last.starts_with(&format!("{columns})")), "{digest}");
        }
        assert!(TABLE.digest_of_row(4).contains("row_digest(a, b, c, d, e)"));
    }
}

use std::fs;
use std::path::Path;
use std::sync::Arc;

use super::*;
use crate::report::PageRecord;
use crate::sink::Sink;
use crate::sink::bodies::BodyCompressor;
use crate::sink::jsonl::JsonFile;
use crate::sink::sqlite::{SCHEMA, Sqlite};
use crate::sink::testing::{body_of, folder, record, rendering, transient};
use crate::spool::Spools;

fn database(path: &Path, records: Vec<PageRecord>) {
    let (mut sqlite, lookup) = Sqlite::open(path, None, BodyCompressor::new(true)).unwrap();
    sqlite.write(&records.into_iter().map(Arc::new).collect::<Vec<_>>()).unwrap();
    drop(lookup);
    sqlite.close();
}

fn lines(path: &Path, records: Vec<PageRecord>) {
    let mut file = JsonFile::open(path).unwrap();
    file.write(&records.into_iter().map(Arc::new).collect::<Vec<_>>()).unwrap();
    file.close();
}

fn at(mut record: PageRecord, unix_ms: i64) -> PageRecord {
    record.fetched_unix_ms = unix_ms;
    record
}

fn exported(inputs: &[PathBuf], merge: bool) -> Result<String, ExportError> {
    let mut out = Vec::new();
    export(inputs, merge, ExportTarget::Lines(&mut out), &mut |_| true)?;
    Ok(String::from_utf8(out).unwrap())
}

/// Pages and attempts, in order.
fn shown(lines: &str) -> Vec<String> {
    let records = lines.lines().map(|line| PageRow::from_json(line.as_bytes()).unwrap());
    records.map(|record| format!("{} {}", record.page, record.attempt)).collect()
}

#[test]
fn a_database_and_lines_of_the_same_pages_are_the_same_bytes() {
    let folder = folder();
    let (db, jsonl) = (folder.path().join("pages.db"), folder.path().join("pages.jsonl"));
    let mut odd = record(2, 1);
    (odd.noindex, odd.pass, odd.depth, odd.hash, odd.remote) = (true, None, None, None, None);
    (odd.redirect, odd.report.error) =
        (Some("http://a.example/".to_owned()), Some("\"\n".to_owned()));
    (odd.item, odd.source) = (Some("5".into()), Some("feed".into()));
    odd.links.clear();
    let mut same = record(2, 1);
    (same.noindex, same.pass, same.depth, same.hash, same.remote) = (true, None, None, None, None);
    (same.redirect, same.report.error) = (odd.redirect.clone(), odd.report.error.clone());
    (same.item, same.source) = (odd.item.clone(), odd.source.clone());
    same.links.clear();
    let spools = Spools::open(&folder.path().join("spool")).unwrap();
    let rendered =
        || PageRecord { rendering: Some(rendering(&spools, folder.path())), ..record(3, 1) };
    database(&db, vec![record(1, 1), odd, rendered()]);
    lines(&jsonl, vec![record(1, 1), same, rendered()]);
    let written = fs::read_to_string(&jsonl).unwrap();
    assert!(written.contains(r#""render":{"outcome":"rendered""#), "{written}");
    assert_eq!(exported(&[folder.path().to_owned()], false).unwrap(), written);
    assert_eq!(exported(std::slice::from_ref(&jsonl), false).unwrap(), written);
    assert_eq!(exported(&[jsonl, db.clone()], false).unwrap(), written.repeat(2));
    // Also from one database to the next.
    let copy = folder.path().join("copy.db");
    export(&[db], true, ExportTarget::Database(copy.clone()), &mut |_| true).unwrap();
    let mut copied: Vec<_> = exported(&[copy], false).unwrap().lines().map(str::to_owned).collect();
    let mut lines: Vec<_> = written.lines().collect();
    copied.sort();
    lines.sort_unstable();
    assert_eq!(copied, lines);
}

#[test]
fn a_merge_keeps_the_newest_attempt_in_the_order_of_time() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    database(
        &path("a.db"),
        vec![at(transient(1, 1), 50), at(record(2, 1), 30), at(record(3, 2), 9)],
    );
    lines(&path("b.jsonl"), vec![at(record(1, 2), 40), at(record(3, 1), 99)]);
    database(&path("c.db"), vec![at(record(2, 1), 20), at(transient(4, 1), 10)]);
    let inputs = [path("a.db"), path("b.jsonl"), path("c.db")];
    let expected = ["crawlers.3.3 2", "crawlers.3.4 1", "crawlers.3.2 1", "crawlers.3.1 2"];
    let merged = exported(&inputs, true).unwrap();
    assert_eq!(shown(&merged), expected);
    assert!(merged.contains("\"fetched_at\":\"1970-01-01T00:00:00.030Z\""), "{merged}");
    let mut backwards = inputs.clone();
    backwards.reverse();
    assert_eq!(exported(&backwards, true).unwrap(), merged);
    assert_eq!(shown(&exported(&inputs, false).unwrap()).len(), 7);

    let all = path("all.db");
    let counts = export(&inputs, true, ExportTarget::Database(all.clone()), &mut |_| true).unwrap();
    assert_eq!(counts, Exported { read: 7, written: 4, bodies: 0 });
    assert_eq!(exported(std::slice::from_ref(&all), false).unwrap(), merged);
    // A crawler may continue with it.
    database(&all, vec![at(record(5, 1), 60)]);
    assert_eq!(shown(&exported(&[all], false).unwrap()).len(), 5);
}

#[test]
fn a_database_gets_the_bodies_of_all_inputs_once_and_as_they_are() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    let spools = Spools::open(&path("spool")).unwrap();
    let page = |entry, bytes: &[u8]| PageRecord {
        hash: Some(blake3::hash(bytes)),
        body: Some(body_of(&spools, bytes)),
        ..record(entry, 1)
    };
    database(&path("a.db"), vec![page(1, b"same"), page(2, b"first")]);
    database(&path("b.db"), vec![page(1, b"same"), page(3, b"second")]);
    database(&path("without.db"), vec![record(4, 1)]);
    let sql = |file: &str, sql: &str| {
        Connection::open(path(file)).unwrap().execute_batch(sql).unwrap();
    };
    sql("b.db", "UPDATE bodies SET bytes = 7 WHERE bytes = 6");
    lines(&path("c.jsonl"), vec![record(5, 1)]);
    let inputs = ["a.db", "b.db", "without.db", "c.jsonl"].map(path);
    for merge in [true, false] {
        let all = path(&format!("all-{merge}.db"));
        let counts =
            export(&inputs, merge, ExportTarget::Database(all.clone()), &mut |_| true).unwrap();
        assert_eq!(counts.bodies, 4);
        let connection = Connection::open(&all).unwrap();
        let count = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
        assert_eq!(count("SELECT count(*) FROM bodies"), 3);
        assert_eq!(count("SELECT count(*) FROM bodies JOIN pages USING (hash)"), 3);
        let problems = tidings_database::check(&all, Some(&SCHEMA)).unwrap().problems.concat();
        assert!(problems.contains("of bodies: its values do not match"), "{problems}");
    }
}

#[test]
fn an_incomplete_last_line_is_skipped_and_other_bad_lines_are_refused() {
    let folder = folder();
    let path = folder.path().join("pages.jsonl");
    lines(&path, vec![record(1, 1), record(2, 1)]);
    let whole = fs::read(&path).unwrap();
    let first = whole.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    for end in 0..=whole.len() {
        fs::write(&path, &whole[..end]).unwrap();
        // Only the last byte is missing: the line can be read without its end.
        let expected = usize::from(end + 1 >= first) + usize::from(end + 1 >= whole.len());
        assert_eq!(
            exported(std::slice::from_ref(&path), false).unwrap().lines().count(),
            expected,
            "{end}"
        );
    }
    for (text, number) in [("{}\n", 1), ("x", 1), ("\n", 1), ("{\"page\":1}\n", 1)] {
        for (before, line) in [(&b""[..], number), (&whole[..first], number + 1)] {
            fs::write(&path, [before, text.as_bytes()].concat()).unwrap();
            let error = exported(std::slice::from_ref(&path), false).unwrap_err().to_string();
            assert!(error.contains(&format!("pages.jsonl:{line} is not a page")), "{error}");
        }
    }
}

#[test]
fn a_foreign_input_is_named_in_the_error_and_no_output_is_created() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    database(&path("pages.db"), vec![record(1, 1)]);
    let version = |file: &str, version: i64| {
        fs::copy(path("pages.db"), path(file)).unwrap();
        let connection = Connection::open(path(file)).unwrap();
        connection.pragma_update(None, "user_version", version).unwrap();
    };
    version("newer.db", crate::sink::sqlite::VERSION + 1);
    let other = Connection::open(path("other.db")).unwrap();
    other.execute_batch("CREATE TABLE pages (a); PRAGMA user_version = 2").unwrap();
    fs::write(path("short.db"), "SQLite format 3\0").unwrap();
    for (file, word) in [
        ("newer.db", "its schema version is 2"),
        ("other.db", "has no pages"),
        ("short.db", "short.db: "),
        ("missing.db", "No such file"),
    ] {
        let target = ExportTarget::LinesFile(path("out"));
        let inputs = [path("pages.db"), path(file)];
        let error = export(&inputs, false, target, &mut |_| true).unwrap_err().to_string();
        assert!(error.contains(file) && error.contains(word), "{error}");
        assert!(!path("out").exists());
    }
}

#[test]
fn an_output_is_complete_or_absent_and_overwrites_nothing() {
    let folder = folder();
    let input = folder.path().join("in.jsonl");
    lines(&input, (0..2_500).map(|entry| record(entry, 1)).collect());
    let files = || fs::read_dir(folder.path()).unwrap().count();
    let before = files();
    let out = folder.path().join("out");
    for target in [ExportTarget::LinesFile(out.clone()), ExportTarget::Database(out.clone())] {
        let mut asked = 0;
        let stopped = export(std::slice::from_ref(&input), false, target, &mut |_| {
            asked += 1;
            asked < 3
        });
        assert!(matches!(stopped, Err(ExportError::Stopped)), "{stopped:?}");
        assert_eq!(files(), before);
    }
    for (target, name) in [
        (ExportTarget::LinesFile(out.clone()), "lines"),
        (ExportTarget::Database(out.clone()), "database"),
    ] {
        let exported = export(std::slice::from_ref(&input), false, target, &mut |_| true).unwrap();
        assert_eq!((exported.written, files()), (2_500, before + 1), "{name}");
        let again = export(
            std::slice::from_ref(&input),
            false,
            ExportTarget::Database(out.clone()),
            &mut |_| true,
        );
        assert!(matches!(again, Err(ExportError::Exists { .. })), "{again:?}");
        assert_eq!(exported_count(&out), 2_500);
        fs::remove_file(&out).unwrap();
    }
}

fn exported_count(path: &Path) -> usize {
    exported(&[path.to_owned()], false).unwrap().lines().count()
}

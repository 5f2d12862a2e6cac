//! Flips bits anywhere in a data directory with all kinds of files: `verify` reports each.
//!
//! `TIDINGS_DAMAGE_FLIPS` sets the number of flips, one after the other, and `TIDINGS_DAMAGE_SEED`
//! chooses the bits.

use std::fs;
use std::path::{Path, PathBuf};

use rusqlite::types::Value;
use rusqlite::{Connection, OpenFlags};
use tempfile::TempDir;

use crate::faults::damage::{VERIFY, run_read_only, snapshot};
use crate::support::feed_fixture::{FeedFixture, HubLink, confirm_subscription};
use crate::support::hub_site::HubSite;
use crate::support::line_connection::LineConnection;
use crate::support::origin::{Origin, Site};
use crate::support::page_database;
use crate::support::process::{Server, run_tidings};
use crate::support::seed::{number_from_env, seed_from_env};
use crate::support::wait::wait_until;

/// A folder with a data directory that contains every kind of file. No program runs in it.
#[track_caller]
pub(crate) fn full_data_directory() -> TempDir {
    let origin = Origin::serve(Site { pages: 30, ..Site::default() });
    let folder = TempDir::new().unwrap();
    run_tidings(folder.path(), &["crawl", "--allow-private", "--bodies", &origin.url(0, "/p/0")])
        .expect_code(0);
    let server = Server::start_in(folder, &["broker"], |_| ());
    let mut client = LineConnection::connect_client(server.address);
    for command in
        ["TOPIC create t retain-age=20d", "GROUP create g topics=t key=none", "JOB open j"]
    {
        client.request_ok(command);
    }
    for n in 1..=50 {
        assert_eq!(client.request(&format!("PUB t event-{n}")), format!("+OK {n} {n}"));
    }
    let watched = server.folder.path().join("watched");
    fs::create_dir(&watched).unwrap();
    for n in 0..5 {
        fs::write(watched.join(format!("{n}.pdf")), "x").unwrap();
    }
    let words = [
        "watch",
        "watched",
        "--once",
        "--data",
        "tidings-data",
        "--broker",
        &server.address_text(),
    ];
    run_tidings(server.folder.path(), &words).expect_code(0);
    let data = server.data_dir();
    let Server { process, folder, .. } = server;
    process.signal_and_finish("TERM").expect_code(0);

    let site = HubSite::start_with_fast_retries(8, &[]);
    site.write_feed("feed.xml", "<rss>1</rss>");
    site.subscribe("feed.xml", "/ok/a", &[("hub.secret", "secret of /ok/a")]);
    site.publish_feed("feed.xml", "<rss>2</rss>");
    site.subscribers.wait_for_request("POST", "/ok/a", 1);
    site.wait_until_idle();
    let hub = site.server.data_dir().join("hub.db");
    let HubSite { server: Server { process, folder: of_hub, .. }, .. } = site;
    process.signal_and_finish("TERM").expect_code(0);
    fs::copy(&hub, data.join("hub.db")).unwrap();
    drop(of_hub);

    let fixture = FeedFixture::start(&HubLink::Header, &[]);
    confirm_subscription(&fixture, &fixture.hub_request(0), "864000");
    wait_until("the first items", || (fixture.published_count("old") == 1).then_some(()));
    let websub = fixture.server.data_dir().join("websub.db");
    let FeedFixture { server: Server { process, folder: of_feeds, .. }, .. } = fixture;
    process.signal_and_finish("TERM").expect_code(0);
    fs::copy(&websub, data.join("websub.db")).unwrap();
    drop(of_feeds);

    let words = ["token", "create", "ci", "--allow", "sub:t", "--data", "tidings-data"];
    run_tidings(folder.path(), &words).expect_code(0);
    folder
}

/// Files in which a bit may be flipped: all but lock files, which have no content, and the one that
/// people edit.
fn checked_files(data: &Path) -> Vec<PathBuf> {
    let all = snapshot(data).into_iter().filter_map(|(path, (_, bytes))| Some((path, bytes?)));
    let says_something = |path: &Path| {
        let name = path.file_name().unwrap().to_string_lossy();
        name != "lock" && !name.ends_with(".lock") && name != "access.toml"
    };
    all.filter(|(path, bytes)| !bytes.is_empty() && says_something(path)).map(|it| it.0).collect()
}

/// The content of a database: its version, its tables with their columns, and all rows. It leaves
/// out the highest row ids ever used, which only make later ids higher.
fn dump_database(path: &Path) -> rusqlite::Result<Vec<String>> {
    let uri = format!("file:{}?immutable=1", path.display());
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
    let connection = Connection::open_with_flags(uri, flags)?;
    let mut lines = Vec::new();
    for pragma in ["user_version", "application_id"] {
        let number: i64 = connection.pragma_query_value(None, pragma, |row| row.get(0))?;
        lines.push(format!("{pragma} {number}"));
    }
    let sql = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name <> 'sqlite_sequence' ORDER BY name";
    let names = connection
        .prepare(sql)?
        .query_map([], |row| row.get(0))?
        .collect::<rusqlite::Result<Vec<String>>>()?;
    for name in names {
        let mut statement = connection.prepare(&format!("SELECT * FROM \"{name}\" NOT INDEXED"))?;
        lines.push(format!("{name} {:?}", statement.column_names().collect::<Vec<_>>()));
        let columns = statement.column_count();
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let values = (0..columns).map(|at| row.get::<_, Value>(at));
            lines.push(format!("{:?}", values.collect::<rusqlite::Result<Vec<_>>>()?));
        }
    }
    Ok(lines)
}

#[test]
#[ignore = "needs foreign programs"]
fn a_flipped_bit_in_any_file_is_reported() {
    let seed = seed_from_env("TIDINGS_DAMAGE_SEED");
    let flips = number_from_env("TIDINGS_DAMAGE_FLIPS").unwrap_or(40);
    eprintln!("TIDINGS_DAMAGE_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let folder = full_data_directory();
    let data = folder.path().join("tidings-data");
    let report = run_read_only(folder.path(), &VERIFY, 0);
    assert!(report.contains("access.toml: no damage found\n  it can be read; "), "{report}");

    let files = checked_files(&data);
    for name in [
        "catalog.log",
        "clean-stop",
        "crawler.db",
        "hub.db",
        "pages.db",
        "websub.db",
        "watch/",
        "groups/g/",
        "topics/t/",
    ] {
        let has = files.iter().any(|path| path.display().to_string().contains(name));
        assert!(has, "{name}: {files:#?}");
    }
    let mut unused_bytes = 0;
    for n in 0..flips {
        let path = &files[random.usize(..files.len())];
        let original = fs::read(path).unwrap();
        let (at, bit) = (random.usize(..original.len()), random.u8(..8));
        let mut bytes = original.clone();
        bytes[at] ^= 1 << bit;
        let is_database = path.extension().is_some_and(|it| it == "db");
        let before = is_database.then(|| dump_database(path).unwrap());
        fs::write(path, bytes).unwrap();
        let flip = format!("flip {n}: bit {bit} of byte {at} of {}", path.display());
        let verified = run_tidings(folder.path(), &VERIFY);
        let output = verified.stdout().join("\n");
        if verified.code == Some(0) && is_database {
            // An unused byte: every value is unchanged.
            assert!(dump_database(path).ok() == before, "{flip}: {output}");
            unused_bytes += 1;
        } else {
            let name = path.file_name().unwrap().to_str().unwrap();
            assert!(verified.code == Some(1) && output.contains(name), "{flip}: {output}");
        }
        fs::write(path, original).unwrap();
    }
    eprintln!("{unused_bytes} of {flips} flips were in unused bytes");
}

#[test]
#[ignore = "needs foreign programs"]
fn a_flipped_bit_in_a_database_value_is_reported() {
    let folder = full_data_directory();
    let data = folder.path().join("tidings-data");
    for (name, table, text) in [
        ("pages.db", "pages", "Page 7 of "),
        ("pages.db", "bodies", "gzip"),
        ("crawler.db", "state", "User-agent"),
        ("hub.db", "subscriptions", "secret of /ok/a"),
        ("websub.db", "subscription", "hub"),
    ] {
        let path = data.join(name);
        let original = fs::read(&path).unwrap();
        let begins = |at: &usize| original[*at..].starts_with(text.as_bytes());
        let places: Vec<_> = (0..original.len()).filter(begins).collect();
        // The text may also be in an index, or in an unused part of a page.
        let named = places.iter().filter(|at| {
            let mut bytes = original.clone();
            bytes[**at] ^= 0x01;
            fs::write(&path, bytes).unwrap();
            let output = run_tidings(folder.path(), &VERIFY);
            let output = output.stdout().join("\n");
            output.contains(&format!("{name}: damaged"))
                && output.contains(&format!(" of {table}: its values"))
        });
        assert!(named.count() > 0, "{name}: {places:?}");
        fs::write(&path, original).unwrap();
    }
}

/// Read-only commands for a data directory in which no program runs.
const READ_ONLY_COMMANDS: [&[&str]; 7] = [
    &VERIFY,
    &["verify", "--json", "--data", "tidings-data"],
    &["topic", "verify", "--data", "tidings-data"],
    &["export", "--data", "tidings-data"],
    &["export", "--merge", "tidings-data/pages.db"],
    &["token", "list", "--data", "tidings-data"],
    &["config", "show", "broker"],
];

#[test]
#[ignore = "needs foreign programs"]
fn read_only_commands_change_nothing_in_a_full_data_directory() {
    let folder = full_data_directory();
    for command in READ_ONLY_COMMANDS {
        run_read_only(folder.path(), command, 0);
    }
    let lines = run_read_only(folder.path(), &["export", "--data", "tidings-data"], 0);
    assert!(lines.lines().count() >= 30, "{lines}");
}

#[test]
#[ignore = "needs foreign programs"]
fn an_export_after_a_killed_crawler_changes_nothing() {
    let origin = Origin::serve(Site { pages: 30, ..Site::default() });
    let up = Server::start_up(&["--allow-private"]);
    let data = up.data_dir();
    for page in 0..5 {
        LineConnection::connect_client(up.address)
            .request_ok(&format!("PUB new-url {}", origin.url(0, &format!("/p/{page}"))));
    }
    page_database::wait_for_rows(&data, "select 1 from pages", 5);
    let while_it_writes = run_tidings(up.folder.path(), &["export", "--data", "tidings-data"]);
    assert_eq!(while_it_writes.expect_code(0).stdout().len(), 5);
    let Server { process, folder, .. } = up;
    process.signal_and_finish("KILL");
    assert!(fs::metadata(data.join("pages.db-wal")).unwrap().len() > 0);
    let lines = run_read_only(folder.path(), &["export", "--data", "tidings-data"], 0);
    assert_eq!(lines.lines().count(), 5);
    run_read_only(folder.path(), &VERIFY, 0);
}

//! `tidings verify`: verifies everything in a data directory.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::{fs, io};

use clap::Args;
use tidings_connectors::files::state_file;
use tidings_connectors::websub;
use tidings_database::CheckReport;
use tidings_database::digest::Schema;
use tidings_subscriber::sink::sqlite;
use tidings_subscriber::{images, state as crawler};

use super::topic::{VerifyReport, verify_offline};
use crate::flags::address::ADDRESS_FILE;
use crate::services::principals::AccessFile;
use crate::services::tls::BROKER_SOCKET;
use crate::terminal::failure::Failure;
use crate::terminal::output::Console;

const EXAMPLES: &str = "\
Examples:
  tidings verify --data tidings-data    while no broker and no crawler works there

Nothing in the directory is changed. Each file that was written with checksums is verified, and each
database row that has a digest. The output names what could not be verified: rows and lines older
than the checksums, access.toml, which people edit, and files of other programs.

Exit codes: 0 no damage; 1 damage was found, or the directory cannot be read; 2 wrong usage.";

/// The databases that are verified row by row, by their names in a data directory.
const SCHEMAS: &[Schema] = &[
    sqlite::SCHEMA,
    crawler::SCHEMA,
    #[cfg(feature = "hub")]
    tidings_connectors::hub::SCHEMA,
    websub::SCHEMA,
];

/// Other names in a data directory: files that the broker's own check covers, files without content
/// to verify, and files with a check of their own.
const KNOWN_NAMES: [&str; 10] = [
    "topics",
    "groups",
    "catalog.log",
    "clean-stop",
    "lock",
    "access.toml",
    "watch",
    "crawls",
    // Bodies of pages that are being fetched: the next start removes what is left.
    "spool",
    // Damaged logs that were replaced.
    "set-aside",
];

/// Names of files without content to verify that do not show that a directory is one of Tidings.
const UNVERIFIED_NAMES: [&str; 3] = [BROKER_SOCKET, ADDRESS_FILE, "audit.log"];

/// The flags of `tidings verify`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct VerifyArgs {
    /// The data directory, in which no broker may work at the moment
    #[arg(long, value_name = "DIR")]
    data: PathBuf,

    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
}

/// Verifies a data directory and the crawls below it.
pub(crate) fn run(args: &VerifyArgs) -> Result<(), Failure> {
    if args.data.is_dir() && !is_data_directory(&args.data)? {
        return Err(Failure::failed(format!(
            "{} is no data directory of Tidings: it has no topics, groups or databases",
            args.data.display()
        )));
    }
    let mut reports = verify_directory(&args.data)?;
    for crawl in sorted_paths(&args.data.join("crawls"))?.into_iter().filter(|path| path.is_dir()) {
        reports.extend(verify_directory(&crawl)?);
    }
    let mut console = Console::new();
    for report in &reports {
        if args.json {
            console.line(&serde_json::json!(report).to_string())?;
        } else {
            report.lines().iter().try_for_each(|line| console.line(line))?;
        }
    }
    if reports.iter().any(|report| report.damaged) { Err(Failure::Unsuccessful) } else { Ok(()) }
}

/// Whether a broker, a crawler or another part of Tidings has stored anything in this directory.
fn is_data_directory(data: &Path) -> Result<bool, Failure> {
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default();
        KNOWN_NAMES.iter().any(|known| name == *known)
            || SCHEMAS.iter().any(|schema| name == schema.file)
    };
    Ok(sorted_paths(data)?.iter().any(is_ours))
}

/// Verifies a data directory without the crawls below it.
fn verify_directory(data: &Path) -> Result<Vec<VerifyReport>, Failure> {
    let mut reports = verify_offline(data, None, true)?;
    for path in sorted_paths(data)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if has_extension(&path, "db") {
            let schema = SCHEMAS.iter().find(|schema| name == schema.file);
            reports.push(verify_database(&path, schema));
        } else if images::FOLDERS.contains(&&*name) {
            reports.push(verify_images(&path)?);
        } else if !KNOWN_NAMES.contains(&&*name)
            && !UNVERIFIED_NAMES.contains(&&*name)
            && !is_sqlite_side_file(&name)
        {
            let note = "not checked: a file of another program, or a copy of a damaged file";
            reports.push(VerifyReport::of_file(&path, Vec::new(), vec![note.to_owned()]));
        }
    }
    let states = sorted_paths(&data.join("watch"))?;
    for path in states.into_iter().filter(|path| has_extension(path, state_file::EXTENSION)) {
        let mut report = verify_database(&path, Some(&state_file::SCHEMA));
        if report.damaged {
            let loss =
                "nothing for damaged rows: their files are announced again, under the same ids";
            report.remedy = Some(loss.to_owned());
        }
        reports.push(report);
    }
    reports.extend(verify_access_file(data));
    Ok(reports)
}

/// Verifies `access.toml`, if it exists.
fn verify_access_file(data: &Path) -> Option<VerifyReport> {
    let principals = AccessFile::at(data);
    let problem = match principals.read() {
        Ok(None) => return None,
        Ok(Some(_)) => None,
        Err(failure) => Some(failure.text().unwrap_or_default()),
    };
    let note = "it can be read; it has no checksum, because people edit it";
    let notes = if problem.is_none() { vec![note.to_owned()] } else { Vec::new() };
    let mut report = VerifyReport::of_file(principals.path(), Vec::from_iter(problem), notes);
    report.remedy = report.damaged.then(|| "edit it, or restore it from a backup".to_owned());
    Some(report)
}

/// Verifies a folder of files that are named after their content.
fn verify_images(path: &Path) -> Result<VerifyReport, Failure> {
    let damaged = images::damaged_files(path)
        .map_err(|error| Failure::failed(format!("{}: {error}", path.display())))?;
    let problem = |file: &PathBuf| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        format!(
            "{name}: its content does not match its name: damaged, or a file of another program"
        )
    };
    let mut report = VerifyReport::of_file(path, damaged.iter().map(problem).collect(), Vec::new());
    let remedy = "remove the file, and crawl its page again";
    report.remedy = report.damaged.then(|| remedy.to_owned());
    Ok(report)
}

fn verify_database(path: &Path, schema: Option<&Schema>) -> VerifyReport {
    let checked = tidings_database::check(path, schema).unwrap_or_else(|error| CheckReport {
        problems: vec![error.to_string()],
        notes: Vec::new(),
    });
    let mut report = VerifyReport::of_file(path, checked.problems, checked.notes);
    report.database = report.file.take();
    let remedy = "restore it from a backup, or move it away; docs/operations.md lists what is lost without it";
    report.remedy = report.damaged.then(|| remedy.to_owned());
    report
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension() == Some(OsStr::new(extension))
}

/// Whether a file belongs to an `SQLite` database, and is verified with it.
fn is_sqlite_side_file(name: &str) -> bool {
    [".db-wal", ".db-shm", ".db-journal"].iter().any(|end| name.ends_with(end))
}

/// The paths in a directory, sorted by name; none if it does not exist.
fn sorted_paths(dir: &Path) -> Result<Vec<PathBuf>, Failure> {
    let listed = match fs::read_dir(dir) {
        Ok(found) => found.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    };
    let mut paths =
        listed.map_err(|error| Failure::failed(format!("{}: {error}", dir.display())))?;
    paths.sort();
    Ok(paths)
}

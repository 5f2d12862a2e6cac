//! Detects directories in `groups/` that are not logs of the group they are named after: copies,
//! renamed logs, and unrelated files.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use tidings_protocol::GroupName;

use crate::disk::Disk;
use crate::format::SegmentHeader;

/// The contents of the directory with a group's name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DirectoryOwner {
    /// The group's own log, or no log files at all.
    Own,
    /// Something else; the text describes it to an operator.
    Foreign(String),
}

/// Finds which group's files a directory holds, without changing any. Each log file names its group
/// in its header; files with an unreadable header are ignored. Fails if the files belong to several
/// groups.
pub(super) fn directory_owner(
    disk: &dyn Disk,
    dir: &Path,
    name: &GroupName,
) -> io::Result<DirectoryOwner> {
    let files = match disk.list(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            return Ok(DirectoryOwner::Foreign("is not a directory".to_owned()));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(DirectoryOwner::Own),
        files => files?,
    };
    let mut owners = BTreeSet::new();
    let paths = files.iter().map(|file| dir.join(file));
    for path in paths.filter(|path| path.extension().is_some_and(|extension| extension == "log")) {
        let header = SegmentHeader::decode(&SegmentHeader::read(&*disk.open(&path)?)?);
        owners.extend(header.ok().map(|header| header.topic));
    }
    let mut others = owners.iter().filter(|owner| owner.as_str() != name.as_str()).peekable();
    let Some(other) = others.peek() else { return Ok(DirectoryOwner::Own) };
    if owners.len() > 1 {
        let text = format!("some of its files belong to group {other}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    let right = dir.with_file_name(other.as_str());
    Ok(DirectoryOwner::Foreign(format!(
        "holds the log of group {other}, which is only used as {}",
        right.display()
    )))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tidings_protocol::Seq;

    use super::*;
    use crate::disk::FileSystem;

    fn look(dir: &Path, name: &str) -> io::Result<DirectoryOwner> {
        directory_owner(&FileSystem, &dir.join(name), &name.parse().unwrap())
    }

    /// The header of a segment of this group.
    fn segment(group: &str, base: u64) -> Vec<u8> {
        let (topic, base, previous_end) = (group.parse().unwrap(), Seq(base), Seq(base));
        let header = SegmentHeader { topic, base, previous_end, reserved: base, unix_ms: 0 };
        header.encode().to_vec()
    }

    #[test]
    fn log_directory_belongs_to_the_group_in_its_headers() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, bytes: &[u8]| fs::write(dir.path().join(path), bytes).unwrap();
        fs::create_dir(dir.path().join("x")).unwrap();
        assert_eq!(look(dir.path(), "x").unwrap(), DirectoryOwner::Own, "nothing was ever written");
        put("x/00000000000000000001.log", b"damaged");
        put("x/notes", &segment("y", 1));
        assert_eq!(look(dir.path(), "x").unwrap(), DirectoryOwner::Own);
        put("x/00000000000000000007.log", &segment("x", 7));
        assert_eq!(look(dir.path(), "x").unwrap(), DirectoryOwner::Own);
        fs::rename(dir.path().join("x"), dir.path().join("x.bak")).unwrap();
        let DirectoryOwner::Foreign(what) = look(dir.path(), "x.bak").unwrap() else {
            panic!("the log belongs to x")
        };
        assert!(what.starts_with("holds the log of group x, "), "{what}");
        put("x.bak/00000000000000000009.log", &segment("x.bak", 9));
        let error = look(dir.path(), "x.bak").unwrap_err();
        assert_eq!(error.to_string(), "some of its files belong to group x");
        put("file", b"");
        assert_eq!(
            look(dir.path(), "file").unwrap(),
            DirectoryOwner::Foreign("is not a directory".to_owned())
        );
    }
}

//! The event of a file: one line. No file name can split it or add attributes.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use tidings_protocol::push_attribute;

use super::path_encoding::encode;
use super::tracker::{FileEvent, FileStamp};

/// Hexadecimal digits of an id: 64 bits.
const ID_DIGITS: usize = 16;

/// The payload: `<path> size=<bytes> modified=<unix ms> id=<id>` for a file, `<dir> batch=end
/// files=<n> id=<id>` for the end of a batch, `<path> error=<word> id=<id>` for an error.
///
/// The id of a file depends on its path and content alone, so each process publishes it under the
/// same id. The id of a batch is unique within a state file, that of an error within one `run` of
/// the process.
pub(super) fn payload(root: &Path, announced: &FileEvent, run: &str, number: u64) -> String {
    let attributes = match announced {
        FileEvent::File(_, stamp) => {
            vec![("size", stamp.size.to_string()), ("modified", modified_ms(*stamp).to_string())]
        }
        FileEvent::Batch { files, .. } => {
            vec![("batch", "end".into()), ("files", files.to_string())]
        }
        FileEvent::Error(_, word) => vec![("error", (*word).to_owned())],
    };
    let path = path(root, announced);
    let path = path.as_os_str().as_bytes();
    let mut text = encode(path);
    for (key, value) in attributes {
        push_attribute(&mut text, key, &value);
    }
    push_attribute(&mut text, "id", &id(path, announced, run, number));
    text
}

pub(super) fn path(root: &Path, announced: &FileEvent) -> std::path::PathBuf {
    match announced {
        FileEvent::File(name, _) | FileEvent::Error(name, _) if !name.is_empty() => {
            root.join(OsStr::from_bytes(name.strip_suffix(b"/").unwrap_or(name)))
        }
        _ => root.to_owned(),
    }
}

fn id(path: &[u8], announced: &FileEvent, run: &str, number: u64) -> String {
    let mut hasher = blake3::Hasher::new();
    // Paths contain no NUL, so no other input hashes to the same bytes.
    hasher.update(path).update(b"\0");
    match announced {
        FileEvent::File(_, FileStamp { inode, size, modified_s, modified_ns }) => {
            hasher.update(format!("file {inode} {size} {modified_s} {modified_ns}").as_bytes())
        }
        FileEvent::Batch { number, .. } => hasher.update(format!("batch {number}").as_bytes()),
        FileEvent::Error(..) => hasher.update(format!("trouble {run} {number}").as_bytes()),
    };
    hasher.finalize().to_hex()[..ID_DIGITS].to_owned()
}

fn modified_ms(stamp: FileStamp) -> i64 {
    stamp.modified_s.saturating_mul(1_000).saturating_add(i64::from(stamp.modified_ns / 1_000_000))
}

#[cfg(test)]
mod tests {
    use tidings_protocol::Payload;

    use super::*;
    use crate::files::tracker::RelativePath;

    fn file(name: &[u8], modified_ns: u32) -> FileEvent {
        let stamp = FileStamp { inode: 1, size: 3, modified_s: 1_795_290_973, modified_ns };
        FileEvent::File(RelativePath::from(name), stamp)
    }

    #[test]
    fn a_file_event_has_path_size_and_time() {
        let text = payload(Path::new("/srv/out"), &file(b"a b.pdf", 246_999_999), "r", 1);
        let beginning = "/srv/out/a%20b.pdf size=3 modified=1795290973246 id=";
        assert!(text.starts_with(beginning), "{text}");
        assert_eq!(text.len(), beginning.len() + ID_DIGITS);
    }

    #[test]
    fn no_file_name_adds_an_attribute() {
        let text = payload(Path::new("/"), &file(b"a size=9\nPUB x\xff id=1", 0), "r", 1);
        let parsed = Payload::parse(&text);
        assert_eq!(parsed.attribute("size"), Some("3"));
        assert_eq!(parsed.attributes().count(), 3);
        assert_eq!(parsed.target(), Some("/a%20size=9%0APUB%20x%FF%20id=1"));
    }

    #[test]
    fn only_the_same_file_has_the_same_id() {
        let id = |announced: &FileEvent, run, number| {
            let text = payload(Path::new("/d"), announced, run, number);
            text.rsplit_once("id=").unwrap().1.to_owned()
        };
        assert_eq!(id(&file(b"a", 0), "r", 1), id(&file(b"a", 0), "s", 2));
        assert_ne!(id(&file(b"a", 0), "r", 1), id(&file(b"a", 1), "r", 1));
        assert_ne!(id(&file(b"a", 0), "r", 1), id(&file(b"b", 0), "r", 1));
        let trouble = FileEvent::Error(RelativePath::from(*b"sub/"), "denied");
        assert_ne!(id(&trouble, "r", 1), id(&trouble, "r", 2));
        let text = payload(Path::new("/d"), &trouble, "r", 1);
        assert!(text.starts_with("/d/sub error=denied id="), "{text}");
        let end = FileEvent::Batch { number: 4, files: 12 };
        let text = payload(Path::new("/d"), &end, "r", 1);
        assert!(text.starts_with("/d batch=end files=12 id="), "{text}");
    }
}

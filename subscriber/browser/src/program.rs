//! Finds the browser's program.

use std::env;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The programs to find, best first. The headless shell renders several times as many pages as the
/// whole browser. Debian's programs in `/usr/bin` are scripts, which add flags, and one of them
/// remains as the parent of the browser; so the binaries come first.
const PROGRAMS: [&str; 8] = [
    "/usr/lib/chromium/chromium-headless-shell",
    "/usr/lib/chromium/chromium",
    "chromium-headless-shell",
    "chrome-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome-stable",
    "google-chrome",
];

/// Why no program was found. The fault of the installation or of a flag.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// None is installed.
    #[error(
        "no Chromium found; on Debian and Ubuntu: apt install chromium-headless-shell. Looked for: {}",
        PROGRAMS.join(", ")
    )]
    Missing,
    /// The given program is not there.
    #[error("{0}: no such program; on Debian and Ubuntu: apt install chromium-headless-shell")]
    Unknown(PathBuf),
}

/// The program with this name or path; without one, the first that is installed.
pub fn find(named: Option<&Path>) -> Result<PathBuf, ProgramError> {
    match named {
        Some(name) => locate(name).ok_or_else(|| ProgramError::Unknown(name.to_owned())),
        None => {
            PROGRAMS.iter().find_map(|name| locate(Path::new(name))).ok_or(ProgramError::Missing)
        }
    }
}

/// The path of a program: itself, or for a name without folders, the first on the `PATH`.
fn locate(name: &Path) -> Option<PathBuf> {
    if name.components().count() > 1 {
        return is_program(name).then(|| name.to_owned());
    }
    let folders = env::var_os("PATH")?;
    env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| is_program(path))
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_by_name_and_by_path() {
        let shell = find(Some(Path::new("sh"))).unwrap();
        assert!(shell.is_absolute());
        assert_eq!(find(Some(&shell)).unwrap(), shell);
        let error = find(Some(Path::new("/etc/passwd"))).unwrap_err().to_string();
        assert!(error.starts_with("/etc/passwd: no such program"), "{error}");
        assert!(error.contains("apt install chromium-headless-shell"), "{error}");
    }
}

//! The images and PDF files of rendered pages, in the data directory.
//!
//! ```text
//!   screenshots/<digits>.png
//!   pdfs/<digits>.pdf
//! ```
//!
//! The digits are the first 32 of BLAKE3 of the content, so each content is there once, and a
//! damaged file is found by its name.

use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::spool::Spools;

/// Hexadecimal digits in the name of a file.
const DIGITS: usize = 32;

/// The folders in a data directory.
pub const FOLDERS: [&str; 2] = [ImageKind::Screenshot.folder(), ImageKind::Pdf.folder()];

/// What a file shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ImageKind {
    /// A PNG image of a page.
    Screenshot,
    /// A page as PDF.
    Pdf,
}

/// A file of this kind, which is on the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredImage {
    /// Its path below the data directory.
    pub name: String,
    /// Its path.
    pub path: PathBuf,
}

impl ImageKind {
    const fn folder(self) -> &'static str {
        match self {
            Self::Screenshot => "screenshots",
            Self::Pdf => "pdfs",
        }
    }

    const fn ending(self) -> &'static str {
        match self {
            Self::Screenshot => "png",
            Self::Pdf => "pdf",
        }
    }
}

impl StoredImage {
    /// Stores a file, unless it is in the data directory already.
    pub(crate) async fn store(
        kind: ImageKind,
        bytes: Vec<u8>,
        data: &Path,
        spools: &Spools,
    ) -> io::Result<Self> {
        let name = format!("{}/{}.{}", kind.folder(), digits_of(&bytes), kind.ending());
        let path = data.join(&name);
        spools.keep(bytes, path.clone()).await?;
        Ok(Self { name, path })
    }
}

fn digits_of(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex()[..DIGITS].to_owned()
}

/// The files in one of [`FOLDERS`] with a name that does not match their content.
pub fn damaged_files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut damaged = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let digits = digits_of(&fs::read(&path)?);
        if path.file_stem().is_none_or(|stem| *stem != *digits) {
            damaged.push(path);
        }
    }
    damaged.sort();
    Ok(damaged)
}

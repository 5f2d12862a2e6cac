//! A WARC file in progress: a sequence of gzip members.

use std::io::{self, Write};
use std::mem;
use std::path::Path;

use flate2::write::DeflateEncoder;
use flate2::{Compression, Crc};

use crate::sink::append::AppendFile;
use crate::sink::warc::WARC_CHUNK_BYTES;

/// Compression level of WARC records, of 9: low, since most bodies are small or compressed already.
const WARC_LEVEL: u32 = 3;

/// Deflate, no flags, no time, no system (RFC 1952 section 2.3).
const MEMBER_HEAD: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];

pub(super) struct WarcFile {
    file: AppendFile,
    /// Reused for all members: creating one costs more than compressing a short record.
    deflate: DeflateEncoder<Vec<u8>>,
    crc: Crc,
    /// Bytes of the members after the synced part.
    pending: u64,
    has_pages: bool,
}

impl WarcFile {
    pub(super) fn new(file: AppendFile) -> Self {
        let deflate = DeflateEncoder::new(Vec::new(), Compression::new(WARC_LEVEL));
        Self { file, deflate, crc: Crc::new(), pending: 0, has_pages: false }
    }

    pub(super) fn path(&self) -> &Path {
        self.file.path()
    }

    /// Length of the synced part, in bytes.
    pub(super) fn safe(&self) -> u64 {
        self.file.synced_bytes()
    }

    /// Length in bytes, synced or not.
    pub(super) fn len(&self) -> u64 {
        self.file.synced_bytes() + self.pending
    }

    /// Whether it has more than the `warcinfo`.
    pub(super) fn has_pages(&self) -> bool {
        self.has_pages
    }

    pub(super) fn note_page(&mut self) {
        self.has_pages = true;
    }

    pub(super) fn begin(&mut self) -> io::Result<()> {
        self.file.begin()
    }

    pub(super) fn cut(&mut self, at: u64) -> io::Result<()> {
        self.file.truncate(at)
    }

    pub(super) fn begin_member(&mut self) {
        self.crc.reset();
        self.deflate.get_mut().extend_from_slice(&MEMBER_HEAD);
    }

    pub(super) fn end_member(&mut self) -> io::Result<()> {
        self.deflate.try_finish()?;
        let mut bytes = self.deflate.reset(Vec::new())?;
        bytes.extend_from_slice(&self.crc.sum().to_le_bytes());
        bytes.extend_from_slice(&self.crc.amount().to_le_bytes());
        // The members follow each other in one buffer.
        *self.deflate.get_mut() = bytes;
        self.spill(WARC_CHUNK_BYTES)
    }

    pub(super) fn commit(&mut self) -> io::Result<()> {
        self.spill(0)?;
        self.file.commit()?;
        self.pending = 0;
        Ok(())
    }

    pub(super) fn roll_back(&mut self) {
        self.deflate = DeflateEncoder::new(Vec::new(), Compression::new(WARC_LEVEL));
        self.pending = 0;
        self.file.roll_back();
    }

    /// Writes the compressed bytes to the file, if there are more than this.
    fn spill(&mut self, bytes_max: usize) -> io::Result<()> {
        let buffer = self.deflate.get_mut();
        if buffer.len() > bytes_max {
            let bytes = mem::take(buffer);
            self.file.write_all(&bytes)?;
            self.pending += bytes.len() as u64;
            *self.deflate.get_mut() = bytes;
            self.deflate.get_mut().clear();
        }
        Ok(())
    }
}

/// Appends to the current member.
impl Write for WarcFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.deflate.write(bytes)?;
        self.crc.update(&bytes[..written]);
        self.spill(WARC_CHUNK_BYTES)?;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

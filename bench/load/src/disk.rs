//! The disk under a directory: its device and file system, and the time that it takes to sync.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::fs::{major, minor, statfs};

use crate::figure::{quantile, to_f64};

/// Bytes per write when the disk is timed.
const SYNC_BYTES: usize = 64 * 1024;

/// Number of timed writes.
const SYNC_COUNT: usize = 200;

/// Size of the file that the bare loop overwrites again and again.
const FILE_BYTES: u64 = 64 << 20;

/// Magic numbers of the file systems in memory: `tmpfs` and `ramfs`.
const MEMORY_FILE_SYSTEMS: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// The file system that holds a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// Mount point.
    pub mount: String,
    /// Type of the file system.
    pub file_system: String,
    /// The device, or the name that stands for one.
    pub source: String,
}

impl Disk {
    /// Finds the disk under a directory.
    pub fn of(dir: &Path) -> Result<Self> {
        let device = fs::metadata(dir).with_context(|| dir.display().to_string())?.dev();
        let device = format!("{}:{}", major(device), minor(device));
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let disk = mounts.lines().rev().find_map(|line| parse_mount(line, &device));
        let unknown = || "unknown".to_owned();
        Ok(disk.unwrap_or_else(|| Self {
            mount: unknown(),
            file_system: unknown(),
            source: unknown(),
        }))
    }
}

/// Parses a line of `mountinfo`; `None` for another device.
fn parse_mount(line: &str, device: &str) -> Option<Disk> {
    let (mount, kind) = line.split_once(" - ")?;
    let mut mount = mount.split(' ').skip(2);
    if mount.next()? != device {
        return None;
    }
    let mount = mount.nth(1)?;
    let mut kind = kind.split(' ');
    let (file_system, source) = (kind.next()?, kind.next()?);
    Some(Disk {
        mount: mount.to_owned(),
        file_system: file_system.to_owned(),
        source: source.to_owned(),
    })
}

/// An error if the directory is in memory: figures from there say nothing about a disk.
pub fn check_not_in_memory(dir: &Path) -> Result<()> {
    let kind = statfs(dir).with_context(|| dir.display().to_string())?.f_type;
    let kind = u64::try_from(kind).unwrap_or_default();
    ensure!(
        !MEMORY_FILE_SYSTEMS.contains(&kind),
        "{} is in memory (tmpfs), where nothing is synced; choose a --data directory on a disk",
        dir.display()
    );
    Ok(())
}

/// Median time of `fdatasync` after a write of 64 KiB.
pub fn sync_time(dir: &Path) -> Result<Duration> {
    let mut file = PreallocatedFile::create(dir)?;
    let piece = vec![b'x'; SYNC_BYTES];
    let mut times = Vec::with_capacity(SYNC_COUNT);
    for _ in 0..SYNC_COUNT {
        let began = Instant::now();
        file.write(&piece)?;
        times.push(began.elapsed().as_secs_f64());
    }
    Ok(Duration::from_secs_f64(quantile(&times, 0.5).unwrap_or_default()))
}

/// Writes and syncs these bytes in a loop, for the time `length`. Returns writes per second.
pub fn bare_loop(dir: &Path, piece: &[u8], length: Duration) -> Result<f64> {
    let mut file = PreallocatedFile::create(dir)?;
    let (mut syncs, began) = (0, Instant::now());
    while began.elapsed() < length {
        file.write(piece)?;
        syncs += 1;
    }
    Ok(to_f64(syncs) / began.elapsed().as_secs_f64())
}

/// A preallocated file that is overwritten from its beginning again and again. Neither its length
/// nor its blocks change, so a sync costs as little as the disk allows.
struct PreallocatedFile<'a> {
    file: File,
    dir: &'a Path,
    offset: u64,
}

/// Name of the file, which exists while it is used.
const FILE_NAME: &str = "bench-sync.tmp";

impl<'a> PreallocatedFile<'a> {
    fn create(dir: &'a Path) -> Result<Self> {
        let path = dir.join(FILE_NAME);
        let mut file = File::create(&path).with_context(|| path.display().to_string())?;
        let zeros = vec![0; 1 << 20];
        for _ in 0..FILE_BYTES >> 20 {
            file.write_all(&zeros)?;
        }
        file.sync_all()?;
        file.seek(SeekFrom::Start(0))?;
        Ok(Self { file, dir, offset: 0 })
    }

    fn write(&mut self, piece: &[u8]) -> Result<()> {
        let bytes = u64::try_from(piece.len())?;
        if self.offset + bytes > FILE_BYTES {
            self.file.seek(SeekFrom::Start(0))?;
            self.offset = 0;
        }
        self.file.write_all(piece)?;
        self.file.sync_data()?;
        self.offset += bytes;
        Ok(())
    }
}

impl Drop for PreallocatedFile<'_> {
    fn drop(&mut self) {
        // If this fails, the file is removed with its directory.
        let _ = fs::remove_file(self.dir.join(FILE_NAME));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_found_by_its_device() {
        let line = "29 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard";
        let disk = parse_mount(line, "254:0").unwrap();
        assert_eq!((disk.mount.as_str(), disk.file_system.as_str()), ("/", "ext4"));
        assert_eq!(disk.source, "/dev/vda");
        assert_eq!(parse_mount(line, "254:1"), None);
    }

    #[test]
    fn tmpfs_is_rejected() {
        let shm = Path::new("/dev/shm");
        if shm.is_dir() {
            assert!(check_not_in_memory(shm).is_err());
        }
        assert!(Disk::of(Path::new("/")).is_ok());
    }
}

//! Up to where a broker's own logs hold the shared log, in a file beside them.
//!
//! ```text
//!   <data>/cluster:
//!     tidings cluster 1
//!     community 0f6e..
//!     slot=91203 epoch=9 number=6 left=0 chain=5d2c.. moment=1200 frames=0
//!     checksum 5d2c0b7e
//! ```
//!
//! The file is written after the logs are synced. So the logs hold at least what it says, and a restart
//! applies the shared log from there on.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use tidings_log::{
    Disk, LogError, TopicLog, before_checksum, read_file, replace_file, with_checksum,
};
use tidings_protocol::{field, field_number};

use crate::message::{Chain, CommunityId, Slot};
use crate::mutants::{self, Mutant};
use crate::validity::Position;

const FILE: &str = "cluster";

/// The first line: the kind of file and the version of its format.
const FIRST_LINE: &str = "tidings cluster 1";

const BYTES_MAX: u64 = 4 << 10;

/// How much of the shared log is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Applied {
    /// Behind a message with which commits end. All of them are applied.
    pub position: Position,
    /// How many frames of the commits after it are applied, too.
    pub frames: u64,
}

impl Applied {
    fn order(&self) -> (Slot, u64) {
        (self.position.slot, self.frames)
    }
}

/// The file of a data directory.
#[derive(Debug)]
pub(crate) struct CheckpointFile {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    community: CommunityId,
    /// What it says. Locked while it is written.
    written: Mutex<Applied>,
}

impl CheckpointFile {
    /// Opens the file. Without one, nothing is applied.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        dir: PathBuf,
        community: CommunityId,
    ) -> io::Result<(Self, Applied)> {
        let path = dir.join(FILE);
        let applied = match read_file(&*disk, &path, BYTES_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Applied::default()),
            bytes => bytes.map_err(|error| error.to_string()).and_then(|it| decode(&it, community)),
        };
        let applied = applied
            .map_err(|problem| io::Error::other(format!("{}: {problem}", path.display())))?;
        Ok((Self { disk, dir, community, written: Mutex::new(applied) }, applied))
    }
}

/// A checkpoint that is not written yet.
#[derive(Debug)]
#[must_use]
pub struct Checkpoint {
    pub(crate) file: Arc<CheckpointFile>,
    pub(crate) applied: Applied,
    /// What has changed since the one before.
    pub(crate) logs: Vec<Arc<dyn TopicLog>>,
}

impl Checkpoint {
    /// What is in the copy once it is written.
    pub fn slot(&self) -> Slot {
        self.applied.position.slot
    }

    /// Syncs the logs, and then writes the file. Frames may be applied meanwhile. Blocks.
    pub fn write(self) -> Result<(), CheckpointError> {
        let mut logs = self.logs;
        if mutants::is(Mutant::CheckpointBeforeSync) {
            logs.clear();
        }
        for log in logs {
            log.sync()?;
        }
        let written = &mut *self.file.written.lock();
        // A later one may have been written while this one waited for the disk.
        if self.applied.order() > written.order() {
            let text = encode(&self.applied, self.file.community);
            replace_file(&*self.file.disk, &self.file.dir, FILE, text.as_bytes())?;
            *written = self.applied;
        }
        Ok(())
    }
}

/// Why a checkpoint was not written.
#[derive(Debug, thiserror::Error)]
#[error("cannot record how much of the shared log is applied: {0}")]
pub enum CheckpointError {
    /// A log could not be synced.
    Log(#[from] LogError),
    /// The file could not be written.
    File(#[from] io::Error),
}

fn encode(applied: &Applied, community: CommunityId) -> String {
    let Applied { position, frames } = applied;
    let Position { slot, epoch, number, is_left, chain, moment } = position;
    with_checksum(format!(
        "{FIRST_LINE}\ncommunity {community}\nslot={} epoch={} number={number} left={} chain={:016x} \
         moment={moment} frames={frames}\n",
        slot.0,
        epoch.0,
        u8::from(*is_left),
        chain.0,
    ))
}

fn decode(bytes: &[u8], community: CommunityId) -> Result<Applied, String> {
    let mut lines = before_checksum(bytes)?.lines();
    if lines.next() != Some(FIRST_LINE) {
        return Err("it has a format version that this program cannot read".to_owned());
    }
    if lines.next() != Some(&format!("community {community}")) {
        return Err("the data is of another community".to_owned());
    }
    let applied = |line: &str| {
        let position = Position {
            slot: Slot(field_number(line, "slot")?),
            epoch: Slot(field_number(line, "epoch")?),
            number: field_number(line, "number")?,
            is_left: field_number(line, "left")? == 1,
            chain: Chain(u64::from_str_radix(field(line, "chain")?, 16).ok()?),
            moment: field_number(line, "moment")?,
        };
        Some(Applied { position, frames: field_number(line, "frames")? })
    };
    lines.next().and_then(applied).ok_or_else(|| "it holds an invalid line".to_owned())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tidings_log::SimulatedDisk;

    use super::*;

    const COMMUNITY: CommunityId = CommunityId([0x0f; 16]);

    fn applied(slot: u64, frames: u64) -> Applied {
        let position = Position {
            slot: Slot(slot),
            epoch: Slot(2),
            number: 3,
            is_left: true,
            chain: Chain(u64::MAX - 1),
            moment: 5,
        };
        Applied { position, frames }
    }

    #[test]
    fn an_older_checkpoint_replaces_no_newer_one() {
        let disk: Arc<dyn Disk> = Arc::new(SimulatedDisk::new(1));
        let open = || {
            CheckpointFile::open(Arc::clone(&disk), Path::new("").to_owned(), COMMUNITY).unwrap()
        };
        let (file, found) = open();
        assert_eq!(found, Applied::default());
        let file = Arc::new(file);
        for (slot, frames) in [(7, 2), (7, 1), (6, 9)] {
            let file = Arc::clone(&file);
            let point = Checkpoint { file, applied: applied(slot, frames), logs: Vec::new() };
            point.write().unwrap();
        }
        assert_eq!(open().1, applied(7, 2));
    }

    #[test]
    fn what_is_damaged_or_of_another_community_is_an_error() {
        let whole = encode(&applied(7, 2), COMMUNITY);
        assert_eq!(decode(whole.as_bytes(), COMMUNITY), Ok(applied(7, 2)));
        let other = decode(whole.as_bytes(), CommunityId([1; 16])).unwrap_err();
        assert_eq!(other, "the data is of another community");
        for at in 0..whole.len() {
            let mut changed = whole.clone().into_bytes();
            changed[at] ^= 1;
            decode(&changed, COMMUNITY).unwrap_err();
            decode(&whole.as_bytes()[..at], COMMUNITY).unwrap_err();
        }
    }
}

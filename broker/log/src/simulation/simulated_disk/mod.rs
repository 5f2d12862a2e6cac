//! A simulated disk in memory. It loses, tears and reorders unsynced writes as its seed decides.
//!
//! The *live* state is what the running system sees; the *safe* state survives a power cut. Each
//! change is live at once. At a power cut, a random subset of the unsynced changes becomes safe,
//! whole or torn. After a failed sync the same happens, and the system does not try those changes
//! again.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, IoSlice};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use fastrand::Rng;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::disk::{Disk, DiskFile, DiskSpace};

const SECTOR: usize = 512;
const ROOT: usize = 0;

/// A simulated disk. Clones are handles of the same disk.
#[derive(Debug, Clone)]
pub struct SimulatedDisk(Arc<SimulatedDiskShared>);

#[derive(Debug)]
struct SimulatedDiskShared {
    state: Mutex<SimulatedDiskState>,
    /// Notified when stalled syncs may continue.
    released: Condvar,
}

#[derive(Debug, Clone)]
struct SimulatedDiskState {
    rng: Rng,
    nodes: Vec<Node>,
    /// Number of restarts. A file that was opened before the last one is unusable.
    boots: u64,
    room: u64,
    faults: DiskFaults,
    /// Syncs of files in this directory wait.
    stalled_dir: Option<PathBuf>,
}

/// Planned faults. Each count is the number of calls of that kind that still succeed. Then one call
/// fails; after `power_off_after`, all calls fail.
#[derive(Debug, Clone, Copy, Default)]
pub struct DiskFaults {
    /// Changes until the power or the process is gone.
    pub power_off_after: Option<u64>,
    /// Syncs of files and directories until one fails.
    pub fail_sync_after: Option<u64>,
    /// Reads until one fails.
    pub fail_read_after: Option<u64>,
    /// [`Disk::space`] reports more room than there is, as if other programs were writing, too.
    pub hides_full: bool,
    /// Space cannot be allocated ahead.
    pub no_allocate: bool,
}

#[derive(Debug, Clone)]
enum Node {
    File(Layers<Vec<u8>, FileChange>),
    Dir(Layers<Entries, DirChange>),
}

/// What the system sees, what survives, and the changes between the two.
#[derive(Debug, Clone)]
struct Layers<T, C> {
    live: T,
    safe: T,
    unsynced: Vec<C>,
}

/// The node of each name.
type Entries = BTreeMap<String, usize>;

#[derive(Debug, Clone)]
enum FileChange {
    Write { offset: usize, bytes: Vec<u8> },
    Length(usize),
}

#[derive(Debug, Clone)]
enum DirChange {
    Add(String, usize),
    Rename(String, String, usize),
    Remove(String),
}

impl SimulatedDisk {
    /// An empty disk with practically unlimited room.
    pub fn new(seed: u64) -> Self {
        Self::with(SimulatedDiskState {
            rng: Rng::with_seed(seed),
            nodes: vec![Node::Dir(Layers::new())],
            boots: 0,
            room: 1 << 40,
            faults: DiskFaults::default(),
            stalled_dir: None,
        })
    }

    /// A copy with the same content and the same random future.
    #[must_use]
    pub fn copy(&self) -> Self {
        Self::with(self.0.state.lock().clone())
    }

    fn with(state: SimulatedDiskState) -> Self {
        Self(Arc::new(SimulatedDiskShared { state: Mutex::new(state), released: Condvar::new() }))
    }

    /// Makes syncs of the files in a directory wait, as on a slow disk, until `resume_syncs`.
    pub fn stall_syncs(&self, dir: &Path) {
        self.0.state.lock().stalled_dir = Some(dir.to_owned());
    }

    /// Lets waiting syncs continue.
    pub fn resume_syncs(&self) {
        self.0.state.lock().stalled_dir = None;
        self.0.released.notify_all();
    }

    /// Limits the bytes of all files together.
    pub fn set_room(&self, bytes: u64) {
        self.0.state.lock().room = bytes;
    }

    /// Bytes of all files together.
    pub fn used(&self) -> u64 {
        self.0.state.lock().used()
    }

    /// Sets the planned faults.
    pub fn set_faults(&self, faults: DiskFaults) {
        self.0.state.lock().faults = faults;
    }

    /// Cuts the power and turns it on again. Clears the faults.
    pub fn cut_power(&self) {
        let state = &mut *self.0.state.lock();
        state.restart();
        // Percentage of unsynced changes that survive: none, about half, nearly all, all.
        let survives = [0, 50, 90, 100][state.rng.usize(..4)];
        for node in &mut state.nodes {
            node.settle(&mut state.rng, survives);
            match node {
                Node::File(file) => file.live.clone_from(&file.safe),
                Node::Dir(dir) => dir.live.clone_from(&dir.safe),
            }
        }
    }

    /// Kills the process and starts another one; the system keeps running. Clears the faults.
    pub fn kill(&self) {
        self.0.state.lock().restart();
    }

    /// Every file with its live content, sorted by path.
    pub fn files(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let state = self.0.state.lock();
        let (mut files, mut dirs) = (Vec::new(), vec![(PathBuf::new(), ROOT)]);
        while let Some((path, dir)) = dirs.pop() {
            for (name, node) in state.entries(dir).expect("the node is a directory") {
                match &state.nodes[*node] {
                    Node::File(file) => files.push((path.join(name), file.live.clone())),
                    Node::Dir(_) => dirs.push((path.join(name), *node)),
                }
            }
        }
        files.sort();
        files
    }

    /// Changes a file permanently, without any handle.
    #[track_caller]
    pub fn damage(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        let state = &mut *self.0.state.lock();
        let node = state.find(path).expect("the file exists");
        let file = state.file(node).expect("the node is a file");
        change(&mut file.live);
        file.safe.clone_from(&file.live);
        file.unsynced.clear();
    }
}

impl SimulatedDiskState {
    fn restart(&mut self) {
        self.boots += 1;
        // No process has the files without a name open any more.
        let have_names = self.have_names();
        for (node, _) in self.nodes.iter_mut().zip(have_names).filter(|(_, has_name)| !has_name) {
            *node = Node::File(Layers::new());
        }
        self.faults = DiskFaults { no_allocate: self.faults.no_allocate, ..DiskFaults::default() };
    }

    fn used(&self) -> u64 {
        let length = |(node, has_name): (&Node, bool)| match node {
            Node::File(file) if has_name => file.live.len() as u64,
            _ => 0,
        };
        self.nodes.iter().zip(self.have_names()).map(length).sum()
    }

    fn free(&self) -> u64 {
        self.room.saturating_sub(self.used())
    }

    /// For each node, whether it has a name or may have one after a power cut.
    fn have_names(&self) -> Vec<bool> {
        let (mut reached, mut queue) = (vec![false; self.nodes.len()], vec![ROOT]);
        while let Some(node) = queue.pop() {
            reached[node] = true;
            if let Node::Dir(dir) = &self.nodes[node] {
                queue.extend(dir.live.values().chain(dir.safe.values()));
                queue.extend(dir.unsynced.iter().filter_map(|naming| match naming {
                    DirChange::Add(_, node) | DirChange::Rename(_, _, node) => Some(*node),
                    DirChange::Remove(_) => None,
                }));
            }
        }
        reached
    }

    /// Counts a change. The last change before the power goes is done only in part: it returns
    /// false.
    fn change(&mut self) -> io::Result<bool> {
        match &mut self.faults.power_off_after {
            None => Ok(true),
            Some(0) => Err(io::Error::other("the power is off")),
            Some(left) => {
                *left -= 1;
                Ok(*left > 0)
            }
        }
    }

    fn file(&mut self, node: usize) -> io::Result<&mut Layers<Vec<u8>, FileChange>> {
        match &mut self.nodes[node] {
            Node::File(file) => Ok(file),
            Node::Dir(_) => Err(ErrorKind::IsADirectory.into()),
        }
    }

    fn entries(&self, node: usize) -> io::Result<&Entries> {
        match &self.nodes[node] {
            Node::File(_) => Err(ErrorKind::NotADirectory.into()),
            Node::Dir(dir) => Ok(&dir.live),
        }
    }

    fn find(&self, path: &Path) -> io::Result<usize> {
        let mut node = ROOT;
        for name in names(path) {
            node = *self.entries(node)?.get(&name).ok_or(ErrorKind::NotFound)?;
        }
        Ok(node)
    }

    /// The directory of a file, and the file's name.
    fn parent(&self, path: &Path) -> io::Result<(usize, String)> {
        let name = names(path).pop().ok_or(ErrorKind::InvalidInput)?;
        Ok((self.find(path.parent().unwrap_or(Path::new("")))?, name))
    }

    fn add(&mut self, dir: usize, name: String, node: Node) -> usize {
        let at = self.nodes.len();
        self.nodes.push(node);
        self.name(dir, DirChange::Add(name, at));
        at
    }

    fn name(&mut self, dir: usize, naming: DirChange) {
        let Node::Dir(dir) = &mut self.nodes[dir] else { panic!("only a directory holds names") };
        naming.apply(&mut dir.live);
        dir.unsynced.push(naming);
    }

    fn resize(&mut self, node: usize, length: usize) -> io::Result<()> {
        let file = self.file(node)?;
        file.live.resize(length, 0);
        file.unsynced.push(FileChange::Length(length));
        Ok(())
    }

    fn sync(&mut self, node: usize) -> io::Result<()> {
        if !self.change()? {
            return Err(io::Error::other("the power went"));
        }
        if is_due(&mut self.faults.fail_sync_after) {
            // Names are in a journal, which is either written on or stopped as a whole.
            if let node @ Node::File(_) = &mut self.nodes[node] {
                node.settle(&mut self.rng, 50);
            }
            let kinds = [ErrorKind::Other, ErrorKind::StorageFull];
            return Err(kinds[self.rng.usize(..kinds.len())].into());
        }
        // Changes that an earlier failed sync has dropped are not written now.
        self.nodes[node].settle(&mut self.rng, 100);
        Ok(())
    }
}

/// Counts down; true once, at zero.
fn is_due(count: &mut Option<u64>) -> bool {
    match count {
        Some(0) => {
            *count = None;
            true
        }
        Some(left) => {
            *left -= 1;
            false
        }
        None => false,
    }
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("an offset is a usize here")
}

fn names(path: &Path) -> Vec<String> {
    path.components()
        .filter_map(|component| match component {
            Component::Normal(name) => Some(name.to_string_lossy().into_owned()),
            _ => None,
        })
        .collect()
}

impl<T: Default, C> Layers<T, C> {
    fn new() -> Self {
        Self { live: T::default(), safe: T::default(), unsynced: Vec::new() }
    }
}

impl Node {
    /// Makes each unsynced change safe or drops it, some of them in part.
    fn settle(&mut self, rng: &mut Rng, survives_percent: u32) {
        match self {
            Self::File(file) => {
                for change in file.unsynced.drain(..) {
                    if rng.u32(..100) < survives_percent {
                        change.apply(&mut file.safe);
                    } else {
                        change.tear(&mut file.safe, rng);
                    }
                }
            }
            Self::Dir(dir) => {
                for naming in dir.unsynced.drain(..) {
                    if rng.u32(..100) < survives_percent {
                        naming.apply(&mut dir.safe);
                    }
                }
            }
        }
    }
}

impl FileChange {
    fn apply(&self, file: &mut Vec<u8>) {
        match self {
            Self::Write { offset, bytes } => write(file, *offset, bytes),
            Self::Length(length) => file.resize(*length, 0),
        }
    }

    /// Applies only part of a change.
    fn tear(self, file: &mut Vec<u8>, rng: &mut Rng) {
        let Self::Write { offset, mut bytes } = self else { return };
        let end = offset + bytes.len();
        match rng.u32(..4) {
            0 => {}
            1 => {
                bytes.truncate(rng.usize(..=bytes.len()));
                write(file, offset, &bytes);
            }
            2 => {
                // Single sectors, with zeros where the file was shorter.
                let mut at = offset;
                while at < end {
                    let next = (at / SECTOR + 1) * SECTOR;
                    let part = &bytes[at - offset..next.min(end) - offset];
                    if rng.bool() {
                        write(file, at, part);
                    }
                    at = next;
                }
            }
            _ => file.resize(file.len().max(end), 0),
        }
    }
}

fn write(file: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    file.resize(file.len().max(offset + bytes.len()), 0);
    file[offset..offset + bytes.len()].copy_from_slice(bytes);
}

impl DirChange {
    fn apply(&self, entries: &mut Entries) {
        match self {
            Self::Add(name, node) => {
                entries.insert(name.clone(), *node);
            }
            Self::Rename(from, to, node) => {
                if entries.get(from) == Some(node) {
                    entries.remove(from);
                }
                entries.insert(to.clone(), *node);
            }
            Self::Remove(name) => {
                entries.remove(name);
            }
        }
    }
}

impl SimulatedDisk {
    fn handle(&self, path: &Path, node: usize, boots: u64) -> Arc<dyn DiskFile> {
        Arc::new(SimulatedFile { disk: self.clone(), path: path.to_owned(), node, boots })
    }
}

impl Disk for SimulatedDisk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        let state = &mut *self.0.state.lock();
        state.change()?;
        let mut at = ROOT;
        for name in names(dir) {
            at = match state.entries(at)?.get(&name) {
                Some(node) => *node,
                None => state.add(at, name, Node::Dir(Layers::new())),
            };
        }
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let state = &mut *self.0.state.lock();
        let node = state.find(dir)?;
        let mut names: Vec<_> = state.entries(node)?.keys().cloned().collect();
        state.rng.shuffle(&mut names);
        Ok(names)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let state = &mut *self.0.state.lock();
        state.change()?;
        let (dir, name) = state.parent(path)?;
        let node = match state.find(path) {
            Ok(node) => {
                state.resize(node, 0)?;
                node
            }
            Err(_) => state.add(dir, name, Node::File(Layers::new())),
        };
        Ok(self.handle(path, node, state.boots))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let state = self.0.state.lock();
        let node = state.find(path)?;
        Ok(self.handle(path, node, state.boots))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let state = &mut *self.0.state.lock();
        state.change()?;
        let node = state.find(from)?;
        let ((dir, from), (other, to)) = (state.parent(from)?, state.parent(to)?);
        assert_eq!(dir, other, "files stay in their directory");
        state.name(dir, DirChange::Rename(from, to, node));
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let state = &mut *self.0.state.lock();
        state.change()?;
        state.find(path)?;
        let (dir, name) = state.parent(path)?;
        state.name(dir, DirChange::Remove(name));
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let state = &mut *self.0.state.lock();
        let node = state.find(dir)?;
        state.sync(node)
    }

    fn space(&self, _dir: &Path) -> io::Result<DiskSpace> {
        let state = self.0.state.lock();
        let free = if state.faults.hides_full { state.room } else { state.free() };
        Ok(DiskSpace { free, total: state.room })
    }
}

#[derive(Debug)]
struct SimulatedFile {
    disk: SimulatedDisk,
    /// The path at which it was opened.
    path: PathBuf,
    node: usize,
    boots: u64,
}

impl SimulatedFile {
    fn state(&self) -> io::Result<MutexGuard<'_, SimulatedDiskState>> {
        let state = self.disk.0.state.lock();
        if state.boots == self.boots { Ok(state) } else { Err(io::Error::other("not open")) }
    }
}

impl DiskFile for SimulatedFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state()?.file(self.node)?.live.len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut state = self.state()?;
        if is_due(&mut state.faults.fail_read_after) {
            return Err(io::Error::other("the disk cannot read that"));
        }
        let live = &state.file(self.node)?.live;
        let rest = live.get(index(offset)..).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn write_at(&self, pieces: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        let mut state = self.state()?;
        let goes_on = state.change()?;
        let mut bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.iter().copied()).collect();
        let offset = index(offset);
        let mut result = Ok(());
        if !goes_on {
            bytes.truncate(state.rng.usize(..=bytes.len()));
            result = Err(io::Error::other("the power went"));
        }
        let free = index(state.free());
        let file = state.file(self.node)?;
        let fits = file.live.len() + free;
        if offset + bytes.len() > fits {
            bytes.truncate(fits.saturating_sub(offset));
            result = Err(ErrorKind::StorageFull.into());
        }
        if !bytes.is_empty() {
            write(&mut file.live, offset, &bytes);
            file.unsynced.push(FileChange::Write { offset, bytes });
        }
        result
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.state()?;
        while state.stalled_dir.as_ref().is_some_and(|dir| self.path.starts_with(dir)) {
            self.disk.0.released.wait(&mut state);
        }
        drop(state);
        // The power may have gone while the sync waited.
        self.state()?.sync(self.node)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let mut state = self.state()?;
        state.change()?;
        state.resize(self.node, index(length))
    }

    fn allocate(&self, offset: u64, length: u64) -> io::Result<()> {
        let mut state = self.state()?;
        state.change()?;
        let now = state.file(self.node)?.live.len() as u64;
        if state.faults.no_allocate || offset + length <= now {
            return Ok(());
        }
        if offset + length - now > state.free() {
            return Err(ErrorKind::StorageFull.into());
        }
        state.resize(self.node, index(offset + length))
    }
}

#[cfg(test)]
mod tests;

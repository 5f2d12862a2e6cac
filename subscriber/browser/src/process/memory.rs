//! The processes below one process, and their memory, from `/proc`.

use std::collections::HashMap;
use std::fs;

/// The memory of a browser.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Memory {
    /// The sum over its processes, in bytes. Shared memory counts for each process that uses it.
    pub(super) bytes: u64,
    /// Its renderers, with their bytes. Each runs the scripts of one site of one page.
    pub(super) renderers: Vec<(u32, u64)>,
}

/// Measures the processes below this one.
pub(super) fn measure(pid: u32) -> Memory {
    let mut memory = Memory::default();
    for pid in descendants(pid) {
        let bytes = bytes_of(pid).unwrap_or(0);
        memory.bytes += bytes;
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if command.split(|byte| *byte == 0 || *byte == b' ').any(|word| word == b"--type=renderer")
        {
            memory.renderers.push((pid, bytes));
        }
    }
    memory
}

/// The children of a process.
pub(super) fn children(pid: u32) -> Vec<u32> {
    by_parent().remove(&pid).unwrap_or_default()
}

/// All processes below this one.
pub(super) fn descendants(pid: u32) -> Vec<u32> {
    let mut children = by_parent();
    let mut found = children.remove(&pid).unwrap_or_default();
    let mut next = 0;
    while let Some(pid) = found.get(next) {
        found.extend(children.remove(pid).unwrap_or_default());
        next += 1;
    }
    found
}

fn by_parent() -> HashMap<u32, Vec<u32>> {
    let mut children = HashMap::<u32, Vec<u32>>::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if let Some(parent) = parent_of(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    children
}

fn parent_of(pid: u32) -> Option<u32> {
    // The second field is the program's name in parentheses, which may contain any character.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// The memory that no file backs. The proportional set size would be more exact, but the kernel
/// walks page tables for it: at two measurements a second, that took a tenth of the processor time
/// of small pages, and it is refused for renderers unless the crawler is root.
fn bytes_of(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
    };
    Some(field("RssAnon:")? + field("RssShmem:")?)
}

#[cfg(test)]
mod tests {
    use std::process::{self, Command};

    use super::*;

    #[test]
    fn processes_below_this_one_are_found_and_measured() {
        let mut child = Command::new("sh").args(["-c", "sleep 100; exit 1"]).spawn().unwrap();
        while descendants(child.id()).is_empty() {
            std::thread::yield_now();
        }
        let sleeper = descendants(child.id());
        let all = descendants(process::id());
        let memory = measure(process::id());
        for pid in [child.id(), sleeper[0]] {
            assert!(all.contains(&pid), "{pid} is not in {all:?}");
        }
        assert!(memory.bytes > 4096 && memory.renderers.is_empty(), "{memory:?}");
        child.kill().unwrap();
        Command::new("kill").arg(sleeper[0].to_string()).status().unwrap();
        child.wait().unwrap();
    }
}

//! Tests of the simulated disk.

use std::collections::BTreeSet;
use std::io::{ErrorKind, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::disk::{Disk, DiskFile};
use crate::simulation::{DiskFaults, SimulatedDisk};

fn put(disk: &SimulatedDisk, name: &str, bytes: &[u8]) -> Arc<dyn DiskFile> {
    let file = disk.create(Path::new(name)).unwrap();
    file.write_at(&mut [IoSlice::new(bytes)], 0).unwrap();
    file
}

#[test]
fn synced_data_survives_and_other_data_may_not() {
    let mut seen = BTreeSet::new();
    for seed in 0..2000 {
        let disk = SimulatedDisk::new(seed);
        disk.create_dir(Path::new("d")).unwrap();
        let file = put(&disk, "d/a", b"safe");
        file.sync_data().unwrap();
        disk.sync_dir(Path::new("d")).unwrap();
        disk.sync_dir(Path::new("")).unwrap();
        file.write_at(&mut [IoSlice::new(b"one"), IoSlice::new(b"two")], 4).unwrap();
        file.set_len(12).unwrap();
        disk.rename(Path::new("d/a"), Path::new("d/b")).unwrap();
        disk.cut_power();
        let files = disk.files();
        assert_eq!(files.len(), 1);
        assert!(files[0].1.starts_with(b"safe"));
        seen.insert(files);
        assert!(file.len().is_err(), "the file was opened before the power cut");
    }
    let (a, b) = (PathBuf::from("d/a"), PathBuf::from("d/b"));
    for content in [&b"safe"[..], b"safeonetwo", b"safeo", b"safe\0\0\0\0\0\0\0\0"] {
        assert!(seen.contains(&vec![(a.clone(), content.to_vec())]), "{content:?}");
        assert!(seen.contains(&vec![(b.clone(), content.to_vec())]), "{content:?}");
    }
}

#[test]
fn data_of_a_failed_sync_is_visible_until_the_power_cut() {
    let mut survived = 0;
    for seed in 0..100 {
        let disk = SimulatedDisk::new(seed);
        let file = put(&disk, "a", b"abc");
        disk.sync_dir(Path::new("")).unwrap();
        disk.set_faults(DiskFaults { fail_sync_after: Some(0), ..DiskFaults::default() });
        file.sync_data().unwrap_err();
        file.sync_data().unwrap();
        assert_eq!(disk.files()[0].1, b"abc");
        disk.cut_power();
        survived += u32::from(disk.files()[0].1 == b"abc");
    }
    assert!((10..90).contains(&survived), "{survived}");
}

#[test]
fn a_full_disk_writes_what_fits() {
    let disk = SimulatedDisk::new(1);
    disk.set_room(5);
    let file = put(&disk, "a", b"abc");
    let error = file.write_at(&mut [IoSlice::new(b"defg")], 3).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    assert_eq!(disk.files()[0].1, b"abcde");
    assert_eq!(file.allocate(5, 1).unwrap_err().kind(), ErrorKind::StorageFull);
    file.write_at(&mut [IoSlice::new(b"x")], 0).unwrap();
    file.set_len(2).unwrap();
    assert_eq!(disk.used(), 2);
}

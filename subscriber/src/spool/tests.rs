use std::sync::mpsc::channel;

use super::*;
use crate::store_error::Troubles;

fn text(spool: &Spool) -> Vec<u8> {
    let mut text = Vec::new();
    spool.read().unwrap().read_to_end(&mut text).unwrap();
    text
}

/// The number of body files in a spool directory, after the thread has served its queue.
async fn files(spools: &Spools, directory: &Path) -> usize {
    let mut last = spools.begin();
    let path = last.path().await.unwrap().to_owned();
    assert!(path.starts_with(directory));
    fs::read_dir(path.parent().unwrap()).unwrap().count() - 1
}

#[tokio::test]
async fn a_small_body_is_in_memory_and_a_large_one_in_a_file_until_it_is_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let spools = Spools::open(directory.path()).unwrap();
    let taken = || spools.0.bytes.load(Ordering::Relaxed);
    let mut spool = spools.begin();
    spool.write(b"small").await.unwrap();
    assert_eq!((text(&spool), taken()), (b"small".to_vec(), 5));
    assert_eq!(files(&spools, directory.path()).await, 0);
    let rest = vec![7; SPOOL_BYTES_MAX];
    spool.write(&rest).await.unwrap();
    assert_eq!((text(&spool), taken()), ([&b"small"[..], &rest].concat(), 0));
    assert_eq!(files(&spools, directory.path()).await, 1);
    // It is appended in pieces.
    spool.write(b"more").await.unwrap();
    assert_eq!((spool.len(), taken()), (9 + SPOOL_BYTES_MAX as u64, 4));
    assert_eq!(text(&spool), [&b"small"[..], &rest, b"more"].concat());
    spool.path().await.unwrap();
    assert_eq!(fs::read(spool.file().unwrap()).unwrap(), text(&spool));
    drop(spool);
    assert_eq!((files(&spools, directory.path()).await, taken()), (0, 0));
}

#[tokio::test]
async fn many_bodies_share_the_memory() {
    let directory = tempfile::tempdir().unwrap();
    let spools = Spools::open(directory.path()).unwrap();
    let body = vec![1; SPOOL_BYTES_MAX];
    let mut bodies = Vec::new();
    for _ in 0..SPOOLS_BYTES_MAX / SPOOL_BYTES_MAX + 3 {
        bodies.push(spools.begin());
        bodies.last_mut().unwrap().write(&body).await.unwrap();
    }
    assert_eq!(bodies.iter().filter(|spool| spool.file.is_some()).count(), 3);
    assert!(bodies.iter().all(|spool| text(spool) == body));
    drop(bodies);
    assert_eq!(spools.0.bytes.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_body_is_moved_to_a_file_on_request() {
    let directory = tempfile::tempdir().unwrap();
    let spools = Spools::open(directory.path()).unwrap();
    let mut spool = spools.begin();
    spool.write(b"a page").await.unwrap();
    assert_eq!(fs::read(spool.path().await.unwrap()).unwrap(), b"a page");
    spool.write(b"!").await.unwrap();
    assert_eq!(text(&spool), b"a page!");
    assert_eq!(fs::read(spool.path().await.unwrap()).unwrap(), b"a page!");
    let mut empty = spools.begin();
    assert_eq!(fs::read(empty.path().await.unwrap()).unwrap(), b"");
}

#[tokio::test]
async fn a_stalled_disk_delays_only_the_bodies_on_it() {
    let directory = tempfile::tempdir().unwrap();
    let spools = Spools::open(directory.path()).unwrap();
    let [mut first, mut second, mut other] = [(); 3].map(|()| spools.begin());
    let (go_on, until) = channel();
    spools.0.jobs.send(SpoolCommand::Wait(until)).unwrap();
    for spool in [&mut first, &mut second] {
        assert!(spool.try_append(b"a page"));
    }
    let mut writing = Box::pin(first.path());
    assert!(futures_util::poll!(&mut writing).is_pending());
    {
        let mut given_up = Box::pin(second.path());
        assert!(futures_util::poll!(&mut given_up).is_pending());
    }
    drop(second);
    assert!(other.try_append(b"another"));
    go_on.send(()).unwrap();
    assert_eq!(fs::read(writing.await.unwrap()).unwrap(), b"a page");
    // Nothing is left of the cancelled body.
    assert_eq!(files(&spools, directory.path()).await, 1);
    assert_eq!(spools.0.bytes.load(Ordering::Relaxed), b"another".len());
}

#[tokio::test]
async fn a_failing_disk_is_trouble_until_a_write_succeeds() {
    let directory = tempfile::tempdir().unwrap();
    let troubles = Troubles::default();
    let spools =
        Spools::with_trouble_reporter(directory.path(), Some(troubles.reporter())).unwrap();
    let mut first = spools.begin();
    first.write(b"a page").await.unwrap();
    let path = first.path().await.unwrap().to_owned();
    drop(first);
    assert_eq!(files(&spools, directory.path()).await, 0);
    // Acts like a full disk.
    let own = path.parent().unwrap();
    fs::rename(own, own.with_extension("away")).unwrap();
    for _ in 0..2 {
        let mut spool = spools.begin();
        let error = spool.write(&vec![1; 3 * SPOOL_BYTES_MAX]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(troubles.change(false).await.unwrap().text.contains("No such file"));
    }
    // A body in memory needs no disk.
    let mut small = spools.begin();
    small.write(b"small").await.unwrap();
    fs::create_dir(own).unwrap();
    assert_eq!(troubles.change(true).await, None);
    small.path().await.unwrap();
    assert_eq!(files(&spools, directory.path()).await, 1);
}

#[tokio::test]
async fn only_files_of_ended_processes_are_removed() {
    let directory = tempfile::tempdir().unwrap();
    let count = || fs::read_dir(directory.path()).unwrap().count();
    let (ended, living) = (Spools::open(directory.path()), Spools::open(directory.path()));
    let mut body = living.as_ref().unwrap().begin();
    body.write(b"a page").await.unwrap();
    body.path().await.unwrap();
    let mut left = ended.unwrap().begin();
    left.write(b"left").await.unwrap();
    left.path().await.unwrap();
    // As a killed process leaves it.
    mem::forget(left.file.take());
    drop(left);
    assert_eq!(count(), 5);
    let _next = Spools::open(directory.path()).unwrap();
    assert_eq!(count(), 5);
    assert_eq!(text(&body), b"a page");
}

#[test]
fn files_of_other_programs_are_left_alone() {
    let outside = tempfile::tempdir().unwrap();
    let directory = outside.path().join("spools");
    let names = ["...lock", "..lock", "x.lock", "0123ABCD.lock", "0123456.lock", "0123456.", "a"];
    fs::create_dir(&directory).unwrap();
    for name in names {
        fs::write(directory.join(name), "").unwrap();
    }
    fs::create_dir(directory.join("x")).unwrap();
    let _spools = Spools::open(&directory).unwrap();
    for name in names.iter().chain(&["x", "lock"]) {
        assert!(directory.join(name).exists(), "{name}");
    }
}

#[tokio::test]
async fn a_kept_file_appears_complete_and_a_failure_is_trouble() {
    let directory = tempfile::tempdir().unwrap();
    let troubles = Troubles::default();
    let spool = directory.path().join("spool");
    let spools = Spools::with_trouble_reporter(&spool, Some(troubles.reporter())).unwrap();
    let path = directory.path().join("kept/file");
    spools.keep(b"content".to_vec(), path.clone()).await.unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"content");
    // The name stands for the content.
    spools.keep(b"other".to_vec(), path.clone()).await.unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"content");
    assert_eq!((files(&spools, &spool).await, troubles.first()), (0, None));
    // A folder cannot be made where a file is.
    let error = spools.keep(b"content".to_vec(), path.join("below")).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotADirectory);
    assert!(troubles.first().is_some());
    assert_eq!(files(&spools, &spool).await, 0);
}

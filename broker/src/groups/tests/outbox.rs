//! The order of announcements, and topics that fail or are slow.

use super::*;
use crate::groups::outbox::AnnouncementOutbox;

#[test]
fn topic_that_fails_holds_back_only_its_own_announcements() {
    let limits = Limits { topics_max: 4, ..Limits::default() };
    let topics = Arc::new(Topics::in_memory(&limits, Clock::new()));
    let mut outbox = AnnouncementOutbox::new(Arc::clone(&topics), Arc::new(Notify::new()));
    for (serial, topic) in [(1, "one-too-many"), (2, "job-done"), (3, "one-too-many")] {
        outbox.push(serial, topic, format!("event {serial}").into());
    }
    outbox.push(4, "job-done", "event 4".into());
    for expected in [&[(2, Seq(1)), (4, Seq(2))][..], &[]] {
        let mut sent = Vec::new();
        let advanced = outbox.advance(|serial, topic, seq| {
            assert_eq!(topic, "job-done");
            sent.push((serial, seq));
        });
        assert_eq!(advanced.unwrap_err().code, Code::Limit);
        assert_eq!(sent, expected);
    }
}

/// Advances the outbox until `count` announcements are safe. Returns their serials, sorted.
async fn advance_until(outbox: &mut AnnouncementOutbox, wake: &Notify, count: usize) -> Vec<u64> {
    let mut sent = Vec::new();
    let advancing = async {
        loop {
            outbox.advance(|serial, _, _| sent.push(serial)).unwrap();
            if sent.len() >= count {
                break;
            }
            wake.notified().await;
        }
    };
    assert!(completes_within(TEST_LIMIT, advancing).await, "not all are safe");
    sent.sort_unstable();
    sent
}

#[tokio::test]
async fn end_of_a_job_waits_until_the_outcomes_of_its_pages_are_safe() {
    let disk = SimulatedDisk::new(1);
    let topics = Topics::simulated(&disk, &Limits::default(), Sync::Always).unwrap();
    let wake = Arc::new(Notify::new());
    let mut outbox = AnnouncementOutbox::new(Arc::clone(&topics), Arc::clone(&wake));
    let head = |topic: &str| topics.open(&topic.parse().unwrap()).unwrap().head();
    disk.stall_syncs(Path::new("data/topics/page-ready"));
    let announced = [(1, "job-done"), (2, "page-ready"), (3, "dead-letter"), (4, "job-done")];
    for (serial, topic) in announced {
        outbox.push(serial, topic, format!("event {serial}").into());
    }
    assert_eq!(advance_until(&mut outbox, &wake, 2).await, [1, 3]);
    assert_eq!((head("page-ready"), head("job-done")), (Seq(2), Seq(2)));
    disk.resume_syncs();
    assert_eq!(advance_until(&mut outbox, &wake, 2).await, [2, 4]);
    assert_eq!(head("job-done"), Seq(3));
    topics.close();
}

#[tokio::test]
async fn end_of_a_job_does_not_wait_for_outcomes_that_cannot_be_published() {
    let disk = SimulatedDisk::new(1);
    let topics = Topics::simulated(&disk, &Limits::default(), Sync::Always).unwrap();
    let wake = Arc::new(Notify::new());
    let mut outbox = AnnouncementOutbox::new(Arc::clone(&topics), Arc::clone(&wake));
    topics.open(&"page-ready".parse().unwrap()).unwrap().refuse_events();
    outbox.push(1, "page-ready", "event 1".into());
    outbox.push(2, "job-done", "event 2".into());
    let mut sent = Vec::new();
    let advancing = async {
        while sent.is_empty() {
            let advanced = outbox.advance(|serial, _, _| sent.push(serial));
            assert_eq!(advanced.unwrap_err().code, Code::Busy);
            if sent.is_empty() {
                wake.notified().await;
            }
        }
    };
    assert!(completes_within(TEST_LIMIT, advancing).await, "the end is not published");
    assert_eq!(sent, [2]);
    topics.close();
}

#[tokio::test]
async fn a_wait_for_a_job_is_answered_when_the_outcomes_of_its_pages_are_safe() {
    let mut rig = Rig::start(SimulatedDisk::new(1), Sync::Always, None, |_| ());
    let outcomes = rig.topics.open(&"page-ready".parse().unwrap()).unwrap();
    let (mut boss, mut worker) = (rig.client(), rig.client());
    assert!(boss.ask("GROUP create team topics=work").await.starts_with("+OK team "));
    assert!(boss.ask("JOB open site group=team").await.starts_with("+OK site "));
    assert!(worker.ask("JOIN team").await.starts_with("+OK team "));
    assert!(boss.ask("JOB add site url=http://a.test/ group=team").await.starts_with("+OK"));
    assert!(boss.ask("JOB close site group=team").await.starts_with("+OK site "));
    let mut waits = Vec::new();
    for line in ["JOB wait site group=team", "JOB watch site group=team"] {
        waits.push(rig.client());
        waits.last_mut().unwrap().say(line);
    }
    let task = worker.answer().await;
    rig.disk.stall_syncs(Path::new("data/topics/page-ready"));
    let id = task.split(' ').nth(1).expect("a task has an id");
    assert!(worker.reply(&format!("ACK {id}")).await.starts_with("+OK"));
    assert!(boss.ask("JOB show site group=team").await.contains(" state=done "));
    waits.push(rig.client());
    waits.last_mut().unwrap().say("JOB wait site group=team");
    assert!(boss.ask("JOB show site group=team").await.contains(" state=done "));
    assert!(waits.iter().all(|client| client.heard().is_none()), "an answer came too early");
    assert_eq!(outcomes.public_head(), Seq(1));
    rig.disk.resume_syncs();
    for client in waits {
        let answer = client.answer().await;
        assert!(answer.starts_with("+OK site number=1 pass=1 "), "{answer}");
        assert_eq!(outcomes.public_head(), Seq(2));
    }
}

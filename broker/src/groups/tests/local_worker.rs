//! Outputs that are sent before a sync: only those for the worker in the broker's own process.

use super::*;

const TEAM: &str = "data/groups/team";

/// A broker with a local worker, a remote worker and an operator.
fn rig() -> (Rig, Client, Client, Client) {
    let mut rig = Rig::start(SimulatedDisk::new(1), Sync::Memory, Some(MemberId(1)), |_| ());
    let clients = (rig.client(), rig.client(), rig.client());
    (rig, clients.0, clients.1, clients.2)
}

/// The group's records that were written to the file system.
fn written(rig: &Rig) -> String {
    let files = rig.disk.files().into_iter().filter(|(path, _)| path.starts_with(TEAM));
    files.map(|(_, bytes)| String::from_utf8_lossy(&bytes).replace('\0', "")).collect()
}

/// Waits until the group has written a given record.
async fn until_written(rig: &Rig, record: &str) {
    let writing = async {
        while !written(rig).contains(record) {
            tokio::task::yield_now().await;
        }
    };
    let is_there = completes_within(TEST_LIMIT, writing).await;
    assert!(is_there, "{record:?} is not among {:?}", written(rig));
}

// PROTOCOL: T13
#[tokio::test]
async fn local_worker_receives_tasks_once_written_and_others_once_synced() {
    let (rig, mut own, mut other, mut boss) = rig();
    assert!(boss.ask("GROUP create team topics=work key=none").await.starts_with("+OK team "));
    assert!(own.ask("JOIN team credit=1").await.starts_with("+OK team "));
    assert!(other.ask("JOIN team credit=1").await.starts_with("+OK team "));
    rig.disk.stall_syncs(Path::new(TEAM));
    let topic = rig.topics.open(&"work".parse().unwrap()).unwrap();
    topic.append(ConnId::BROKER, ["one", "two"]).unwrap();
    let task = own.answer().await;
    assert!(task.starts_with("TASK team:"), "{task}");
    until_written(&rig, &format!("\t{}\t", other.caller.member)).await;
    // Written records are not durable yet, so the remote worker and the operator get no answer.
    boss.say("GROUP pause team");
    until_written(&rig, "paused").await;
    assert_eq!((other.heard(), boss.heard()), (None, None));
    rig.disk.resume_syncs();
    let task = other.answer().await;
    assert!(task.starts_with("TASK team:"), "{task}");
    assert!(boss.answer().await.starts_with("+OK team"));
}

#[tokio::test]
async fn local_worker_receives_nothing_before_the_start_is_synced() {
    let (rig, _, _, mut boss) = rig();
    assert!(boss.ask("GROUP create team topics=none").await.starts_with("+OK team "));
    let disk = rig.disk.clone();
    drop(rig);
    let hold = |disk: &SimulatedDisk| disk.stall_syncs(Path::new(TEAM));
    let mut rig = Rig::start(disk, Sync::Memory, Some(MemberId(1)), hold);
    let mut own = rig.client();
    own.say("JOIN team credit=1");
    // The local worker has joined by then.
    rig.client().say("GROUP pause team");
    until_written(&rig, "paused").await;
    assert_eq!(own.heard(), None);
    rig.disk.resume_syncs();
    let joined = own.answer().await;
    assert!(joined.starts_with("+OK team "), "{joined}");
}

// PROTOCOL: R6, T13
#[tokio::test]
async fn topic_keeps_consumed_events_until_the_group_has_synced() {
    let (rig, mut own, _, mut boss) = rig();
    let name = "work".parse().unwrap();
    let settings = TopicSettings { sync: Sync::Always, ..TopicSettings::default() };
    let topic = rig.topics.create(&name, settings, |_| ()).unwrap();
    assert!(boss.ask("GROUP create team topics=work key=none").await.starts_with("+OK team "));
    assert!(own.ask("JOIN team credit=2").await.starts_with("+OK team "));
    let until_consumed = async |next| {
        let consuming = async {
            while topic.consumed_by_all() != Some(next) {
                tokio::task::yield_now().await;
            }
        };
        assert!(completes_within(TEST_LIMIT, consuming).await, "{:?}", topic.consumed_by_all());
    };
    topic.append(ConnId::BROKER, ["one"]).unwrap();
    assert!(own.answer().await.ends_with(" one"));
    until_consumed(Seq(2)).await;
    rig.disk.stall_syncs(Path::new(TEAM));
    topic.append(ConnId::BROKER, ["two"]).unwrap();
    assert!(own.answer().await.ends_with(" two"));
    assert_eq!(
        topic.consumed_by_all(),
        Some(Seq(2)),
        "a power failure would make the group forget it"
    );
    rig.disk.resume_syncs();
    until_consumed(Seq(3)).await;
}

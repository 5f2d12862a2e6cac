//! Actors of groups on a disk that is full, slow or broken.

mod concurrency;
mod failures;
mod local_worker;
mod outbox;

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::path::Path;
use std::task::{Poll, Waker};

use tidings_log::{DiskFaults, SegmentStore, SimulatedDisk};
use tidings_protocol::{Answers, Command, Sync, TopicSettings, field_number};
use tidings_queue::WorkerReply;

use super::*;
use crate::TEST_LIMIT;
use crate::limits::Limits;
use crate::mailbox::{GroupBatch, Mailbox};
use crate::net::completes_within;

/// Groups on a simulated disk.
struct Rig {
    disk: SimulatedDisk,
    topics: Arc<Topics>,
    groups: Arc<Groups>,
    connections: u64,
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.groups.stop.cancel();
        self.disk.resume_syncs();
        self.topics.close();
    }
}

impl Rig {
    fn new() -> Self {
        let disk = SimulatedDisk::new(1);
        // Without preallocation, so that room that is gone now cannot have been reserved before.
        disk.set_faults(DiskFaults { no_allocate: true, ..DiskFaults::default() });
        Self::start(disk, Sync::Memory, None, |_| ())
    }

    /// Starts a broker on the contents of a disk, with topics of this default and with a member in
    /// the broker's own process. `then` changes the disk after it was read.
    fn start(
        disk: SimulatedDisk,
        sync: Sync,
        own: Option<MemberId>,
        then: impl FnOnce(&SimulatedDisk),
    ) -> Self {
        let limits = Limits::default();
        let topics = Topics::simulated(&disk, &limits, sync).unwrap();
        let store = SegmentStore::new(Arc::new(disk.clone()), Path::new("data"));
        let storage = GroupStorage { store: Arc::new(store), log_bytes: limits.group_log_bytes };
        let recovered = storage.recover().unwrap();
        then(&disk);
        let groups = Groups::new(
            Arc::clone(&topics),
            GroupConfig::default(),
            limits.groups_max,
            own,
            clock_continuing(&recovered),
            CancellationToken::new(),
            Some((storage, recovered)),
        );
        Self { disk, topics, groups, connections: 0 }
    }

    fn client(&mut self) -> Client {
        self.connections += 1;
        let (conn, member) = (ConnId(self.connections), MemberId(self.connections.into()));
        let caller = Caller { conn, member, mailbox: Mailbox::new(), is_monitor: true };
        Client { groups: Arc::clone(&self.groups), caller, slots: Answers::new() }
    }

    /// Leaves no room on the disk.
    fn fill_disk(&self) {
        self.disk.set_room(self.disk.used());
    }

    fn make_room(&self) {
        self.disk.set_room(1 << 40);
    }

    /// Waits until the group has noticed that the disk is full. Earlier commands are answered when
    /// there is room again.
    async fn until_full(&mut self, group: &str) {
        let polling = async {
            let mut asked = Vec::new();
            loop {
                let mut client = self.client();
                client.say(&format!("GROUP show {group}"));
                asked.push(client);
                tokio::task::yield_now().await;
                let mut heard = asked.iter().filter_map(Client::heard);
                if heard.any(|answer| answer.starts_with("-ERR full ")) {
                    return;
                }
            }
        };
        assert!(completes_within(TEST_LIMIT, polling).await, "the group has room");
    }

    /// Makes all further writes fail.
    fn break_disk(&self) {
        self.disk.set_faults(DiskFaults { power_off_after: Some(0), ..DiskFaults::default() });
    }

    /// Whether any group is known to have a job of that name.
    fn knows_job(&self, name: &str) -> bool {
        let payload = format!("http://a.test/ job={name}");
        let no_group = "none".parse().unwrap();
        !self
            .groups
            .job_names
            .jobs_of_other_groups(&no_group, [payload.as_str()].into_iter())
            .is_empty()
    }
}

/// A connection, as groups see it.
struct Client {
    groups: Arc<Groups>,
    caller: Caller,
    slots: Answers,
}

impl Client {
    /// Sends a command that is answered later.
    fn say(&mut self, line: &str) {
        let (slot, command) = (self.slots.reserve(), Command::parse(line).unwrap());
        let Command::Join { group, credit, render, .. } = command else {
            let request = GroupRequest::of(&command).unwrap();
            return self.groups.manage(&self.caller, slot, request).unwrap();
        };
        let (credit, label) = ((credit.unwrap_or(1), render), ClientLabel::default());
        self.groups.join(&self.caller, slot, &group, credit, label).unwrap();
    }

    /// The next answer, or the next tasks, without the last line end.
    async fn answer(&self) -> String {
        let mut answer = None;
        let receive = poll_fn(|cx| {
            answer = self.take(cx.waker());
            if answer.is_none() { Poll::Pending } else { Poll::Ready(()) }
        });
        assert!(completes_within(TEST_LIMIT, receive).await, "no answer came");
        answer.unwrap()
    }

    /// The same, if it has arrived.
    fn heard(&self) -> Option<String> {
        self.take(Waker::noop())
    }

    fn take(&self, waker: &Waker) -> Option<String> {
        let mut parcels = self.caller.mailbox.drain(waker).messages;
        // Progress lines of watchers are not answers.
        parcels.retain(|parcel| !matches!(parcel, ConnMessage::Progress { .. }));
        let parcel = parcels.pop_front()?;
        assert!(parcels.is_empty(), "{parcels:?}");
        let batch = match parcel {
            ConnMessage::Answer { slot, answer } => {
                GroupBatch { answers: vec![(slot, answer)], ..GroupBatch::default() }
            }
            ConnMessage::Group(batch) => batch,
            other => panic!("{other:?}"),
        };
        let mut lines = Vec::new();
        match batch.answers.first() {
            Some((_, Ok(answer))) => answer.encode(&mut lines),
            Some((_, Err(error))) => error.encode(&mut lines),
            None => lines.extend(batch.tasks),
        }
        Some(std::str::from_utf8(&lines).unwrap().trim_end().to_owned())
    }

    /// Answers a task.
    async fn reply(&mut self, line: &str) -> String {
        let Ok(Command::Reply(reply)) = Command::parse(line) else { panic!("{line}") };
        let group = reply.task.group.clone();
        let reply = WorkerReply { reply, links: Vec::new(), over_limit: 0 };
        self.groups.submit(&self.caller, &group, vec![(self.slots.reserve(), reply)]);
        self.answer().await
    }

    async fn ask(&mut self, line: &str) -> String {
        self.say(line);
        self.answer().await
    }
}

// PROTOCOL: T14
#[tokio::test]
async fn job_rejected_by_a_full_disk_does_not_exist() {
    let mut rig = Rig::new();
    let (mut client, mut other) = (rig.client(), rig.client());
    assert!(client.ask("GROUP create team topics=work").await.starts_with("+OK team "));
    assert!(client.ask("JOB open early group=team").await.starts_with("+OK early "));
    rig.fill_disk();
    // This job is opened before the group notices that the disk is full; the answer comes when
    // there is room.
    other.say("JOB open between group=team");
    rig.until_full("team").await;
    for watch in ["GROUP watch team", "JOB watch early group=team"] {
        let refused = client.ask(watch).await;
        assert!(refused.starts_with("-ERR full "), "{refused}");
    }
    for job in ["late", "early"] {
        let refused = client.ask(&format!("JOB open {job} group=team max-pages=1")).await;
        assert!(refused.starts_with("-ERR full "), "{refused}");
    }
    assert!(!rig.knows_job("late"));
    assert!(rig.knows_job("early") && rig.knows_job("between"));
    rig.make_room();
    assert!(other.answer().await.starts_with("+OK between "));
}

// PROTOCOL: T14
#[tokio::test]
async fn job_rejected_by_a_failed_disk_does_not_exist_and_waiters_get_an_error() {
    let mut rig = Rig::new();
    let (mut client, mut waits) = (rig.client(), rig.client());
    let mut watch = [rig.client(), rig.client()];
    assert!(client.ask("GROUP create team topics=work").await.starts_with("+OK team "));
    assert!(client.ask("JOB open site group=team").await.starts_with("+OK site "));
    waits.say("JOB wait site group=team");
    watch[0].say("JOB watch site group=team");
    watch[1].say("GROUP watch team");
    // Messages are handled in order, so the others were handled before this one.
    assert!(client.ask("JOB show site group=team").await.starts_with("+OK site "));
    rig.break_disk();
    let refused = client.ask("JOB pause site group=team").await;
    assert!(refused.starts_with("-ERR sync-failed "), "{refused}");
    for waits in [&waits, &watch[0], &watch[1]] {
        let answer = waits.answer().await;
        assert!(answer.starts_with("-ERR sync-failed "), "{answer}");
    }
    let refused = client.ask("JOB open late group=team").await;
    assert!(refused.starts_with("-ERR sync-failed "), "{refused}");
    assert!(!rig.knows_job("late") && rig.knows_job("site"));
    let refused = waits.ask("JOB wait site group=team").await;
    assert!(refused.starts_with("-ERR sync-failed "), "{refused}");
}

#[tokio::test]
async fn group_whose_deletion_waits_for_room_still_answers() {
    let mut rig = Rig::new();
    let (mut boss, mut client, mut worker) = (rig.client(), rig.client(), rig.client());
    assert!(boss.ask("GROUP create team topics=work").await.starts_with("+OK team "));
    rig.fill_disk();
    boss.say("GROUP delete team");
    worker.say("JOIN team");
    rig.until_full("team").await;
    assert!(client.ask("JOB open late group=team").await.starts_with("-ERR full "));
    rig.make_room();
    assert_eq!(boss.answer().await, "+OK team");
    let refused = worker.answer().await;
    assert!(refused.starts_with("-ERR unknown "), "{refused}");
    assert!(!rig.knows_job("late"));
}

// PROTOCOL: T15
#[tokio::test]
async fn recreated_group_has_another_since_number() {
    let mut rig = Rig::new();
    let (mut boss, mut seen) = (rig.client(), BTreeSet::new());
    // Some of these are created within the same millisecond.
    for _ in 0..20 {
        assert!(boss.ask("GROUP create team topics=work").await.starts_with("+OK team "));
        let mut worker = rig.client();
        let joined = worker.ask("JOIN team").await;
        let since = field_number(&joined, "since").expect("the answer contains since");
        assert!(seen.insert(since), "{since} was used before");
        rig.groups.connection_ended(worker.caller.conn);
        assert_eq!(boss.ask("GROUP delete team").await, "+OK team");
    }
}

#[tokio::test]
async fn group_with_unreadable_texts_stops_and_others_continue() {
    // More text than a group keeps in memory.
    const TEXTS: usize = 800;
    let mut rig = Rig::new();
    let (mut boss, mut watch) = (rig.client(), rig.client());
    let (mut worker, mut waits) = (rig.client(), rig.client());
    for group in ["GROUP create team topics=work key=none", "GROUP create other topics=none"] {
        assert!(boss.ask(group).await.starts_with("+OK "));
    }
    let topic = rig.topics.open(&"work".parse().unwrap()).unwrap();
    let text = "x".repeat(60_000);
    for _ in 0..TEXTS {
        topic.append(ConnId::BROKER, [text.as_str()]).unwrap();
    }
    // Its text is in memory, so it is released at once.
    topic.append(ConnId::BROKER, ["/first prio=1"]).unwrap();
    let waiting = format!(" waiting={} ", TEXTS + 1);
    let consuming = async {
        while !boss.ask("GROUP show team").await.contains(&waiting) {
            tokio::task::yield_now().await;
        }
    };
    assert!(completes_within(TEST_LIMIT, consuming).await, "the events are not consumed");
    watch.say("GROUP watch team");
    rig.disk.set_faults(DiskFaults { fail_read_after: Some(0), ..DiskFaults::default() });
    // The answers wait for the record of the release.
    rig.disk.stall_syncs(Path::new("data/groups"));
    worker.say("JOIN team credit=1000");
    waits.say("GROUP show team");
    for answer in [worker.answer().await, waits.answer().await, watch.answer().await] {
        assert!(answer.starts_with("-ERR internal group team has stopped "), "{answer}");
    }
    rig.disk.resume_syncs();
    for line in ["GROUP pause team", "GROUP watch team", "JOB open site group=team"] {
        let answer = boss.ask(line).await;
        assert!(answer.starts_with("-ERR internal group team has stopped "), "{answer}");
    }
    assert!(!rig.knows_job("site"));
    assert!(boss.ask("JOB open site group=other").await.starts_with("+OK site "));
    topic.append(ConnId::BROKER, ["more"]).unwrap();
}

// PROTOCOL: T15
#[tokio::test]
async fn groups_of_different_brokers_have_different_numbers() {
    let (now, earlier) = (1_795_290_973_246, 1_795_290_973_245);
    let [least, some, most] = [0, 1 << 60, u64::MAX].map(|random| group_number(now, random));
    assert!(group_number(earlier, u64::MAX) < least && least < some && some < most);
    assert!(most < group_number(now + 1, 0));
    // As a signed column of a database stores it.
    assert!(i64::try_from(group_number(1 << 42, u64::MAX)).is_ok());
    let numbers: BTreeSet<u64> = (0..100)
        .map(|_| {
            let rig = Rig::new();
            let [first, second] = [rig.groups.next_group_number(), rig.groups.next_group_number()];
            assert!(first < second);
            first & ((1 << 20) - 1)
        })
        .collect();
    assert!(numbers.len() > 50, "{numbers:?}");
}

//! Groups that panic.

use std::sync::atomic::AtomicBool;

use tidings_queue::record::GroupRecord;

use super::*;
use crate::groups::log::RecordMark;

/// A log that panics whenever it is used, once that is wanted.
struct PanickingLog {
    log: MemoryLog,
    panics: Arc<AtomicBool>,
}

impl PanickingLog {
    #[track_caller]
    fn check(&self) {
        assert!(!self.panics.load(Ordering::Relaxed), "a panic for a test");
    }
}

impl GroupLog for PanickingLog {
    fn append(&mut self, record: &GroupRecord) -> RecordMark {
        self.check();
        self.log.append(record)
    }

    fn durable(&self) -> RecordMark {
        self.check();
        self.log.durable()
    }
}

impl Rig {
    /// Creates a group that panics once the result is set.
    fn create_panicking(&self, name: &str, topic: &str) -> Arc<AtomicBool> {
        let panics = Arc::new(AtomicBool::new(false));
        let log = PanickingLog { log: MemoryLog::default(), panics: Arc::clone(&panics) };
        let config = GroupConfig::default().with_settings([("topics", topic)]).unwrap();
        let group = Group::new(name.parse().unwrap(), 0, config, 1);
        let creation = self.groups.registry.lock_creation();
        let log = (Box::new(log) as Box<dyn GroupLog>, Arc::new(Notify::new()));
        self.groups.start_with(&creation, (group, None), false, log).unwrap();
        panics
    }
}

// PROTOCOL: T14
#[tokio::test]
async fn group_that_panics_stops_and_others_continue() {
    let mut rig = Rig::new();
    let panics = rig.create_panicking("bad", "work");
    let (mut boss, mut worker) = (rig.client(), rig.client());
    assert!(boss.ask("GROUP create good topics=work").await.starts_with("+OK good "));
    assert!(boss.ask("JOB open site group=bad").await.starts_with("+OK site "));
    assert!(worker.ask("JOIN bad").await.starts_with("+OK bad "));
    let mut waiting = Vec::new();
    for line in ["JOB wait site group=bad", "JOB watch site group=bad", "GROUP watch bad"] {
        let mut client = rig.client();
        client.say(line);
        waiting.push(client);
    }
    // Messages are handled in order, so the others were handled before this one.
    assert!(boss.ask("JOB show site group=bad").await.starts_with("+OK site "));
    panics.store(true, Ordering::Relaxed);
    // The first command panics, and the second one may arrive before that or later.
    let mut last = rig.client();
    boss.say("JOB open late group=bad");
    last.say("JOB open later group=bad");
    waiting.extend([boss, last]);
    for client in &waiting {
        let answer = client.answer().await;
        assert!(answer.starts_with("-ERR internal group bad has stopped "), "{answer}");
    }
    let answer = worker.ask("JOIN bad").await;
    assert!(answer.starts_with("-ERR internal group bad has stopped "), "{answer}");
    assert!(rig.knows_job("site") && !rig.knows_job("late") && !rig.knows_job("later"));
    let mut boss = rig.client();
    assert!(boss.ask("JOB open late group=good").await.starts_with("+OK late "));
    // The topic keeps the events that the group has not consumed.
    let topic = rig.topics.open(&"work".parse().unwrap()).unwrap();
    topic.append(ConnId::BROKER, ["http://a.test/"]).unwrap();
    assert_eq!(topic.consumed_by_all(), Some(Seq(1)));
}

/// A command is answered if its own handling panics, also if it would wait.
#[tokio::test]
async fn command_that_panics_is_answered() {
    for line in ["JOB wait site group=bad", "JOB watch site group=bad", "GROUP pause bad"] {
        let mut rig = Rig::new();
        let panics = rig.create_panicking("bad", "work");
        let mut client = rig.client();
        assert!(client.ask("JOB open site group=bad").await.starts_with("+OK site "));
        panics.store(true, Ordering::Relaxed);
        let answer = client.ask(line).await;
        assert!(answer.starts_with("-ERR internal group bad has stopped "), "{answer}");
    }
}

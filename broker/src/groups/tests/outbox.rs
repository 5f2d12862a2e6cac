//! Announcements on topics of which one fails.

use super::*;
use crate::groups::outbox::AnnouncementOutbox;

#[test]
fn topic_that_fails_holds_back_only_its_own_announcements() {
    let limits = Limits { topics_max: 4, ..Limits::default() };
    let topics = Arc::new(Topics::in_memory(&limits, Clock::new()));
    let mut outbox = AnnouncementOutbox::new(Arc::clone(&topics), Arc::new(Notify::new()));
    for (serial, topic) in [(1, "one-too-many"), (2, "job-done"), (3, "one-too-many")] {
        outbox.push(serial, topic, format!("event {serial}"));
    }
    outbox.push(4, "job-done", "event 4".to_owned());
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

//! Several threads that create, use and delete groups at the same time.

use std::marker::Sync;

use parking_lot::Mutex;
use tidings_protocol::Command;
use tokio::runtime::Handle;
use tokio::task::block_in_place;

use super::*;
use crate::concurrent_runs::run_concurrently;

const THREADS: usize = 8;

impl Rig {
    /// Creates a group in each thread at the same time; `name` gives the name for each thread.
    fn create(&self, name: impl Fn(usize) -> String + Sync) -> Vec<Result<(), Code>> {
        let runtime = Handle::current();
        run_concurrently(THREADS, |thread| {
            let _entered = runtime.enter();
            let name = name(thread).parse().unwrap();
            let created = self.groups.create(&name, GroupConfig::default());
            created.map_err(|error| error.code)
        })
    }
}

#[tokio::test]
async fn one_of_several_threads_creates_the_group() {
    let rig = Rig::new();
    for round in 0..100 {
        let mut created = rig.create(|_| format!("g{round}"));
        created.sort_by_key(Result::is_err);
        assert_eq!(created[0], Ok(()));
        assert_eq!(created[1..], [Err(Code::Exists); THREADS - 1]);
    }
    assert_eq!(rig.groups.names().len(), 100);
}

#[tokio::test]
async fn threads_respect_the_group_limit() {
    const MAX: usize = 5;
    for _ in 0..50 {
        let mut rig = Rig::new();
        Arc::get_mut(&mut rig.groups).expect("it is not shared yet").count_max = MAX;
        let mut created = rig.create(|thread| format!("g{thread}"));
        created.sort_by_key(Result::is_err);
        assert_eq!(created[..MAX], [Ok(()); MAX]);
        assert_eq!(created[MAX..], [Err(Code::Limit); THREADS - MAX]);
        assert_eq!(rig.groups.names().len(), MAX);
    }
}

/// Number of answers that a connection has received since the last call.
fn answers(client: &Client) -> usize {
    let parcels = client.caller.mailbox.drain(Waker::noop()).messages;
    let answers = parcels.into_iter().map(|parcel| match parcel {
        ConnMessage::Answer { .. } => 1,
        ConnMessage::Group(batch) => batch.answers.len(),
        other => panic!("{other:?}"),
    });
    answers.sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_message_to_a_group_being_deleted_is_answered() {
    const LETTERS: usize = 50;
    let mut rig = Rig::new();
    let mut boss = rig.client();
    for _ in 0..50 {
        assert!(boss.ask("GROUP create team topics=work").await.starts_with("+OK team "));
        let clients: Vec<_> = (1..THREADS).map(|_| Mutex::new((rig.client(), 0))).collect();
        let deletes = Mutex::new(&mut boss);
        block_in_place(|| {
            let runtime = Handle::current();
            run_concurrently(THREADS, |thread| {
                let _entered = runtime.enter();
                if thread == 0 {
                    return deletes.lock().say("GROUP delete team");
                }
                let (client, owed) = &mut *clients[thread - 1].lock();
                for _ in 0..LETTERS {
                    let slot = client.slots.reserve();
                    let command = Command::parse("GROUP show team").unwrap();
                    let request = GroupRequest::of(&command).unwrap();
                    *owed +=
                        usize::from(client.groups.manage(&client.caller, slot, request).is_ok());
                }
            });
        });
        assert_eq!(boss.answer().await, "+OK team");
        for client in clients {
            let (client, mut owed) = client.into_inner();
            let answered = async {
                while owed > 0 {
                    owed -= answers(&client);
                    tokio::task::yield_now().await;
                }
            };
            assert!(completes_within(TEST_LIMIT, answered).await, "messages are lost");
        }
    }
}

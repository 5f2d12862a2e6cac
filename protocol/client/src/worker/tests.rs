#![expect(clippy::disallowed_methods, reason = "runs workers beside the broker that a test plays")]

use std::convert::Infallible;
use std::sync::Arc;

use tidings_protocol::{KeyRest, Render, RetryMode};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::scripted_broker::{CLOCK, ScriptedBroker};

fn worker(broker: &ScriptedBroker, credit: u32) -> Worker {
    Worker::new(broker.connector(), "g".parse().unwrap(), credit)
}

fn task(entry: u64) -> String {
    format!("TASK g:1.{entry}.1 {CLOCK} 60000 /{entry}")
}

fn ack(entry: u64) -> (String, String) {
    (format!("ACK g:1.{entry}.1"), format!("+OK g:1.{entry}.1 new=0 known=0 refused=0"))
}

// PROTOCOL: T9
#[tokio::test]
async fn a_task_goes_on_over_a_loss_and_its_end_is_sent_again() {
    let broker = ScriptedBroker::new().await;
    let (released, started) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (until, begun) = (Arc::clone(&released), Arc::clone(&started));
    let handler = move |task: WorkerTask| {
        let (until, begun) = (Arc::clone(&until), Arc::clone(&begun));
        async move {
            assert_eq!(task.payload, "/1");
            begun.notify_one();
            until.notified().await;
            TaskEnd::done()
        }
    };
    let running = tokio::spawn(worker(&broker, 2).run(handler, Some(1), CancellationToken::new()));
    let mut first = broker.accept().await;
    first.expect("JOIN g credit=2", "+OK g credit=2 held=0 since=7").await;
    first.say(&task(1)).await;
    // The count is reached.
    first.expect("JOIN g credit=0", "+OK g credit=0 held=1 since=7").await;
    started.notified().await;
    drop(first);
    let mut second = broker.accept().await;
    assert!(second.hello.contains(&format!("resume={:032x}", 5)), "{}", second.hello);
    second.expect("JOIN g credit=0", "+OK g credit=0 held=1 since=7").await;
    // The held task arrives again, and is not started again.
    second.say(&format!("TASK g:1.1.1 {CLOCK} 50000 /1")).await;
    released.notify_one();
    let (line, answer) = ack(1);
    assert_eq!(second.hear().await, line);
    // Lost before the answer.
    drop(second);
    let mut third = broker.accept().await;
    third.expect("JOIN g credit=0", "+OK g credit=0 held=0 since=7").await;
    third.expect(&line, &answer).await;
    running.await.unwrap().unwrap();
}

// PROTOCOL: T3
#[tokio::test]
async fn a_lease_is_renewed_while_a_task_runs_and_its_loss_ends_the_task() {
    let broker = ScriptedBroker::new().await;
    let ended = Arc::new(Notify::new());
    let on_end = Arc::clone(&ended);
    let handler = move |_task: WorkerTask| {
        let guard = NotifyOnDrop(Arc::clone(&on_end));
        async move {
            future::pending::<()>().await;
            drop(guard);
            TaskEnd::done()
        }
    };
    let stop = CancellationToken::new();
    let running = tokio::spawn(worker(&broker, 1).run(handler, None, stop.clone()));
    let mut connection = broker.accept().await;
    connection.expect("JOIN g credit=1", "+OK g credit=1 held=0 since=7").await;
    connection.say(&format!("TASK g:1.1.1 {CLOCK} 1000 /1")).await;
    connection.expect("TOUCH g:1.1.1", "+OK g:1.1.1 lease=1000").await;
    connection.expect("TOUCH g:1.1.1", "-ERR stale g:1.1.1 expired").await;
    ended.notified().await;
    // The worker itself goes on.
    connection.say(&format!("TASK g:1.2.1 {CLOCK} 60000 /2")).await;
    stop.cancel();
    connection.expect("JOIN g credit=0", "+OK g credit=0 held=1 since=7").await;
    drop(connection);
    // Without a connection it does not wait for what runs.
    running.await.unwrap().unwrap();
}

struct NotifyOnDrop(Arc<Notify>);

impl Drop for NotifyOnDrop {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

// PROTOCOL: T11
#[tokio::test]
async fn a_drain_returns_the_tasks_that_were_on_their_way() {
    let broker = ScriptedBroker::new().await;
    let stop = CancellationToken::new();
    let handler = |_task: WorkerTask| async { TaskEnd::done() };
    let running = tokio::spawn(worker(&broker, 1).run(handler, None, stop.clone()));
    let mut connection = broker.accept().await;
    connection.expect("JOIN g credit=1", "+OK g credit=1 held=0 since=7").await;
    connection.say(&task(1)).await;
    let (line, answer) = ack(1);
    connection.expect(&line, &answer).await;
    stop.cancel();
    assert_eq!(connection.hear().await, "JOIN g credit=0");
    connection.say(&task(2)).await;
    connection.say("+OK g credit=0 held=1 since=7").await;
    connection.expect("NACK g:1.2.1 count=no", "+OK g:1.2.1").await;
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_refused_join_ends_a_worker_unless_it_may_pass() {
    let broker = ScriptedBroker::new().await;
    let mut member = worker(&broker, 1);
    for (refusal, is_final) in [
        ("limit too many", false),
        ("conflict the log is damaged", false),
        ("unknown no group", true),
    ] {
        let script = async {
            let mut connection = broker.accept().await;
            connection.expect("JOIN g credit=1", &format!("-ERR {refusal}")).await;
            connection
        };
        let (_connection, event) = tokio::join!(script, member.next());
        assert_eq!(event.is_err(), is_final, "{refusal}: {event:?}");
    }
    assert!(member.next().await.is_err(), "it stays ended");
}

#[tokio::test]
async fn a_replaced_member_does_not_come_back() {
    let broker = ScriptedBroker::new().await;
    let mut member = worker(&broker, 1);
    let script = async {
        let mut connection = broker.accept().await;
        connection.expect("JOIN g credit=1", "+OK g credit=1 held=0 since=7").await;
        connection.say("-ERR replaced the member came back elsewhere").await;
        connection
    };
    let events = async {
        assert!(matches!(member.next().await, Ok(WorkerEvent::Joined { since: Some(7) })));
        member.next().await.unwrap_err()
    };
    let (_connection, error) = tokio::join!(script, events);
    assert!(matches!(error, ClientError::Ended(refusal) if refusal.code == Code::Replaced));
}

/// Handles tasks without end, and reports each loss of the connection.
struct Endless(mpsc::UnboundedSender<ClientError>);

impl TaskHandler for Endless {
    type Error = Infallible;

    async fn handle(
        &self,
        _task: &WorkerTask,
        _lost: &CancellationToken,
    ) -> Result<TaskEnd, Infallible> {
        future::pending().await
    }

    fn disconnected(&self, error: &ClientError) {
        let _ = self.0.send(error.clone());
    }
}

#[tokio::test]
async fn a_server_that_sends_too_many_tasks_is_left() {
    let broker = ScriptedBroker::new().await;
    let (sender, mut losses) = mpsc::unbounded_channel();
    let run = worker(&broker, 1).run(Endless(sender), None, CancellationToken::new());
    let running = tokio::spawn(run);
    let mut connection = broker.accept().await;
    connection.expect("JOIN g credit=1", "+OK g credit=1 held=0 since=7").await;
    for entry in 0..=TASKS_MAX as u64 {
        connection.say(&task(entry)).await;
    }
    let error = losses.recv().await.unwrap();
    assert_eq!(error, ClientError::Protocol("it sent too many tasks".to_owned()));
    let mut again = broker.accept().await;
    again.expect("JOIN g credit=1", "+OK g credit=1 held=0 since=7").await;
    running.abort();
}

#[tokio::test]
async fn a_broker_that_does_not_answer_the_join_counts_as_lost() {
    let broker = ScriptedBroker::new().await;
    let mut worker = worker(&broker, 1);
    let script = async {
        let mut silent = broker.accept().await;
        assert_eq!(silent.hear().await, "JOIN g credit=1");
        // Nothing more arrives on this connection, so the clock may run ahead of its socket.
        tokio::time::pause();
        let mut second = broker.accept().await;
        second.expect("JOIN g credit=1", "+OK g credit=1 held=0 since=7").await;
        (silent, second)
    };
    let events = async {
        let lost = worker.next().await.unwrap();
        assert!(matches!(lost, WorkerEvent::Lost(ClientError::Closed(_))), "{lost:?}");
        tokio::time::resume();
        let joined = worker.next().await.unwrap();
        assert!(matches!(joined, WorkerEvent::Joined { since: Some(7) }), "{joined:?}");
    };
    tokio::join!(script, events);
}

// PROTOCOL: T16
#[tokio::test]
async fn a_worker_with_a_browser_says_so_and_reads_which_pages_to_render() {
    let broker = ScriptedBroker::new().await;
    let mut worker = worker(&broker, 9);
    worker.set_render(Some(3));
    let link = worker.link();
    let running = tokio::spawn(async move {
        let mut renders = Vec::new();
        loop {
            if let WorkerEvent::Task(task) = worker.next().await.unwrap() {
                renders.push((task.id.clone(), task.render()));
            }
            match renders.len() {
                1 => worker.set_render(None),
                4 => break (worker, renders),
                _ => {}
            }
        }
    });
    let mut connection = broker.accept().await;
    let answer = "+OK g credit=9 render=3 held=0 since=7";
    connection.expect("JOIN g credit=9 can=render render=3", answer).await;
    connection.say(&task(1)).await;
    connection.expect("JOIN g credit=9", "+OK g credit=9 held=1 since=7").await;
    for (entry, render) in [(2, "yes"), (3, "no"), (4, "auto")] {
        connection.say(&format!("{} render={render}", task(entry))).await;
    }
    let (_worker, renders) = running.await.unwrap();
    let words: Vec<_> = renders.iter().map(|(_, render)| *render).collect();
    assert_eq!(words, [None, Some(Render::Yes), Some(Render::No), Some(Render::Auto)]);
    let end = TaskEnd::Nack(RetryMode::NeedsRender, KeyRest::default(), None);
    let (id, _) = &renders[3];
    let ended = link.end(id, end);
    let answered = connection.expect("NACK g:1.4.1 need=render", "+OK g:1.4.1");
    let (_, ()) = tokio::join!(ended, answered);
}

//! A worker: prints the events that its group gives it.
//!
//! ```text
//! tidings up                                    the broker
//! tidings group create prints topics=work key=none
//! cargo run -p tidings-client --example worker 127.0.0.1:12345 prints
//! tidings pub work 'hello'
//! ```

use std::error::Error;

use tidings_client::{CancellationToken, ClientOptions, Connector, TaskEnd, Worker, WorkerTask};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let broker = words.next().ok_or("expected the address of a broker")?;
    let group = words.next().ok_or("expected the name of a group")?;
    #[expect(clippy::print_stdout, reason = "the output of this program")]
    work(&broker, &group, |event| println!("{event}")).await
}

/// Passes each event to `store`, and goes on after every loss of the connection. Returns only with
/// an error that another attempt would meet again.
pub(crate) async fn work(
    broker: &str,
    group: &str,
    store: impl Fn(String) + Send + Sync + 'static,
) -> Result<(), Box<dyn Error>> {
    let connector = Connector::new(broker, ClientOptions::default());
    let worker = Worker::new(connector, group.parse()?, 4);
    let handler = move |task: WorkerTask| {
        store(task.payload);
        async { TaskEnd::done() }
    };
    Ok(worker.run(handler, None, CancellationToken::new()).await?)
}

//! What brokers say to one another through the servers. Nothing of it is stored.

use std::time::Duration;

use async_nats::client::{RequestErrorKind, SubscribeError};
use async_nats::{Request, Subscriber};
use futures_util::StreamExt;
use tidings_cluster::{HEARTBEAT_MS, Heartbeat, Name};

use crate::stream::JetStream;

const ALIVE: &str = "alive";
const LEADER: &str = "leader";
const STEP_DOWN: &str = "step-down";

/// What is said in a community.
#[derive(Debug)]
pub struct Bus {
    alive: Subscriber,
    step_down: Subscriber,
}

/// Something that was said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// A broker lives.
    Alive(Heartbeat),
    /// The broker of that name shall lead no longer.
    StepDown(Name),
}

impl Bus {
    /// The next thing that is said. Never ends: the client connects again by itself.
    pub async fn next(&mut self) -> Said {
        loop {
            let said = tokio::select! {
                Some(message) = self.alive.next() => {
                    text(&message.payload).and_then(|line| line.parse().ok()).map(Said::Alive)
                }
                Some(message) = self.step_down.next() => {
                    text(&message.payload).and_then(|name| name.parse().ok()).map(Said::StepDown)
                }
                // Only a client that was closed has no more messages.
                else => std::future::pending().await,
            };
            // What a later version says is left out.
            if let Some(said) = said {
                return said;
            }
        }
    }
}

impl JetStream {
    /// Hears what is said from now on.
    pub async fn hear(&self) -> Result<Bus, SubscribeError> {
        let alive = self.client.subscribe(self.subject(ALIVE)).await?;
        let step_down = self.client.subscribe(self.subject(STEP_DOWN)).await?;
        Ok(Bus { alive, step_down })
    }

    /// Says that a broker lives. Without a connection nothing is said.
    pub async fn say(&self, heartbeat: &Heartbeat) {
        let line = heartbeat.to_string();
        let _ = self.client.publish(self.subject(ALIVE), line.into()).await;
    }

    /// Asks the broker of that name to lead no longer.
    pub async fn ask_to_step_down(&self, name: &Name) {
        let _ = self.client.publish(self.subject(STEP_DOWN), name.to_string().into()).await;
        let _ = self.client.flush().await;
    }

    /// Answers as the leader, until it is dropped.
    pub async fn answer_as_leader(&self) -> Result<(), SubscribeError> {
        let mut asked = self.client.subscribe(self.subject(LEADER)).await?;
        while let Some(message) = asked.next().await {
            if let Some(reply) = message.reply {
                let _ = self.client.publish(reply, "".into()).await;
            }
        }
        Ok(())
    }

    /// Whether the connection of a leader to its server is open. The servers know at once that a process
    /// has died, but not that a machine has.
    pub async fn is_led(&self) -> bool {
        let limit = Some(Duration::from_millis(HEARTBEAT_MS));
        let answer = self.client.send_request(self.subject(LEADER), Request::new().timeout(limit));
        !answer.await.is_err_and(|error| error.kind() == RequestErrorKind::NoResponders)
    }

    fn subject(&self, what: &str) -> String {
        format!("{}{what}", self.prefix)
    }
}

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

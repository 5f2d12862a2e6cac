//! Publishes events of the hub. It reconnects after its connection was lost.

use tidings_client::{Client, ClientError, ClientOptions};
use tidings_protocol::TopicName;
use tokio::sync::Mutex;

/// A connection to the broker that is opened at the first event, and again after an error.
#[derive(Debug)]
pub(super) struct HubPublisher {
    broker: String,
    client_name: &'static str,
    client: Mutex<Option<Client>>,
}

impl HubPublisher {
    pub(super) fn new(broker: String, client_name: &'static str) -> Self {
        Self { broker, client_name, client: Mutex::new(None) }
    }

    /// Returns when all events are as safe as the topic promises. After an error some may be
    /// published.
    pub(super) async fn publish(
        &self,
        topic: &TopicName,
        payloads: &[String],
    ) -> Result<(), ClientError> {
        let client = self.connected_client().await?;
        let published = async {
            let mut answers = Vec::with_capacity(payloads.len());
            for payload in payloads {
                answers.push(client.publish(topic, payload).await?);
            }
            for answer in answers {
                answer.await?;
            }
            Ok(())
        };
        let published = published.await;
        if matches!(&published, Err(error) if !matches!(error, ClientError::Refused(_))) {
            *self.client.lock().await = None;
        }
        published
    }

    async fn connected_client(&self) -> Result<Client, ClientError> {
        let mut current = self.client.lock().await;
        if let Some(client) = &*current {
            return Ok(client.clone());
        }
        let name = Some(self.client_name.to_owned());
        let options = ClientOptions { name, ..ClientOptions::default() };
        let (client, _deliveries) = tidings_client::connect(&self.broker, options).await?;
        Ok(current.insert(client).clone())
    }
}

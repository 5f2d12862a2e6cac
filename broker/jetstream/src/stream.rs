//! The stream, and what its answers mean.

use std::fmt::{self, Debug};
use std::io;

use async_nats::jetstream::consumer::{DeliverPolicy, pull};
use async_nats::jetstream::context::{Context, PublishErrorKind};
use async_nats::jetstream::stream::{RawMessageErrorKind, Stream};
use async_nats::{Client, HeaderMap, jetstream};
use bytes::Bytes;
use futures_util::StreamExt;
use tidings_cluster::{Attempt, Slot};

/// The condition of a message. The server stores a message with another spelling without a condition.
const EXPECTED: &str = "Nats-Expected-Last-Sequence";

/// The stream of a community. Cheap to clone.
#[derive(Debug, Clone)]
pub struct JetStream {
    pub(crate) client: Client,
    pub(crate) context: Context,
    /// The name of the stream.
    pub(crate) name: String,
    /// The beginning of all subjects of the community, with a dot at its end.
    pub(crate) prefix: String,
}

/// What has become of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The message is in its slot, on a majority of the servers.
    Done,
    /// It is not, as another message is in its slot, or its slot is not the next one.
    Taken,
    /// The stream takes nothing more.
    Full,
    /// It may be there or not.
    Unknown,
}

/// The stream cannot be read now.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The engine has fewer messages than this broker has read.
    #[error("the stream ends at slot {found}, before slot {read} that this broker has read: it was restored to an older state", found = .found.0, read = .read.0)]
    Shorter {
        /// The last slot of the stream.
        found: Slot,
        /// The last slot that was read.
        read: Slot,
    },
    /// It may succeed later.
    #[error("the stream cannot be read: {0}")]
    Engine(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl ReadError {
    fn engine(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Engine(Box::new(error))
    }
}

impl JetStream {
    /// Sends a message. The order of calls is that of the messages on the connection; the answer is
    /// awaited apart.
    pub async fn send(&self, attempt: &Attempt) -> impl Future<Output = Answer> + Send + use<> {
        let slot = attempt.slot;
        let mut headers = HeaderMap::new();
        headers.insert(EXPECTED, (slot.0 - 1).to_string());
        let sent = self
            .context
            .publish_with_headers(self.log_subject(), headers, attempt.bytes.clone())
            .await;
        async move {
            let answered = match sent {
                Ok(answer) => answer.await,
                Err(error) => Err(error),
            };
            match answered {
                Ok(stored) if stored.sequence == slot.0 && !stored.duplicate => Answer::Done,
                Err(error) if error.kind() == PublishErrorKind::WrongLastSequence => Answer::Taken,
                Err(error) if is_full(&error) => Answer::Full,
                Ok(_) | Err(_) => Answer::Unknown,
            }
        }
    }

    /// The last slot. It may be behind, so this is only a hint.
    pub async fn last(&self) -> Result<Slot, ReadError> {
        let stream = self.stream().await?;
        let info = stream.get_info().await.map_err(ReadError::engine)?;
        Ok(Slot(info.state.last_sequence))
    }

    /// The message in a slot, or `None` if there seems to be none.
    pub async fn get(&self, slot: Slot) -> Result<Option<Bytes>, ReadError> {
        let stream = self.stream().await?;
        match stream.get_raw_message(slot.0).await {
            Ok(message) => Ok(Some(message.payload)),
            Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => Ok(None),
            Err(error) => Err(ReadError::engine(error)),
        }
    }

    /// Reads from a slot on, and waits at the end.
    pub async fn read(&self, from: Slot) -> Result<Reader, ReadError> {
        // A consumer that begins behind the end is accepted, and skips everything up to there.
        let (found, read) = (self.last().await?, Slot(from.0 - 1));
        if found < read {
            return Err(ReadError::Shorter { found, read });
        }
        let config = pull::OrderedConfig {
            deliver_policy: DeliverPolicy::ByStartSequence { start_sequence: from.0 },
            ..Default::default()
        };
        let consumer =
            self.stream().await?.create_consumer(config).await.map_err(ReadError::engine)?;
        let messages = consumer.messages().await.map_err(ReadError::engine)?;
        Ok(Reader { messages, next: from })
    }

    /// Removes messages that brokers have synced: those of before `synced_by_all` when the stream is an
    /// eighth full, and of before `synced_by_living` when it is half full. A broker that was away longer
    /// needs a copy of another one.
    pub async fn trim(&self, synced_by_all: Slot, synced_by_living: Slot) -> Result<(), ReadError> {
        let stream = self.stream().await?;
        let info = stream.get_info().await.map_err(ReadError::engine)?;
        let (state, full) = (info.state, u64::try_from(info.config.max_bytes).unwrap_or(u64::MAX));
        let before = match state.bytes {
            bytes if bytes > full / 2 => synced_by_living,
            bytes if bytes > full / 8 => synced_by_all,
            _ => return Ok(()),
        };
        // A purge beyond the end moves the end.
        let before = before.0.min(state.last_sequence);
        if before > state.first_sequence {
            stream.purge().sequence(before).await.map_err(ReadError::engine)?;
        }
        Ok(())
    }

    pub(crate) fn log_subject(&self) -> String {
        format!("{}log", self.prefix)
    }

    async fn stream(&self) -> Result<Stream<()>, ReadError> {
        self.context.get_stream_no_info(&self.name).await.map_err(ReadError::engine)
    }
}

fn is_full(error: &jetstream::context::PublishError) -> bool {
    use std::error::Error;
    let code = error
        .source()
        .and_then(|source| source.downcast_ref::<jetstream::Error>())
        .map(jetstream::Error::error_code);
    matches!(
        code,
        Some(
            jetstream::ErrorCode::STREAM_STORE_FAILED
                | jetstream::ErrorCode::INSUFFICIENT_RESOURCES
        )
    )
}

/// Messages in the order of their slots.
pub struct Reader {
    messages: pull::Ordered,
    next: Slot,
}

impl Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").finish_non_exhaustive()
    }
}

impl Reader {
    /// The next message and its slot. A jump between slots is judged by the reader of the messages.
    /// After an error another reader must be made.
    pub async fn next(&mut self) -> Result<(Slot, Bytes), ReadError> {
        let ended = |why| ReadError::engine(io::Error::other(why));
        let message = self.messages.next().await.ok_or_else(|| ended("the consumer has ended"))?;
        let message = message.map_err(ReadError::engine)?;
        let slot = Slot(message.info().map_err(ReadError::Engine)?.stream_sequence);
        // async-nats 0.51 makes a consumer again when its server is gone. One that has delivered nothing
        // then begins with the first message of the stream.
        if slot < self.next {
            return Err(ended("the consumer has begun again"));
        }
        self.next = slot.next();
        Ok((slot, message.message.payload))
    }
}

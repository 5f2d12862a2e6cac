//! The servers, and whether a community may rely on them.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use async_nats::jetstream::context::{ContextBuilder, CreateStreamErrorKind, GetStreamErrorKind};
use async_nats::jetstream::stream::{
    Config, DiscardPolicy, PersistenceMode, RetentionPolicy, StorageType,
};
use async_nats::{Client, ConnectOptions, jetstream};
use tidings_cluster::{
    Attempt, CommunityId, HEADER_BYTES, Name, PAYLOAD_BYTES_MAX, Stamp, founding,
};

use crate::stream::{Answer, JetStream};

/// How long an answer of the engine may take. An election of its own takes 4 to 9 s.
const ANSWER: Duration = Duration::from_secs(2);

/// Each message is on three servers, so that one of them may fail.
const REPLICAS: usize = 3;

/// The first version in which all conditions are known to hold.
const VERSION_MIN: [u64; 3] = [2, 14, 6];

/// Bytes of the headers of a message at most.
const HEADERS_BYTES_MAX: usize = 128;

/// The key of the id of a community among the metadata of its stream.
const COMMUNITY: &str = "tidings-community";

/// How to reach the servers.
#[derive(Debug, Clone)]
pub struct Servers {
    /// Their addresses, as URLs.
    pub addresses: Vec<String>,
    /// A file with a JWT and a key, as NATS makes it.
    pub credentials: Option<PathBuf>,
    /// A file with certificates of authorities, beside those of the system.
    pub authorities: Option<PathBuf>,
}

/// The servers cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// None of the servers answers.
    #[error("no server of NATS answers: {0}")]
    Connect(#[from] async_nats::ConnectError),
    /// The file of the credentials cannot be read.
    #[error("{path}: {source}", path = .path.display())]
    Credentials {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: std::io::Error,
    },
    /// A server does not do what a community needs.
    #[error("{0}")]
    Unfit(String),
    /// There is no such community.
    #[error("there is no community {0}")]
    Missing(Name),
    /// It may succeed later.
    #[error("the engine does not answer as expected: {0}")]
    Failed(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl EngineError {
    fn failed(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Failed(Box::new(error))
    }
}

impl JetStream {
    /// Connects for the community of that name.
    pub async fn connect(servers: &Servers, community: &Name) -> Result<Self, EngineError> {
        let mut options =
            ConnectOptions::new().request_timeout(Some(ANSWER)).retain_servers_order();
        if let Some(path) = &servers.credentials {
            options = options
                .credentials_file(path)
                .await
                .map_err(|source| EngineError::Credentials { path: path.clone(), source })?;
        }
        if let Some(path) = &servers.authorities {
            options = options.add_root_certificates(path.clone());
        }
        let client = options.connect(&servers.addresses).await?;
        check_server(&client)?;
        // The writer bounds what is in flight.
        let context = ContextBuilder::new().timeout(ANSWER).build(client.clone());
        let (name, prefix) = (format!("tidings-{community}"), format!("tidings.{community}."));
        Ok(Self { client, context, name, prefix })
    }

    /// Makes the community, if there is none of that name. Returns whether it was made. `bytes_max`
    /// bounds its log; a full one takes nothing more.
    pub async fn create(
        &self,
        id: CommunityId,
        bytes_max: i64,
        stamp: Stamp,
    ) -> Result<bool, EngineError> {
        let mut config = self.config(bytes_max);
        config.metadata = HashMap::from([(COMMUNITY.to_owned(), id.to_string())]);
        let id = match self.context.create_stream(config).await {
            Ok(made) => {
                self.check_config(&made.cached_info().config)?;
                id
            }
            Err(error) => match error.kind() {
                CreateStreamErrorKind::JetStream(error)
                    if error.error_code() == jetstream::ErrorCode::STREAM_NAME_EXIST =>
                {
                    // The one who made it may have been interrupted before the first message.
                    self.community().await?
                }
                CreateStreamErrorKind::JetStream(error) => {
                    let text = error.to_string();
                    return Err(EngineError::Unfit(format!("NATS makes no stream: {text}")));
                }
                _ => return Err(EngineError::failed(error)),
            },
        };
        let founding: Attempt = founding(id, stamp);
        match self.send(&founding).await.await {
            Answer::Done => Ok(true),
            Answer::Taken => Ok(false),
            Answer::Full | Answer::Unknown => {
                let text = "the first message has no answer; try again";
                Err(EngineError::failed(std::io::Error::other(text)))
            }
        }
    }

    /// The id of the community, whose stream is checked.
    pub async fn community(&self) -> Result<CommunityId, EngineError> {
        let stream =
            self.context.get_stream(&self.name).await.map_err(|error| match error.kind() {
                GetStreamErrorKind::JetStream(error)
                    if error.error_code() == jetstream::ErrorCode::STREAM_NOT_FOUND =>
                {
                    let name = self.name.trim_start_matches("tidings-").parse();
                    EngineError::Missing(name.expect("the stream was named after it"))
                }
                _ => EngineError::failed(error),
            })?;
        let config = &stream.cached_info().config;
        self.check_config(config)?;
        let id = config.metadata.get(COMMUNITY).and_then(|text| text.parse().ok());
        id.ok_or_else(|| {
            EngineError::Unfit(format!("the stream {} is not of a community", self.name))
        })
    }

    fn config(&self, bytes_max: i64) -> Config {
        Config {
            name: self.name.clone(),
            subjects: vec![self.log_subject()],
            storage: StorageType::File,
            num_replicas: REPLICAS,
            max_bytes: bytes_max,
            discard: DiscardPolicy::New,
            deny_delete: true,
            ..Config::default()
        }
    }

    /// A server that does not know a setting leaves it out, and an operator can change one.
    fn check_config(&self, found: &Config) -> Result<(), EngineError> {
        let is_sync = |mode: &Option<PersistenceMode>| {
            mode.as_ref().is_none_or(|mode| *mode == PersistenceMode::Default)
        };
        let problem = if found.num_replicas < REPLICAS {
            Some(format!("keeps {} copies instead of {REPLICAS}", found.num_replicas))
        } else if found.storage != StorageType::File {
            Some("is kept in memory instead of files".to_owned())
        } else if found.retention != RetentionPolicy::Limits
            || found.discard != DiscardPolicy::New
            || !found.max_age.is_zero()
            || found.max_messages > 0
            || found.max_messages_per_subject > 0
        {
            Some("removes messages by itself".to_owned())
        } else if !is_sync(&found.persist_mode) {
            Some("confirms messages before they are stored (persist_mode)".to_owned())
        } else if found.subjects != [self.log_subject()] {
            Some(format!("takes messages of {:?}", found.subjects))
        } else {
            None
        };
        problem.map_or(Ok(()), |problem| {
            Err(EngineError::Unfit(format!("the stream {} {problem}", self.name)))
        })
    }
}

/// The version and the limits of the server of this connection.
fn check_server(client: &Client) -> Result<(), EngineError> {
    let server = client.server_info();
    let numbers = server.version.split(['.', '-']).map_while(|number| number.parse::<u64>().ok());
    if numbers.take(3).lt(VERSION_MIN) {
        let [major, minor, patch] = VERSION_MIN;
        return Err(EngineError::Unfit(format!(
            "the server is NATS {}; at least {major}.{minor}.{patch} is needed",
            server.version
        )));
    }
    let needed = HEADERS_BYTES_MAX + HEADER_BYTES + PAYLOAD_BYTES_MAX;
    if server.max_payload < needed {
        let found = server.max_payload;
        return Err(EngineError::Unfit(format!(
            "max_payload of the server is {found}; at least {needed} is needed"
        )));
    }
    Ok(())
}

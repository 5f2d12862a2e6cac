//! Callbacks of jobs: their flags and their signatures.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};
use serde_json::json;
use tidings_broker::Broker;
use tidings_broker::hooks::SECRET_BYTES_MIN;
use tidings_connectors::callbacks;
use tidings_connectors::delivery::{Delivery, Signer};
use tidings_connectors::receivers::Receivers;
use tidings_egress::client::OutgoingClient;
use tidings_signature::{Secret, SignatureScheme};
use tokio_util::sync::CancellationToken;

use crate::flags::address::BrokerAddress;
use crate::services::hooks::read_secrets;
use crate::terminal::failure::Failure;

/// Flags for the callbacks of jobs.
#[derive(Debug, Clone, Args)]
pub(crate) struct CallbackFlags {
    /// File with the secrets that sign callbacks of jobs, one in Base64 on each line
    ///
    /// The prefix whsec_ of Standard Webhooks is allowed. Each secret adds a signature.
    #[arg(long, value_name = "FILE")]
    callback_secret_file: Option<PathBuf>,
}

impl CallbackFlags {
    pub(crate) fn secret_file(&self) -> Option<&Path> {
        self.callback_secret_file.as_deref()
    }

    /// Whether the file has secrets.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        self.secret_file().map(read_signer).transpose().map(drop)
    }

    /// Reads the secrets and returns the future that sends callbacks, until `stop`. It connects
    /// when the broker has its first job with a callback.
    pub(crate) fn start(
        &self,
        broker: &Broker,
        reach: &BrokerAddress,
        outgoing: &Arc<OutgoingClient>,
        receivers: &Arc<Receivers>,
        stop: &CancellationToken,
    ) -> Result<impl Future<Output = ()> + Send + use<>, Failure> {
        let signer = self.secret_file().map(read_signer).transpose()?;
        let delivery = Delivery {
            broker: reach.to_string(),
            outgoing: Arc::clone(outgoing),
            signer,
            receivers: Arc::clone(receivers),
        };
        let (mut callbacks, stop) = (broker.has_callbacks(), stop.clone());
        Ok(async move {
            let wanted = async { callbacks.wait_for(|wanted| *wanted).await.is_ok() };
            // A broker without callbacks needs no connection for them.
            if stop.run_until_cancelled(wanted).await == Some(true) {
                callbacks::run(delivery, stop).await;
            }
        })
    }
}

fn read_signer(file: &Path) -> Result<Signer, Failure> {
    let secrets = read_signing_secrets(file)
        .map_err(|error| Failure::Usage(format!("--callback-secret-file: {error}")))?;
    if secrets.iter().any(|secret| secret.len() < SECRET_BYTES_MIN) {
        tracing::warn!(
            file = %file.display(),
            "a secret of callbacks is short enough to be guessed; create a longer one with `openssl rand -base64 32`"
        );
    }
    Ok(signer_of(secrets))
}

/// Reads the secrets of Standard Webhooks in a file: one in Base64 on each line.
pub(crate) fn read_signing_secrets(file: &Path) -> Result<Vec<Secret>, String> {
    let written = read_secrets(file)?;
    let lines = written.lines().map(str::trim).enumerate().filter(|(_, line)| !line.is_empty());
    let secrets: Vec<Secret> = lines
        .map(|(at, line)| {
            standard_webhooks().parse_secret(line).map_err(|_| {
                let (file, line) = (file.display(), at + 1);
                format!("line {line} of {file} is not a secret in Base64")
            })
        })
        .collect::<Result<_, _>>()?;
    if secrets.is_empty() {
        return Err(format!("{} contains no secret", file.display()));
    }
    Ok(secrets)
}

/// Signs with each of these secrets.
pub(crate) fn signer_of(secrets: Vec<Secret>) -> Signer {
    let scheme = standard_webhooks();
    Box::new(move |id, unix_s, body| {
        let headers = scheme.sign(&secrets, id, unix_s, body).into_iter();
        let headers = headers.map(|(name, value)| {
            let name = HeaderName::try_from(name).expect("the preset has names of headers");
            (name, HeaderValue::try_from(value).expect("they are of letters, digits and signs"))
        });
        headers.collect::<HeaderMap>()
    })
}

fn standard_webhooks() -> SignatureScheme {
    SignatureScheme::from_config(&json!("standard-webhooks")).expect("there is this preset")
}

//! Callbacks of jobs: their flags and their signatures.

use std::path::{Path, PathBuf};

use clap::Args;
use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};
use serde_json::json;
use tidings_broker::Broker;
use tidings_broker::hooks::SECRET_BYTES_MIN;
use tidings_connectors::callbacks::{self, CallbackConfig, Signer};
use tidings_signature::{Secret, SignatureScheme};
use tokio_util::sync::CancellationToken;

use crate::flags::address::BrokerAddress;
use crate::services::hooks::read_secrets;
use crate::services::outgoing::OutgoingFlags;
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

    /// Reads the secrets and returns the future that sends callbacks, until `stop`. It connects
    /// when the broker has its first job with a callback.
    pub(crate) fn start(
        &self,
        broker: &Broker,
        reach: &BrokerAddress,
        outgoing: &OutgoingFlags,
        stop: &CancellationToken,
    ) -> Result<impl Future<Output = ()> + Send + use<>, Failure> {
        let sign = self.callback_secret_file.as_deref().map(read_signer).transpose()?;
        let config = CallbackConfig {
            broker: reach.to_string(),
            outgoing: outgoing.http_client()?,
            signer: sign,
        };
        let (mut callbacks, stop) = (broker.has_callbacks(), stop.clone());
        Ok(async move {
            let wanted = async { callbacks.wait_for(|wanted| *wanted).await.is_ok() };
            // A broker without callbacks needs no connection for them.
            if stop.run_until_cancelled(wanted).await == Some(true) {
                callbacks::run(config, stop).await;
            }
        })
    }
}

fn read_signer(file: &Path) -> Result<Signer, Failure> {
    let scheme =
        SignatureScheme::from_config(&json!("standard-webhooks")).expect("there is this preset");
    let wrong = |error| Failure::Usage(format!("--callback-secret-file: {error}"));
    let written = read_secrets(file).map_err(wrong)?;
    let lines = written.lines().map(str::trim).enumerate().filter(|(_, line)| !line.is_empty());
    let secrets: Vec<Secret> = lines
        .map(|(at, line)| {
            scheme.parse_secret(line).map_err(|_| {
                let (file, line) = (file.display(), at + 1);
                wrong(format!("line {line} of {file} is not a secret in Base64"))
            })
        })
        .collect::<Result<_, _>>()?;
    if secrets.is_empty() {
        return Err(wrong(format!("{} contains no secret", file.display())));
    }
    if secrets.iter().any(|secret| secret.len() < SECRET_BYTES_MIN) {
        tracing::warn!(
            file = %file.display(),
            "a secret of callbacks is short enough to be guessed; create a longer one with `openssl rand -base64 32`"
        );
    }
    Ok(Box::new(move |id, unix_s, body| {
        let headers = scheme.sign(&secrets, id, unix_s, body).into_iter();
        let headers = headers.map(|(name, value)| {
            let name = HeaderName::try_from(name).expect("the preset has names of headers");
            (name, HeaderValue::try_from(value).expect("they are of letters, digits and signs"))
        });
        headers.collect::<HeaderMap>()
    }))
}

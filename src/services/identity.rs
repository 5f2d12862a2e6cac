//! The signed identity of the crawler: its flags, the reload of its file, and its directory in the
//! broker's HTTP server.

#![expect(clippy::disallowed_methods, reason = "reads the file again from time to time")]

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use clap::{Args, ValueEnum};
use hyper::body::Bytes;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE};
use hyper::{Method, Request, Response};
use tidings_broker::openapi::Operation;
use tidings_broker::{EmbeddedHandler, HandlerFuture, HandlerReply};
use tidings_signature::identity::{
    AgentForm, AgentOrigin, DIRECTORY_MAX_AGE_S, DIRECTORY_MEDIA_TYPE, Identity, RequestSigner,
};
use tokio::time::sleep;

use crate::services::operations;
use crate::terminal::failure::Failure;

/// How often the file is read again.
const RELOAD_INTERVAL: Duration = Duration::from_secs(5);

/// Flags of the identity.
#[derive(Debug, Clone, Args)]
#[expect(clippy::struct_field_names, reason = "the names of the flags")]
pub(crate) struct IdentityFlags {
    /// Sign every https request with the keys in this file (see tidings identity)
    ///
    /// A broker with --http publishes the public keys at
    /// /.well-known/http-message-signatures-directory. The file is read again when it changes.
    #[arg(long, value_name = "FILE")]
    sign_key: Option<PathBuf>,

    /// With --sign-key: the origin at which sites find the public keys, such as
    /// `https://crawler.example`
    #[arg(long, value_name = "ORIGIN", requires = "sign_key")]
    sign_agent: Option<AgentOrigin>,

    /// With --sign-agent: how requests name that origin
    #[arg(long, value_name = "FORM", requires = "sign_agent", default_value = "dictionary")]
    sign_form: SignForm,
}

/// The form of the header `Signature-Agent`.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum SignForm {
    /// As in the present draft of the standard
    Dictionary,
    /// As in earlier drafts, which some sites still expect
    String,
}

impl IdentityFlags {
    /// The file of the keys.
    pub(crate) fn key_file(&self) -> Option<&Path> {
        self.sign_key.as_deref()
    }

    /// Whether the file has keys.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        self.key_file().map(read_identity).transpose().map(drop)
    }

    /// Reads the keys, and reads them again until the signer is dropped.
    pub(crate) fn signer(&self) -> Result<Option<Arc<RequestSigner>>, Failure> {
        let Some(file) = &self.sign_key else { return Ok(None) };
        let (identity, text) = read_identity(file)?;
        let form = match self.sign_form {
            SignForm::Dictionary => AgentForm::Dictionary,
            SignForm::String => AgentForm::String,
        };
        let signer = Arc::new(RequestSigner::new(identity, self.sign_agent.clone(), form));
        tokio::spawn(reload(file.clone(), text, Arc::downgrade(&signer)));
        Ok(Some(signer))
    }

    /// The handler that publishes the public keys.
    pub(crate) fn directory(&self) -> Result<Option<Arc<dyn EmbeddedHandler>>, Failure> {
        Ok(self.signer()?.map(|signer| Arc::new(Directory(signer)) as Arc<dyn EmbeddedHandler>))
    }
}

/// Reads the keys of `--sign-key`, with the text of the file.
fn read_identity(file: &Path) -> Result<(Identity, String), Failure> {
    let wrong = |error| Failure::Usage(format!("--sign-key: {error}"));
    let text = read(file).map_err(wrong)?;
    let identity = parse(file, &text).map_err(wrong)?;
    identity
        .check_valid(now_unix_s())
        .map_err(|error| wrong(format!("{}: {error}", file.display())))?;
    Ok((identity, text))
}

/// Reads the file of an identity.
pub(crate) fn read(file: &Path) -> Result<String, String> {
    fs::read_to_string(file).map_err(|error| format!("cannot read {}: {error}", file.display()))
}

/// The identity in the text of this file.
pub(crate) fn parse(file: &Path, text: &str) -> Result<Identity, String> {
    Identity::parse(text).map_err(|error| format!("{}: {error}", file.display()))
}

/// The present Unix time in seconds.
pub(crate) fn now_unix_s() -> u64 {
    std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs()
}

/// Gives the signer each new version of the file. A file that cannot be used changes nothing, and
/// is reported once.
async fn reload(file: PathBuf, mut known: String, signer: Weak<RequestSigner>) {
    loop {
        sleep(RELOAD_INTERVAL).await;
        let Some(signer) = signer.upgrade() else { return };
        let text = read(&file).unwrap_or_else(|error| error);
        if text == known {
            continue;
        }
        match parse(&file, &text) {
            Ok(identity) => {
                signer.replace_identity(identity);
                tracing::info!("{}: signing with the keys of its new version", file.display());
            }
            Err(error) => tracing::warn!("the keys that sign requests stay as they are: {error}"),
        }
        known = text;
    }
}

/// Publishes the public keys.
#[derive(Debug)]
struct Directory(Arc<RequestSigner>);

impl EmbeddedHandler for Directory {
    fn operations(&self) -> Vec<Operation> {
        operations::of_directory()
    }

    fn handle(&self, request: Request<Bytes>, _peer: IpAddr) -> HandlerFuture<'_> {
        Box::pin(async move {
            if !matches!(*request.method(), Method::GET | Method::HEAD) {
                return HandlerReply::Rejected("only GET");
            }
            let (text, headers) = self.0.directory(now_unix_s());
            let mut response = Response::builder()
                .header(CONTENT_TYPE, DIRECTORY_MEDIA_TYPE)
                .header(CACHE_CONTROL, format!("max-age={DIRECTORY_MAX_AGE_S}"));
            for (name, value) in headers {
                response = response.header(name, value);
            }
            let response = response.body(Bytes::from(text)).expect("the headers are visible ASCII");
            HandlerReply::Public(response)
        })
    }
}

//! A broker with webhooks, and requests to them, signed by openssl.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use super::http_client::{HttpClient, HttpResponse};
use super::openssl::{hmac, openssl};
use super::process::Server;

/// The secret of the hooks in these tests. Standard Webhooks have another format and their own
/// secret.
pub(crate) const HOOK_SECRET: &str = "a secret of forge and broker";
pub(crate) const STANDARD_WEBHOOKS_SECRET: &str = "whsec_YSBzZWNyZXQgb2YgZm9yZ2UgYW5kIGJyb2tlcg==";

/// A broker with webhooks.
pub(crate) struct WebhookBroker {
    pub(crate) server: Server,
    pub(crate) http: HttpClient,
}

impl HttpResponse {
    /// The seqs of the events in a successful response.
    #[track_caller]
    pub(crate) fn seqs(&self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        self.json()["seqs"].clone()
    }
}

impl WebhookBroker {
    /// Starts a broker with this configuration, in which SECRETS stands for the file with the
    /// secret.
    #[track_caller]
    pub(crate) fn start(arguments: &[&str], config: &str) -> Self {
        let folder = TempDir::new().unwrap();
        write_config(folder.path(), config);
        let arguments = [arguments, &["--config", "hooks.toml"]].concat();
        Self::new(Server::start_in(folder, &arguments, |_| ()))
    }

    #[track_caller]
    pub(crate) fn new(server: Server) -> Self {
        let http = HttpClient::new(&server);
        Self { server, http }
    }

    /// Sends a request with these headers of the form `NAME: VALUE`.
    #[track_caller]
    pub(crate) fn post(
        &self,
        hook: &str,
        kind: &str,
        headers: &[&str],
        body: &str,
    ) -> HttpResponse {
        self.http.send_body("POST", &format!("/hooks/{hook}"), kind, headers, body)
    }

    /// Sends a JSON body with a GitHub signature.
    #[track_caller]
    pub(crate) fn post_signed(&self, hook: &str, body: &str) -> HttpResponse {
        let signature =
            format!("X-Hub-Signature-256: sha256={}", hmac("sha256", HOOK_SECRET, body));
        self.post(hook, "application/json", &[&signature], body)
    }

    #[track_caller]
    pub(crate) fn hook_counts(&self) -> Value {
        self.http.get("/stats").json()["hooks"].clone()
    }
}

pub(crate) fn write_config(folder: &Path, config: &str) {
    let secrets = folder.join("secret");
    fs::write(&secrets, format!("{HOOK_SECRET}\n")).unwrap();
    fs::write(folder.join("standard"), STANDARD_WEBHOOKS_SECRET).unwrap();
    let config = config.replace("SECRETS", secrets.to_str().unwrap());
    fs::write(folder.join("hooks.toml"), config).unwrap();
}

/// The configuration of a hook with GitHub signatures, with more lines.
pub(crate) fn github_hook(name: &str, lines: &str) -> String {
    format!(
        "[[hook]]\nname = '{name}'\nsecret-file = 'SECRETS'\nsignature = 'github'\n\
         url = {{ pointer = '/urls/*' }}\nprefixes = ['https://blog.example/posts/']\n{lines}\n"
    )
}

pub(crate) fn hmac_base64(secret: &str, text: &str) -> String {
    let bytes = openssl(&["dgst", "-sha256", "-hmac", secret, "-binary"], text.as_bytes());
    String::from_utf8(openssl(&["base64", "-A"], &bytes)).unwrap()
}

pub(crate) fn unix_seconds() -> String {
    String::from_utf8(Command::new("date").arg("+%s").output().unwrap().stdout)
        .unwrap()
        .trim()
        .to_owned()
}

//! One browser that runs: its processes, and the connection to it.

use std::time::Duration;

use serde_json::json;

use crate::cdp::Connection;
use crate::process::{LaunchError, Launcher, Process, Report};

/// How long a browser may take to start. A loaded machine needs seconds.
const START_MAX: Duration = Duration::from_secs(20);

/// How long a call may take that no page can slow down.
const CALL_MAX: Duration = Duration::from_secs(5);

/// A browser. Its processes are killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Browser {
    process: Process,
    connection: Connection,
    version: String,
}

impl Browser {
    /// Starts a browser, and waits until it answers.
    pub(crate) async fn start(
        launcher: &Launcher,
        renderer_bytes_max: u64,
    ) -> Result<Self, LaunchError> {
        let (process, to_browser, from_browser) = launcher.start(renderer_bytes_max)?;
        let connection = Connection::new(to_browser, from_browser)?;
        let version = connection.call("", "Browser.getVersion", json!({}), START_MAX);
        // Frames, workers and windows that a page opens are paused until their requests are
        // intercepted.
        let attach = json!({ "autoAttach": true, "waitForDebuggerOnStart": true, "flatten": true });
        let answers = async {
            let version = version.await?;
            connection.call("", "Target.setAutoAttach", attach, CALL_MAX).await?;
            Ok(version["product"].as_str().unwrap_or_default().to_owned())
        };
        match answers.await {
            Ok(version) => Ok(Self { process, connection, version }),
            Err::<_, crate::cdp::CallError>(error) => {
                let messages = process.messages().await;
                Err(LaunchError::Browser(format!("{error}: {messages}")))
            }
        }
    }

    /// The name and version, such as `HeadlessChrome/156.0.8078.108`.
    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// Waits for the next report of the processes. `None` when no process of the browser is left.
    /// Cancel-safe.
    pub(crate) async fn report(&mut self) -> Option<Report> {
        self.process.report().await
    }

    /// Begins to kill all processes of the browser.
    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }

    /// Asks the browser to end.
    pub(crate) fn close(&self) {
        // Without an answer, it is killed later.
        let _ = self.connection.post("", "Browser.close", json!({}));
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }
}

//! The dashboard in Chromium. The scripts are in `tests/dashboard`; the tests start the servers, and
//! compare what a page said with commands, curl, the origin and the audit log.

mod actions;
mod away;
mod browsers;
mod crawl;
mod drain;
mod hidden;
mod hostile;
mod look;
mod pictures;
mod proxy;
mod results;
mod rights;
mod sites;
mod topics;
mod world;

use std::process::Command;

use serde_json::Value;

use crate::support::process::Process;

/// A running script of `tests/dashboard`.
struct Script(Process);

impl Script {
    #[track_caller]
    fn start(name: &str, arguments: &[&str]) -> Self {
        let script = format!("{}/tests/dashboard/{name}.mjs", env!("CARGO_MANIFEST_DIR"));
        Self(Process::start(Command::new("node").arg(script).args(arguments)))
    }

    /// Waits until the script asks for something, does it, and tells the script what came of it.
    #[track_caller]
    fn when<T: Into<Value>>(&mut self, asked: &str, act: impl FnOnce() -> T) {
        let line = format!("> {asked}");
        self.0.wait_for_line(&line, |it| it.contains(&line).then_some(()));
        let answer: Value = act().into();
        self.0.write(format!("{answer}\n"));
    }

    /// Waits for the end, and returns what the script returned.
    #[track_caller]
    fn finish(self) -> Value {
        let output = self.0.finish().expect_code(0).stdout();
        serde_json::from_str(output.last().unwrap()).unwrap()
    }
}

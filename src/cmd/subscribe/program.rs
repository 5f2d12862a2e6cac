//! `--exec`: a program that is run for each event, with the event in its environment.

use std::{ffi::OsString, process::Stdio};

pub(super) use tidings_subscriber::program::{Programs, Running, failure, is_signal};

use tidings_protocol::Payload;
use tokio::process::Command;

use crate::{address::BrokerAddress, failure::Failure};

/// What is run, and for whom. It is started directly: no shell looks at it, or at an event.
#[derive(Debug, Clone)]
pub(super) struct Program {
    /// The program and its arguments; at least one.
    words: Vec<OsString>,
    broker: String,
    all: Programs,
}

impl Program {
    /// `None` if there is nothing to run.
    pub(super) fn new(words: Vec<OsString>, broker: &BrokerAddress, all: Programs) -> Option<Self> {
        (!words.is_empty()).then(|| Self { words, broker: broker.to_string(), all })
    }

    /// Starts it for an event.
    pub(super) fn start(&self, payload: &str, about: &[(&str, &str)]) -> Result<Running, Failure> {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).stdin(Stdio::null());
        // So that a `tidings` in it talks to the same broker.
        command.env("TIDINGS_BROKER", &self.broker);
        for name in ["EVENT_URL", "EVENT_TOPIC", "EVENT_SEQ", "EVENT_GROUP", "EVENT_TASK"] {
            command.env_remove(name);
        }
        command.env("EVENT_PAYLOAD", payload);
        if let Some(target) = Payload::parse(payload).target() {
            command.env("EVENT_URL", target);
        }
        command.envs(about.iter().copied());
        self.all.start(command).map_err(|error| {
            let program = self.words[0].display();
            Failure::failed(format!("cannot run {program}: {error}"))
        })
    }
}

//! `--exec`: a program that is run for each event, with the event in its environment.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStringExt,
    process::Stdio,
};

pub(super) use tidings_subscriber::program::{Programs, Running, failure, is_signal};

use tidings_connectors::files::name::decode;
use tidings_protocol::Payload;
use tokio::process::Command;

use super::{tail::Tail, writer::Writer};
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
    /// `None` if there is nothing to run. What stands behind `--exec` is all of it: a flag that comes first was meant
    /// for somebody else.
    pub(super) fn new(
        words: Vec<OsString>,
        broker: &BrokerAddress,
        all: Programs,
    ) -> Result<Option<Self>, Failure> {
        let Some(program) = words.first() else { return Ok(None) };
        if program.as_encoded_bytes().starts_with(b"-") {
            let program = program.display();
            return Err(Failure::Usage(format!(
                "{program} is no program: what stands behind --exec belongs to it, other flags stand before"
            )));
        }
        Ok(Some(Self { words, broker: broker.to_string(), all }))
    }

    /// Starts it for an event; what it prints is printed by this process.
    pub(super) fn start(&self, payload: &str, about: &[(&str, &str)]) -> Result<Running, Failure> {
        self.run(self.command(payload, about))
    }

    /// The same, with the end of what it prints, which is written there: standard output, and errors.
    pub(super) fn start_with_tail(
        &self,
        payload: &str,
        about: &[(&str, &str)],
        to: &[Writer; 2],
    ) -> Result<(Running, Tail), Failure> {
        let mut command = self.command(payload, about);
        let (tail, [out, errors]) = Tail::new(to).map_err(|error| self.refused(&error))?;
        command.stdout(out).stderr(errors);
        Ok((self.run(command)?, tail))
    }

    /// Whether the event would be an argument that begins with a dash, and so, to most programs, an option: whoever
    /// publishes would decide what the program does. Behind `--` it is what it is.
    pub(super) fn would_be_option(&self, payload: &str) -> bool {
        let mut options = self.words[1..].iter().take_while(|word| *word != "--");
        payload.starts_with('-') && options.any(|word| word == "{}")
    }

    fn command(&self, payload: &str, about: &[(&str, &str)]) -> Command {
        let target = Payload::parse(payload).target();
        let path = target.filter(|target| target.starts_with('/')).map(path);
        // A path and a URL begin otherwise, so `would_be_option` is about what is none.
        let event = path.as_deref().unwrap_or(OsStr::new(target.unwrap_or(payload)));
        let mut command = Command::new(&self.words[0]);
        // Only a whole argument, so that no event becomes a part of a script or of an option.
        let arguments = self.words[1..].iter();
        command.args(arguments.map(|word| if word == "{}" { event } else { word }));
        command.stdin(Stdio::null());
        // So that a `tidings` in it talks to the same broker.
        command.env("TIDINGS_BROKER", &self.broker);
        for name in VARIABLES {
            command.env_remove(name);
        }
        command.env("EVENT_PAYLOAD", payload);
        command.envs(target.map(|target| ("EVENT_URL", target)));
        command.envs(path.as_ref().map(|path| ("EVENT_PATH", path)));
        command.envs(about.iter().copied());
        command
    }

    fn run(&self, command: Command) -> Result<Running, Failure> {
        self.all.start(command).map_err(|error| self.refused(&error))
    }

    fn refused(&self, error: &std::io::Error) -> Failure {
        let program = self.words[0].display();
        Failure::failed(format!("cannot run {program}: {error}"))
    }
}

/// Variables that are not always set, and mean something here alone.
const VARIABLES: [&str; 6] =
    ["EVENT_URL", "EVENT_PATH", "EVENT_TOPIC", "EVENT_SEQ", "EVENT_GROUP", "EVENT_TASK"];

/// The name of a file as the system has it. No argument and no variable can hold a NUL, nor has a file one.
fn path(target: &str) -> OsString {
    let path = decode(target);
    if path.contains(&0) { target.into() } else { OsString::from_vec(path) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(payload: &str, words: &[&str]) -> (Vec<String>, Vec<(String, String)>) {
        let broker = "127.0.0.1:1".parse().unwrap();
        let words = words.iter().map(OsString::from).collect();
        let program = Program::new(words, &broker, Programs::default()).unwrap().unwrap();
        let command = program.command(payload, &[]);
        let text = |text: &OsStr| text.to_string_lossy().into_owned();
        let variables = command.as_std().get_envs();
        let variables = variables.filter_map(|(name, value)| Some((text(name), text(value?))));
        (command.as_std().get_args().map(text).collect(), variables.collect())
    }

    #[test]
    fn an_event_is_a_whole_argument_or_none() {
        let words = ["p", "{}", "a{}", "{}{}", "-c", "echo {}"];
        let (arguments, variables) = started("/a%20b%0Ac size=1", &words);
        assert_eq!(arguments, ["/a b\nc", "a{}", "{}{}", "-c", "echo {}"]);
        for (name, value) in [("EVENT_URL", "/a%20b%0Ac"), ("EVENT_PATH", "/a b\nc")] {
            assert!(variables.contains(&(name.into(), value.into())), "{variables:?}");
        }
        assert_eq!(started("http://a.example/%20 x=1", &words).0[0], "http://a.example/%20");
        assert_eq!(started("some text", &words).0[0], "some text");
    }

    #[test]
    fn no_event_becomes_an_option() {
        let would_be = |payload: &str, words: &[&str]| {
            let broker = "127.0.0.1:1".parse().unwrap();
            let words = words.iter().map(OsString::from).collect();
            let program = Program::new(words, &broker, Programs::default()).unwrap().unwrap();
            program.would_be_option(payload)
        };
        assert!(would_be("-rf", &["rm", "{}"]) && would_be("--x", &["p", "a", "{}", "--"]));
        assert!(!would_be("-rf", &["rm", "--", "{}"]) && !would_be("-rf", &["p", "a"]));
        assert!(!would_be("/-rf", &["rm", "{}"]) && !would_be("a -rf", &["rm", "{}"]));
    }

    #[test]
    fn what_no_argument_can_hold_stays_encoded() {
        assert_eq!(started("/a%00%20b", &["p", "{}"]).0, ["/a%00%20b"]);
    }
}

//! `--exec`: runs a program for each event, with the event in its environment.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::Stdio;

use tidings_connectors::files::path_encoding::decode;
use tidings_protocol::Payload;
pub(super) use tidings_subscriber::program::{Programs, RunningProgram, failure, is_signal};
use tokio::process::Command;

use super::tail::OutputTail;
use super::writer::OutputWriter;
use crate::flags::address::BrokerAddress;
use crate::terminal::failure::Failure;

/// The program and its broker. It is started without a shell, so that no shell interprets an event.
#[derive(Debug, Clone)]
pub(super) struct Program {
    /// The program and its arguments; at least one word.
    words: Vec<OsString>,
    broker: String,
    programs: Programs,
}

impl Program {
    /// `None` without a program. All words after `--exec` belong to it, so a first word that
    /// looks like a flag is a mistake.
    pub(super) fn new(
        words: Vec<OsString>,
        broker: &BrokerAddress,
        all: Programs,
    ) -> Result<Option<Self>, Failure> {
        let Some(program) = words.first() else { return Ok(None) };
        if program.as_encoded_bytes().starts_with(b"-") {
            let program = program.display();
            return Err(Failure::Usage(format!(
                "{program} is not a program: all words after --exec belong to the program; write other flags before it"
            )));
        }
        if !is_found(program) {
            return Err(Failure::failed(format!(
                "cannot run {}: no such program",
                program.display()
            )));
        }
        Ok(Some(Self { words, broker: broker.to_string(), programs: all }))
    }

    /// Starts it for an event; it writes to the output of this process.
    pub(super) fn start(
        &self,
        payload: &str,
        about: &[(&str, &str)],
    ) -> Result<RunningProgram, Failure> {
        self.run(self.command(payload, about))
    }

    /// Starts it and keeps the end of its output, which is forwarded to these writers: standard
    /// output, then standard error.
    pub(super) fn start_with_tail(
        &self,
        payload: &str,
        about: &[(&str, &str)],
        to: &[OutputWriter; 2],
    ) -> Result<(RunningProgram, OutputTail), Failure> {
        let mut command = self.command(payload, about);
        let (tail, [out, errors]) =
            OutputTail::new(to).map_err(|error| self.start_failure(&error))?;
        command.stdout(out).stderr(errors);
        Ok((self.run(command)?, tail))
    }

    /// Whether the event would become an argument that begins with a dash, which most programs read
    /// as an option: the publisher could control the program. After `--` it is safe.
    pub(super) fn would_be_option(&self, payload: &str) -> bool {
        let mut options = self.words[1..].iter().take_while(|word| *word != "--");
        payload.starts_with('-') && options.any(|word| word == "{}")
    }

    fn command(&self, payload: &str, about: &[(&str, &str)]) -> Command {
        let read = Payload::parse(payload);
        let target = read.target();
        let path = target.filter(|target| target.starts_with('/')).map(path);
        // A path or a URL does not begin with a dash, so `would_be_option` concerns only other
        // payloads.
        let event = path.as_deref().unwrap_or(OsStr::new(target.unwrap_or(payload)));
        let mut command = Command::new(&self.words[0]);
        // Only a whole argument is replaced, so that no event becomes part of a script or an
        // option.
        let arguments = self.words[1..].iter();
        command.args(arguments.map(|word| if word == "{}" { event } else { word }));
        command.stdin(Stdio::null());
        // So that a `tidings` in the program uses the same broker.
        command.env("TIDINGS_BROKER", &self.broker);
        for name in EVENT_VARIABLES {
            command.env_remove(name);
        }
        command.env("EVENT_PAYLOAD", payload);
        command.envs(target.map(|target| ("EVENT_URL", target)));
        command.envs(path.as_ref().map(|path| ("EVENT_PATH", path)));
        command.envs(read.traceparent().map(|value| ("TRACEPARENT", value)));
        command.envs(about.iter().copied());
        command
    }

    fn run(&self, command: Command) -> Result<RunningProgram, Failure> {
        self.programs.start(command).map_err(|error| self.start_failure(&error))
    }

    fn start_failure(&self, error: &std::io::Error) -> Failure {
        let program = self.words[0].display();
        Failure::failed(format!("cannot run {program}: {error}"))
    }
}

/// Whether there is a file of this name, in the folders of `PATH` if the name has no slash.
fn is_found(program: &OsStr) -> bool {
    let folders = env::var_os("PATH");
    if program.as_bytes().contains(&b'/') || folders.is_none() {
        // Without a `PATH`, the system has folders of its own.
        return folders.is_none() || Path::new(program).is_file();
    }
    folders.iter().flat_map(env::split_paths).any(|folder| folder.join(program).is_file())
}

/// Variables that are not always set and must not be inherited.
const EVENT_VARIABLES: [&str; 7] = [
    "EVENT_URL",
    "EVENT_PATH",
    "EVENT_TOPIC",
    "EVENT_SEQ",
    "EVENT_GROUP",
    "EVENT_TASK",
    "TRACEPARENT",
];

/// The path in the encoding of the file system. A path with a NUL cannot be passed, so it stays
/// encoded.
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
    fn an_event_replaces_only_a_whole_argument() {
        let words = ["sh", "{}", "a{}", "{}{}", "-c", "echo {}"];
        let (arguments, variables) = started("/a%20b%0Ac size=1", &words);
        assert_eq!(arguments, ["/a b\nc", "a{}", "{}{}", "-c", "echo {}"]);
        for (name, value) in [("EVENT_URL", "/a%20b%0Ac"), ("EVENT_PATH", "/a b\nc")] {
            assert!(variables.contains(&(name.into(), value.into())), "{variables:?}");
        }
        assert_eq!(started("http://a.example/%20 x=1", &words).0[0], "http://a.example/%20");
        assert_eq!(started("some text", &words).0[0], "some text");
    }

    #[test]
    fn an_event_never_becomes_an_option() {
        let would_be = |payload: &str, words: &[&str]| {
            let broker = "127.0.0.1:1".parse().unwrap();
            let words = words.iter().map(OsString::from).collect();
            let program = Program::new(words, &broker, Programs::default()).unwrap().unwrap();
            program.would_be_option(payload)
        };
        assert!(would_be("-rf", &["rm", "{}"]) && would_be("--x", &["sh", "a", "{}", "--"]));
        assert!(!would_be("-rf", &["rm", "--", "{}"]) && !would_be("-rf", &["sh", "a"]));
        assert!(!would_be("/-rf", &["rm", "{}"]) && !would_be("a -rf", &["rm", "{}"]));
    }

    #[test]
    fn a_path_with_nul_stays_encoded() {
        assert_eq!(started("/a%00%20b", &["sh", "{}"]).0, ["/a%00%20b"]);
    }
}

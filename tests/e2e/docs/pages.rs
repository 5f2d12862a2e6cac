//! Runs the examples of every page: README.md and all Markdown files below
//! docs/.
//!
//! A block with `C:` and `B:` lines is a session with a fresh broker. A block with `$ ` lines runs
//! in a shell; each page has its own shell and folder, so no page depends on another. Numbers may
//! differ from those on the page. Task ids and seqs are bound to the real ones where they first
//! appear. `..` at the end of a line matches any text.

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::{fs, thread};

use tempfile::TempDir;

use crate::support::line_connection::LineConnection;
use crate::support::ports::free_port;
use crate::support::process::{Process, Server, in_place_of, run_tidings, tidings_command};
use crate::support::wait::wait_until;

/// Ports in the documents. Each page gets free ones in their place.
const PORTS: [&str; 9] =
    ["12345", "8000", "12346", "12347", "12348", "12443", "12444", "12445", "8001"];

/// Flags in the pages that belong to cargo, to a script or another program of the repository, to
/// certbot, or to a build with another feature.
const FOREIGN_FLAGS: [&str; 6] =
    ["--no-default-features", "--features", "--quick", "--only", "--rate", "--zmq-key"];

/// A fenced code block of a document.
pub(crate) struct CodeBlock {
    /// The word after the opening fence.
    pub(crate) kind: String,
    /// The line number of the first line.
    pub(crate) first_line: usize,
    pub(crate) lines: Vec<String>,
    /// The last line of text before the block.
    pub(crate) preceding_line: String,
}

/// The folder of the specification.
pub(crate) const SPECIFICATION: &str = "docs/protocol/";

/// The pages of the manual, as paths in the repository.
pub(crate) fn pages() -> Vec<String> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pages = vec!["README.md".to_owned()];
    let mut open = vec![repository.join("docs")];
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path.strip_prefix(repository).unwrap().to_str().unwrap().to_owned());
        }
    }
    pages.sort();
    pages
}

pub(crate) fn code_blocks(file: &str) -> Vec<CodeBlock> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let text =
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut blocks = Vec::new();
    let (mut open, mut before): (Option<CodeBlock>, _) = (None, "");
    for (number, line) in (1..).zip(text.lines()) {
        match (&mut open, line.strip_prefix("```")) {
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(block), None) => block.lines.push(line.to_owned()),
            (None, Some(kind)) => {
                let kind = kind.to_owned();
                let before = before.to_owned();
                open = Some(CodeBlock {
                    kind,
                    first_line: number + 1,
                    lines: Vec::new(),
                    preceding_line: before,
                });
            }
            (None, None) if line.is_empty() => {}
            (None, None) => before = line,
        }
    }
    assert!(open.is_none(), "{file}: a fence is not closed");
    blocks
}

#[test]
fn every_session_of_the_specification_runs_as_shown() {
    let mut sessions = 0;
    for page in pages().iter().filter(|page| page.starts_with(SPECIFICATION)) {
        for block in code_blocks(page) {
            if block.lines.iter().any(|line| line.starts_with("C: ") || line.starts_with("B: ")) {
                run_session(page, &block);
                sessions += 1;
            }
        }
    }
    assert!(sessions >= 6, "{sessions} sessions found");
}

#[test]
#[ignore = "needs foreign programs"]
fn every_shell_example_runs_as_shown() {
    let pages = pages();
    let mut commands = 0;
    // Pages mostly wait for a broker or a clock, so several run at once.
    for group in pages.chunks(3) {
        thread::scope(|scope| {
            let followed: Vec<_> =
                group.iter().map(|page| (page, scope.spawn(|| run_page(page)))).collect();
            for (page, followed) in followed {
                commands += followed.join().unwrap_or_else(|_| panic!("{page} failed, see above"));
            }
        });
    }
    assert!(commands >= 100, "{commands} commands found");
}

/// Runs the shell examples of a page and returns their number.
fn run_page(page: &str) -> usize {
    let mut shell = PageShell::start();
    if page.starts_with(SPECIFICATION) {
        // A reader of the specification already has a broker.
        shell.run(page, "tidings broker &", &["listening on 127.0.0.1:12345".to_owned()]);
    }
    let mut commands = 0;
    for block in code_blocks(page) {
        let location = format!("{page}:{}", block.first_line);
        if block.kind.is_empty() {
            // Output of a background program.
            shell.expect_lines(&location, &block.lines);
        }
        let mut lines = block.lines.iter().peekable();
        while let Some(line) = lines.next() {
            let Some(command) = line.strip_prefix("$ ") else { continue };
            let output = std::iter::from_fn(|| lines.next_if(|line| !line.starts_with("$ ")));
            let expected: Vec<_> = output.cloned().collect();
            shell.run(&location, command, &expected);
            commands += 1;
        }
    }
    commands
}

/// Blocks of `sh` need more machines or more time than a test has. Their commands are not run, but
/// each command must exist with its flags.
#[test]
fn every_other_command_exists_with_its_flags() {
    let folder = TempDir::new().unwrap();
    let mut commands = 0;
    for page in pages() {
        for block in code_blocks(&page).iter().filter(|block| block.kind == "sh") {
            for line in block.lines.join("\n").replace("\\\n", " ").lines() {
                let expected = line.split_once(" #").map_or(line, |(command, _)| command);
                for command in expected.split(" | ") {
                    commands += 1;
                    expect_command_exists(
                        folder.path(),
                        &format!("{page}:{}", block.first_line),
                        command,
                    );
                }
            }
        }
    }
    assert!(commands >= 30, "{commands} commands found");
}

/// Checks that a subcommand has these flags, or that a script of the repository exists.
#[track_caller]
fn expect_command_exists(folder: &Path, location: &str, command: &str) {
    let mut words = shell_words(command);
    // The rest belongs to the shell or to another program.
    let end = words.iter().position(|word| ["<", ">", ">>", "&", "--exec"].contains(&&**word));
    words.truncate(end.unwrap_or(words.len()));
    let Some((program, arguments)) = words.split_first() else { return };
    if program == "tidings" {
        eprintln!("{location}: {command}");
        let arguments = arguments.iter().map(String::as_str).chain(["--help"]);
        run_tidings(folder, &arguments.collect::<Vec<_>>()).expect_code(0);
    } else if program.contains('/') && !program.starts_with(['/', '#']) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(program);
        assert!(path.is_file(), "{location}: {program} does not exist");
    }
}

/// Splits a command into words as a shell does; quotes of both kinds keep spaces.
fn shell_words(command: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    for c in command.chars().chain([' ']) {
        match quote {
            Some(open) if c == open => quote = None,
            None if c == '\'' || c == '"' => quote = Some(c),
            None if c.is_whitespace() => words.extend(Some(std::mem::take(&mut word))),
            _ => word.push(c),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Flags in text and tables: `--flag` must belong to any command, `tidings command .. --flag` to
/// that command.
#[test]
fn every_flag_that_a_page_names_exists() {
    let helps = help_texts();
    let all: BTreeSet<_> = helps.values().flat_map(|help| long_flags(help)).collect();
    let mut flags = 0;
    for page in pages() {
        for code in inline_code(&page) {
            let words: Vec<_> = code.split_whitespace().collect();
            let command =
                (1..=words.len().min(3)).rev().find_map(|n| helps.get(&words[..n].join(" ")));
            let known = match command {
                Some(help) => long_flags(help).collect(),
                None if code.starts_with("--") => all.clone(),
                // Code of another program, or of the protocol.
                None => continue,
            };
            for flag in long_flags(&code).filter(|flag| !FOREIGN_FLAGS.contains(flag)) {
                assert!(known.contains(flag), "{page}: `{code}`: {flag} does not exist");
                flags += 1;
            }
        }
    }
    assert!(flags >= 200, "{flags} flags found");
}

/// The help of `tidings` and of each of its commands, by the words of the command.
pub(crate) fn help_texts() -> BTreeMap<String, String> {
    let folder = TempDir::new().unwrap();
    let mut helps = BTreeMap::new();
    let mut open = vec!["tidings".to_owned()];
    while let Some(command) = open.pop() {
        let arguments: Vec<_> = command.split(' ').skip(1).chain(["--help"]).collect();
        let help = run_tidings(folder.path(), &arguments).expect_code(0).stdout();
        let is_title = |line: &&String| line.ends_with("ommands:");
        let commands = help.iter().skip_while(|line| !is_title(line)).skip(1);
        for line in commands.take_while(|line| line.starts_with("  ")) {
            // Continuation lines of a description are indented further.
            let name = line[2..].split(' ').next().unwrap_or_default();
            // `help` takes the name of a command and no flags.
            if !["", "help"].contains(&name) {
                open.push(format!("{command} {name}"));
            }
        }
        helps.insert(command, help.join("\n"));
    }
    assert!(helps.len() >= 40, "{:?}", helps.keys());
    helps
}

/// The long flags in a text, without their values.
pub(crate) fn long_flags(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    words.filter(|word| word.len() > 2 && word.starts_with("--"))
}

/// Inline code of a page, outside of blocks.
fn inline_code(page: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
    let text = fs::read_to_string(path).unwrap();
    // Every second piece is a block.
    let prose = text.split("\n```").step_by(2);
    prose.flat_map(|prose| prose.split('`').skip(1).step_by(2)).map(str::to_owned).collect()
}

#[test]
fn every_file_that_a_document_names_exists() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = [
        "bench/",
        "broker/",
        "connectors/",
        "docs/",
        "examples/",
        "packaging/",
        "protocol/",
        "src/",
        "subscriber/",
        "tests/",
    ];
    let mut files = 0;
    let others = ["ARCHITECTURE.md", "CHANGELOG.md"].map(str::to_owned);
    for document in pages().into_iter().chain(others) {
        let text = fs::read_to_string(repository.join(&document)).unwrap();
        let quoted = text.split('`').skip(1).step_by(2).filter_map(|text| text.split(' ').next());
        for name in quoted.filter(|name| folders.iter().any(|folder| name.starts_with(folder))) {
            assert!(repository.join(name).exists(), "{document}: {name} does not exist");
            files += 1;
        }
    }
    assert!(files >= 40, "{files} files found");
}

#[test]
fn every_test_that_the_threat_model_names_exists() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = [
        "tests/e2e",
        "broker/src",
        "broker/queue/src",
        "src",
        "egress/src",
        "subscriber/src",
        "subscriber/browser/tests",
        "connectors/src",
    ];
    let mut code = String::new();
    let mut open: Vec<_> = folders.iter().map(|folder| repository.join(folder)).collect();
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            code += &fs::read_to_string(path).unwrap();
        }
    }
    let text = fs::read_to_string(repository.join("docs/threats.md")).unwrap();
    let names = text.split('`').skip(1).step_by(2).filter(|name| name.matches('_').count() >= 4);
    let mut tests = 0;
    for name in names {
        let at = code
            .find(&format!("fn {name}("))
            .unwrap_or_else(|| panic!("docs/threats.md names {name}, which does not exist"));
        // Properties of a proptest block share its attribute.
        let before = &code[code[..at].rmatch_indices("\n\n").next().unwrap().0..at];
        assert!(before.contains("test]") || before.contains("proptest!"), "{name} is not a test");
        tests += 1;
    }
    assert!(tests >= 50, "{tests} tests found");
}

/// A bash for the examples of one document. It has its own folder with the repository's examples/,
/// free ports in place of the ports of the document, and the binary under test as `tidings`.
struct PageShell {
    bash: Process,
    /// Lines printed before the current command.
    printed_lines: usize,
    commands: usize,
    /// Each port of the document with the free port that replaces it.
    ports: Vec<(&'static str, u16)>,
    _folder: TempDir,
}

impl PageShell {
    #[track_caller]
    fn start() -> Self {
        let folder = TempDir::new().unwrap();
        let ports: Vec<_> = PORTS.map(|port| (port, free_port())).into();
        let broker = format!("127.0.0.1:{}", ports[0].1);
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
        symlink(examples, folder.path().join("examples")).unwrap();
        let binary = tidings_command(folder.path(), [""; 0]);
        let binaries =
            Path::new(binary.get_program()).parent().unwrap().to_str().unwrap().to_owned();
        let mut bash = in_place_of(Command::new("bash"), &binary);
        bash.args(["-c", "exec 2>&1; while IFS= read -r line; do eval \"$line\" </dev/null; done"])
            .env("PATH", format!("{binaries}:{}", std::env::var("PATH").unwrap()))
            .env("TIDINGS_LISTEN", &broker)
            .env("TIDINGS_HTTP", format!("127.0.0.1:{}", ports[2].1))
            .env("TIDINGS_BROKER", &broker)
            // Unbuffered Python writes the end of its first line separately, after output of other
            // programs.
            .env_remove("PYTHONUNBUFFERED")
            // A process group, so that background programs can be killed as well.
            .process_group(0);
        Self {
            bash: Process::start(&mut bash),
            printed_lines: 0,
            commands: 0,
            ports,
            _folder: folder,
        }
    }

    /// Runs a command and waits until it is done and has printed the shown lines. Other lines may
    /// come in between, such as those of background programs.
    #[track_caller]
    fn run(&mut self, location: &str, command: &str, shown: &[String]) {
        eprintln!("{location}: {command}");
        self.commands += 1;
        let end_marker = format!("-- command {} is done", self.commands);
        self.bash.write(format!("{}\n", self.with_local_ports(command)));
        if command.contains("http.server") {
            // The server prints nothing before its first request.
            let site = self.ports[1].1;
            wait_until("the site to be served", || TcpStream::connect(("127.0.0.1", site)).ok());
        }
        self.bash.write(format!("echo '{end_marker}'\n"));
        let output = self.bash.wait_for_lines_in_order(
            self.printed_lines,
            &[end_marker],
            |expected, line| expected == line,
        );
        self.bash.wait_for_lines_in_order(self.printed_lines, shown, is_same_shape);
        self.printed_lines = output;
    }

    /// Waits until programs started so far have printed these lines.
    #[track_caller]
    fn expect_lines(&self, location: &str, expected: &[String]) {
        eprintln!("{location}: expecting {expected:#?}");
        self.bash.wait_for_lines_in_order(0, expected, is_same_shape);
    }

    /// The text with the local ports. Only whole numbers are replaced, because a free port may
    /// contain `8000`.
    fn with_local_ports(&self, text: &str) -> String {
        let mut here = String::new();
        let mut number = String::new();
        for c in text.chars().map(Some).chain([None]) {
            if let Some(digit) = c.filter(char::is_ascii_digit) {
                number.push(digit);
                continue;
            }
            match self.ports.iter().find(|(port, _)| *port == number) {
                Some((_, port)) => here += &port.to_string(),
                None => here += &number,
            }
            number.clear();
            here.extend(c);
        }
        here
    }
}

/// Runs one session, after preparing the events, jobs and memberships that it requires.
fn run_session(page: &str, block: &CodeBlock) {
    let server = Server::start_broker();
    let mut client = LineConnection::connect_client(server.address);
    prepare_session(&server, &mut client, &block.lines.join("\n"));
    let mut ids = BTreeMap::new();
    let mut commands = String::new();
    for (number, line) in (block.first_line..).zip(&block.lines) {
        let location = format!("{page}:{number}");
        if let Some(command) = line.strip_prefix("C: ") {
            let words: Vec<_> =
                command.split(' ').map(|word| ids.get(word).map_or(word, String::as_str)).collect();
            commands += &words.join(" ");
            commands.push('\n');
        } else if let Some(expected) = line.strip_prefix("B: ") {
            // One write, because responses of separate writes might not be combined.
            client.send(std::mem::take(&mut commands));
            let received = client.read_line();
            bind_ids(expected, &received, &mut ids);
            assert_same_shape(&location, expected, &received);
        } else {
            panic!("{location}: a line of neither client nor broker: {line}");
        }
    }
}

impl Drop for PageShell {
    fn drop(&mut self) {
        let group = format!("kill -KILL -{}", self.bash.id());
        let _ = Command::new("sh").args(["-c", &group]).status();
    }
}

/// Prepares the state in which the session begins.
fn prepare_session(server: &Server, client: &mut LineConnection, block: &str) {
    let mut other = LineConnection::connect_client(server.address);
    let mut setup = |commands: &[&str]| {
        for command in commands {
            other.request_ok(command);
        }
    };
    if block.contains("B: MSG new-url ") {
        setup(&["PUB new-url http://example.org/a", "PUB new-url http://example.org/b job=docs"]);
    }
    if block.contains("B: TASK ") {
        setup(&["GROUP create crawlers delay=0"]);
        if block.contains("job=docs") {
            setup(&["JOB open docs", "PUB new-url http://example.org/docs/ job=docs"]);
        } else {
            setup(&["PUB new-url http://example.org/old"]);
        }
        client.request_ok("JOIN crawlers credit=1");
    }
}

/// Binds each task id of the document to the real task, and each seq to the real seq.
fn bind_ids(expected: &str, received: &str, ids: &mut BTreeMap<String, String>) {
    let is_event = expected.starts_with("MSG ");
    for (at, (expected, received)) in expected.split(' ').zip(received.split(' ')).enumerate() {
        if expected.starts_with("crawlers:") || is_event && at == 2 {
            let bound = ids.entry(expected.to_owned()).or_insert_with(|| received.to_owned());
            assert_eq!(bound, received, "{expected} stands for two values");
        }
    }
}

#[track_caller]
fn assert_same_shape(location: &str, expected: &str, received: &str) {
    assert!(
        is_same_shape(expected, received),
        "{location}\n expected: {expected}\n received: {received}"
    );
}

pub(crate) fn is_same_shape(expected: &str, received: &str) -> bool {
    let (expected, received) = (shape(expected), shape(received));
    match expected.strip_suffix("..") {
        Some(beginning) => received.starts_with(beginning),
        None => expected == received,
    }
}

/// The line with each number, decimal, hexadecimal or of a time, replaced by `0`, with single
/// spaces, and with durations in one unit.
fn shape(line: &str) -> String {
    let is_number = |word: &str| {
        let has_digit = word.contains(|c: char| c.is_ascii_digit());
        has_digit && word.chars().all(|c| c.is_ascii_digit() || "TZ".contains(c))
            || (word.len() >= 16 && word.chars().all(|c| c.is_ascii_hexdigit()))
    };
    let mut shape = String::new();
    let mut word = String::new();
    for c in line.chars().chain(['\n']) {
        if c.is_ascii_alphanumeric() {
            word.push(c);
            continue;
        }
        shape.push_str(if !word.is_empty() && is_number(&word) { "0" } else { &word });
        shape.push(c);
        word.clear();
    }
    // A duration of a slow machine may be shown in the next larger unit.
    shape.split_whitespace().collect::<Vec<_>>().join(" ").replace("0.0 s", "0 ms")
}

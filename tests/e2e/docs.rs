//! The examples of PROTOCOL.md, replayed: what a reader copies must work as it is shown.
//!
//! A block of `C:` and `B:` lines is a session with a fresh broker. Numbers may differ from those shown, ids of tasks
//! are bound to the real ones where they first appear, and `..` at the end of a line stands for anything.

use std::{collections::BTreeMap, fs, path::Path};

use crate::support::{process::Server, talk::Talk};

/// The blocks between fences of a document, each with the line number of its first line.
fn blocks(file: &str) -> Vec<(usize, Vec<String>)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let text =
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut blocks = Vec::new();
    let mut open: Option<(usize, Vec<String>)> = None;
    for (number, line) in (1..).zip(text.lines()) {
        match &mut open {
            Some(_) if line.starts_with("```") => blocks.extend(open.take()),
            Some((_, lines)) => lines.push(line.to_owned()),
            None if line.starts_with("```") => open = Some((number + 1, Vec::new())),
            None => {}
        }
    }
    assert!(open.is_none(), "{file}: a fence is not closed");
    blocks
}

#[test]
fn every_session_in_the_specification_goes_as_it_is_shown() {
    let mut sessions = 0;
    for (at, block) in blocks("protocol/PROTOCOL.md") {
        if block.iter().any(|line| line.starts_with("C: ") || line.starts_with("B: ")) {
            replay(at, &block);
            sessions += 1;
        }
    }
    assert!(sessions >= 6, "{sessions} sessions found");
}

/// One session. What it takes for granted is prepared first: events, jobs, membership.
fn replay(at: usize, block: &[String]) {
    let server = Server::broker();
    let mut client = Talk::client(server.address);
    prepare(&server, &mut client, &block.join("\n"));
    let mut ids = BTreeMap::new();
    for (number, line) in (at..).zip(block) {
        let place = format!("PROTOCOL.md:{number}");
        if let Some(said) = line.strip_prefix("C: ") {
            let words: Vec<_> =
                said.split(' ').map(|word| ids.get(word).map_or(word, String::as_str)).collect();
            client.send(format!("{}\n", words.join(" ")));
        } else if let Some(shown) = line.strip_prefix("B: ") {
            let heard = client.line();
            bind(shown, &heard, &mut ids);
            assert_same_shape(&place, shown, &heard);
        } else {
            panic!("{place}: neither client nor broker: {line}");
        }
    }
}

/// Makes what the session begins with.
fn prepare(server: &Server, client: &mut Talk, block: &str) {
    let mut other = Talk::client(server.address);
    let mut setup = |commands: &[&str]| {
        for command in commands {
            let answer = other.ask(command);
            assert!(answer.starts_with("+OK"), "{command}: {answer}");
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
        assert!(client.ask("JOIN crawlers credit=1").starts_with("+OK"));
    }
}

/// Remembers which real task an id of the document stands for.
fn bind(shown: &str, heard: &str, ids: &mut BTreeMap<String, String>) {
    for (shown, heard) in shown.split(' ').zip(heard.split(' ')) {
        if shown.starts_with("crawlers:") {
            let bound = ids.entry(shown.to_owned()).or_insert_with(|| heard.to_owned());
            assert_eq!(bound, heard, "two tasks for {shown}");
        }
    }
}

#[track_caller]
fn assert_same_shape(place: &str, shown: &str, heard: &str) {
    let (shown_shape, heard_shape) = (shape(shown), shape(heard));
    let same = match shown_shape.strip_suffix("..") {
        Some(beginning) => heard_shape.starts_with(beginning),
        None => shown_shape == heard_shape,
    };
    assert!(same, "{place}\n shown: {shown}\n heard: {heard}");
}

/// The line with every number, decimal or long hexadecimal, as `0`.
fn shape(line: &str) -> String {
    let is_number = |word: &str| {
        word.chars().all(|c| c.is_ascii_digit())
            || (word.len() == 32 && word.chars().all(|c| c.is_ascii_hexdigit()))
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
    shape.trim_end().to_owned()
}

#!/usr/bin/env python3
"""Writes tables.jsonl: the cases of the test suites of other robots.txt parsers, as data.

Each suite is run against its own parser, with every question and answer written down: since the suite passes, the
answers are what it expects. Needs the network (PyPI, npm, crates.io), and pip, npm and cargo.

    python3 convert.py > tables.jsonl

`convert.py --gpl` records gpyrobotstxt instead: Google's own suite as translated under the GPL, which is therefore
not kept here.
"""

import base64
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

PROTEGO = "protego==0.7.0"
ROBOTS_PARSER = "robots-parser@3.0.1"
TEXTING_ROBOTS = "0.2.2"
ROBOTS_BYTES_MAX = 64 * 1024
GPYROBOTSTXT = "gpyrobotstxt==1.0.0"

# A pytest plugin; prints one JSON list per answer.
PROTEGO_RECORDER = """
import json, os, pytest
from protego import Protego

out = open(os.environ["RECORD"], "a")
test = ""

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item):
    global test
    test = item.originalname

parse = Protego.parse.__func__
def recorded_parse(cls, content):
    robots = parse(cls, content)
    robots.recorded_text = content
    return robots
Protego.parse = classmethod(recorded_parse)

def record(name, kind):
    method = getattr(Protego, name)
    def recorded(self, *words):
        answer = method(self, *words)
        agent, url = words[-1], words[0] if kind == "allowed" else None
        print(json.dumps([test, self.recorded_text, agent, url, answer]), file=out, flush=True)
        return answer
    setattr(Protego, name, recorded)
record("can_fetch", "allowed")
record("crawl_delay", "delay")
"""

GPYROBOTSTXT_RECORDER = """
import json, os, pytest
from gpyrobotstxt.robots_cc import RobotsMatcher

out = open(os.environ["RECORD"], "a")
test = ""

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item):
    global test
    test = item.name

method = RobotsMatcher.one_agent_allowed_by_robots
def recorded(self, text, agent, url):
    answer = method(self, text, agent, url)
    text = text if isinstance(text, str) else text.decode()
    print(json.dumps([test, text, agent, url, answer]), file=out, flush=True)
    return answer
RobotsMatcher.one_agent_allowed_by_robots = recorded
"""

ROBOTS_PARSER_RECORDER = """
const fs = require('fs'), index = require.resolve('./index.js');
const parser = require(index);
let test = '';
beforeEach(function () { test = this.currentTest.title; });
require.cache[index].exports = function (url, text) {
    const robots = parser(url, text), put = (agent, asked, answer) =>
        answer === undefined && asked !== null ? answer :
        (fs.appendFileSync(process.env.RECORD, JSON.stringify(
            [test, text || '', agent || '*', asked, answer === undefined ? null : answer]) + '\\n'), answer);
    return {
        isAllowed: (asked, agent) => put(agent, asked, robots.isAllowed(asked, agent)),
        isDisallowed: (asked, agent) => {
            put(agent, asked, robots.isAllowed(asked, agent));
            return robots.isDisallowed(asked, agent);
        },
        getCrawlDelay: (agent) => put(agent, null, robots.getCrawlDelay(agent)),
        getSitemaps: () => robots.getSitemaps(),
        getPreferredHost: () => robots.getPreferredHost(),
        getMatchingLineNumber: (asked, agent) => robots.getMatchingLineNumber(asked, agent),
    };
};
"""

# Goes into the crate itself, which has its tests inside.
TEXTING_ROBOTS_RECORDER = """
    pub fn allowed(&self, url: &str) -> bool {
        let answer = self.answered(url);
        record(&self.text, &self.agent, Some(url), &answer.to_string());
        answer
    }
"""
TEXTING_ROBOTS_WRITER = r"""
fn quoted(bytes: &[u8]) -> String {
    format!("[{}]", bytes.iter().map(u8::to_string).collect::<Vec<_>>().join(","))
}
fn record(text: &[u8], agent: &str, url: Option<&str>, answer: &str) {
    use std::io::Write;
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("").rsplit("::").next().unwrap().to_owned();
    let url = url.map_or("null".to_owned(), |url| quoted(url.as_bytes()));
    let line = format!("[\"{test}\",{},{},{url},{answer}]\n", quoted(text), quoted(agent.as_bytes()));
    let path = std::env::var("RECORD").unwrap();
    let mut out = std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
    out.write_all(line.as_bytes()).unwrap();
}
"""


def run(*words, **options):
    subprocess.run(words, check=True, stdout=sys.stderr, **options)


def pytest(folder, package, recorder, tests):
    run(sys.executable, "-m", "venv", folder / "venv")
    pip = folder / "venv/bin/pip"
    run(pip, "install", "--quiet", "pytest", "pytest-timeout", package)
    run(pip, "download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest", folder, package)
    run("tar", "--extract", "--file", *folder.glob("*.tar.gz"), "--directory", folder)
    (folder / "recorder.py").write_text(recorder)
    source = next(path for path in folder.iterdir() if path.name.startswith(package.split("==")[0] + "-") and path.is_dir())
    words = [folder / "venv/bin/python", "-m", "pytest", "--quiet", "-p", "recorder", "-o", "addopts="]
    run(*words, *(source / test for test in tests), env={"PYTHONPATH": str(folder), "RECORD": str(folder / "record")})


def protego(folder):
    pytest(folder, PROTEGO, PROTEGO_RECORDER, ["tests/test_protego.py", "tests/test_on_google_spec.py"])


def gpyrobotstxt(folder):
    pytest(folder, GPYROBOTSTXT, GPYROBOTSTXT_RECORDER, ["test"])


def robots_parser(folder):
    run("npm", "pack", "--silent", ROBOTS_PARSER, cwd=folder)
    run("tar", "--extract", "--file", *folder.glob("*.tgz"), "--directory", folder)
    package = folder / "package"
    run("npm", "install", "--silent", "--no-save", "mocha@10", "chai@4", cwd=package)
    (package / "recorder.js").write_text(ROBOTS_PARSER_RECORDER)
    words = ["npx", "mocha", "--file", "recorder.js", "test/Robots.js"]
    run(*words, cwd=package, env=os.environ | {"RECORD": str(folder / "record")})


def texting_robots(folder):
    (folder / "src").mkdir()
    (folder / "src/lib.rs").touch()
    (folder / "Cargo.toml").write_text(
        f'[package]\nname = "x"\nversion = "0.1.0"\n[dependencies]\ntexting_robots = "={TEXTING_ROBOTS}"\n'
    )
    run("cargo", "vendor", "--quiet", "vendor", cwd=folder)
    crate = folder / "vendor/texting_robots"
    lib = (crate / "src/lib.rs").read_text()
    lib = lib.replace("pub fn allowed(&self", "fn answered(&self")
    lib = lib.replace("impl Robot {", "impl Robot {" + TEXTING_ROBOTS_RECORDER, 1)
    lib = lib.replace("pub sitemaps: Vec<String>,\n}", "pub sitemaps: Vec<String>,\n    text: Vec<u8>,\n    agent: String,\n}")
    lib = lib.replace("// Replace '\\x00' with", "let given = (txt.to_vec(), agent.to_owned());\n        // Replace", 1)
    lib = lib.replace(
        "Ok(Robot { rules, delay, sitemaps })",
        'let shown = delay.map_or("null".to_owned(), |delay: f32| format!("{:?}", delay.min(f32::MAX)));\n'
        "        record(&given.0, &given.1, None, &shown);\n"
        "        Ok(Robot { rules, delay, sitemaps, text: given.0, agent: given.1 })",
    )
    (crate / "src/lib.rs").write_text(lib + TEXTING_ROBOTS_WRITER)
    (crate / ".cargo-checksum.json").unlink()
    (crate / "Cargo.toml").open("a").write("\n[workspace]\n")
    run("cargo", "test", "--quiet", "--lib", cwd=crate, env=os.environ | {"RECORD": str(folder / "record")})


def text(value):
    """Bytes come as lists of numbers; what is no UTF-8 stays bytes."""
    if not isinstance(value, list):
        return value
    try:
        return bytes(value).decode()
    except UnicodeDecodeError:
        return bytes(value)


def absolute(url):
    return "http://site.example" + url if url.startswith("/") else url


def lone_surrogate(value):
    return isinstance(value, str) and re.search("[\ud800-\udfff]", value)


def tables(name, record):
    """One table per test and robots.txt: [agent, url, allowed], and [agent, delay or null]."""
    found = {}
    for line in record.read_text().splitlines():
        test, robots, agent, url, answer = map(text, json.loads(line))
        # A string that is no text has no bytes that a server could have sent.
        # A megabyte of one letter is a test of memory.
        if lone_surrogate(robots) or lone_surrogate(url) or len(robots) > ROBOTS_BYTES_MAX:
            continue
        case = [agent, answer] if url is None else [agent, absolute(url), answer]
        cases = found.setdefault((test, robots), ([], []))[1 if url is None else 0]
        if case not in cases:
            cases.append(case)
    for (test, robots), (allowed, delays) in found.items():
        table = {"source": name, "test": test}
        if isinstance(robots, bytes):
            table["robots_b64"] = base64.b64encode(robots).decode()
        else:
            table["robots"] = robots
        table |= ({"allowed": allowed} if allowed else {}) | ({"delays": delays} if delays else {})
        print(json.dumps(table, ensure_ascii=False, separators=(",", ":")))


suites = {"protego": protego, "robots-parser": robots_parser, "texting_robots": texting_robots}
if sys.argv[1:] == ["--gpl"]:
    suites = {"google": gpyrobotstxt}
for name, record in suites.items():
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        record(folder)
        tables(name, folder / "record")

#!/usr/bin/env python3
"""Writes inputs.jsonl: every different input of html5lib's tokenizer and tree construction tests.

    pip download --no-deps --no-binary :all: html5lib==1.1 && tar xf html5lib-1.1.tar.gz
    ./convert.py html5lib-1.1/html5lib/tests/testdata > inputs.jsonl
"""

import json
import pathlib
import sys

# What brings the tokenizer into the state in which a test begins.
STATES = {
    "Data state": "",
    "PLAINTEXT state": "<plaintext>",
    "RCDATA state": "<textarea>",
    "RAWTEXT state": "<style>",
    "Script data state": "<script>",
    "CDATA section state": "<svg><![CDATA[",
}


def tree_construction(text):
    for test in ("\n" + text).split("\n#data\n")[1:]:
        if "\n#document-fragment\n" not in test:
            yield test.split("\n#errors", 1)[0]


def tokenizer(tests):
    for test in tests:
        text = test["input"]
        if test.get("doubleEscaped"):
            text = json.loads(f'"{text}"') if '"' not in text else text
        for state in test.get("initialStates", ["Data state"]):
            start = STATES[state]
            if "lastStartTag" in test and start not in ("", "<plaintext>"):
                start = f"<{test['lastStartTag']}>"
            yield start + text


def main(folder):
    inputs = {}
    for path in sorted(folder.glob("tree-construction/*.dat")):
        inputs.update(dict.fromkeys(tree_construction(path.read_text("utf-8"))))
    for path in sorted(folder.glob("tokenizer/*.test")):
        # What entities mean is no question of tokens; there are thousands of these.
        if path.stem not in ("namedEntities", "numericEntities", "unicodeChars"):
            inputs.update(dict.fromkeys(tokenizer(json.loads(path.read_text("utf-8")).get("tests", []))))
    for text in inputs:
        # Lone surrogates are no text.
        if text.encode("utf-8", "ignore").decode("utf-8") == text:
            print(json.dumps(text, ensure_ascii=False))


main(pathlib.Path(sys.argv[1]))

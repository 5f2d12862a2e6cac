#!/usr/bin/env python3
"""Writes cases.jsonl: pages and texts of which the encoding is known, from two source packages of PyPI.

    pip download --no-deps --no-binary :all: html5lib==1.1 charset-normalizer==3.5.2
    tar xf html5lib-1.1.tar.gz && tar xf charset_normalizer-3.5.2.tar.gz
    ./convert.py html5lib-1.1 charset_normalizer-3.5.2 > cases.jsonl
"""

import base64
import json
import pathlib
import re
import sys

# What Python's codecs are called by the Encoding Standard.
CODECS = {"utf_8": "utf-8", "cp949": "euc-kr", "mac_cyrillic": "x-mac-cyrillic", "big5": "big5"}


def html5lib(folder):
    tests = folder / "html5lib/tests/testdata/encoding"
    for path in sorted(tests.glob("*.dat")):
        cases = (b"\n" + path.read_bytes()).split(b"\n#data\n")[1:]
        for number, case in enumerate(cases, 1):
            page, encoding = case.split(b"\n#encoding\n")
            yield f"html5lib/{path.stem}/{number}", page, encoding.split()[0].decode().lower()
    yield "html5lib/chardet/big5", (tests / "chardet/test_big5.txt").read_bytes(), "big5"


def charset_normalizer(folder):
    table = (folder / "tests/test_full_detection.py").read_text()
    for name, codec in re.findall(r'\("(sample-[^"]+)", "([^"]+)",', table):
        encoding = CODECS.get(codec, codec.replace("cp", "windows-"))
        yield f"charset_normalizer/{name}", (folder / "data" / name).read_bytes(), encoding


def main(one, other):
    for file, body, charset in [*html5lib(one), *charset_normalizer(other)]:
        body = base64.b64encode(body).decode()
        print(json.dumps({"file": file, "charset": charset, "body_b64": body}))


main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))

#!/usr/bin/env bash
# Package: warcio 1.8.1 (with brotlipy 0.7.0) and FastWARC 2.0.1 (PyPI), warcio 2.4.11 (npm)
# Input: WARC response records whose bodies have a Content-Encoding: gzip, br (RFC 7932) or zstd
#   (RFC 8878). A crawler that offers what browsers offer gets all three.
# Guess: the calls for a decoded body decode gzip and br everywhere, and fail for a coding that
#   they do not know.
# Behaviour: each reader knows other codings, and none fails. For an unknown coding, the call
#   returns the coded bytes as if they were the page.
# Output:
#   warcio (PyPI): gzip decoded, br decoded, zstd as stored
#   FastWARC: gzip decoded, br decoded, zstd decoded
#   warcio (npm): gzip decoded, br as stored, zstd as stored
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip --quiet --disable-pip-version-check install \
    warcio==1.8.1 fastwarc==2.0.1 brotlipy==0.7.0 zstandard==0.25.0
npm install --silent --no-fund --no-audit warcio@2.4.11 > npm.log

cat > python.py <<'P'
import gzip
import io

import brotli
import zstandard
from fastwarc.warc import ArchiveIterator as FastIterator
from warcio.archiveiterator import ArchiveIterator
from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

PAGE = b"<title>Home</title>" + b" some text" * 20
CODED = {
    "gzip": gzip.compress(PAGE),
    "br": brotli.compress(PAGE),
    "zstd": zstandard.compress(PAGE),
}


def write(name, body):
    lines = [("Content-Type", "text/html"), ("Content-Encoding", name)]
    head = StatusAndHeaders("200 OK", lines, protocol="HTTP/1.1")
    with open(f"{name}.warc.gz", "wb") as file:
        writer = WARCWriter(file, gzip=True)
        writer.write_record(writer.create_warc_record(
            "http://site.example/", "response", payload=io.BytesIO(body), http_headers=head))


def with_warcio(file):
    return next(record.content_stream().read() for record in ArchiveIterator(file))


def with_fastwarc(file):
    return next(record.reader.read() for record in FastIterator(file, auto_decode="all"))


for name, body in CODED.items():
    write(name, body)
for reader, read in [("warcio (PyPI)", with_warcio), ("FastWARC", with_fastwarc)]:
    results = []
    for name, body in CODED.items():
        with open(f"{name}.warc.gz", "rb") as file:
            found = read(file)
        result = {PAGE: "decoded", body: "as stored"}.get(found, "neither")
        results.append(f"{name} {result}")
    print(f"{reader}: {', '.join(results)}")
P
cat > node.mjs <<'P'
import fs from "node:fs";
import { WARCParser } from "warcio";

const results = [];
for (const name of ["gzip", "br", "zstd"]) {
  for await (const record of new WARCParser(fs.createReadStream(`${name}.warc.gz`))) {
    const text = await record.contentText();
    results.push(`${name} ${text.startsWith("<title>") ? "decoded" : "as stored"}`);
  }
}
console.log(`warcio (npm): ${results.join(", ")}`);
P
seen=$(venv/bin/python python.py && node node.mjs)
echo "$seen"
[ "$seen" = 'warcio (PyPI): gzip decoded, br decoded, zstd as stored
FastWARC: gzip decoded, br decoded, zstd decoded
warcio (npm): gzip decoded, br as stored, zstd as stored' ]

#!/usr/bin/env bash
# Package: pywb 2.10.0 with warcio 1.8.1 (PyPI)
# Input: a page captured with status 200, and a month later a `revisit` record with the profile
#   server-not-modified, the header lines of the answer 304 as its block, and WARC-Refers-To-Date.
#   WARC 1.1, section 6.7.3: the payload of such a record is the original payload.
# Guess: the newest capture shows the page, since the revisit names its original.
# Behaviour: pywb does not look for the original of a revisit whose block has a status 3xx. It
#   answers 304 without a body. The same record without a block shows the page.
# Output:
#   with the head: 304, 0 bytes
#   without a block: 200, 29 bytes
set -eu
folder=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip --quiet --disable-pip-version-check install \
    pywb==2.10.0 warcio==1.8.1 setuptools==80.9.0

cat > write.py <<'P'
import io
from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter


def head(status, *lines):
    return StatusAndHeaders(status, list(lines), protocol="HTTP/1.1")


for name, again in [("head", head("304 Not Modified", ("ETag", '"1"'))), ("none", None)]:
    url = f"http://site.example/{name}"
    with open(f"{name}.warc.gz", "wb") as file:
        writer = WARCWriter(file, gzip=True, warc_version="1.1")
        first = {"WARC-Date": "2026-01-01T00:00:00Z"}
        lines = ("Content-Type", "text/html"), ("ETag", '"1"')
        body = io.BytesIO(b"<title>Home</title> some text")
        writer.write_record(writer.create_warc_record(
            url, "response", payload=body, http_headers=head("200 OK", *lines),
            warc_headers_dict=first))
        second = {
            "WARC-Date": "2026-02-01T00:00:00Z",
            "WARC-Profile": "http://netpreserve.org/warc/1.1/revisit/server-not-modified",
            "WARC-Refers-To-Target-URI": url,
            "WARC-Refers-To-Date": "2026-01-01T00:00:00Z",
        }
        writer.write_record(writer.create_warc_record(
            url, "revisit", payload=io.BytesIO(b""), length=0, http_headers=again,
            warc_headers_dict=second))
P
venv/bin/python write.py
{ venv/bin/wb-manager init c && venv/bin/wb-manager add c head.warc.gz none.warc.gz; } > log 2>&1
free='import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
port=$(python3 -c "$free")
venv/bin/wayback --bind 127.0.0.1 --port "$port" >> log 2>&1 &
server=$!
curl --silent --output page --retry 100 --retry-delay 1 --retry-connrefused \
    "http://127.0.0.1:$port/"

replay() {
    curl --silent --output page --write-out '%{http_code}, %{size_download} bytes' \
        "http://127.0.0.1:$port/c/id_/http://site.example/$1"
}
seen="with the head: $(replay head)
without a block: $(replay none)"
echo "$seen"
[ "$seen" = 'with the head: 304, 0 bytes
without a block: 200, 29 bytes' ]

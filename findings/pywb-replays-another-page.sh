#!/usr/bin/env bash
# Package: pywb 2.10.0 with warcio 1.8.1 (PyPI)
# Input: two captures of a site on different days, at URLs that differ only in capital letters of the
#   path, or only in a slash at the end. RFC 3986, section 6.2.2.1: only scheme and host ignore case.
# Guess: each URL shows its own capture, since the archive has exactly this URL.
# Behaviour: the index stores URLs in small letters and without the slash, and the exact URL is not
#   compared afterwards. Both URLs show the capture that is nearer to the requested time, so the
#   newest one hides the other page.
# Output:
#   /wiki/Polish: a shoe cream
#   /wiki/polish: a shoe cream
#   /wiki/Polish in January: a language
#   /docs: moved
#   /docs/: moved
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

pages = [
    ("/wiki/Polish", "01", b"a language"),
    ("/wiki/polish", "02", b"a shoe cream"),
    ("/docs/", "01", b"all documents"),
    ("/docs", "02", b"moved"),
]
with open("site.warc.gz", "wb") as file:
    writer = WARCWriter(file, gzip=True, warc_version="1.1")
    for path, month, body in pages:
        head = StatusAndHeaders("200 OK", [("Content-Type", "text/plain")], protocol="HTTP/1.1")
        writer.write_record(writer.create_warc_record(
            "http://site.example" + path, "response", payload=io.BytesIO(body), http_headers=head,
            warc_headers_dict={"WARC-Date": f"2026-{month}-01T00:00:00Z"}))
P
venv/bin/python write.py
{ venv/bin/wb-manager init c && venv/bin/wb-manager add c site.warc.gz; } > log 2>&1
free='import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
port=$(python3 -c "$free")
venv/bin/wayback --bind 127.0.0.1 --port "$port" >> log 2>&1 &
server=$!
curl --silent --output page --retry 100 --retry-delay 1 --retry-connrefused \
    "http://127.0.0.1:$port/"

replay() {
    curl --silent --location "http://127.0.0.1:$port/c/${2:-}id_/http://site.example$1"
}
seen="/wiki/Polish: $(replay /wiki/Polish)
/wiki/polish: $(replay /wiki/polish)
/wiki/Polish in January: $(replay /wiki/Polish 20260101000000)
/docs: $(replay /docs)
/docs/: $(replay /docs/)"
echo "$seen"
[ "$seen" = '/wiki/Polish: a shoe cream
/wiki/polish: a shoe cream
/wiki/Polish in January: a language
/docs: moved
/docs/: moved' ]

#!/usr/bin/env bash
# Package: wacz 0.6.0 with warcio 1.8.1 (PyPI)
# Input: a WARC file with two HTML pages, as a crawler without a browser writes it: its requests
#   have no Referer.
# Guess: `wacz create --detect-pages` lists the HTML responses with status 200, so two pages.
# Behaviour: it lists only pages that another request in the file names in its Referer. Here
#   these are none, and the WACZ has no pages/pages.jsonl at all. The exit code is 0. With a Referer
#   in the request for the second page, the first one is listed, and still not the second.
# Output:
#   without Referer: Num Pages Detected: 0
#   with Referer: Num Pages Detected: 1
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip --quiet --disable-pip-version-check install \
    wacz==0.6.0 warcio==1.8.1 setuptools==80.9.0

cat > write.py <<'P'
import io
from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

for name, referer in [("without", []), ("with", [("Referer", "http://site.example/")])]:
    with open(f"{name}.warc.gz", "wb") as file:
        writer = WARCWriter(file, gzip=True, warc_version="1.1")
        for path, extra in [("", []), ("news", referer)]:
            url = f"http://site.example/{path}"
            html = [("Content-Type", "text/html")]
            ok = StatusAndHeaders("200 OK", html, protocol="HTTP/1.1")
            page = io.BytesIO(b"<title>Page</title> <a href=/news>news</a>")
            response = writer.create_warc_record(url, "response", payload=page, http_headers=ok)
            get = StatusAndHeaders(
                f"GET /{path} HTTP/1.1", [("Host", "site.example"), *extra], is_http_request=True)
            request = writer.create_warc_record(url, "request", http_headers=get)
            writer.write_request_response_pair(request, response)
P
venv/bin/python write.py
detect() { venv/bin/wacz create --detect-pages --output "$1.wacz" "$1.warc.gz" 2>> log | grep Detected; }
seen="without Referer: $(detect without)
with Referer: $(detect with)"
echo "$seen"
[ "$seen" = 'without Referer: Num Pages Detected: 0
with Referer: Num Pages Detected: 1' ]

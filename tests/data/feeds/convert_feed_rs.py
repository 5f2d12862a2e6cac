#!/usr/bin/env python3
"""Makes feed-rs.jsonl of the fixtures in the crate of feed-rs: convert_feed_rs.py feed-rs-3.0.0 > feed-rs.jsonl

Beside each feed is what feed-rs makes of it; of that the kind and the title, link and id of all entries are taken. An id that
is not in the feed is one that feed-rs has made up.
"""
import glob, html, json, os, sys

from convert import folded, plain

BYTES_MAX = 12_000


def main(root):
    for path in sorted(glob.glob(os.path.join(root, "fixture", "*", "*"))):
        told = os.path.splitext(path)[0] + ".serde.json"
        if path.endswith(".serde.json") or not os.path.exists(told) or os.path.getsize(path) > BYTES_MAX:
            continue
        body, told = open(path, "rb").read(), json.load(open(told))
        try:
            text = body.decode("utf-8")
        except UnicodeDecodeError:
            continue
        readable = html.unescape(text)
        entries = []
        for entry in told["entries"]:
            entries.append({})
            if title := entry["title"]:
                entries[-1]["title"] = sorted({folded(title["content"]), plain(title["content"])})
            if entry["id"] in text or entry["id"] in readable:
                entries[-1]["id"] = entry["id"]
            pages = [link["href"] for link in entry["links"] if link["rel"] in (None, "alternate")]
            if len(pages) == 1:
                entries[-1]["link"] = pages[0]
        kind = {"Atom": "atom", "JSON": "json"}.get(told["feed_type"], "rss")
        case = {"file": os.path.relpath(path, os.path.join(root, "fixture")), "kind": kind, "entries": entries, "body": text}
        print(json.dumps(case, ensure_ascii=True, separators=(",", ":")))


main(sys.argv[1])

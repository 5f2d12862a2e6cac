#!/usr/bin/env python3
"""Makes feedparser.jsonl of the tests in the sdist of feedparser: convert.py feedparser-6.0.14 > feedparser.jsonl

Each of its files has an expectation in a comment at its beginning. Those are taken that say something of the title, link
or id of an entry, of the title of the feed, or of how many entries there are; what they say of authors, summaries and the
like is nothing that a crawler reads.
"""
import ast, base64, html, json, os, re, sys

ENTRY = re.compile(r"entries\[(\d+)\]\['(title|link|id|guid)'\] == (.*)$")
FEED = re.compile(r"feed\['title'\] == (.*)$")
COUNT = re.compile(r"len\(entries\) == (\d+)$")


def folded(text):
    return " ".join(text.split())


def plain(text):
    """What is left of the title when it is read as HTML, as a line of text."""
    return folded(html.unescape(re.sub(r"<[A-Za-z/!?][^>]*>", "", text)))


def expectation(text):
    text = re.sub(r"^(not )?bozo and ", "", text.strip())
    try:
        if match := ENTRY.match(text):
            at, name, value = int(match[1]), match[2], ast.literal_eval(match[3])
            if name == "title":
                value = sorted({folded(value), plain(value)})
            return {"entry": at, {"guid": "id"}.get(name, name): value}
        if match := FEED.match(text):
            value = ast.literal_eval(match[1])
            return {"title": sorted({folded(value), plain(value)})}
        if match := COUNT.match(text):
            return {"n": int(match[1])}
    except (SyntaxError, ValueError):
        pass
    return None


def main(root):
    seen = set()
    for folder, _, names in sorted(os.walk(os.path.join(root, "tests"))):
        for name in sorted(names):
            path = os.path.join(folder, name)
            if not name.endswith(".xml"):
                continue
            body = open(path, "rb").read()
            # Wide encodings: what is ASCII of it.
            head = body.replace(b"\0", b"")
            said = re.search(rb"Expect:\s*(.*)", head)
            expected = expectation(said[1].decode("utf-8", "replace")) if said else None
            if expected is None or len(body) > 8192 or body in seen:
                continue
            seen.add(body)
            headers = {}
            for line in re.findall(rb"Header:\s*(.*)", head):
                key, _, value = line.decode("ascii", "replace").partition(":")
                headers[key.strip().lower()] = value.strip()
            case = {"file": os.path.relpath(path, os.path.join(root, "tests")), **expected}
            if headers:
                case["headers"] = headers
            if "_docuri" in name:
                case["base"] = "http://127.0.0.1:8097/" + name
            try:
                case["body"] = body.decode("ascii")
            except UnicodeDecodeError:
                case["body_b64"] = base64.b64encode(body).decode()
            print(json.dumps(case, ensure_ascii=True, separators=(",", ":")))


if __name__ == "__main__":
    main(sys.argv[1])

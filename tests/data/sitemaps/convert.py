#!/usr/bin/env python3
"""Makes sitemaps.jsonl of the tests of two packages: convert.py scrapy-2.19.0 trafilatura-2.3.1 > sitemaps.jsonl

Scrapy's tests have sitemaps as literals, each followed by what is expected of it. Of the files of the other the URLs are
counted by a parser of XML that knows nothing of sitemaps.
"""
import ast, base64, glob, gzip, json, os, sys
import xml.etree.ElementTree as ElementTree


def case(name, body, kind, urls):
    ends = {"first": urls[0], "last": urls[-1]} if urls else {}
    body = base64.b64encode(body).decode()
    print(json.dumps({"file": name, "kind": kind, "n": len(urls), **ends, "body_b64": body}, separators=(",", ":")))


def scrapy(path):
    kinds = {"sitemapindex": "index", "urlset": "urlset"}
    for test in ast.parse(open(path).read()).body:
        if not isinstance(test, ast.FunctionDef):
            continue
        body, kind, places = None, None, None
        for node in ast.walk(test):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Sitemap" and isinstance(node.args[0], ast.Constant):
                body = node.args[0].value
            elif isinstance(node, ast.Assert) and isinstance(node.test, ast.Compare):
                try:
                    value = ast.literal_eval(node.test.comparators[0])
                except ValueError:
                    continue
                if isinstance(value, str):
                    kind = kinds.get(value, kind)
                elif isinstance(value, list) and all("loc" in place for place in value):
                    places = [place["loc"] for place in value]
        if body is not None and places is not None:
            body = body if isinstance(body, bytes) else body.encode()
            kind = kind or next((kinds[root] for root in kinds if root.encode() in body), None)
            if kind:
                case("scrapy/" + test.name, body, kind, places)


def files(paths):
    for path in paths:
        body = open(path, "rb").read()
        text = gzip.decompress(body) if path.endswith(".gz") else body
        root = ElementTree.fromstring(text.strip())
        local = lambda element: element.tag.rsplit("}")[-1]
        kind = {"sitemapindex": "index"}.get(local(root), "urlset")
        urls = [place.text.strip() for entry in root for place in entry if local(place) == "loc"]
        case("/".join(path.split("/")[-2:]), body, kind, urls)


scrapy(os.path.join(sys.argv[1], "tests", "test_utils_sitemap.py"))
files(sorted(glob.glob(os.path.join(sys.argv[2], "tests", "resources", "sitemap*"))))

"""Verifies signed requests and directories with the independent library http-message-signatures.

signed_requests.py serve DIRECTORY            an origin that admits only signed requests
signed_requests.py directory AUTHORITY HEAD BODY
                                              verifies the response of a directory, in two files

The origin stands behind a TLS proxy. It prints its port, and then one line of JSON for each request. It reads
the directory again for each request."""
import base64, json, sys, types
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from http_message_signatures import HTTPMessageVerifier, HTTPSignatureKeyResolver, algorithms

PAGES = 6

class Directory(HTTPSignatureKeyResolver):
    def __init__(self, text):
        self.keys = {key["kid"]: key["x"] for key in json.loads(text)["keys"]}

    def resolve_public_key(self, key_id):
        x = self.keys[key_id]
        return Ed25519PublicKey.from_public_bytes(base64.urlsafe_b64decode(x + "=" * (-len(x) % 4)))

def verifier(directory):
    return HTTPMessageVerifier(signature_algorithm=algorithms.ED25519, key_resolver=directory)

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        url = f"https://{self.headers['Host']}{self.path}"
        message = types.SimpleNamespace(method=self.command, url=url, headers=self.headers)
        components = ['"@authority"', '"@method"', '"@path"', '"signature-agent";key="sig1"']
        try:
            with open(sys.argv[2]) as file:
                directory = Directory(file.read())
            result, = verifier(directory).verify(message, expect_tag="web-bot-auth", require_components=components)
            seen = {"path": self.path, "key": result.parameters["keyid"], "agent": self.headers["Signature-Agent"]}
        except Exception as error:
            seen = {"path": self.path, "error": f"{type(error).__name__}: {error}"}
        print(json.dumps(seen), flush=True)
        self.answer(*self.page(seen))

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def page(self, seen):
        if "error" in seen:
            return 403, [], b"signatures are required"
        if self.path == "/robots.txt":
            return 200, [("Content-Type", "text/plain")], b"User-agent: *\nDisallow: /none\n"
        if self.path == "/moved":
            return 302, [("Location", "/target?a=b&c=%C3%A9")], b""
        links = "".join(f'<a href="/{n}?n={n}">{n}</a>' for n in range(PAGES)) if self.path == "/" else ""
        return 200, [("Content-Type", "text/html")], f'<a href="/moved">moved</a>{links}'.encode()

    def answer(self, status, headers, body):
        self.send_response(status)
        for name, value in [*headers, ("Content-Length", str(len(body)))]:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        pass

def check_directory(authority, head, body):
    lines = open(head).read().splitlines()[1:]
    headers = dict(line.split(": ", 1) for line in lines if ": " in line)
    request = types.SimpleNamespace(method="GET", url=f"https://{authority}/", headers={})
    response = types.SimpleNamespace(status_code=200, headers=headers, request=request)
    content = open(body, "rb").read()
    results = verifier(Directory(content)).verify(
        response, expect_tag="http-message-signatures-directory", require_components=['"@authority";req'], body=content)
    print(json.dumps([result.parameters["keyid"] for result in results]))

if sys.argv[1] == "directory":
    check_directory(*sys.argv[2:])
else:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print("port", server.server_address[1], flush=True)
    server.serve_forever()

"""Many subscribers of a hub on one port, each with its own path: hub_subscribers.py
The first segment of the path selects the behaviour of the subscriber. Prints the port, then each
request as JSON; signatures are checked with the secret `secret of PATH`."""
import hashlib, hmac, json, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

printing, posts = threading.Lock(), {}

def report(value):
    with printing:
        print(json.dumps(value), flush=True)

class Subscriber(BaseHTTPRequestHandler):
    def do_GET(self):
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        report({"method": "GET", "path": url.path, "query": query, "agent": self.headers["User-Agent"]})
        challenge = query.get("hub.challenge", query.get("challenge", ""))
        behaviour = url.path.split("/")[1]
        if behaviour == "late":
            time.sleep(3600)
        responses = {
            "wrong": (200, challenge[::-1]), "no": (404, challenge), "moved": (302, challenge),
            "huge": (200, challenge + "x" * (4 << 20)), "empty": (200, ""),
        }
        status, body = responses.get(behaviour, (200, challenge))
        self.respond(status, body, {"Location": url.path.replace("moved", "ok") + "?" + url.query} if behaviour == "moved" else {})

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        path = urlsplit(self.path).path
        behaviour = path.split("/")[1]
        with printing:
            posts[path] = posts.get(path, 0) + 1
            count = posts[path]
        expected = "sha256=" + hmac.new(b"secret of " + path.encode(), body, hashlib.sha256).hexdigest()
        signature = self.headers["X-Hub-Signature"]
        report({
            "method": "POST", "path": path, "body": body.decode(), "type": self.headers["Content-Type"],
            "link": self.headers["Link"], "signed": signature and hmac.compare_digest(signature, expected),
        })
        always = 1 << 30
        fails = {
            "twice": (503, 2), "later": (503, 1), "down": (500, 3), "dead": (500, always), "gone": (410, always),
            "307": (307, always), "308": (308, always),
        }
        status, times = fails.get(behaviour, (200, 0))
        status = status if count <= times else 200
        wait = {"twice": "0", "later": "6"}.get(behaviour)
        headers = {"Retry-After": wait} if wait and status == 503 else {}
        if status in (307, 308):
            headers = {"Location": "/ok/instead"}
        self.respond(status, "", headers)

    def respond(self, status, body, headers):
        try:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())
        except OSError:
            pass

    def log_message(self, *_):
        pass

class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

server = Server(("", 0), Subscriber)
report(server.server_address[1])
server.serve_forever()

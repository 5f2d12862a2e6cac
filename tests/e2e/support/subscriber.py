"""Subscribers of a hub, each below a path of its own: subscriber.py
The first segment of the path says what one is like. Each request is printed as JSON; its signature is judged by the secret
`secret of PATH`. The first line that is printed is the port."""
import hashlib, hmac, json, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

printing, posts = threading.Lock(), {}

def say(value):
    with printing:
        print(json.dumps(value), flush=True)

class Subscriber(BaseHTTPRequestHandler):
    def do_GET(self):
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        say({"method": "GET", "path": url.path, "query": query, "agent": self.headers["User-Agent"]})
        challenge = query.get("hub.challenge", query.get("challenge", ""))
        kind = url.path.split("/")[1]
        if kind == "late":
            time.sleep(3600)
        answers = {
            "wrong": (200, challenge[::-1]), "no": (404, challenge), "moved": (302, challenge),
            "huge": (200, challenge + "x" * (4 << 20)), "empty": (200, ""),
        }
        status, body = answers.get(kind, (200, challenge))
        self.answer(status, body, {"Location": url.path.replace("moved", "ok") + "?" + url.query} if kind == "moved" else {})

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        path = urlsplit(self.path).path
        kind = path.split("/")[1]
        with printing:
            posts[path] = posts.get(path, 0) + 1
            count = posts[path]
        right = "sha256=" + hmac.new(b"secret of " + path.encode(), body, hashlib.sha256).hexdigest()
        signature = self.headers["X-Hub-Signature"]
        say({
            "method": "POST", "path": path, "body": body.decode(), "type": self.headers["Content-Type"],
            "link": self.headers["Link"], "signed": signature and hmac.compare_digest(signature, right),
        })
        always = 1 << 30
        fails = {
            "twice": (503, 2), "later": (503, 1), "down": (500, 3), "dead": (500, always), "gone": (410, always),
            "307": (307, always), "308": (308, always),
        }
        status, times = fails.get(kind, (200, 0))
        status = status if count <= times else 200
        wait = {"twice": "0", "later": "6"}.get(kind)
        headers = {"Retry-After": wait} if wait and status == 503 else {}
        if status in (307, 308):
            headers = {"Location": "/ok/instead"}
        self.answer(status, "", headers)

    def answer(self, status, body, headers):
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
say(server.server_address[1])
server.serve_forever()

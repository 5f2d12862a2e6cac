"""A server that tells what it is told: receiver.py [PORT]
Each request is printed as a line of JSON before it is answered. The statuses of its answers, in their order, are the first
part of the path, as in /500,503:1,204/name; the last one stays. Behind a colon stands a Retry-After, 302 leads to /204/elsewhere, 307 to
/202/moved, 308 to the same at 127.0.0.2, and `hang` is no answer at all."""
import collections, http.server, json, sys, threading, time

counts, printing, never = collections.Counter(), threading.Lock(), threading.Event()
PLACES = {"302": "/204/elsewhere", "307": "/202/moved", "308": "http://127.0.0.2:PORT/202/moved"}


class Receiver(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        with printing:
            count = counts[self.path]
            counts[self.path] += 1
            seen = {"path": self.path, "body": body, "at": time.monotonic()}
            seen["headers"] = {name.lower(): value for name, value in self.headers.items()}
            print(json.dumps(seen), flush=True)
        plan = self.path.split("/")[1].split(",")
        status, _, wait = plan[min(count, len(plan) - 1)].partition(":")
        if status == "hang":
            never.wait()
        self.send_response(int(status))
        if wait:
            self.send_header("Retry-After", wait)
        if status in PLACES:
            self.send_header("Location", PLACES[status].replace("PORT", str(self.server.server_port)))
        if status != "204":
            self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", int((sys.argv + [0])[1])), Receiver)
server.daemon_threads = True
print("port", server.server_address[1], flush=True)
server.serve_forever()

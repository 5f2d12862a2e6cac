"""An HTTP server that prints the requests it receives: callback_server.py [PORT]
It prints each request as a line of JSON before it responds. The first segment of the path lists the
statuses of its responses in order, as in /500,503:1,204/name; the last one repeats. A number after a
colon is a Retry-After header. 302 redirects to /204/elsewhere, 307 to /202/moved and 308 to the same
at 127.0.0.2. `hang` sends no response."""
import collections, http.server, json, sys, threading, time

counts, printing, forever = collections.Counter(), threading.Lock(), threading.Event()
LOCATIONS = {"302": "/204/elsewhere", "307": "/202/moved", "308": "http://127.0.0.2:PORT/202/moved"}


class CallbackHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        with printing:
            count = counts[self.path]
            counts[self.path] += 1
            request = {"path": self.path, "body": body, "at": time.monotonic()}
            request["headers"] = {name.lower(): value for name, value in self.headers.items()}
            print(json.dumps(request), flush=True)
        plan = self.path.split("/")[1].split(",")
        status, _, wait = plan[min(count, len(plan) - 1)].partition(":")
        if status == "hang":
            forever.wait()
        self.send_response(int(status))
        if wait:
            self.send_header("Retry-After", wait)
        if status in LOCATIONS:
            self.send_header("Location", LOCATIONS[status].replace("PORT", str(self.server.server_port)))
        if status != "204":
            self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", int((sys.argv + [0])[1])), CallbackHandler)
server.daemon_threads = True
print("port", server.server_address[1], flush=True)
server.serve_forever()

"""Prints the body of each callback, and accepts it: callback.py [PORT]"""

import http.server
import sys


class Callback(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        print(body.decode(), flush=True)
        # Any status from 200 to 299 says that the callback needs no retry.
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


port = int(sys.argv[1]) if len(sys.argv) > 1 else 8001
http.server.HTTPServer(("127.0.0.1", port), Callback).serve_forever()

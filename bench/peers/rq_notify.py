"""Fetches announced pages with RQ: rq_notify.py work PORT, and rq_notify.py announce PORT

`announce` makes a job of each line of standard input. `work` fetches the pages in its own process (SimpleWorker).
"""

import sys
import urllib.request

from redis import Redis
from rq import Queue, SimpleWorker


def fetch(url):
    with urllib.request.urlopen(url) as response:
        response.read()


def main(role, port):
    redis = Redis(port=int(port))
    queue = Queue(connection=redis)
    if role == "work":
        SimpleWorker([queue], connection=redis).work(logging_level="ERROR")
        return
    for line in sys.stdin:
        queue.enqueue("rq_notify.fetch", line.strip(), result_ttl=0)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Pages fetched when somebody says so, with RQ: rq_notify.py work PORT, and rq_notify.py say PORT

`say` makes a job of each line of standard input; `work` fetches them, in its own process, as SimpleWorker does.
"""

import sys
import urllib.request

from redis import Redis
from rq import Queue, SimpleWorker


def fetch(url):
    with urllib.request.urlopen(url) as answer:
        answer.read()


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

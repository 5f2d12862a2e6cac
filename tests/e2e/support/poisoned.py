"""A worker that a page with `poison` in its URL kills, as a lack of memory would: poisoned.py HOST PORT HOLD
It begins when it holds HOLD tasks, with the poison if it is among them, and prints every task that it is given."""
import http.client, os, signal, socket, sys
from urllib import parse

host, port, hold = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
broker = socket.create_connection((host, port))

def say(line):
    broker.sendall(f"{line}\n".encode())

def given():
    for line in broker.makefile(encoding="utf-8"):
        if line.startswith("TASK "):
            print(line.rstrip(), flush=True)
            yield line.split()
        elif line.startswith("-ERR "):
            sys.exit(line)

say("HELLO echo=poisoned")
say("JOIN crawlers credit=1000")
tasks = given()
held = [next(tasks) for _ in range(hold)]
while True:
    held.sort(key=lambda task: "poison" not in task[4])
    for _, task, _, _, url, *_ in held:
        if "poison" in url:
            os.kill(os.getpid(), signal.SIGKILL)
        page = http.client.HTTPConnection(parse.urlsplit(url).netloc)
        page.request("GET", parse.urlsplit(url).path)
        page.getresponse().read()
        page.close()
        say(f"ACK {task}")
    held = [next(tasks)]

"""A worker that a page with `poison` in its URL kills, as a lack of memory would.

poisoned_worker.py HOST PORT HOLD

It starts when it holds HOLD tasks, with the poisoned one if it has it, and prints every task."""
import http.client, os, signal, socket, sys
from urllib import parse

host, port, hold = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
broker = socket.create_connection((host, port))

def send(line):
    broker.sendall(f"{line}\n".encode())

def received_tasks():
    for line in broker.makefile(encoding="utf-8"):
        if line.startswith("TASK "):
            print(line.rstrip(), flush=True)
            yield line.split()
        elif line.startswith("-ERR "):
            sys.exit(line)

send("HELLO echo=poisoned")
send("JOIN crawlers credit=1000")
tasks = received_tasks()
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
        send(f"ACK {task}")
    held = [next(tasks)]

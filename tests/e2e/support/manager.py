"""Does for a program what systemd does: opens its sockets, passes them, and hears what it says of itself.

manager.py WATCHDOG_USEC NAME[,NAME..] PROGRAM [ARG..]

The sockets are on loopback, or on the address in MANAGER_HOST. Prints `socket NAME HOST:PORT` for each, `started PID`, then what the program says, one line for each word of each
message, and at last `exit CODE`. Lines on standard input are names of signals for it.
"""

import os
import signal
import socket
import sys
import tempfile
import threading

watchdog, names, program = sys.argv[1], sys.argv[2].split(","), sys.argv[3:]
folder = tempfile.mkdtemp()
notices = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
notices.bind(os.path.join(folder, "notify"))
listeners = []
for name in names:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind((os.environ.pop("MANAGER_HOST", "127.0.0.1"), 0))
    listener.listen(64)
    listeners.append(listener)
    print("socket", name, "127.0.0.1:%d" % listener.getsockname()[1], flush=True)

child = os.fork()
if child == 0:
    # Out of the way first: what is to be 3 may be the number of another one.
    moved = [os.dup2(listener.fileno(), 100 + at) for at, listener in enumerate(listeners)]
    for at, fd in enumerate(moved):
        os.dup2(fd, 3 + at)
        os.close(fd)
    os.environ.update(
        LISTEN_PID=str(os.getpid()),
        LISTEN_FDS=str(len(listeners)),
        LISTEN_FDNAMES=":".join(names),
        NOTIFY_SOCKET=os.path.join(folder, "notify"),
        WATCHDOG_USEC=watchdog,
        WATCHDOG_PID=str(os.getpid()),
    )
    os.execvp(program[0], program)

for listener in listeners:
    listener.close()
print("started", child, flush=True)


def hear():
    while True:
        for word in notices.recv(4096).decode().splitlines():
            print(word, flush=True)


def command():
    for line in sys.stdin:
        os.kill(child, getattr(signal, "SIG" + line.strip()))


threading.Thread(target=hear, daemon=True).start()
threading.Thread(target=command, daemon=True).start()
_, status = os.waitpid(child, 0)
# What it has said last is on its way.
notices.setblocking(False)
try:
    while True:
        for word in notices.recv(4096).decode().splitlines():
            print(word, flush=True)
except BlockingIOError:
    pass
print("exit", os.waitstatus_to_exitcode(status), flush=True)

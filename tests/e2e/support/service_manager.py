"""Runs a program as systemd would: opens its sockets, passes them, and receives its notifications.

service_manager.py WATCHDOG_USEC NAME[,NAME..] PROGRAM [ARG..]

The sockets are on loopback, or on the address in MANAGER_HOST. Prints `socket NAME HOST:PORT` for
each socket, `started PID`, then each line of the program's notifications, and finally `exit CODE`.
Each line on standard input is the name of a signal to send to the program.
"""

import os
import signal
import socket
import sys
import tempfile
import threading

watchdog, names, program = sys.argv[1], sys.argv[2].split(","), sys.argv[3:]
folder = tempfile.mkdtemp()
notifications = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
notifications.bind(os.path.join(folder, "notify"))
listeners = []
for name in names:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind((os.environ.pop("MANAGER_HOST", "127.0.0.1"), 0))
    listener.listen(64)
    listeners.append(listener)
    print("socket", name, "127.0.0.1:%d" % listener.getsockname()[1], flush=True)

child = os.fork()
if child == 0:
    # Move all descriptors first: number 3 may belong to another listener.
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


def print_notifications():
    while True:
        for line in notifications.recv(4096).decode().splitlines():
            print(line, flush=True)


def send_signals():
    for line in sys.stdin:
        os.kill(child, getattr(signal, "SIG" + line.strip()))


threading.Thread(target=print_notifications, daemon=True).start()
threading.Thread(target=send_signals, daemon=True).start()
_, status = os.waitpid(child, 0)
# The last notifications may still be in the socket.
notifications.setblocking(False)
try:
    while True:
        for line in notifications.recv(4096).decode().splitlines():
            print(line, flush=True)
except BlockingIOError:
    pass
print("exit", os.waitstatus_to_exitcode(status), flush=True)

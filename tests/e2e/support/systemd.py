"""A stand-in for systemd with the features that packaging/ and the documentation need. It ignores the
settings that confine a unit.

systemd.py serve FOLDER: the manager. Its socket is FOLDER/manager; FOLDER/NAME has a unit's output.
systemd.py systemctl|journalctl FOLDER WORD..: the two commands.
"""

import grp
import os
import pwd
import re
import shlex
import signal
import socket
import subprocess
import sys
import time

DIRECTORIES = ["/etc/systemd/system", "/lib/systemd/system"]


def read(name):
    """The settings of a unit with its drop-ins: a list for each key. An empty value clears the list."""
    path = next(path for path in (f"{folder}/{name}" for folder in DIRECTORIES) if os.path.exists(path))
    drop_in = f"/etc/systemd/system/{name}.d"
    files = [path] + sorted(f"{drop_in}/{file}" for file in os.listdir(drop_in)) if os.path.isdir(drop_in) else [path]
    settings = {}
    for file in files:
        for line in open(file):
            key, equals, value = line.strip().partition("=")
            if not equals or key.startswith(("#", ";")):
                continue
            if value:
                settings.setdefault(key, []).append(value)
            else:
                settings[key] = []
    return settings


class Manager:
    def __init__(self, folder):
        self.folder = folder
        self.units = {}
        self.sockets = {}
        self.running = {}

    def unit(self, name):
        name = name if "." in name else f"{name}.service"
        if name not in self.units:
            self.units[name] = read(name)
        return name, self.units[name]

    def start(self, name):
        name, unit = self.unit(name)
        if name.endswith(".socket"):
            if name in self.sockets:
                return
            host, port = unit["ListenStream"][-1].rsplit(":", 1)
            self.sockets[name] = socket.create_server((host, int(port)), backlog=128)
            return
        if self.is_active(name):
            return
        kind = unit.get("Type", ["simple"])[-1]
        for command in unit.get("ExecStartPre", []):
            self.run(name, command)
        if kind in ("forking", "oneshot"):
            self.run(name, unit["ExecStart"][-1])
            self.running[name] = None
            return
        self.running[name] = self.spawn(name, unit)

    def spawn(self, name, unit):
        user = pwd.getpwnam(unit["User"][-1])
        group = grp.getgrnam(unit["Group"][-1]).gr_gid
        state = "/var/lib/" + unit["StateDirectory"][-1]
        os.makedirs(state, exist_ok=True)
        os.chmod(state, int(unit["StateDirectoryMode"][-1], 8))
        os.chown(state, user.pw_uid, group)
        environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": user.pw_dir, "USER": user.pw_name}
        environment.update(word.split("=", 1) for line in unit.get("Environment", []) for word in shlex.split(line))
        for file in unit.get("EnvironmentFile", []):
            if os.path.exists(file.lstrip("-")):
                environment.update(line.strip().split("=", 1) for line in open(file.lstrip("-")) if "=" in line)
        passed = [
            (self.unit(socket_name)[1]["FileDescriptorName"][-1], listener)
            for socket_name, listener in self.sockets.items()
        ]
        notifications = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        notify = f"{self.folder}/{name}.notify"
        if os.path.exists(notify):
            os.unlink(notify)
        notifications.bind(notify)
        os.chmod(notify, 0o777)
        environment["NOTIFY_SOCKET"] = notify
        journal = open(f"{self.folder}/{name}", "ab")
        child = os.fork()
        if child == 0:
            moved = [os.dup2(listener.fileno(), 100 + at) for at, (_, listener) in enumerate(passed)]
            for at, fd in enumerate(moved):
                os.dup2(fd, 3 + at)
            os.dup2(journal.fileno(), 1)
            os.dup2(journal.fileno(), 2)
            os.closerange(3 + len(moved), 4096)
            names = ":".join(passed_name for passed_name, _ in passed)
            environment.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(moved)), LISTEN_FDNAMES=names)
            os.umask(int(unit["UMask"][-1], 8))
            os.initgroups(user.pw_name, group)
            os.setresgid(group, group, group)
            os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)
            os.chdir("/")
            words = shlex.split(unit["ExecStart"][-1])
            os.execvpe(words[0], words, environment)
        while b"READY=1" not in self.next_notification(child, notifications):
            pass
        return child

    def next_notification(self, child, notifications):
        """The next notification of a unit; fails if the unit ends instead."""
        notifications.settimeout(0.1)
        while True:
            try:
                return notifications.recv(4096)
            except TimeoutError:
                if os.waitpid(child, os.WNOHANG) != (0, 0):
                    raise RuntimeError("the unit ended before it was ready") from None

    def run(self, name, command):
        with open(f"{self.folder}/{name}", "ab") as journal:
            done = subprocess.run(shlex.split(command.lstrip("-")), stdout=journal, stderr=journal)
        if done.returncode and not command.startswith("-"):
            raise RuntimeError(f"{command}: {done.returncode}")

    def stop(self, name):
        name, unit = self.unit(name)
        if name.endswith(".socket"):
            listener = self.sockets.pop(name, None)
            if listener:
                listener.close()
        elif self.is_active(name):
            child = self.running.pop(name)
            if child:
                os.kill(child, signal.SIGTERM)
                os.waitpid(child, 0)
            for command in unit.get("ExecStop", []):
                self.run(name, command)

    def is_active(self, name):
        child = self.running.get(name, 0)
        if child and os.waitpid(child, os.WNOHANG) != (0, 0):
            self.running.pop(name)
            return False
        return child != 0

    def reload(self, name):
        name, unit = self.unit(name)
        for command in unit["ExecReload"]:
            self.run(name, command.replace("$MAINPID", str(self.running[name])))

    def do(self, words):
        flags = [word for word in words if word.startswith("-")]
        action, *names = [word for word in words if not word.startswith("-")]
        if action == "daemon-reload":
            self.units.clear()
        for name in names:
            name = self.unit(name)[0]
            active = self.is_active(name)
            if action == "is-active":
                return "active" if active else "inactive"
            if action == "restart" or (action == "reload-or-restart" and not active):
                self.stop(name)
                self.start(name)
            elif action in ("reload", "reload-or-restart") or (action == "try-reload-or-restart" and active):
                self.reload(name)
            elif action == "stop":
                self.stop(name)
            elif action == "start" or (action == "enable" and "--now" in flags):
                self.start(name)
            elif action not in ("enable", "try-reload-or-restart"):
                raise RuntimeError(f"systemctl {action} is not supported")
        return ""


def serve(folder):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{folder}/manager")
    listener.listen()
    print("the manager listens", flush=True)
    manager = Manager(folder)
    while True:
        connection, _ = listener.accept()
        try:
            response = "0" + manager.do(connection.recv(65536).decode().split("\0"))
        except Exception as error:
            response = f"1systemctl: {error!r}"
        connection.sendall(response.encode())
        connection.close()


def systemctl(folder, *words):
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(f"{folder}/manager")
    connection.sendall("\0".join(words).encode())
    response = connection.makefile().read()
    if response[1:]:
        print(response[1:])
    sys.exit(int(response[0]))


def journalctl(folder, *words):
    name = words[words.index("--unit") + 1]
    with open(f"{folder}/{name}.service") as journal:
        while True:
            line = journal.readline()
            if line:
                print(re.sub("\x1b\\[[0-9;]*m", "", line), end="", flush=True)
            elif "--follow" in words:
                time.sleep(0.05)
            else:
                return


{"serve": serve, "systemctl": systemctl, "journalctl": journalctl}[sys.argv[1]](*sys.argv[2:])

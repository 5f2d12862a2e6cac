"""A client of Tidings in Python, with only the standard library:
client.py publish TOPIC EVENT..    publishes events, and waits until all are confirmed
client.py listen TOPIC [FROM]      prints the seq and payload of each event
The broker is at $TIDINGS_BROKER, or 127.0.0.1:12345."""
import os, secrets, socket, sys


class Client:
    def __init__(self, address):
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self.input = self.socket.makefile(encoding="utf-8", newline="\n")
        echo = f" echo={secrets.token_hex(8)} "
        self.say(f"HELLO name=client.py{echo}")
        # Lines before the answer to HELLO are for peers.
        next(line for line in self.lines() if line.startswith("+OK ") and echo in line)

    def say(self, *lines):
        self.socket.sendall("".join(f"{line}\n" for line in lines).encode())

    def lines(self):
        """Yields the lines of the broker. An error, or the end of the connection, raises."""
        for line in self.input:
            if line.startswith("-ERR "):
                raise RuntimeError(line.rstrip())
            yield line.removesuffix("\n").removesuffix("\r")
        raise ConnectionError("connection lost; unconfirmed events may or may not be stored")

    def publish(self, topic, *events):
        self.say(*(f"PUB {topic} {event}" for event in events))
        # One answer may confirm several events: its last number counts all so far.
        next(line for line in self.lines() if line.startswith("+OK ") and int(line.split()[2]) == len(events))
        print(f"{len(events)} confirmed")

    def listen(self, topic, start=None):
        self.say(f"SUB {topic}" + (f" from={start}" if start else ""))
        for line in self.lines():
            kind, _, rest = line.partition(" ")
            if kind == "MSG":
                print(rest.partition(" ")[2], flush=True)
            elif kind in ("LAG", "GAP"):
                print(line, file=sys.stderr)


if __name__ == "__main__":
    try:
        command, *arguments = sys.argv[1:]
        client = Client(os.environ.get("TIDINGS_BROKER", "127.0.0.1:12345"))
        {"publish": client.publish, "listen": client.listen}[command](*arguments)
    except (OSError, RuntimeError) as error:
        sys.exit(f"client.py: {error}")
    except (ValueError, KeyError, TypeError):
        sys.exit(__doc__)

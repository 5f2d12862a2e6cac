"""A client of Tidings in Python, with the standard library alone:
client.py publish TOPIC EVENT..    publishes, and waits until all of them are safe
client.py listen TOPIC [FROM]      prints number and payload of what comes
The broker is at $TIDINGS_BROKER, or 127.0.0.1:12345."""
import os, secrets, socket, sys


class Client:
    def __init__(self, address):
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self.input = self.socket.makefile(encoding="utf-8", newline="\n")
        echo = f" echo={secrets.token_hex(8)} "
        self.say(f"HELLO name=client.py{echo}")
        # What comes before the answer is for peers.
        next(line for line in self.lines() if line.startswith("+OK ") and echo in line)

    def say(self, *lines):
        self.socket.sendall("".join(f"{line}\n" for line in lines).encode())

    def lines(self):
        """Lines of the broker, until there are no more. A refusal is an error."""
        for line in self.input:
            if line.startswith("-ERR "):
                raise RuntimeError(line.rstrip())
            yield line.removesuffix("\n").removesuffix("\r")
        raise ConnectionError("the connection was lost; what was not confirmed may be there or not")

    def publish(self, topic, *events):
        self.say(*(f"PUB {topic} {event}" for event in events))
        # One answer may confirm many: the number at its end says how many by now.
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

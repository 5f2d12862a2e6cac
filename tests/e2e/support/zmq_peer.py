"""A peer of libzmq for the tests: says what it hears, and sends what it is told, one JSON list of frames a line.

  sub ENDPOINT PREFIX..          prints each message as a JSON list
  xsub ENDPOINT PREFIX..         the same with an XSUB socket, which prints also what it did not subscribe to
  count ENDPOINT END PREFIX..    prints one line when the payload END has come: numbers, runs of numbers, repetitions;
                                 and one at every 250th number, for who waits for that
  doze ENDPOINT END PREFIX..     the same of somebody who does not keep up: has little room, and reads one message and
                                 then no other until standard input ends
  stall ENDPOINT PREFIX..        connects and never reads
  push ENDPOINT                  sends the lines of standard input
  flood ENDPOINT COUNT BYTES     sends so many events to the topic `flood`, and says where it stands still
  pub ENDPOINT                   listens, sends the lines of standard input

With SERVER_KEY in the environment it speaks CURVE to whoever has that public key, with HEARTBEAT_MS it sends PINGs.
"""

import json
import os
import sys
import time

import zmq


def say(value):
    print(json.dumps(value), flush=True)


def text(frames):
    return [frame.decode("utf-8", "backslashreplace") for frame in frames]


def socket_of(kind):
    socket = context.socket(kind)
    if "HEARTBEAT_MS" in os.environ:
        socket.heartbeat_ivl = int(os.environ["HEARTBEAT_MS"])
    if "SERVER_KEY" in os.environ:
        socket.curve_serverkey = os.environ["SERVER_KEY"].encode()
        socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
    return socket


def subscriber(endpoint, prefixes, room=0):
    socket = socket_of(zmq.SUB)
    socket.rcvhwm = room
    # The last one tells that the others are known, too.
    for prefix in prefixes:
        socket.subscribe(prefix.encode())
    socket.connect(endpoint)
    return socket


def told():
    for line in sys.stdin:
        yield [frame.encode("latin-1") for frame in json.loads(line)]


context = zmq.Context()
kind, endpoint, *rest = sys.argv[1:]
if kind == "sub":
    socket = subscriber(endpoint, rest)
    while True:
        say(text(socket.recv_multipart()))
elif kind == "xsub":
    socket = socket_of(zmq.XSUB)
    socket.connect(endpoint)
    for prefix in rest:
        socket.send(b"\x01" + prefix.encode())
    while True:
        say(text(socket.recv_multipart()))
elif kind in ("count", "doze"):
    end, *prefixes = rest
    dozes = kind == "doze"
    socket = subscriber(endpoint, prefixes, room=1000 if dozes else 0)
    runs, repeated, heard = [], 0, 0
    while True:
        topic, number, payload = socket.recv_multipart()
        if topic == b"hello":
            say("hello")
            continue
        number = int(number)
        heard += 1
        if dozes and heard == 1:
            say("dozes")
            sys.stdin.read()
        if runs and number <= runs[-1][1]:
            repeated += 1
        elif runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
        # What another number says under this one would be a lie.
        assert payload == b"end" or payload.split(b" ")[0] == b"m%d" % number, (number, payload[:80])
        if not dozes and number % 250 == 0:
            say(["at", number])
        if payload == end.encode():
            say({"heard": heard, "repeated": repeated, "runs": runs})
elif kind == "stall":
    socket = context.socket(zmq.SUB)
    socket.rcvhwm = 1
    socket.rcvbuf = 4096
    for prefix in rest:
        socket.subscribe(prefix.encode())
    socket.connect(endpoint)
    say("stalled")
    sys.stdin.read()
elif kind == "push":
    socket = socket_of(zmq.PUSH)
    socket.connect(endpoint)
    for frames in told():
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
            say(["stands still", number])
        socket.send_multipart(frames)
    socket.close(linger=-1)
    context.term()
    say(["sent", count])
elif kind == "pub":
    socket = context.socket(zmq.PUB)
    socket.bind(endpoint)
    say(["at", socket.last_endpoint.decode()])
    for frames in told():
        socket.send_multipart(frames)
    time.sleep(0.2)

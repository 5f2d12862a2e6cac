#!/usr/bin/env bash
# A client of Tidings in bash, without any other program:
#   client.sh publish TOPIC EVENT..    publishes events, and waits until all are confirmed
#   client.sh listen TOPIC [FROM]      prints the seq and payload of each event
# The broker is at ${TIDINGS_BROKER:-127.0.0.1:12345}.
set -euo pipefail

fail() {
    echo "client.sh: $*" >&2
    exit 1
}

broker=${TIDINGS_BROKER:-127.0.0.1:12345}
# Bash closes the connection when the script ends.
exec 3<>"/dev/tcp/${broker%:*}/${broker##*:}" || fail "no broker at $broker"

# Reads a line of the broker without its line end; fails when the connection ends.
hear() { IFS= read -r line <&3 && line=${line%$'\r'}; }

# Lines before the answer to HELLO are for peers.
echo=$SRANDOM$SRANDOM
echo "HELLO name=client.sh echo=$echo" >&3
until hear && [[ "$line " == "+OK "*" echo=$echo "* ]]; do :; done

case ${1-} in
publish)
    topic=${2:?TOPIC} && shift 2
    for event; do echo "PUB $topic $event" >&3; done
    # One answer may confirm several events; an error names the events that it rejects.
    confirmed=0
    while [ "$confirmed" -lt $# ] && hear; do
        case $line in
        "+OK "*) confirmed=${line##* } ;;
        "-ERR "*) fail "$line" ;;
        esac
    done
    [ "$confirmed" -eq $# ] || fail "connection lost; unconfirmed events may or may not be stored"
    echo "$# confirmed"
    ;;
listen)
    echo "SUB ${2:?TOPIC}${3:+ from=$3}" >&3
    while hear; do
        case $line in
        "MSG "*) line=${line#MSG * } && echo "$line" ;;
        "-ERR "*) fail "$line" ;;
        "LAG "* | "GAP "*) echo "$line" >&2 ;;
        esac
    done
    ;;
*) fail "usage: publish TOPIC EVENT.. or listen TOPIC [FROM]" ;;
esac

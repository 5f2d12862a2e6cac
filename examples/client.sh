#!/usr/bin/env bash
# A client of Tidings in bash, without any other program:
#   client.sh publish TOPIC EVENT..    publishes, and waits until all of them are safe
#   client.sh listen TOPIC [FROM]      prints number and payload of what comes
# The broker is at ${TIDINGS_BROKER:-127.0.0.1:12345}.
set -euo pipefail

fail() {
    echo "client.sh: $*" >&2
    exit 1
}

broker=${TIDINGS_BROKER:-127.0.0.1:12345}
# Opened here, it is closed with the script.
exec 3<>"/dev/tcp/${broker%:*}/${broker##*:}" || fail "no broker at $broker"

# A line of the broker, without its end; fails when there is no more.
hear() { IFS= read -r line <&3 && line=${line%$'\r'}; }

# What comes before the answer is for peers.
echo=$SRANDOM$SRANDOM
echo "HELLO name=client.sh echo=$echo" >&3
until hear && [[ "$line " == "+OK "*" echo=$echo "* ]]; do :; done

case ${1-} in
publish)
    topic=${2:?TOPIC} && shift 2
    for event; do echo "PUB $topic $event" >&3; done
    # One answer may confirm many; a refusal names those that it is about.
    confirmed=0
    while [ "$confirmed" -lt $# ] && hear; do
        case $line in
        "+OK "*) confirmed=${line##* } ;;
        "-ERR "*) fail "$line" ;;
        esac
    done
    [ "$confirmed" -eq $# ] || fail "the connection was lost; what was not confirmed may be there or not"
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
*) fail "publish TOPIC EVENT.. or listen TOPIC [FROM]" ;;
esac

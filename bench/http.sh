#!/usr/bin/env bash
# Publishes by HTTP with wrk (a Debian package); the broker and wrk have one processor each. One event
# per request, then 1,000 per request; each request is answered after the sync. Then compares 10,000
# subscribers of the line protocol with as many of Server-Sent Events. Prints one line per work.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-10}
program=${TIDINGS:-target/dist/tidings}
[ -x "$program" ] || cargo build --profile dist --features full
cargo build --profile dist --package tidings-bench --bin tidings-bench
measure() { target/dist/tidings-bench --tidings "$program" "$@"; }
command -v wrk >/dev/null || apt-get install --yes --quiet=2 wrk || sudo apt-get install --yes --quiet=2 wrk

folder=$(mktemp -d -p .)
trap 'kill "$broker" 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$folder"' EXIT
: >"$folder/out"
taskset -c 0 "$program" broker --listen 127.0.0.1:0 --data "$folder/data" --threads 1 >"$folder/out" 2>/dev/null &
broker=$!
until url=$(sed -n 's/^HTTP at //p' "$folder/out") && [ -n "$url" ]; do sleep 0.05; done

# Publishes $1 events per request over $2 connections.
publish() {
    cat >"$folder/body.lua" <<LUA
wrk.method = "POST"
wrk.headers["Content-Type"] = "text/plain"
wrk.body = string.rep(string.rep("x", 127) .. "\n", $1)
LUA
    local rate
    rate=$(taskset -c 1 wrk -t1 -c"$2" -d"${seconds}s" -s "$folder/body.lua" "${url}topics/bench-$1" |
        tee "$folder/wrk" | sed -n 's/^Requests\/sec: *//p')
    ! grep -q 'Non-2xx' "$folder/wrk" || { cat "$folder/wrk" >&2; exit 1; }
    awk -v rate="$rate" -v events="$1" -v over="$2" 'BEGIN {
        printf "%d events of 128 bytes per request, %d connections: %.0f requests/s, %.0f events/s\n", events, over, rate, rate * events
    }'
}

publish 1 64
publish 1000 8
kill "$broker"
for sse in "" --sse; do
    measure idle --subscribers 10000 --events 20 --pin 0,1 --sync memory $sse
    measure fan-out --subscribers 100 --pin 0,1 --sync memory --seconds "$((seconds / 3 + 1))" $sse
done

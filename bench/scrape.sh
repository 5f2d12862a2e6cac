#!/usr/bin/env bash
# Measures scrapes of a broker with as many groups as it allows, a topic for each, and 50,000 hosts
# with waiting URLs. curl requests `/metrics` 200 times over one connection, as Prometheus does: of
# an idle broker, then while events are published. Prints one line per work.
set -euo pipefail
cd "$(dirname "$0")/.."

requests=${1:-200}
program=${TIDINGS:-target/dist/tidings}
[ -x "$program" ] || cargo build --profile dist --features full

folder=$(mktemp -d -p .)
trap 'kill $(jobs -p) 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$folder"' EXIT
: >"$folder/out"
"$program" broker --listen 127.0.0.1:0 --http 127.0.0.1:0 --data "$folder/data" \
    >"$folder/out" 2>/dev/null &
until url=$(sed -n 's/^HTTP at //p' "$folder/out") && [ -n "$url" ]; do sleep 0.05; done
address=$(sed -n 's/^listening on //p' "$folder/out")

# A broker has 1,000 groups at most, and some topics of its own: the last few are refused.
for number in $(seq 999); do
    echo "GROUP create g$number topics=t$number"
done | nc -N "${address%:*}" "${address##*:}" >"$folder/answers"
groups=$(grep -c '^+OK g' "$folder/answers") || { cat "$folder/answers" >&2; exit 1; }
seq -f 'http://h%.0f.example/' 50000 | "$program" pub --broker "$address" t1 2>/dev/null
hosts=0
until [ "$hosts" = 50000 ]; do
    sleep 0.5
    hosts=$(curl -sSf "${url}metrics" | sed -n 's/^tidings_group_waiting_entries{group="g1"} //p')
done

# Requests a path, and prints the shortest and the median time until its last byte.
scrape() {
    local series
    series=$(curl -sSf "$url$2" | grep -vc '^#')
    curl -sSf --output /dev/null --write-out '%{time_total}\n' "$url$2#[1-$requests]" | sort -n |
        awk -v what="$1, /$2" -v series="$series" '
            { ms[NR] = $1 * 1000 }
            END {
                printf "%s: %d series; of %d scrapes the shortest ", what, series, NR
                printf "took %.1f ms, the median %.1f ms\n", ms[1], ms[int((NR + 1) / 2)]
            }'
}

echo "$groups groups, $hosts hosts"
scrape idle metrics
scrape idle 'metrics?topics=yes'
seq 100000000 | "$program" pub --broker "$address" t2 >/dev/null 2>&1 &
scrape 'while events are published' metrics
scrape 'while events are published' 'metrics?topics=yes'

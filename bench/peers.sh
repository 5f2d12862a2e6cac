#!/bin/sh
# Compares Tidings with other programs on this machine and prints a table in Markdown: as a broker
# with NATS, Redis, Mosquitto, ZeroMQ and beanstalkd, as a crawler with wget2, spider, aiohttp,
# Crawlee, Scrapy and RQ, or as a crawler that renders pages with Crawlee and scrapy-playwright.
#
#   bench/peers.sh                        all works of brokers, about half an hour
#   bench/peers.sh --quick                one short round, to test whether everything works;
#                                         do not quote its figures
#   bench/peers.sh --only queue           tasks: publish, release to a worker, acknowledge
#   bench/peers.sh --only fan-out-100,latency --rounds 5 --json values.json
#
#   bench/peers.sh crawl                  all works of crawlers, about half an hour
#   bench/peers.sh crawl --quick          a tenth of it, once
#   bench/peers.sh crawl --only flat,polite-1000 --rounds 3 --servers tidings,wget2
#
#   bench/peers.sh render                 all works of rendered pages, about an hour
#   bench/peers.sh render --quick         two pages of each host, once
#
# Flags go to `peers compare`, `peers crawl` or `peers render`; see --help there. The script needs two
# cores, cargo, and a disk (not tmpfs) under the current directory or in $PEERS_DATA. `render` also
# needs root or a delegated control group (version 2). It installs missing packages of Debian, and
# packages of PyPI, npm and crates.io below target/. It does not use the services of these packages:
# it starts every server itself, with an empty directory, on a free port.
set -eu

repository=$(cd "$(dirname "$0")/.." && pwd)
target=${CARGO_TARGET_DIR:-$repository/target}

# Debian installs servers into sbin, which may be missing in PATH.
PATH=$PATH:/usr/sbin:/sbin
export PATH

compared=compare
case "${1:-}" in
crawl | render)
	compared=$1
	shift
	;;
esac

missing=
python3 -c 'import ensurepip, venv' 2> /dev/null || missing="$missing python3-venv"
if [ $compared = render ]; then
	command -v chromium-headless-shell > /dev/null || missing="$missing chromium-headless-shell"
	command -v npm > /dev/null || missing="$missing npm"
else
	command -v redis-server > /dev/null || missing="$missing redis-server"
fi
if [ $compared = crawl ]; then
	command -v wget2 > /dev/null || missing="$missing wget2"
elif [ $compared = compare ]; then
	command -v mosquitto > /dev/null || missing="$missing mosquitto"
	command -v beanstalkd > /dev/null || missing="$missing beanstalkd"
	command -v cc > /dev/null || missing="$missing gcc libc6-dev"
	[ -e /usr/include/zmq.h ] || missing="$missing libzmq3-dev"
fi

if [ -n "$missing" ]; then
	fail() {
		echo "peers.sh: cannot install these packages ($1):$missing" >&2
		exit 1
	}
	command -v apt-get > /dev/null || fail "apt-get not found; install them yourself, the names are those of Debian"
	as_root=
	if [ "$(id -u)" != 0 ]; then
		command -v sudo > /dev/null || fail "needs root, and sudo was not found"
		as_root=sudo
	fi
	echo "peers.sh: installing$missing" >&2
	# shellcheck disable=SC2086 # split into words
	{ $as_root apt-get update -qq && $as_root env DEBIAN_FRONTEND=noninteractive \
		apt-get install -qq -y --no-install-recommends $missing; } >&2 || fail "apt-get failed"
fi
cargo build --manifest-path "$repository/Cargo.toml" --locked --profile dist --features full -p tidings -p tidings-bench >&2
if [ $compared = compare ]; then
	cc -O2 -o "$target/dist/zmq_proxy" "$repository/bench/zmq_proxy.c" -lzmq
	requirements=requirements-brokers.txt
else
	requirements=requirements.txt
fi
environment=$target/peers-python
[ -x "$environment/bin/python" ] || python3 -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check \
	--requirement "$repository/bench/peers/$requirements" >&2
if [ $compared = crawl ]; then
	cargo build --manifest-path "$repository/bench/peers/spider/Cargo.toml" --locked --release \
		--target-dir "$target/spider-peer" >&2
fi
if [ $compared = render ]; then
	# Packages are found beside the script.
	mkdir -p "$target/peers-node"
	cp "$repository/bench/peers/render/package.json" "$repository/bench/peers/render/crawlee.js" \
		"$target/peers-node"
	PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD=1 npm install --prefix "$target/peers-node" --silent \
		--no-audit --no-fund >&2
fi

# The directory is removed after Ctrl-C, too.
if [ -z "${PEERS_DATA:-}" ]; then
	PEERS_DATA=$(mktemp -d "$PWD/tidings-peers.XXXXXX")
	export PEERS_DATA
	trap 'rm -rf "$PEERS_DATA"' EXIT
	trap 'exit 130' INT TERM
fi

case $compared in
crawl)
	set -- --spider "$target/spider-peer/release/spider-peer" --python "$environment/bin/python" \
		--scripts "$repository/bench/peers" "$@"
	;;
render)
	set -- --node "$target/peers-node" --python "$environment/bin/python" \
		--scripts "$repository/bench/peers/render" "$@"
	;;
*)
	set -- --zmq-proxy "$target/dist/zmq_proxy" --nats-server "$environment/bin/nats-server" "$@"
	;;
esac
"$target/dist/peers" $compared --tidings "$target/dist/tidings" "$@"

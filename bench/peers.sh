#!/bin/sh
# Compares Tidings with other programs on this machine: installs what is missing of them (Debian
# packages; packages of PyPI and npm below target/), builds, and calls `tidings-bench` with the same
# arguments. See its --help, and README.md beside this script.
#
#   bench/peers.sh                            everything, about 20 minutes
#   bench/peers.sh --quick                    one short round, to test whether everything works
#   bench/peers.sh flat polite-1000 --rounds 5
#
# It needs two cores, a disk (not tmpfs) under the current directory, and root or a delegated
# control group (version 2) for crawls.
set -eu

repository=$(cd "$(dirname "$0")/.." && pwd)
target=${CARGO_TARGET_DIR:-$repository/target}
# Debian installs servers into sbin, which may be missing in PATH.
PATH=$target/peers-python/bin:$PATH:/usr/sbin:/sbin
export PATH

cargo build --manifest-path "$repository/Cargo.toml" --locked --profile dist --features full \
	--package tidings --package tidings-bench >&2
missing=
for program in redis-server wget2 chromium-headless-shell npm; do
	command -v "$program" > /dev/null || missing="$missing $program"
done
if [ -n "$missing" ]; then
	as_root=
	[ "$(id -u)" = 0 ] || as_root=sudo
	# shellcheck disable=SC2086 # split into words
	{ $as_root apt-get update -qq && $as_root env DEBIAN_FRONTEND=noninteractive \
		apt-get install -qq -y --no-install-recommends python3-venv $missing; } >&2
fi
[ -x "$target/peers-python/bin/pip" ] || python3 -m venv "$target/peers-python"
pip install --quiet --requirement "$repository/bench/peers/requirements.txt" >&2
# Packages are found beside the script.
mkdir -p "$target/peers-node"
cp "$repository/bench/peers/package.json" "$repository/bench/peers/crawlee.js" "$target/peers-node"
PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD=1 npm install --prefix "$target/peers-node" --silent --no-audit \
	--no-fund >&2

# Removed after Ctrl-C, too.
data=$(mktemp -d "$PWD/tidings-peers.XXXXXX")
trap 'rm -rf "$data"' EXIT
trap 'exit 130' INT TERM
"$target/dist/tidings-bench" --node "$target/peers-node" --data "$data" "$@"

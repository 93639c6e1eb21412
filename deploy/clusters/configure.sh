#!/usr/bin/env bash
# Makes this machine a node: Ray's environment in /etc/canopy/ray.env, the systemd units, `canopy` and `ray` on the PATH of
# every login shell. Changes nothing that is right already. Needs systemd, bash, and sudo without a password (or root).
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
token="$here/secrets/ray-token"
sudo() { if [ "$(id -u)" -eq 0 ]; then "$@"; else command sudo "$@"; fi; }

if [ ! -s "$token" ]; then
    echo "configure.sh: $token is missing; docs/clusters.md says how to make one." >&2
    exit 2
fi
if [ ! -x /usr/sbin/nft ]; then
    echo "configure.sh: nftables is missing; apt-get install nftables." >&2
    exit 2
fi
chmod 700 "$here/secrets"
chmod 600 "$here"/secrets/*

sudo install -d -m 755 /etc/canopy
sudo tee /etc/canopy/ray.env > /dev/null << END
RAY_AUTH_MODE=token
RAY_AUTH_TOKEN_PATH=$token
RAY_USAGE_STATS_ENABLED=0
RAY_DISABLE_FAILURE_SIGNAL_HANDLER=1
RAY_enable_worker_prestart=0
RAY_prestart_worker_first_driver=0
END
sudo tee /etc/profile.d/canopy.sh > /dev/null << 'END'
set -a; . /etc/canopy/ray.env; set +a
PATH=/opt/canopy/venv/bin:$PATH
END
sudo install -m 644 "$here"/clusters/units/*.service /etc/systemd/system/
sudo systemctl daemon-reload

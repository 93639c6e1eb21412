#!/usr/bin/env bash
# start.sh head|worker ray start ...
# Starts Ray with exactly that command, as a systemd unit: canopy-head@USER or canopy-worker@USER. The command, and what
# `ray up` put into its environment, are kept in /etc/canopy, so that a head starts the same way after a reboot, and the
# fleet with it. A worker does not: the head misses it and starts it. Flags that are the same everywhere are added here.
set -euo pipefail
role=$1
shift
user=$(id -un)
sudo() { if [ "$(id -u)" -eq 0 ]; then "$@"; else command sudo "$@"; fi; }

sudo systemctl stop "canopy-head@$user" "canopy-worker@$user"
sudo systemctl disable --quiet "canopy-head@$user" "canopy-fleet@$user" "canopy-workers@$user"

# The address at which the launcher reached this machine: the private one, whatever other interfaces there are.
address=$(cut -d ' ' -f 3 <<< "$SSH_CONNECTION")
flags=(
    --node-ip-address="$address"
    # Fixed, so that a firewall can know them. Ray takes further ones from 10002 to 19999, the Ray Client server 10001 on
    # the head, and its autoscaler's metrics 44217 and 44227 there.
    --node-manager-port=6380 --object-manager-port=6381 --runtime-env-agent-port=6382
    --dashboard-agent-grpc-port=6383 --dashboard-agent-listen-port=6384 --metrics-export-port=6385
    --min-worker-port=10002 --max-worker-port=19999
    # Ray carries control messages only; its smallest object store will do.
    --object-store-memory=83886080
)
echo "RAY_NODE_IP=$address" | sudo tee /etc/canopy/node.env > /dev/null
{
    export -p | grep -E '^declare -x (RAY|AUTOSCALER)_' || true
    echo 'set -a; . /etc/canopy/ray.env'
    echo '[ ! -f ~/canopy/secrets/node.env ] || . ~/canopy/secrets/node.env; set +a'
    printf '%q ' "$@" "${flags[@]}"
} | sudo install -m 600 -o "$user" /dev/stdin /etc/canopy/ray-start.sh

# Ray listens on all interfaces, and no flag of it changes that. So these ports are closed on all but two addresses.
sudo install -m 600 /dev/stdin /etc/canopy/private-ports.nft << END
table inet canopy_ray
delete table inet canopy_ray
table inet canopy_ray {
    chain input {
        type filter hook input priority filter; policy accept;
        ip daddr { 127.0.0.0/8, $address } accept
        iifname "lo" accept
        tcp dport { 6379-6385, 8265, 10001-19999, 44217, 44227 } drop
    }
}
END

if [ "$role" = head ]; then
    sudo ln -sfn ~/canopy/fleet.yaml /etc/canopy/fleet.yaml
    sudo systemctl enable --quiet "canopy-head@$user" "canopy-fleet@$user"
fi
if ! sudo systemctl start "canopy-$role@$user"; then
    sudo journalctl --no-pager --output cat --identifier bash --lines 10 --unit "canopy-$role@$user" >&2
    exit 1
fi

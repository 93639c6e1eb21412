#!/usr/bin/env bash
# Prometheus and Grafana on the head, as containers: the unit canopy-monitoring. Both listen on loopback only; bring
# them to your computer with `ray attach -p 3000 cluster.yaml`.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)

if ! docker compose version > /dev/null 2>&1; then
    sudo apt-get update -qq
    sudo DEBIAN_FRONTEND=noninteractive apt-get install -y -qq docker.io docker-compose-v2
fi
sudo install -d -m 755 /etc/canopy/prometheus
sudo install -m 644 "$here/prometheus/prometheus-ray.yml" /etc/canopy/prometheus/prometheus.yml
sudo ln -sfn "$here/prometheus/rules" /etc/canopy/prometheus/rules
sudo tee /etc/canopy/monitoring.env > /dev/null << END
CANOPY_PROMETHEUS_ADDRESS=127.0.0.1:9090
CANOPY_GRAFANA_HOST=127.0.0.1
CANOPY_GRAFANA_PORT=3000
CANOPY_OBSERVE_CONFIG=/etc/canopy/prometheus
CANOPY_OBSERVE_GRAFANA=$here/grafana
END
sudo ln -sfn "$here/prometheus/compose.yaml" /etc/canopy/monitoring.yaml
sudo systemctl enable --quiet --now canopy-monitoring

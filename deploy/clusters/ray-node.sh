#!/usr/bin/env bash
# What the unit canopy-ray@ runs: Ray's start command, which leaves daemons behind, then the raylet's pid for systemd. The
# unit lives as long as the raylet: one that was told to stop (`ray stop`) stops the unit, one that was killed restarts it.
set -euo pipefail
bash /etc/canopy/ray-start.sh
group=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)
while read -r pid; do
    if [ "$(cat "/proc/$pid/comm" 2> /dev/null)" = raylet ]; then
        echo "$pid" > "$RUNTIME_DIRECTORY/raylet.pid"
    fi
done < "$group/cgroup.procs"

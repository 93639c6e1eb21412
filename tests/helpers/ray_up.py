"""A cluster that `ray up deploy/clusters/local.yaml` makes of machines in a lab (tests/helpers/machines.py).

Changed in the file are only addresses, user, and what is served; the packages step is left out, for the machines have
this environment already. `ray up` itself runs on a machine of its own, the laptop.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.helpers.machines import Lab, Machine

ROOT = Path(__file__).parents[2]
VENV = Path(sys.prefix)
TOKEN = "5eed" * 16
NAME = "tiny-chat"
GATEWAY_PORT = 8000
CPUS_PER_REPLICA = 2  # all that these machines have: one replica for each


def fleet_file(replicas: int) -> str:
    """What to serve: a tiny model on the simulated device."""
    model = {
        "name": NAME,
        "model": "/home/canopy/canopy/model",
        "replicas": replicas,
        "engine": {"device": "sim", "sim-speed": 10},
        "resources": {"cpus": CPUS_PER_REPLICA},
    }
    return yaml.safe_dump({"models": [model], "gateway": {"host": "0.0.0.0", "port": GATEWAY_PORT}})


@dataclass(slots=True)
class RayUpCluster:
    """The machines, before and after `ray up`."""

    laptop: Machine
    head: Machine
    workers: list[Machine]

    @classmethod
    def prepared(cls, lab: Lab, model: Path) -> RayUpCluster:
        """Machines with ssh between them, and the project on the laptop, ready for `ray up`."""
        laptop, head, *workers = (lab.machine(name) for name in ("laptop", "head", "worker-1", "worker-2"))
        cluster = cls(laptop, head, workers)
        laptop.run("ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_ed25519")
        public = (laptop.home / ".ssh/id_ed25519.pub").read_text()
        for node in cluster.nodes:
            node.put({".ssh/authorized_keys": public})
            node.run(f"sudo mkdir -p /opt/canopy && sudo ln -s {VENV} /opt/canopy/venv")
        project = laptop.home / "project"
        shutil.copytree(ROOT / "deploy/clusters", project / "deploy/clusters")
        shutil.copytree(model, project / "model")
        (project / "dist").mkdir()
        laptop.put(
            {
                "project/constraints.txt": "",
                "project/deploy/fleet.yaml": fleet_file(replicas=3),
                "project/cluster.yaml": yaml.safe_dump(cluster._file()),
                ".canopy/secrets/ray-token": TOKEN,
            }
        )
        return cluster

    @property
    def nodes(self) -> list[Machine]:
        """The machines that Ray runs on."""
        return [self.head, *self.workers]

    def ray(self, command: str, *arguments: str, timeout_s: float = 60) -> str:
        """Run a `ray` command about this cluster on the laptop."""
        words = shlex.join([f"{VENV}/bin/ray", *command.split(), "cluster.yaml", *arguments])
        return self.laptop.run(f"cd project && {words}", timeout_s=timeout_s)

    def replicas(self) -> list[dict[str, Any]]:
        """Ready replicas as `canopy status` on the head tells them; none while it cannot."""
        ask = f". /etc/profile.d/canopy.sh; canopy status --json --address {self.head.address}:6379"
        text = self.head.run(ask, check=False)
        try:
            fleets = json.loads(text)
        except json.JSONDecodeError:
            return []
        records = [replica["status"]["record"] for fleet in fleets for replica in fleet["replicas"]]
        return [record for record in records if record["state"] == "ready"]

    def chat(self, prompt: str) -> dict[str, Any]:
        """One request from the laptop through the gateway; the error body if it is not answered."""
        body = {"model": NAME, "messages": [{"role": "user", "content": prompt}], "max_tokens": 8, "ignore_eos": True}
        url = f"http://{self.head.address}:{GATEWAY_PORT}/v1/chat/completions"
        text = self.laptop.run(
            f"curl -s -m 20 {url} -H 'content-type: application/json' -d '{json.dumps(body)}'", check=False
        )
        try:
            return dict(json.loads(text))
        except json.JSONDecodeError:
            return {"error": text}

    def ready_workers(self) -> int:
        """How many replicas the gateway can route to. Asks at most once a second: starting Rays need the CPU."""
        time.sleep(1)
        url = f"http://{self.head.address}:{GATEWAY_PORT}/readiness"
        text = self.laptop.run(f"curl -s -m 5 {url}", check=False)
        return int(json.loads(text).get("ready_workers", 0)) if text.startswith("{") else 0

    def serves(self) -> bool:
        """Whether a request is answered."""
        return "choices" in self.chat("hi")

    def _file(self) -> dict[str, Any]:
        file: dict[str, Any] = yaml.safe_load((ROOT / "deploy/clusters/local.yaml").read_text())
        file["provider"] |= {"head_ip": self.head.address, "worker_ips": [node.address for node in self.workers]}
        file["auth"] |= {"ssh_user": "canopy"}
        file["file_mounts"]["~/canopy/model"] = "model"
        file["setup_commands"].remove("bash ~/canopy/clusters/packages.sh")
        return file

"""A private Ray for one local fleet: loopback address, own token, own directory, no dashboard."""

from __future__ import annotations

import os
import secrets
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

from deploy.environment import ray_environment
from deploy.local.plan import write_private
from deploy.processes import is_alive

# Ray replaces 127.0.0.1 by the machine's outer address; any other loopback address it keeps.
_NODE_ADDRESS = "127.0.0.2"
TOKEN_FILE = "ray-token"  # the secret of a fleet's Ray, in its private directory
_ESSENTIAL = ("gcs_server", "raylet")
_OBJECT_STORE_BYTES = 80 * 2**20  # messages only; Ray's minimum is 75 MiB


@dataclass(frozen=True, slots=True)
class RayNode:
    """The started Ray, which this process is connected to."""

    address: str
    processes: tuple[psutil.Process, ...]  # without one of these nothing can be restarted

    def lost_process(self) -> str | None:
        """The name of an essential process that has ended."""
        return next((name for name, p in zip(_ESSENTIAL, self.processes, strict=True) if not is_alive(p)), None)


def start_ray(run_dir: Path) -> RayNode:
    """Start Ray and connect. Call it once, from the main thread: the kernel ends Ray's processes with that thread."""
    token_file = run_dir / TOKEN_FILE
    write_private(token_file, secrets.token_hex(32).encode())
    os.environ.update(ray_environment(token_file))  # Ray reads them on import, and its processes inherit them
    import ray

    from common.fleet import RAY_NAMESPACE

    temp_dir = run_dir / "ray"  # Ray makes it readable for everyone; the directory above it is not
    context = ray.init(
        include_dashboard=False,
        object_store_memory=_OBJECT_STORE_BYTES,
        namespace=RAY_NAMESPACE,
        log_to_driver=False,
        logging_level="error",
        _temp_dir=str(temp_dir),
        _node_ip_address=_NODE_ADDRESS if sys.platform.startswith("linux") else None,
    )
    return RayNode(
        address=context.address_info["gcs_address"],
        processes=tuple(_child(name) for name in _ESSENTIAL),
    )


def _child(name: str) -> psutil.Process:
    return next(p for p in psutil.Process().children() if p.name() == name)

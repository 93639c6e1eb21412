"""`python -m deploy.observe` (`make observe`): Prometheus and Grafana for one gateway, until Ctrl-C.

Native programs where both are installed (`make tools` puts Prometheus into .cache/tools), else containers by
deploy/prometheus/compose.yaml.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import httpx

from common.errors import UserError
from common.process import die_with_parent

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "deploy" / "prometheus"
GRAFANA = ROOT / "deploy" / "grafana"
COMPOSE = CONFIG / "compose.yaml"
TOOLS = ROOT / ".cache" / "tools" / "usr" / "bin"
_DATA = ROOT / ".cache" / "observe"
_GATEWAY = "127.0.0.1:8000"  # in prometheus.yml
_KEY_LINE = "# authorization: {type: Bearer, credentials_file: /etc/prometheus/canopy-admin-key}"  # likewise
_KEY_IN_CONTAINER = Path("/etc/canopy/admin-key")  # in compose.yaml
_START_TIMEOUT_S = 60.0
_END_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Places:
    """Where everything listens, as host:port."""

    gateway: str
    prometheus: str
    grafana: str
    admin_key_file: Path | None = None


def find(program: str) -> str | None:
    """A program on PATH or among our tools."""
    own = TOOLS / program
    return shutil.which(program) or (str(own) if own.exists() else None)


def config_for(places: Places, folder: Path) -> Path:
    """prometheus.yml for this gateway, in `folder`, beside the rules."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copytree(CONFIG / "rules", folder / "rules", dirs_exist_ok=True)
    text = (CONFIG / "prometheus.yml").read_text()
    path = folder / "prometheus.yml"
    if places.admin_key_file is not None:
        key_file = json.dumps(str(places.admin_key_file))  # JSON's strings are YAML's
        text = text.replace(_KEY_LINE, f"authorization: {{type: Bearer, credentials_file: {key_file}}}")
    path.write_text(text.replace(_GATEWAY, places.gateway))
    return path


def prometheus_command(program: str, places: Places, folder: Path) -> list[str]:
    """Prometheus on its own directory."""
    return [
        program,
        f"--config.file={config_for(places, folder)}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={places.prometheus}",
        "--web.enable-lifecycle",
        "--log.level=warn",
    ]


def grafana_setup(program: str, places: Places, folder: Path) -> tuple[list[str], dict[str, str]]:
    """Grafana's command and environment: our dashboards, no login to look at them."""
    host, _, port = places.grafana.rpartition(":")
    paths = {"DATA": folder / "grafana", "LOGS": folder / "grafana" / "log", "PROVISIONING": GRAFANA / "provisioning"}
    environment = {f"GF_PATHS_{name}": str(path) for name, path in paths.items()} | {
        "GF_LOG_MODE": "file",
        "GF_SERVER_HTTP_ADDR": host,
        "GF_SERVER_HTTP_PORT": port,
        "GF_AUTH_ANONYMOUS_ENABLED": "true",
        "GF_AUTH_ANONYMOUS_ORG_ROLE": "Viewer",
        "GF_ANALYTICS_REPORTING_ENABLED": "false",
        "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
        "GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH": str(GRAFANA / "dashboards" / "canopy-fleet.json"),
        "CANOPY_DASHBOARDS": str(GRAFANA / "dashboards"),
        "CANOPY_PROMETHEUS_URL": f"http://{places.prometheus}",
    }
    server = [program, "server"] if Path(program).name == "grafana" else [program]
    home = next((path for path in (Path("/usr/share/grafana"),) if path.exists()), None)
    return [*server, *([f"--homepath={home}"] if home is not None else [])], environment


def run_native(prometheus: str, grafana: str, places: Places, folder: Path) -> int:
    """Both programs, until one of them ends or somebody ends us."""
    with ExitStack() as stack:
        first = stack.enter_context(_Child(prometheus_command(prometheus, places, folder), {}))
        second = stack.enter_context(_Child(*grafana_setup(grafana, places, folder)))
        for child, name, place in ((first, "Prometheus", places.prometheus), (second, "Grafana", places.grafana)):
            child.wait_ready(name, f"http://{place}/")
        print(
            f"Grafana: http://{places.grafana}/  Prometheus: http://{places.prometheus}/  Ctrl-C ends both.", flush=True
        )
        while first.process.poll() is None and second.process.poll() is None:
            time.sleep(0.5)
    return 1


def has_compose(docker: str) -> bool:
    """Whether this docker has its compose plugin."""
    return subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode == 0


def run_compose(docker: str, places: Places, folder: Path) -> int:
    """The compose file, in the foreground."""
    config_for(replace(places, admin_key_file=_KEY_IN_CONTAINER if places.admin_key_file is not None else None), folder)
    host, _, port = places.grafana.rpartition(":")
    environment = {
        "CANOPY_OBSERVE_CONFIG": str(folder),
        "CANOPY_OBSERVE_GRAFANA": str(GRAFANA),
        "CANOPY_OBSERVE_KEY": str(places.admin_key_file or os.devnull),
        "CANOPY_PROMETHEUS_ADDRESS": places.prometheus,
        "CANOPY_GRAFANA_HOST": host,
        "CANOPY_GRAFANA_PORT": port,
    }
    command = [docker, "compose", "--file", str(COMPOSE), "up", "--abort-on-container-exit"]
    return subprocess.run(command, env=os.environ | environment, check=False).returncode


class _Child:
    """A program that ends when we do."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        own_pid = os.getpid()
        self.process = subprocess.Popen(
            command, env=os.environ | environment, preexec_fn=lambda: die_with_parent(own_pid)
        )

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def wait_ready(self, name: str, url: str) -> None:
        """Until it answers. Raises UserError if it ends or takes too long."""
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline_s and self.process.poll() is None:
            try:
                httpx.get(url, timeout=5, trust_env=False)
                return
            except httpx.HTTPError:
                time.sleep(0.2)
        raise UserError(f"{name} did not start; what it wrote stands above.")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make observe", description=__doc__)
    parser.add_argument("--gateway", default=_GATEWAY, metavar="HOST:PORT", help=f"the gateway, default {_GATEWAY}")
    parser.add_argument("--prometheus", default="127.0.0.1:9090", metavar="HOST:PORT", help="where Prometheus listens")
    parser.add_argument("--grafana", default="127.0.0.1:3000", metavar="HOST:PORT", help="where Grafana listens")
    parser.add_argument(
        "--admin-key-file", type=Path, metavar="FILE", help="holds the gateway's admin key, if it has one"
    )
    parser.add_argument("--folder", type=Path, default=_DATA, help="for what they store, default .cache/observe")
    args = parser.parse_args()
    folder = args.folder.resolve()
    key_file = args.admin_key_file.resolve() if args.admin_key_file is not None else None
    places = Places(args.gateway, args.prometheus, args.grafana, key_file)
    prometheus, grafana = find("prometheus"), find("grafana") or find("grafana-server")
    try:
        if key_file is not None and not key_file.is_file():
            raise UserError(f"There is no file {key_file}; it must hold the gateway's admin key.")
        if prometheus is not None and grafana is not None:
            return run_native(prometheus, grafana, places, folder)
        docker = shutil.which("docker")
        if docker is not None and has_compose(docker):
            return run_compose(docker, places, folder)
        missing = "Prometheus" if prometheus is None else "Grafana"
        raise UserError(
            f"{missing} is not installed, and neither is docker with its compose plugin; install both Prometheus "
            "(`make tools`) and Grafana (its Debian package), or docker compose."
        )
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 0


if __name__ == "__main__":
    sys.exit(main())

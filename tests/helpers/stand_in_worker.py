"""A worker without an engine, for tests of the fleet: writes the ready file, has a scheduler process, serves /health.

Takes the command line the fleet gives to `python -m worker`. The key `behaviour` of its settings file, or a model name
that is one, chooses what it does: serve, refuse (exit code 2), crash (exit code 1), hang (never ready), stubborn
(ignores SIGTERM).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import yaml


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()


def main() -> int:
    parser = argparse.ArgumentParser()
    for flag in ("--config", "--ready-file", "--incarnation"):
        parser.add_argument(flag)
    args = parser.parse_args()
    settings = yaml.safe_load(Path(args.config).read_text())
    behaviour = settings.get("behaviour") or settings.get("served_model_name")
    print(f"stand-in worker: {behaviour}", file=sys.stderr)
    if behaviour == "refuse":
        print("--model-path: there is no such model.", file=sys.stderr)
        return 2
    if behaviour == "crash":
        print("boom", file=sys.stderr)
        return 1
    if behaviour == "hang":
        time.sleep(600)
    if behaviour == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    scheduler = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    server = HTTPServer(("127.0.0.1", 0), _Handler)
    ready = {
        "url": f"http://127.0.0.1:{server.server_port}",
        "pid": os.getpid(),
        "scheduler_pid": scheduler.pid,
        "incarnation": args.incarnation,
        "model": settings.get("served_model_name", "stand-in"),
        "max_total_num_tokens": 1000,
        "max_running_requests": 8,
    }
    part = Path(args.ready_file + ".part")
    part.write_text(json.dumps(ready))
    part.rename(args.ready_file)
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())

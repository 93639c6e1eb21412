"""Machines of their own on this one: each boots systemd and sshd in namespaces, with its own disk and network.

`ray stop`, `ray down` and systemd units act there as on real machines and see nothing of this one. The machines share a
bridge without a way out; a machine's disk is a layer above this machine's files, kept while the lab lives, so that a
reboot finds what was written. When the test process dies, however, everything here dies with it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import uuid
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType

import psutil

from common.process import die_with_parent
from tests.helpers.processes import wait_until

_BOOT = Path(__file__).with_name("machine_boot.sh")
_CGROUPS = Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")
_TOOLS = ("unshare", "nsenter", "ip", "sshd", "ssh", "ssh-keygen", "rsync", "sudo", "/lib/systemd/systemd")
_NETWORK = "10.77.0"
_USER = 4321  # the user of machine_boot.sh, who may use sudo
_BOOT_TIMEOUT_S = 30.0


def missing_for_machines() -> str | None:
    """Why no machines can be had here, as a reason to skip; None if they can."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "machines of their own need Linux and root"
    absent = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if absent:
        return f"{', '.join(absent)} missing: `make cluster-tools` installs them"
    if _cgroup_root() is None:
        return "machines of their own need a cgroup v2 hierarchy that may be written"
    probe = subprocess.run(["unshare", "--mount", "--net", "--pid", "--cgroup", "--fork", "true"], capture_output=True)
    return None if probe.returncode == 0 else f"namespaces are not allowed here: {probe.stderr.decode().strip()}"


def _cgroup_root() -> Path | None:
    return next((p for p in _CGROUPS if (p / "cgroup.procs").is_file() and os.access(p, os.W_OK)), None)


@dataclass(slots=True)
class Machine:
    """One booted machine. `home` is the home of its user `canopy`, seen from here."""

    lab: Lab
    name: str
    number: int
    home: Path
    launcher: subprocess.Popen[bytes] | None = None
    pid: int = 0  # its process 1, by this machine's count

    @property
    def address(self) -> str:
        """Where the other machines reach it."""
        return f"{_NETWORK}.{self.number}"

    def run(self, script: str, *, timeout_s: float = 60, check: bool = True) -> str:
        """Run bash lines there, in a login shell of `canopy`. Returns what they print; fails if they do."""
        done = subprocess.run(
            ["nsenter", f"--target={self.pid}", "--all", "su", "--login", "canopy", "--command", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=timeout_s,
        )
        assert done.returncode == 0 or not check, (
            f"{self.name}: {script!r} ended with {done.returncode}:\n{done.stdout}"
        )
        return done.stdout

    def put(self, files: dict[str, str]) -> None:
        """Write files into the home of `canopy`, readable to it alone."""
        for name, text in files.items():
            path = self.home / name
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
            path.write_text(text)
            path.chmod(0o600)
        self._own(self.home)

    def _own(self, top: Path) -> None:
        for path in (top, *top.rglob("*")):
            os.chown(path, _USER, _USER, follow_symlinks=False)

    def processes(self) -> dict[int, str]:
        """Command lines of its processes, by this machine's pids."""
        first = psutil.Process(self.pid)
        found = {}
        for process in [first, *first.children(recursive=True)]:
            try:
                found[process.pid] = " ".join(process.cmdline()) or process.name()
            except psutil.NoSuchProcess:
                continue
        return found

    def listening(self) -> set[tuple[str, int]]:
        """Addresses and ports of its listening TCP sockets."""
        lines = self.run("ss -Hltn").splitlines()
        pairs = (line.split()[3].rsplit(":", 1) for line in lines)
        return {(host.strip("[]").split("%")[0], int(port)) for host, port in pairs}

    def boot(self) -> None:
        """Switch it on; returns when its sshd answers."""
        self.lab.start(self)
        wait_until(self._answers, _BOOT_TIMEOUT_S, f"{self.name} has booted")

    def cut_power(self) -> None:
        """Everything in it ends at once."""
        assert self.launcher is not None
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
        self.launcher.wait(_BOOT_TIMEOUT_S)
        self.pid = 0

    def _answers(self) -> bool:
        return ("0.0.0.0", 22) in self.listening()


@dataclass(slots=True)
class Lab:
    """Some machines and the network between them. Use it as a context manager."""

    directory: Path
    machines: list[Machine] = field(default_factory=list)
    _router: subprocess.Popen[bytes] | None = None
    _router_pid: int = 0
    _cgroup: Path = Path()

    def __enter__(self) -> Lab:
        root = _cgroup_root()
        assert root is not None
        self._cgroup = root / f"canopy-lab-{uuid.uuid4().hex[:8]}"
        self._cgroup.mkdir()
        disks = self.directory / "disks"
        disks.mkdir()
        script = f"""mount -t tmpfs tmpfs {disks}
            ip link add bridge0 type bridge && ip addr add {_NETWORK}.1/24 dev bridge0
            ip link set bridge0 up && ip link set lo up && echo up && exec sleep infinity"""
        self._router = subprocess.Popen(
            [
                "unshare",
                "--mount",
                "--net",
                "--pid",
                "--uts",
                "--fork",
                "--kill-child",
                "--mount-proc",
                "sh",
                "-ec",
                script,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            preexec_fn=partial(die_with_parent, os.getpid()),
        )
        assert self._router.stdout is not None
        assert self._router.stdout.readline() == b"up\n"
        self._router_pid = psutil.Process(self._router.pid).children()[0].pid
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all machines and remove what they were made of."""
        assert self._router is not None and self._router.stdout is not None
        os.kill(self._router_pid, signal.SIGKILL)  # first process of the namespace that all machines are in
        self._router.wait()
        self._router.stdout.close()
        for machine in self.machines:
            if machine.launcher is not None:
                machine.launcher.wait(_BOOT_TIMEOUT_S)
        wait_until(self._removed_cgroups, 10, "the machines' control groups are empty")

    def machine(self, name: str) -> Machine:
        """A new machine, booted."""
        home = self.directory / "home" / name
        home.mkdir(parents=True)
        shutil.copytree("/etc/skel", home, dirs_exist_ok=True)
        machine = Machine(self, name, 10 + len(self.machines), home)
        self.machines.append(machine)
        machine.put({})
        machine.boot()
        return machine

    def start(self, machine: Machine) -> None:
        """Begin its process 1, with an interface on the bridge."""
        cgroup = self._cgroup / machine.name
        cgroup.mkdir(exist_ok=True)
        disk = self.directory / "disks" / machine.name
        boot = f"""mkdir -p {disk}/disk {disk}/home
            mount --bind {machine.home} {disk}/home
            exec bash {_BOOT} {disk} {machine.name}"""
        script = f"""echo $$ > {cgroup}/cgroup.procs
            exec nsenter --target={self._router_pid} --mount --net --pid --uts \\
            unshare --mount --net --pid --uts --ipc --cgroup --fork --kill-child sh -ec {shlex.quote(boot)}"""
        with (self.directory / f"{machine.name}.log").open("ab") as log:
            machine.launcher = subprocess.Popen(
                ["bash", "-ec", script],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                preexec_fn=partial(die_with_parent, os.getpid()),
            )
        stdin, stdout = machine.launcher.stdin, machine.launcher.stdout
        assert stdin is not None and stdout is not None
        assert stdout.readline() == b"ready\n"
        machine.pid = psutil.Process(machine.launcher.pid).children(recursive=True)[-1].pid
        self._connect(machine)
        stdin.write(b"go\n")
        stdin.close()
        assert stdout.readline() == b"entered\n"
        stdout.close()

    def _connect(self, machine: Machine) -> None:
        link = f"to-{machine.number}"
        inside, outside = f"--target={machine.pid}", f"--target={self._router_pid}"
        for command in (
            f"nsenter {outside} --net ip link add {link} type veth peer name eth0 netns {machine.pid}",
            f"nsenter {outside} --net ip link set {link} master bridge0 up",
            f"nsenter {inside} --net ip addr add {machine.address}/24 dev eth0",
            f"nsenter {inside} --net ip link set eth0 up",
        ):
            subprocess.run(command.split(), check=True)

    def _removed_cgroups(self) -> bool:
        try:
            for path in sorted(self._cgroup.glob("**/"), key=lambda p: -len(p.parts)):
                path.rmdir()
        except OSError:
            return False
        return not self._cgroup.exists()

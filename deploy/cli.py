"""The `canopy` command. Each subcommand imports what it needs, and only then: `canopy --help` answers at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import metadata

from common.errors import UserError

_HELP = """usage: canopy COMMAND [flags]

  serve MODEL   one model from replicas behind a gateway, on this machine
  serve --cluster FILE   the fleet that a file describes, on a Ray cluster or here; again: only what differs
  gateway       the gateway alone, in front of running workers
  worker        one replica alone
  status        the fleet as a table
  scale [MODEL] N   another number of replicas
  batch IN OUT  a file of requests, each answered once
  plan [TRACE]  how many replicas a load needs, by simulation
  tune [LOG ...]    what the tuning guide says to a running fleet, or to logs
  bench         load on a server, runs beside each other, throughput of one engine, times of its kernels

canopy COMMAND --help lists the flags of a command, canopy --version prints the version."""

_NOT_BUILT = frozenset({"doctor"})
_SERVERS = frozenset({"serve", "gateway", "worker"})  # Ctrl-C is how they end
_NOT_READ = 141  # as a shell reports what SIGPIPE has ended
_STOPPED = 130  # as a shell reports what Ctrl-C has ended


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit code; 2 for a fault of the user, which is told in one sentence."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if argv is None and arguments[:1] == ["gateway"]:
        _begin_gateway()
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_HELP)
        return 0
    if arguments[0] == "--version":
        print(f"canopy {metadata.version('canopy-serve')}")
        return 0
    try:
        code = _command(arguments[0])(arguments[1:])
        sys.stdout.flush()
        return code
    except UserError as error:
        print(f"canopy: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # whoever read our output has enough of it, as head has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _NOT_READ
    except KeyboardInterrupt:
        return 0 if arguments[0] in _SERVERS else _STOPPED


def _command(name: str) -> Callable[[Sequence[str]], int]:
    commands = {
        "serve": _serve,
        "gateway": _gateway,
        "worker": _worker,
        "status": _status,
        "scale": _scale,
        "bench": _bench,
        "batch": _batch,
        "plan": _plan,
        "tune": _tune,
    }
    if name in commands:
        return commands[name]
    if name in _NOT_BUILT:
        raise UserError(f"`canopy {name}` is not built yet.")
    raise UserError(f"There is no command {name!r}; see canopy --help.")


def _serve(argv: Sequence[str]) -> int:
    if any(word == "--cluster" or word.startswith("--cluster=") for word in argv):
        from deploy.fleet.apply import main as apply_main

        return apply_main(argv, os.environ)
    from deploy.local.launcher import serve

    return serve(argv, os.environ)


def _begin_gateway() -> None:
    from gateway.allocator import use_jemalloc

    use_jemalloc()


def _gateway(argv: Sequence[str]) -> int:
    from gateway.__main__ import main as gateway_main

    return gateway_main(argv)


def _worker(argv: Sequence[str]) -> int:
    from worker.__main__ import main as worker_main

    return worker_main(argv)


def _status(argv: Sequence[str]) -> int:
    from deploy.status import main as status_main

    return status_main(argv, os.environ)


def _scale(argv: Sequence[str]) -> int:
    from deploy.fleet.scale import main as scale_main

    return scale_main(argv, os.environ)


def _batch(argv: Sequence[str]) -> int:
    from deploy.batch.command import main as batch_main

    return batch_main(argv, os.environ)


def _plan(argv: Sequence[str]) -> int:
    from deploy.plan.command import main as plan_main

    return plan_main(argv, os.environ)


def _tune(argv: Sequence[str]) -> int:
    from deploy.tune.command import main as tune_main

    return tune_main(argv, os.environ)


def _bench(argv: Sequence[str]) -> int:
    from deploy.bench import main as bench_main

    return bench_main(argv)


if __name__ == "__main__":
    sys.exit(main())

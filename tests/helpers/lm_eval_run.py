"""Runs lm-evaluation-harness in a process of its own: `python -m tests.helpers.lm_eval_run URL TOKENIZER TASKS OUT`.

By its Python interface: its command line prints a table with a package whose pins fight with ours.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main(url: str, tokenizer: str, folder: str, out: str) -> None:
    """Evaluate the server at `url` by the task files in `folder`; scores and samples by task go to `out` as JSON."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    results: Any = simple_evaluate(
        model="local-completions",
        model_args={
            "model": "demo",
            "base_url": url,
            "tokenizer": tokenizer,
            "tokenizer_backend": "huggingface",
            "num_concurrent": 4,
            "max_retries": 1,
        },
        tasks=[file.stem for file in sorted(Path(folder).glob("*.yaml"))],
        task_manager=TaskManager(include_path=folder, include_defaults=False),
        bootstrap_iters=0,
    )
    told = {"scores": results["results"], "samples": results["samples"]}
    Path(out).write_text(json.dumps(told, default=str))


if __name__ == "__main__":
    main(*sys.argv[1:])

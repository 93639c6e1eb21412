"""GSM8K as tasks of lm-evaluation-harness, from a file: the right number among four, written answers, perplexity."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import yaml

CHOICES, GENERATED, PERPLEXITY = "gsm8k_numbers", "gsm8k_written", "gsm8k_perplexity"
NEW_TOKENS, STOP = 48, "Question:"

_NOTES = re.compile(r"<<.*?>>")  # of a calculator, between the words of an answer


def write_tasks(gsm8k: Path, folder: Path, *, num_questions: int) -> None:
    """Write the first questions of `gsm8k`, JSON lines or .gz of such, and the three tasks over them to `folder`."""
    raw = gsm8k.read_bytes()
    lines = (gzip.decompress(raw) if gsm8k.suffix == ".gz" else raw).splitlines()
    questions = [_question(json.loads(line)) for line in lines[:num_questions]]
    data = folder / "gsm8k.jsonl"
    data.write_text("".join(json.dumps(question) + "\n" for question in questions))
    asked = "Question: {{question}}\nAnswer:"
    _write(
        folder,
        CHOICES,
        data,
        output_type="multiple_choice",
        doc_to_text=asked + " {{solution}}\nThe answer is",
        doc_to_choice="{{choices}}",
        doc_to_target="{{label}}",
        metric_list=[{"metric": "acc"}],
    )
    _write(
        folder,
        GENERATED,
        data,
        output_type="generate_until",
        doc_to_text=asked,
        doc_to_target="{{number}}",
        generation_kwargs={"until": [STOP], "do_sample": False, "max_gen_toks": NEW_TOKENS},
        filter_list=[
            {
                "name": "last-number",
                "filter": [
                    {"function": "regex", "group_select": -1, "regex_pattern": r"(-?\d[\d,]*)"},
                    {"function": "take_first"},
                ],
            }
        ],
        metric_list=[{"metric": "exact_match"}],
    )
    _write(
        folder,
        PERPLEXITY,
        data,
        output_type="loglikelihood_rolling",
        doc_to_text="",
        doc_to_target="{{solution}}",
        metric_list=[{"metric": "word_perplexity"}],
    )


def _question(line: dict[str, str]) -> dict[str, Any]:
    """The solution without its last number, and that number among three wrong ones, in an order that is its own."""
    solution, _, number = line["answer"].rpartition("\n#### ")
    value = int(number.replace(",", ""))
    wrong = [value + 1, value * 2 + 1, value + 10]
    label = value % (len(wrong) + 1)
    numbers = [*wrong[:label], value, *wrong[label:]]
    return {
        "question": line["question"],
        "solution": _NOTES.sub("", solution),
        "number": number,
        "choices": [f" {each}." for each in numbers],
        "label": label,
    }


def _write(folder: Path, name: str, data: Path, **task: Any) -> None:
    source = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}, "test_split": "test"}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump({"task": name, **source, **task}))

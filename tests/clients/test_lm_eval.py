"""lm-evaluation-harness against /v1/completions: each of its numbers is Transformers' own."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.demo_model import demo_model_dir
from tests.helpers.gateway_harness import RunningGateway
from tests.helpers.gsm8k_tasks import CHOICES, GENERATED, NEW_TOKENS, PERPLEXITY, STOP, write_tasks

pytestmark = [pytest.mark.clients, pytest.mark.model, pytest.mark.timeout(1800)]

QUESTIONS = 10
SAME = 1e-4  # for each token of a sum of log-probabilities
_OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What the harness wrote: scores by task, and by task what it asked and was told, in its order."""

    scores: dict[str, dict[str, Any]]
    samples: dict[str, list[dict[str, Any]]]


async def evaluate(gateway: RunningGateway, tasks: Path, out: Path) -> Evaluation:
    """Run the harness, in a process of its own."""
    url = f"http://127.0.0.1:{gateway.port}/v1/completions"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.helpers.lm_eval_run", url, str(demo_model_dir()), str(tasks), str(out)),
        env=os.environ | _OFFLINE | {"HF_HOME": str(tasks / "hf")},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    told, _ = await process.communicate()
    assert process.returncode == 0, told.decode()[-3000:]
    return Evaluation(**json.loads(out.read_bytes()))


class Reference:
    """The same model by Transformers, fp32."""

    def __init__(self, path: Path) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.tokenizer: Any = AutoTokenizer.from_pretrained(path)
        self.model: Any = AutoModelForCausalLM.from_pretrained(path, dtype="float32").eval()

    def ids(self, text: str) -> list[int]:
        """As the harness's clients make them."""
        return list(self.tokenizer(text, add_special_tokens=False).input_ids)

    def loglikelihood(self, before: Sequence[int], scored: Sequence[int]) -> tuple[float, bool]:
        """The logarithm of the probability of `scored` behind `before`, and whether greedy decoding would say it."""
        import torch

        with torch.inference_mode():
            logits = self.model(torch.tensor([[*before, *scored]])).logits[0, len(before) - 1 : -1]
        wanted = torch.tensor(list(scored))
        chosen = logits.log_softmax(-1).gather(1, wanted[:, None])
        return float(chosen.sum()), bool((logits.argmax(-1) == wanted).all())

    def write(self, prompt: str) -> str:
        """A greedy answer, up to where the task stops."""
        import torch

        ids = torch.tensor([self.ids(prompt)])
        with torch.inference_mode():
            out = self.model.generate(ids, do_sample=False, max_new_tokens=NEW_TOKENS, pad_token_id=0)
        text: str = self.tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)
        return text.partition(STOP)[0]


@pytest.mark.filterwarnings("ignore")  # Transformers' own
async def test_scores_are_transformers(gateway: RunningGateway, tmp_path: Path) -> None:
    for package in ("lm_eval", "datasets"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed; make test-clients installs it")
    gsm8k = os.environ.get("GSM8K")
    if not gsm8k:
        pytest.skip("no data: make test-clients GSM8K=FILE, the test.jsonl of grade-school-math, gzipped or not")
    write_tasks(Path(gsm8k), tmp_path, num_questions=QUESTIONS)
    ours = await evaluate(gateway, tmp_path, tmp_path / "out.json")
    reference = await asyncio.to_thread(Reference, demo_model_dir())
    await asyncio.to_thread(check_choices, ours, reference)
    await asyncio.to_thread(check_perplexity, ours, reference)
    await asyncio.to_thread(check_written, ours, reference)


def check_choices(ours: Evaluation, reference: Reference) -> None:
    """Each likelihood, and the share of questions whose right number is the likeliest."""
    right = []
    for sample in ours.samples[CHOICES]:
        expected, tolerance = [], 0.0
        for context, choice in sample["arguments"]:
            before, both = reference.ids(context), reference.ids(context + choice)
            expected.append(reference.loglikelihood(before, both[len(before) :]))
            tolerance = max(tolerance, SAME * (len(both) - len(before)))
        told = [answer for (answer,) in sample["resps"]]
        assert [value for value, _ in told] == pytest.approx([value for value, _ in expected], abs=tolerance)
        assert [greedy for _, greedy in told] == [greedy for _, greedy in expected]
        likelihoods = [value for value, _ in expected]
        right.append(likelihoods.index(max(likelihoods)) == int(sample["target"]))
    assert len(right) == QUESTIONS
    assert ours.scores[CHOICES]["acc,none"] == pytest.approx(sum(right) / QUESTIONS)
    assert sum(right)  # chance would be a quarter; none at all would be a broken task


def check_perplexity(ours: Evaluation, reference: Reference) -> None:
    """Each text's likelihood behind BOS, and the perplexity by words."""
    total, words = 0.0, 0
    for sample in ours.samples[PERPLEXITY]:
        text = sample["arguments"][0][0]
        ids = reference.ids(text)
        expected, _ = reference.loglikelihood([reference.tokenizer.bos_token_id], ids)
        assert sample["resps"][0][0] == pytest.approx(expected, abs=SAME * len(ids))
        total += expected
        words += len(text.split())
    assert ours.scores[PERPLEXITY]["word_perplexity,none"] == pytest.approx(math.exp(-total / words), rel=1e-3)


def check_written(ours: Evaluation, reference: Reference) -> None:
    """Each greedy answer to the letter; then the share of right numbers is the same too."""
    samples = ours.samples[GENERATED]
    assert len(samples) == QUESTIONS
    for sample in samples:
        assert sample["resps"][0][0] == reference.write(sample["arguments"][0][0])

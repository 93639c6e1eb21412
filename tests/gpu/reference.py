"""The CUDA runner's logits, position by position, beside those of Transformers in fp32 on the same random weights."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common.clock import MonotonicClock
from tests.helpers.step_news import tokens_of
from worker.config import WorkerSettings
from worker.engine.batch import ForwardBatch, NewWeights, PendingStep, RunnerInfo
from worker.engine.factory import create_runner
from worker.ipc.messages import GenerateRequest, SchedulerMessage, StepOutput
from worker.sampling_params import SamplingParams
from worker.scheduler.core import Scheduler

SMALL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 4000,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
    "eos_token_id": 2,
}
WIDE = SMALL | {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 3,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}


def make_checkpoint(directory: Path, config: dict[str, Any], seed: int) -> None:
    """Random weights in bf16. The output projection leans towards one random successor of each token, so that the model
    is sure of most of its answers, as trained ones are: without that the best two logits of a position are often closer
    than bf16 can tell (Transformers' own bf16 finds 97 % of fp32's best tokens then, with twice our error)."""
    from transformers import AutoConfig, AutoModelForCausalLM

    (directory / "config.json").write_text(json.dumps(config))
    torch.manual_seed(seed)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(directory), dtype=torch.float32)
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("norm.weight"):
                weight.uniform_(0.5, 1.5)
            elif weight.dim() >= 2 and weight is not embedding and weight is not head:
                weight.normal_(0.0, 1.0 / weight.shape[-1] ** 0.5)
            else:
                weight.normal_(0.0, 0.5)
        head[torch.randperm(len(head), device="cuda")] += 2.0 * embedding
    model.to(torch.bfloat16).save_pretrained(directory)
    (directory / "config.json").write_text(json.dumps(config))


class RecordingRunner:
    """The CUDA runner; keeps the logits of every sampled position under (request index, position)."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._requests: dict[int, int] = {}
        self.logits: dict[tuple[int, int], torch.Tensor] = {}
        self.cuda_graphs = False
        self.info: RunnerInfo = inner.info

    def launch(self, batch: ForwardBatch) -> PendingStep:
        for admission in batch.admissions:
            self._requests[admission.row] = admission.seed
        step = self._inner.launch(batch)
        self.cuda_graphs |= step.cuda_graph
        logits = self._inner.latest_logits(len(step.sequences)).clone()
        for i, sequence in enumerate(step.sequences.tolist()):
            at = self._requests[int(batch.rows[sequence])], int(batch.seq_lens[sequence]) - 1
            self.logits.setdefault(at, logits[i])
        pending: PendingStep = step
        return pending

    def load_weights(self, model_path: str) -> NewWeights:
        weights: NewWeights = self._inner.load_weights(model_path)
        return weights

    def close(self) -> None:
        self._inner.close()


@dataclass(frozen=True, slots=True)
class Run:
    """Tokens of each request, the logits they came from, prompt tokens served from the prefix cache, whether any pass
    was a CUDA graph."""

    tokens: list[list[int]]
    logits: dict[tuple[int, int], torch.Tensor]
    cached_tokens: int
    cuda_graphs: bool


def run(directory: Path, prompts: list[list[int]], num_tokens: int, **settings: Any) -> Run:
    """Greedy answers through scheduler and CUDA runner."""
    defaults: dict[str, Any] = {
        "max_total_tokens": 200_000,
        "max_running_requests": 64,
        "cuda_graph_max_bs": 64,
        "chunked_prefill_size": 256,
        "mem_fraction_static": 0.6,
    }
    chosen = WorkerSettings(model_path=str(directory), **defaults | settings)
    runner = RecordingRunner(create_runner(chosen))
    tokens: list[list[int]] = [[] for _ in prompts]
    finished: list[int] = []

    def take(message: SchedulerMessage) -> None:
        if isinstance(message, StepOutput):
            for rid, new in tokens_of(message):
                tokens[int(rid)].extend(new)
            for delta in message.deltas:
                if delta.finish is not None:
                    assert delta.finish.kind == "length", delta.finish
                    finished.append(delta.cached_tokens)

    scheduler = Scheduler(chosen, runner, MonotonicClock(), take, lambda: 0)
    for i, prompt in enumerate(prompts):
        sampling = SamplingParams(max_new_tokens=num_tokens, temperature=0.0, ignore_eos=True, seed=i)
        scheduler.handle(GenerateRequest(rid=str(i), input_ids=prompt, sampling=sampling))
    while len(finished) < len(prompts):
        scheduler.step()
    while scheduler.step():
        pass
    scheduler.on_idle()
    runner.close()
    return Run(tokens, runner.logits, sum(finished), runner.cuda_graphs)


@dataclass(frozen=True, slots=True)
class Agreement:
    """Over all sampled positions: relative error of the logits, share of equal best tokens."""

    positions: int
    relative_error: float
    same_top: float


def compare(directory: Path, prompts: list[list[int]], result: Run) -> Agreement:
    """The runner's logits. Teacher-forced on its own answers, so one near tie does not spoil what follows."""
    actual = [
        torch.stack([result.logits[i, len(prompt) - 1 + k] for k in range(len(result.tokens[i]))])
        for i, prompt in enumerate(prompts)
    ]
    chosen = torch.tensor([token for tokens in result.tokens for token in tokens], device="cuda")
    return _agreement(_teacher_forced(directory, prompts, result, torch.float32), actual, chosen)


def compare_transformers(directory: Path, prompts: list[list[int]], result: Run) -> Agreement:
    """Transformers' own logits in bf16 at the same positions: the rounding that its code brings along by itself."""
    expected, actual = (_teacher_forced(directory, prompts, result, dtype) for dtype in (torch.float32, torch.bfloat16))
    return _agreement(expected, actual, torch.cat(actual).argmax(-1))


def _teacher_forced(directory: Path, prompts: list[list[int]], result: Run, dtype: torch.dtype) -> list[torch.Tensor]:
    """Transformers' logits of each answer's positions."""
    from transformers import AutoModelForCausalLM

    torch.backends.cuda.matmul.allow_tf32 = False
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).to("cuda").eval()
    if hasattr(model.config, "num_experts_per_tok"):
        model.set_experts_implementation("eager")
    with torch.inference_mode():
        return [
            model(torch.tensor([[*prompt, *tokens[:-1]]], device="cuda")).logits[0, len(prompt) - 1 :].float()
            for prompt, tokens in zip(prompts, result.tokens, strict=True)
        ]


def _agreement(expected: list[torch.Tensor], actual: list[torch.Tensor], chosen: torch.Tensor) -> Agreement:
    squares = [
        ((a - e).double().square().sum(), e.double().square().sum()) for e, a in zip(expected, actual, strict=True)
    ]
    difference, norm = (float(sum(column)) for column in zip(*squares, strict=True))
    same = (torch.cat(expected).argmax(-1) == chosen).double().mean()
    return Agreement(len(chosen), (difference / norm) ** 0.5, float(same))


def random_prompts(config: dict[str, Any], seed: int) -> list[list[int]]:
    """40 prompts: two groups of 12 with 300 shared tokens, the others alone; lengths vary."""
    random = np.random.default_rng(seed)
    vocab = int(config["vocab_size"])
    shared = [random.integers(3, vocab, 300).tolist() for _ in range(2)]
    prompts = [shared[i % 2] + random.integers(3, vocab, int(random.integers(1, 80))).tolist() for i in range(24)]
    prompts += [random.integers(3, vocab, int(random.integers(1, 700))).tolist() for _ in range(16)]
    return [prompts[i] for i in random.permutation(len(prompts))]

"""The CUDA runner's logits, position by position, beside those of Transformers in fp32 on the same random weights."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from common.clock import MonotonicClock
from worker.config import WorkerSettings
from worker.engine.batch import ForwardBatch, PendingStep, RunnerInfo
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
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("norm.weight"):
                weight.uniform_(0.5, 1.5)
            elif weight.dim() == 2 and "embed" not in name and "lm_head" not in name:
                weight.normal_(0.0, 1.0 / weight.shape[1] ** 0.5)
            else:
                weight.normal_(0.0, 0.5)
        successors = torch.randperm(config["vocab_size"], device="cuda")
        model.lm_head.weight[successors] += 2.0 * model.model.embed_tokens.weight
    tensors = {name: weight.detach().to(torch.bfloat16).contiguous().cpu() for name, weight in model.named_parameters()}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


class RecordingRunner:
    """The CUDA runner; keeps the logits of every sampled position under (request index, position)."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._requests: dict[int, int] = {}
        self.logits: dict[tuple[int, int], torch.Tensor] = {}
        self.info: RunnerInfo = inner.info

    def launch(self, batch: ForwardBatch) -> PendingStep:
        for admission in batch.admissions:
            self._requests[admission.row] = admission.seed
        step = self._inner.launch(batch)
        logits = self._inner.latest_logits(len(step.sequences)).clone()
        for i, sequence in enumerate(step.sequences.tolist()):
            at = self._requests[int(batch.rows[sequence])], int(batch.seq_lens[sequence]) - 1
            self.logits.setdefault(at, logits[i])
        pending: PendingStep = step
        return pending

    def close(self) -> None:
        self._inner.close()


@dataclass(frozen=True, slots=True)
class Run:
    """Tokens of each request, the logits they came from, prompt tokens served from the prefix cache."""

    tokens: list[list[int]]
    logits: dict[tuple[int, int], torch.Tensor]
    cached_tokens: int


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
            for delta in message.deltas:
                tokens[int(delta.rid)].extend(delta.token_ids)
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
    return Run(tokens, runner.logits, sum(finished))


@dataclass(frozen=True, slots=True)
class Agreement:
    """Over all sampled positions: relative error of the logits, share of equal best tokens."""

    positions: int
    relative_error: float
    same_top: float


def compare(directory: Path, prompts: list[list[int]], result: Run) -> Agreement:
    """Teacher-forced on the runner's own answers, so one near tie does not spoil what follows."""
    from transformers import AutoModelForCausalLM

    torch.backends.cuda.matmul.allow_tf32 = False
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).to("cuda").eval()
    difference = norm = 0.0
    same, positions = 0, 0
    for i, (prompt, tokens) in enumerate(zip(prompts, result.tokens, strict=True)):
        with torch.inference_mode():
            expected = model(torch.tensor([[*prompt, *tokens[:-1]]], device="cuda")).logits[0, len(prompt) - 1 :]
        actual = torch.stack([result.logits[i, len(prompt) - 1 + k] for k in range(len(tokens))])
        difference += float((actual - expected).double().square().sum())
        norm += float(expected.double().square().sum())
        same += int((expected.argmax(-1).cpu() == torch.tensor(tokens)).sum())
        positions += len(tokens)
    return Agreement(positions, (difference / norm) ** 0.5, same / positions)


def random_prompts(config: dict[str, Any], seed: int) -> list[list[int]]:
    """40 prompts: two groups of 12 with 300 shared tokens, the others alone; lengths vary."""
    random = np.random.default_rng(seed)
    vocab = int(config["vocab_size"])
    shared = [random.integers(3, vocab, 300).tolist() for _ in range(2)]
    prompts = [shared[i % 2] + random.integers(3, vocab, int(random.integers(1, 80))).tolist() for i in range(24)]
    prompts += [random.integers(3, vocab, int(random.integers(1, 700))).tolist() for _ in range(16)]
    return [prompts[i] for i in random.permutation(len(prompts))]

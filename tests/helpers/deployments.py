"""Models and machines as they are known in the field, and log lines that were seen there: what the rules about
deployments are held against. What is right is said here by hand, or by the engine's own account of GPU memory, never by
a rule."""

from __future__ import annotations

import random
from dataclasses import dataclass

from worker.engine.memory import GIB, chosen_mem_fraction

GPUS_GB = (24.0, 80.0, 141.0)
TPS = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class KnownModel:
    """`weights_gb`: of the whole checkpoint; `is_small`: up to two billion parameters."""

    architecture: str
    weights_gb: float
    has_experts: bool = False
    is_small: bool = False
    quantization: str | None = None


SMALL = (
    KnownModel("Qwen2ForCausalLM", 1.0, is_small=True),
    KnownModel("Gemma3ForCausalLM", 2.0, is_small=True),
    KnownModel("LlamaForCausalLM", 2.5, is_small=True),
    KnownModel("Qwen3ForCausalLM", 3.4, is_small=True),
)
LARGE = (
    KnownModel("LlamaForCausalLM", 16.1),
    KnownModel("MistralForCausalLM", 24.5),
    KnownModel("Qwen2ForCausalLM", 29.5),
    KnownModel("Phi3ForCausalLM", 27.9),
    KnownModel("Qwen3ForCausalLM", 65.5),
    KnownModel("LlamaForCausalLM", 70.6, quantization="fp8"),
    KnownModel("LlamaForCausalLM", 141.1),
    KnownModel("OlmoeForCausalLM", 13.8, has_experts=True),
    KnownModel("GptOssForCausalLM", 13.8, has_experts=True, quantization="mxfp4"),
    KnownModel("DeepseekV2ForCausalLM", 31.4, has_experts=True),
    KnownModel("Qwen3MoeForCausalLM", 61.1, has_experts=True),
    KnownModel("PhiMoEForCausalLM", 83.7, has_experts=True),
    KnownModel("MixtralForCausalLM", 93.4, has_experts=True),
    KnownModel("JambaForCausalLM", 103.0, has_experts=True),
    KnownModel("Qwen3NextForCausalLM", 163.0, has_experts=True),
    KnownModel("Llama4ForConditionalGeneration", 217.0, has_experts=True),
    KnownModel("Glm4MoeForCausalLM", 220.0, has_experts=True),
    KnownModel("DbrxForCausalLM", 263.0, has_experts=True),
    KnownModel("Grok1ForCausalLM", 318.0, has_experts=True, quantization="int8"),
    KnownModel("MiniMaxM1ForCausalLM", 456.0, has_experts=True, quantization="fp8"),
    KnownModel("DeepseekV3ForCausalLM", 689.0, has_experts=True, quantization="fp8"),
)


@dataclass(frozen=True, slots=True)
class Deployment:
    """One replica of a model over `tp` GPUs."""

    model: KnownModel
    gpu_gb: float
    tp: int

    @property
    def weights_gb(self) -> float:
        """On each GPU."""
        return self.model.weights_gb / self.tp

    def room_on(self, gpus: int) -> float:
        """GB for KV on each of so many GPUs, as a share of the weights there; negative: it does not start."""
        total_bytes = int(self.gpu_gb * GIB)
        static = chosen_mem_fraction(total_bytes, asked=None, chunked_prefill_size=None, cuda_graph_max_bs=None)
        weights = self.model.weights_gb / gpus
        return (static * self.gpu_gb - weights) / weights


def deployment(rng: random.Random) -> Deployment:
    """One that starts; two of five have small models."""
    while True:
        found = Deployment(rng.choice(SMALL if rng.random() < 0.4 else LARGE), rng.choice(GPUS_GB), rng.choice(TPS))
        if found.room_on(found.tp) > 0.05:
            return found


SEEN: dict[int, tuple[str, ...]] = {
    20: (
        "RuntimeError: peer access is not supported between these two devices",
        "torch.AcceleratorError: CUDA error: peer access is not supported between these two devices",
        "Failed: Cuda error custom_all_reduce.cuh:368 'peer access is not supported between these two devices'",
    ),
    21: (
        "Health check failed. Server couldn't get a response from detokenizer for last 20 seconds.",
        "Health check failed. Server couldn't get a response from scheduler for last 20 seconds.",
        "Watchdog timeout (self.watchdog_timeout=300)",
        "[rank3]:[E] [PG ID 0 PG GUID 0 Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=91)",
    ),
    22: (
        "OSError: [Errno 28] No space left on device: '/dev/shm/nccl-x'",
        "misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-WhRnCw to 33030532 bytes, error: "
        "No space left on device (28)",
        "include/shm.h:42 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-x (size 9637888)",
        "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's "
        "workers are out of shared memory. Please try to raise your shared memory limit.",
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
    ),
}
"""Rule -> lines that mean its trouble."""

HARMLESS = (
    "[2026-01-05 10:00:00 TP0] Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=63.2 GB",
    "Peer access is enabled between devices 0 and 1",
    'INFO:     127.0.0.1:41234 - "GET /health HTTP/1.1" 200 OK',
    "Health check passed.",
    "OSError: [Errno 28] No space left on device: '/var/log/requests.jsonl'",
    "Created shared memory segment of 33030532 bytes",
    "[2026-01-05 10:00:00] Cache flushed successfully!",
)
"""Lines that look like trouble, or not even that."""

"""The rules of the tuning guide about model, machine and deployment, numbered as in docs/tuning.md."""

from __future__ import annotations

from common.tuning.finding import Finding, Verdict
from common.tuning.observation import Observation, Symptom
from common.tuning.rules import Rule

ROOM_BESIDE_WEIGHTS = 1.5  # times the weights that one GPU must hold for a replica of its own
SMALL_WEIGHTS_GB = 4.0
SMALL_BATCH = 8  # running requests
DOMINANT_WEIGHTS = 0.6  # of GPU memory
_EXPERTS = ("moe", "mixtral", "deepseek", "dbrx", "gptoss", "llama4", "qwen3next", "grok", "jamba", "minimax")


def more_replicas(seen: Observation) -> Finding | None:
    """15: a model that fits one GPU is served best by one replica a GPU."""
    facts = seen.facts
    if facts.tp_size is None or facts.tp_size == 1 or facts.weights_gb is None or facts.gpu_gb is None:
        return None
    whole = facts.weights_gb * facts.tp_size
    if whole * ROOM_BESIDE_WEIGHTS > facts.gpu_gb:
        return None
    text = f"{whole:.1f} GB of weights over {facts.tp_size} GPUs of {facts.gpu_gb:.0f} GB each"
    means = (
        f"One GPU holds it: {facts.tp_size} replicas behind the gateway serve more than one over {facts.tp_size} GPUs."
    )
    return Finding(15, Verdict.CHANGE, text, means, {"tp": "1", "replicas": f"x{facts.tp_size}"})


def compile_small(seen: Observation) -> Finding | None:
    """16: a small model at a small batch."""
    facts = seen.facts
    if facts.is_canopy or facts.torch_compile is not False or facts.weights_gb is None or not seen.samples:
        return None
    whole = facts.weights_gb * (facts.tp_size or 1)
    if whole > SMALL_WEIGHTS_GB or seen.running > SMALL_BATCH:
        return None
    text = f"{whole:.1f} GB of weights, {seen.running:.0f} requests running"
    return Finding(
        16, Verdict.CHANGE, text, "Compiled kernels may help a little.", {"enable-torch-compile": "true"}, 0.6
    )


def quantise(seen: Observation) -> Finding | None:
    """17: weights that leave little room for KV."""
    facts = seen.facts
    if facts.weights_gb is None or facts.gpu_gb is None or facts.quantization is not None:
        return None
    share = facts.weights_gb / facts.gpu_gb
    if share <= DOMINANT_WEIGHTS:
        return None
    text = f"weights take {share:.0%} of GPU memory"
    if facts.is_canopy:
        return Finding(17, Verdict.NOTE, text, "Quantised weights would leave more for KV; this engine has none yet.")
    means = "Quantised weights and KV leave room for more requests, at some loss of accuracy."
    return Finding(17, Verdict.CHANGE, text, means, {"quantization": "fp8", "kv-cache-dtype": "fp8_e5m2"}, 0.8)


def many_experts(seen: Observation) -> Finding | None:
    """18: mixtures of experts over several GPUs."""
    names = seen.facts.architectures
    if seen.facts.is_canopy or not names or (seen.facts.tp_size or 1) < 2:
        return None
    if not any(word in name.lower() for name in names for word in _EXPERTS):
        return None
    text = f"{names[0]} over {seen.facts.tp_size} GPUs"
    means = "Data-parallel attention, or experts spread over the GPUs, keeps KV from being held several times."
    return Finding(18, Verdict.CHANGE, text, means, {"enable-dp-attention": "true", "dp-size": "8"}, 0.7)


def peer_access(seen: Observation) -> Finding | None:
    """20: GPUs that cannot read each other's memory."""
    if Symptom.PEER_ACCESS not in seen.symptoms:
        return None
    text = "the log says that peer access is not supported between two devices"
    return Finding(20, Verdict.CHANGE, text, "Check which pairs of GPUs can.", {"enable-p2p-check": "true"})


def hang(seen: Observation) -> Finding | None:
    """21: several machines, and a step that does not end."""
    if Symptom.HANG not in seen.symptoms:
        return None
    text = "the log says that the engine did not answer its health check"
    if (seen.facts.nnodes or 1) < 2:
        return Finding(21, Verdict.NOTE, text, "On one machine: look at what the log says before it.")
    return Finding(21, Verdict.CHANGE, text, "Slower decodes, but no hang.", {"disable-cuda-graph": "true"}, 0.6)


def shared_memory(seen: Observation) -> Finding | None:
    """22: containers begin with 64 MB of /dev/shm."""
    if Symptom.SHARED_MEMORY not in seen.symptoms:
        return None
    return Finding(22, Verdict.CHANGE, "shared memory is full", "Raise it: --shm-size 32g, or a volume at /dev/shm.")


MACHINE_RULES: tuple[Rule, ...] = (
    more_replicas,
    compile_small,
    quantise,
    many_experts,
    peer_access,
    hang,
    shared_memory,
)

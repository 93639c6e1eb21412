"""One model over several GPUs or machines. None of it is built: a replica is one GPU, and replicas share the load."""

from __future__ import annotations

from functools import partial

from common.settings import Settings, option

_option = partial(option, category="Parallelism")

_ONE_GPU = "a replica uses one GPU; pick a model that fits it, and add GPUs with canopy serve --replicas N"
_REPLICAS = "use canopy serve --replicas N, whose gateway balances the load"
_MOE = "leave it out"


class ParallelSettings(Settings):
    """Parallelism."""

    tp_size: int = _option(1, "GPUs that share one model", aliases=["tensor-parallel-size", "tp"], not_built=_ONE_GPU)
    dp_size: int = _option(
        1, "copies of the model in one server", aliases=["data-parallel-size", "dp"], not_built=_REPLICAS
    )
    pp_size: int = _option(1, "pipeline stages", aliases=["pipeline-parallel-size", "pp"], not_built=_ONE_GPU)
    ep_size: int = _option(1, "GPUs that share the experts", aliases=["expert-parallel-size", "ep"], not_built=_ONE_GPU)
    dcp_size: int = _option(
        1,
        "GPUs that share the KV cache of MLA models",
        aliases=["decode-context-parallel-size"],
        not_built=_ONE_GPU,
    )
    dcp_comm_backend: str | None = _option(None, "exchange of decode context parallelism", not_built="leave it out")
    attn_cp_size: int = _option(
        1, "GPUs that share a long prompt", aliases=["attention-context-parallel-size"], not_built=_ONE_GPU
    )
    nnodes: int = _option(1, "machines that share one model", not_built=_ONE_GPU)
    node_rank: int = _option(0, "number of this machine", not_built=_ONE_GPU)
    dist_init_addr: str | None = _option(None, "host:port of machine 0", aliases=["nccl-init-addr"], not_built=_ONE_GPU)
    dist_timeout: int | None = _option(None, "seconds for machines to meet", not_built=_ONE_GPU)
    enable_dp_attention: bool = _option(False, "attention data-parallel, experts shared", not_built=_REPLICAS)
    enable_dp_lm_head: bool = _option(False, "output layer data-parallel", not_built=_REPLICAS)
    enable_p2p_check: bool = _option(
        False, "test whether GPUs reach each other's memory", not_built="a replica uses one GPU, leave it out"
    )
    load_balance_method: str = _option(
        "auto", "balance between copies", not_built="use the gateway's --policy with canopy serve --replicas N"
    )
    moe_a2a_backend: str = _option("none", "exchange between experts", not_built=_MOE)
    moe_runner_backend: str = _option("auto", "kernels of experts", not_built=_MOE)
    moe_dense_tp_size: int | None = _option(None, "GPUs that share dense layers", not_built=_MOE)
    deepep_mode: str = _option("auto", "mode of DeepEP", not_built=_MOE)
    enable_eplb: bool = _option(False, "balance experts between GPUs", not_built=_MOE)
    ep_num_redundant_experts: int = _option(0, "copies of experts", not_built=_MOE)

"""The simulated device's time: passes run one after the other, launching is free, and results are waited for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from benchmarks.step_cases import BatchBuilder, Case, Sequence
from common.errors import UserError
from tests.helpers.sim_bench import EOS, VOCAB_SIZE, h200, llama_8b
from worker.config import WorkerSettings
from worker.engine.factory import create_runner
from worker.engine.sim.clock import VirtualClock
from worker.engine.sim.runner import SimRunner
from worker.engine.sim.step_time import step_time_s

IDS = np.arange(EOS + 1, VOCAB_SIZE, dtype=np.int32)
DECODES = Case("decode", (Sequence(1, 99),) * 8)


def make(**settings: Any) -> tuple[SimRunner, VirtualClock]:
    clock = VirtualClock()
    chosen = WorkerSettings(model_path="none", device="sim", **settings)
    return SimRunner(chosen, llama_8b(), h200(), IDS, clock), clock


def decode_s(**settings: Any) -> float:
    runner, clock = make(**settings)
    runner.launch(BatchBuilder(runner.info).batch(DECODES)).result()
    return clock.now_s()


def test_passes_run_one_after_the_other_while_the_host_goes_on() -> None:
    runner, clock = make()
    builder, alone_s = BatchBuilder(runner.info), decode_s()
    batch = builder.batch(DECODES)
    first, second = runner.launch(batch), runner.launch(builder.again(batch))
    assert clock.now_s() == 0
    second.result()
    assert clock.now_s() == pytest.approx(2 * alone_s)
    first.result()
    assert clock.now_s() == pytest.approx(2 * alone_s)
    clock.wait_until(100.0)  # the device rests
    runner.launch(builder.again(batch)).result()
    assert clock.now_s() == pytest.approx(100 + alone_s)


def test_speed_divides_time() -> None:
    assert decode_s(sim_speed=10) == pytest.approx(decode_s() / 10)


def test_a_steps_time_is_the_profiles() -> None:
    runner, clock = make()
    batch = BatchBuilder(runner.info).batch(Case("prefill", chunks=(Sequence(100, 0),)))
    result = runner.launch(batch).result()
    assert not result.cuda_graph and result.token_ids.shape == (1,)
    shape = runner._shapes.read(batch)
    assert clock.now_s() == step_time_s(shape, h200().costs) > 0


def test_memory_is_the_profiles_and_the_settings_rule_over_it() -> None:
    memory = h200().memory
    runner, _ = make(mem_fraction_static=0.88)
    info = runner.info
    pool_bytes = info.num_pages * info.page_size * memory.kv_bytes_per_token
    assert (info.device, info.page_size, info.vocab_size, info.eos_token_ids) == ("sim", 16, VOCAB_SIZE, (EOS,))
    assert abs(pool_bytes - (memory.free_bytes * 0.88 - memory.weight_bytes)) < 2 * 16 * memory.kv_bytes_per_token
    assert info.available_memory_bytes == (
        memory.free_bytes - memory.weight_bytes - memory.workspace_bytes - pool_bytes
    )
    info = make(max_total_tokens=1000, page_size=10, max_running_requests=7)[0].info
    assert (info.num_pages, info.page_size, info.max_rows) == (100, 10, 7)


def test_weights_that_do_not_fit_are_refused() -> None:
    profile = h200(memory=msgspec.structs.replace(h200().memory, weight_bytes=10**12))
    settings = WorkerSettings(model_path="none", device="sim")
    with pytest.raises(UserError, match="The weights take 931.3 GiB"):
        SimRunner(settings, llama_8b(), profile, IDS, VirtualClock())


def test_it_needs_neither_weights_nor_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from worker.assembly import running_scheduler; from worker.config import WorkerSettings\n"
        "with running_scheduler(WorkerSettings(model_path=sys.argv[1], device='sim'), print) as scheduler:\n"
        "    print(scheduler.ready_message().device, 'torch' in sys.modules)"
    )
    (tmp_path / "config.json").write_text(llama_config())
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.stdout == "sim False\n", done.stderr


def test_an_unknown_profile_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(llama_config())
    with pytest.raises(UserError, match="--sim-profile: there is no profile abacus"):
        create_runner(WorkerSettings(model_path=str(tmp_path), device="sim", sim_profile="abacus"))


def test_passes_launched_at_once_end_when_they_would_one_by_one() -> None:
    ends_s = []
    for at_once in (True, False):
        clock = VirtualClock()
        settings = WorkerSettings(model_path="none", device="sim")
        runner = SimRunner(settings, llama_8b(), h200(), np.array([7], np.int32), clock)
        builder = BatchBuilder(runner.info)
        batch = builder.batch(DECODES)
        runner.launch(batch)
        grown = [msgspec.structs.replace(builder.again(batch), seq_lens=batch.seq_lens + step) for step in range(1, 5)]
        if at_once:
            done_s = runner.repeat_ends_s(3)
            result = runner.repeat(grown[2], 3, float(done_s[-1])).result()
            assert result.token_ids.tolist() == [7] * 8 and result.cuda_graph
        else:
            for one in grown[:3]:
                runner.launch(one)
        runner.launch(grown[3]).result()
        ends_s.append(clock.now_s())
    assert ends_s[0] == pytest.approx(ends_s[1])


def llama_config() -> str:
    from benchmarks.offline import LLAMA_3_8B

    return msgspec.json.encode(LLAMA_3_8B).decode()

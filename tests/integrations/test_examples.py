"""The examples for serving stacks print what they are there to show."""

from __future__ import annotations

import pytest
from fresh_python import ROOT, run
from integration_support import STANDIN

DROPIN = ROOT / "examples" / "sglang_dropin.py"

ON_CPU = {"CUDA_VISIBLE_DEVICES": ""}
"""The stand-in's own launcher runs there only."""


def test_vllm_block_tables() -> None:
    pytest.importorskip("torch")
    assert run("examples/vllm_block_tables.py").splitlines() == [
        "prefill: check slots []",
        "  tokens from [0, 5, 7] follow slots [-1, -1]",
        "decode, padded to 4: check slots [28, 29, 30, 31, 12, 36, 37]",
        "  tokens from [0, 1, 2, 2, 2] follow slots [12, 37, -1, -1]",
        "a place is taken over: check slots [36, 37, 38]",
        "  tokens from [0, 1, 7] follow slots [38, -1]",
        "a corrupted block table: check slots [36, 37, 38, 39, 12, 13, 14, 15, 127, 127]",
        "  tokens from [0, 1, 2] follow slots [39, 127]",
        "request 1, position 4: slot is outside full_to_swa_index_mapping; 2 in all",
    ]


def test_sglang_jax_rows() -> None:
    pytest.importorskip("jax")
    *steps, fault = run("examples/sglang_jax_rows.py").splitlines()
    assert steps == [
        "prefill: check slots []",
        "  tokens from [0, 3, 5, 5, 5] follow slots [-1, -1, -1, -1]",
        "decode: check slots [5, 6, 7, 8, 9]",
        "  tokens from [0, 1, 2, 2, 2] follow slots [7, 9, -1, -1]",
        "a row is taken over: check slots [8, 9]",
        "  tokens from [0, 1, 1, 1, 1] follow slots [9, -1, -1, -1]",
        "a length that is too long: check slots [8, 9, 5, 8, 9, 11, 0]",
        "  tokens from [0, 1, 2, 2, 2] follow slots [5, 0, -1, -1]",
    ]
    assert fault.startswith("request 1, position 3: ")


def test_sglang_dropin_compares_the_two_launchers() -> None:
    pytest.importorskip("torch")
    assert run(str(DROPIN), "compare", path=STANDIN, **ON_CPU).splitlines() == [
        "kvcanary in place of sglang.kernels.ops.kv_canary.plan.api.launch_canary_plan_kernels",
        "the same bytes",
    ]


def test_sglang_dropin_names_the_buffers_that_differ() -> None:
    pytest.importorskip("torch")
    code = """
import runpy, sys
import sglang.kernels.ops.kv_canary.plan.api as api
reference = api.launch_canary_plan_kernels_reference
def wrong(**arguments):
    reference(**arguments)
    arguments["write_plan_out"].write_offsets[:] += 1
api.launch_canary_plan_kernels_reference = wrong
example = runpy.run_path("examples/sglang_dropin.py")
print(example["main"](["compare"]))
"""
    assert run("-c", code, path=STANDIN, **ON_CPU).splitlines()[1:] == ["different: write_offsets", "1"]


def test_sglang_dropin_installs_in_the_process_that_runs_the_model() -> None:
    pytest.importorskip("torch")
    code = """
import runpy, sys
from types import ModuleType
import sglang.srt.kv_canary.runner.kernel_launcher as runner
kept = [runner.launch_canary_plan_kernels]
scheduler = ModuleType("sglang.srt.managers.scheduler")
def run_scheduler_process(rank):
    return rank, runner.launch_canary_plan_kernels.__wrapped__ is kept[0]
scheduler.run_scheduler_process = run_scheduler_process
sys.modules |= {"sglang.srt.managers": ModuleType("sglang.srt.managers"), scheduler.__name__: scheduler}
example = runpy.run_path("examples/sglang_dropin.py")
print(*example["run_scheduler"](3))
"""
    replaced, result = run("-c", code, path=STANDIN).splitlines()
    assert replaced.endswith(" sglang.srt.kv_canary.runner.kernel_launcher.launch_canary_plan_kernels")
    assert result == "3 True"

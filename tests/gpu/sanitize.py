"""Launches full of corrupt values, for NVIDIA's compute-sanitizer to watch. A script, not a test.

    compute-sanitizer --tool memcheck python tests/gpu/sanitize.py --backend torch-triton
    compute-sanitizer --tool memcheck python tests/gpu/sanitize.py --backend jax-mosaic
    compute-sanitizer --tool initcheck python tests/gpu/sanitize.py --backend torch-triton --uninitialised

Every buffer is an allocation of its own, so that an access past its end is one the tool sees. With
`--uninitialised` (torch alone) plans start as unwritten memory, and only what the contract says is written
is read back: initcheck sees an element that the launch left out.

Prints each launch that differs from the reference and one line at the end. Exit code 1 if any differs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

# Read when the frameworks first see the device.
os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
os.environ["XLA_PYTHON_CLIENT_ALLOCATOR"] = "platform"

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS.parent), str(TESTS), str(TESTS / "kvcanary_jax")]

import numpy as np  # noqa: E402
from hypothesis import HealthCheck, Phase, given, seed, settings  # noqa: E402
from named_cases import NAMED_CASES  # noqa: E402

from shared_ref.conformance.case import Case  # noqa: E402
from shared_ref.conformance.strategies import cases  # noqa: E402

Launch = Callable[[Case], dict[str, np.ndarray]]
"""A launch on a case: what is to be compared with the reference, by field."""

IMPLEMENTATIONS = {"jax-mosaic": "mosaic", "jax-triton": "triton"}


def main() -> int:
    parser = argparse.ArgumentParser(description="Corrupt launches, for compute-sanitizer to watch.")
    parser.add_argument("--backend", choices=["torch-triton", *IMPLEMENTATIONS], required=True)
    parser.add_argument("--count", type=int, default=300, help="drawn cases, beside the named ones")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--uninitialised", action="store_true", help="plans start as unwritten memory")
    options = parser.parse_args()
    if options.uninitialised and options.backend != "torch-triton":
        parser.error("--uninitialised needs --backend torch-triton")
    launches: dict[str, Launch] = {}
    if options.backend == "torch-triton":
        launches = torch_launches(options.uninitialised)
    else:
        launches[options.backend] = lambda case: jax_launch(case, IMPLEMENTATIONS[options.backend])
    ran = different = 0
    for case in [*NAMED_CASES.values(), *drawn(options.count, options.seed)]:
        expected = case.expected().buffers()
        for name, launch in launches.items():
            ran += 1
            wrong = [field for field, have in launch(case).items() if not agree(have, expected[field])]
            if wrong:
                different += 1
                print(f"{name}, {case.name}: {', '.join(wrong)} differ", flush=True)
    print(f"{options.backend}: {ran} launches, {different} differ from the reference")
    return 1 if different or not ran else 0


def drawn(count: int, number: int) -> list[Case]:
    """As many cases, most of them with faults; the same for the same number."""
    found: list[Case] = []

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases(corrupt=True))
    def collect(case: Case) -> None:
        found.append(case)

    collect()
    return found


def agree(have: np.ndarray, expected: np.ndarray) -> bool:
    """Whether the elements that were read back are the reference's first ones."""
    return have.dtype == expected.dtype and np.array_equal(have, expected[: len(have)])


def torch_launches(uninitialised: bool) -> dict[str, Launch]:
    import torch

    if not torch.cuda.is_available():
        sys.exit("torch sees no CUDA device")
    return {
        "combined": lambda case: torch_launch(case, uninitialised, staged=False),
        "staged": lambda case: torch_launch(case, uninitialised, staged=True),
    }


def torch_launch(case: Case, uninitialised: bool, *, staged: bool) -> dict[str, np.ndarray]:
    import torch
    from gpu_support import OnDevice

    device = OnDevice(case)
    if uninitialised:
        device.verify = type(device.verify)(
            **{k: torch.empty_like(v) for k, v in vars(device.verify).items()}
        )
        device.write = type(device.write)(**{k: torch.empty_like(v) for k, v in vars(device.write).items()})
        scratch = torch.empty_like(device.scratch["verify_offsets_scratch"])
        device.scratch = dict.fromkeys(device.scratch, scratch)
    (device.launch_staged if staged else device.launch)()
    written = lengths_written(case) if uninitialised else {}
    return {k: v[: written.get(k, len(v))].cpu().numpy() for k, v in device.tensors().items()}


def lengths_written(case: Case) -> dict[str, int]:
    """How many elements the contract says are written, of the fields that may keep some."""
    verify = case.expected().verify
    entries = int(verify.verify_num_valid[0]) if verify.enable[0] else 0
    columns = [f.name for f in verify.fields() if f.length.value == "capacity"]
    return dict.fromkeys(columns, entries) | {"write_seed_slot_indices": len(case.inputs.prefix_lens)}


def jax_launch(case: Case, implementation: str) -> dict[str, np.ndarray]:
    from jax_support import buffers, jax_inputs, jax_plans, launch

    plans = launch(jax_plans(case.before), jax_inputs(case), implementation=implementation)
    return {name: np.asarray(buffer) for name, buffer in buffers(plans).items()}


if __name__ == "__main__":
    sys.exit(main())

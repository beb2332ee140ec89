"""Launches full of corrupt values, for NVIDIA's compute-sanitizer to watch. A script, not a test.

    compute-sanitizer --tool memcheck python tests/gpu/sanitize.py --backend torch-triton
    compute-sanitizer --tool memcheck python tests/gpu/sanitize.py --backend jax-mosaic
    compute-sanitizer --tool initcheck python tests/gpu/sanitize.py --backend torch-triton --uninitialised

The named cases of the tests, then drawn ones of `kvcanary fuzz`, which take turns among its layouts: windows,
pages, optional outputs, batches of 1 to 4096 requests. Every buffer is an allocation of its own, so that an
access past its end is one the tool sees. With `--uninitialised` (torch alone) plans start as unwritten
memory, and only what the contract says is written is read back: initcheck sees an element that the launch
left out.

Prints each launch that differs from the reference and one line at the end. Exit code 1 if any differs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

# Read when the frameworks first see the device.
os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
os.environ["XLA_PYTHON_CLIENT_ALLOCATOR"] = "platform"

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS.parent), str(TESTS), str(TESTS / "kvcanary_jax"), str(TESTS / "gpu")]

import numpy as np  # noqa: E402
from named_cases import NAMED_CASES  # noqa: E402

from shared_ref.conformance.case import Case  # noqa: E402
from shared_ref.conformance.fuzz_cases import BLOCK, FuzzCases  # noqa: E402
from shared_ref.schema import OPTIONAL_OUTPUTS  # noqa: E402

Launch = Callable[[Case], dict[str, np.ndarray]]
"""Launches on a case: what is to be compared with the reference, by field."""

IMPLEMENTATIONS = {"jax-mosaic": "mosaic", "jax-triton": "triton", "jax-xla": "xla"}
TORCH = ("torch-triton", "torch-cpu")


def main() -> int:
    parser = argparse.ArgumentParser(description="Corrupt launches, for compute-sanitizer to watch.")
    parser.add_argument("--backend", choices=[*TORCH, *IMPLEMENTATIONS], required=True)
    parser.add_argument("--count", type=int, default=1000, help="drawn cases, beside the named ones")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--drawn-only", action="store_true", help="leave the named cases out")
    parser.add_argument("--uninitialised", action="store_true", help="plans start as unwritten memory")
    options = parser.parse_args()
    if options.uninitialised and options.backend not in TORCH:
        parser.error("--uninitialised needs a backend of torch")
    if options.backend in TORCH:
        launches = torch_launches(options.backend, options.uninitialised)
    else:
        launches = [(options.backend, 1, jax_launch(IMPLEMENTATIONS[options.backend]))]
    named = () if options.drawn_only else NAMED_CASES.values()
    ran = different = 0
    for case in (*named, *drawn(options.count, options.seed)):
        expected = case.expected().buffers()
        for name, launched, launch in launches:
            ran += launched
            wrong = [field for field, have in launch(case).items() if not agree(have, expected[field])]
            if wrong:
                different += 1
                print(f"{name}, {case.name}: {', '.join(wrong)} differ", flush=True)
    print(f"{options.backend}: {ran} launches, {different} differ from the reference", flush=True)
    return 1 if different or not ran else 0


def drawn(count: int, seed: int) -> Iterator[Case]:
    """As many drawn cases, of every layout in turn; the same for the same seed."""
    source = FuzzCases(seed)
    blocks = len(source.schedule)
    for i in range(count):
        yield source.case(i % blocks * BLOCK + i // blocks % BLOCK)


def agree(have: np.ndarray, expected: np.ndarray) -> bool:
    """Whether the elements that were read back are the reference's first ones."""
    return have.dtype == expected.dtype and np.array_equal(have, expected[: len(have)])


def torch_launches(backend: str, uninitialised: bool) -> list[tuple[str, int, Launch]]:
    """Each with the number of launches that it makes."""
    import torch

    device = "cuda" if backend == "torch-triton" else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        sys.exit("torch sees no CUDA device")
    return [
        ("combined", 1, lambda case: torch_launch(case, device, uninitialised, staged=False)),
        ("staged", 2, lambda case: torch_launch(case, device, uninitialised, staged=True)),
    ]


def torch_launch(case: Case, on: str, uninitialised: bool, *, staged: bool) -> dict[str, np.ndarray]:
    import torch
    from gpu_support import OnDevice

    # On the host, tensors share the memory of the case's optional outputs.
    device = OnDevice(case._replace(before=case.before.copy()), device=on)
    if uninitialised:
        device.verify = type(device.verify)(
            **{k: torch.empty_like(v) for k, v in vars(device.verify).items()}
        )
        device.write = type(device.write)(**{k: torch.empty_like(v) for k, v in vars(device.write).items()})
        scratch = torch.empty_like(device.scratch["verify_offsets_scratch"])
        device.scratch = dict.fromkeys(device.scratch, scratch)
        # Faults are added to what is there.
        if (total := device.extras.get("verify_total_out")) is not None:
            device.extras["verify_total_out"] = torch.empty_like(total)
    (device.launch_staged if staged else device.launch)()
    written = lengths_written(case) if uninitialised else {}
    return {k: v[: written.get(k, len(v))].cpu().numpy() for k, v in device.tensors().items()}


def lengths_written(case: Case) -> dict[str, int]:
    """How many elements the contract says are written, of the fields that may keep some."""
    verify = case.expected().verify
    entries = int(verify.verify_num_valid[0]) if verify.enable[0] else 0
    columns = [f.name for f in verify.fields() if f.length.value == "capacity"]
    return dict.fromkeys(columns, entries) | {"write_seed_slot_indices": len(case.inputs.prefix_lens)}


def jax_launch(implementation: str) -> Launch:
    from jax_support import jax_inputs, jax_plans, launch

    def run(case: Case) -> dict[str, np.ndarray]:
        plans = jax_plans(case.before)
        verify, write, *extras = launch(plans, jax_inputs(case), implementation=implementation)
        names = [name for name in OPTIONAL_OUTPUTS if name in case.before.extras]
        outputs = vars(verify) | vars(write) | dict(zip(names, extras, strict=True))
        return {name: np.asarray(buffer) for name, buffer in outputs.items()}

    return run


if __name__ == "__main__":
    sys.exit(main())

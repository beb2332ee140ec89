"""SGLang with plans by kvcanary, on a machine that has both: compare the two launchers, then serve.

python examples/sglang_dropin.py compare
python examples/sglang_dropin.py serve --model-path Qwen/Qwen3-0.6B --kv-canary log
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
from typing import Any

import torch

from kvcanary_torch.integrations import sglang

REQUESTS, POSITIONS, SLOTS, WINDOW, CAPACITY = 64, 1024, 100_000, 256, 20_000


def compare() -> int:
    """Fill SGLang's own plans by both launchers, from one random batch; 1 if a byte differs."""
    module, _, name = sglang.install()[0].rpartition(".")
    ours = getattr(importlib.import_module(module), name)
    canary = module.partition(".plan")[0]
    print(f"kvcanary in place of {module}.{name}")
    batch = random_batch(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    theirs, replaced = (plans_of(canary, launch, batch) for launch in (ours.__wrapped__, ours))
    differing = [field for field, buffer in theirs.items() if not torch.equal(buffer, replaced[field])]
    print("different:", *differing) if differing else print("the same bytes")
    return int(bool(differing))


def random_batch(device: torch.device) -> dict[str, Any]:
    def below(limit: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.randint(1, limit, shape, dtype=dtype, device=device)

    return {
        "req_pool_indices": torch.randperm(REQUESTS, device=device),  # row 0 pads
        "prefix_lens": below(POSITIONS, REQUESTS),
        "extend_seq_lens": below(4, REQUESTS),
        "req_to_token": below(SLOTS, REQUESTS, POSITIONS, dtype=torch.int32),
        "swa_window_size": WINDOW,
        "full_to_swa_index_mapping": torch.randperm(SLOTS, device=device),
        "verify_capacity": CAPACITY,
        "req_to_verify_expected_tokens": below(150_000, REQUESTS, POSITIONS, dtype=torch.int32),
        "req_to_verify_expected_tokens_valid_lens": below(POSITIONS, REQUESTS),
        "kv_token_id_vs_position_offset": 0,
    }


def plans_of(canary: str, launch: Any, batch: dict[str, Any]) -> dict[str, torch.Tensor]:
    """What a launcher makes of plans that are zero before."""
    device = batch["req_to_token"].device
    verify, write = (importlib.import_module(f"{canary}.{name}") for name in ("verify", "write"))
    plans = {
        "verify_plan_out": verify.VerifyPlan.allocate(verify_capacity=CAPACITY, device=device),
        "write_plan_out": write.WritePlan.allocate(write_req_capacity=REQUESTS, device=device),
    }
    buffers = {f.name: getattr(plan, f.name) for plan in plans.values() for f in dataclasses.fields(plan)}
    for buffer in buffers.values():
        buffer.zero_()
    launch(**plans, **batch)
    return buffers


def run_scheduler(*arguments: Any, **keywords: Any) -> Any:
    """SGLang's process for one GPU. It is a fresh interpreter, so the launcher is replaced in here."""
    print("kvcanary in place of", *sglang.install(), flush=True)
    from sglang.srt.managers.scheduler import run_scheduler_process

    return run_scheduler_process(*arguments, **keywords)


def serve(arguments: list[str]) -> int:
    from sglang.srt.entrypoints.http_server import launch_server
    from sglang.srt.server_args import prepare_server_args

    launch_server(prepare_server_args(arguments), run_scheduler_process_func=run_scheduler)
    return 0


def main(arguments: list[str]) -> int:
    match arguments:
        case ["compare"]:
            return compare()
        case ["serve", *rest]:
            return serve(rest)
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

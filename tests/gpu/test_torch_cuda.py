"""The launchers on CUDA tensors: the reference's bytes, one kernel a launch, nothing the host waits for."""

from __future__ import annotations

import ctypes
import dataclasses
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from gpu_support import ALIGNED, UNALIGNED, OnDevice, Placement, assert_plans, torch
from hypothesis import given, settings
from hypothesis import strategies as st
from named_cases import LUT_LEN, NAMED_CASES, small_case, with_mapping, with_tokens

import kvcanary_torch
from shared_ref.batch import requests
from shared_ref.conformance.case import Case, PlanInputs
from shared_ref.conformance.strategies import cases
from shared_ref.schema import LAUNCH_ENTRIES, LAUNCH_OFFSETS, LAUNCH_PLAN, Launcher

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.usefixtures("cuda")

LAUNCHERS = (LAUNCH_PLAN, LAUNCH_OFFSETS, LAUNCH_ENTRIES)
KERNELS = {LAUNCH_PLAN: "plan_kernel", LAUNCH_OFFSETS: "offsets_kernel", LAUNCH_ENTRIES: "entries_kernel"}
each_launcher = pytest.mark.parametrize("launcher", LAUNCHERS, ids=lambda launcher: launcher.name)
placements = pytest.mark.parametrize("placement", [ALIGNED, UNALIGNED], ids=["aligned", "unaligned"])

STAGED = (
    "no requests, no room",
    "one request",
    "some of everything, translated and with tokens",
    "one entry too many",
    "no capacity for one entry",
    "a window and tokens",
    "everything odd",
    "requests at the borders of chunks",
    "a batch of 600",
    "2**32 entries",
)

SLEEP_CYCLES = 600_000_000
"""A third of a second on an H200: far longer than the host takes to launch."""


def random_case(
    bs: int,
    *,
    width: int,
    prefix: tuple[int, int] | np.ndarray,
    window: int = 0,
    mapping: bool = False,
    tokens: bool = False,
    rows: int | None = None,
    verify_capacity: int | None = None,
    corrupt: float = 0.0,
    seed: int = 0,
) -> Case:
    """A batch with prefix lengths from a range; a share of its int64 values is replaced by odd ones."""
    rng = np.random.default_rng(seed)
    rows = rows or bs + 1
    lut_len = 50_001

    def values(low: int, high: int) -> np.ndarray:
        odd = rng.choice([-1, 2**31, 2**32 + 1, 2**63 - 1, -(2**63)], bs)
        return np.where(rng.random(bs) < corrupt, odd, rng.integers(low, high, bs))

    prefix_lens = prefix if isinstance(prefix, np.ndarray) else values(prefix[0], prefix[1] + 1)
    inputs = PlanInputs(
        req_pool_indices=values(0, rows) if corrupt else rng.permutation(rows - 1)[:bs] + 1,
        prefix_lens=prefix_lens,
        extend_seq_lens=values(0, 3),
        req_to_token=rng.integers(-1, lut_len + 100, (rows, width), np.int32),
        swa_window_size=window,
        full_to_swa_index_mapping=rng.integers(0, 2**40, lut_len) if mapping else None,
        verify_capacity=0,
        req_to_verify_expected_tokens=rng.integers(0, 2**31 - 1, (rows, width), np.int32) if tokens else None,
        req_to_verify_expected_tokens_valid_lens=values(0, width + 1) if tokens else None,
        kv_token_id_vs_position_offset=int(tokens),
    )
    if verify_capacity is None:
        verify_capacity = total_of(inputs) + 5
    inputs = dataclasses.replace(inputs, verify_capacity=verify_capacity)
    return Case.poisoned(f"{bs} requests", inputs, write_req_capacity=bs + 2, seed=seed)


def total_of(inputs: PlanInputs) -> int:
    """Verify entries of a batch."""
    return sum(request.verify_count for request in requests(inputs.keywords()))


def assert_launch_equals_the_reference(case: Case, placement: Placement = ALIGNED) -> None:
    device = OnDevice(case, placement)
    device.launch()
    assert_plans(device.plans(), case.expected())


@placements
@pytest.mark.parametrize("name", NAMED_CASES)
def test_launch_equals_the_reference(name: str, placement: Placement) -> None:
    assert_launch_equals_the_reference(NAMED_CASES[name], placement)


def test_launch_equals_the_reference_on_drawn_cases() -> None:
    @given(cases(), st.sampled_from([ALIGNED, UNALIGNED, Placement(gap=16)]))
    @settings(max_examples=200)
    def judge(case: Case, placement: Placement) -> None:
        assert_launch_equals_the_reference(case, placement)

    judge()


@placements
@pytest.mark.parametrize("name", STAGED)
def test_staged_launches_equal_the_reference(name: str, placement: Placement) -> None:
    case = NAMED_CASES[name]
    device = OnDevice(case, placement)
    device.launch_staged()
    assert_plans(device.plans(), case.expected())


def test_the_scratch_gets_the_prefix_sum_and_no_more() -> None:
    case = NAMED_CASES["a batch of 600"]
    device = OnDevice(case)
    before = device.scratch["out_verify_offsets_scratch"].tolist()
    device.launch_staged()
    scratch = device.scratch["out_verify_offsets_scratch"].tolist()
    counts = np.where(case.inputs.req_pool_indices > 0, case.inputs.prefix_lens, 0)
    assert scratch[:601] == [0, *np.cumsum(counts).tolist()]
    assert scratch[601:] == before[601:]


@pytest.mark.parametrize("switch", [0, 1, -3])
def test_the_entries_launcher_trusts_only_the_switch(switch: int) -> None:
    case = NAMED_CASES["some of everything"]
    device = OnDevice(case)
    device.verify.enable.fill_(switch)
    device.launch_stage(LAUNCH_ENTRIES)
    expected = case.expected().verify if switch else case.before.verify
    for name, tensor in vars(device.verify).items():
        if name.startswith("verify_") and name != "verify_num_valid":
            assert tensor.tolist() == getattr(expected, name).tolist(), name


BATCH_SIZES = [
    0,
    1,
    2,
    3,
    5,
    31,
    33,
    63,
    65,
    127,
    129,
    255,
    257,
    511,
    513,
    1023,
    1025,
    2047,
    2049,
    4095,
    4096,
]


@pytest.mark.parametrize("excess", [0, 1], ids=["fits", "one too many"])
def test_batches_of_every_size_equal_the_reference(excess: int) -> None:
    for bs in BATCH_SIZES:
        case = random_case(
            bs,
            width=70,
            prefix=(0, 70),
            window=40,
            mapping=True,
            tokens=True,
            rows=300,
            corrupt=0.05,
            seed=bs,
        )
        capacity = max(total_of(case.inputs) - excess, 0)
        inputs = dataclasses.replace(case.inputs, verify_capacity=capacity)
        case = Case.poisoned(case.name, inputs, write_req_capacity=bs, seed=bs)
        assert_launch_equals_the_reference(case, UNALIGNED if bs % 2 else ALIGNED)


LONG_TAIL = np.array([131_072, *np.random.default_rng(5).integers(200, 2001, 255)])


@pytest.mark.parametrize("translated", [False, True], ids=["plain", "mapping and tokens"])
@pytest.mark.parametrize(
    "sizes",
    [
        {"bs": 256, "width": 4096, "prefix": (4096, 4096)},
        {"bs": 256, "width": 8192, "prefix": (0, 8192)},
        {"bs": 4, "width": 131_072, "prefix": (131_000, 131_072)},
        {"bs": 4096, "width": 300, "prefix": (250, 260)},
        {"bs": 256, "width": 131_072, "prefix": LONG_TAIL},
        {"bs": 512, "width": 2048, "prefix": (0, 2048), "window": 1000},
        {"bs": 1000, "width": 2048, "prefix": (0, 2048), "window": 300},
    ],
    ids=["even", "uneven", "long", "large batch", "long tail", "window", "large batch with a window"],
)
def test_large_plans_equal_the_reference(sizes: dict[str, Any], translated: bool) -> None:
    mapping = translated or "window" in sizes
    assert_launch_equals_the_reference(random_case(**sizes, mapping=mapping, tokens=translated))


def need_memory(gigabytes: int) -> None:
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    if free < gigabytes * 2**30:
        pytest.skip(f"needs {gigabytes} GiB of device memory, {free / 2**30:.1f} are free")


def launch_on_huge_table(case: Case, table: Any, rows: np.ndarray) -> None:
    """Launch with `table` for both tables of the case, and `rows` for its rows."""
    device = OnDevice(case)
    device.inputs["req_pool_indices"].copy_(torch.from_numpy(rows))
    device.inputs |= {"req_to_token": table, "req_to_verify_expected_tokens": table}
    device.launch()
    assert_plans(device.plans(), case.expected())


@pytest.mark.parametrize("window", [0, 150])
def test_a_table_of_more_than_2_31_elements(window: int) -> None:
    """The reference gets a table of the rows in use, under numbers of their own."""
    need_memory(12)
    shape = (40_000, 65_536)
    assert shape[0] * shape[1] > 2**31
    rows = np.array([39_999, 32_768, 1, 32_769, 20_000])
    small = random_case(5, width=shape[1], prefix=(200, 3000), window=window, mapping=True, tokens=True)
    inputs = small.inputs
    inputs.prefix_lens[1] = shape[1]
    inputs = dataclasses.replace(
        inputs, req_to_verify_expected_tokens=inputs.req_to_token, verify_capacity=total_of(inputs) + 1
    )
    case = Case.poisoned("a huge table", inputs, write_req_capacity=6)
    table = torch.empty(shape, dtype=torch.int32, device="cuda")
    for row, reference_row in zip(rows, inputs.req_pool_indices, strict=True):
        table[int(row)] = torch.from_numpy(inputs.req_to_token[reference_row]).cuda()
    launch_on_huge_table(case, table, rows)


def test_a_table_of_more_than_2_31_columns() -> None:
    """Numpy's zeros take no memory until they are read, so the reference gets the table itself."""
    need_memory(18)
    width = 2**31 + 64
    sparse = np.zeros((2, width), np.int32)
    sparse[1, :64] = np.arange(1000, 1064)
    sparse[1, -300:] = np.arange(2000, 2300)
    inputs = PlanInputs(
        req_pool_indices=np.array([1, 1, 1, 0, 1]),
        prefix_lens=np.array([2**31 + 40, 9, 2**31 + 64, 5, 2**62]),
        extend_seq_lens=np.array([1, 1, 0, 1, 1]),
        req_to_token=sparse,
        swa_window_size=100,
        full_to_swa_index_mapping=np.arange(5000) * 2**33,
        verify_capacity=250,
        req_to_verify_expected_tokens=sparse,
        req_to_verify_expected_tokens_valid_lens=np.array([2**31 + 30, 4, 2**62, 0, 0]),
        kv_token_id_vs_position_offset=1,
    )
    case = Case.poisoned("a wide table", inputs, write_req_capacity=6)
    assert case.expected().verify.verify_expected_positions[99] == 2**31 + 39
    table = torch.zeros((2, width), dtype=torch.int32, device="cuda")
    for part in (slice(0, 64), slice(width - 300, width)):
        table[1, part] = torch.from_numpy(sparse[1, part]).cuda()
    placeholder = np.zeros((2, 1), np.int32)
    small = dataclasses.replace(inputs, req_to_token=placeholder, req_to_verify_expected_tokens=placeholder)
    device = OnDevice(case._replace(inputs=small))
    device.inputs |= {"req_to_token": table, "req_to_verify_expected_tokens": table}
    device.launch()
    assert_plans(device.plans(), case.expected())


def captured(launch: Callable[[], None], **options: Any) -> Any:
    """A CUDA graph of one launch, whose kernel has been compiled before."""
    launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(**options)
    with torch.cuda.graph(graph):
        launch()
    return graph


def node_kinds(graph: Any) -> list[int]:
    """The kinds of a captured graph's nodes, by the driver: 0 is a kernel, 1 a copy, 2 a memset."""
    driver = ctypes.CDLL("libcuda.so.1")
    handle, n = ctypes.c_void_p(graph.raw_cuda_graph()), ctypes.c_size_t()
    assert driver.cuGraphGetNodes(handle, None, ctypes.byref(n)) == 0
    nodes = (ctypes.c_void_p * n.value)()
    assert driver.cuGraphGetNodes(handle, nodes, ctypes.byref(n)) == 0
    kinds = []
    for node in nodes:
        kind = ctypes.c_int(-1)
        assert driver.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind)) == 0
        kinds.append(kind.value)
    return kinds


RICH = small_case("rich", verify_capacity=150, **with_mapping(), **with_tokens(1))


@each_launcher
@pytest.mark.parametrize("case", [RICH, NAMED_CASES["a batch of 600"]], ids=["small batch", "large batch"])
def test_a_launch_is_one_kernel_and_nothing_else(launcher: Launcher, case: Case) -> None:
    device = OnDevice(case, UNALIGNED)
    graph = captured(lambda: launch_once(device, launcher), keep_graph=True)
    assert node_kinds(graph) == [0]


def launch_once(device: OnDevice, launcher: Launcher) -> None:
    if launcher is LAUNCH_PLAN:
        device.launch()
    else:
        device.launch_stage(launcher)


@each_launcher
def test_an_eager_launch_is_one_kernel_and_nothing_else(launcher: Launcher) -> None:
    device = OnDevice(RICH)
    launch_once(device, launcher)
    torch.cuda.synchronize()
    if not seen_on_device(lambda: torch.ones(3, device="cuda")):
        pytest.skip("the profiler records nothing here")
    seen = seen_on_device(lambda: launch_once(device, launcher))
    assert seen == [KERNELS[launcher]]


def seen_on_device(work: Callable[[], Any]) -> list[str]:
    """Names of the kernels, copies and memsets that some work puts on the device."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        work()
        torch.cuda.synchronize()
    on_device = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    return [event.name for event in on_device if "sync" not in event.name.lower()]


@pytest.fixture
def no_synchronisation(cuda: Any) -> Iterator[None]:
    """torch raises where it would wait for the device."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@each_launcher
def test_a_launch_does_not_wait_for_the_device(launcher: Launcher, request: pytest.FixtureRequest) -> None:
    device = OnDevice(RICH)
    device.launch()
    launch_once(device, launcher)
    torch.cuda.synchronize()
    done = torch.cuda.Event()
    request.getfixturevalue("no_synchronisation")
    torch.cuda._sleep(SLEEP_CYCLES)
    launch_once(device, launcher)
    done.record()
    assert not done.query(), "the device was awaited, or the sleep before the launch is too short"
    torch.cuda.set_sync_debug_mode("default")
    assert_plans(device.plans(), RICH.expected())


ALL_ACTIVE = np.array([1, 2, 3, 4, 4, 3, 2, 1])
STEPS = {
    "other values": {"prefix_lens": np.array([3, 0, 8, 1, 40, 0, 2, 9]), "req_pool_indices": ALL_ACTIVE},
    "overflow": {"prefix_lens": np.full(8, 40), "req_pool_indices": ALL_ACTIVE},
    "all padding": {"req_pool_indices": np.zeros(8, np.int64)},
    "corrupt": {
        "req_pool_indices": np.array([5, 1, -1, 2**32 + 1, 2, -(2**63), 3, 2**31]),
        "prefix_lens": np.array([9, 2**32 + 1, 9, 9, -(2**63), 9, -1, 9]),
        "extend_seq_lens": np.array([1, 2**63 - 1, 1, 1, 2**63 - 1, 1, -1, 1]),
    },
    "other tables": {
        "req_to_token": np.arange(500, 700, dtype=np.int32).reshape(5, 40) % 170,
        "full_to_swa_index_mapping": 2**40 - np.arange(LUT_LEN),
        "req_to_verify_expected_tokens": np.arange(200, dtype=np.int32).reshape(5, 40),
        "req_to_verify_expected_tokens_valid_lens": np.array([0, 40, 1, 2**40, -1, 9, 9, 9]),
    },
    "as before": {},
}
"""What changes in place before each replay, against the captured launch's inputs."""


@pytest.mark.parametrize("staged", [False, True], ids=["combined", "staged"])
@placements
def test_a_replay_after_all_inputs_changed_gives_the_new_plan(staged: bool, placement: Placement) -> None:
    device = OnDevice(RICH, placement)
    graph = captured(device.launch_staged if staged else device.launch)
    plans, enabled = RICH.expected(), []
    assert_plans(device.plans(), plans)
    for name, changes in STEPS.items():
        inputs = dataclasses.replace(RICH.inputs, **changes)
        for argument, value in inputs.keywords().items():
            if isinstance(value, np.ndarray):
                device.inputs[argument].copy_(torch.from_numpy(value))
        graph.replay()
        plans = Case(name, inputs, plans).expected()
        assert_plans(device.plans(), plans)
        enabled.append(int(plans.verify.enable[0]))
    assert enabled == [1, 0, 1, 1, 1, 1]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_torch_compile_sees_a_launch_and_what_it_writes(backend: str) -> None:
    torch._dynamo.reset()
    combined, in_stages = OnDevice(RICH), OnDevice(RICH)

    @torch.compile(fullgraph=True, backend=backend)
    def step(lens: Any) -> Any:
        combined.inputs["prefix_lens"].copy_(lens)
        in_stages.inputs["prefix_lens"].copy_(lens)
        combined.launch()
        in_stages.launch_staged()
        return combined.verify.verify_expected_positions + in_stages.verify.verify_expected_positions

    doubled = step(torch.from_numpy(RICH.inputs.prefix_lens).cuda())
    expected = RICH.expected()
    for device in (combined, in_stages):
        assert_plans(device.plans(), expected)
    n = int(expected.verify.verify_num_valid[0])
    assert doubled[:n].tolist() == (2 * expected.verify.verify_expected_positions[:n]).tolist()


@each_launcher
def test_opcheck_passes(launcher: Launcher) -> None:
    importlib.import_module("kvcanary_torch.launch")  # defines the operators
    device = OnDevice(RICH)
    operator = getattr(torch.ops.kvcanary, launcher.name).default
    torch.library.opcheck(operator, device.values_for(launcher))


COMPILED_BATCH_SIZES = sorted({min(2**k + d, 4096) for k in range(13) for d in (0, 1)})


@pytest.mark.parametrize(
    ("window", "translated"), [(0, False), (100, True)], ids=["full attention", "window, mapping and tokens"]
)
def test_all_batch_sizes_take_at_most_thirteen_compilations(
    window: int, translated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the values, the sizes of the tables and plans, their strides and alignment."""
    from kvcanary_torch import cuda, kernels
    from shared_ref import validation

    # Nothing that earlier tests compiled is remembered anywhere.
    monkeypatch.setattr(validation, "_passed", {})
    monkeypatch.setattr(cuda, "_compiled", {})
    kernels.plan_kernel.device_caches.clear()
    for i, bs in enumerate(COMPILED_BATCH_SIZES):
        case = random_case(
            bs,
            width=(64, 77, 1)[i % 3],
            rows=(None, 16, 2)[i % 3] or bs + 1,
            prefix=(0, (64, 77, 1)[i % 3]),
            window=window,
            mapping=translated,
            tokens=translated,
            corrupt=0.1,
            seed=i,
        )
        assert_launch_equals_the_reference(case, (ALIGNED, UNALIGNED, Placement(gap=16))[i // 3 % 3])
    assert 0 < len(cuda._compiled) <= 13
    assert 0 < sum(len(cache[0]) for cache in kernels.plan_kernel.device_caches.values()) <= 13


@each_launcher
def test_a_second_launch_of_other_sizes_compiles_nothing(launcher: Launcher) -> None:
    """Sizes of 1, of a multiple of 16 and of neither; a batch of the same padded size."""
    from kvcanary_torch import cuda

    sizes = [(5, 40, 3, 40), (8, 16, 17, 64), (7, 1, 2, 1), (6, 128, 16, 1024)]
    counts = []
    for bs, width, rows, capacity in sizes:
        case = random_case(
            bs, width=width, prefix=(0, width), rows=rows, verify_capacity=capacity, corrupt=0.3
        )
        for placement in (ALIGNED, UNALIGNED):
            launch_once(OnDevice(case, placement), launcher)
            counts.append(len(cuda._compiled))
    assert set(counts) == {counts[0]}


@each_launcher
def test_a_launch_goes_to_the_current_stream(launcher: Launcher) -> None:
    """While that stream sleeps, nothing is written; another stream sees as much."""
    device = OnDevice(RICH)
    warm = OnDevice(RICH)
    launch_once(warm, launcher)
    warm.plans()  # loading a kernel would wait for the device
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(SLEEP_CYCLES)
        launch_once(device, launcher)
    early = device.plans()
    assert not stream.query(), "the stream woke up too early to tell"
    assert_plans(early, RICH.before)
    stream.synchronize()
    written = device.plans()
    assert_plans(written, warm.plans())
    assert written.digest() != RICH.before.digest()


def test_tensors_of_a_device_that_is_not_the_current_one() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    with torch.cuda.device(0):
        device = OnDevice(RICH, device="cuda:1")
        device.launch()
        assert torch.cuda.current_device() == 0
        torch.cuda.synchronize("cuda:1")
        assert_plans(device.plans(), RICH.expected())


@pytest.mark.parametrize("name", ["req_pool_indices", "req_to_token", "full_to_swa_index_mapping"])
def test_a_tensor_on_the_host_is_refused_and_nothing_is_written(name: str) -> None:
    device = OnDevice(RICH)
    device.inputs[name] = device.inputs[name].cpu()
    with pytest.raises(ValueError, match=f"^kv-canary: {name} must be on .* device cuda:0, got cpu$"):
        device.launch()
    assert_plans(device.plans(), RICH.before)


def test_plans_are_allocated_on_the_device() -> None:
    verify = kvcanary_torch.VerifyPlan.allocate(verify_capacity=9, device="cuda")
    write = kvcanary_torch.WritePlan.allocate(write_req_capacity=3, device="cuda")
    assert {tensor.device.type for tensor in (*vars(verify).values(), *vars(write).values())} == {"cuda"}
    assert verify.enable.tolist() == [1]

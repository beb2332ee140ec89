"""`kvcanary fuzz`: what is drawn, what is found, how small it gets, and what the command prints."""

from __future__ import annotations

import itertools
import json
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from cli_support import ABSENT, TWIN, backend
from click.testing import Result

sys.path.insert(0, str(Path(__file__).parents[1] / "meta"))

from mutants import MUTANTS
from patching import load

from shared_ref import launch_canary_plan_kernels_reference as reference
from shared_ref.backends import NUMPY, Backend
from shared_ref.conformance.case import Case
from shared_ref.conformance.fuzz import FuzzCases, fuzz
from shared_ref.conformance.fuzz_cases import BLOCK, LAYOUTS, PLAIN_LAYOUTS
from shared_ref.conformance.runner import check, run
from shared_ref.conformance.shrink import shrink
from shared_ref.constants import FAULT_KINDS

ROUND = BLOCK * len(LAYOUTS)
"""Cases in which every layout is met that is not rare."""


def first(n: int, seed: int = 0) -> list[Case]:
    return list(itertools.islice(FuzzCases(seed), n))


def same(a: Case, b: Case) -> bool:
    pairs = zip(a.inputs.keywords().values(), b.inputs.keywords().values(), strict=True)
    return all(np.array_equal(x, y) for x, y in pairs) and a.before.digest() == b.before.digest()


# What is drawn.


def test_a_case_can_be_made_alone() -> None:
    cases = first(3 * BLOCK)
    for index in (0, 1, BLOCK - 1, BLOCK, 3 * BLOCK - 1):
        alone = FuzzCases(0).case(index)
        assert same(alone, cases[index])
        assert alone.name == cases[index].name == f"fuzz 0-{index}, {LAYOUTS[index // BLOCK].name}"


def test_another_seed_draws_other_values_of_the_same_layouts() -> None:
    for here, there in zip(first(2 * BLOCK), first(2 * BLOCK, seed=1), strict=True):
        assert not same(here, there)
        assert here.inputs.req_to_token.shape == there.inputs.req_to_token.shape


def test_few_programs_are_drawn() -> None:
    def program(case: Case) -> tuple:
        values = case.inputs.keywords().items()
        sizes = tuple((k, v.shape if isinstance(v, np.ndarray) else v) for k, v in values)
        return *sizes, *(buffer.shape for buffer in case.before.buffers().values())

    source = FuzzCases()
    blocks = range(len(source.schedule))
    programs = {program(source.block(number).case(0)) for number in blocks}
    assert len(programs) == len(LAYOUTS) == len({layout.name for layout in LAYOUTS}) <= 30


@pytest.mark.parametrize("page", ["conformance", "robustness"])
def test_the_documents_say_how_many(page: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / f"{page}.md").read_text()
    assert f"{len(LAYOUTS)} layouts" in text


def test_every_case_keeps_the_rules_and_together_they_meet_everything() -> None:
    met: Counter[str] = Counter()
    for case in first(ROUND):
        inputs, capacity = case.inputs, case.inputs.verify_capacity
        after = fresh_outputs(case)
        total = int(after["verify_total_out"][0])
        met["empty plans"] += total == 0
        met["some room is left"] += 0 < total < capacity
        met["just fits"] += total == capacity > 0
        met["one too many"] += total == capacity + 1
        met["far too many"] += total > capacity + 1
        met["more than int32 counts"] += total >= 2**31
        met["padding"] += bool((inputs.req_pool_indices == 0).any())
        met["rows that narrow"] += bool((inputs.req_pool_indices == 2**32 + 1).any())
        met["smallest prefix"] += bool((inputs.prefix_lens == -(2**63)).any())
        met["rows apart"] += not inputs.req_to_token.flags.c_contiguous
        for kind, count in zip(FAULT_KINDS, after["faults_out"][:, 0], strict=True):
            met[kind] += count > 0
        met["no faults"] += not after["faults_out"][:6, 0].any()
    assert {what for what, n in met.items() if n < 20} == set(), met


def fresh_outputs(case: Case) -> dict[str, np.ndarray]:
    """The optional outputs of the reference, whether the case has them or not."""
    plans = case.before.copy()
    extras = {
        "verify_total_out": np.zeros(1, np.int64),
        "faults_out": np.tile(np.array([0, -1]), (len(FAULT_KINDS), 1)),
    }
    reference(verify_plan_out=plans.verify, write_plan_out=plans.write, **case.inputs.keywords(), **extras)
    return extras


def test_plain_cases_have_neither_pages_nor_optional_outputs() -> None:
    cases = list(itertools.islice(FuzzCases(0, PLAIN_LAYOUTS), BLOCK * len(PLAIN_LAYOUTS)))
    assert {layout.name for layout in PLAIN_LAYOUTS} > {"full attention", "window", "rows apart"}
    assert all("page_size" not in case.inputs.keywords() and not case.before.extras for case in cases)


def test_one_round_rejects_every_wrong_implementation() -> None:
    wrong = [
        Backend(
            name=mutant.name,
            launch=load(mutant.name, mutant.edits).launch_canary_plan_kernels_reference,
            version=str,
        )
        for mutant in MUTANTS
    ]
    assert len(wrong) > 100
    outcomes = run(wrong, first(ROUND))
    assert [outcome.backend.name for outcome in outcomes if outcome.failure is None] == []


# How small a failure gets.


def changed(**functions: Callable[[Any], Any]) -> Callable[..., None]:
    """The reference on arguments of which some are changed before."""

    def launch(**arguments: Any) -> None:
        reference(**arguments | {k: f(arguments[k]) for k, f in functions.items()})

    return launch


def narrowed(array: np.ndarray) -> np.ndarray:
    return array.astype(np.int32).astype(np.int64)


def no_mapping(**arguments: Any) -> None:
    reference(**arguments | {"full_to_swa_index_mapping": None, "swa_window_size": 0})


def refuses_an_exact_fit(**arguments: Any) -> None:
    reference(**arguments)
    verify = arguments["verify_plan_out"]
    if verify.verify_num_valid[0] == len(verify.verify_slot_indices) > 0:
        verify.enable[:] = 0


def raises_on_long_prefixes(**arguments: Any) -> None:
    if (arguments["prefix_lens"] > 2**31).any():
        raise RuntimeError(f"no room for {arguments['prefix_lens'].max()}")
    reference(**arguments)


def keeps_no_places(**arguments: Any) -> None:
    faults = arguments.get("faults_out")
    before = None if faults is None else faults[:, 1].copy()
    reference(**arguments)
    if faults is not None:
        faults[:, 1] = before


def shrunk(launch: Callable[..., None], **more: Any) -> Case:
    """From the first case of a large batch that the launch fails on."""
    for case in FuzzCases(7):
        if len(case.inputs.prefix_lens) >= 8 and (failure := check(launch, case)) is not None:
            return shrink(launch, failure, **more).case


def test_a_narrowed_row_shrinks_to_itself() -> None:
    case = shrunk(changed(req_pool_indices=narrowed))
    inputs = case.inputs
    (row,) = inputs.req_pool_indices.tolist()
    # Of all that is the padding row or the table's when it is narrowed, the nearest to 0.
    assert abs(row) in (2**32 - 1, 2**32, 2**32 + 1)
    assert inputs.req_to_token.size == 0
    assert (inputs.full_to_swa_index_mapping, inputs.req_to_verify_expected_tokens) == (None, None)
    assert (inputs.swa_window_size, inputs.page_size, inputs.verify_capacity) == (0, 1, 0)
    assert case.before.extras == {}
    assert len(case.before.write.write_seed_slot_indices) == 1


def test_values_go_down_to_the_first_that_fails() -> None:
    inputs = shrunk(raises_on_long_prefixes).inputs
    assert inputs.prefix_lens.tolist() == [2**31 + 1]
    assert inputs.req_pool_indices.tolist() == [0]


def test_a_capacity_shrinks_with_what_fills_it() -> None:
    inputs = shrunk(refuses_an_exact_fit).inputs
    assert inputs.verify_capacity == 1
    assert inputs.prefix_lens.tolist() == [1]
    assert inputs.req_to_token.tolist() == [[0], [0]]


def test_what_the_failure_needs_is_kept() -> None:
    inputs = shrunk(no_mapping).inputs
    assert inputs.full_to_swa_index_mapping is not None
    assert len(inputs.prefix_lens) == 1
    case = shrunk(keeps_no_places)
    assert list(case.before.extras) == ["faults_out"]


def test_the_shrunk_case_still_fails_and_its_inputs_are_the_failures() -> None:
    launch = changed(extend_seq_lens=narrowed)
    case = shrunk(launch)
    failure = check(launch, case)
    assert failure is not None
    assert failure.differences


def test_a_failure_does_not_turn_into_another() -> None:
    """From a difference; the empty batch, which raises, is smaller."""

    def launch(**arguments: Any) -> None:
        if len(arguments["prefix_lens"]) < 2:
            raise RuntimeError("no kernel for so few")
        changed(extend_seq_lens=narrowed)(**arguments)

    assert len(shrunk(launch).inputs.prefix_lens) == 2


@pytest.mark.parametrize("bound", [{"tries": 0}, {"tries": 25}, {"seconds": -1.0}])
def test_shrinking_is_bounded(bound: dict[str, Any]) -> None:
    launches = 0

    def launch(**arguments: Any) -> None:
        nonlocal launches
        launches += 1
        changed(req_pool_indices=narrowed)(**arguments)

    failure = next(filter(None, (check(launch, case) for case in first(BLOCK))))
    launches = 0
    smaller = shrink(launch, failure, **bound)
    assert launches == bound.get("tries", 0)
    assert (smaller is failure) == (launches == 0)


# A run.


WRONG = backend("wrong", changed(prefix_lens=narrowed))


def test_a_run_ends_with_its_cases() -> None:
    progress: list[int] = []
    fuzzed = fuzz(
        [NUMPY, TWIN], seed=3, cases=BLOCK + 1, on_progress=lambda cases, seconds: progress.append(cases)
    )
    assert fuzzed.is_identical
    assert (fuzzed.cases, fuzzed.layouts) == (BLOCK + 1, 2)
    assert progress == list(range(1, BLOCK + 2))
    digests = {outcome.digest for outcome in fuzzed.outcomes}
    assert len(digests) == 1
    assert fuzz([NUMPY], seed=3, cases=BLOCK + 1).outcomes[0].digest in digests
    assert fuzz([NUMPY], seed=4, cases=BLOCK + 1).outcomes[0].digest not in digests


def test_a_run_ends_with_its_time() -> None:
    fuzzed = fuzz([NUMPY], seconds=0.2)
    assert fuzzed.cases > 10
    assert fuzz([NUMPY], seconds=0).cases == 0


def test_a_run_ends_with_the_first_difference() -> None:
    other = backend("other", changed(extend_seq_lens=narrowed))
    fuzzed = fuzz([NUMPY, WRONG, other, TWIN], cases=ROUND)
    failed = [outcome for outcome in fuzzed.outcomes if outcome.failure is not None]
    assert 0 < len(failed) <= 2
    assert {outcome.plans for outcome in fuzzed.outcomes} == {fuzzed.cases}
    for outcome in failed:
        assert outcome.failure is not None
        assert outcome.failure.case.name.endswith(f", shrunk for {outcome.backend.name}")
        assert len(outcome.failure.case.inputs.prefix_lens) == 1


def test_it_needs_numpy_alone() -> None:
    blocked = ("torch", "jax", "hypothesis", "rich", "click", "matplotlib")
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({blocked}))\n"
        "from shared_ref.backends import NUMPY\n"
        "from shared_ref.conformance.fuzz import fuzz\n"
        "print(fuzz([NUMPY], cases=70).is_identical)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout == "True\n"


# The command.


def test_identical_backends(call: Callable[..., Result], directory: Path) -> None:
    result = call("fuzz", "--cases", "130", "--seed", "9", others=(TWIN, ABSENT))
    assert result.exit_code == 0
    assert result.stdout.startswith("Drawn cases of seed 9, 130 cases at most\n")
    assert "130 cases of 3 layouts" in result.stdout
    assert "no chip: pip install 'kvcanary[chip]'" in result.stdout
    assert result.stdout.endswith("Result: 2 identical, 1 unavailable\n")
    assert list(directory.iterdir()) == []


def test_time_bounds_a_run(call: Callable[..., Result]) -> None:
    result = call("fuzz", "--seconds", "0.3", "--backend", "twin")
    assert result.exit_code == 0
    assert result.stdout.startswith("Drawn cases of seed 0, 0.3 seconds at most\n")
    assert result.stdout.endswith("Result: 1 identical\n")


def test_a_difference_is_saved_small_and_replayed(call: Callable[..., Result], directory: Path) -> None:
    result = call("fuzz", "--cases", "1000", others=(WRONG, TWIN))
    assert result.exit_code == 1
    (saved,) = directory.iterdir()
    case = Case.load(saved)
    assert len(case.inputs.prefix_lens) == 1
    assert case.name.endswith(", shrunk for wrong")
    assert f"wrong failed on case '{case.name}'" in result.stdout
    replay = f"kvcanary conform --case {saved.name} --backend wrong"
    assert f"  saved as {saved.name}; to replay it:\n    {replay}\n" in result.stdout
    assert result.stdout.endswith("Result: 2 identical, 1 different\n")

    replayed = call(*shlex.split(replay)[1:], others=(WRONG, TWIN))
    assert replayed.exit_code == 1
    assert "Result: 1 different" in replayed.stdout
    mended = call(*shlex.split(replay)[1:], others=(backend("wrong"), TWIN))
    assert mended.exit_code == 0


def test_an_implementation_from_outside(call: Callable[..., Result], directory: Path) -> None:
    """It knows neither pages nor optional outputs."""
    (directory / "my_port.py").write_text(
        "from shared_ref import launch_canary_plan_kernels_reference as reference\n"
        "def launch(*, verify_plan_out, write_plan_out, req_pool_indices, prefix_lens, extend_seq_lens,\n"
        "    req_to_token, swa_window_size, full_to_swa_index_mapping, verify_capacity,\n"
        "    req_to_verify_expected_tokens, req_to_verify_expected_tokens_valid_lens,\n"
        "    kv_token_id_vs_position_offset):\n"
        "    reference(**locals())\n"
        "def wrong(**arguments):\n"
        "    launch(**arguments)\n"
        "    arguments['verify_plan_out'].verify_num_valid[0] = 3\n"
    )
    plain = ("fuzz", "--cases", "300", "--plain")
    assert call(*plain, "--impl", "my_port:launch").exit_code == 0
    raised = call("fuzz", "--cases", "300", "--impl", "my_port:launch")
    assert raised.exit_code == 1
    assert "the launch raised TypeError" in raised.stdout
    different = call(*plain, "--impl", "my_port:wrong")
    assert different.exit_code == 1
    assert " --impl my_port:wrong\n" in different.stdout


def test_json(call: Callable[..., Result], directory: Path) -> None:
    result = call("fuzz", "--cases", "1000", "--seed", "2", "--json", "report.json", others=(WRONG, ABSENT))
    assert result.exit_code == 1
    report = json.loads((directory / "report.json").read_text())
    assert report["source"] == {"seed": 2, "plain": False}
    assert report["configuration"] == {"seconds": None, "cases": 1000}
    assert 0 < report["counts"]["cases"] <= 1000
    assert report["identical"] is False
    numpy, wrong, absent = report["backends"]
    assert [numpy["verdict"], wrong["verdict"], absent["verdict"]] == [
        "identical",
        "different",
        "unavailable",
    ]
    assert numpy["plans"] == wrong["plans"] == report["counts"]["cases"]
    assert (directory / wrong["failure"]["saved_as"]).exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--backend", "triton"), "unknown backend triton: there are numpy, twin"),
        (("--require", "absent"), "required, but unavailable: absent: no chip"),
        (("--backend", "absent"), "no backend to run: absent: no chip"),
        (("--seconds", "0"), "Invalid value for '--seconds'"),
        (("--seconds", "nan"), "--seconds must be a number, got nan"),
        (("--seconds", "inf", "--cases", "1"), "--seconds must be a number, got inf"),
        (("--cases", "0"), "Invalid value for '--cases'"),
        (("--seed", "-1"), "Invalid value for '--seed'"),
        (("--impl", "nothing"), "'nothing' is not of the form package.module:function"),
        (("--json", "no/where.json"), "no/where.json: cannot be written"),
    ],
)
def test_bad_calls(call: Callable[..., Result], arguments: tuple[str, ...], text: str) -> None:
    others = (TWIN, ABSENT) if "absent" in arguments else (TWIN,)
    result = call("fuzz", *arguments, others=others)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert text in " ".join(result.stderr.split())

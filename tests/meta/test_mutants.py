"""The judge is judged: the conformance kit rejects every wrong implementation, and accepts the right one."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import oracle
import patching
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from mutants import EQUIVALENT, MUTANTS, STAGED_MUTANTS
from named_cases import NAMED_CASES, small_case, with_tokens
from patching import Edit, Mutant
from test_backends import staged_calls
from validation_table import ENTRIES, FRONTENDS, OFFSETS, Call, Frontend, is_output

import shared_ref
from shared_ref.backends import NUMPY, Backend
from shared_ref.conformance.case import Case
from shared_ref.conformance.golden import check_vector, vectors
from shared_ref.conformance.runner import Failure, Outcome, check, run
from shared_ref.conformance.strategies import LAYOUTS, cases, free_cases
from shared_ref.schema import LAUNCH_PLAN

ROUNDS, EXAMPLES = 5, 100
"""Most rounds of drawn cases, and the cases of each strategy in a round."""

NOT_DRAWN = {
    "total wraps in int32": "no drawn table holds 2**31 entries",
    "verify_total_out in int32": "likewise",
    "positions in int32": "no drawn table has 2**31 positions",
    "place's position in int32": "likewise",
    "counts saturate": "no poisoned count is near the largest int64",
}
NOT_NAMED: dict[str, str] = {}
NOT_GOLDEN = {
    "total wraps in int32": "the strict look for the first fault of 2**31 entries takes too long",
    "verify_total_out in int32": "likewise",
}
"""Mutants that a source of cases need not reject, and why. The named cases reject all."""


ROOMY = tuple(layout._replace(verify_capacity=256) for layout in LAYOUTS if layout.tokens is not None)
"""Where the entries of corrupt cases fit, and look tokens up."""


def drawn(strategy: st.SearchStrategy[Any], number: int, examples: int = EXAMPLES) -> list[Any]:
    """Examples of a strategy, the same in each run."""
    found: list[Any] = []

    @given(strategy)
    @seed(number)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def collect(example: Any) -> None:
        found.append(example)

    collect()
    return found


@functools.cache
def drawn_cases(number: int) -> tuple[Case, ...]:
    found = (drawn(strategy, number) for strategy in (cases(), free_cases(), cases(True, layouts=ROOMY)))
    return tuple(itertools.chain.from_iterable(found))


def named_cases() -> tuple[Case, ...]:
    tokens = with_tokens(0)
    tokens["req_to_verify_expected_tokens"] *= -1
    return smallest_first((*NAMED_CASES.values(), small_case("negative tokens", **tokens)))


def golden_cases() -> tuple[Case, ...]:
    return smallest_first(vector.case() for vector in vectors() if vector.launcher == LAUNCH_PLAN.name)


def smallest_first(given_cases: Iterable[Case]) -> tuple[Case, ...]:
    """Most mutants are gone when the largest batch comes."""
    return tuple(sorted(given_cases, key=lambda case: len(case.inputs.prefix_lens)))


def backend(mutant: Mutant) -> Backend:
    reference = patching.load(mutant.name, mutant.edits)
    return Backend(
        name=mutant.name,
        launch=reference.launch_canary_plan_kernels_reference,
        version=lambda: "wrong",
        note=mutant.story,
    )


def judged(wrong: tuple[Mutant, ...], given_cases: tuple[Case, ...]) -> dict[str, Outcome]:
    outcomes = run([NUMPY, *map(backend, wrong)], given_cases)
    return {outcome.backend.name: outcome for outcome in outcomes}


def drawn_rounds() -> Iterator[tuple[Case, ...]]:
    return (drawn_cases(number) for number in range(ROUNDS))


@pytest.mark.parametrize(
    ("rounds", "source", "exempt"),
    [
        pytest.param(drawn_rounds, "drawn cases", NOT_DRAWN, id="drawn"),
        pytest.param(lambda: iter([named_cases()]), "named cases", NOT_NAMED, id="named"),
        pytest.param(lambda: iter([golden_cases()]), "golden vectors", NOT_GOLDEN, id="golden"),
    ],
)
def test_the_kit_rejects_every_wrong_implementation(
    rounds: Callable[[], Iterator[tuple[Case, ...]]],
    source: str,
    exempt: dict[str, str],
    record_property: Any,
) -> None:
    surviving, launched = MUTANTS, 0
    for given_cases in rounds():
        outcomes = judged(surviving, given_cases)
        assert outcomes["numpy"].failure is None
        launched += outcomes["numpy"].plans
        surviving = tuple(mutant for mutant in surviving if outcomes[mutant.name].failure is None)
        if all(mutant.name in exempt for mutant in surviving):
            break
    tell(record_property, MUTANTS, surviving, "wrong implementations", f"{launched} {source}", exempt)
    assert [mutant.name for mutant in surviving if mutant.name not in exempt] == []


def tell(
    record_property: Any,
    wrong: tuple[Mutant, ...],
    surviving: tuple[Mutant, ...],
    what: str,
    by: str,
    exempt: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Put a tally at the end of the run (see conftest)."""
    left = "".join(f"; not {m.name!r}: {exempt.get(m.name, 'SURVIVES')}" for m in surviving)
    tally = f"{len(wrong) - len(surviving)} of {len(wrong)} {what} rejected by {by}{left}"
    print(tally)
    record_property("tally", tally)


def test_changes_that_no_plan_can_show_are_accepted() -> None:
    outcomes = judged(EQUIVALENT, (*drawn_cases(0), *named_cases()))
    assert [name for name, outcome in outcomes.items() if outcome.failure is not None] == []


def test_mutants_have_a_name_each_and_a_story() -> None:
    every = (*MUTANTS, *STAGED_MUTANTS, *EQUIVALENT)
    assert len({mutant.name for mutant in every}) == len(every)
    assert all(mutant.story for mutant in every)
    assert {*NOT_DRAWN, *NOT_NAMED, *NOT_GOLDEN} <= {mutant.name for mutant in every}
    assert len(MUTANTS) >= 30


@pytest.mark.parametrize("mutant", [m for m in MUTANTS if m.rule], ids=lambda m: m.name)
def test_the_judge_names_the_broken_rule(mutant: Mutant) -> None:
    """Among the first differences of one of the cases that it fails on."""
    rules = [
        rule
        for case in NAMED_CASES.values()
        if case.name != "2**32 entries" and (failure := check(backend(mutant).launch, case)) is not None
        for rule in first_rules(failure)
    ]
    assert any(mutant.rule in rule for rule in rules), set(rules)


def first_rules(failure: Failure) -> Iterator[str]:
    return (found.first[0].rule for found in failure.differences)


# Staged


@dataclasses.dataclass(frozen=True, eq=False)
class Staged:
    """What a staged launcher of a mutant does, against the oracle's."""

    frontend: Frontend

    @classmethod
    def of(cls, mutant: Mutant | None) -> Staged:
        numpy = FRONTENDS["numpy"]
        if mutant is None:
            return cls(numpy)
        reference = patching.load(mutant.name, mutant.edits)
        return cls(dataclasses.replace(numpy, package=reference.__name__))

    def is_wrong(self, launcher: str, call: Call) -> bool:
        expected, own = copied(call), copied(call)
        getattr(oracle, launcher)(**{k: v for k, v in expected.items() if k not in OPTIONAL_INTEGERS})
        try:
            got = self.frontend.launch(launcher, own)
        except Exception:  # whatever it raises, it does not conform
            return True
        return any(array.tobytes() != expected[name].tobytes() for name, array in got.items())


OPTIONAL_INTEGERS = ("req_to_token_stride0", "write_offsets_len", "write_req_capacity")


def copied(call: Call) -> Call:
    return {
        name: value.copy() if is_output(name) and value is not None else value for name, value in call.items()
    }


@functools.cache
def staged_examples() -> tuple[tuple[str, Call], ...]:
    """Both staged launchers' calls of drawn cases, with an `enable` of any sign."""
    found = drawn(st.tuples(free_cases(), st.sampled_from([1, 0, -1, 2])), 0, 200)
    calls = (staged_calls(case, enable) for case, enable in found)
    return tuple(pair for call in calls for pair in zip((OFFSETS, ENTRIES), call, strict=True))


def rejects(judge: Staged) -> bool:
    return any(judge.is_wrong(launcher, call) for launcher, call in staged_examples())


def test_the_staged_launchers_of_the_reference_are_accepted() -> None:
    assert not rejects(Staged.of(None))


def test_every_wrong_staged_launcher_is_rejected(record_property: Any) -> None:
    surviving = tuple(mutant for mutant in STAGED_MUTANTS if not rejects(Staged.of(mutant)))
    by = f"{len(staged_examples())} drawn calls"
    tell(record_property, STAGED_MUTANTS, surviving, "wrong staged launchers", by)
    assert surviving == ()


def test_the_staged_golden_vectors_reject_every_wrong_staged_launcher(record_property: Any) -> None:
    staged = [vector for vector in vectors() if vector.launcher != LAUNCH_PLAN.name]

    def passes(reference: Any) -> bool:
        launchers = {v.launcher: getattr(reference, f"{v.launcher}_reference") for v in staged}
        return all(check_vector(launchers[vector.launcher], vector).passed for vector in staged)

    assert passes(shared_ref)
    surviving = tuple(m for m in STAGED_MUTANTS if passes(patching.load(m.name, m.edits)))
    by = f"{len(staged)} golden vectors"
    tell(record_property, STAGED_MUTANTS, surviving, "wrong staged launchers", by, NOT_GOLDEN)
    assert [mutant.name for mutant in surviving if mutant.name not in NOT_GOLDEN] == []


def test_wrong_staged_launchers_are_right_in_one_launch() -> None:
    outcomes = judged(STAGED_MUTANTS, drawn_cases(0))
    assert [name for name, outcome in outcomes.items() if outcome.failure is not None] == []


# The table of mutants itself


def test_an_edit_whose_text_is_gone_is_an_error() -> None:
    with pytest.raises(AssertionError, match="has 0 times, not once"):
        patching.patched("batch", (Edit("batch", "no such text", ""),))
    with pytest.raises(AssertionError, match=r"has \d+ times, not once"):
        patching.patched("batch", (Edit("batch", "self", ""),))

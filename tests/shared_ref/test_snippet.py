"""A failure ends as the smallest batch, printed as a script that shows it again."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings
from named_cases import NAMED_CASES

import shared_ref
from shared_ref import launch_canary_plan_kernels_reference as reference
from shared_ref.conformance.case import Case, Launch
from shared_ref.conformance.snippet import assert_conforms, snippet
from shared_ref.conformance.strategies import cases, free_cases

CHECKOUT = Path(shared_ref.__file__).parents[1]


def one_longer(**arguments: Any) -> None:
    """The window reaches one further back."""
    window = arguments["swa_window_size"]
    reference(**arguments | {"swa_window_size": window + (window > 0)})


def seedless(**arguments: Any) -> None:
    reference(**arguments)
    arguments["write_plan_out"].write_seed_slot_indices[: len(arguments["prefix_lens"])] = -1


def tail_cleared(**arguments: Any) -> None:
    reference(**arguments)
    verify = arguments["verify_plan_out"]
    if verify.enable[0]:
        verify.verify_slot_indices[verify.verify_num_valid[0] :] = 0


def raises(**arguments: Any) -> None:
    if len(arguments["prefix_lens"]) and arguments["prefix_lens"].max() > 5:
        raise RuntimeError("no registers left")
    reference(**arguments)


def writes_inputs(**arguments: Any) -> None:
    reference(**arguments)
    arguments["prefix_lens"][:] = 0


WRONG = (one_longer, seedless, tail_cleared)


def rebuilt(script: str) -> Case:
    namespace: dict[str, Any] = {}
    exec(compile(script, "snippet", "exec"), namespace)
    return namespace["case"]


def assert_same_case(got: Case, want: Case) -> None:
    assert got.name == want.name
    assert got.before.digest() == want.before.digest()
    assert got.before.extras.keys() == want.before.extras.keys()
    assert got.inputs.keywords().keys() == want.inputs.keywords().keys()
    for name, value in want.inputs.keywords().items():
        other = got.inputs.keywords()[name]
        if not isinstance(value, np.ndarray):
            assert (type(other), other) == (type(value), value), name
            continue
        assert (other.dtype, other.shape) == (value.dtype, value.shape), name
        np.testing.assert_array_equal(other, value, name)
        if value.size and len(value) > 1:
            assert other.strides == value.strides, name


def case() -> Case:
    return NAMED_CASES["some of everything, translated and with tokens"]


@pytest.mark.parametrize("name", [name for name in NAMED_CASES if name != "2**32 entries"])
def test_a_snippet_builds_the_case_again(name: str) -> None:
    assert_same_case(rebuilt(snippet(NAMED_CASES[name])), NAMED_CASES[name])


@given(cases() | free_cases())
@settings(max_examples=40)
def test_a_snippet_builds_every_drawn_case_again(drawn: Case) -> None:
    assert_same_case(rebuilt(snippet(drawn)), drawn)


def test_plans_of_any_content_are_written_out() -> None:
    given_case = case()._replace(before=case().expected())
    script = snippet(given_case)
    assert "before = Plans(VerifyPlan(" in script
    assert_same_case(rebuilt(script), given_case)


def test_pages_and_optional_outputs_are_written_out() -> None:
    paged = snippet(NAMED_CASES["positions past int32 in vast pages"])
    assert "    page_size=2147483647,\n" in paged
    assert "seed=0, extras=('verify_total_out', 'faults_out'))" in paged
    former = snippet(NAMED_CASES["faults over the smallest place"])
    assert "\nfaults_out = np.full((8, 2), 5, np.int64)\nfaults_out[0, 1] = 0\n" in former
    assert "), {'faults_out': faults_out})\n" in former
    plain = snippet(case())
    assert "page_size" not in plain
    assert "extras" not in plain


def test_a_case_too_large_for_a_script_is_refused() -> None:
    with pytest.raises(ValueError, match=r"req_to_token has 2,097,152 cells, too many for a snippet"):
        snippet(NAMED_CASES["2**32 entries"])


def test_a_failure_on_a_large_case_says_how_to_keep_it() -> None:
    def wrong(**arguments: Any) -> None:
        reference(**arguments)
        arguments["verify_plan_out"].enable[0] = 1

    with pytest.raises(AssertionError) as caught:
        assert_conforms(wrong, NAMED_CASES["2**32 entries"])
    assert "use Case.save" in str(caught.value)


def test_conforming_is_silent() -> None:
    assert_conforms(reference, case())


def test_a_failure_names_the_implementation_the_element_and_the_rule() -> None:
    with pytest.raises(AssertionError) as caught:
        assert_conforms(seedless, case())
    text = str(caught.value)
    assert text.startswith(f"seedless does not conform on case {case().name!r}\n")
    assert "  write_seed_slot_indices: " in text
    assert "[0] request 0, row 1, position 15: expected 7054, got -1" in text
    assert "section 4, write rows: the seed is translate(req_to_token[row, end - 1])" in text
    assert "\nimport numpy as np\n" in text


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (raises, "the launch raised RuntimeError: no registers left"),
        (writes_inputs, "the launch wrote to its inputs: prefix_lens"),
    ],
)
def test_a_failure_without_differences_says_what_went_wrong(wrong: Launch, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        assert_conforms(wrong, case())


def test_the_failure_s_case_has_the_inputs_as_they_were() -> None:
    with pytest.raises(AssertionError) as caught:
        assert_conforms(writes_inputs, case())
    script = str(caught.value).partition("\n\n")[2].partition("\n\n")[2]
    assert "prefix_lens = np.array([16, 17, 9, 1, 40, 33, 0, 0], np.int64)" in script


def test_a_case_that_breaks_a_rule_is_nobodys_failure() -> None:
    inputs = dataclasses.replace(case().inputs, prefix_lens=np.zeros(3))
    with pytest.raises(ValueError, match=r"^kv-canary: prefix_lens must have dtype int64"):
        assert_conforms(reference, case()._replace(inputs=inputs))


@pytest.mark.parametrize(
    ("implementation", "line"),
    [
        (
            reference,
            "from shared_ref.reference import launch_canary_plan_kernels_reference as implementation",
        ),
        ("package.module:function", "from package.module import function as implementation"),
        ("package:holder.function", "from package import holder\n\nimplementation = holder.function"),
        (lambda **arguments: None, "implementation  # put yours here"),
        (None, "implementation  # put yours here"),
    ],
)
def test_a_snippet_imports_the_implementation(implementation: Any, line: str) -> None:
    assert line in snippet(case(), implementation)


# In a hypothesis test


def smallest_failure(wrong: Launch) -> str:
    """The text that a hypothesis test over the public strategies ends in."""

    @given(free_cases())
    @seed(1)
    @settings(
        max_examples=300,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    def judge(drawn: Case) -> None:
        assert_conforms(wrong, drawn)

    with pytest.raises(AssertionError) as caught:
        judge()
    return str(caught.value)


@pytest.mark.parametrize("wrong", WRONG)
def test_a_failure_shrinks_to_a_small_batch_that_its_snippet_shows(wrong: Launch, tmp_path: Path) -> None:
    text = smallest_failure(wrong)
    script = text[text.index("import numpy as np") :]
    namespace: dict[str, Any] = {}
    assert_conforming = "assert_conforms(implementation, case)\n"
    assert script.endswith(assert_conforming)
    exec(script.removesuffix(assert_conforming), namespace)
    inputs = namespace["case"].inputs
    assert len(inputs.prefix_lens) <= 2
    assert inputs.prefix_lens.sum() <= 4
    assert len(script.splitlines()) <= 30
    ended = run(script, tmp_path)
    assert ended.returncode == 1
    assert f"AssertionError: {wrong.__name__} does not conform" in ended.stderr


def test_a_snippet_of_the_reference_ends_well(tmp_path: Path) -> None:
    ended = run(snippet(case()), tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")


def run(script: str, directory: Path) -> subprocess.CompletedProcess[str]:
    file = directory / "again.py"
    file.write_text(script, encoding="utf-8")
    places = [str(CHECKOUT), str(Path(__file__).parent), str(CHECKOUT / "tests")]
    return subprocess.run(
        [sys.executable, str(file)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(places)},
    )

"""`kvcanary explain`: the batch in words and as a picture, and what is said of files that are none."""

from __future__ import annotations

import builtins
import dataclasses
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from named_cases import NAMED_CASES
from named_cases import small_case as larger_case

from shared_ref.conformance.case import Case, PlanInputs, Plans
from shared_ref.conformance.explain import explain, load_plans, save_plans
from shared_ref.conformance.strategies import free_cases
from shared_ref.faults import first_fault

COLUMNS = 16


def small_case(**changed: Any) -> Case:
    """Padding, a window, a row past the table, a negative extend, a prefix past the table, nothing cached."""
    inputs: dict[str, Any] = {
        "req_pool_indices": np.array([0, 2, 9, 3, 5, 4, 0, 0]),
        "prefix_lens": np.array([5, 6, 3, 2, 18, 0, -3, 4]),
        "extend_seq_lens": np.array([3, 1, 2, -4, 2, 5, 0, 1]),
        "req_to_token": np.arange(6 * COLUMNS, dtype=np.int32).reshape(6, COLUMNS),
        "swa_window_size": 4,
        "full_to_swa_index_mapping": 500 - np.arange(90),
        "verify_capacity": 20,
        "req_to_verify_expected_tokens": np.arange(1000, 1030, dtype=np.int32).reshape(5, 6),
        "req_to_verify_expected_tokens_valid_lens": np.array([9, 5, 9, 2, 0, 0, 5, 5]),
        "kv_token_id_vs_position_offset": 1,
    }
    return Case.poisoned("small", PlanInputs(**inputs | changed), write_req_capacity=10)


SMALL = """\
Case 'small': 8 requests
  req_to_token of 6 rows and 16 positions; a window of 4 tokens
  slots are translated through 90 slots: full pool -> this pool
  expected tokens of 5 rows and 6 columns, each at its position + 1
  8 verify entries for a capacity of 20: enable 1
  8 write rows of 10, 8 tokens

request 0: padding, row 0
  write    nothing: offset 0 stays, seed -1

request 1: row 2, prefix 6, extend 1
  window   positions 2 to 5; positions 0 to 1 windowed out
  verify   entries 0 to 3
    entry  position  slot       predecessor                   token
    0      2         34 -> 466  33 -> 467, before the window  1015
    1      3         35 -> 465  34 -> 466                     1016
    2      4         36 -> 464  35 -> 465                     not checked
    3      5         37 -> 463  36 -> 464                     not checked
  write    1 token, offsets 0 to 1; seed 37 -> 463, of position 5

request 2: row 9, counts as padding
  write    nothing: offset 1 stays, seed -1
  fault    request 2: row 9 is outside req_to_token (6 rows)

request 3: row 3, prefix 2, extend -4
  window   positions 0 to 1
  verify   entries 4 to 5
    entry  position  slot       predecessor  token
    4      0         48 -> 452  none         1019
    5      1         49 -> 451  48 -> 452    not checked
  write    nothing: offset 1 stays, seed -1
  fault    request 3: extend_seq_lens -4 is negative

request 4: row 5, prefix 18, extend 2
  window   positions 14 to 15; positions 0 to 13 windowed out
  verify   entries 6 to 7
    entry  position  slot       predecessor                   token
    6      14        94 -> 411  93 -> 411, before the window  not checked
    7      15        95 -> 411  94 -> 411                     not checked
  write    2 tokens, offsets 1 to 3; seed 95 -> 411, of position 15
  fault    request 4: prefix_lens 18 exceeds the 16 positions of req_to_token
  fault    request 4, position 13: slot 93 is outside full_to_swa_index_mapping (90 slots)
  fault    request 4, position 14: slot 94 is outside full_to_swa_index_mapping (90 slots)
  fault    request 4, position 15: slot 95 is outside full_to_swa_index_mapping (90 slots)

request 5: row 4, prefix 0, extend 5
  window   no position: nothing is cached
  write    5 tokens, offsets 3 to 8; seed -1: no chain to continue

requests 6 to 7: padding, row 0

Counted as faults
  request 2: row 9 is outside req_to_token (6 rows); 1 in all
  request 3: extend_seq_lens -4 is negative; 1 in all
  request 4: prefix_lens 18 exceeds the 16 positions of req_to_token; 1 in all
  request 4, position 14: slot 94 is outside full_to_swa_index_mapping (90 slots); 2 in all
"""


def wrong_plans(case: Case) -> Plans:
    plans = case.expected()
    plans.verify.verify_prev_slot_indices[0] = -1
    plans.verify.verify_slot_indices[12] = 7
    plans.write.write_seed_slot_indices[4] = 95
    return plans


def test_the_batch_in_words() -> None:
    assert explain(small_case()) == SMALL


def test_one_request() -> None:
    text = explain(small_case(), 4)
    heading, _, rest = text.partition("\n\n")
    assert heading == SMALL.partition("\n\n")[0]
    assert rest.startswith("request 4: row 5, prefix 18, extend 2\n")
    assert "\nrequest" not in rest


def test_a_plan_without_mapping_window_and_tokens() -> None:
    text = explain(NAMED_CASES["some of everything"], 3)
    assert "  req_to_token of 5 rows and 40 positions; full attention\n" in text
    assert "  slots are those of the table\n  no expected tokens\n" in text
    assert "  window   position 0\n  verify   entry 33\n" in text
    assert "    33     0         119   none         not checked\n" in text


def test_a_plan_that_does_not_fit() -> None:
    text = explain(small_case(verify_capacity=7))
    assert "  8 verify entries for a capacity of 7: enable 0: nothing is verified" in text
    assert "  verify   4 entries, of a plan that does not fit\n" in text
    assert "predecessor" not in text


def test_a_long_run_is_shortened() -> None:
    text = explain(NAMED_CASES["a window of 16"], 5)
    assert "    24     3         122 -> 7122  121 -> 7121  not checked\n    ... 10 more\n    35 " in text


def test_many_faults_of_a_request_are_shortened() -> None:
    text = explain(NAMED_CASES["a window of 16"], 4)
    assert text.count("  fault    request 4, position ") == 6
    assert "  fault    ... and more\n" in text


def test_many_requests_are_shortened() -> None:
    text = explain(NAMED_CASES["odd rows"])
    assert text.count("\nrequest ") == 8
    lens = np.arange(80)
    text = explain(
        larger_case("crowd", req_pool_indices=lens // 10 % 5, prefix_lens=lens, extend_seq_lens=lens)
    )
    assert "\n\nrequests 0 to 9: padding, row 0\n\nrequest 10: row 1" in text
    assert text.count("\nrequest ") == 60
    rows = np.ones(80, np.int64)
    text = explain(larger_case("crowd", req_pool_indices=rows, prefix_lens=lens, extend_seq_lens=lens))
    assert text.count("\nrequest ") == 64
    assert "\n... 16 more requests, to be asked for by number\n" in text


def test_a_window_past_the_table() -> None:
    text = explain(NAMED_CASES["a window past the table's end"], 3)
    assert "  window   no position: past the table's end\n" in text


FAULTS = "\n\nCounted as faults\n"


def test_faults_are_counted_where_there_are_any_or_the_case_counts_them() -> None:
    """Sentinels are counted with the others; by themselves they are no faults."""
    sentinels = {
        "req_pool_indices": np.array([2]),
        "prefix_lens": np.array([3]),
        "extend_seq_lens": np.array([1]),
        "req_to_token": np.full((6, COLUMNS), -1, np.int32),
        "req_to_verify_expected_tokens": None,
    }
    case = small_case(**sentinels)
    assert FAULTS not in explain(case)
    counting = Case.poisoned("counting", case.inputs, write_req_capacity=2, extras=("faults_out",))
    assert explain(counting).endswith(f"{FAULTS}  request 0, position 0: slot -1 is negative; 3 in all\n")
    faulty = small_case(**sentinels | {"extend_seq_lens": np.array([-1])})
    assert explain(faulty).partition(FAULTS)[2].splitlines() == [
        "  request 0: extend_seq_lens -1 is negative; 1 in all",
        "  request 0, position 0: slot -1 is negative; 3 in all",
    ]
    sound = dataclasses.replace(case.inputs, req_to_token=np.ones((6, COLUMNS), np.int32))
    sound_case = Case.poisoned("sound", sound, write_req_capacity=2, extras=("faults_out",))
    assert explain(sound_case).endswith(f"{FAULTS}  none\n")


@pytest.mark.parametrize("request_", [-1, 8])
def test_a_request_that_the_batch_has_not(request_: int) -> None:
    with pytest.raises(ValueError, match=f"there is no request {request_}: the batch has requests 0 to 7"):
        explain(small_case(), request_)


def test_an_empty_batch() -> None:
    case = NAMED_CASES["no requests, no room"]
    assert explain(case).startswith("Case 'no requests, no room': 0 requests\n")
    with pytest.raises(ValueError, match="there is no request 0: the batch has no requests"):
        explain(case, 0)


def test_a_case_that_breaks_a_rule_is_refused() -> None:
    case = small_case(verify_capacity=20)
    case = case._replace(inputs=dataclasses.replace(case.inputs, verify_capacity=3))
    with pytest.raises(ValueError, match=r"^kv-canary: .* verify_capacity=3 does not match"):
        explain(case)


@given(free_cases())
@settings(max_examples=60)
def test_every_request_is_told_of_and_the_first_fault_is_named(case: Case) -> None:
    text = explain(case)
    assert text.count("\n  verify ") == sum(
        bool(n) for n in np.diff([0, *_ends(case)]) if len(case.inputs.prefix_lens) <= 64
    )
    fault = first_fault(case.inputs.keywords())
    assert (fault is None) == ("  fault " not in text)
    if fault is not None:
        assert f"  fault    {fault}\n" in text


def _ends(case: Case) -> list[int]:
    """The offsets that the staged launcher finds, by way of the plan's positions."""
    from shared_ref.batch import requests

    return np.cumsum([r.verify_count for r in requests(case.inputs.keywords())]).tolist()


# Differences


DIFFERENCES = """\
Differences of the plans
  verify_slot_indices: 1 of 20 elements differ
    [12]: expected {untouched}, got 7
      section 4, enable == 1: everything behind the entries is left as it was
  verify_prev_slot_indices: 1 of 20 elements differ
    [0] request 1, row 2, position 2: expected 467, got -1
      section 4, verify entries: prev slot is the real predecessor, translate(req_to_token[row, p - 1]), \
also at the start of a window
  write_seed_slot_indices: 1 of 10 elements differ
    [4] request 4, row 5, position 15: expected 411, got 95
      section 5: positions past req_to_token do not exist, the seed is that of its last column
"""


def test_two_plans_first_differences_with_the_rules_they_break() -> None:
    case = small_case()
    text = explain(case, other=wrong_plans(case))
    untouched = case.before.verify.verify_slot_indices[12]
    assert text == SMALL + "\n" + DIFFERENCES.format(untouched=untouched)


def test_the_differences_of_one_request() -> None:
    case = small_case()
    text = explain(case, 4, other=wrong_plans(case))
    assert "[4] request 4, row 5, position 15: expected 411, got 95" in text
    assert "[12]: expected" in text  # nobody's
    assert "verify_prev_slot_indices" not in text


def test_the_differences_of_two_given_plans() -> None:
    case = small_case()
    text = explain(case, plans=wrong_plans(case), other=case.expected())
    assert "[0] request 1, row 2, position 2: expected -1, got 467" in text


def test_plans_without_a_difference() -> None:
    case = small_case()
    assert explain(case, other=case.expected()) == SMALL + "\nDifferences of the plans\n  none\n"


def test_the_differences_of_two_cases() -> None:
    other = small_case(
        swa_window_size=3,
        prefix_lens=np.array([5, 6, 3, 2, 18, 0, -3, 7]),
        req_to_verify_expected_tokens=None,
        req_to_verify_expected_tokens_valid_lens=None,
        full_to_swa_index_mapping=np.arange(91),
    )
    text = explain(small_case(), other=other)
    assert text.partition("Differences of the inputs\n")[2] == (
        "  prefix_lens: 1 of 8 elements differ\n"
        "    [7]: 4 here, 7 there\n"
        "  swa_window_size: 4 here, 3 there\n"
        "  full_to_swa_index_mapping: int64 [90] here, int64 [91] there\n"
        "  req_to_verify_expected_tokens: int32 [5, 6] here, None there\n"
        "  req_to_verify_expected_tokens_valid_lens: int64 [8] here, None there\n"
    )
    assert explain(small_case(), other=small_case()).endswith("Differences of the inputs\n  none\n")


def test_cases_that_differ_in_their_plans_before() -> None:
    case = small_case()
    text = explain(case, other=case._replace(before=case.expected()))
    assert "  before.verify_num_valid: 1 of 1 elements differ\n" in text


def test_saved_plans_are_loaded_again(tmp_path: Path) -> None:
    plans = wrong_plans(small_case())
    save_plans(plans, tmp_path / "plans.npz")
    with np.load(tmp_path / "plans.npz") as arrays:
        assert sorted(arrays) == sorted(f"after.{name}" for name in plans.buffers())
    assert load_plans(tmp_path / "plans.npz").digest() == plans.digest()


def test_saved_optional_outputs_are_loaded_again_and_compared(tmp_path: Path) -> None:
    inputs = small_case().inputs
    case = Case.poisoned("counting", inputs, write_req_capacity=10, extras=("verify_total_out",))
    plans = case.expected()
    plans.extras["verify_total_out"][0] = 9
    save_plans(plans, tmp_path / "plans.npz")
    text = explain(case, other=load_plans(tmp_path / "plans.npz"))
    assert "  verify_total_out: 1 of 1 elements differ\n    [0]: expected 8, got 9\n" in text


def test_plans_need_no_rich() -> None:
    code = (
        "import sys; sys.modules['rich'] = sys.modules['click'] = sys.modules['matplotlib'] = None\n"
        "import shared_ref.conformance.explain, shared_ref.conformance.snippet"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# The command


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    pytest.importorskip("click")
    pytest.importorskip("rich")
    from click.testing import CliRunner

    from shared_ref.commands.explain import explain as command

    monkeypatch.chdir(tmp_path)
    small_case().save("case.npz")
    save_plans(wrong_plans(small_case()), "plans.npz")
    return lambda *arguments: CliRunner().invoke(command, arguments)


def test_the_command_prints_the_batch(call: Callable[..., Any]) -> None:
    result = call("case.npz")
    assert (result.exit_code, result.output) == (0, SMALL)


def test_the_command_prints_one_request(call: Callable[..., Any]) -> None:
    result = call("case.npz", "--request", "4")
    assert (result.exit_code, result.output) == (0, explain(small_case(), 4))


def test_the_command_compares_plans(call: Callable[..., Any]) -> None:
    result = call("case.npz", "--other", "plans.npz")
    assert result.exit_code == 0
    assert result.output == explain(small_case(), other=wrong_plans(small_case()))


def test_the_command_shows_what_a_failure_is_saved_with(call: Callable[..., Any]) -> None:
    small_case().save("failed.npz", wrong_plans(small_case()).buffers())
    result = call("failed.npz")
    assert result.exit_code == 0
    assert result.output == explain(small_case(), other=wrong_plans(small_case()))
    assert call("failed.npz", "--other", "case.npz").output.endswith("none\n")


def test_the_command_compares_cases(call: Callable[..., Any]) -> None:
    small_case(swa_window_size=3).save("other.npz")
    result = call("case.npz", "--other", "other.npz")
    assert result.exit_code == 0
    assert result.output.endswith("Differences of the inputs\n  swa_window_size: 4 here, 3 there\n")


def test_the_command_is_kvcanarys(call: Callable[..., Any]) -> None:
    from shared_ref.cli import main
    from shared_ref.commands.explain import explain as command

    assert main.commands["explain"] is command


BAD_CALLS = {
    "no such file": (("nothing.npz",), "nothing.npz: cannot be read: No such file or directory"),
    "a directory": ((".",), ".: cannot be read: Is a directory"),
    "no archive": (("text.npz",), "text.npz: not a case that kvcanary has saved: it is no .npz file"),
    "plans for a case": (("plans.npz",), "plans.npz: not a case that kvcanary has saved: .* it lacks name"),
    "a refused case": (("refused.npz",), "refused.npz: the reference refuses this case: kv-canary: .*int64"),
    "no such request": (
        ("case.npz", "--request", "8"),
        "there is no request 8: the batch has requests 0 to 7",
    ),
    "a negative request": (("case.npz", "--request=-1"), "there is no request -1"),
    "no number": (("case.npz", "--request", "x"), "'x' is not a valid integer"),
    "no other file": (("case.npz", "--other", "nothing.npz"), "nothing.npz: cannot be read"),
    "other is no archive": (
        ("case.npz", "--other", "text.npz"),
        "neither plans nor a case: it is no .npz file",
    ),
    "other is anything": (
        ("case.npz", "--other", "odd.npz"),
        "neither plans nor a case: .*lacks after.verify_s",
    ),
    "other is half a case": (
        ("case.npz", "--other", "half.npz"),
        "neither plans nor a case: .*it lacks name",
    ),
    "an unknown picture": (("case.npz", "--plot", "picture.xyz"), "xyz.*is not supported|supported formats"),
    "a picture that is a directory": (("case.npz", "--plot", "."), ".: is a directory"),
    "a picture without a name": (("case.npz", "--plot", ""), "is a directory"),
    "plans that are none": (
        ("halves.npz",),
        "halves.npz: what an implementation made .*lacks after.verify_s",
    ),
    "a picture nowhere": (
        ("case.npz", "--plot", "no/where.png"),
        "where.png: cannot be written: No such file",
    ),
    "nothing": ((), "Missing argument"),
}


@pytest.mark.parametrize(("arguments", "said"), BAD_CALLS.values(), ids=BAD_CALLS.keys())
def test_a_bad_call_ends_with_2_and_says_why(
    call: Callable[..., Any], arguments: tuple[str, ...], said: str
) -> None:
    if "--plot" in arguments:
        pytest.importorskip("matplotlib")
    Path("text.npz").write_text("no archive")
    small_case(prefix_lens=np.zeros(8, np.float32)).save("refused.npz")
    np.savez("odd.npz", something=np.zeros(3))
    with np.load("case.npz") as arrays:
        np.savez("halves.npz", **arrays, **{"after.enable": np.zeros(1, np.int32)})
    np.savez("half.npz", **{"before.enable": np.zeros(1)})
    result = call(*arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert re.search(said, " ".join(result.output.split())), result.output


# The picture


def size_of(path: Path) -> tuple[int, int]:
    """Width and height of a PNG."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(data[16:20]), int.from_bytes(data[20:24])


@pytest.mark.parametrize(
    "case",
    [
        small_case(),
        small_case(verify_capacity=2),
        NAMED_CASES["no requests, no room"],
        NAMED_CASES["nothing but padding"],
        NAMED_CASES["extends whose sum wraps"],
        NAMED_CASES["everything odd"],
        NAMED_CASES["a table without columns"],
        NAMED_CASES["requests at the borders of chunks"],
    ],
    ids=lambda case: case.name,
)
def test_a_picture_is_drawn(case: Case, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from shared_ref.conformance.explain_plot import plot

    plot(case, tmp_path / "picture.png")
    width, height = size_of(tmp_path / "picture.png")
    assert 700 <= width <= 1200
    assert 200 <= height <= 4400


def test_what_goes_on_past_the_right_edge_is_in_the_legend(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from shared_ref.conformance.explain_plot import plot

    def legend(case: Case) -> str:
        plot(case, tmp_path / "picture.svg")
        return (tmp_path / "picture.svg").read_text()

    assert "goes on past the right edge" in legend(small_case(extend_seq_lens=np.full(8, 10_000)))
    assert "goes on past the right edge" not in legend(small_case(extend_seq_lens=np.ones(8, np.int64)))


def test_the_picture_of_one_request(call: Callable[..., Any]) -> None:
    pytest.importorskip("matplotlib")
    assert call("case.npz", "--plot", "all.png").exit_code == 0
    assert call("case.npz", "--plot", "one.png", "--request", "4").exit_code == 0
    assert size_of(Path("one.png"))[1] < size_of(Path("all.png"))[1]


def test_without_matplotlib_the_extra_is_named(
    call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **keywords: Any) -> Any:
        if name.partition(".")[0] == "matplotlib":
            raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
        return real(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", without)
    result = call("case.npz", "--plot", "picture.png")
    assert result.exit_code == 2
    assert "a plot needs matplotlib: pip install 'kvcanary[plot]'" in result.output
    assert not Path("picture.png").exists()

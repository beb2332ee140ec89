"""`kvcanary conform`, `vectors` and `doctor`: what they print, write and return."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from cli_support import ABSENT, TWIN, backend
from click.testing import CliRunner, Result

from shared_ref import cli
from shared_ref import launch_canary_plan_kernels_reference as reference
from shared_ref.backends import backends
from shared_ref.commands import doctor
from shared_ref.conformance.case import Case, PlanInputs
from shared_ref.conformance.golden import read_vectors, shipped_vectors_path
from shared_ref.conformance.replay import ReplayConfig
from shared_ref.conformance.report import PACKAGES

WRITE_REQ_CAPACITY = ReplayConfig().write_req_capacity
SAVED = "kvcanary-replay-step-0-full.npz"
LAUNCH = "launch_canary_plan_kernels"


def wrong_seed(**arguments: Any) -> None:
    """Wrong from the first step on, which has no prefix yet."""
    reference(**arguments)
    arguments["write_plan_out"].write_seed_slot_indices[0] = 7


def raises(**arguments: Any) -> None:
    raise RuntimeError("no [registers] left\n" + "\n".join(f"line {i}" for i in range(50)))


def writes_inputs(**arguments: Any) -> None:
    reference(**arguments)
    arguments["prefix_lens"][0] = 3


def row(result: Result, name: str) -> list[str]:
    """The words of a backend's line in the table, which is the first to begin with its name."""
    return next(line.split() for line in result.stdout.splitlines() if line.startswith(f"{name} "))


# Identical.


@pytest.mark.parametrize("width", [80, 100])
def test_identical_backends(call: Callable[..., Result], width: int) -> None:
    result = call("conform", "--steps", "2", others=(TWIN, ABSENT), width=width)
    assert result.exit_code == 0
    numpy, twin = row(result, "numpy"), row(result, "twin")
    assert numpy[:4] == ["numpy", "numpy", np.__version__, "2"]
    assert twin[:4] == ["twin", "twin", "1.0", "2"]
    assert numpy[4:7] == twin[4:7]  # entries, digest, verdict
    assert twin[6] == "identical"
    assert "the reference again" in result.stdout
    assert "Result: 2 identical, 1 unavailable" in result.stdout
    assert max(len(line.rstrip()) for line in result.stdout.splitlines()) <= width


def test_unavailable_backends_are_listed_with_the_reason(call: Callable[..., Result]) -> None:
    result = call("conform", "--steps", "1", others=(ABSENT,))
    assert result.exit_code == 0
    assert row(result, "absent") == ["absent", "-", "-", "-", "-", "unavailable", "-"]
    assert "no chip: pip install 'kvcanary[chip]'" in result.stdout


def test_configuration_and_counts_are_printed(call: Callable[..., Result]) -> None:
    result = call("conform", "--steps", "2")
    words = " ".join(result.stdout.split())
    assert "mooncake_conversation_300.jsonl, which comes with kvcanary: 300 requests" in words
    for text in ("steps 2", "swa window size 1,024", "plans 6", "prefix hits", "padding rows", "overflows"):
        assert text in words


def test_only_the_chosen_backends_run(call: Callable[..., Result]) -> None:
    wrong = backend("wrong", wrong_seed)
    result = call("conform", "--steps", "1", "--backend", "twin", others=(TWIN, wrong))
    assert result.exit_code == 0
    assert "Result: 1 identical" in result.stdout
    result = call("conform", "--steps", "1", "--backend", "twin", "--require", "numpy", others=(TWIN, wrong))
    assert "Result: 2 identical" in result.stdout


def test_a_trace_of_ones_own(call: Callable[..., Result], directory: Path) -> None:
    line = {"timestamp": 0, "input_length": 40, "output_length": 2, "hash_ids": [1]}
    (directory / "my.jsonl").write_text(json.dumps(line) + "\n")
    result = call("conform", "--trace", "my.jsonl")
    assert result.exit_code == 0
    assert "Trace my.jsonl: 1 requests" in result.stdout
    assert row(result, "twin")[3] == "2"  # fewer steps than asked for: the trace is over


# A difference.


def test_a_difference_is_explained_saved_and_replayed(call: Callable[..., Result], directory: Path) -> None:
    wrong = backend("wrong", wrong_seed)
    result = call("conform", "--steps", "2", others=(wrong,))
    assert result.exit_code == 1
    assert row(result, "wrong")[6] == "different"
    assert row(result, "numpy")[6] == "identical"
    assert "wrong failed on case 'replay step 0, full'" in result.stdout
    assert f"write_seed_slot_indices: 1 of {WRITE_REQ_CAPACITY} elements differ" in result.stdout
    assert "    [0] request 0, row 1: expected -1, got 7\n" in result.stdout
    assert "section 4, write rows: the seed is -1 where nothing is cached" in result.stdout
    assert f"kvcanary conform --case {SAVED} --backend wrong\n" in result.stdout
    assert [path.name for path in directory.iterdir()] == [SAVED]

    replayed = call("conform", "--case", SAVED, others=(wrong,))
    assert replayed.exit_code == 1
    assert "[0] request 0, row 1: expected -1, got 7" in replayed.stdout
    assert "saved as" not in replayed.stdout
    assert [path.name for path in directory.iterdir()] == [SAVED]

    explained = CliRunner().invoke(cli.main, ["explain", SAVED])
    assert explained.exit_code == 0
    assert "request 0, row 1: expected -1, got 7" in explained.output

    mended = call("conform", "--case", SAVED, others=(backend("wrong"),))
    assert mended.exit_code == 0
    assert f"Case 'replay step 0, full' of {SAVED}" in mended.stdout


def test_no_file_is_overwritten(call: Callable[..., Result], directory: Path) -> None:
    (directory / SAVED).write_text("mine")
    result = call("conform", "--steps", "1", others=(backend("wrong", wrong_seed),))
    assert "kvcanary conform --case kvcanary-replay-step-0-full-2.npz --backend wrong\n" in result.stdout
    assert (directory / SAVED).read_text() == "mine"
    assert Case.load(directory / "kvcanary-replay-step-0-full-2.npz").name == "replay step 0, full"


def test_a_case_that_two_backends_fail_on_is_saved_once(call: Callable[..., Result], directory: Path) -> None:
    result = call("conform", "--steps", "1", others=(backend("a", wrong_seed), backend("b", wrong_seed)))
    assert result.exit_code == 1
    assert [path.name for path in directory.iterdir()] == [SAVED]
    for name in ("a", "b"):
        assert result.stdout.count(f"kvcanary conform --case {SAVED} --backend {name}\n") == 1


def test_a_case_that_cannot_be_saved_is_still_a_difference(
    call: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(case: Case, path: Path, after: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Case, "save", save)
    result = call("conform", "--steps", "1", others=(backend("wrong", wrong_seed),))
    assert result.exit_code == 1
    assert f"{SAVED}: the case cannot be saved: No space left on device" in result.stderr
    assert "--case" not in result.stdout


def test_a_failure_whose_plans_no_file_can_hold_is_saved_without_them(
    call: Callable[..., Result], directory: Path
) -> None:
    def launch(**arguments: Any) -> Any:
        verify, write = vars(arguments["verify_plan_out"]), vars(arguments["write_plan_out"])
        return SimpleNamespace(**verify | {"enable": None}), SimpleNamespace(**write)

    result = call("conform", "--steps", "1", others=(backend("wrong", launch),))
    assert result.exit_code == 1
    with np.load(directory / SAVED) as arrays:
        assert not [name for name in arrays if name.startswith("after.")]


def test_any_object_with_the_fields_is_saved_as_plans(call: Callable[..., Result], directory: Path) -> None:
    def launch(**arguments: Any) -> Any:
        verify, write = vars(arguments["verify_plan_out"]), vars(arguments["write_plan_out"])
        return SimpleNamespace(**verify), SimpleNamespace(**write)

    assert call("conform", "--steps", "1", others=(backend("wrong", launch),)).exit_code == 1
    with np.load(directory / SAVED) as arrays:
        assert np.array_equal(arrays["after.enable"], arrays["before.enable"])


def test_a_plain_backend_that_got_no_case_is_not_called_identical(
    call: Callable[..., Result], directory: Path
) -> None:
    inputs = PlanInputs(
        req_pool_indices=np.array([1]),
        prefix_lens=np.array([3]),
        extend_seq_lens=np.array([1]),
        req_to_token=np.array([[0, 0], [4, 5]], np.int32),
        verify_capacity=4,
        page_size=2,
    )
    Case.poisoned("paged", inputs, write_req_capacity=1).save(directory / "paged.npz")
    plain = backend("plain", plain=True)
    result = call("conform", "--case", "paged.npz", others=(plain,))
    assert result.exit_code == 0
    assert "Result: 1 identical, 1 not judged" in result.stdout
    result = call("conform", "--case", "paged.npz", "--require", "plain", others=(plain,))
    assert result.exit_code == 2
    assert "not judged, for every case has pages or optional outputs: plain" in result.stderr

    paged = next(v.name for v in read_vectors().vectors if v.launcher == LAUNCH and not v.is_plain)
    result = call("vectors", "check", "--only", paged, "--backend", "plain", others=(plain,))
    assert result.exit_code == 2
    assert "not judged" in result.stdout


def test_a_backend_that_raises(call: Callable[..., Result], directory: Path) -> None:
    result = call("conform", "--steps", "2", others=(backend("broken", raises),))
    assert result.exit_code == 1
    assert row(result, "broken")[3:7] == ["1", "0", "-", "raised"]
    assert "the launch raised RuntimeError: no [registers] left" in result.stdout
    assert "line 4" in result.stdout
    assert "line 5" not in result.stdout
    assert (directory / SAVED).exists()


def test_a_backend_that_writes_to_its_inputs(call: Callable[..., Result]) -> None:
    result = call("conform", "--steps", "2", others=(backend("rude", writes_inputs), TWIN))
    assert result.exit_code == 1
    assert "the launch wrote to its inputs: prefix_lens" in result.stdout
    assert "Result: 2 identical, 1 wrote inputs" in result.stdout
    assert row(result, "twin")[3] == "2"


# JSON.


def test_json_has_everything(call: Callable[..., Result], directory: Path) -> None:
    others = (backend("wrong", wrong_seed), backend("broken", raises), ABSENT, TWIN)
    result = call("conform", "--steps", "2", "--json", "report.json", others=others)
    assert result.exit_code == 1
    report = json.loads((directory / "report.json").read_text())
    assert set(report) == {"environment", "source", "configuration", "counts", "identical", "backends"}
    assert set(report["environment"]["versions"]) == set(PACKAGES)
    assert report["environment"]["versions"]["numpy"] == np.__version__
    assert report["source"]["requests"] == 300
    assert report["configuration"]["steps"] == report["counts"]["steps"] == 2
    assert report["identical"] is False
    numpy, wrong, broken, absent, twin = report["backends"]
    assert [b["verdict"] for b in report["backends"]] == [
        "identical",
        "different",
        "raised",
        "unavailable",
        "identical",
    ]
    assert (numpy["steps"], numpy["plans"], numpy["failure"]) == (2, 6, None)
    assert numpy["entries"] == twin["entries"] == report["counts"]["entries"]
    assert numpy["sha256"] == twin["sha256"]
    assert 0 < numpy["median_seconds"] <= numpy["total_seconds"]
    assert wrong["failure"] == {
        "case": "replay step 0, full",
        "saved_as": SAVED,
        "error": None,
        "changed_inputs": [],
        "differences": [
            {
                "field": "write_seed_slot_indices",
                "size": WRITE_REQ_CAPACITY,
                "count": 1,
                "first": [
                    {
                        "field": "write_seed_slot_indices",
                        "index": 0,
                        "request": 0,
                        "row": 1,
                        "position": None,
                        "expected": -1,
                        "actual": 7,
                        "untouched": False,
                        "rule": "section 4, write rows: the seed is -1 where nothing is cached",
                    }
                ],
            }
        ],
    }
    assert broken["failure"]["error"].endswith("line 49")
    assert (absent["unavailable"], absent["version"]) == ("no chip: pip install 'kvcanary[chip]'", None)


def test_json_of_a_case(call: Callable[..., Result], directory: Path) -> None:
    small_case().save("small.npz")
    result = call("conform", "--case", "small.npz", "--json", "report.json")
    assert result.exit_code == 0
    report = json.loads((directory / "report.json").read_text())
    assert report["source"] == {"case": "small.npz", "name": "small"}
    assert report["configuration"]["verify_capacity"] == 4
    assert report["identical"] is True


# Bad calls.


def small_case(**changed: Any) -> Case:
    inputs = PlanInputs(
        req_pool_indices=np.array([1]),
        prefix_lens=np.array([3]),
        extend_seq_lens=np.array([1]),
        req_to_token=np.arange(16, dtype=np.int32).reshape(2, 8),
        verify_capacity=4,
    )
    return Case.poisoned("small", dataclasses.replace(inputs, **changed), write_req_capacity=2)


def assert_bad_call(result: Result, *texts: str) -> None:
    assert result.exit_code == 2
    assert result.stdout == ""
    for text in texts:
        assert text in result.stderr


def test_unknown_backends(call: Callable[..., Result]) -> None:
    for option in ("--backend", "--require"):
        assert_bad_call(
            call("conform", option, "triton"), "Error: unknown backend triton: there are numpy, twin\n"
        )


def test_a_required_backend_that_is_unavailable(call: Callable[..., Result]) -> None:
    assert_bad_call(
        call("conform", "--require", "absent", "--require", "numpy", others=(ABSENT,)),
        "Error: required, but unavailable: absent: no chip: pip install 'kvcanary[chip]'\n",
    )


def test_nothing_to_run(call: Callable[..., Result]) -> None:
    assert_bad_call(
        call("conform", "--backend", "absent", others=(ABSENT,)), "Error: no backend to run: absent: no chip"
    )


@pytest.mark.parametrize("steps", ["0", "-3", "many"])
def test_steps_that_are_no_number_of_steps(call: Callable[..., Result], steps: str) -> None:
    assert_bad_call(call("conform", "--steps", steps), "Invalid value for '--steps'")


def test_a_trace_that_does_not_exist(call: Callable[..., Result]) -> None:
    assert_bad_call(call("conform", "--trace", "no.jsonl"), "Error: no.jsonl: cannot be read: No such file")


def test_a_malformed_trace_is_named_with_line_and_field(call: Callable[..., Result], directory: Path) -> None:
    good = {"timestamp": 0, "input_length": 40, "output_length": 2, "hash_ids": [1]}
    lines = [json.dumps(good), json.dumps(good | {"output_length": "two"})]
    (directory / "bad.jsonl").write_text("\n".join(lines))
    assert_bad_call(call("conform", "--trace", "bad.jsonl"), "Error: bad.jsonl:2: output_length: found 'two'")


def test_a_case_goes_with_neither_trace_nor_steps(call: Callable[..., Result]) -> None:
    assert_bad_call(
        call("conform", "--case", "x.npz", "--steps", "3", "--trace", "t.jsonl"),
        "Error: --case judges one saved case: it does not go with --trace or --steps\n",
    )


def test_unreadable_cases(call: Callable[..., Result], directory: Path) -> None:
    assert_bad_call(call("conform", "--case", "no.npz"), "Error: no.npz: cannot be read: No such file")
    (directory / "text.npz").write_text("not at all")
    np.save(directory / "array.npy", np.arange(3))
    for name in ("text.npz", "array.npy"):
        assert_bad_call(
            call("conform", "--case", name),
            f"Error: {name}: not a case that kvcanary has saved: it is no .npz file\n",
        )
    np.savez(directory / "other.npz", name="other")
    assert_bad_call(call("conform", "--case", "other.npz"), "lacks req_pool_indices, prefix_lens")
    small_case().save("cut.npz")
    saved = (directory / "cut.npz").read_bytes()
    (directory / "cut.npz").write_bytes(saved[: len(saved) // 2])
    assert_bad_call(call("conform", "--case", "cut.npz"), "cut.npz: not a case that kvcanary has saved")


def test_a_case_that_breaks_a_rule(call: Callable[..., Result]) -> None:
    small_case(prefix_lens=np.array([3, 4])).save("odd.npz")
    assert_bad_call(
        call("conform", "--case", "odd.npz"),
        "Error: odd.npz: the reference refuses this case: kv-canary: prefix_lens length must be 1, got 2\n",
    )


def test_a_report_that_cannot_be_written_is_found_out_before_the_run(call: Callable[..., Result]) -> None:
    assert_bad_call(
        call("conform", "--steps", "1", "--json", "nowhere/report.json"),
        "Error: nowhere/report.json: cannot be written: No such file or directory\n",
    )


# Implementations from outside.


PORT = """
from shared_ref import launch_canary_plan_kernels_reference, launch_plan_offsets_kernel_reference as offsets

def launch(**arguments):
    launch_canary_plan_kernels_reference(**arguments)

def returning(*, verify_plan_out, write_plan_out, **inputs):
    plans = [type(p)(**{f.name: getattr(p, f.name).copy() for f in p.fields()})
             for p in (verify_plan_out, write_plan_out)]
    launch(verify_plan_out=plans[0], write_plan_out=plans[1], **inputs)
    return plans

def wrong(**arguments):
    launch(**arguments)
    arguments["write_plan_out"].write_seed_slot_indices[0] = 7
"""


@pytest.fixture
def port(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the current directory."""
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.delitem(sys.modules, "port", raising=False)
    (directory / "port.py").write_text(PORT)


@pytest.mark.usefixtures("port")
def test_an_implementation_is_judged_like_a_backend(call: Callable[..., Result]) -> None:
    paths = ("--impl", "port:launch", "--impl", "port:returning", "--impl", "port:launch")
    result = call("conform", "--steps", "2", *paths)
    assert result.exit_code == 0
    assert row(result, "port:launch")[4:6] == row(result, "port:returning")[4:6]
    assert "Result: 2 identical" in result.stdout  # no backend, since none is named
    result = call("conform", "--steps", "2", "--impl", "port:wrong", "--backend", "numpy")
    assert f"kvcanary conform --case {SAVED} --impl port:wrong\n" in result.stdout
    assert result.exit_code == 1
    assert "port:wrong failed on case 'replay step 0, full'" in result.stdout
    assert "Result: 1 identical, 1 different" in result.stdout
    result = call("conform", "--case", SAVED, "--impl", "port:wrong", "--impl", "port:launch")
    assert result.exit_code == 1
    assert "[0] request 0, row 1: expected -1, got 7" in result.stdout


@pytest.mark.usefixtures("port")
@pytest.mark.parametrize("command", [("conform", "--steps", "1"), ("vectors", "check")])
def test_an_implementation_that_is_not_there(call: Callable[..., Result], command: tuple[str, ...]) -> None:
    assert_bad_call(
        call(*command, "--impl", "port:lunch"),
        "Error: --impl 'port:lunch': port has no 'lunch': there are ",
    )
    assert_bad_call(call(*command, "--impl", "harbour:launch"), "there is no module 'harbour' in ")


# Golden vectors.


OFFSETS = ("--launcher", "launch_plan_offsets_kernel")


def test_vectors_list_names_each_with_its_story(call: Callable[..., Result]) -> None:
    result = call("vectors", "list", width=160)
    assert result.exit_code == 0
    *lines, empty, total = result.stdout.rstrip().splitlines()
    assert empty == ""
    found = read_vectors()
    assert [line.split()[0] for line in lines] == [vector.name for vector in found.vectors]
    assert all(vector.story in line for line, vector in zip(lines, found.vectors, strict=True))
    assert total.startswith(f"{len(found.vectors)} vectors of {len(found.rules)} rules, ")


def test_vectors_export_copies_the_set_and_overwrites_nothing(
    call: Callable[..., Result], directory: Path
) -> None:
    result = call("vectors", "export", "out/set")
    assert (result.exit_code, result.stdout) == (0, f"{len(read_vectors().vectors)} vectors in out/set\n")
    for path in shipped_vectors_path().iterdir():
        assert (directory / "out" / "set" / path.name).read_bytes() == path.read_bytes()
    assert_bad_call(
        call("vectors", "export", "out"), "Error: out: there are files already, and none is overwritten\n"
    )
    (directory / "file").write_text("mine")
    assert_bad_call(call("vectors", "export", "file"), "Error: file: cannot be written: ")


def test_vectors_check_of_the_shipped_and_of_an_exported_set(call: Callable[..., Result]) -> None:
    result = call("vectors", "check", others=(TWIN, ABSENT))
    assert result.exit_code == 0
    assert "Vectors, which come with kvcanary: " in result.stdout
    assert "absent: no chip: pip install 'kvcanary[chip]'" in result.stdout
    assert row(result, "numpy")[3:6] == row(result, "twin")[3:6]  # passed, failed, digest
    assert row(result, "twin")[4] == "0"
    assert "Result: 2 identical, 1 unavailable" in result.stdout
    call("vectors", "export", "set")
    result = call("vectors", "check", "set", "--backend", "twin")
    assert result.exit_code == 0
    assert "Vectors of set: " in result.stdout


@pytest.mark.usefixtures("port")
def test_vectors_check_explains_and_repeats_a_failure(call: Callable[..., Result]) -> None:
    result = call("vectors", "check", "--impl", "port:wrong")
    assert result.exit_code == 1
    assert "port:wrong failed on vector prefix-ends-on-a-page-boundary\n  Prefixes of" in result.stdout
    assert "    [0] request 0, row 2, position 15: expected 23, got 7\n" in result.stdout
    assert "      section 4, write rows: the seed is translate(" in result.stdout
    assert re.search(r"port:wrong failed on \d+ more: ", result.stdout)
    again = "kvcanary vectors check --only prefix-ends-on-a-page-boundary --impl port:wrong\n"
    assert f"to repeat it: {again}" in result.stdout
    result = call(*again.split()[1:])
    assert result.exit_code == 1
    assert row(result, "port:wrong")[-5:-3] == ["0", "1"]


@pytest.mark.usefixtures("port")
def test_vectors_check_of_a_staged_launcher(call: Callable[..., Result]) -> None:
    result = call("vectors", "check", *OFFSETS, "--impl", "port:offsets")
    assert result.exit_code == 0
    assert "4 of launch_plan_offsets_kernel" in result.stdout
    result = call("vectors", "check", *OFFSETS, "--impl", "port:launch")
    assert result.exit_code == 1
    assert "the launch raised TypeError" in result.stdout
    assert "vectors check --launcher launch_plan_offsets_kernel --only staged-offsets" in result.stdout


def test_vectors_check_writes_a_report(call: Callable[..., Result], directory: Path) -> None:
    others = (backend("wrong", wrong_seed), backend("broken", raises), ABSENT)
    result = call("vectors", "check", "--json", "report.json", others=others)
    assert result.exit_code == 1
    report = json.loads((directory / "report.json").read_text())
    judged = read_vectors().of("launch_canary_plan_kernels")
    assert set(report) == {"environment", "source", "configuration", "counts", "identical", "backends"}
    assert report["environment"]["versions"]["numpy"] == np.__version__
    assert report["source"] == {
        "vectors": str(shipped_vectors_path()),
        "launcher": "launch_canary_plan_kernels",
    }
    assert report["configuration"] == {"format_version": 1, "contract_version": 2}
    assert report["counts"]["vectors"] == len(judged)
    assert report["identical"] is False
    numpy, wrong, broken, absent = report["backends"]
    assert [b["verdict"] for b in report["backends"]] == [
        "identical",
        "different",
        "different",
        "unavailable",
    ]
    assert (numpy["passed"], numpy["failed"], numpy["failures"]) == (len(judged), 0, [])
    assert [v["sha256"] for v in numpy["vectors"]] == [vector.digest for vector in judged]
    assert all(v["sha256"] == v["expected_sha256"] and v["passed"] for v in numpy["vectors"])
    assert wrong["failed"] == len(wrong["failures"]) == len(judged) - wrong["passed"] > 0
    first = wrong["failures"][0]
    assert first["vector"] == judged[0].name
    assert first["rules"] == list(judged[0].rules)
    assert first["differences"][0]["first"][0]["actual"] == 7
    assert broken["failures"][0]["error"].startswith("RuntimeError: no [registers] left")
    assert broken["vectors"][0]["sha256"] is None
    assert (absent["unavailable"], absent["version"], absent["vectors"]) == (
        "no chip: pip install 'kvcanary[chip]'",
        None,
        [],
    )


def test_bad_calls_of_vectors_check(call: Callable[..., Result], directory: Path) -> None:
    assert_bad_call(
        call("vectors", "check", "nowhere"), "Error: nowhere/manifest.json: cannot be read: No such"
    )
    assert_bad_call(
        call("vectors", "check", "--only", "x", "--only", "empty-batch"),
        "Error: there is no vector x of this launcher: kvcanary vectors list\n",
    )
    assert_bad_call(call("vectors", "check", "--backend", "triton"), "Error: unknown backend triton")
    assert_bad_call(
        call("vectors", "check", *OFFSETS), "Error: backends announce no launch_plan_offsets_kernel: name a"
    )
    assert_bad_call(call("vectors", "check", "--json", "no/report.json"), "Error: no/report.json: cannot be")


def test_the_guide_names_every_field_of_both_reports(call: Callable[..., Result], directory: Path) -> None:
    page = (Path(cli.__file__).parents[1] / "docs" / "conformance.md").read_text()
    others = (backend("wrong", wrong_seed),)
    call("conform", "--steps", "1", "--json", "conform.json", others=others)
    call("vectors", "check", "--json", "vectors.json", others=others)

    def fields(value: Any) -> set[str]:
        if isinstance(value, list):
            return {name for item in value for name in fields(item)}
        if not isinstance(value, dict):
            return set()
        return {*value, *(name for item in value.values() for name in fields(item))}

    for name in ("conform", "vectors"):
        report = json.loads((directory / f"{name}.json").read_text())
        of_their_own = {*report["environment"]["versions"], *report["counts"], *report["configuration"]}
        for field in fields(report) - of_their_own:
            assert f"`{field}`" in page, field


# Doctor, and the program itself.


def test_doctor(call: Callable[..., Result]) -> None:
    result = call("doctor", others=(TWIN, ABSENT))
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["numpy", np.__version__] in lines
    assert ["twin", "available:", "twin", "1.0"] in lines
    assert "absent  unavailable: no chip: pip install 'kvcanary[chip]'" in result.stdout
    for name in (*PACKAGES, "python", "CPU", "torch", "jax"):
        assert any(line[:1] == [name] for line in lines)


def test_doctor_survives_broken_installations(
    call: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_library() -> list[str]:
        raise OSError("libcudart.so.12: cannot open shared object file")

    monkeypatch.setitem(sys.modules, "jax", None)
    monkeypatch.setattr(doctor, "_torch_devices", no_library)
    result = call("doctor")
    assert result.exit_code == 0
    assert "torch  OSError: libcudart.so.12" in result.stdout
    assert "jax    jax is not installed" in result.stdout


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


CALL = "from shared_ref.cli import main; main()"


def test_help_imports_no_framework() -> None:
    process = python(
        "import sys; from shared_ref.cli import main; main(['conform', '--help'], standalone_mode=False); "
        "print(sorted({'torch', 'jax', 'triton'} & {*sys.modules}))"
    )
    assert process.returncode == 0
    assert "--require NAME" in process.stdout
    assert process.stdout.endswith("[]\n")


def test_every_command_is_there() -> None:
    assert set(cli.main.commands) == {"conform", "doctor", "explain", "fuzz", "vectors"}


def test_version(call: Callable[..., Result]) -> None:
    result = call("--version")
    assert result.exit_code == 0
    assert result.stdout.startswith("kvcanary, version ")


@pytest.mark.parametrize("package", ["click", "rich"])
def test_a_missing_library_names_the_extra(package: str) -> None:
    process = python(f"import sys; sys.modules[{package!r}] = None; {CALL}")
    assert process.returncode == 2
    assert process.stderr == (
        "kvcanary: the command line needs click and rich: pip install 'kvcanary[cli]'\n"
    )


def test_the_program_itself(directory: Path) -> None:
    """Every backend of the real registry, in a process of its own; without a terminal no progress bar."""
    arguments = ["kvcanary", "conform", "--steps", "1", "--require", "numpy", "--json", "report.json"]
    process = python(f"import sys; sys.argv = {arguments}; {CALL}")
    assert (process.returncode, process.stderr) == (0, "")
    judged = json.loads((directory / "report.json").read_text())["backends"]
    assert [b["name"] for b in judged] == list(backends())
    assert {b["sha256"] for b in judged if b["unavailable"] is None} == {judged[0]["sha256"]}
    for b in judged:
        assert b["verdict"] == ("identical" if backends()[b["name"]].unavailable() is None else "unavailable")

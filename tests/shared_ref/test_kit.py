"""Implementations from outside: by their path, as a library, through an entry point; and the guide to it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

import shared_ref
from shared_ref import conformance
from shared_ref.conformance import (
    Case,
    ImplementationError,
    check,
    check_vector,
    implementation_backend,
    load_implementation,
    vectors,
)
from shared_ref.conformance.golden import shipped_vectors_path
from shared_ref.conformance.strategies import PLAIN_LAYOUTS, free_cases

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "my_backend"
PAGE = (ROOT / "docs" / "conformance.md").read_text()
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    return [text for name, text in FENCE.findall(PAGE) if name == language]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write a module into the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])

    def write(name: str, text: str) -> None:
        monkeypatch.delitem(sys.modules, name, raising=False)
        (tmp_path / f"{name}.py").write_text(text)

    return write


# By path.


def test_a_function_of_the_current_directory(module: Any) -> None:
    module(
        "port_one",
        "from shared_ref import launch_canary_plan_kernels_reference as launch\n"
        "class Port:\n    launch = staticmethod(launch)\n",
    )
    for path in ("port_one:launch", "port_one:Port.launch"):
        assert load_implementation(path) is shared_ref.launch_canary_plan_kernels_reference


def test_a_backend_has_the_path_for_a_name_and_the_package_s_version(module: Any) -> None:
    module("port_two", "__version__ = '3.1'\ndef launch(**arguments): ...\n")
    backend = implementation_backend("port_two:launch")
    assert (backend.name, backend.version(), backend.unavailable()) == (
        "port_two:launch",
        "port_two 3.1",
        None,
    )
    module("port_three", "def launch(**arguments): ...\n")
    assert implementation_backend("port_three:launch").version() == "port_three"


@pytest.mark.parametrize("path", ["", "port", "port:", ":launch", "port.launch"])
def test_a_path_of_another_form(path: str) -> None:
    with pytest.raises(ImplementationError) as raised:
        load_implementation(path)
    assert str(raised.value) == f"{path!r} is not of the form package.module:function"


def test_a_path_that_leads_nowhere(module: Any, tmp_path: Path) -> None:
    module("port_four", "import json\nTABLE = {}\ndef launch(**arguments): ...\n")
    module("port_five", "import no_such_library\n")
    module("port_six", "1 / 0\n")
    module("port_seven", "raise SystemExit(0)\n")
    module("port_eight", "def __getattr__(name):\n    raise RuntimeError(name)\n")
    for path, message in (
        ("port_none:f", f"there is no module 'port_none' in {tmp_path} or where Python looks"),
        ("port_none.a.b:f", f"there is no module 'port_none' in {tmp_path} or where Python looks"),
        ("port_four:lunch", "port_four has no 'lunch': there are launch"),
        ("port_four:launch.x", "port_four.launch has no 'x'"),
        ("port_five:f", "port_five does not import: No module named 'no_such_library'"),
        ("port_six:f", "port_six does not import: ZeroDivisionError: division by zero"),
        ("port_seven:f", "port_seven does not import: SystemExit: 0"),
        ("port_eight:f", "port_eight has no 'f'"),
    ):
        with pytest.raises(ImplementationError) as raised:
            load_implementation(path)
        assert str(raised.value) == f"{path!r}: {message}"
    with pytest.raises(ImplementationError, match=r"^'port_four:TABLE' is a dict, which cannot be called$"):
        load_implementation("port_four:TABLE")


# As a library.


def test_every_public_name_is_there_and_documented() -> None:
    for name in conformance.__all__:
        assert getattr(conformance, name).__doc__, name
    for name in ("Case", "PlanInputs", "Plans", "Backend", "backends", "check", "run", "compare", "vectors"):
        assert name in conformance.__all__


def test_the_library_needs_numpy_alone() -> None:
    code = (
        "import sys; import shared_ref.conformance as kit; kit.vectors(); kit.backends(); "
        "print({'hypothesis', 'click', 'rich', 'torch', 'jax'} & {*sys.modules})"
    )
    assert python("-c", code).stdout == "set()\n"


def python(
    *arguments: str, path: tuple[Path, ...] = (), cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Python with this checkout's packages and `path`."""
    searched = os.pathsep.join(map(str, (*path, ROOT)))
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": searched, "COLUMNS": "100"},
        cwd=cwd,
        check=False,
    )


# The example, and the entry point.


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(EXAMPLE)
    return load_implementation("my_backend:launch")


def test_the_example_ends_in_the_vectors_bytes(example: Any) -> None:
    judged = [v for v in vectors() if v.launcher == "launch_canary_plan_kernels" and v.is_plain]
    assert [v.name for v in judged if not check_vector(example, v).passed] == []


def test_the_example_equals_the_reference(example: Any) -> None:
    @given(free_cases(layouts=PLAIN_LAYOUTS))
    @settings(max_examples=100)
    def judge(case: Case) -> None:
        assert check(example, case) is None

    judge()


def announced(directory: Path, entry_points: dict[str, str]) -> Path:
    """A directory with an installed distribution's metadata: it announces these backends."""
    info = directory / "my_backend-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-backend\nVersion: 0.1.0\n")
    lines = [f"{name} = {value}" for name, value in entry_points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[kvcanary.backends]", *lines, ""]))
    return directory


def test_a_third_party_s_backend_is_listed_and_judged(tmp_path: Path) -> None:
    pytest.importorskip("click")
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    entry_points = project["entry-points"]["kvcanary.backends"]
    site = announced(tmp_path, entry_points | {"my-broken-one": "my_backend:NO_SUCH_THING"})
    (name,) = entry_points

    def kvcanary(*arguments: str) -> subprocess.CompletedProcess[str]:
        call = "import sys; from shared_ref.cli import main; main(sys.argv[1:])"
        return python("-c", call, *arguments, path=(site, EXAMPLE), cwd=tmp_path)

    doctor = kvcanary("doctor").stdout
    assert f"{name} " in doctor
    assert re.search(r"my-backend +available: my_backend 0\.1\.0, numpy", doctor)
    assert re.search(r"my-broken-one +unavailable: its entry point 'my_backend:NO_SUCH_THING'", doctor)

    judging = ("vectors", "check", "--require", name, "--backend", "numpy")
    done = kvcanary(*judging, "--plain", "--json", "vectors.json")
    assert (done.returncode, done.stderr) == (0, "")
    mine, reference = sorted(
        json.loads((tmp_path / "vectors.json").read_text())["backends"], key=lambda b: b["name"]
    )
    note = "vectorised numpy; judged without pages and optional outputs"
    assert (mine["name"], mine["verdict"], mine["note"]) == (name, "identical", note)
    assert mine["sha256"] == reference["sha256"]

    done = kvcanary("vectors", "check", "--require", name)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"my-backend: {note}" in done.stdout
    assert re.search(rf"^my-backend .* {mine['passed']} +0 ", done.stdout, re.MULTILINE)
    done = kvcanary("fuzz", "--require", name, "--cases", "200")
    assert (done.returncode, done.stderr) == (0, "")

    as_a_function = kvcanary("vectors", "check", "--impl", "my_backend:launch")
    assert as_a_function.returncode == 1
    assert "unexpected keyword argument 'page_size'" in as_a_function.stdout
    assert "To leave out pages and optional outputs: --plain, or Backend(plain=True)." in as_a_function.stdout

    done = kvcanary("conform", "--steps", "3", "--backend", name, "--impl", "my_backend:launch")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Result: 2 identical" in done.stdout


# The guide.


def test_the_guide_s_code_runs(
    example: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("click")
    from click.testing import CliRunner

    from shared_ref.cli import main

    monkeypatch.chdir(tmp_path)
    exec(compile("\n".join(blocks("python")), "docs/conformance.md", "exec"), {})
    assert capsys.readouterr().out == "None\n"
    shown = CliRunner().invoke(main, ["explain", "step-4711.npz"]).output
    assert "step 4711" in shown
    assert "prefix_lens 9 exceeds the 8 positions of req_to_token" in shown


def test_the_guide_s_entry_point_is_the_example_s() -> None:
    (block,) = blocks("toml")
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    assert tomllib.loads(block)["project"]["entry-points"] == project["entry-points"]


def test_the_guide_s_manifest_entry_is_the_shipped_one() -> None:
    (block,) = blocks("json")
    shown = json.loads(block)
    manifest = json.loads((shipped_vectors_path() / "manifest.json").read_text())
    assert shown == next(entry for entry in manifest["vectors"] if entry["name"] == shown["name"])
    for field in (*manifest, *shown, *shown["inputs"]["req_to_token"]):
        assert f"`{field}`" in PAGE


def test_the_guide_names_the_library_s_functions() -> None:
    for name in re.findall(r"^\| (`.*?`) \|", PAGE.partition("## As a library")[2], re.MULTILINE)[:8]:
        for function in re.findall(r"`(\w+)\(", name):
            assert hasattr(conformance, function)

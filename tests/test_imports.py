"""What an import loads, and what a missing framework says: each in an interpreter of its own."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import fresh_python
import pytest

import shared_ref

CHECKOUT = Path(shared_ref.__file__).parents[1]
FRAMEWORKS = ("torch", "jax", "triton", "jax_triton")

PUBLIC = {
    "kvcanary_torch": [
        "Faults",
        "VerifyPlan",
        "WritePlan",
        "has_swa_mapping",
        "launch_canary_plan_kernels",
        "launch_plan_entries_kernel",
        "launch_plan_offsets_kernel",
        "plan",
    ],
    "kvcanary_jax": [
        "Faults",
        "VerifyPlan",
        "WritePlan",
        "from_dlpack",
        "has_swa_mapping",
        "launch_canary_plan_kernels",
        "launch_plan_entries_kernel",
        "launch_plan_offsets_kernel",
        "plan",
        "to_dlpack",
    ],
}
FRAMEWORK = {"kvcanary_torch": "torch", "kvcanary_jax": "jax"}

package = pytest.mark.parametrize("package", PUBLIC)

LAUNCH_IN_NUMPY = """
import numpy as np
from shared_ref.conformance.case import Case, PlanInputs
inputs = PlanInputs(
    req_pool_indices=np.array([1]), prefix_lens=np.array([2]), extend_seq_lens=np.array([1]),
    req_to_token=np.array([[0, 0], [10, 11]], np.int32), verify_capacity=2,
)
case = Case.poisoned("one request", inputs, write_req_capacity=1)
assert case.expected().verify.verify_slot_indices.tolist() == [10, 11]
"""
LAUNCH_IN_TORCH = (
    LAUNCH_IN_NUMPY
    + """
import torch, kvcanary_torch
verify = kvcanary_torch.VerifyPlan.allocate(verify_capacity=2)
write = kvcanary_torch.WritePlan.allocate(write_req_capacity=1)
kvcanary_torch.launch_canary_plan_kernels(
    verify_plan_out=verify, write_plan_out=write,
    **{k: torch.tensor(v) if isinstance(v, np.ndarray) else v for k, v in inputs.keywords().items()},
)
assert verify.verify_slot_indices.tolist() == [10, 11]
"""
)
PLAN_IN_JAX = (
    LAUNCH_IN_NUMPY
    + """
import kvcanary_jax
verify, write = kvcanary_jax.plan(**inputs.keywords(), write_req_capacity=1)
assert verify.verify_slot_indices.tolist() == [10, 11]
"""
)


def run(code: str) -> str:
    """What `code` prints in a fresh interpreter that has this checkout's packages."""
    return fresh_python.run("-c", code).rstrip("\n")


def loaded_by(code: str) -> set[str]:
    """The frameworks that are loaded after `code`."""
    listing = f"import sys; print(*[name for name in {FRAMEWORKS!r} if name in sys.modules])"
    return set(run(f"{code}\n{listing}").split())


def needs(framework: str) -> None:
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")


@package
def test_importing_a_frontend_and_asking_for_the_mapping_loads_no_framework(package: str) -> None:
    code = f"import {package}\nassert {package}.has_swa_mapping(1, None) is False"
    assert loaded_by(code) == set()


@package
def test_dir_lists_the_public_names_and_loads_no_framework(package: str) -> None:
    code = f"import {package}\nassert set({PUBLIC[package]!r}) <= set(dir({package}))"
    assert loaded_by(code) == set()


@package
def test_all_is_the_public_names(package: str) -> None:
    assert run(f"import {package}; print(sorted({package}.__all__))") == str(PUBLIC[package])


@package
def test_an_unknown_name_is_an_attribute_error_and_loads_no_framework(package: str) -> None:
    code = f"""
import {package}
assert not hasattr({package}, "plans_of_mice")
try:
    {package}.plans_of_mice
except AttributeError as error:
    assert str(error) == "module '{package}' has no attribute 'plans_of_mice'", error
"""
    assert loaded_by(code) == set()


@package
def test_a_star_import_brings_every_public_name_and_keeps_it(package: str) -> None:
    needs(FRAMEWORK[package])
    code = f"""
from {package} import *
import {package}
assert set({PUBLIC[package]!r}) <= set(dir())
assert vars({package})["VerifyPlan"] is VerifyPlan is {package}.VerifyPlan
"""
    assert FRAMEWORK[package] in loaded_by(code)


def test_planning_in_jax_loads_no_torch() -> None:
    needs("jax")
    assert loaded_by(PLAN_IN_JAX) & {"torch", "jax"} == {"jax"}


def test_launching_in_torch_loads_no_jax() -> None:
    needs("torch")
    assert loaded_by(LAUNCH_IN_TORCH) & {"torch", "jax"} == {"torch"}


def test_the_reference_loads_no_framework() -> None:
    assert loaded_by(LAUNCH_IN_NUMPY) == set()


def test_listing_the_backends_loads_no_framework() -> None:
    code = """
from shared_ref.backends import backends
assert {"numpy", "torch-cpu", "torch-triton", "jax-mosaic", "jax-triton", "jax-xla"} <= set(backends())
"""
    assert loaded_by(code) == set()


def without(framework: str) -> str:
    """Code after which `framework` cannot be imported."""
    return f"import sys\nsys.modules[{framework!r}] = None\n"


@package
def test_without_its_framework_every_name_says_which_extra_brings_it(package: str) -> None:
    framework = FRAMEWORK[package]
    needing = [name for name in PUBLIC[package] if name != "has_swa_mapping"]
    run(f"""{without(framework)}
import {package}
for name in {needing!r}:
    try:
        getattr({package}, name)
    except ImportError as error:
        assert str(error) == (
            f"{package}.{{name}} needs {framework}, which is not installed: "
            "pip install 'kvcanary[{framework}]'"
        ), error
        assert isinstance(error.__cause__, ImportError)
    else:
        raise AssertionError(name)
assert {package}.has_swa_mapping(0, None) is True
""")


@package
def test_a_framework_that_is_installed_and_broken_is_not_called_missing(package: str, tmp_path: Path) -> None:
    framework = FRAMEWORK[package]
    broken = tmp_path / framework
    broken.mkdir()
    (broken / "__init__.py").write_text("import no_such_library")
    run(f"""import sys
sys.path.insert(0, {str(tmp_path)!r})
import {package}
try:
    {package}.plan
except ModuleNotFoundError as error:
    assert error.name == "no_such_library", error
else:
    raise AssertionError
""")


@package
def test_without_its_framework_a_from_import_says_it_too(package: str) -> None:
    framework = FRAMEWORK[package]
    run(f"""{without(framework)}
try:
    from {package} import VerifyPlan
except ImportError as error:
    assert "pip install 'kvcanary[{framework}]'" in str(error), error
else:
    raise AssertionError
""")


def test_jax_plans_without_torch_and_triton() -> None:
    needs("jax")
    run(without("torch") + without("triton") + PLAN_IN_JAX)


@package
def test_without_its_framework_each_backend_says_which_extra_brings_it(package: str) -> None:
    framework = FRAMEWORK[package]
    code = f"""{without(framework)}
from shared_ref.backends import backends
for name, backend in backends().items():
    if name.startswith("{framework}-"):
        assert "pip install 'kvcanary[{framework}]'" in (backend.unavailable() or ""), name
        print(name)
"""
    assert len(run(code).splitlines()) >= {"torch": 2, "jax": 3}[framework]

"""`kvcanary_torch.integrations.sglang` on a stand-in: what it replaces, refuses, and puts back."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from fresh_python import run
from integration_support import STANDIN

torch = pytest.importorskip("torch")

import kvcanary_torch  # noqa: E402
from kvcanary_torch.integrations import sglang as integration  # noqa: E402

NAME = "launch_canary_plan_kernels"
PLAN = "sglang.kernels.ops.kv_canary.plan"
RUNNER = "sglang.srt.kv_canary.runner.kernel_launcher"

TABLE = torch.tensor([[0, 0, 0, 0], [5, 6, 7, 0], [0, 0, 0, 0]], dtype=torch.int32)
BATCH = SimpleNamespace(
    req_pool_indices=torch.tensor([1, 2]),
    prefix_lens=torch.tensor([3, 0]),
    extend_seq_lens=torch.tensor([1, 2]),
)

Edit = Callable[[str], str]


def forget_sglang() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "sglang"]:
        del sys.modules[name]


@pytest.fixture
def standin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """Puts a stand-in on the path, edited: `standin(api=…)` changes the text of the launcher's module."""

    def put(api: Edit = str, home: str = PLAN) -> Path:
        package = shutil.copytree(STANDIN, tmp_path, dirs_exist_ok=True) / "sglang"
        launcher = package / "kernels/ops/kv_canary/plan/api.py"
        launcher.write_text(api(launcher.read_text()))
        if home != PLAN:
            assert home == "sglang.jit_kernel.kv_canary.plan"
            for file in package.rglob("*.py"):
                file.write_text(file.read_text().replace("sglang.kernels.ops", "sglang.jit_kernel"))
            shutil.move(package / "kernels" / "ops", package / "jit_kernel")
            shutil.rmtree(package / "kernels")
        monkeypatch.syspath_prepend(str(tmp_path))
        return package

    forget_sglang()
    yield put
    integration.uninstall()
    forget_sglang()


def held(module: str, name: str = NAME) -> Any:
    return getattr(importlib.import_module(module), name)


def module_with(name: str, **contents: Any) -> ModuleType:
    """A module among the imported ones; the fixture forgets it with `sglang`."""
    module = ModuleType(f"sglang.{name}")
    vars(module).update(contents)
    sys.modules[module.__name__] = module
    return module


def test_install_names_every_module_that_holds_the_launcher(standin: Callable) -> None:
    standin()
    importlib.import_module(RUNNER)
    replaced = integration.install()
    assert replaced == (f"{PLAN}.api.{NAME}", f"{PLAN}.{NAME}", f"{RUNNER}.{NAME}")
    assert held(PLAN) is held(f"{PLAN}.api") is held(RUNNER)


def test_a_step_of_sglang_fills_sglang_s_own_plans_by_our_launcher(standin: Callable) -> None:
    standin()
    runner = importlib.import_module(RUNNER)
    verify = held("sglang.kernels.ops.kv_canary.verify", "VerifyPlan").allocate(
        verify_capacity=4, device="cpu"
    )
    write = held("sglang.kernels.ops.kv_canary.write", "WritePlan").allocate(
        write_req_capacity=2, device="cpu"
    )
    integration.install()
    runner.invoke_plan(plan_input=BATCH, verify_plan=verify, write_plan=write, req_to_token=TABLE)
    assert held(f"{PLAN}.api", "launches") == []
    assert verify.verify_slot_indices.tolist() == [5, 6, 7, -7]
    assert verify.verify_prev_slot_indices.tolist() == [-1, 5, 6, -7]
    assert verify.verify_num_valid.tolist() == [3]
    assert write.write_offsets.tolist() == [0, 1, 3]
    assert write.write_seed_slot_indices.tolist() == [7, -1]


def test_torch_compile_sees_through_the_replaced_launcher(standin: Callable) -> None:
    standin()
    runner = importlib.import_module(RUNNER)
    integration.install()
    verify = kvcanary_torch.VerifyPlan.allocate(verify_capacity=4)
    write = kvcanary_torch.WritePlan.allocate(write_req_capacity=2)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step() -> Any:
        runner.invoke_plan(plan_input=BATCH, verify_plan=verify, write_plan=write, req_to_token=TABLE)
        return verify.verify_slot_indices + 100

    assert step()[:3].tolist() == [105, 106, 107]


def test_uninstall_puts_sglang_s_launcher_back(standin: Callable) -> None:
    standin()
    original = SimpleNamespace(launcher=held(RUNNER))
    replaced = integration.install()
    assert held(RUNNER) is not original.launcher
    assert integration.uninstall() == replaced
    assert held(PLAN) is held(f"{PLAN}.api") is held(RUNNER) is original.launcher


def test_a_module_imported_after_install_takes_ours_and_gives_it_back(standin: Callable) -> None:
    standin()
    assert integration.install() == (f"{PLAN}.api.{NAME}", f"{PLAN}.{NAME}")
    assert held(RUNNER) is held(PLAN)
    assert f"{RUNNER}.{NAME}" in integration.uninstall()
    assert inspect.getsourcefile(held(RUNNER)) == importlib.import_module(f"{PLAN}.api").__file__


def test_it_is_replaced_under_another_name_too(standin: Callable) -> None:
    standin()
    module = module_with("user", build=held(PLAN), other=len)
    assert "sglang.user.build" in integration.install()
    assert module.build is held(PLAN)
    assert module.other is len


def test_installing_twice_reaches_who_took_the_former_launcher_meanwhile(standin: Callable) -> None:
    standin()
    integration.install()
    ours = held(PLAN)
    assert integration.install() == ()
    late = module_with("late", launcher=ours.__wrapped__)
    assert integration.install() == ("sglang.late.launcher",)
    assert late.launcher is held(PLAN) is ours


def test_a_module_that_takes_the_launcher_while_it_is_replaced_is_reached_too(
    standin: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    standin()
    sweep, late = integration._sweep, []

    def and_an_import(old: Any, new: Any) -> set[str]:
        found = sweep(old, new)
        if not late:
            late.append(module_with("late", launcher=old))
        return found

    monkeypatch.setattr(integration, "_sweep", and_an_import)
    assert "sglang.late.launcher" in integration.install()
    assert late[0].launcher is held(PLAN)


def test_install_works_again_after_uninstall(standin: Callable) -> None:
    standin()
    original = SimpleNamespace(launcher=held(PLAN))
    for _ in range(2):
        integration.install()
        assert held(PLAN) is not original.launcher
        integration.uninstall()
        assert held(PLAN) is original.launcher


def test_uninstall_leaves_other_uses_of_our_launcher_alone(standin: Callable) -> None:
    standin()
    ours = SimpleNamespace(launcher=kvcanary_torch.launch_canary_plan_kernels)
    user = module_with("user", launcher=ours.launcher)
    integration.install()
    integration.uninstall()
    assert user.launcher is kvcanary_torch.launch_canary_plan_kernels is ours.launcher


def test_uninstall_without_install_does_nothing() -> None:
    assert integration.uninstall() == ()


def test_many_threads_install_one_launcher(standin: Callable) -> None:
    standin()
    importlib.import_module(RUNNER)
    start, reports = threading.Barrier(8), []

    def install() -> None:
        start.wait()
        reports.append(integration.install())

    threads = [threading.Thread(target=install) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(len, reports)) == [0] * 7 + [3]
    assert held(PLAN) is held(f"{PLAN}.api") is held(RUNNER)
    assert inspect.getsourcefile(held(PLAN).__wrapped__) == importlib.import_module(f"{PLAN}.api").__file__


def test_sglang_s_own_import_may_install_too(standin: Callable) -> None:
    """A plugin that SGLang calls does, before the call that imports SGLang goes on."""
    package = standin()
    (package / "__init__.py").write_text(
        "from kvcanary_torch.integrations import sglang\nreplaced = sglang.install()\n"
    )
    assert integration.install() == ()
    assert held("sglang", "replaced") == (f"{PLAN}.api.{NAME}", f"{PLAN}.{NAME}")
    assert inspect.getsourcefile(held(PLAN).__wrapped__) == importlib.import_module(f"{PLAN}.api").__file__


def test_a_module_that_loads_on_first_use_is_not_loaded(
    standin: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standin()
    (tmp_path / "waiting.py").write_text("raise AssertionError('loaded')\n")
    spec = importlib.util.find_spec("waiting")
    assert spec is not None
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "waiting", module)
    spec.loader.exec_module(module)
    integration.install()


def test_the_older_home_of_the_launcher_is_found(standin: Callable) -> None:
    home = "sglang.jit_kernel.kv_canary.plan"
    standin(home=home)
    importlib.import_module(RUNNER)
    assert integration.install() == (f"{home}.api.{NAME}", f"{home}.{NAME}", f"{RUNNER}.{NAME}")


# --- Refusals

OLDER_NAMES = {
    "req_pool_indices": "fb_req_pool_indices",
    "prefix_lens": "fb_prefix_lens",
    "extend_seq_lens": "fb_extend_seq_lens",
}


def with_older_names(api: str) -> str:
    for new, old in OLDER_NAMES.items():
        api = api.replace(f"    {new}:", f"    {old}:")
    return api


DIFFERENCES: dict[str, tuple[Edit, str]] = {
    "older names": (
        with_older_names,
        "it takes fb_req_pool_indices, fb_prefix_lens, fb_extend_seq_lens, which kvcanary does not know; "
        "it does not take req_pool_indices, prefix_lens, extend_seq_lens, which kvcanary needs",
    ),
    "one more": (
        lambda api: api.replace("offset: int,", "offset: int,\n    streams: int = 0,"),
        "it takes streams, which kvcanary does not know",
    ),
    "one fewer": (
        lambda api: api.replace("    verify_capacity: int,\n", ""),
        "it does not take verify_capacity, which kvcanary needs",
    ),
    "positional": (
        lambda api: api.replace("    *,\n", "").replace("    req_to_token:", "    *,\n    req_to_token:"),
        "it takes verify_plan_out, write_plan_out, req_pool_indices, prefix_lens, extend_seq_lens "
        "otherwise than by keyword only",
    ),
    "a default": (
        lambda api: api.replace("swa_window_size: int,", "swa_window_size: int = 0,"),
        "it has a default for swa_window_size, which kvcanary needs",
    ),
}


@pytest.mark.parametrize(("edit", "difference"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_an_unknown_signature_is_refused_with_its_difference(
    edit: Edit, difference: str, standin: Callable
) -> None:
    standin(api=edit)
    original = SimpleNamespace(launcher=held(RUNNER))
    with pytest.raises(ValueError, match=r"^kv-canary: ") as refused:
        integration.install()
    assert str(refused.value) == (
        f"kv-canary: {PLAN}.api.{NAME} has an unknown signature and was left in place: {difference}"
    )
    assert held(PLAN) is held(RUNNER) is original.launcher
    assert integration.uninstall() == ()


MISSING = (
    f"kv-canary: no {NAME} to replace: SGLang is not installed, or is a release without kv-canary (looked in "
    "sglang.kernels.ops.kv_canary.plan and sglang.jit_kernel.kv_canary.plan)"
)


def test_without_sglang_it_says_so(standin: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sglang", None)
    with pytest.raises(ImportError) as missing:
        integration.install()
    assert str(missing.value) == MISSING


def test_an_sglang_without_a_canary_is_named_too(standin: Callable) -> None:
    shutil.rmtree(standin() / "kernels" / "ops" / "kv_canary")
    with pytest.raises(ImportError) as missing:
        integration.install()
    assert str(missing.value) == MISSING


def test_what_sglang_itself_misses_is_not_hidden(standin: Callable) -> None:
    standin(api=lambda api: f"{api}\nimport a_library_of_sglang\n")
    with pytest.raises(ModuleNotFoundError, match="No module named 'a_library_of_sglang'"):
        integration.install()


def test_importing_the_module_loads_neither_torch_nor_sglang() -> None:
    code = """
import sys
import kvcanary_torch.integrations.sglang as integration
assert integration.uninstall() == ()
print(*[name for name in ("torch", "sglang") if name in sys.modules])
"""
    assert run("-c", code, path=STANDIN) == "\n"

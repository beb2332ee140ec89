"""`docs/plan-contract.md` and `README.md` say what the code does: tables, signatures, messages, examples."""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import io
import itertools
import re
import tomllib
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shared_ref
from shared_ref import backends, schema
from shared_ref.constants import (
    FAULT_KINDS,
    FAULT_POSITION_BITS,
    PLAN_BS_BLOCK_SIZE,
    VERIFY_OFFSETS_SCRATCH_LEN,
)
from shared_ref.schema import LAUNCH_ENTRIES, LAUNCH_OFFSETS, LAUNCH_PLAN, VerifyPlanFields, WritePlanFields

ROOT = Path(__file__).parents[1]
CONTRACT = (ROOT / "docs" / "plan-contract.md").read_text()
README = (ROOT / "README.md").read_text()

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CODE_SPAN = re.compile(r"``(?P<double>[^\n]+?)``|`(?P<single>[^`\n]+)`")


def section(number: int) -> str:
    """The text of a section of the contract."""
    return re.split(r"^## \d+\. .*$", CONTRACT, flags=re.MULTILINE)[number]


def code_spans(markdown: str) -> list[str]:
    return [(m["double"] or m["single"]).strip() for m in CODE_SPAN.finditer(FENCE.sub("", markdown))]


def tables(markdown: str) -> list[list[dict[str, str]]]:
    """Each table as rows by column title, code spans bare."""
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", markdown, re.MULTILINE):
        title, _, *rows = ([c.strip() for c in line.strip("|\n").split("|")] for line in block.splitlines())
        bare = [[re.sub(r"^`([^`]*)`$", r"\1", cell) for cell in cells] for cells in (title, *rows)]
        found.append([dict(zip(bare[0], cells, strict=True)) for cells in bare[1:]])
    return found


def table_with(markdown: str, *columns: str) -> list[dict[str, str]]:
    """The one table that has these columns."""
    (table,) = (t for t in tables(markdown) if set(columns) <= t[0].keys())
    return table


def test_the_contract_has_seven_numbered_sections() -> None:
    assert re.findall(r"^## (\d+)\. ", CONTRACT, re.MULTILINE) == list("1234567")


def test_the_numbers_of_the_contract_are_the_constants() -> None:
    printed = {int(number) for number in re.findall(r"\b\d{4,}\b", CONTRACT)}
    assert printed == {PLAN_BS_BLOCK_SIZE, VERIFY_OFFSETS_SCRATCH_LEN}


# --- Tables against the schema

DIMENSION = {"bs": "bs", "verify_capacity": "verify_columns_len"}
"""Lengths whose quantity in the schema has another name than the contract's shapes."""


def test_the_optional_outputs_are_those_of_the_schema() -> None:
    printed = table_with(section(3), "argument", "content")
    tensors = [t for t in LAUNCH_PLAN.tensors if t.name in schema.OPTIONAL_OUTPUTS]
    shapes = [[t.length] if t.columns is None else [t.length, t.columns] for t in tensors]
    assert [(row["argument"], row["shape"], row["dtype"]) for row in printed] == [
        (t.name, str(shape), t.dtype) for t, shape in zip(tensors, shapes, strict=True)
    ]


def test_the_kinds_of_faults_are_those_of_the_constants() -> None:
    printed = table_with(section(5), "k", "name")
    assert [(row["k"], row["name"]) for row in printed] == [
        (str(k), name) for k, name in enumerate(FAULT_KINDS)
    ]
    (place,) = (span for span in code_spans(section(5)) if span.startswith("request << "))
    assert place == f"request << {FAULT_POSITION_BITS} | position"


def test_the_inputs_are_those_of_the_schema() -> None:
    printed = table_with(section(2), "name", "shape", "dtype", "meaning")
    tensors = {t.name: t for t in LAUNCH_PLAN.tensors if not t.output}
    assert {row["name"] for row in printed if row["shape"] == "Python int"} == {
        integer.name for integer in LAUNCH_PLAN.integers
    }
    rows = [row for row in printed if row["shape"] != "Python int"]
    assert [row["name"] for row in rows] == list(tensors)
    for row in rows:
        tensor = tensors[row["name"]]
        shape, _, optional = row["shape"].replace("`", "").partition(" or ")
        dimensions = shape.strip("[]").split(", ")
        assert (row["dtype"], len(dimensions), optional) == (
            tensor.dtype,
            tensor.ndim,
            "None" if tensor.optional else "",
        )
        if tensor.length is None:  # free, or the tensor that defines it
            assert dimensions[0] in ("bs", "lut_len", "max_reqs", "rows")
            assert (dimensions[0] == "bs") == (tensor.name == "req_pool_indices")
        else:
            assert dimensions == [tensor.length]


def test_the_outputs_are_those_of_the_schema() -> None:
    printed = table_with(section(3), "plan", "field")
    expected = [
        {
            "plan": name,
            "field": field.name,
            "shape": f"[{field.length.value.replace('capacity', plan.CAPACITY)}]",
            "dtype": field.dtype,
            "staged name": field.argument,
        }
        for name, plan in (("VerifyPlan", VerifyPlanFields), ("WritePlan", WritePlanFields))
        for field in plan.fields()
    ]
    assert printed == expected


def test_the_scratch_is_that_of_the_schema() -> None:
    writes, reads = ({t.name: t for t in launcher.tensors} for launcher in (LAUNCH_OFFSETS, LAUNCH_ENTRIES))
    printed = table_with(section(3), "written as", "read as")
    assert {row["read as"] for row in printed} == {
        t.name for t in LAUNCH_ENTRIES.tensors if not t.output and t.name not in schema.PLAN_INPUTS
    }
    for row in printed:
        for tensor in (writes[row["written as"]], reads[row["read as"]]):
            length = f"[{'>= ' if tensor.at_least else ''}{tensor.length}]"
            assert (row["shape"], row["dtype"]) == (length, tensor.dtype)


@pytest.mark.parametrize("plan", ["VerifyPlan", "WritePlan"])
def test_the_size_of_a_plan_is_the_printed_formula(plan: str) -> None:
    printed = re.search(rf"`([^`]*)`(?: bytes)? for `{plan}`", section(3))
    assert printed is not None
    for capacity in (1, 1000):
        assert getattr(shared_ref, plan).allocation_bytes(capacity) == eval(
            printed[1], {"capacity": capacity}
        )


# --- Signatures

LAUNCHERS = ("launch_canary_plan_kernels", "launch_plan_offsets_kernel", "launch_plan_entries_kernel")


def printed_signature(number: int, name: str) -> list[tuple]:
    """The parameters of a function as a section's fenced block prints them."""
    blocks = "\n".join(body for _, body in FENCE.findall(section(number)))
    found = re.search(rf"^{name}(\([^)]*\))", blocks, re.MULTILINE)
    assert found is not None, f"section {number} prints no signature of {name}"
    namespace: dict[str, Any] = {}
    exec(f"def function{found[1]}: ...", namespace)
    return parameters(namespace["function"])


def parameters(function: Any) -> list[tuple]:
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


def keyword(name: str, default: object) -> tuple:
    return name, inspect.Parameter.KEYWORD_ONLY, default


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_launchers_take_what_the_contract_prints(launcher: str) -> None:
    strict = [keyword("strict", False)] if launcher == LAUNCH_PLAN.name else []
    function = getattr(shared_ref, f"{launcher}_reference")
    assert parameters(function) == printed_signature(2, launcher) + strict


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_the_frontends_take_what_the_contract_prints(framework: str, launcher: str) -> None:
    pytest.importorskip(framework)
    function = getattr(importlib.import_module(f"kvcanary_{framework}"), launcher)
    implementation = [keyword("implementation", None)] if framework == "jax" else []
    assert parameters(function) == printed_signature(2, launcher) + implementation


@pytest.mark.parametrize("package", ["shared_ref", "kvcanary_torch", "kvcanary_jax"])
def test_has_swa_mapping_is_what_the_contract_prints(package: str) -> None:
    function = importlib.import_module(package).has_swa_mapping
    assert parameters(function) == printed_signature(2, "has_swa_mapping")
    (formula,) = (span for span in code_spans(section(2)) if span.startswith("swa_window_size <= 0 or"))
    for window in (-1, 0, 1):
        for mapping in (None, np.zeros(0)):
            scope = {"swa_window_size": window, "mapping": mapping}
            assert function(window, mapping) == eval(formula, scope)


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_the_plan_form_takes_what_the_contract_prints(framework: str) -> None:
    pytest.importorskip(framework)
    package = f"kvcanary_{framework}"
    assert parameters(importlib.import_module(package).plan) == printed_signature(7, f"{package}.plan")


# --- The worked example

PLANS = (VerifyPlanFields, WritePlanFields)
UNTOUCHED = -7


def example_inputs() -> dict[str, Any]:
    dtypes = {t.name: t.dtype for t in LAUNCH_PLAN.tensors}
    rows = table_with(section(4), "argument", "value")
    values = {row["argument"]: ast.literal_eval(row["value"]) for row in rows}
    return {n: np.array(v, dtypes[n]) if isinstance(v, list) else v for n, v in values.items()}


def example_buffers(capacity: int, write_req_capacity: int = 3) -> dict[str, np.ndarray]:
    """Both plans before the launch, by staged name."""
    capacities = {"verify_capacity": capacity, "write_req_capacity": write_req_capacity}
    return {
        f.argument: np.full(f.length.of(capacities[plan.CAPACITY]), UNTOUCHED, f.dtype)
        for plan in PLANS
        for f in plan.fields()
    }


def example_plans(buffers: dict[str, np.ndarray]) -> dict[str, Any]:
    verify, write = (
        numpy_plan(**{f.name: buffers[f.argument] for f in plan.fields()})
        for numpy_plan, plan in zip((shared_ref.VerifyPlan, shared_ref.WritePlan), PLANS, strict=True)
    )
    return {"verify_plan_out": verify, "write_plan_out": write}


def printed_buffers() -> dict[str, list[int]]:
    """Every buffer after the launch, by staged name."""
    columns = table_with(section(4), "element", "why")
    others = {row["buffer"]: ast.literal_eval(row["value"]) for row in table_with(section(4), "buffer")}
    return {
        f.argument: others[f.name] if f.name in others else [int(row[f.name]) for row in columns]
        for plan in PLANS
        for f in plan.fields()
    }


def launch_staged(buffers: dict[str, np.ndarray], scratch: np.ndarray, inputs: dict[str, Any]) -> None:
    tensors = buffers | inputs | {"out_verify_offsets_scratch": scratch}
    tensors |= {"verify_offsets_scratch": scratch, "verify_enable": buffers["out_verify_enable"]}
    for launcher in (LAUNCH_OFFSETS, LAUNCH_ENTRIES):
        names = [a.name for a in (*launcher.tensors, *launcher.integers) if a.name in tensors]
        function = getattr(shared_ref, f"{launcher.name}_reference")
        function(**{name: tensors[name] for name in names})


def test_the_worked_example_is_what_the_reference_writes() -> None:
    inputs = example_inputs()
    buffers = example_buffers(inputs["verify_capacity"])
    shared_ref.launch_canary_plan_kernels_reference(**example_plans(buffers), **inputs, strict=True)
    assert {name: buffer.tolist() for name, buffer in buffers.items()} == printed_buffers()


def test_the_worked_example_staged_gives_the_same_bytes_and_the_printed_scratch() -> None:
    inputs, scratch = example_inputs(), np.full(VERIFY_OFFSETS_SCRATCH_LEN, UNTOUCHED)
    buffers = example_buffers(inputs["verify_capacity"])
    launch_staged(buffers, scratch, inputs)
    assert {name: buffer.tolist() for name, buffer in buffers.items()} == printed_buffers()
    found = re.search(r"`out_verify_offsets_scratch` begins `(.*?)`", section(4))
    assert found is not None
    printed = ast.literal_eval(found[1])
    assert len(printed) == len(inputs["req_pool_indices"]) + 1
    assert scratch[: len(printed)].tolist() == printed
    assert (scratch[len(printed) :] == UNTOUCHED).all()


def test_the_worked_example_overflows_as_printed() -> None:
    columns = r"columns of length (\d+) and `verify_capacity` \1\b"
    outcome = r"`enable` is `(.*?)`, `verify_num_valid` is `(.*?)`"
    found = re.search(f"{columns}.*?{outcome}", section(4), re.DOTALL)
    assert found is not None
    capacity = int(found[1])
    buffers = example_buffers(capacity)
    inputs = example_inputs() | {"verify_capacity": capacity}
    shared_ref.launch_canary_plan_kernels_reference(**example_plans(buffers), **inputs)
    expected = printed_buffers()
    expected |= {name: [UNTOUCHED] * capacity for name in schema.COLUMNS}
    expected |= {"out_verify_enable": ast.literal_eval(found[2])}
    expected |= {"out_verify_num_valid": ast.literal_eval(found[3])}
    assert {name: buffer.tolist() for name, buffer in buffers.items()} == expected


def test_the_derived_numbers_of_the_worked_example_are_those_of_the_batch() -> None:
    from shared_ref.batch import requests

    (printed,) = (t for t in tables(section(4)) if "request 0" in t[0])
    for request in requests(example_inputs()):
        for row in printed:
            assert int(row[f"request {request.index}"]) == getattr(request, row[""])


def test_the_printed_cells_have_the_printed_slots() -> None:
    found = re.search(r"With `page_size` (\d) a row of the\ncells `(.*?)` has the slots `(.*?)`", section(4))
    assert found is not None
    page_size, cells, slots = map(ast.literal_eval, found.groups())
    changes = example_buffers(len(slots)) | {
        "req_pool_indices": np.array([1]),
        "prefix_lens": np.array([len(slots)]),
        "extend_seq_lens": np.array([0]),
        "req_to_token": np.array([[0] * len(cells), cells], np.int32),
        "verify_capacity": len(slots),
        "page_size": page_size,
    }
    shared_ref.launch_canary_plan_kernels_reference(**arguments_of(LAUNCH_PLAN, changes))
    assert changes["out_verify_slot_indices"].tolist() == slots


# --- Messages

NUMBER = r"-?\d+(?:\.\d+)?"
PLACEHOLDERS = {
    "name": r"'?\w+'?",
    "reference": r"\w+",
    "launcher": r"\w+",
    "numpy.ndarray | torch.Tensor | jax.Array": r"(?:numpy\.ndarray|torch\.Tensor|jax\.Array)",
    "type name": r"\w+",
    "dtype": r"\S+",
    "shape": r"\([\d, ]*\)",
    "strides": r"\([\d., -]*\)",
    "device": r"\S+",
    "names": r".+",
    "reason": r".+",
}
"""What a placeholder of the contract stands for; the others are numbers."""


def templates(*numbers: int) -> list[str]:
    """Every message that sections print."""
    spans = [span for number in numbers for span in code_spans(section(number))]
    texts = [row["text"] for row in table_with(section(5), "text")] if 5 in numbers else []
    messages = [span for span in spans if span.startswith("kv-canary: ") and span != "kv-canary: {text}"]
    return messages + [f"kv-canary: {text}" for text in texts]


def matches(template: str, message: str) -> bool:
    literal_and_names = re.split(r"\{([^}]*)\}", template)
    pattern = "".join(
        PLACEHOLDERS.get(part, NUMBER) if i % 2 else re.escape(part)
        for i, part in enumerate(literal_and_names)
    )
    return re.fullmatch(pattern, message) is not None


def int64(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.int64)


def int32(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.int32)


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def overlapping_rows() -> np.ndarray:
    return np.lib.stride_tricks.as_strided(int32(16), (3, 4), (4, 4))


VALID: dict[str, Any] = {
    **example_buffers(8, 4),
    "req_pool_indices": np.array([1, 2]),
    "prefix_lens": np.array([3, 1]),
    "extend_seq_lens": np.array([1, 1]),
    "req_to_token": int32(3, 4),
    "swa_window_size": 0,
    "full_to_swa_index_mapping": None,
    "verify_capacity": 8,
    "req_to_verify_expected_tokens": None,
    "req_to_verify_expected_tokens_valid_lens": None,
    "kv_token_id_vs_position_offset": 0,
    "page_size": 1,
    "verify_total_out": None,
    "faults_out": None,
    "out_verify_offsets_scratch": int64(VERIFY_OFFSETS_SCRATCH_LEN),
    "verify_offsets_scratch": int64(VERIFY_OFFSETS_SCRATCH_LEN),
    "verify_enable": np.ones(1, np.int32),
}
"""Arguments that every launcher accepts, plans by staged name."""


def arguments_of(launcher: schema.Launcher, changes: dict[str, Any]) -> dict[str, Any]:
    """A launcher's keywords, from `VALID` with changes."""
    arguments = VALID | changes
    if launcher is LAUNCH_PLAN:
        others = [t.name for t in launcher.tensors if t.name not in schema.PLAN_OUTPUTS]
        names = (*others, *launcher.integer_names)
        return example_plans(arguments) | {name: arguments[name] for name in names}
    names = [a.name for a in (*launcher.tensors, *launcher.integers)]
    return {name: arguments[name] for name in names if name in arguments}


def refusal(function: Any, **arguments: object) -> str:
    """The message that a call raises."""
    with pytest.raises(ValueError, match=r"^kv-canary: ") as error:
        function(**arguments)
    return str(error.value)


def message_of(launcher: schema.Launcher, changes: dict[str, Any], **more: object) -> str:
    function = getattr(shared_ref, f"{launcher.name}_reference")
    return refusal(function, **arguments_of(launcher, changes), **more)


TOO_MANY_POSITIONS = {"req_to_token": int32(1, 2**17 + 1), "page_size": 2**31 - 1}
OFFSETS_RULES: dict[int, dict[str, Any]] = {
    1: {"prefix_lens": int64(4)[::2]},
    2: {"extend_seq_lens": int32(2)},
    3: {"req_pool_indices": int64(4097)},
    4: {"write_offsets_len": 0},
    5: {"write_req_capacity": -1},
    6: {"verify_capacity": -1},
    7: {"req_to_token_stride0": 0},
    8: {"page_size": 0},
    9: {"full_to_swa_index_mapping": int64(0)},
    10: {"out_verify_num_valid": int32(2)},
    11: {"out_write_offsets": int64(9)},
    12: {"out_write_seed_slot_indices": int64(1), "out_write_offsets": int64(2)},
    13: {"req_to_token_stride0": 99},
    14: {"req_to_token": overlapping_rows()},
    15: TOO_MANY_POSITIONS,
    16: {"out_write_num_valid_reqs": read_only(int32(1))},
}
"""For each rule of the offsets launcher, what breaks it and none before it. numpy has one device: no 17."""
ENTRIES_RULES: dict[int, dict[str, Any]] = {
    0: {"req_to_verify_expected_tokens": int32(3, 4)},
    1: {"prefix_lens": int64(4)[::2]},
    2: {"verify_enable": int64(1)},
    3: {"req_pool_indices": int64(4097)},
    8: {"page_size": -1},
    9: {"full_to_swa_index_mapping": int64(0)},
    10: {"out_verify_expected_tokens": int64(7)},
    14: {"req_to_token": overlapping_rows()},
    15: TOO_MANY_POSITIONS,
    16: {"out_verify_expected_positions": read_only(int64(8))},
}
PLAN_RULES: dict[int, dict[str, Any]] = {
    1: {"req_pool_indices": int64(4097)},
    2: {"swa_window_size": 1},
    3: {"verify_capacity": 9},
    4: {"out_write_num_valid_reqs": int64(1)},
}
RULES = {LAUNCH_PLAN: PLAN_RULES, LAUNCH_OFFSETS: OFFSETS_RULES, LAUNCH_ENTRIES: ENTRIES_RULES}

MORE_NUMPY_MESSAGES: tuple[dict[str, Any], ...] = (
    {"prefix_lens": None},
    {"prefix_lens": [1, 2]},
    {"verify_capacity": True},
    {"swa_window_size": 2**31},
    {"prefix_lens": np.zeros(2, ">i8" if np.little_endian else "<i8")},
    {"req_to_token": int32(3, 8)[:, ::2]},
    {"req_to_token": np.zeros(30, np.int8)[:27].view("i1,i4,i4")["f1"].reshape(1, 3)},
    {"prefix_lens": int64(2, 1)},
    {"req_to_token": int32(3)},
    {"faults_out": int64(8, 3)},
)
"""What breaks the rules that have more than one message."""

FAULTS: tuple[dict[str, Any], ...] = (
    {"req_pool_indices": np.array([3, 1])},
    {"prefix_lens": np.array([0, -1])},
    {"extend_seq_lens": np.array([-5, 0])},
    {"prefix_lens": np.array([5, 0])},
    {"full_to_swa_index_mapping": int64(1), "req_to_token": int32(3, 4) + 7},
    {
        "req_to_verify_expected_tokens": int32(3, 4),
        "req_to_verify_expected_tokens_valid_lens": np.array([9, 9]),
        "kv_token_id_vs_position_offset": -1,
    },
)
"""The faults of section 5's table, in its order."""


def numpy_messages() -> list[str]:
    messages = [message_of(launcher, c) for launcher, rules in RULES.items() for c in rules.values()]
    messages += [message_of(LAUNCH_OFFSETS, changes) for changes in MORE_NUMPY_MESSAGES]
    messages += [message_of(LAUNCH_OFFSETS, {"out_verify_offsets_scratch": int64(4096)})]
    messages += [message_of(LAUNCH_PLAN, changes, strict=True) for changes in FAULTS]
    plans = (shared_ref.VerifyPlan, shared_ref.WritePlan)
    return messages + [refusal(plan.allocate, **{plan.CAPACITY: 0}) for plan in plans]


def torch_messages() -> list[str]:
    torch = pytest.importorskip("torch")
    import kvcanary_torch

    tensors = {n: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for n, v in VALID.items()}
    on_meta = {n: v.to("meta") if isinstance(v, torch.Tensor) else v for n, v in tensors.items()}
    mixed = tensors | {"prefix_lens": on_meta["prefix_lens"]}
    launch = kvcanary_torch.launch_plan_offsets_kernel
    inputs = {name: tensors[name] for name in schema.PLAN_INPUTS}
    no_pair = [refusal(kvcanary_torch.plan, **inputs, out=(1, 2, 3))]
    return no_pair + [
        refusal(launch, **arguments_of(LAUNCH_OFFSETS, arguments)) for arguments in (mixed, on_meta)
    ]


def jax_messages(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    jax = pytest.importorskip("jax")
    import kvcanary_jax
    from kvcanary_jax import implementations

    with jax.enable_x64(True):
        arrays = {n: jax.numpy.array(v) if isinstance(v, np.ndarray) else v for n, v in VALID.items()}
        refs = [{n: jax.new_ref(arrays[n])} for n in ("prefix_lens", "out_verify_enable")]
    inputs = {name: arrays[name] for name in schema.PLAN_INPUTS} | {"verify_capacity": 8}
    int32_lens = {"prefix_lens": arrays["prefix_lens"].astype(jax.numpy.int32)}
    calls: list[tuple[Any, dict[str, Any]]] = [
        (kvcanary_jax.launch_canary_plan_kernels, arguments_of(LAUNCH_PLAN, arrays | changes))
        for changes in (int32_lens, *refs)
    ]
    calls += [
        (kvcanary_jax.plan, inputs | {"write_req_capacity": 4} | changes)
        for changes in (
            {"verify_capacity": -1},
            {"write_req_capacity": -1},
            {"implementation": "cuda"},
            {"implementation": ()},
            {"implementation": "xla"},
            {"implementation": ("xla", "xla")},
        )
    ]
    never = implementations.IMPLEMENTATIONS["xla"]._replace(unavailable=lambda platform: f"no {platform}")
    monkeypatch.setitem(implementations.IMPLEMENTATIONS, "xla", never)
    return [refusal(function, **arguments) for function, arguments in calls]


def test_every_message_is_printed_and_every_printed_message_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    printed = list(dict.fromkeys(templates(3, 5, 6, 7)))
    raised = numpy_messages() + torch_messages() + jax_messages(monkeypatch)
    for message in raised:
        assert sum(matches(template, message) for template in printed) == 1, message
    assert [t for t in printed if not any(matches(t, message) for message in raised)] == []


@pytest.mark.parametrize("launcher", RULES, ids=lambda launcher: launcher.name)
def test_the_rules_hold_in_the_printed_order(launcher: schema.Launcher) -> None:
    for earlier, later in itertools.pairwise(RULES[launcher].values()):
        both, alone = (message_of(launcher, changes) for changes in (later | earlier, earlier))
        assert re.sub(NUMBER, "", both) == re.sub(NUMBER, "", alone)


@pytest.mark.parametrize("rule", OFFSETS_RULES)
def test_the_rules_of_the_offsets_launcher_have_the_printed_numbers(rule: int) -> None:
    _, _, offsets, _ = re.split(r"^\*\*`launch_\w+`\*\*", section(6), flags=re.MULTILINE)
    item = re.search(rf"^{rule}\. .*(?:\n {{3,}}.*)*", offsets, re.MULTILINE)
    assert item is not None
    message = message_of(LAUNCH_OFFSETS, OFFSETS_RULES[rule])
    assert any(matches(template, message) for template in code_spans(item[0]))


@pytest.mark.parametrize("fault", range(len(FAULTS)))
def test_the_faults_come_in_the_printed_order(fault: int) -> None:
    text = table_with(section(5), "text")[fault]["text"]
    assert matches(f"kv-canary: {text}", message_of(LAUNCH_PLAN, FAULTS[fault], strict=True))


def test_a_row_stride_that_is_no_whole_number_of_elements_prints_as_the_contract_shows() -> None:
    (shown,) = (span for span in code_spans(section(6)) if re.fullmatch(r"\d+\.\d+", span))
    base = np.zeros(64, np.int8)
    table = np.ndarray((3, 4), np.int32, buffer=base, strides=(int(float(shown) * 4), 4))
    assert message_of(LAUNCH_OFFSETS, {"req_to_token": table}).endswith(f", got {shown}")


# --- README


def python_blocks(markdown: str) -> list[str]:
    return [body for language, body in FENCE.findall(markdown) if language == "python"]


@pytest.mark.parametrize("code", python_blocks(README))
def test_the_readme_s_code_prints_what_its_comments_say(code: str) -> None:
    frameworks = set(re.findall(r"^from kvcanary_(\w+) import", code, re.MULTILINE))
    assert len(frameworks) == 1
    pytest.importorskip(*frameworks)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "README.md", "exec"), {})
    promised = re.findall(r"^print\(.*\)  # (.*)$", code, re.MULTILINE)
    assert promised
    assert out.getvalue().splitlines() == promised


def test_the_readme_s_extras_are_those_of_the_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    printed = set(re.findall(r"pip install 'kvcanary\[(\w+)\]'", README))
    assert printed == project["optional-dependencies"].keys() - {"test"}


def test_the_readme_lists_every_backend() -> None:
    printed = {row["name"] for row in table_with(README, "name", "framework")}
    assert backends.backends().keys() <= printed


BIG = 2**40 + 3
"""A slot that int32 cannot hold."""

KEEPS_INT64 = {
    "jit": lambda jax, slots: jax.jit(lambda x: x)(slots),
    "scan": lambda jax, slots: jax.lax.scan(lambda carry, x: (carry, x), slots, jax.numpy.arange(2))[0],
    "vmap": lambda jax, slots: jax.vmap(lambda x: x)(slots),
    "cond": lambda jax, slots: jax.lax.cond(True, lambda x: x, lambda x: x, slots),
    "slicing": lambda jax, slots: slots[:2],
    "reshaping": lambda jax, slots: slots.reshape(2, 2),
    "concatenating": lambda jax, slots: jax.numpy.concatenate([slots, slots]),
    "device_put": lambda jax, slots: jax.device_put(slots),
    "np.asarray": lambda jax, slots: np.asarray(slots),
}
LOSES_INT64 = {
    "slots + 1": lambda jax, slots: slots + 0,
    "jnp.where": lambda jax, slots: jax.numpy.where(slots != 0, slots, 0),
    "slots.sum()": lambda jax, slots: slots.sum(keepdims=True) // len(slots),
    "jnp.asarray(np.asarray(slots))": lambda jax, slots: jax.numpy.asarray(np.asarray(slots)),
    "jax.device_put(np.asarray(slots))": lambda jax, slots: jax.device_put(np.asarray(slots)),
    "numpy int64 to your own `jit`": lambda jax, slots: jax.jit(lambda x: x)(np.asarray(slots)),
    "jnp.from_dlpack": lambda jax, slots: jax.numpy.from_dlpack(
        pytest.importorskip("torch").from_numpy(np.array(slots))
    ),
}


def big_slots(jax: Any) -> Any:
    assert not jax.config.jax_enable_x64
    with jax.enable_x64(True):
        return jax.numpy.full(4, BIG, jax.numpy.int64)


@pytest.mark.parametrize("name", KEEPS_INT64)
def test_what_the_readme_allows_keeps_a_plan_as_it_is(name: str) -> None:
    jax = pytest.importorskip("jax")
    kept = KEEPS_INT64[name](jax, big_slots(jax))
    assert name in README
    assert kept.dtype == np.int64
    assert (np.asarray(kept) == BIG).all()


@pytest.mark.parametrize("name", LOSES_INT64)
def test_what_the_readme_forbids_loses_int64(name: str) -> None:
    jax = pytest.importorskip("jax")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX warns of some of them
        lost = LOSES_INT64[name](jax, big_slots(jax))
    assert name in README
    assert lost.dtype == np.int32
    assert (np.asarray(lost) == 3).all()


def test_a_ref_of_a_plan_cannot_be_written_outside_the_scope() -> None:
    jax = pytest.importorskip("jax")
    ref = jax.new_ref(big_slots(jax))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError, match="dtype"):
            ref[...] = ref[...] + 1
    with jax.enable_x64(True):
        ref[...] = ref[...] + 1
    assert (np.asarray(ref[...]) == BIG + 1).all()

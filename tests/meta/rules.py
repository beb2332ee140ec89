"""`shared_ref.validation` with one rule dropped, or weakened, for the table of messages to notice.

`dropped` finds every statement that yields or raises a message by itself: a new rule has its mutant from
the start. `WEAKENED` lists rules with one condition less.
"""

from __future__ import annotations

import ast
import functools
from types import ModuleType
from typing import NamedTuple

from patching import Edit, package, patched, source_of

_OTHERS = ("batch", "faults", "reference")
"""Modules that a mutant runs anew beside its validation: `reference` has the launchers."""

NO_RULES = ("fail",)
"""Functions that yield and raise what others say."""


class Dropped(NamedTuple):
    """One statement of `validation.py`, gone."""

    function: str
    line: int
    text: str

    @property
    def name(self) -> str:
        return f"{self.function}: {self.text}"


def _messages(tree: ast.Module) -> list[tuple[ast.FunctionDef, ast.Expr]]:
    """Every statement that yields, yields from, or fails."""
    found = []
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and function.name not in NO_RULES:
            for statement in ast.walk(function):
                if isinstance(statement, ast.Expr) and _is_message(statement.value):
                    found.append((function, statement))
    return found


def _is_message(value: ast.expr) -> bool:
    is_fail = isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "fail"
    return is_fail or isinstance(value, ast.Yield | ast.YieldFrom)


def dropped() -> list[Dropped]:
    """What can be dropped, in the module's order."""
    found = [
        Dropped(function.name, statement.lineno, " ".join(ast.unparse(statement).split()))
        for function, statement in _messages(ast.parse(source_of("validation")))
    ]
    return sorted(found, key=lambda rule: rule.line)


def without(rule: Dropped) -> ModuleType:
    """`reference` under validation without this statement."""
    tree = ast.parse(source_of("validation"))
    (statement,) = (s for _, s in _messages(tree) if s.lineno == rule.line)
    statement.value = ast.copy_location(ast.Constant(None), statement.value)
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and function.name == rule.function:
            # What yields nothing more is still to be a generator.
            stub = ast.parse("if 0:\n    yield").body if _yields(rule) else []
            function.body.extend(stub)
    return _loaded(f"without line {rule.line}", ast.fix_missing_locations(tree))


def _yields(rule: Dropped) -> bool:
    return rule.text.startswith(("yield", "(yield"))


class Weakened(NamedTuple):
    """A rule that lets more pass than the contract does, or less, or out of order."""

    name: str
    edits: tuple[Edit, ...]


@functools.cache
def weakened(mutant: Weakened) -> ModuleType:
    return _loaded(f"weakened {mutant.name}", patched("validation", mutant.edits))


def _loaded(name: str, validation: str | ast.Module) -> ModuleType:
    sources: dict[str, str | ast.Module] = {"validation": validation}
    return package(name.replace(".", " "), sources | {module: source_of(module) for module in _OTHERS})


def _weak(name: str, *texts: str) -> Weakened:
    edits = tuple(Edit("validation", old, new) for old, new in zip(texts[::2], texts[1::2], strict=True))
    return Weakened(name, edits)


_INT = "if isinstance(value, bool) or not isinstance(value, int | np.integer):"
_DTYPE = 'if name != tensor.dtype and not (tensor.or_int32 and name == "int32"):'
_LENGTH = "if n is not None and (got < n if tensor.at_least else got != n):"
_STRIDED = "if info.strides is None or rows <= 1 or width == 0:"
_RULE_1 = "    yield from _contiguity(tensors)\n"
_RULE_2 = "    yield from _dtypes(tensors, call.framework)\n"
_OFFSETS_RULE_3 = '    yield from _batch_size(call, "offsets")\n'
_ENTRIES_RULE_3 = '    yield from _batch_size(call, "entries")\n'
_OFFSETS_RULE_7 = '    yield from _positive(call, "req_to_token_stride0")\n'
_RULE_8 = '    yield from _positive(call, "page_size")\n'
_RULE_9 = "    yield from _mapping_length(call)\n"
_RULE_10 = "    yield from _shapes(call, tensors)\n"
_RULE_15 = "    yield from _positions(call)\n"
_RULES_16_17 = "    yield from _writable(tensors)\n    yield from _devices(call, tensors)\n"
_PAGES = "table.shape[1] * page_size > MOST_POSITIONS"
_COLUMNS = "tensor.columns is not None and info.shape[1] != tensor.columns"

WEAKENED = (
    _weak("a bool is an integer", _INT, "if not isinstance(value, int | np.integer):"),
    _weak("every number is an integer", _INT, "if isinstance(value, bool) or not hasattr(value, 'real'):"),
    _weak("int32's upper end alone", "if not -(2**31) <= n < 2**31:", "if not n < 2**31:"),
    _weak("int32's lower end alone", "if not -(2**31) <= n < 2**31:", "if not -(2**31) <= n:"),
    _weak("2**31 fits int32", "if not -(2**31) <= n < 2**31:", "if not -(2**31) <= n <= 2**31:"),
    _weak(
        "every tensor may be None",
        "isinstance(array, framework.array_type) or (array is None and tensor.optional)",
        "isinstance(array, framework.array_type) or array is None",
    ),
    _weak(
        "a missing field is no mistake",
        "getattr(verify_plan, name, None) for argument, name in _BUFFERS[0]",
        "getattr(verify_plan, name, np.zeros(1)) for argument, name in _BUFFERS[0]",
    ),
    _weak("0 is positive", "if n is not None and n <= 0:", "if n is not None and n < 0:"),
    _weak("-1 is not negative", "if n is not None and n < 0:", "if n is not None and n < -1:"),
    _weak(
        "a batch one too large",
        "if bs is not None and bs > PLAN_BS_BLOCK_SIZE:\n        yield (",
        "if bs is not None and bs > PLAN_BS_BLOCK_SIZE + 1:\n        yield (",
    ),
    _weak(
        "a staged batch one too large",
        "if bs is not None and bs > PLAN_BS_BLOCK_SIZE:\n        yield f",
        "if bs is not None and bs > PLAN_BS_BLOCK_SIZE + 1:\n        yield f",
    ),
    _weak(
        "one write row too few",
        "bs is not None and capacity is not None and bs > capacity",
        "bs is not None and capacity is not None and bs > capacity + 1",
    ),
    _weak(
        "a window needs no mapping",
        "return swa_window_size <= 0 or mapping is not None",
        "return swa_window_size <= 2 or mapping is not None",
    ),
    _weak(
        "a smaller capacity matches",
        "columns_len is not None and capacity != columns_len",
        "columns_len is not None and capacity > columns_len",
    ),
    _weak(
        "a larger capacity matches",
        "columns_len is not None and capacity != columns_len",
        "columns_len is not None and capacity < columns_len",
    ),
    _weak("longer offsets match", "offsets_len != capacity + 1", "offsets_len < capacity + 1"),
    _weak("shorter offsets match", "offsets_len != capacity + 1", "offsets_len > capacity + 1"),
    _weak("a larger stride matches", "and given != actual", "and given < actual"),
    _weak("a smaller stride matches", "and given != actual", "and given > actual"),
    _weak("a longer array matches", _LENGTH, _LENGTH.replace("got != n", "got < n")),
    _weak("a shorter array matches", _LENGTH, _LENGTH.replace("got != n", "got > n")),
    _weak("a scratch one too short", _LENGTH, _LENGTH.replace("got < n if", "got < n - 1 if")),
    _weak("a scratch of its least length alone", _LENGTH, _LENGTH.replace("got < n if", "got != n if")),
    _weak(
        "int32 for int64", _DTYPE, 'if name != tensor.dtype and (tensor.dtype, name) != ("int64", "int32"):'
    ),
    _weak(
        "int64 for int32", _DTYPE, 'if name != tensor.dtype and (tensor.dtype, name) != ("int32", "int64"):'
    ),
    _weak("the other byte order", _DTYPE, 'if name != tensor.dtype and not name.startswith(">"):'),
    _weak("more dimensions", "if len(info.shape) != tensor.ndim:", "if len(info.shape) < tensor.ndim:"),
    _weak("fewer dimensions", "if len(info.shape) != tensor.ndim:", "if len(info.shape) > tensor.ndim:"),
    _weak("a backward array is contiguous", "stride != expected:", "abs(stride) != expected:"),
    _weak("a table's columns anywhere", "info.strides[1] == 1", "info.strides[1] > 0"),
    _weak("rows may overlap by one", "stride < info.shape[1]:", "stride < info.shape[1] - 1:"),
    _weak("one row has a stride", _STRIDED, "if info.strides is None or rows < 1 or width == 0:"),
    _weak("no column has a stride", _STRIDED, "if info.strides is None or rows <= 1:"),
    _weak("inputs must be writable", "if tensor.output and not info.writable:", "if not info.writable:"),
    _weak(
        "valid lengths are checked without a table",
        "[name for name in names if name != _VALID_LENS or arguments[_TOKENS] is not None]",
        "names",
    ),
    _weak(
        "valid lengths are wanted without a table",
        "if _TOKENS in call.infos and _VALID_LENS not in call.infos:",
        "if _VALID_LENS not in call.infos:",
    ),
    _weak(
        "entries before offsets",
        "    yield from _offsets_rules(call)\n    yield from _entries_rules(call)\n",
        "    yield from _entries_rules(call)\n    yield from _offsets_rules(call)\n",
    ),
    _weak(
        "dtypes before contiguity",
        f"{_RULE_1}{_RULE_2}{_OFFSETS_RULE_3}",
        f"{_RULE_2}{_RULE_1}{_OFFSETS_RULE_3}",
    ),
    _weak(
        "shapes before the mapping's length",
        f"{_ENTRIES_RULE_3}{_RULE_8}{_RULE_9}{_RULE_10}",
        f"{_ENTRIES_RULE_3}{_RULE_8}{_RULE_10}{_RULE_9}",
    ),
    _weak("2**48 positions are too many", _PAGES, _PAGES.replace(">", ">=")),
    _weak("positions without pages", _PAGES, _PAGES.replace("table.shape[1] * page_size", "table.shape[1]")),
    _weak("positions in int32", _PAGES, _PAGES.replace("MOST_POSITIONS", "2**31")),
    _weak("more columns of faults match", _COLUMNS, _COLUMNS.replace("!=", "<")),
    _weak("fewer columns of faults match", _COLUMNS, _COLUMNS.replace("!=", ">")),
    _weak(
        "rows of faults may be apart",
        "if not tensor.is_table and not _is_contiguous(info):",
        "if tensor.ndim == 1 and not _is_contiguous(info):",
    ),
    _weak(
        "the mapping's length before the page size",
        f"{_OFFSETS_RULE_7}{_RULE_8}{_RULE_9}",
        f"{_OFFSETS_RULE_7}{_RULE_9}{_RULE_8}",
    ),
    _weak(
        "writable outputs before positions",
        f"{_RULE_15}{_RULES_16_17}\n\ndef _entries_rules",
        f"{_RULES_16_17}{_RULE_15}\n\ndef _entries_rules",
    ),
    _weak(
        "the last broken rule is reported",
        "for message in _RULES[launcher](call):",
        "for message in list(_RULES[launcher](call))[::-1]:",
    ),
)

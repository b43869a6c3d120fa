"""The observation of variables: each store with its value, each call, and each result."""

import asyncio
import gc
import subprocess
import sys
import textwrap
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attnshape.observation.forms import FunctionId
from attnshape.observation.watch import Invocation, ItemsValue, OtherValue, TensorValue, Value, VariableWatch, summarize
from attnshape.runtime.variables import read_variable


def observed_calls(source: str, call: str) -> list[Invocation]:
    """Return the observed calls of the functions in a source."""
    space: dict[str, Any] = {"torch": torch, "asyncio": asyncio, "LIMIT": 4}
    exec(compile(textwrap.dedent(source), "watched.py", "exec"), space)
    called = compile(call, "calling.py", "eval")
    with VariableWatch(lambda code: code.co_filename == "watched.py") as watch:
        eval(called, space)
    return watch.invocations


def bound(source: str, call: str = "f()") -> list[tuple[int, str, Value]]:
    """Return the line, the name and the value of each binding in the first call."""
    return [(binding.line, binding.name, binding.value) for binding in observed_calls(source, call)[0].bindings]


def names(source: str, call: str = "f()") -> dict[str, Value]:
    return {name: value for _, name, value in bound(source, call)}


def test_stores_have_position_and_value() -> None:
    source = """
    def f(x):
        y = x + 1
        z = (y
             * 2)
        return z
    """
    (call,) = observed_calls(source, "f(3)")
    assert [(binding.line, binding.column, binding.name, binding.value) for binding in call.bindings] == [
        (3, 4, "y", 4),
        (4, 4, "z", 8),
    ]
    assert (call.arguments, call.results, call.function.name, call.function.line) == ({"x": 3}, [(6, 8)], "f", 2)


def test_loops_bind_in_each_iteration() -> None:
    assert bound("def f():\n  for i in range(3):\n    j = i * i") == [
        (2, "i", 0),
        (3, "j", 0),
        (2, "i", 1),
        (3, "j", 1),
        (2, "i", 2),
        (3, "j", 4),
    ]


def test_unpacking_binds_each_name() -> None:
    found = names("def f():\n  a, (b, *c), d = 1, (2, 3, 4), 5\n  e = g = 6")
    assert found == {"a": 1, "b": 2, "c": ItemsValue("list", (3, 4)), "d": 5, "e": 6, "g": 6}


def test_unpacked_names_have_their_own_columns(tmp_path: Path) -> None:
    """Python 3.13 merges two stores into one instruction, with the position of the first."""
    file = tmp_path / "joined.py"
    file.write_text(
        "def f():\n    q, k, v = 1, 2, 3\n    a = b = q\n"
        "    for i, j in [(4, 5)]:\n        c = i\n    y = [i for i in (j,)]\n"
    )
    space: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), space)
    with VariableWatch(lambda code: code.co_filename == str(file)) as watch:
        space["f"]()
    lines = file.read_text().splitlines()
    found = [
        (binding.name, lines[binding.line - 1][binding.column], binding.value)
        for binding in watch.invocations[0].bindings
    ]
    pairs = [("q", 1), ("k", 2), ("v", 3), ("a", 1), ("b", 1), ("i", 4), ("j", 5), ("c", 4)]
    assert found == [*((name, name, value) for name, value in pairs), ("y", "y", ItemsValue("list", (5,)))]


def test_walrus_with_augmented_and_import_bind() -> None:
    source = """
    def f():
        if (n := 10) > 5:
            n += 1
        with open(__import__("os").devnull) as file:
            import math
        m: int = 3
        return n
    """
    found = bound(source)
    assert [(line, name) for line, name, _ in found] == [(3, "n"), (4, "n"), (5, "file"), (6, "math"), (7, "m")]
    assert [value for _, name, value in found if name == "n"] == [10, 11]


def test_deleted_and_unbound_names_are_left_out() -> None:
    assert names("def f():\n  a = 1\n  del a\n  b: int\n  c = 2") == {"a": 1, "c": 2}


def test_caught_exception() -> None:
    source = """
    def f():
        try:
            a = 1
            b = 1 / 0
        except ZeroDivisionError as error:
            c = 2
        finally:
            d = 3
        return d
    """
    (call,) = observed_calls(source, "f()")
    found = {binding.name for binding in call.bindings}
    assert found >= {"a", "c", "d", "error"}
    assert "b" not in found
    assert call.results == [(10, 3)]


def test_function_that_raises_has_no_result() -> None:
    source = """
    def g():
        a = 1
        raise ValueError
    def f():
        try:
            g()
        except ValueError:
            return 5
    """
    f, g = observed_calls(source, "f()")
    assert (f.results, g.results, g.ended) == ([(9, 5)], [], None)
    assert f.ended is not None


def test_recursive_calls_are_separate() -> None:
    calls = observed_calls("def f(n):\n  d = n\n  return f(n - 1) + d if n else d", "f(3)")
    assert [(call.arguments, call.bindings[0].value, call.results) for call in calls] == [
        ({"n": 3}, 3, [(3, 6)]),
        ({"n": 2}, 2, [(3, 3)]),
        ({"n": 1}, 1, [(3, 1)]),
        ({"n": 0}, 0, [(3, 0)]),
    ]


def test_nested_functions_are_separate() -> None:
    source = """
    def f():
        cell = 1
        def inner(x):
            nonlocal cell
            cell = x
            own = cell + 1
            return own
        inner(5)
        return cell
    """
    f, inner = observed_calls(source, "f()")
    assert (f.function.name, inner.function.name) == ("f", "f.inner")
    assert {binding.name: binding.value for binding in f.bindings}["cell"] == 1
    assert {binding.name: binding.value for binding in inner.bindings} == {"cell": 5, "own": 6}


def test_comprehensions_and_lambdas_bind_no_outer_names() -> None:
    source = """
    def f():
        i = "before"
        a = [i for i in range(3)]
        b = {k: v for k, v in zip(a, a)}
        c = list(x for x in a)
        i = [i for i in a]
        return (lambda y: y)(1)
    """
    (call,) = observed_calls(source, "f()")
    assert [binding.name for binding in call.bindings] == ["i", "a", "b", "c", "i"]
    assert call.bindings[-1].value == ItemsValue("list", (0, 1, 2))


def test_global_names_are_not_variables() -> None:
    found = names("def f():\n  global G\n  G = 3\n  own = G\n")
    assert found == {"own": 3}


GENERATORS = """
def numbers(n):
    a = n
    yield a
    b = n + 1
    yield b

def letters(k):
    c = k
    yield c

def plain(m):
    d = m
    return d

def f():
    list(numbers(1)); list(numbers(10)); list(letters(5)); plain(6); list(numbers(20)); plain(7)
    for _ in numbers(30):
        break
    first, second = numbers(100), numbers(200)
    next(first); next(second); next(first); next(second)
"""


def test_interleaved_generators_are_one_call_each() -> None:
    calls = observed_calls(GENERATORS, "f()")
    found = [(call.function.name, [b.value for b in call.bindings]) for call in calls if call.function.name != "f"]
    assert found == [
        ("numbers", [1, 2]),
        ("numbers", [10, 11]),
        ("letters", [5]),
        ("plain", [6]),
        ("numbers", [20, 21]),
        ("plain", [7]),
        ("numbers", [30]),
        ("numbers", [100, 101]),
        ("numbers", [200, 201]),
    ]


def test_yielded_value_is_not_a_result() -> None:
    (call,) = observed_calls(GENERATORS, "list(numbers(1))")
    assert (call.results, call.ended) == ([], None)


def test_closed_generator_is_one_call() -> None:
    source = """
    def g(n):
        try:
            a = n
            yield a
        finally:
            b = n + 1
    def f():
        for _ in g(1): break
        for _ in g(5): break
    """
    _, first, second = observed_calls(source, "f()")
    assert [[binding.value for binding in call.bindings] for call in (first, second)] == [[1, 2], [5, 6]]


def test_coroutines_are_one_call_each() -> None:
    source = """
    async def inner(z):
        a = z
        await asyncio.sleep(0)
        b = z + 1
        return b
    async def f():
        c = await inner(3)
        d = await inner(5)
    """
    calls = observed_calls(source, "asyncio.run(f())")
    assert [(call.function.name, [b.value for b in call.bindings]) for call in calls] == [
        ("f", [4, 6]),
        ("inner", [3, 4]),
        ("inner", [5, 6]),
    ]


def test_enclosing_integers_are_known_nearest_first() -> None:
    source = """
    class Config:
        def __init__(self):
            self.heads, self.width, self.depth, self.flag, self.name = 1, 2, 3, True, "x"
    class Model:
        def __init__(self):
            self.config, self.width, self.depth = Config(), 20, 30
        def forward(self, depth):
            return depth
    class Odd:
        __slots__ = ("heads",)
        def __getattribute__(self, name):
            raise RuntimeError(name)
        def forward(self):
            return 1
    """
    call = observed_calls(source, "Model().forward(300)")[-1]
    assert {name: call.numbers[name] for name in ("heads", "width", "depth", "LIMIT")} == {
        "heads": 1,
        "width": 20,
        "depth": 300,
        "LIMIT": 4,
    }
    assert not {"flag", "name"} & set(call.numbers)
    assert observed_calls(source, "Odd.forward(Odd())")[-1].numbers["LIMIT"] == 4


def test_previous_trace_function_is_restored() -> None:
    def before(*_: object) -> None:
        return None

    outer = sys.gettrace()
    sys.settrace(before)
    try:
        with VariableWatch(lambda code: False):
            assert sys.gettrace() is not before
        assert sys.gettrace() is before
    finally:
        sys.settrace(outer)


def test_clear_removes_invocations() -> None:
    with VariableWatch(lambda code: False) as watch:
        watch.count_call([])
        watch.invocations.append(Invocation(FunctionId("a", "b", 1), {}, {}, 0))
        watch.clear()
    assert (watch.invocations, watch._recorded) == ([], 0)


def test_tensors_are_not_kept_alive() -> None:
    references: list[weakref.ref[Tensor]] = []
    source = "def f(keep):\n  a = keep()\n  return None"
    space: dict[str, Any] = {}
    exec(compile(source, "watched.py", "exec"), space)

    def keep() -> Tensor:
        tensor = torch.ones(3)
        references.append(weakref.ref(tensor))
        return tensor

    with VariableWatch(lambda code: code.co_filename == "watched.py") as watch:
        space["f"](keep)
    gc.collect()
    assert references[0]() is None
    assert watch.invocations[0].bindings[0].value == TensorValue((3,), "float32")


WITHOUT_COLUMNS = """
from attnshape.observation.watch import NO_COLUMN, VariableWatch
def f(x):
    y = x + 1
    a, b = (y, y + 1)[:]
    return b
with VariableWatch(lambda code: code is f.__code__) as watch:
    f(1)
print([(one.line, one.column, one.name, one.value) for one in watch.invocations[0].bindings], NO_COLUMN)
"""


def test_code_without_column_information() -> None:
    command = [sys.executable, "-X", "no_debug_ranges", "-c", WITHOUT_COLUMNS]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "[(4, -1, 'y', 2), (5, -1, 'a', 2), (5, -1, 'b', 3)] -1\n"


class Named(tuple[Any, ...]):
    pass


class Broken(list[Any]):
    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError

    def __len__(self) -> int:
        raise RuntimeError


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (None, None),
        (3, 3),
        (True, OtherValue("bool")),
        (1.5, OtherValue("float")),
        ("a", OtherValue("str")),
        ({"a": 1}, OtherValue("dict")),
        ((), ItemsValue("tuple", ())),
        ([1, None], ItemsValue("list", (1, None))),
        (torch.Size([2, 3]), ItemsValue("Size", (2, 3))),
        (Named((1,)), ItemsValue("Named", (1,))),
        (Broken([1]), ItemsValue("Broken", (1,))),
        (((1, (2, (3,))),), ItemsValue("tuple", (ItemsValue("tuple", (1, OtherValue("tuple"))),))),
        (list(range(65)), OtherValue("list")),
        (torch.ones(2, 3), TensorValue((2, 3), "float32")),
        (torch.ones((), dtype=torch.bool), TensorValue((), "bool")),
        (torch.nn.Parameter(torch.ones(1, dtype=torch.float64)), TensorValue((1,), "float64")),
        (torch.ones(2, device="meta", dtype=torch.bfloat16), TensorValue((2,), "bfloat16")),
    ],
)
def test_recorded_values(value: object, kept: Value) -> None:
    assert summarize(value) == kept


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_have_no_shape(layout: torch.layout) -> None:
    value = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)], layout=layout)
    assert isinstance(summarize(value), OtherValue)


def test_more_variables_than_an_instruction_can_number() -> None:
    """An instruction of the 257th variable has a prefix, whose offset Python 3.11 reports in its place."""
    lines = [f"    x{number} = x{number - 1} + 1" for number in range(1, 700)]
    (call,) = observed_calls("\n".join(["def f(x0):", *lines, "    return x699"]), "f(0)")
    assert [(store.line, store.name, store.value) for store in call.bindings] == [
        (number + 1, f"x{number}", number) for number in range(1, 700)
    ]
    assert call.unwatched_from is None


def test_work_on_python_that_copies_all_variables_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def reads(frame: Any, name: str) -> object:
        read.append(name)
        return read_variable(frame, name)

    monkeypatch.setattr("attnshape.observation.watch.COPIES_ALL", True)
    monkeypatch.setattr("attnshape.observation.watch._MOST_COPIES", 50 * 50)
    monkeypatch.setattr("attnshape.observation.watch.read_variable", reads)

    def call(count: int) -> Invocation:
        lines = [f"    x{number} = x{number - 1} + 1" for number in range(1, count)]
        (call,) = observed_calls("\n".join(["def f(x0):", *lines, f"    return x{count - 1}"]), "f(0)")
        return call

    assert (call(50).unwatched_from, len(read)) == (None, 49)
    read.clear()
    assert call(500).unwatched_from == 7
    assert read == [f"x{number}" for number in range(1, 6)]

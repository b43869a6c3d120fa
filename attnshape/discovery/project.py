"""Finds the attention in the files of a project: by what its functions compute, call and contain."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from attnshape.discovery.flow import NOTHING, Evidence, Labels, Outcome, follow, may_matter
from attnshape.discovery.joins import elements_of, joined_attributes
from attnshape.model.targets import Kind

_LINEAR = re.compile(r"\w*Linear\w*|Conv1D|Dense(General)?")
_QUERIES = re.compile(r"q|qk|quer(y|ies)")
_KEYS = re.compile(r"k|v|kv|keys?|values?")
_MODULES = re.compile(r"MultiheadAttention|Transformer((En|De)coder(Layer)?)?")
"""torch's own modules with attention."""
_OF_OTHERS = re.compile(r"([A-Z]\w*)?(Attention|Attn)(Layer|Block|Module|\dd)?")
"""How classes with attention are named that come from outside of the project."""
_ARRAYS = frozenset({"numpy", "scipy", "jax", "flax", "tensorflow", "keras", "chainer", "mxnet", "paddle", "cupy"})
_TORCH = frozenset({"torch", "einops"})
_MOST_PASSES = 6


@dataclass(frozen=True)
class Found:
    """One function or class with attention in it."""

    file: Path
    name: str
    line: int
    kind: Kind
    why: str
    """What shows it, with its line: `softmax() at line 42`."""


Methods = dict[str, ast.FunctionDef | ast.AsyncFunctionDef]


@dataclass(eq=False)
class _Scope:
    """A function or a class of one file."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    file: _File
    outcome: dict[Labels, Outcome] = field(default_factory=dict)
    found: tuple[Kind, Evidence] | None = None
    contained: Evidence | None = None
    """What shows that it constructs a module with attention, itself or in a base class."""

    @property
    def name(self) -> str:
        return self.node.name

    @cached_property
    def identifiers(self) -> frozenset[str]:
        """Every name and attribute in it."""
        nodes = list(ast.walk(self.node))
        attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        return frozenset(attributes | {node.id for node in nodes if isinstance(node, ast.Name)})

    @cached_property
    def may_matter(self) -> bool:
        """Whether it may have a softmax or fused attention of its own."""
        return may_matter(self.identifiers) and not self.file.has_other_arrays

    @cached_property
    def softmaxes(self) -> frozenset[str]:
        """The attributes to which it assigns a softmax: `self.attend = nn.Softmax(dim=-1)`."""
        return frozenset(_softmax_attributes(self.node)) if self.may_matter else frozenset()

    @cached_property
    def inner_functions(self) -> list[ast.FunctionDef | ast.Lambda]:
        """The functions that its methods define inside."""
        methods = self.methods.values()
        inner = (node for method in methods for node in ast.walk(method) if node is not method)
        return [node for node in inner if isinstance(node, ast.FunctionDef | ast.Lambda)]

    @cached_property
    def constructed(self) -> list[tuple[str, int]]:
        """The names of what it calls, each with its line."""
        calls = [node for node in ast.walk(self.node) if isinstance(node, ast.Call)]
        return [(ast.unparse(one.func), one.lineno) for one in calls if isinstance(one.func, ast.Name | ast.Attribute)]

    @cached_property
    def attributes(self) -> list[tuple[str, int]]:
        """The names of what it calls for an attribute alone, each with its line: `self.attend = Attend()`."""
        assigned = [node for node in ast.walk(self.node) if isinstance(node, ast.Assign)]
        values = [part for one in assigned for part in _assigned_to_attributes(one)]
        calls = [one for one in values if isinstance(one, ast.Call)]
        named = [one for one in calls if isinstance(one.func, ast.Name | ast.Attribute)]
        return [(ast.unparse(one.func), one.lineno) for one in named]

    @cached_property
    def methods(self) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
        return {one.name: one for one in self.node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}

    @cached_property
    def bases(self) -> list[str]:
        return [ast.unparse(base) for base in self.node.bases] if isinstance(self.node, ast.ClassDef) else []


@dataclass
class _File:
    path: Path
    tree: ast.Module

    @cached_property
    def scopes(self) -> dict[str, _Scope]:
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        return {node.name: _Scope(node, self) for node in _top_level(self.tree) if isinstance(node, kinds)}

    @cached_property
    def has_other_arrays(self) -> bool:
        """Whether it computes with arrays of another library than torch, as a softmax in a statistical model does."""
        packages: set[str] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                packages |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
                return False  # it may import torch
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                packages.add(str(node.module).partition(".")[0])
        return packages.isdisjoint(_TORCH) and not packages.isdisjoint(_ARRAYS)

    @cached_property
    def imports(self) -> dict[str, tuple[str, str]]:
        """The imported names, each with the module and the name there, which is empty for the module itself."""
        found: dict[str, tuple[str, str]] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom):
                found |= {alias.asname or alias.name: (node.module or "", alias.name) for alias in node.names}
            elif isinstance(node, ast.Import):
                found |= {alias.asname or alias.name.split(".")[0]: (alias.name, "") for alias in node.names}
        return found


def _top_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield the statements of a module, also those inside `if` and `try`."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        for node in ast.iter_child_nodes(waiting.pop(0)):
            if isinstance(node, ast.stmt):
                yield node
            if isinstance(node, ast.If | ast.Try | ast.ExceptHandler | ast.With):
                waiting.append(node)


def find_attention(files: Sequence[tuple[Path, str]]) -> list[Found]:
    """Return the attention in source files, given as paths and texts, in their order.

    A function or class counts if its code has a softmax between two products of data, or calls fused attention; if it
    calls one that does, or inherits from it; and, as a container, if it constructs one.

    Raises:
        SyntaxError: A file isn't Python.
    """
    project = _Project([_File(path, ast.parse(text)) for path, text in files])
    project.classify()
    return [
        Found(file.path, scope.name, scope.node.lineno, kind, f"{evidence.text} at line {evidence.line}")
        for file in project.files
        for scope in sorted(file.scopes.values(), key=lambda scope: scope.node.lineno)
        if scope.found is not None
        for kind, evidence in [scope.found]
    ]


class _Project:
    def __init__(self, files: Sequence[_File]) -> None:
        self.files = files
        self._by_stem: dict[str, list[_File]] = {}
        self._functions: set[str] = set()
        """The names of functions with attention."""
        for file in files:
            stem = file.path.parent.name if file.path.stem == "__init__" else file.path.stem
            self._by_stem.setdefault(stem, []).append(file)

    def classify(self) -> None:
        """Find what each scope is, until nothing changes: a caller may come before what it calls."""
        scopes = [scope for file in self.files for scope in file.scopes.values()]
        for _ in range(_MOST_PASSES):
            before = [(scope.found, dict(scope.outcome)) for scope in scopes]
            names = {scope.name for scope in scopes if scope.found is not None}
            functions = {one.name for one in scopes if one.found is not None and isinstance(one.node, ast.FunctionDef)}
            functions |= {one.name for one in scopes if one.may_matter and _has_own_gradient(one)}
            aliases = [(alias, name) for file in self.files for alias, (_, name) in file.imports.items()]
            self._functions = functions | {alias for alias, name in aliases if name in functions}
            names |= {alias for alias, name in aliases if name in names} | self._functions
            for scope in scopes:
                if scope.found is not None and scope.found[0] == "module":
                    continue
                matters = scope.may_matter or not names.isdisjoint(scope.identifiers)
                if not matters and not any(map(_names_attention, scope.identifiers)):
                    continue
                if isinstance(scope.node, ast.ClassDef):
                    self._classify_class(scope)
                else:
                    self._classify_function(scope, scope.node)
            if before == [(scope.found, scope.outcome) for scope in scopes]:
                break
        self._leave_out_bases(scopes)
        self._mark_helpers(scopes)

    def _leave_out_bases(self, scopes: Sequence[_Scope]) -> None:
        """Drop the containers that can't be called themselves, in favour of the classes that complete them."""
        found = [scope for scope in scopes if scope.found is not None]
        completed = {id(base) for scope in found for base in self._with_bases(scope)[:-1]}
        for scope in found:
            if id(scope) in completed and scope.contained is not None and not _is_called(self._methods(scope)):
                scope.found = None

    def _mark_helpers(self, scopes: Sequence[_Scope]) -> None:
        """Tell what modules with attention call, functions and operators, from what stands for itself."""
        used = {
            id(callee)
            for scope in scopes
            if scope.found is not None and scope.found[0] == "module"
            for name in scope.identifiers
            if (callee := self._resolve_name(scope.file, name)) is not None
        }
        constructed = {
            id(inner)
            for scope in scopes
            if scope.found is not None and scope.found[0] == "module"
            for name, _ in scope.attributes
            if (inner := self._resolve_name(scope.file, name)) is not None and inner is not scope
        }
        operators = {id(scope) for scope in scopes if id(scope) in constructed and self._is_operator(scope)}
        for scope in scopes:
            is_helper = scope.found is not None and scope.found[0] == "function" and id(scope) in used
            if scope.found is not None and (is_helper or id(scope) in operators):
                scope.found = ("helper", scope.found[1])

    def _resolve_name(self, file: _File, name: str, seen: frozenset[tuple[Path, str]] = frozenset()) -> _Scope | None:
        """Return the function or class of the project that a name stands for in a file."""
        if (file.path, name) in seen:
            return None
        root, _, rest = name.partition(".")
        if not rest and root in file.scopes:
            return file.scopes[root]
        if root not in file.imports:
            return None
        module, imported = file.imports[root]
        target = rest or imported
        stems = [(module.rpartition(".")[2], target), *([(imported, rest)] if rest and imported else [])]
        for stem, wanted in stems:
            for other in self._by_stem.get(stem, []):
                if wanted in other.scopes:
                    return other.scopes[wanted]
                # a package may be called like one of its modules, which imports the name from there again
                if wanted in other.imports:
                    found = self._resolve_name(other, wanted, seen | {(file.path, name)})
                    if found is not None:
                        return found
        if not module:  # from . import name
            for other in self._by_stem.get(root, []):
                if rest in other.scopes:
                    return other.scopes[rest]
        return None

    def _outcome(self, scope: _Scope, given: Labels) -> Outcome:
        if isinstance(scope.node, ast.ClassDef):
            return Outcome()
        if given not in scope.outcome:
            scope.outcome[given] = Outcome()  # in case it calls itself
            scope.outcome[given] = follow(
                scope.node, lambda name, labels: self._called(scope.file, name, labels), given
            )
        return scope.outcome[given]

    def _called(self, file: _File, name: str, given: Labels) -> Outcome | None:
        scope = self._resolve_name(file, name)
        if scope is None and name.endswith(".apply"):  # of a torch.autograd.Function
            kind = self._resolve_name(file, name.removesuffix(".apply"))
            forward = self._methods(kind).get("forward") if kind is not None else None
            return None if forward is None else follow(forward, lambda inner, of: self._called(file, inner, of), given)
        return self._outcome(scope, given) if scope is not None else None

    def _classify_function(self, scope: _Scope, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        scope.outcome.clear()
        outcome = self._outcome(scope, NOTHING)
        own = outcome.evidence or self._through(scope.file, outcome.calls)
        scope.found = ("function", own) if own is not None else None

    def _through(self, file: _File, calls: Sequence[tuple[str, int]]) -> Evidence | None:
        """Return the call of a function with attention."""
        for name, line in calls:
            callee = self._resolve_name(file, name)
            if callee is not None and callee.found is not None and callee.found[0] == "function":
                return Evidence(f"{name}()", line)
        return None

    def _classify_class(self, scope: _Scope) -> None:
        methods = self._methods(scope)
        if not methods:
            return
        family = self._with_bases(scope)
        evidence = self._computed(scope, family, methods) if self._may_compute(family) else None
        if evidence is not None:
            scope.found = ("module" if _is_called(methods) else "container", evidence)
            return
        operator = self._first(scope, scope.attributes, self._is_operator)
        if operator is not None and _is_called(methods):
            scope.found = ("module", operator)
            return
        if (head := self._joined(scope)) is not None:
            scope.found = ("module", head)
            return
        constructed = self._first(scope, scope.constructed, lambda inner: inner.found is not None)
        of_torch = ((name, line) for name, line in scope.constructed if self._resolve_name(scope.file, name) is None)
        layers = (
            Evidence(f"{last}()", line)
            for name, line in of_torch
            if _MODULES.fullmatch(last := name.rpartition(".")[2])
            or (_OF_OTHERS.fullmatch(last) and name.partition(".")[0] in scope.file.imports)
        )
        scope.contained = constructed or next(layers, None) or self._inherited(scope)
        scope.found = ("container", scope.contained) if scope.contained is not None else None

    def _joined(self, scope: _Scope) -> Evidence | None:
        """Return the attention that a class constructs many times, for one input, and whose results it joins."""
        for name in ("forward", "__call__", "call"):
            method = scope.methods.get(name)
            for attribute in joined_attributes(method) if method is not None else ():
                assert isinstance(scope.node, ast.ClassDef)
                calls = [(ast.unparse(one.func), one.lineno) for one in elements_of(scope.node, attribute)]
                head = self._first(scope, calls, lambda inner: inner.found is not None and inner.found[0] == "module")
                if head is not None:
                    return head
        return None

    def _inherited(self, scope: _Scope) -> Evidence | None:
        """Return what shows that a base class of the project constructs a module with attention."""
        for base in scope.bases:
            parent = self._resolve_name(scope.file, base)
            if parent is not None and parent is not scope and parent.contained is not None:
                is_beside = parent.file is scope.file
                return parent.contained if is_beside else Evidence(parent.contained.text, scope.node.lineno)
        return None

    def _may_compute(self, family: Sequence[_Scope]) -> bool:
        """Return whether a class may compute attention itself, or call a function that does."""
        if any(one.may_matter for one in family):
            return True
        names = frozenset().union(*(one.identifiers for one in family))
        return not names.isdisjoint(self._functions)

    def _computed(self, scope: _Scope, family: Sequence[_Scope], methods: Methods) -> Evidence | None:
        """Return what shows that the methods of a class compute attention."""
        softmaxes = frozenset().union(*(one.softmaxes for one in family))
        outcomes: dict[str, dict[Labels, Outcome]] = {name: {} for name in methods}

        def resolve(name: str, given: Labels) -> Outcome | None:
            owner, _, method = name.partition(".")
            if owner not in ("self", "cls", "super()") or method not in methods:
                return self._called(scope.file, name, given)
            if given not in outcomes[method]:
                outcomes[method][given] = Outcome()
                outcomes[method][given] = follow(methods[method], resolve, given, softmaxes, scope.name)
            return outcomes[method][given]

        evidence: Evidence | None = None
        calls: list[tuple[str, int]] = []
        for name in methods:
            outcome = resolve(f"self.{name}", NOTHING)
            assert outcome is not None
            calls += outcome.calls
        for by_labels in outcomes.values():
            evidence = evidence or next((one.evidence for one in by_labels.values() if one.evidence is not None), None)
        return evidence or self._through(scope.file, calls) or self._nested(scope)

    def _is_operator(self, scope: _Scope) -> bool:
        """Return whether a class computes attention of queries, keys and values that its user projects."""
        if scope.found is None or scope.found[0] != "module":
            return False
        forward = self._methods(scope).get("forward")
        names = [one.arg for one in (*forward.args.args, *forward.args.kwonlyargs)] if forward is not None else []
        takes = all(any(pattern.fullmatch(name) for name in names) for pattern in (_QUERIES, _KEYS))
        return takes and not self._projects(scope, 0)

    def _projects(self, scope: _Scope, depth: int) -> bool:
        """Return whether a class constructs linear layers, itself or in the classes of the project that it has."""
        for name, _ in scope.constructed:
            if _LINEAR.fullmatch(name.rpartition(".")[2]):
                return True
            inner = self._resolve_name(scope.file, name)
            is_class = inner is not None and inner is not scope and isinstance(inner.node, ast.ClassDef)
            if is_class and inner is not None and depth < _MOST_PASSES and self._projects(inner, depth + 1):
                return True
        return False

    def _nested(self, scope: _Scope) -> Evidence | None:
        """Return the attention in a function that is defined inside a method."""
        for inner in scope.inner_functions if scope.may_matter else ():
            outcome = follow(inner, lambda name, labels: self._called(scope.file, name, labels))
            if outcome.evidence is not None:
                return outcome.evidence
        return None

    def _with_bases(self, scope: _Scope) -> list[_Scope]:
        """Return a class after its base classes in the project."""
        family: list[_Scope] = []
        waiting = [scope]
        while waiting:
            one = waiting.pop(0)
            if one not in family:
                family.insert(0, one)
                parents = (self._resolve_name(one.file, base) for base in one.bases)
                waiting += [parent for parent in parents if parent is not None]
        return family

    def _methods(self, scope: _Scope) -> Methods:
        """Return the methods of a class, those of its base classes in the project too."""
        return {name: method for one in self._with_bases(scope) for name, method in one.methods.items()}

    def _first(
        self, scope: _Scope, calls: Sequence[tuple[str, int]], counts: Callable[[_Scope], bool]
    ) -> Evidence | None:
        """Return the first of the calls that constructs a class that counts."""
        for name, line in calls:
            inner = self._resolve_name(scope.file, name)
            if inner is not None and isinstance(inner.node, ast.ClassDef) and counts(inner):
                return Evidence(f"{name.rpartition('.')[2]}()", line)
        return None


def _has_own_gradient(scope: _Scope) -> bool:
    """Return whether a class is a torch.autograd.Function, which code calls by `apply`."""
    return isinstance(scope.node, ast.ClassDef) and any(base.rpartition(".")[2] == "Function" for base in scope.bases)


def _names_attention(identifier: str) -> bool:
    return bool(_MODULES.fullmatch(identifier) or _OF_OTHERS.fullmatch(identifier))


def _is_called(methods: Methods) -> bool:
    return "forward" in methods or "__call__" in methods or "call" in methods


def _assigned_to_attributes(node: ast.Assign) -> list[ast.expr]:
    """Return the values that an assignment gives to attributes, also one of several: `self.a, self.b = A(), B()`."""
    target = node.targets[0]
    if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
        pairs = zip(target.elts, node.value.elts, strict=False)
        return [value for name, value in pairs if isinstance(name, ast.Attribute)]
    return [node.value] if isinstance(target, ast.Attribute) else []


def _softmax_attributes(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)], value=value):
                words = {
                    one.attr if isinstance(one, ast.Attribute) else getattr(one, "id", "") for one in ast.walk(value)
                }
                if any(re.fullmatch(r"\w*[sS]oftmax\w*", word) for word in words):
                    yield f"self.{name}"

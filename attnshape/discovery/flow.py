"""Follows scores, weights and contexts through the syntax tree of one function."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

Label = Literal["scores", "weights", "normalised", "weighted", "context"]
"""What a value may be: the result of a product of data; its softmax; the softmax of something else; values, each times
its weight, before their sum; weights times values."""
Labels = frozenset[Label]
NOTHING: Labels = frozenset()
_SCORES: Labels = frozenset({"scores"})
_WEIGHTS: Labels = frozenset({"weights"})
_WEIGHTED: Labels = frozenset({"weighted"})

_FUSED = re.compile(
    r"_?(scaled_dot_product|flex|memory_efficient|multi_head|multihead|flash|efficient|sdpa|varlen|paged|sage|ring_flash)"
    r"_?(attention|attn)(_\w+)?|flash_attn\w*|sdpa|sageattn"
)
_SOFTMAX = re.compile(r"(log_|gumbel_|masked_|quiet_)?softmax(_?(one|1|off_by_one|n))?|sparsemax|entmax\w*|Softmax")
_PRODUCTS = frozenset(
    {"matmul", "bmm", "baddbmm", "einsum", "einsum_exp", "mm", "dot", "tensordot", "inner", "contract"}
)
_NAMED = re.compile(r"[aA]tt(entio)?n(?!_?([mM]ask|[pP]ool))|\bGAT|GraphAtt")
_LEARNED_DATA = re.compile(r"quer|latent|memor|(^|_)keys?$|mem_")
"""The names of parameters that stand for tokens, as learned queries do."""
_QUERY = re.compile(r"(^|_)x?qs?($|_)|quer(y|ies)", re.IGNORECASE)
_KEY = re.compile(r"(^|_)x?ks?($|_)|(^|_)keys?($|_)", re.IGNORECASE)
_NO_VALUES = re.compile(r"mask|drop|keep|valid|adj|visible|pad", re.IGNORECASE)
"""The names of what weights are multiplied by to leave some of them out."""
_QUERY_OR_KEY = re.compile(r"(^|_)(q|k|qs|ks|quer(y|ies)|keys?)($|_)|quer(y|ies)|key")


@dataclass(frozen=True)
class Evidence:
    """Why code counts as attention: the call that shows it, and its line."""

    text: str
    line: int


@dataclass(frozen=True)
class Outcome:
    """What a function does with its arguments."""

    returns: Labels = NOTHING
    evidence: Evidence | None = None
    """Where the function itself multiplies weights by values, or calls fused attention."""
    calls: tuple[tuple[str, int], ...] = ()
    """The names of what it calls or passes on, each with its line."""


Resolve = Callable[[str, Labels], Outcome | None]
"""Returns what a function does that is called by this name with arguments of these labels; None if it isn't known."""


@dataclass
class _Flow:
    """The walk through one function."""

    resolve: Resolve
    softmaxes: frozenset[str]
    """The attributes that hold a softmax: `self.attend`."""
    labels: dict[str, Labels] = field(default_factory=dict)
    returns: Labels = NOTHING
    evidence: Evidence | None = None
    products: int = 0
    calls: dict[str, int] = field(default_factory=dict)
    is_named_attention: bool = False
    """Whether the name of the function or its class says that it is attention."""
    is_message: bool = False
    """Whether it is the method by which a graph's edges make messages, as torch_geometric calls it."""
    _has_queries: bool = False
    """Whether a product had an operand named as queries or keys."""
    _softmax: Evidence | None = None

    def statements(self, body: Iterable[ast.stmt]) -> None:
        for statement in body:
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign(targets=targets, value=value):
                labels = self.of(value)
                for target in targets:
                    self._bind(target, labels, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._bind(target, self.of(value), value)
            case ast.AugAssign(target=target, op=ast.Mult(), value=value):
                self._bind(target, self._elementwise(target, value), None)
            case ast.AugAssign(target=target, value=value):
                self._bind(target, self.of(value) | self.of(target), None)
            case ast.Return(value=ast.expr() as value):
                self.returns |= self.of(value)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return
            case ast.For() | ast.While():
                # what one iteration makes the next may use
                for _ in range(2):
                    self._children(node)
            case _:
                self._children(node)

    def _children(self, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                self._statement(child)
            elif isinstance(child, ast.expr):
                self.of(child)
            else:
                self._children(child)

    def _bind(self, target: ast.expr, labels: Labels, value: ast.expr | None) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            values = value.elts if isinstance(value, ast.Tuple | ast.List) else []
            apart = len(values) == len(target.elts) and not any(isinstance(one, ast.Starred) for one in target.elts)
            for place, one in enumerate(target.elts):
                self._bind(one, self.of(values[place]) if apart else labels, None)
        elif isinstance(target, ast.Starred):
            self._bind(target.value, labels, None)
        elif isinstance(target, ast.Subscript):
            name = _dotted(target.value)
            self.labels[name] = self.labels.get(name, NOTHING) | labels
        elif name := _dotted(target):
            self.labels[name] = labels

    def of(self, node: ast.expr) -> Labels:
        """Return what an expression may be."""
        match node:
            case ast.Name() | ast.Attribute() if (name := _dotted(node)) in self.labels:
                return self.labels[name]
            case ast.Name(id=name):
                self.calls.setdefault(name, node.lineno)  # a function may be called where it is passed to
                return NOTHING
            case ast.Attribute(value=value):
                return self.of(value)
            case ast.BinOp(left=left, op=ast.MatMult(), right=right):
                return self._product(node, [left, right])
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                return self._elementwise(left, right)
            case ast.Call():
                return self._call(node)
            case ast.Lambda(body=body):
                return self.of(body)
            case ast.Subscript(value=value):
                self.of(node.slice)
                return self.of(value)
            case ast.Compare():
                self._children(node)
                return NOTHING
        labels: set[Label] = set()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                labels |= self.of(child)
            elif isinstance(child, ast.comprehension):
                self._bind(child.target, self.of(child.iter), None)
            elif isinstance(child, ast.keyword):
                labels |= self.of(child.value)
        return frozenset(labels)

    def _call(self, node: ast.Call) -> Labels:
        called = _called(node)
        name = _dotted(called)
        last = called.attr if isinstance(called, ast.Attribute) else name
        receiver = [called.value] if isinstance(called, ast.Attribute) else []
        args = [*node.args, *(keyword.value for keyword in node.keywords)]
        if name:
            self.calls.setdefault(name, node.lineno)
        # a submodule may have such a name too
        if _FUSED.fullmatch(last) and len(args) >= 2 and not name.startswith("self."):
            self.evidence = self.evidence or Evidence(_short(node), node.lineno)
            return frozenset({"context"})
        if _SOFTMAX.fullmatch(last) or name in self.softmaxes:
            of = receiver if not args or (receiver and not _is_namespace(called)) else []
            labels = frozenset().union(*(self.of(one) for one in (*of, *args)))
            self._softmax = Evidence(_short(node), node.lineno)
            return frozenset({"weights" if "scores" in labels else "normalised"})
        if last in ("exp", "exp_"):  # a softmax in steps, normalised before or after
            labels = frozenset().union(*(self.of(one) for one in (*receiver, *args)))
            if "scores" in labels:
                self._softmax = Evidence(_short(node), node.lineno)
                return labels | _WEIGHTS
            return labels
        if last in _PRODUCTS:
            own = receiver if receiver and not _is_namespace(called) else []
            operands = [*own, *(one for one in args if not _is_text(one))]
            if len(operands) == 1 and isinstance(operands[0], ast.Tuple | ast.List):
                operands = operands[0].elts  # einsum("…", (q, k))
            return self._product(node, operands)
        if last in ("mul", "multiply") and len(node.args) == 1 + _is_namespace(called) and not node.keywords:
            return self._elementwise(*([] if _is_namespace(called) else receiver), *node.args)
        if last == "sum" and receiver:
            return self._sum(node, called, receiver[0])
        given = frozenset().union(*(self.of(one) for one in (*receiver, *args))) if (receiver or args) else NOTHING
        outcome = self.resolve(name, given) if name else None
        return given if outcome is None else outcome.returns | (given & {"context"})

    def _product(self, node: ast.expr, operands: list[ast.expr]) -> Labels:
        labels = [self.of(operand) for operand in operands]
        every = frozenset().union(*labels)
        data = [one for one, of in zip(operands, labels, strict=True) if of or not self._is_parameter(one)]
        if len(data) < 2:
            return every
        self.products += 1
        self._has_queries = self._has_queries or any(_is_query_or_key(one) for one in operands)
        # linear attention has a softmax of queries or keys; additive attention one of sums
        is_linear = self.products > 1 and self._has_queries
        if "weights" in every or ("normalised" in every and (is_linear or self.is_named_attention)):
            softmax = self._softmax or Evidence(_short(node), node.lineno)
            self.evidence = self.evidence or softmax
            return frozenset({"context"})
        return every | _SCORES

    def _elementwise(self, left: ast.expr, right: ast.expr) -> Labels:
        """Return what a product of elements is: scores of queries and keys, or values that are summed later.

        The result of the method `message` is summed over the neighbours.
        """
        pairs = ((left, right), (right, left))
        labels = {id(one): self.of(one) for one in (left, right)}
        every = labels[id(left)] | labels[id(right)]
        if any(_has_name(one, _QUERY) and _has_name(other, _KEY) for one, other in pairs):
            return every | _SCORES
        weights = [one for one in (left, right) if self._are_weights(labels[id(one)])]
        if self.is_message and weights and self._softmax is not None:
            self.evidence = self.evidence or self._softmax
            return frozenset({"context"})
        values = [one for one in (left, right) if not self._are_weights(labels[id(one)])]
        is_weighted = len(weights) == 1 and not _is_text(values[0]) and not _has_name(values[0], _NO_VALUES)
        return every | _WEIGHTED if is_weighted else every

    def _are_weights(self, labels: Labels) -> bool:
        return "weights" in labels or ("normalised" in labels and self.is_named_attention)

    def _sum(self, node: ast.Call, called: ast.expr, receiver: ast.expr) -> Labels:
        """Return what a sum is: of a product of elements it is a product of tensors; of weighted values a context.

        One that keeps its axis is what weights are divided by.
        """
        of_function = _is_namespace(called) and bool(node.args)
        summed = node.args[0] if of_function else receiver
        keywords = {one.arg: one.value for one in node.keywords}
        has_axis = len(node.args) > of_function or not keywords.keys().isdisjoint(("dim", "axis"))
        if (
            isinstance(summed, ast.BinOp)
            and isinstance(summed.op, ast.Mult)
            and (not of_function or (has_axis and "keepdim" not in keywords))
        ):
            return self._product(node, [summed.left, summed.right])
        labels = self.of(summed)
        if "weighted" in labels and has_axis and "keepdim" not in keywords and self._softmax is not None:
            self.evidence = self.evidence or self._softmax
            return frozenset({"context"})
        return labels - _WEIGHTED

    def _is_parameter(self, node: ast.expr) -> bool:
        """Return whether an operand is a weight: an attribute, perhaps as a view, that stands for no tokens.

        An attribute that the function itself binds stands for some, as keys do that it keeps for later calls.
        """
        while isinstance(node, ast.Call | ast.Attribute | ast.Subscript):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
                return _dotted(node) not in self.labels and not _LEARNED_DATA.search(node.attr)
            if isinstance(node, ast.Call):
                # a call of a submodule makes data
                if _dotted(node.func).startswith("self.") and _dotted(node.func).count(".") == 1:
                    return False
                node = node.func
            else:
                node = node.value
        return False


def may_matter(identifiers: Iterable[str]) -> bool:
    """Return whether code with these identifiers may have a softmax, or fused attention."""
    return any(_SOFTMAX.fullmatch(one) or _FUSED.fullmatch(one) or one in ("exp", "exp_") for one in identifiers)


def follow(
    function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda,
    resolve: Resolve,
    given: Labels = NOTHING,
    softmaxes: frozenset[str] = frozenset(),
    owner: str = "",
) -> Outcome:
    """Return what a function does whose arguments have these labels.

    Args:
        function: The function's syntax tree.
        resolve: Returns what the functions do that it calls.
        given: What its arguments may be.
        softmaxes: The attributes that hold a softmax, such as `self.attend`.
        owner: The name of its class.
    """
    names = f"{owner} {getattr(function, 'name', '')}"
    is_message = bool(owner) and getattr(function, "name", "") == "message"
    flow = _Flow(resolve, softmaxes, is_named_attention=bool(_NAMED.search(names)), is_message=is_message)
    arguments = function.args
    for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        flow.labels[one.arg] = given
    if isinstance(function, ast.Lambda):
        flow.returns = flow.of(function.body)
    else:
        flow.statements(function.body)
    return Outcome(flow.returns, flow.evidence, tuple(flow.calls.items()))


def _called(node: ast.Call) -> ast.expr:
    """Return what a call calls; the class of a softmax that is made there: `nn.Softmax(dim=-1)(scores)`."""
    match node.func:
        case ast.Call(func=made) if _SOFTMAX.fullmatch(_dotted(made).rpartition(".")[2]):
            return made
    return node.func


def _dotted(node: ast.AST) -> str:
    """Return a chain of names such as `self.attn.to_q`; empty if the expression is something else."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name):
            owner = _dotted(value)
            return f"{owner}.{name}" if owner else ""
    return ""


def _is_namespace(function: ast.expr) -> bool:
    """Return whether a function is looked up in a module such as `torch` or `F`, and not on a tensor."""
    root = _dotted(function).split(".")[0]
    return root in ("torch", "F", "nn", "functional", "einops", "np", "math", "xops", "xformers", "ops")


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant | ast.JoinedStr)


def _has_name(node: ast.expr, pattern: re.Pattern[str]) -> bool:
    """Return whether a name in an expression, or of what it is an attribute, matches a pattern."""
    nodes = list(ast.walk(node))
    names = [one.id for one in nodes if isinstance(one, ast.Name)]
    return any(
        pattern.search(name) for name in (*names, *(one.attr for one in nodes if isinstance(one, ast.Attribute)))
    )


def _is_query_or_key(node: ast.expr) -> bool:
    return any(isinstance(one, ast.Name) and _QUERY_OR_KEY.search(one.id) for one in ast.walk(node))


def _short(node: ast.expr) -> str:
    """Return the name of what an expression calls."""
    if not isinstance(node, ast.Call):
        return "@"
    called = _called(node)
    return f"{called.attr if isinstance(called, ast.Attribute) else _dotted(called)}()"

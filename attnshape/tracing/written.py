"""How a call that was seen stands in the source."""

from __future__ import annotations

import ast
import builtins

from torch import Tensor

from attnshape.tracing.call import Call
from attnshape.tracing.naming import calls_itself, plain_variables
from attnshape.tracing.operations import takes_receiver


def is_of(node: ast.AST, call: Call) -> bool:
    """Say whether the node is the call itself, and not that of something which makes it, as `sum(rows)` does."""
    if not call.is_module and call.opaque is None:
        return calls_itself(node, call.name)
    return isinstance(node, ast.Call) and not hasattr(builtins, getattr(node.func, "id", ""))


def by_tensor(variables: list[tuple[str, Tensor]]) -> dict[int, str]:
    """Return each tensor's first variable, by the tensor's id."""
    return {id(tensor): name for name, tensor in reversed(variables)}


def variables(node: ast.AST, call: Call) -> list[tuple[str, Tensor]]:
    """Return the plain variables among a call's operands, with the tensors that they stand for."""
    method = not call.is_module and takes_receiver(call.func)
    return plain_variables(node, method, call.args, call.keywords)

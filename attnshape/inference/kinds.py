"""The names of operations, by what they do to a tensor."""

from __future__ import annotations

from attnshape.model import Step

FUSED = {"scaled_dot_product_attention"}
PRODUCT = {"matmul", "bmm", "einsum", "baddbmm", "mm", "mv", "addmm", "tensordot", "inner", "linear"}
SCALE = {"mul", "mul_", "div", "div_", "true_divide", "multiply", "divide"}
MASK = {"masked_fill", "masked_fill_", "where"}
NORM = {"layer_norm"}
NONLINEAR = {"tanh", "relu", "gelu", "sigmoid", "leaky_relu", "elu", "silu", "softplus"}
DROPOUT = {"dropout", "dropout_"}
TRANSPOSE = {"transpose", "permute", "swapaxes", "swapdims", "movedim", "moveaxis", "T", "mT", "t", "H", "mH"}
SPLIT = {"chunk", "split", "unbind", "tensor_split", "split_with_sizes"}
RESHAPE = {"view", "reshape", "unflatten", "flatten", "view_as", "reshape_as"}
JOIN = {"cat", "concat", "concatenate"}
STACK = {"stack", "hstack", "vstack", "dstack", "column_stack"}
CAST = {"to", "float", "half", "bfloat16", "double", "type", "type_as", "detach", "clone"}
PARTS = {"__getitem__", "narrow", "select", "index_select"}
LAYOUT = {
    *RESHAPE,
    *TRANSPOSE,
    *SPLIT,
    *("unsqueeze", "squeeze", "expand", "expand_as", "broadcast_to", "contiguous"),
    *("repeat", "repeat_interleave"),
    *PARTS,
}
SAME_MEANING = LAYOUT | CAST


def operation_name(step: Step) -> str:
    """Return the operation's own name, without its class or module."""
    return step.operation.rpartition(".")[2]

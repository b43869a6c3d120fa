"""The taxonomy of operations: what each does to its operands, by its base name.

Every set holds base names (`add` stands for `add_` and `__add__` too); look an operation up with `base_name`.
This module imports no torch, so that what reads saved traces can use it.
"""

from __future__ import annotations

import functools


def short_name(operation: str) -> str:
    """Return an operation's name without its class or module, as people write it.

    >>> [short_name(f"torch.Tensor.{end}") for end in ("view", "__matmul__", "add_", "T.__get__")]
    ['view', 'matmul', 'add_', 'T']
    """
    short = operation.removesuffix(".__get__").rpartition(".")[2] or operation
    return short[2:-2] if short.startswith("__") and short.endswith("__") and len(short) > 4 else short


@functools.lru_cache(maxsize=4096)
def base_name(operation: str) -> str:
    """Return the name that an operation shares with its variants: in place, as an operator, and torch's private ones.

    >>> [base_name(f"torch.Tensor.{end}") for end in ("add", "add_", "__getitem__", "_unsafe_view")]
    ['add', 'add', 'getitem', 'unsafe_view']
    """
    short = short_name(operation)
    return short.strip("_") or short


# Layout: the result holds the operand's numbers at other places.
RESHAPES_TO_SIZES = frozenset({"view", "reshape", "unsafe_view"})
RESHAPES = RESHAPES_TO_SIZES | {"flatten", "unflatten", "ravel", "view_as", "reshape_as"}
PATTERNED_LAYOUT = frozenset({"rearrange"})
"""einops' reshape and transpose in one."""
TRANSPOSES = frozenset(
    {"transpose", "permute", "swapaxes", "swapdims", "movedim", "moveaxis", "t", "T", "mT", "H", "mH", "adjoint"}
)
UNIT_AXES = frozenset({"unsqueeze", "squeeze"})
EXPANSIONS = frozenset({"expand", "expand_as", "broadcast_to"})
REPEATS = frozenset({"repeat", "repeat_interleave", "tile"})
NUMBERS_SEEN_IN_RESULT = RESHAPES | PATTERNED_LAYOUT | UNIT_AXES | EXPANSIONS | TRANSPOSES
"""Operations whose numbers only affect the result's shape, strides and storage."""
SPLITS = frozenset({"chunk", "split", "split_with_sizes", "tensor_split", "unbind"})
SELECTIONS = frozenset({"getitem", "narrow", "select", "index_select"})
DIAGONALS = frozenset({"diagonal", "diag"})
"""Operations that take a matrix's diagonal; `diag` of a vector makes a matrix."""
LAYOUT = RESHAPES | TRANSPOSES | UNIT_AXES | EXPANSIONS | REPEATS | SPLITS | SELECTIONS | {"contiguous"}
"""Operations on one tensor that only move its numbers."""

CONCATENATIONS = frozenset({"cat", "concat", "concatenate"})
STACKS = frozenset({"stack", "hstack", "vstack", "dstack", "column_stack"})
JOINS = CONCATENATIONS | STACKS
GATHERS = frozenset({"embedding", "gather", "index_select", "take", "take_along_dim"})
"""Operations that take numbers from a tensor by their indices."""
LOOKUPS = GATHERS | {"index"}
"""The same below autograd, where `x[indices]` is `index`."""
DATA_MOVEMENT = LAYOUT | JOINS
"""Operations on one or several tensors that only move their numbers."""

# Copies and conversions: the same numbers at the same places.
CASTS = frozenset({"to", "float", "half", "bfloat16", "double", "type", "type_as"})
COPIES = frozenset({"contiguous", "clone", "detach"})
CUTS_GRADIENTS = frozenset({"detach", "data"})
SAME_VALUES = LAYOUT | CASTS | COPIES
"""Operations after which every number is still one of the operand's, up to rounding."""

SHAPE_FROM_SECOND = frozenset({"expand_as", "view_as", "reshape_as", "type_as"})
"""Operations that read the shape or the dtype of their second operand, not its numbers."""
SIZE_QUERIES = frozenset(
    {
        *("size", "dim", "ndimension", "numel", "nelement", "len", "stride", "storage_offset", "element_size"),
        *("is_contiguous", "is_floating_point", "is_complex", "get_device", "data_ptr", "hash"),
    }
)
"""Calls that return no tensor and read none of their operand's numbers."""
CREATED_LIKE = frozenset(
    {
        *("new_ones", "new_zeros", "new_full", "new_empty", "new_tensor"),
        *("zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like"),
    }
)
"""Constructors that read the shape, the dtype or the device of their operand, not its numbers."""
ALLOCATIONS = frozenset({"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"})
"""Constructors whose result has whatever numbers its memory had."""

# Products: sums of products of two operands' numbers.
MATMULS = frozenset({"matmul", "mm", "bmm"})
MATRIX_PRODUCTS = MATMULS | {"rmatmul", "mv", "dot", "inner", "tensordot", "einsum"}
PRODUCTS_WITH_ADDEND = frozenset({"addmm", "addmv", "addbmm", "baddbmm"})
"""Products that come after the tensor to which they are added, among the operands."""
PRODUCTS = MATRIX_PRODUCTS | PRODUCTS_WITH_ADDEND | {"linear"}
WEIGHT_IS_SECOND = frozenset({"linear", "matmul", "mm"})
"""Products whose second operand is a matrix that may be a layer's weight."""
CONVOLUTIONS = frozenset({"conv1d", "conv2d", "conv3d"})
POOLINGS = frozenset(
    f"{prefix}{kind}_pool{axes}d" for prefix in ("", "adaptive_") for kind in ("avg", "max") for axes in (1, 2, 3)
)
"""Reductions over neighbouring pixels, each channel by itself."""
GRID_SAMPLINGS = frozenset({"grid_sample", "grid_sampler"})
"""Calls that read maps at positions of (x, y), their second operand."""
FUSED_ATTENTION = frozenset({"scaled_dot_product_attention"})

# Pointwise arithmetic.
ADDITIONS = frozenset({"add", "radd"})
SUBTRACTIONS = frozenset({"sub", "subtract"})
REVERSED_SUBTRACTIONS = frozenset({"rsub"})
MULTIPLICATIONS = frozenset({"mul", "multiply", "rmul"})
DIVISIONS = frozenset({"div", "divide", "true_divide", "truediv"})
REVERSED_DIVISIONS = frozenset({"rdiv", "rtruediv"})
FLOOR_DIVISIONS = frozenset({"floordiv", "floor_divide", "rshift", "bitwise_right_shift"})
SCALINGS = MULTIPLICATIONS | DIVISIONS
EXPONENTIALS = frozenset({"exp", "exp2"})
POWERS = frozenset({"pow", "rpow", "rsqrt"})
NONLINEARITIES = frozenset({"tanh", "relu", "gelu", "sigmoid", "leaky_relu", "elu", "silu", "softplus"})
ROTATION_ARITHMETIC = frozenset(
    {
        *("neg", "sin", "cos", "polar", "complex", "real", "imag", "view_as_complex", "view_as_real"),
        *("outer", "arange", "roll", "reciprocal"),
    }
)
"""What rotary embeddings are computed by, next to sums and products."""
WAVES = frozenset({"sin", "cos"})
UNSIGNED = frozenset({"abs", "absolute", "square"})
"""What makes a number and its opposite the same."""
COMPLEX_FROM_PAIRS = frozenset({"complex", "view_as_complex"})
LOWER_BOUNDS = frozenset({"clamp", "clamp_min", "maximum"})

# Reductions.
SUMS = frozenset({"sum"})
RUNNING = frozenset({"cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"})
MAXIMA = frozenset({"max", "amax", "logsumexp"})
"""Reductions whose result is at least the maximum: what a stable softmax subtracts."""
REAL_FOURIER = frozenset({"fft_rfft", "fft_rfft2", "fft_rfftn"})
"""Transforms of real numbers, which keep half of the frequencies along the last axis that they transform."""
REAL_INVERSE_FOURIER = frozenset({"fft_irfft", "fft_irfft2", "fft_irfftn"})
SORTS = frozenset({"topk", "sort", "argsort", "kthvalue"})

VECTOR_NORMS = frozenset({"norm", "linalg_vector_norm", "linalg_norm", "vector_norm", "frobenius_norm"})
"""Reductions of vectors to their lengths."""

# Comparisons and masks.
ORDER_COMPARISONS = frozenset({"ge", "gt", "le", "lt", "greater", "less", "greater_equal", "less_equal"})
EQUALITY_COMPARISONS = frozenset({"eq", "ne", "not_equal"})
CHOICES = (SORTS | ORDER_COMPARISONS | EQUALITY_COMPARISONS) | {
    *("argmax", "argmin", "max", "min", "median", "mode", "nonzero", "multinomial", "bucketize", "searchsorted")
}
"""Operations whose integer or boolean results say which numbers are chosen."""
TRIANGLES = frozenset({"tril", "triu"})
LOGICAL = frozenset({"and", "or", "iand", "ior", "logical_and", "logical_or", "bitwise_and", "bitwise_or"})
MASKS = frozenset({"masked_fill", "where"})

# Writes to a part of a tensor.
ELEMENT_WRITES = frozenset({"setitem"})
INDEXED_ADDITIONS = frozenset({"index_add", "scatter_add"})
INDEXED_REDUCTIONS = INDEXED_ADDITIONS | {"scatter_reduce", "segment_reduce", "scatter", "index_put"}
"""Operations that may sum numbers by their indices, the others than additions by an argument that says so."""
FILLS = ELEMENT_WRITES | {"copy", "index_copy", "index_put", "scatter", "set"}
INDEXED_WRITES = INDEXED_REDUCTIONS | {"index_copy", "index_fill", "masked_scatter"}
"""Operations that write, in place, to the elements at some indices only."""

# Layers.
SOFTMAXES = frozenset({"softmax", "safe_softmax"})
LOG_SOFTMAXES = frozenset({"log_softmax"})
CHANNEL_NORMS = frozenset({"group_norm", "batch_norm", "instance_norm"})
"""Normalisations that take axis 1 for the channels."""
TOKEN_NORMS = frozenset({"layer_norm", "native_layer_norm", "rms_norm"})
NORMS = TOKEN_NORMS | {"batch_norm"}
DROPOUTS = frozenset({"dropout", "alpha_dropout", "feature_dropout", "native_dropout"})
RANDOM = DROPOUTS | {"bernoulli", "rand", "rand_like"}
DRAWS = RANDOM | {
    *("randn", "randn_like", "randint", "randint_like", "randperm", "normal", "uniform", "random", "multinomial"),
    *("exponential", "poisson", "geometric", "cauchy", "log_normal"),
}
"""Calls whose result depends on a generator of random numbers."""
OVERWRITES = DRAWS | {"copy", "fill", "zero", "set"}
"""Operations that in place replace every number of their operand, and read none."""
FROM_PYTHON = frozenset({"tensor", "as_tensor", "asarray", "from_numpy", "new_tensor"})
"""Constructors of tensors from numbers that Python holds."""

NO_ARITHMETIC = (
    SAME_VALUES | DATA_MOVEMENT | LOOKUPS | SORTS | TRIANGLES | MASKS | FILLS | CREATED_LIKE | ALLOCATIONS | FROM_PYTHON
) | {
    *("lift_fresh", "alias", "masked_scatter", "masked_select", "roll", "flip", "nonzero", "index_fill"),
    *("fill", "zero", "zeros", "ones", "full", "arange", "eye", "scalar_tensor", "linspace", "tril_indices"),
    *("constant_pad_nd", "reflection_pad1d", "reflection_pad2d", "replication_pad1d", "replication_pad2d"),
    *("to_copy", "copy", "reshape_alias", "reshape_copy", "diag_embed", "slice_scatter", "select_scatter", "im2col"),
    *("bernoulli", "rand", "randn", "randint", "randperm", "normal", "uniform", "random", "multinomial", "exponential"),
    *("unique2", "unique_dim", "unique_consecutive", "searchsorted", "bucketize", "isin", "equal", "one_hot"),
    *("local_scalar_dense", "view_as_real", "view_as_complex", "complex", "real", "imag", "resize", "sgn", "sign"),
    *("max_pool2d_with_indices", "upsample_nearest2d", "nested_view_from_buffer"),
}
"""Operations that only move, choose, compare for order, or fill in numbers."""

FAMILIES: tuple[frozenset[str], ...] = (
    RESHAPES | UNIT_AXES | PATTERNED_LAYOUT,
    TRANSPOSES,
    PRODUCTS - {"linear"},
    SCALINGS,
    MASKS,
    SPLITS,
    JOINS,
    EXPANSIONS | REPEATS,
)
"""Operations that an edit may exchange for each other without changing what the step is for."""

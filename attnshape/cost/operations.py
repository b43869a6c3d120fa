"""How many floating-point operations one operation of torch takes, as terms: products of its operands' sizes.

A multiplication and an addition count as two. A function of single elements, such as `exp`, counts as one for each
element, whatever it takes inside. A reduction counts one for each element that it reads. Moving, choosing, sorting and
indexing elements, and arithmetic on integers, count as nothing, which isn't the same as unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from attnshape.tracing.operations import ADDITIONS, MULTIPLICATIONS, NO_ARITHMETIC, SUBTRACTIONS, base_name
from attnshape.tracing.tensor_access import layout_of

Terms = tuple[int, ...]
"""Numbers whose sum is the number of operations; each is a product of sizes, so that it has a formula of its own."""
_Handler = Callable[[tuple[Any, ...], Mapping[str, Any], Any], Terms]


def count_operations(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: object) -> Terms | None:
    """Return the floating-point operations of one call below autograd; None if they aren't known.

    Args:
        func: The operator, such as `torch.ops.aten.bmm.default`.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        result: What it returned.

    >>> a, b = torch.ones(2, 3, 4), torch.ones(2, 4, 5)
    >>> count_operations(torch.ops.aten.bmm.default, (a, b), {}, torch.bmm(a, b)) == (2 * 2 * 3 * 5 * 4,)
    True
    """
    packet = getattr(func, "overloadpacket", func)
    name = getattr(packet, "__name__", "")
    operands, results = tensors_within((*args, *kwargs.values())), tensors_within(result)
    if getattr(func, "is_view", False) or base_name(name) in NO_ARITHMETIC:
        return ()
    if any(layout_of(one) is not None for one in (*operands, *results)):
        return None
    if results and not any(one.is_floating_point() or one.is_complex() for one in results):
        return ()
    if not results and getattr(func, "_schema", None) is not None and func._schema.returns:  # a number for Python
        return ()
    if any(one.is_complex() for one in (*operands, *results)):
        return _of_complex(packet, name, args, kwargs, result)
    if (handler := _HANDLERS.get(name) or _HANDLERS.get(base_name(name))) is not None:
        return handler(args, kwargs, result)
    if packet in flop_registry:
        return (_registered(packet, args, kwargs, result),)
    tags = getattr(func, "tags", ())
    if torch.Tag.reduction in tags or _reduces(name, args):
        return (_largest(operands),)
    if torch.Tag.pointwise in tags:
        return (_largest(results),)
    return None


def count_products(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: object) -> Terms:
    """Return those of `count_operations` that are in products of matrices, in fused attention, and in convolutions."""
    packet = getattr(func, "overloadpacket", func)
    name = getattr(packet, "__name__", "")
    if name in _PRODUCTS or packet in flop_registry:
        counted = count_operations(func, args, kwargs, result) or ()
        return counted[:2] if _HANDLERS.get(name) is _attention else counted
    return ()


def _registered(packet: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: object) -> int:
    return int(flop_registry[packet](*args, **kwargs, out_val=result))


def _of_complex(
    packet: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: object
) -> Terms | None:
    """Return the operations on complex numbers, in real ones.

    An addition is two, a multiplication four multiplications and two additions, one by a real number two
    multiplications. So a product of matrices is four times one of real numbers.
    """
    short = base_name(name)
    size = _largest(tensors_within(result))
    if packet in flop_registry:
        return (4 * _registered(packet, args, kwargs, result),)
    if short in ADDITIONS | SUBTRACTIONS:
        return (2 * size,)
    if short in MULTIPLICATIONS:
        both = sum(one.is_complex() for one in tensors_within(args)) > 1
        return ((6 if both else 2) * size,)
    if short == "polar":  # a cosine, a sine, and the radius times each
        return (4 * size,)
    if short == "conj":
        return (size,)
    if short == "abs":  # two squares, their sum, its root
        return (4 * size,)
    if (handler := _HANDLERS.get(name)) is _fourier:
        return handler(args, kwargs, result)
    return None


def _reduces(name: str, args: tuple[Any, ...]) -> bool:
    """Return whether a call of `max` or `min` takes those of one tensor, and not the larger of two."""
    return name in ("max", "min") and len(tensors_within(args)) == 1


def tensors_within(values: Any) -> list[Tensor]:
    """Return the tensors in a value, also those in tuples and lists."""
    found: list[Tensor] = []
    for value in values if isinstance(values, (tuple, list)) else (values,):
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            found += tensors_within(value)
    return found


def _largest(tensors: list[Tensor]) -> int:
    return max((one.numel() for one in tensors), default=0)


def _rows(tensor: Tensor, axis: int) -> int:
    """Return how many vectors along an axis a tensor has."""
    return tensor.numel() // max(tensor.shape[axis], 1) if tensor.dim() else 1


def _softmax(args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Terms:
    """Five for each element: the row's maximum, subtract it, exponentiate, sum, divide."""
    return (5 * args[0].numel(),)


def _log_softmax(args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Terms:
    """Five for each element: maximum, subtract it, exponentiate, sum, subtract; and a logarithm for each row."""
    return (5 * args[0].numel(), _rows(args[0], args[1]))


def _logsumexp(args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Terms:
    """Four for each element, maximum, subtract, exponentiate, sum; for each result a logarithm and an addition."""
    return (4 * args[0].numel(), 2 * result.numel())


def _mean(args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Terms:
    """A sum, and a division for each result."""
    return (args[0].numel(), result.numel())


def _variance(args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Terms:
    """Four for each element, for the mean, the difference, its square and their sum; two divisions for each result."""
    return (4 * args[0].numel(), 2 * tensors_within((result,))[0].numel())


def _deviation(args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Terms:
    """A variance, and a square root for each result."""
    return (4 * args[0].numel(), 3 * tensors_within((result,))[0].numel())


def _vector_norm(args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Terms:
    """For each element its power and an addition, for each result a root."""
    return (2 * args[0].numel(), result.numel())


def _layer_norm(args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Terms:
    """For each element: the mean, the difference, its square, their sum, and times the inverse deviation.

    The weight and the bias take one more each. For each row: two divisions, the epsilon and the inverse root.
    """
    values, shape, weight, bias = args[:4]
    per_element = 5 + (weight is not None) + (bias is not None)
    return (per_element * values.numel(), 4 * (values.numel() // max(math.prod(shape), 1)))


def _rms_norm(args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Terms:
    """For each element: its square, their sum, times the inverse root, and the weight; for each row three more."""
    values, shape, weight = args[:3]
    return ((3 + (weight is not None)) * values.numel(), 3 * (values.numel() // max(math.prod(shape), 1)))


def _group_norm(args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Terms:
    """As a layer norm over the features and positions of each group."""
    values, weight, bias, batch, _, _, groups = args[:7]
    per_element = 5 + (weight is not None) + (bias is not None)
    return (per_element * values.numel(), 4 * batch * groups)


def _batch_norm(args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Terms:
    """In evaluation, subtract and multiply; in training, the mean and the variance as well; then weight and bias."""
    values, weight, bias = args[:3]
    training = any(argument is True for argument in args[5:6])
    per_element = (5 if training else 2) + (weight is not None) + (bias is not None)
    return (per_element * values.numel(), (4 if training else 2) * values.shape[1])


def _dropout(args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Terms:
    """The mask and the scale, one multiplication each."""
    return (2 * args[0].numel(),)


def _scan(args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Terms:
    """One for each element."""
    return (args[0].numel(),)


def _add_at_indices(args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Terms:
    """One addition for each element that is added."""
    return (tensors_within(args)[-1].numel(),)


def _matrix_vector(args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Terms:
    """Two for each element of the matrix."""
    return (2 * _largest(tensors_within(args)),)


def _dot(args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Terms:
    """Two for each element."""
    return (2 * args[0].numel(),)


def _distances(args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Terms:
    """For each pair and each feature: the difference, its power, an addition; for each pair a root."""
    return (3 * result.numel() * args[0].shape[-1], result.numel())


def _trilinear(args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Terms:
    """For each combination of all axes two multiplications and an addition: `torch.bilinear`'s kernel."""
    sizes = [1] * max(len(expanded) + one.dim() for one, expanded in zip(args[:3], args[3:6], strict=True))
    for one, expanded in zip(args[:3], args[3:6], strict=True):
        shape = list(one.shape)
        for axis in sorted(expanded):
            shape.insert(axis, 1)
        sizes = [max(size, other) for size, other in zip(sizes, shape, strict=True)]
    return (3 * math.prod(sizes),)


def _attention(args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Terms:
    """The two products of attention, and for each score its scale and a softmax; an additive mask adds one.

    Every pair of a query and a key counts, also where `is_causal` or a block mask makes it needless. What the functions
    that are given to flex_attention compute isn't counted.
    """
    query, key, value = args[:3]
    scores = math.prod(query.shape[:-1]) * key.shape[-2]
    masks = [one for one in tensors_within((*args[3:], *kwargs.values())) if one.is_floating_point()]
    return (2 * scores * query.shape[-1], 2 * scores * value.shape[-1], (6 + bool(masks)) * scores)


def _three(args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Terms:
    """Three for each element: a difference or a factor, a product or a quotient, and a sum."""
    return (3 * result.numel(),)


def _squared_error(args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Terms:
    """For each element a difference, its square, and an addition where they are summed up, at last with a division."""
    return ((2 + (result.dim() == 0)) * args[0].numel(), int(result.dim() == 0))


def _sum_or_difference(args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Terms:
    """One for each element, and one more where `alpha` scales the second operand."""
    return ((1 + (kwargs.get("alpha", 1) != 1)) * result.numel(),)


def _average_pool(args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Terms:
    """For each result, a sum over its window, and a division."""
    return (math.prod(args[1]) * result.numel(), result.numel())


def _fourier(args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Terms:
    """The usual figure for a fast Fourier transform: 5·n·log2(n) for n complex numbers, half of it for real ones."""
    values = args[0] if args[0].numel() >= result.numel() else result
    length = math.prod(values.shape[axis] for axis in args[1])
    factor = 5 if args[0].is_complex() and result.is_complex() else 2.5
    return (round(factor * values.numel() * math.log2(max(length, 1))),)


def _bilinear_resize(args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Terms:
    """For each result four products with weights, and three additions."""
    return (7 * result.numel(),)


def _softmax_gradient(args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Terms:
    """For each element: the gradient times the weight, their sum, the difference, times the weight."""
    return (4 * result.numel(),)


def _layer_norm_gradient(args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Terms:
    """Ten for each element: two for the normalized value, one for the weight, three for two sums, four for the rest.

    The gradient of the weight takes two more, that of the bias one.
    """
    wanted = args[7] if len(args) > 7 else (True, True, True)
    per_element = 10 * bool(wanted[0]) + 2 * bool(wanted[1]) + bool(wanted[2])
    return (per_element * args[0].numel(),)


_HANDLERS: dict[str, _Handler] = {
    "_softmax": _softmax,
    "_safe_softmax": _softmax,
    "_log_softmax": _log_softmax,
    "logsumexp": _logsumexp,
    "mean": _mean,
    "var": _variance,
    "var_mean": _variance,
    "std": _deviation,
    "std_mean": _deviation,
    "linalg_vector_norm": _vector_norm,
    "norm": _vector_norm,
    "native_layer_norm": _layer_norm,
    "_fused_rms_norm": _rms_norm,
    "native_group_norm": _group_norm,
    "native_batch_norm": _batch_norm,
    "_native_batch_norm_legit": _batch_norm,
    "_native_batch_norm_legit_no_training": _batch_norm,
    "native_dropout": _dropout,
    "native_dropout_backward": _dropout,
    "_softmax_backward_data": _softmax_gradient,
    "native_layer_norm_backward": _layer_norm_gradient,
    "mse_loss": _squared_error,
    "addcmul": _three,
    "addcdiv": _three,
    "lerp": _three,
    "add": _sum_or_difference,
    "sub": _sum_or_difference,
    "rsub": _sum_or_difference,
    "avg_pool2d": _average_pool,
    "avg_pool3d": _average_pool,
    "upsample_bilinear2d": _bilinear_resize,
    "_fft_r2c": _fourier,
    "_fft_c2r": _fourier,
    "_fft_c2c": _fourier,
    "cumsum": _scan,
    "cumprod": _scan,
    "cummax": _scan,
    "logcumsumexp": _scan,
    "scatter_add": _add_at_indices,
    "scatter_add_": _add_at_indices,
    "index_add": _add_at_indices,
    "index_add_": _add_at_indices,
    "scatter_reduce": _add_at_indices,
    "scatter_reduce_": _add_at_indices,
    "mv": _matrix_vector,
    "addmv": _matrix_vector,
    "dot": _dot,
    "vdot": _dot,
    "_cdist_forward": _distances,
    "_trilinear": _trilinear,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention": _attention,
    "_scaled_dot_product_efficient_attention": _attention,
    "_scaled_dot_product_cudnn_attention": _attention,
    "flex_attention": _attention,
}
"""The handler of each operator that neither torch's registry nor its tags count right, by the operator's name."""
_PRODUCTS = frozenset(name for name, one in _HANDLERS.items() if one in (_matrix_vector, _dot, _trilinear, _attention))

"""Numbers that count the operations on them, and loops over them that compute what torch's operators do."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

_done: list[int] = [0]


@contextmanager
def counted() -> Iterator[list[int]]:
    """Yield a list whose only element is the number of operations since then."""
    _done[0] = 0
    yield _done


def _count(value: float) -> Number:
    _done[0] += 1
    return Number(value)


@dataclass(frozen=True)
class Number:
    """A number whose every sum, product, comparison and function counts as one operation."""

    value: float

    def __add__(self, other: Number) -> Number:
        return _count(self.value + other.value)

    def __sub__(self, other: Number) -> Number:
        return _count(self.value - other.value)

    def __mul__(self, other: Number) -> Number:
        return _count(self.value * other.value)

    def __truediv__(self, other: Number) -> Number:
        return _count(self.value / other.value)

    def larger(self, other: Number) -> Number:
        return _count(max(self.value, other.value))

    def exp(self) -> Number:
        return _count(math.exp(self.value))

    def log(self) -> Number:
        return _count(math.log(self.value))

    def root(self) -> Number:
        return _count(math.sqrt(self.value))

    def inverse_root(self) -> Number:
        return _count(1 / math.sqrt(self.value))


Vector = Sequence[Number]
Matrix = Sequence[Vector]


def total(values: Vector) -> Number:
    result = Number(0.0)
    for value in values:
        result = result + value
    return result


def largest(values: Vector) -> Number:
    result = Number(-math.inf)
    for value in values:
        result = result.larger(value)
    return result


def dot(one: Vector, other: Vector) -> Number:
    return total([a * b for a, b in zip(one, other, strict=True)])


def product(one: Matrix, other: Matrix) -> list[list[Number]]:
    return [[dot(row, column) for column in zip(*other, strict=True)] for row in one]


def softmax(row: Vector) -> list[Number]:
    top = largest(row)
    powers = [(value - top).exp() for value in row]
    whole = total(powers)
    return [power / whole for power in powers]


def log_softmax(row: Vector) -> list[Number]:
    top = largest(row)
    shifted = [value - top for value in row]
    whole = total([value.exp() for value in shifted]).log()
    return [value - whole for value in shifted]


def logsumexp(row: Vector) -> Number:
    top = largest(row)
    return total([(value - top).exp() for value in row]).log() + top


def mean(row: Vector) -> Number:
    return total(row) / Number(len(row))


def variance(row: Vector) -> Number:
    middle = mean(row)
    differences = [value - middle for value in row]
    return total([one * one for one in differences]) / Number(len(row) - 1)


def norm(row: Vector) -> Number:
    return total([value * value for value in row]).root()


def layer_norm(row: Vector, weight: Vector | None = None, bias: Vector | None = None) -> list[Number]:
    middle = mean(row)
    differences = [value - middle for value in row]
    spread = total([one * one for one in differences]) / Number(len(row))
    inverse = (spread + Number(1e-5)).inverse_root()
    result = [one * inverse for one in differences]
    if weight is not None:
        result = [one * other for one, other in zip(result, weight, strict=True)]
    if bias is not None:
        result = [one + other for one, other in zip(result, bias, strict=True)]
    return result


def rms_norm(row: Vector, weight: Vector) -> list[Number]:
    inverse = (total([value * value for value in row]) / Number(len(row)) + Number(1e-5)).inverse_root()
    return [value * inverse * factor for value, factor in zip(row, weight, strict=True)]


def in_evaluation(channel: Vector, middle: Number, spread: Number, weight: Number, bias: Number) -> list[Number]:
    """Batch normalization of one channel with running statistics."""
    inverse = (spread + Number(1e-5)).inverse_root()
    return [(value - middle) * inverse * weight + bias for value in channel]


def attention(query: Matrix, key: Matrix, value: Matrix, mask: Matrix | None = None) -> list[list[Number]]:
    scores = [[dot(row, column) * Number(0.5) for column in key] for row in query]
    if mask is not None:
        scores = [[s + m for s, m in zip(*rows, strict=True)] for rows in zip(scores, mask, strict=True)]
    return product([softmax(row) for row in scores], value)


def distance(one: Vector, other: Vector) -> Number:
    differences = [a - b for a, b in zip(one, other, strict=True)]
    return total([d * d for d in differences]).root()


def bilinear(one: Vector, other: Vector, weight: Matrix) -> Number:
    return total([a * weight[i][j] * b for i, a in enumerate(one) for j, b in enumerate(other)])


def mean_squared_error(one: Vector, other: Vector) -> Number:
    differences = [a - b for a, b in zip(one, other, strict=True)]
    return total([d * d for d in differences]) / Number(len(differences))


def softmax_gradient(gradient: Vector, weights: Vector) -> list[Number]:
    products = [g * w for g, w in zip(gradient, weights, strict=True)]
    whole = total(products)
    return [(g - whole) * w for g, w in zip(gradient, weights, strict=True)]


def vector(length: int) -> list[Number]:
    return [Number(1.0 + place) for place in range(length)]


def matrix(rows: int, columns: int) -> list[list[Number]]:
    return [vector(columns) for _ in range(rows)]

"""Which types of tensors jaxtyping's kinds allow: `Float` any floating point, `Int` any signed integer."""

from __future__ import annotations

_GROUPS = ("bfloat", "float", "uint", "int", "complex", "bool")
_ALLOWED = {
    "Float": ("float", "bfloat"),
    "Int": ("int",),
    "UInt": ("uint",),
    "Integer": ("int", "uint"),
    "Bool": ("bool",),
    "Complex": ("complex",),
    "Inexact": ("float", "bfloat", "complex"),
    "Real": ("float", "bfloat", "int", "uint"),
    "Num": ("float", "bfloat", "int", "uint", "complex"),
}


def allows(kind: str, dtype: str) -> bool:
    """Say whether a kind allows a tensor's type; of sized kinds only the group counts, since runs may be in another.

    >>> allows("Float", "bfloat16"), allows("Float32", "float64"), allows("Bool", "float32"), allows("Shaped", "bool")
    (True, True, False, True)
    """
    group = _group(dtype)
    plain = kind.rstrip("0123456789")
    allowed = _ALLOWED.get("Float" if plain == "BFloat" else plain)
    return allowed is None or group is None or group in allowed


def kind_of(dtype: str) -> str:
    """Return jaxtyping's kind for a type.

    >>> kind_of("bfloat16"), kind_of("int64"), kind_of("uint8"), kind_of("qint8")
    ('Float', 'Int', 'UInt', 'Shaped')
    """
    group = _group(dtype)
    return next((kind for kind, groups in _ALLOWED.items() if group in groups), "Shaped")


def _group(dtype: str) -> str | None:
    return next((group for group in _GROUPS if dtype.startswith(group)), None)

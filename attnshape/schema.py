"""The saved trace: to JSON, from JSON, and its JSON Schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from attnshape.errors import AttnshapeError
from attnshape.model import SCHEMA, Trace


def to_json(trace: Trace) -> str:
    """Return the trace as indented JSON, schema `attnshape/trace/1`."""
    return msgspec.json.format(msgspec.json.encode(trace), indent=1).decode()


def from_json(text: str | bytes, name: str = "the text") -> Trace:
    """Return the trace that `to_json` wrote.

    Raises AttnshapeError where the text isn't JSON, isn't a trace, or is one of another schema.
    """
    again = "save it anew: attnshape trace … --format json --output FILE"
    try:
        return msgspec.json.decode(text, type=Trace)
    except msgspec.ValidationError as error:
        found = _schema_of(text)
        if found != SCHEMA:
            what = f"says it is {found!r}" if found else "has no schema of ours"
            raise AttnshapeError(
                f"{name} isn't a trace that this version reads: expected {SCHEMA!r}, it {what}", again
            ) from None
        raise AttnshapeError(f"{name} isn't a whole trace: {error}", again) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise AttnshapeError(f"{name} isn't JSON, or not all of it: {error}", again) from None
    except RecursionError:
        raise AttnshapeError(f"{name} is nested too deeply to be a trace", again) from None


def read(path: Path) -> Trace:
    """Return the trace saved in a file. Raises AttnshapeError where it can't be read or isn't a trace."""
    try:
        content = path.read_bytes()
    except IsADirectoryError:
        raise AttnshapeError(f"{path} is a folder, expected a saved trace", "name the JSON file in it") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise AttnshapeError(
            f"can't read {path}: {reason}", "save a trace with: attnshape trace … --format json --output FILE"
        ) from None
    except ValueError as error:
        raise AttnshapeError(f"can't read {str(path)!r}: {error}", "name the JSON file of a saved trace") from None
    return from_json(content, str(path))


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of the saved trace."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(Trace)}


def _schema_of(text: str | bytes) -> str | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return str(value["schema"])[:60] if isinstance(value, dict) and "schema" in value else None

"""The public names of the package."""

import importlib.resources
import inspect
import pkgutil

import attnshape

NAMES = [
    *("AttnshapeError", "Difference", "Explanation", "Recording", "Report", "Trace", "__version__"),
    *("assert_shapes", "check", "diff", "explain", "record", "trace", "watch"),
]


def test_public_names() -> None:
    assert attnshape.__all__ == NAMES
    assert set(NAMES) <= set(dir(attnshape))
    assert all(hasattr(attnshape, name) for name in NAMES)
    assert not hasattr(attnshape, "nothing")


def test_no_module_shadows_a_public_function() -> None:
    """Importing a submodule binds its name in the package, and would shadow a function of that name."""
    assert {module.name for module in pkgutil.iter_modules(attnshape.__path__)}.isdisjoint(NAMES)


def test_public_functions_have_docstrings_with_examples() -> None:
    for name in ("trace", "record", "watch", "check", "diff", "explain", "assert_shapes"):
        function = getattr(attnshape, name)
        assert function.__doc__ is not None
        assert ">>> " in function.__doc__
    for public in (
        *(attnshape.Trace, attnshape.Recording, attnshape.Report, attnshape.Difference, attnshape.Explanation),
        attnshape.AttnshapeError,
    ):
        assert inspect.getdoc(public)


def test_package_has_a_py_typed_marker() -> None:
    assert (importlib.resources.files("attnshape") / "py.typed").is_file()

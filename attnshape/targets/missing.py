"""Lets a file be imported although packages aren't installed that it imports, or its package, and that may not be used.

Placeholders take the place of their modules while the file is imported, also of modules and names that another release
of an installed package has. Whatever uses one later fails, so that no result can depend on one.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from attnshape.runtime.files import installed_package

_CATCHES = frozenset({"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})
_MACHINERY = frozenset({"importlib", "importlib._bootstrap", "importlib._bootstrap_external"})
"""The modules whose frames are those of an import itself."""

OWN_PACKAGE = "attnshape_package"
"""How the name of the package begins that a folder becomes whose files import each other relatively."""

_NEWEST = "999.0"
"""The version of a package that isn't installed: many a project refuses old ones as it is imported."""

_DISTRIBUTIONS = {
    "PIL": "pillow",
    "cv2": "opencv-python",
    "dateutil": "python-dateutil",
    "flash_attn": "flash-attn",
    "google": "protobuf",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""The names under which packages are installed whose modules have others."""

_CANNOT_IMPORT = re.compile(r"cannot import name '(\w+)' from '([\w.]+)'")

_imported_by: dict[str, set[Path]] = {}
"""The packages that aren't installed and have placeholders, with the files that import them."""


def package_of(name: str) -> str:
    """Return the package of a module or of what is in it; of a module that is imported relatively, the module itself.

    >>> package_of("timm.layers"), package_of("attnshape_package_1f.layers.mlp"), package_of(".layers.mlp")
    ('timm', '.layers', '.layers')
    """
    first, *rest = name.split(".")
    return f".{rest[0]}" if rest and (not first or first.startswith(OWN_PACKAGE)) else first


def _shown(name: str) -> str:
    """Return the name of a module as the code has it: `.layers` where it is imported relatively."""
    return name[name.index(".") :] if name.startswith(OWN_PACKAGE) and "." in name else name


def _missing_part(name: str) -> str:
    """Return what is missing where a module isn't there: its package, or the module itself where that is there."""
    package = package_of(name)
    return name if package[0] != "." and PathFinder.find_spec(package) is not None else package


def _want(what: str, part: str) -> str:
    if part[0] == ".":
        why = f"there is no {part[1:].replace('.', '/')}.py beside the file"
    elif "." in part:
        why = f"the package {package_of(part)} that Python finds doesn't have it"
    else:
        why = f"the package {part} isn't installed"
    return f"{what} is needed, and {why}"


class NotInstalledError(ModuleNotFoundError):
    """Something was used of a package that isn't installed."""

    def __init__(self, what: str, part: str) -> None:
        super().__init__(_want(what, part), name=part)


class _NotInstalledAttributeError(AttributeError):
    """The same, where `hasattr` asks too."""

    def __init__(self, what: str, part: str) -> None:
        self.package = part
        super().__init__(_want(what, part))


def missing_package(error: BaseException | None) -> str | None:
    """Return the package, or the part of an installed one, for want of which something failed.

    None if that isn't why.
    """
    while error is not None:
        if isinstance(error, ModuleNotFoundError | _NotInstalledAttributeError):
            name = error.name if isinstance(error, ModuleNotFoundError) else error.package
            return _missing_part(name) if name else None
        error = error.__cause__
    return None


def install_hint(error: BaseException | None) -> str | None:
    """Return how to install what an import misses; None for other exceptions.

    >>> install_hint(ModuleNotFoundError(name="skimage.io"))
    'install the package that has it: pip install scikit-image; or name the file in a checkout of its project'
    """
    package = missing_package(error)
    return how_to_install([package]) if package is not None else None


def how_to_install(packages: Iterable[str]) -> str:
    """Return how to install the packages that have these modules, in which Python's own names may differ.

    Those that are imported relatively, such as `.layers`, are files of the project, and others may be.

    >>> how_to_install([".layers"])
    'copy layers.py beside it, or name the file in a checkout of its project'
    >>> how_to_install(["torch.layers"])
    'install a release of torch that has torch.layers; or name the file in a checkout of its project'
    """
    if files := sorted(f"{name[1:].replace('.', '/')}.py" for name in packages if name.startswith(".")):
        return f"copy {' and '.join(files)} beside it, or name the file in a checkout of its project"
    names = sorted({_DISTRIBUTIONS.get(name, name) for name in packages if "." not in name})
    which = "the package that has it" if len(names) == 1 else "the packages that have them"
    steps = [f"install {which}: pip install {' '.join(names)}"] if names else []
    parts = sorted(name for name in packages if "." in name)
    steps += [f"install a release of {package_of(part)} that has {part}" for part in parts]
    return "; ".join([*steps, "or name the file in a checkout of its project"])


class _Placeholder:
    """Something of a package that isn't installed. During an import it takes attributes, calls and subclasses."""

    def __init__(self, what: str, part: str, packages: MissingPackages) -> None:
        """`part` is what isn't there: the package that has it, or the part of an installed one."""
        self.__what = what
        self.__missing = part
        self.__packages = packages

    def __part(self) -> _Placeholder:
        if not self.__packages.importing:
            raise NotInstalledError(self.__what, self.__missing)
        return self

    def __getattr__(self, name: str) -> _Placeholder:
        # `hasattr` and `copy` ask for attributes too
        if name.startswith("_") or not self.__packages.importing:
            raise _NotInstalledAttributeError(f"{self.__what}.{name}", self.__missing)
        return _Placeholder(f"{self.__what}.{name}", self.__missing, self.__packages)

    def __delattr__(self, name: str) -> None:
        self.__part()

    def __call__(self, *args: Any, **kwargs: Any) -> _Placeholder:
        return self.__part()

    def __getitem__(self, key: object) -> _Placeholder:
        return self.__part()

    def __setitem__(self, key: object, value: object) -> None:
        self.__part()

    def __delitem__(self, key: object) -> None:
        self.__part()

    def __or__(self, other: object) -> _Placeholder:
        return self.__part()

    __ror__ = __or__

    def __mro_entries__(self, bases: Sequence[object]) -> tuple[type, ...]:
        what, part = self.__what, self.__missing

        def refuse(cls: type, *args: Any, **kwargs: Any) -> Any:
            raise NotInstalledError(what, part)

        return (type("NotInstalled", (), {"__new__": refuse}),)

    def __instancecheck__(self, instance: object) -> bool:
        return False

    def __subclasscheck__(self, subclass: type) -> bool:
        return False

    def __bool__(self) -> bool:
        raise NotInstalledError(self.__what, self.__missing)

    def __iter__(self) -> Iterator[Any]:
        raise NotInstalledError(self.__what, self.__missing)


class _MissingModule(ModuleType):
    """The placeholder of a module."""

    def __init__(self, name: str, part: str, packages: MissingPackages) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.__version__ = _NEWEST
        self._part = part
        self._packages = packages

    def __getattr__(self, name: str) -> _Placeholder:
        what = f"{_shown(self.__name__)}.{name}"
        if name.startswith("__") or not self._packages.importing:
            raise _NotInstalledAttributeError(what, self._part)
        return _Placeholder(what, self._part, self._packages)


class MissingPackages(Loader):
    """Finds placeholders for modules of packages that aren't installed, where the failure would end an import.

    Use it as a context manager around an import. Placeholders of modules are gone afterwards: what is imported later,
    inside a function, fails as it would have. An import whose failure the code catches fails as always.
    """

    def __init__(self, find_around: Callable[[str], ModuleSpec | None]) -> None:
        """`find_around` returns the spec of a module of the project, which Python's own search doesn't find."""
        self.importing = False
        self._find_around = find_around
        self.found: dict[str, set[Path]] = {}
        """What there are placeholders for, with the files that import it.

        These are packages, and modules and names that an installed package doesn't have.
        """
        self._names: list[tuple[ModuleType, str]] = []
        """The placeholders of names, each with the module that doesn't have it."""

    def __enter__(self) -> MissingPackages:
        self.importing = True
        sys.meta_path.append(self)
        return self

    def __exit__(self, *exception: object) -> None:
        self.importing = False
        sys.meta_path.remove(self)
        for name in [name for name, module in list(sys.modules.items()) if type(module) is _MissingModule]:
            placeholder = sys.modules.pop(name)
            package, _, last = name.rpartition(".")
            if vars(sys.modules.get(package, placeholder)).get(last) is placeholder:
                delattr(sys.modules[package], last)
        for module, name in self._names:
            delattr(module, name)

    def add_name(self, error: BaseException | None) -> bool:
        """Give an installed module a placeholder of the name for want of which an import failed.

        Return whether that is why: a file of the project that lacks a name is a mistake.
        """
        wanted = _CANNOT_IMPORT.match(str(error)) if isinstance(error, ImportError) else None
        if error is None or wanted is None or not _is_installed(wanted[2]):
            return False
        module, what = sys.modules[wanted[2]], f"{wanted[2]}.{wanted[1]}"
        if what in self.found:
            return False
        self.found[what] = {Path(traceback.extract_tb(error.__traceback__)[-1].filename).resolve()}
        setattr(module, wanted[1], _Placeholder(what, what, self))
        self._names.append((module, wanted[1]))
        return True

    def keep(self) -> None:
        """Remember what was imported of packages that aren't installed, for `not_installed`."""
        for package, files in self.found.items():
            _imported_by.setdefault(package, set()).update(files)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return a placeholder's spec for a module that no other finder finds, or None."""
        package = package_of(name)
        if (part := self._part_of(name)) is not None:
            return self._spec(name, part)
        is_inside = package not in (name, _shown(name))
        if is_inside and ((own := self._find_around(name)) is not None or not _is_installed(package)):
            return own
        if is_inside and _is_for_a_name(sys._getframe(1)):
            return None
        frames = list(_importers(sys._getframe(1)))
        if not frames or _only_asks(frames[0]) or any(map(_catches_errors_of_imports, frames)):
            return None
        if package == name and (own := self._find_around(name)) is not None:
            return own
        part = name if is_inside else package
        self.found.setdefault(part, set()).add(Path(frames[0].f_code.co_filename).resolve())
        return self._spec(name, part)

    def _part_of(self, name: str) -> str | None:
        """Return what is missing already, of which a module is a part."""
        shown = _shown(name)
        parts = (one for one in self.found if shown == one or shown.startswith(f"{one}."))
        return next(parts, None)

    def _spec(self, name: str, part: str) -> ModuleSpec:
        return ModuleSpec(name, self, is_package=True, loader_state=part)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the placeholder of a module."""
        return _MissingModule(spec.name, spec.loader_state, self)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the placeholder is complete."""


def _is_installed(name: str) -> bool:
    """Return whether a module that has been imported is in an installed package, and not in the project."""
    module = sys.modules.get(name)
    places = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
    return any(place is not None and installed_package(place) is not None for place in places)


def not_installed(folder: Path) -> list[str]:
    """Return the packages that files in a folder import, and that have placeholders since they aren't installed."""
    return sorted(name for name, files in _imported_by.items() if any(file.is_relative_to(folder) for file in files))


def starred_and_missing(module: ModuleType) -> list[str]:
    """Return the packages that aren't there of which a module's file imports every name: `from settings import *`."""
    file = Path(getattr(module, "__file__", None) or "").resolve()
    tree = ast.parse(file.read_bytes()) if file.is_file() else ast.Module([], [])
    imports = [one for one in ast.walk(tree) if isinstance(one, ast.ImportFrom) and one.names[0].name == "*"]
    modules = ["." * bool(one.level) + (one.module or "") for one in imports]
    missing = [name for name, files in _imported_by.items() if file in files]
    return sorted({part for part in missing for name in modules if name == part or name.startswith(f"{part}.")})


def _importers(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the frames that import, the innermost first, up to the one in this package that imports the target."""
    own = str(Path(__file__).parent)
    while frame is not None and not frame.f_code.co_filename.startswith(own):
        if frame.f_globals.get("__name__") not in _MACHINERY:
            yield frame
        frame = frame.f_back


def _is_for_a_name(frame: FrameType | None) -> bool:
    """Return whether Python looks for a module because a package lacks the name that `from package import name` has."""
    while frame is not None and frame.f_globals.get("__name__") in _MACHINERY:
        if frame.f_code.co_name == "_handle_fromlist":
            return True
        frame = frame.f_back
    return False


def _only_asks(frame: FrameType) -> bool:
    """Return whether a frame is in a function that tells whether a module exists, and doesn't import it."""
    return frame.f_globals.get("__name__") in ("importlib.util", "pkgutil")


def _catches_errors_of_imports(frame: FrameType) -> bool:
    return any(frame.f_lineno in lines for lines in _guarded_lines(frame.f_code.co_filename))


@functools.cache
def _guarded_lines(file: str) -> tuple[range, ...]:
    """Return the lines of a file from which an ImportError doesn't get out."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ()
    found: list[range] = []
    for node in ast.walk(tree):
        match node:
            case ast.Try(body=body, handlers=handlers) if any(map(_catches, handlers)):
                found.append(_lines(body))
            case ast.With(items=items, body=body) if any(_suppresses(one.context_expr) for one in items):
                found.append(_lines(body))
    return tuple(found)


def _lines(body: Sequence[ast.stmt]) -> range:
    return range(body[0].lineno, (body[-1].end_lineno or body[-1].lineno) + 1)


def _catches(handler: ast.ExceptHandler) -> bool:
    """Return whether a handler catches an ImportError, and doesn't end with raising it again, or another one."""
    is_its_own = handler.type is None or not _CATCHES.isdisjoint(_names((handler.type,)))
    return is_its_own and not isinstance(handler.body[-1], ast.Raise)


def _suppresses(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call) and "suppress" in _names((node.func,)) and not _CATCHES.isdisjoint(_names(node.args))
    )


def _names(nodes: Iterable[ast.AST]) -> set[str]:
    inner = [one for node in nodes for one in ast.walk(node)]
    return {one.id for one in inner if isinstance(one, ast.Name)} | {
        one.attr for one in inner if isinstance(one, ast.Attribute)
    }

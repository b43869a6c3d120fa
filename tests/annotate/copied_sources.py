"""Attention modules of other libraries, copied into a temporary project, and cases that run the copies."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CASES = Path(__file__).parents[1] / "libraries" / "cases"
_RELATIVE = re.compile(r"^(\s*from )(\.+)([\w.]*)( import )", re.MULTILINE)


@dataclass(frozen=True)
class Copied:
    """A module of an installed package, and the cases of tests/libraries that run it."""

    module: str
    cases: str
    names: tuple[str, ...]
    public: str = ""
    """The package from which the cases also import its classes."""

    def __str__(self) -> str:
        return self.module

    @property
    def name(self) -> str:
        """The name of the copy."""
        return self.module.replace(".", "_")


COPIED = [
    Copied("vit_pytorch.vit", "vit_pytorch_cases", ("vit",)),
    Copied("vit_pytorch.deepvit", "vit_pytorch_cases", ("deepvit",)),
    Copied("vit_pytorch.cait", "vit_pytorch_cases", ("cait",)),
    Copied("vit_pytorch.cvt", "vit_pytorch_cases", ("cvt",)),
    Copied("vit_pytorch.levit", "vit_pytorch_cases", ("levit",)),
    Copied("linformer.linformer", "efficient_cases", ("linformer", "linformer_shared"), public="linformer"),
    Copied("local_attention.local_attention", "efficient_cases", ("local",), public="local_attention"),
    Copied("axial_attention.axial_attention", "efficient_cases", ("axial", "axial_cross"), public="axial_attention"),
    Copied("perceiver_pytorch.perceiver_pytorch", "efficient_cases", ("perceiver",)),
    Copied("nystrom_attention.nystrom_attention", "efficient_cases", ("nystrom",), public="nystrom_attention"),
    Copied(
        "performer_pytorch.performer_pytorch",
        "efficient_cases",
        ("performer", "performer_cross"),
        public="performer_pytorch",
    ),
    Copied("linear_attention_transformer.linear_attention_transformer", "efficient_cases", ("linear",)),
    Copied(
        "memory_efficient_attention_pytorch.memory_efficient_attention",
        "efficient_cases",
        ("memory_efficient", "chunked"),
        public="memory_efficient_attention_pytorch",
    ),
    Copied(
        "reformer_pytorch.reformer_pytorch",
        "efficient_cases",
        ("reformer", "reformer_full"),
        public="reformer_pytorch",
    ),
    Copied("routing_transformer.routing_transformer", "efficient_cases", ("routing",)),
    Copied("labml_nn.transformers.mha", "labml_cases", ("cross",)),
    Copied("labml_nn.transformers.xl.relative_mha", "labml_cases", ("relative",)),
    Copied("labml_nn.transformers.retro.model", "labml_cases", ("retro",)),
    Copied("x_transformers.x_transformers", "x_transformers_cases", ("grouped", "cross_padded")),
    Copied("torch.nn.modules.activation", "torch_cases", ("mha_self", "mha_cross")),
    Copied("transformers.models.bert.modeling_bert", "transformers_text_cases", ("bert",)),
    Copied("transformers.models.gpt2.modeling_gpt2", "transformers_text_cases", ("gpt2", "gpt2_cross")),
    Copied("transformers.models.llama.modeling_llama", "transformers_text_cases", ("llama",)),
    Copied("transformers.models.deberta.modeling_deberta", "transformers_text_cases", ("deberta",)),
]


QUICK = {"vit_pytorch.vit"}
"""Modules that are annotated by default; each of the others takes seconds, and is marked as slow."""


def source_of(module: str) -> bytes:
    """Return an installed module's source with its relative imports made absolute."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    text = Path(spec.origin).read_bytes().decode()
    package = module if spec.submodule_search_locations is not None else module.rpartition(".")[0]

    def absolute(match: re.Match[str]) -> str:
        base = package.split(".")
        base = base[: len(base) - len(match[2]) + 1]
        return f"{match[1]}{'.'.join([*base, *filter(None, [match[3]])])}{match[4]}"

    return _RELATIVE.sub(absolute, text).encode()


def lay_out(folder: Path, package: str, copied: Sequence[Copied]) -> None:
    """Write a package of the copies, and beside it the cases that build modules from it."""
    (folder / package).mkdir()
    (folder / package / "__init__.py").write_text('"""Copies."""\n')
    for module in copied:
        (folder / package / f"{module.name}.py").write_bytes(source_of(module.module))
        text = (CASES / f"{module.cases}.py").read_text()
        names = "|".join(re.escape(name) for name in (module.module, module.public) if name)
        text = re.sub(rf"^from ({names}) import", f"from {package}.{module.name} import", text, flags=re.MULTILINE)
        if module.module.startswith("torch.nn"):
            text = text.replace("from torch import nn\n", f"from {package} import {module.name} as nn\n")
        (folder / f"{package}_{module.name}.py").write_text(text)

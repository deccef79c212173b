"""What the products run: SoC names, element types."""

from __future__ import annotations

import re
from collections import Counter

from ir_ops.declaration import PRODUCTS
from ir_ops.errors import BadUsage, ExportError
from ir_ops.ge.model import Model
from ir_ops.ge.prototypes import find

_SOCS = (
    (r"ascend910b\d?[a-z]?(-\d)?", "A2", "Ascend910B3"),
    (r"ascend910_93(\d\d)?", "A3", "Ascend910_9391"),
    (r"ascend950\w*", "950", "Ascend950PR_9589"),
    (r"kirin\w+", "kirin", "KirinX90"),
)
"""(pattern of --soc_version, product, an example)."""

_ONLY_950 = frozenset(
    {"float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "hifloat8", "float4_e2m1fn", "float4_e1m2", "hifloat4"}
)
"""Element types that came with the 950."""

EXAMPLE_SOC = {product: example for _, product, example in _SOCS}


def product_of(soc: str) -> str:
    """The product a ``--soc_version`` belongs to. Raises BadUsage for one that kvfuse does not know."""
    for pattern, product, _ in _SOCS:
        if re.fullmatch(pattern, soc.lower()):
            return product
    wanted = ", ".join(f"{example} ({product})" for _, product, example in _SOCS)
    raise BadUsage("unknown SoC", where="soc", found=soc, wanted=f"one like {wanted}")


def settled_product(product: str, soc: str | None) -> str:
    """The product to check for. Raises BadUsage for an unknown one, and where the SoC is of another product."""
    if product not in PRODUCTS:
        raise BadUsage("unknown product", found=product, wanted=" | ".join(PRODUCTS))
    if soc is None:
        return product
    found = product_of(soc)
    if product not in ("generic", found):
        raise BadUsage("the SoC is of another product", where="soc", found=f"{soc} ({found})", wanted=product)
    return found


def check_types(model: Model, product: str) -> None:
    """Refuses element types that the product does not have.

    Raises:
        ExportError: the operators are listed with counts.
    """
    if product in ("generic", "950"):
        return
    found: Counter[tuple[str, str]] = Counter()
    for graph in model.graphs:
        for node in graph.nodes:
            ports = [*(slot.type for slot in node.inputs), *(port.type for port in node.outputs)]
            names = {tensor.dtype.name for tensor in ports if tensor.dtype is not None} & _ONLY_950
            if find(node.type) is not None:
                found.update((node.type, name) for name in names)
    if found:
        listed = "; ".join(f"{count} x {op} on {name}" for (op, name), count in sorted(found.items()))
        raise ExportError(f"element types that {product} does not have", where=model.name, found=listed,
                          hint="they need the 950")  # fmt: skip

"""The preamble itself is right; what stands around it decides."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from tests.fusion.traps.base import trap
from tests.fusion.zoo.graph import END
from tests.fusion.zoo.ropes import deinterleaved, products
from tests.fusion.zoo.spec import Parameters
from tests.fusion.zoo.spellings import Preamble

READER = ("reader", "read by", "alias", "old cache", "old value")
INSIDE = ("inside", "deliver", "inner")


class Extended(Preamble):
    """Adds outputs of its own."""

    def also(self, value: str, name: str, rank: int | None = None) -> None:
        self.g.nodes.append(helper.make_node("Identity", [value], [name], name=f"give_{name}"))
        shape = None if rank is None else [None] * rank
        self.g.outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))


@trap("the old ckv cache is summed up elsewhere", *READER, same=True)
class OldCacheIsSummed(Extended):
    def finish(self) -> None:
        self.also(self.g.reduce("ReduceSum", "ckv_cache_0"), "sums", 4)


@trap("the old k cache is a graph output as well", *READER, "output", same=True)
class OldCacheIsAnOutput(Extended):
    def finish(self) -> None:
        self.also("k_cache_0", "old", 4)


@trap("attention reads the old cache beside the new rows", *READER, same=True, write="index_copy")
class AttentionReadsTheOldCache(Extended):
    def finish(self) -> None:
        g = self.g
        scores = g.op("MatMul", g.slice("kv", 64, END, 3), g.transpose("k_cache_0", 0, 1, 3, 2))
        self.also(scores, "scores", 4)


@trap("attention reads the new cache", sites=(1,), same=True, write="index_copy")
class AttentionReadsTheNewCache(Extended):
    def one_layer(self, p: Parameters) -> tuple[str, str, str, str]:
        made = super().one_layer(p)
        g = self.g
        self.scores = g.op("MatMul", g.slice("kv", 64, END, 3), g.transpose(made[0], 0, 1, 3, 2))
        return made

    def finish(self) -> None:
        self.also(self.scores, "scores", 4)


@trap("only the length of the old cache is read", sites=(1,), same=True, write="index_copy")
class LengthOfTheOldCache(Extended):
    def finish(self) -> None:
        length = self.g.cast(self.g.size("k_cache_0", 2), "float32")
        self.also(length, "length", 1)


@trap("both layers write the same two caches", *READER, "cache", layers=2)
class TwoLayersOneCache(Preamble):
    def cache(self, which: str) -> str:
        return "k_cache_0" if which == "k" else "ckv_cache_0"


@trap("the inverse root mean square is a graph output: the operator does not deliver it", *INSIDE, same=True)
class InverseRootIsAnOutput(Extended):
    def normalise(self, x: str, p: Parameters) -> str:
        g = self.g
        root = g.op("Sqrt", g.op("Add", g.reduce("ReduceMean", g.op("Mul", x, x)), g.scalar(self.spec.eps)))
        self.inverse = g.op("Reciprocal", root)
        return g.op("Mul", g.op("Mul", x, self.inverse), g.const(p.gamma))

    def finish(self) -> None:
        self.g.output(self.inverse, "inverse", "float32", [None, 1, None, 1])


@trap("the normalised value before gamma is a graph output", *INSIDE, same=True)
class BeforeGammaIsAnOutput(Extended):
    def normalise(self, x: str, p: Parameters) -> str:
        g = self.g
        root = g.op("Sqrt", g.op("Add", g.reduce("ReduceMean", g.op("Mul", x, x)), g.scalar(self.spec.eps)))
        self.plain = g.op("Div", x, root)
        return g.op("Mul", self.plain, g.const(p.gamma))

    def finish(self) -> None:
        self.g.output(self.plain, "plain", "float32", [None, 1, None, 64])


@trap("the key times cos is a graph output", *INSIDE, same=True)
class ProductIsAnOutput(Extended):
    def rotate(self, x: str) -> str:
        g, d = self.g, self.spec.rotated
        z = deinterleaved(g, x, d)
        low, high = g.halves(z)
        self.product = g.op("Mul", z, self.cos)
        turned = g.op("Concat", g.op("Neg", high), low, axis=-1)
        return g.op("Add", self.product, g.op("Mul", turned, self.sin))

    def finish(self) -> None:
        self.g.output(self.product, "product", "float32", [None, 1, None, 32])


@trap("k_rope and c_kv are graph outputs: the operator delivers them", sites=(1,), same=True, outs=True)
class DeliveredOutputs(Preamble):
    pass


@trap("the de-interleaved key is read elsewhere: it must survive", sites=(0, 1), same=True)
class SharedIntermediate(Extended):
    def rotate(self, x: str) -> str:
        g, d = self.g, self.spec.rotated
        self.shared = deinterleaved(g, x, d)
        low, high = g.halves(self.shared)
        return products(g, self.shared, g.op("Concat", g.op("Neg", high), low, axis=-1), self.cos, self.sin)

    def finish(self) -> None:
        self.also(self.g.op("Tanh", self.shared), "elsewhere", 4)


@trap("the rotated key is read by a projection too", sites=(1,), same=True)
class RotatedKeyReadElsewhere(Extended):
    def one_layer(self, p: Parameters) -> tuple[str, str, str, str]:
        made = super().one_layer(p)
        self.read = self.g.op("MatMul", made[2], self.g.const(np.eye(32, dtype=np.float32)))
        return made

    def finish(self) -> None:
        self.also(self.read, "read", 4)


@trap("the second layer turns the other way, the first is right", "sign", "inverse", "direction", sites=(1,), layers=2)
class OneLayerBroken(Preamble):
    def rotate(self, x: str) -> str:
        if self.layer == 0:
            return super().rotate(x)
        minus = self.g.op("Neg", self.sin)
        g, d = self.g, self.spec.rotated
        z = deinterleaved(g, x, d)
        low, high = g.halves(z)
        turned = g.op("Concat", high, g.op("Neg", low), axis=-1)
        return g.op("Add", g.op("Mul", z, self.cos), g.op("Mul", turned, g.op("Neg", minus)))


@trap("the written k cache is not returned, only the ckv cache is", "k_cache", "cache", "rotat", "pair", same=True)
class KeyCacheNotReturned(Preamble):
    def finish(self) -> None:
        kept = [entry for entry in self.g.outputs if not entry.name.startswith("k_cache")]
        self.g.outputs[:] = kept


@trap("the caches are fresh zeros, not inputs", sites=(0, 1), same=False)
class FreshCaches(Preamble):
    def cache(self, which: str) -> str:
        zero = helper.make_tensor("value", TensorProto.FLOAT, [1], [0.0])
        return self.g.op("ConstantOfShape", self.g.ints(*self.spec.cache_shape(which, 0)), value=zero)


@trap("nothing is cached: norm and rotation only", outs=True)
class NothingCached(Preamble):
    def write(self, which: str, cache: str, rows: str) -> str:
        return self.g.op("Identity", cache)


@trap("the layers' caches are written, then swapped between the two outputs", sites=(0, 2), layers=2)
class OutputsSwapped(Preamble):
    def finish(self) -> None:
        names = {"k_cache_out_0": "k_cache_out_1", "k_cache_out_1": "k_cache_out_0"}
        for node in self.g.nodes:
            node.output[:] = [names.get(value, value) for value in node.output]

"""Where the weights of a built model come from: random numbers inside the file, or references into a sparse file."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from onnx import TensorProto

from ir_ops.dtypes import by_name

ALIGNED_FROM, ALIGNMENT = 1 << 20, 4096


class Weights(Protocol):
    """Fills the tensor of a weight whose name, type and dims are set."""

    def fill(self, tensor: TensorProto, dtype: str, dims: tuple[int, ...], gain: bool) -> None:
        """``gain`` marks a norm's weight, which is around one; others keep the size of what they multiply."""


class RandomWeights:
    """Real numbers, the same for the same seed, stored inside the model file."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def fill(self, tensor: TensorProto, dtype: str, dims: tuple[int, ...], gain: bool) -> None:
        data = self._rng.standard_normal(dims)
        scaled = 1.0 + 0.1 * data if gain else data / math.sqrt(dims[-2] if len(dims) > 1 else 4)
        tensor.raw_data = scaled.astype(by_name(dtype).np).tobytes()


class SparseWeights:
    """References into one external file that has the right length and no content.

    Attributes:
        size: bytes the file must have so far.
    """

    def __init__(self, location: str) -> None:
        self._location, self.size = location, 0

    def fill(self, tensor: TensorProto, dtype: str, dims: tuple[int, ...], gain: bool) -> None:
        length = by_name(dtype).nbytes(math.prod(dims))
        if length >= ALIGNED_FROM:
            self.size += -self.size % ALIGNMENT
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", self._location), ("offset", self.size), ("length", length)):
            tensor.external_data.add(key=key, value=str(value))
        self.size += length

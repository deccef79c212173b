"""How far two results may lie apart: by element type, relative to the size of the values."""

from __future__ import annotations

import math

import numpy as np

from fusion.result import Difference
from ir_ops.dtypes import Array, by_numpy

_RELATIVE = {"float64": 1e-9, "float32": 1e-4, "float16": 8 * 2.0**-10, "bfloat16": 8 * 2.0**-7}
"""Accepted difference of a float relative to its own magnitude plus the tensor's root mean square.

Half precision: 8 units in the last place. Rounding differs from step to step between two right spellings of one decoder
layer; PyTorch and ONNX Runtime themselves lie up to 5 units apart on one layer's logits.
"""
_QUANTISED = {"int8", "uint8", "int4", "float8_e4m3fn", "float8_e5m2"}
_STEP_SHARE = 0.2
"""Of the rows (last axis) that differ at all, the share of elements that may be off by one quantisation step."""


def compare(
    case: str, output: str, got: Array, want: Array, against: str, *, kind: str | None = None, times: float = 1.0
) -> Difference:
    """Compares one output with what it should be.

    Floats: ``|got - want| <= r * (|want| + rms(want))`` with r = 1e-4 (float32), 2^-7 (float16), 2^-4 (bfloat16).
    Quantised types: at most one step (their bound is 1 step), in at most a fifth of a touched row. Other integers and
    booleans: equal.
    NaN and infinities must stand at the same places. ``want`` may be wider than ``got`` (a bfloat16 result against a
    float32 one): the type of ``got`` decides, or ``kind`` where the caller knows better. ``times`` widens the bound of
    floats, where both sides round on their own.
    """
    if got.dtype.kind in "OUS" or want.dtype.kind in "OUS":
        same = got.shape == want.shape and bool((got == want).all())
        return _difference(case, output, against, "string", got.shape, 0.0 if same else math.inf, same, "")
    kind = kind or by_numpy(got.dtype).name
    if got.shape != want.shape:
        note = f"shape {list(got.shape)}, wanted {list(want.shape)}"
        return _difference(case, output, against, kind, got.shape, math.inf, False, note)
    if not got.size:
        return _difference(case, output, against, kind, got.shape, 0.0, True, "no elements")
    if kind in _QUANTISED and want.dtype == got.dtype:
        return _steps(case, output, got, want, against, kind)
    if kind in _RELATIVE:
        return _floats(case, output, got.astype(np.float64), want.astype(np.float64), against, kind, times)
    return _exact(case, output, got, want, against, kind)


def _difference(
    case: str, output: str, against: str, kind: str, shape: tuple[int, ...], error: float, ok: bool, note: str
) -> Difference:
    return Difference(case, output, against, kind, shape, error, error, 0.0, error, float(not ok), None, ok, note)


def missing(case: str, output: str, against: str, note: str) -> Difference:
    """The record of an output that could not be compared at all."""
    return _difference(case, output, against, "", (), math.inf, False, note)


def _floats(case: str, output: str, got: Array, want: Array, against: str, kind: str, times: float) -> Difference:
    finite = np.isfinite(want)
    same_special = np.where(finite, np.isfinite(got), (got == want) | (np.isnan(got) & np.isnan(want)))
    rms = math.sqrt(float(np.mean(np.square(want[finite])))) if finite.any() else 0.0
    bound = times * _RELATIVE[kind] * (np.abs(np.where(finite, want, 0.0)) + rms)
    with np.errstate(invalid="ignore"):
        error = np.where(finite & np.isfinite(got), np.abs(got - want), np.where(same_special, 0.0, np.inf))
    beyond = error > bound
    with np.errstate(divide="ignore", invalid="ignore"):
        used = np.where(error == 0, 0.0, error / bound)
    closest = int(used.argmax())
    relative = error / np.maximum(np.abs(np.where(finite, want, 0.0)) + rms, np.finfo(np.float64).tiny)
    return Difference(
        case,
        output,
        against,
        kind,
        got.shape,
        float(error.max()),
        float(relative.max()),
        float(bound.flat[closest]),
        float(used.flat[closest]),
        float(beyond.mean()),
        _first(beyond),
        not beyond.any(),
        _where(beyond, got, want),
    )


def _exact(case: str, output: str, got: Array, want: Array, against: str, kind: str) -> Difference:
    beyond = got != want
    error = np.abs(got.astype(np.float64) - want.astype(np.float64))
    worst, share = float(error.max()), float(beyond.mean())
    relative = worst / max(float(np.abs(want.astype(np.float64)).max()), 1.0)
    note = _where(beyond, got, want)
    return Difference(
        case, output, against, kind, got.shape, worst, relative, 0.0,
        math.inf if worst else 0.0, share, _first(beyond), not beyond.any(), note,
    )  # fmt: skip


def _steps(case: str, output: str, got: Array, want: Array, against: str, kind: str) -> Difference:
    steps = np.abs(_ordinal(got, kind) - _ordinal(want, kind))
    differs = steps > 0
    rows = differs.reshape(-1, differs.shape[-1]) if differs.ndim else differs.reshape(1, 1)
    touched = rows[rows.any(axis=1)]
    too_many = touched.sum() > max(2, _STEP_SHARE * touched.size)
    beyond = steps > 1 if not too_many else differs
    error = np.abs(got.astype(np.float64) - want.astype(np.float64))
    scale = max(float(np.abs(want.astype(np.float64)).max()), 1.0)
    note = _where(beyond, got, want)
    if too_many and (steps <= 1).all():
        note = f"one step off in {touched.mean():.0%} of the touched rows, accepted {_STEP_SHARE:.0%}; {note}"
    worst, first = float(error.max()), _first(beyond)
    share = float(differs.mean())
    return Difference(
        case, output, against, kind, got.shape, worst, worst / scale, 1.0, float(steps.max()), share, first,
        not beyond.any(), note,
    )  # fmt: skip


def _ordinal(values: Array, kind: str) -> Array:
    """Numbers of the representable values in order, so that neighbours differ by one."""
    if not kind.startswith("float8"):
        return values.astype(np.int64)
    bits = values.view(np.uint8).astype(np.int64)
    return np.where(bits & 0x80, -(bits & 0x7F), bits)


def _first(beyond: Array) -> tuple[int, ...] | None:
    if not beyond.any():
        return None
    return tuple(int(axis) for axis in np.unravel_index(int(beyond.argmax()), beyond.shape))


def _where(beyond: Array, got: Array, want: Array) -> str:
    """The first element beyond the bound, in words."""
    first = _first(beyond)
    return "" if first is None else f"first at {list(first)}: {_number(got[first])}, wanted {_number(want[first])}"


def _number(value: object) -> str:
    scalar = np.asarray(value)
    return (
        str(scalar) if scalar.dtype.kind in "biu" or by_numpy(scalar.dtype).name == "int4" else f"{float(scalar):.6g}"
    )

"""The operator prototypes as typed data."""

from __future__ import annotations

from ir_ops.dtypes import by_name
from ir_ops.ge.prototypes import DYNAMIC, always_written, attr_type, default_of, find, prototypes


def test_all_operators_are_there() -> None:
    assert len(prototypes()) == 238


def test_input_kinds_in_order() -> None:
    prototype = find("FusedInferAttentionScore")
    assert prototype is not None
    assert [(port.name, port.kind) for port in prototype.inputs[:4]] == [
        ("query", "required"),
        ("key", DYNAMIC),
        ("value", DYNAMIC),
        ("pse_shift", "optional"),
    ]


def test_in_place_pairs() -> None:
    prototype = find("KvRmsNormRopeCache")
    assert prototype is not None
    assert prototype.ref_names == {"k_cache": "k_cache", "ckv_cache": "ckv_cache"}


def test_every_in_place_pair_shares_its_name() -> None:
    pairs = [(p.name, a, b) for p in prototypes().values() for a, b in p.ref_names.items()]
    assert pairs
    assert [pair for pair in pairs if pair[1] != pair[2]] == []


def test_defaults_are_typed() -> None:
    assert default_of("KvRmsNormRopeCache", "cache_mode") == "Norm"
    assert default_of("NonZero", "dtype") == by_name("int64")
    assert default_of("Unsqueeze", "axes") == ()
    assert default_of("Cast", "dst_type") is None


def test_attributes_the_loader_knows_beyond_the_prototype() -> None:
    assert attr_type("FileConstant", "offset") == "Int"
    assert attr_type("Cast", "dst_type") == "Int"
    assert attr_type("Cast", "nonsense") is None


def test_attributes_with_treacherous_defaults_are_always_written() -> None:
    assert always_written("ReduceMean", "keep_dims")
    assert always_written("Trilu", "upper")
    assert not always_written("KvRmsNormRopeCache", "cache_mode")


def test_unknown_operators_have_none() -> None:
    assert find("NoSuchOperator") is None

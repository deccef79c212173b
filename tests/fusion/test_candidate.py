"""What a builder cannot evaluate refuses the place, with what did not go together."""

from __future__ import annotations

import pytest

from fusion.candidate import Refused, evaluated
from fusion.facts.semantics import Conflict, OutOfRange, Unsupported
from fusion.facts.symbols.terms import Unreadable


@pytest.mark.parametrize("error", [Conflict(108, 3), OutOfRange("row 7 of 5"), Unsupported("Loop"), Unreadable()])
def test_a_place_that_cannot_be_evaluated_is_refused(error: Exception) -> None:
    @evaluated
    def build(size: int) -> int:
        raise error

    with pytest.raises(Refused) as caught:
        build(3)
    assert caught.value.code == "unreadable" and caught.value.found == (str(error) or "parts that do not go together")


def test_other_errors_and_results_pass() -> None:
    @evaluated
    def build(size: int) -> int:
        return 12 // size

    assert build(3) == 4
    with pytest.raises(ZeroDivisionError):
        build(0)

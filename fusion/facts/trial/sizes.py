"""Sizes of symbolic dims for probing: chosen primes, corrected by the conflicts that a trial run reveals.

Exporters give one logical size several names and never say that tokens = batch * sequence. Every name starts as a
size of its own; when an operator needs two sizes to agree, :meth:`Sizes.unify` works out which symbols that ties.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterable, Mapping

from fusion.facts.trial.shrunk import Shrunk

SMALL_SIZES = (
    (3, 5, 7, 11, 13, 17, 19, 23),
    (4, 3, 11, 7, 17, 13, 23, 19),
    (2, 7, 13, 19, 11, 23, 17, 29),
)
"""Per seed. No symbol has one size twice, nor do the products of the first two agree: what stays equal is static.

Small, because batch * tokens has to fit the slots of small caches.
"""
LARGE_PRIMES = (29, 41, 73, 97, 131, 163, 197, 239)


class Sizes:
    """A size for each symbol; classes of symbols may be tied to each other or to a product or sum of others.

    Args:
        seed: which primes.
        run: when given, two batch entries with runs of ``run`` tokens, longer than a page.
        multiple: what a size that another must divide is of it.
    """

    def __init__(self, seed: int, run: int = 0, multiple: int = 1) -> None:
        small = SMALL_SIZES[seed % len(SMALL_SIZES)]
        self._small = (2, run, *(size for size in small if size not in (2, run))) if run else small
        # other sizes for every seed: what is equal under two of them is fixed by the graph
        self._large = LARGE_PRIMES[seed:] + LARGE_PRIMES[:seed]
        self.run, self.multiple = run, multiple
        self._parent: dict[str, str] = {}
        self._value: dict[str, int] = {}
        self._rule: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._factor: dict[str, int] = {}
        self._taken: set[int] = set()
        self._or_one: set[str] = set()
        """Symbols that were tied because they meet by broadcasting: they may be 1 instead."""
        self.shrunk = Shrunk()
        """Small sizes in place of large static ones."""

    def copy(self) -> Sizes:
        """The same sizes and ties; what is tied in one is not tied in the other."""
        twin = Sizes.__new__(Sizes)
        twin._small, twin._large = self._small, self._large
        twin.run, twin.multiple = self.run, self.multiple
        twin._parent, twin._value = dict(self._parent), dict(self._value)
        twin.shrunk = self.shrunk
        twin._rule, twin._factor, twin._taken = dict(self._rule), dict(self._factor), set(self._taken)
        twin._or_one = set(self._or_one)
        return twin

    def state(self) -> Hashable:
        """Equal for sizes that are equal and will stay so under equal conflicts."""
        parts = (self._parent, self._value, self._rule, self._factor)
        tied = (tuple(sorted(part.items())) for part in parts)
        return (self._small, self.run, self.multiple, self.shrunk, *tied, tuple(sorted(self._or_one)))

    def resized(self, wanted: Mapping[str, int]) -> Sizes | None:
        """The same ties with other sizes of some symbols; None where a tie settles one of them otherwise."""
        twin = self.copy()
        for symbol, size in wanted.items():
            root = twin.find(symbol)
            if root not in twin._rule:
                twin._value[root] = size
        return twin if all(twin.size(symbol) == size for symbol, size in wanted.items()) else None

    def add(self, symbol: str, large: bool, like: str = "") -> None:
        """Gives a symbol a size of its own, or that of the symbol ``like``.

        ``large`` is for cache dims, which must have room for the tokens.
        """
        if symbol in self._parent:
            return
        if like:
            self._parent[symbol] = self.find(like)
            return
        pool = self._large if large else self._small + self._large
        size = next((prime for prime in pool if prime not in self._taken), None)
        if size is None:
            size = max(self._taken) + 2
        self._taken.add(size)
        self._parent[symbol] = symbol
        self._value[symbol] = size

    def find(self, symbol: str) -> str:
        while self._parent[symbol] != symbol:
            symbol = self._parent[symbol]
        return symbol

    def size(self, symbol: str) -> int:
        """The current size of a symbol."""
        root = self.find(symbol)
        if root in self._rule:
            kind, parts = self._rule[root]
            sizes = [self.size(part) for part in parts]
            if kind == "scale":
                return sizes[0] * self._factor[root]
            return sizes[0] * sizes[1] if kind == "mul" else sizes[0] + sizes[1]
        return self._value[root]

    def unify(self, left: int, right: int, divides: bool = False, or_one: bool = False) -> bool:
        """Ties symbols so that the sizes ``left`` and ``right`` become equal; False when no tie explains them.

        With ``divides`` it is enough that ``right`` divides ``left``; ``or_one`` notes that one of them may be 1 too.
        """
        before = {symbol: (self._parent[symbol], symbol in self._rule) for symbol in self._parent} if or_one else {}
        if not self._unified(left, right, divides):
            return False
        self._or_one |= {
            symbol for symbol, was in before.items() if was != (self._parent[symbol], symbol in self._rule)
        }
        return True

    def with_ones(self) -> list[Sizes]:
        """The same sizes, but one of the symbols that met by broadcasting, or all it was tied to, is 1."""
        found = []
        for symbol in sorted(self._or_one):
            alone, others = self.copy(), self.copy()
            for twin in (alone, others):
                twin._parent[symbol] = symbol
                twin._rule.pop(symbol, None)
            size = self.size(symbol)
            alone._value[symbol], others._value[symbol] = 1, size
            root = self.find(symbol)
            if root != symbol and root not in others._rule:
                others._value[root] = 1
                found.append(others)
            found.append(alone)
        return found

    def _unified(self, left: int, right: int, divides: bool) -> bool:
        if divides and self.multiple > 1 and self._tie_divisible(left, right):
            return True
        if divides and self._tie_factor(left, right):
            return True
        for a, b in ((left, right), (right, left)):
            for scale in self._common_scales(a, b):
                if self._tie(a // scale, b // scale):
                    return True
        return any(self._tie_pairs(left // scale, right // scale) for scale in self._common_scales(left, right))

    def _tie_pairs(self, left: int, right: int) -> bool:
        """Two products of two symbols: rows of two inputs that both count batch and tokens by names of their own."""
        free = [root for root in self._roots() if root not in self._rule]
        pairs = list(itertools.combinations(free, 2))
        for a, b in pairs:
            if self.size(a) * self.size(b) != left:
                continue
            for c, d in pairs:
                if self.size(c) * self.size(d) == right and not {a, b} & {c, d}:
                    self._join(a, c)
                    self._join(b, d)
                    return True
        return False

    def _common_scales(self, left: int, right: int) -> Iterable[int]:
        """Common divisors, the largest first: static factors of both sides."""
        common = math.gcd(left, right)
        small = [divisor for divisor in range(1, math.isqrt(common) + 1) if common % divisor == 0]
        return sorted({*small, *(common // divisor for divisor in small)}, reverse=True)

    def _tie(self, left: int, right: int) -> bool:
        free = [root for root in self._roots() if root not in self._rule]
        for symbol in free:
            if self.size(symbol) != left:
                continue
            for other in self._roots():
                if other != symbol and self.size(other) == right and not self._depends(other, symbol):
                    self._join(symbol, other)
                    return True
            for a, b in itertools.combinations(free, 2):
                if symbol in (a, b):
                    continue
                for kind, value in (("mul", self.size(a) * self.size(b)), ("add", self.size(a) + self.size(b))):
                    if value == right:
                        self._rule[symbol] = (kind, (a, b))
                        return True
        return self._tie_multiple(left, right)

    def _tie_multiple(self, left: int, right: int) -> bool:
        """A symbol that is a static multiple of another: tokens with a fixed batch."""
        free = [root for root in self._roots() if root not in self._rule]
        for symbol in (root for root in free if self.size(root) == left):
            for other in free:
                if other != symbol and 0 < self.size(other) < right and right % self.size(other) == 0:
                    self._rule[symbol], self._factor[symbol] = ("scale", (other,)), right // self.size(other)
                    return True
        return False

    def _tie_factor(self, left: int, right: int) -> bool:
        """One of two symbols whose product is to be divided, the first: ``[B, T]`` seen as ``[batch, -1]``."""
        free = [root for root in self._roots() if root not in self._rule]
        for a, b in itertools.combinations(free, 2):
            if self.size(a) * self.size(b) == left:
                for other in free:
                    if other not in (a, b) and self.size(other) == right:
                        self._join(other, a)
                        return True
        return False

    def _tie_divisible(self, left: int, right: int) -> bool:
        for scale in self._common_scales(left, right):
            free = [root for root in self._roots() if root not in self._rule]
            for symbol in (root for root in free if self.size(root) == left // scale):
                for other in free:
                    if other != symbol and self.size(other) == right // scale:
                        self._rule[symbol], self._factor[symbol] = ("scale", (other,)), self.multiple
                        return True
        return False

    def _join(self, symbol: str, other: str) -> None:
        """One class, of the size of the symbol that came first: it differs from seed to seed. A long run stays long."""
        if other in self._rule:
            self._parent[symbol] = other
            return
        order = list(self._parent)
        first, second = sorted((symbol, other), key=order.index)
        if self.run and self.run in (self._value[first], self._value[second]):
            self._value[first] = self.run
        self._parent[second] = first

    def _depends(self, symbol: str, on: str) -> bool:
        rule = self._rule.get(self.find(symbol))
        return rule is not None and any(self.find(part) == on or self._depends(part, on) for part in rule[1])

    def _roots(self) -> list[str]:
        return [symbol for symbol in self._parent if self._parent[symbol] == symbol]

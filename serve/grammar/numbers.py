"""Numbers within bounds as GBNF: ``minimum``, ``maximum``, their exclusive forms, and ``multipleOf``.

Bounds are exact decimals. Next to a bound, numbers have so few digits that reading them as doubles cannot cross it.

Tested in tests/serve/grammar/test_schema_values.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from math import ceil, floor
from typing import Any

from slm.serve.grammar.tree import GrammarError

KEYWORDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
MAX_DIGITS = 16
"""Before the point."""
MAX_MULTIPLE = 64
"""The largest ``multipleOf`` that is a whole number, zeros at its end not counted: each remainder becomes a rule for
every digit."""
_MULTIPLE_DIGITS = 6
"""Of multiples, zeros that follow from ``multipleOf`` not counted."""
_DOUBLE_DIGITS = 15
"""Decimal digits that a double keeps."""
_MOST = 10**MAX_DIGITS - 1

_Rest = tuple[str, bool]
"""Digits of a bound after the point, and whether the bound is exclusive."""
AddRule = Callable[[str], str]
"""Adds a rule with this body and returns its name."""


@dataclass(frozen=True)
class Bound:
    """One end of a range."""

    value: Decimal
    exclusive: bool


def number_rule(schema: dict[str, Any], kind: str, where: str, add_rule: AddRule) -> str:
    """The name of a rule for a schema's numbers of ``kind`` ("integer" or "number"). ``where`` begins each message of a
    ``GrammarError``."""
    given = {key: _decimal(schema[key], key, where) for key in KEYWORDS if key in schema}
    low = _tighter(given.get("minimum"), given.get("exclusiveMinimum"), max)
    high = _tighter(given.get("maximum"), given.get("exclusiveMaximum"), min)
    multiple = given.get("multipleOf")
    if multiple is not None and multiple <= 0:
        raise GrammarError(f"{where}: multipleOf must be above 0")
    if kind == "integer" or (multiple is not None and multiple == int(multiple)):
        if multiple is not None and multiple != int(multiple):
            raise GrammarError(f"{where}: multipleOf of integers must be a whole number")
        body = _integers(low, high, int(multiple or 1), where, add_rule)
    else:
        body = _decimals(low, high, _fraction_digits(multiple, where), where)
    if body is None:
        raise GrammarError(f"{where}: no number fits the bounds")
    return add_rule(body)


def _decimal(value: Any, key: str, where: str) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise GrammarError(f"{where}: {key} must be a number")
    return Decimal(str(value))


def _tighter(inclusive: Decimal | None, exclusive: Decimal | None, tightest: Callable[..., Bound]) -> Bound | None:
    found = [Bound(value, flag) for value, flag in ((exclusive, True), (inclusive, False)) if value is not None]
    # Of equal bounds the exclusive one is tighter. ``max`` and ``min`` take the first of equals.
    return tightest(found, key=lambda bound: bound.value) if found else None


def _fraction_digits(multiple: Decimal | None, where: str) -> int:
    """Digits after the point that numbers may have."""
    if multiple is None:
        return _DOUBLE_DIGITS
    digits = -multiple.adjusted()
    if multiple != Decimal(1).scaleb(-digits) or digits > _DOUBLE_DIGITS:
        raise GrammarError(f"{where}: multipleOf of numbers must be a whole number or 0.1, 0.01 and so on")
    return digits


def _or(alternatives: list[str]) -> str | None:
    return " | ".join(alternatives) if alternatives else None


# -- whole numbers -----------------------------------------------------------------------------------------


def _integers(low: Bound | None, high: Bound | None, multiple: int, where: str, add_rule: AddRule) -> str | None:
    zeros = len(str(multiple)) - len(str(multiple).rstrip("0"))
    factor = multiple // 10**zeros
    if factor > MAX_MULTIPLE:
        raise GrammarError(f"{where}: multipleOf may be at most {MAX_MULTIPLE}, zeros at its end not counted")
    # A multiple of 300 is a multiple of 3 with two zeros behind it.
    limit = 10 ** (MAX_DIGITS - zeros if factor == 1 else _MULTIPLE_DIGITS) - 1
    least = -limit if low is None else max(-limit, -(-_first_integer(low) // 10**zeros))
    most = limit if high is None else min(limit, -_first_integer(Bound(-high.value, high.exclusive)) // 10**zeros)
    if least > most:
        return None
    writer = _Digits(factor, add_rule)
    behind = f' "{"0" * zeros}"' if zeros else ""
    found = []
    if least < 0 and (negative := writer.between(max(1, -most), -least)):
        found.append(f'"-" ({negative}){behind}')  # "-0" is left out: it says the same as "0"
    if least <= 0 <= most:
        found.append('"0"')
    if most > 0 and (positive := writer.between(max(1, least), most)):
        found.append(f"({positive}){behind}")
    return _or(found)


def _first_integer(low: Bound) -> int:
    return floor(low.value) + 1 if low.exclusive else ceil(low.value)


class _Digits:
    """Multiples of ``multiple`` between two whole numbers, digit by digit."""

    def __init__(self, multiple: int, add_rule: AddRule) -> None:
        self._multiple, self._add_rule = multiple, add_rule
        self._free: dict[tuple[int, int], str | None] = {}

    def between(self, low: int, high: int) -> str | None:
        """GBNF for 1 <= low <= n <= high without leading zeros; None where there is no such number."""
        found = []
        open_from = 0  # lengths from here on have all their numbers in the range
        for length in range(len(str(low)), len(str(high)) + 1):
            first, last = max(low, 10 ** (length - 1)), min(high, 10**length - 1)
            if first > last:
                continue
            if self._multiple == 1 and (first, last) == (10 ** (length - 1), 10**length - 1):
                open_from = open_from or length
                if length < len(str(high)) and length < MAX_DIGITS:
                    continue
                found.append(f"[1-9] [0-9]{{{open_from - 1},{length - 1}}}")
                continue
            if open_from:
                found.append(f"[1-9] [0-9]{{{open_from - 1},{length - 2}}}")
                open_from = 0
            if body := self._tight(str(first), str(last), 0):
                found.append(body)
        return _or(found)

    def _tight(self, low: str, high: str, remainder: int) -> str | None:
        """Strings of as many digits from ``low`` to ``high``; ``remainder``: of the digits before them."""
        n = len(low)
        if set(low) <= {"0"} and set(high) <= {"9"}:
            return self._any(n, remainder)
        found = self._by_digit(
            remainder,
            range(int(low[0]), int(high[0]) + 1),
            lambda digit, after: self._tight(
                low[1:] if digit == int(low[0]) else "0" * (n - 1),
                high[1:] if digit == int(high[0]) else "9" * (n - 1),
                after,
            ),
        )
        return f"({found})" if found else None

    def _any(self, n: int, remainder: int) -> str | None:
        """All strings of ``n`` digits, as far as they make a multiple."""
        if self._multiple == 1:
            return f"[0-9]{{{n}}}" if n else '""'
        if n == 0:
            return '""' if remainder == 0 else None
        if (n, remainder) not in self._free:
            body = self._by_digit(remainder, range(10), lambda _, after: self._any(n - 1, after))
            self._free[n, remainder] = self._add_rule(body) if body else None
        return self._free[n, remainder]

    def _by_digit(self, remainder: int, digits: range, rest: Callable[[int, int], str | None]) -> str | None:
        """One digit and what may follow it; digits that are followed by the same stand together."""
        groups: dict[str, str] = {}
        for digit in digits:
            body = rest(digit, (10 * remainder + digit) % self._multiple)
            if body is not None:
                groups[body] = groups.get(body, "") + str(digit)
        return _or([f"[{chars}] {body}" for body, chars in groups.items()])


# -- numbers with a fraction -------------------------------------------------------------------------------


def _decimals(low: Bound | None, high: Bound | None, n_digits: int, where: str) -> str | None:
    if low is not None and high is not None and low.value > high.value:
        return None
    for bound in (low, high):
        if bound is not None:
            whole = len(str(abs(int(bound.value))))
            if whole > _DOUBLE_DIGITS - 1:
                raise GrammarError(f"{where}: bounds of numbers may have {_DOUBLE_DIGITS - 1} digits before the point")
            n_digits = min(n_digits, _DOUBLE_DIGITS - whole)
            if -int(bound.value.normalize().as_tuple().exponent) > n_digits:
                raise GrammarError(f"{where}: a bound of numbers may have {n_digits} digits after the point here")
    found = []
    if low is None or low.value < 0:
        least = Bound(-high.value, high.exclusive) if high is not None and high.value <= 0 else None
        most = Bound(-low.value, low.exclusive) if low is not None else None
        if body := _magnitudes(least, most, n_digits):
            found.append(f'"-" ({body})')
    if high is None or high.value >= 0:
        least = low if low is not None and low.value >= 0 else None
        if body := _magnitudes(least, high, n_digits):
            found.append(body)
    return _or(found)


def _magnitudes(low: Bound | None, high: Bound | None, n_digits: int) -> str | None:
    """Numbers from ``low`` (None: 0) to ``high`` (None: no limit), both at least 0, with up to ``n_digits`` after the
    point."""
    low = low or Bound(Decimal(0), False)
    first, low_digits = _split(low)
    found = []
    if high is None:
        last, high_digits = _MOST + 1, None
    else:
        last, high_digits = _split(high)
    if first == last:
        found.append(_with_fraction(f'"{first}"', low_digits, high_digits, n_digits))
    else:
        found.append(_with_fraction(f'"{first}"', low_digits, None, n_digits))
        between = _Digits(1, lambda body: body).between(first + 1, last - 1) if first + 1 < last else None
        if between is not None:
            found.append(_with_fraction(f"({between})", None, None, n_digits))
        if high_digits is not None:
            found.append(_with_fraction(f'"{last}"', None, high_digits, n_digits))
    return _or([each for each in found if each is not None])


def _split(bound: Bound) -> tuple[int, _Rest]:
    """The whole part; the digits after the point without zeros at their end, and whether the bound is exclusive."""
    whole, _, digits = f"{bound.value:f}".partition(".")
    return int(whole), (digits.rstrip("0"), bound.exclusive)


def _with_fraction(whole: str, low: _Rest | None, high: _Rest | None, n: int) -> str | None:
    may_end, digits = _fractions(low, high, n)
    if digits is None:
        return whole if may_end else None
    return f'{whole} ("." {digits})?' if may_end else f'{whole} "." {digits}'


def _fractions(low: _Rest | None, high: _Rest | None, n: int) -> tuple[bool, str | None]:
    """Up to ``n`` more digits of a fraction: whether none may follow, and a group of those that may (None: none).

    ``low`` and ``high`` are the rest of the bounds' digits, where all digits so far were theirs, else None.
    """
    if low is None and high is None:
        return True, f"[0-9]{{1,{n}}}" if n else None
    may_end = (low is None or low == ("", False)) and (high is None or high != ("", True))
    if n == 0:
        return may_end, None
    groups: dict[str, str] = {}
    for digit in "0123456789":
        least, most = _next_digit(low), _next_digit(high)
        if (least is not None and digit < least) or (most is not None and digit > most):
            continue
        rest_may_end, rest = _fractions(
            (low[0][1:], low[1]) if low is not None and digit == least else None,
            (high[0][1:], high[1]) if high is not None and digit == most else None,
            n - 1,
        )
        if rest is not None:
            rest = f"({rest})?" if rest_may_end else rest
        elif rest_may_end:
            rest = ""
        else:
            continue
        groups[rest] = groups.get(rest, "") + digit
    body = _or([f"[{chars}] {rest}" for rest, chars in groups.items()])
    return may_end, f"({body})" if body is not None else None


def _next_digit(bound: _Rest | None) -> str | None:
    if bound is None:
        return None
    return bound[0][:1] or "0"

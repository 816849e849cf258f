"""Which metrics and labels a PromQL expression names. Its syntax is left to promtool."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import NamedTuple

from tarry.service.reference import families

BY_PROMETHEUS = {"ALERTS": frozenset({"alertname", "alertstate", "severity"})}
"""Series that Prometheus itself makes."""

OF_THE_SCRAPE = frozenset({"instance", "job"})
"""Labels that Prometheus adds to every series."""

_TOKEN = re.compile(
    r"""
    (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
  | (?P<range>\[[^\]]*\])
  | (?P<number>\d[\w.]*)
  | (?P<name>[A-Za-z_:][\w:]*)
  | (?P<sign>=~|!~|!=|==|>=|<=|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_LABEL_LISTS = {"by", "without", "on", "ignoring", "group_left", "group_right"}
_OPERATORS = {"and", "or", "unless", "offset", "bool", "inf", "nan"}


class Named(NamedTuple):
    """What an expression names."""

    selectors: frozenset[tuple[str, frozenset[str]]]
    """Metrics, each with the labels that are matched on it."""
    grouped: frozenset[str]
    """Labels to group or to join by."""


def named(expr: str) -> Named:
    tokens = [
        (str(found.lastgroup), found[0])
        for found in _TOKEN.finditer(re.sub(r"\$\w+(?=\])|\$__\w+", "5m", expr))
        if not found[0].isspace()
    ]
    selectors, grouped, at = set(), set(), 0
    while at < len(tokens):
        kind, text = tokens[at]
        following = tokens[at + 1][1] if at + 1 < len(tokens) else ""
        at += 1
        if kind != "name":
            continue
        if text in _LABEL_LISTS:
            if following == "(":
                end = _closing(tokens, at, ")")
                grouped |= {word for kind, word in tokens[at:end] if kind == "name"}
                at = end
        elif following == "{":
            end = _closing(tokens, at, "}")
            pairs = zip(tokens[at:end], tokens[at + 1 : end + 1], strict=True)
            labels = {word for (kind, word), (_, sign) in pairs if kind == "name" and sign in ("=", "!=", "=~", "!~")}
            selectors.add((text, frozenset(labels)))
            at = end
        elif following != "(" and text not in _OPERATORS and not _is_call(tokens, at):
            selectors.add((text, frozenset()))
    return Named(frozenset(selectors), frozenset(grouped))


def _is_call(tokens: list[tuple[str, str]], at: int) -> bool:
    """An aggregation may have its labels before its argument: `sum by (queue) (…)`."""
    return at < len(tokens) and tokens[at][1] in ("by", "without")


def _closing(tokens: list[tuple[str, str]], at: int, sign: str) -> int:
    return next(place for place in range(at, len(tokens)) if tokens[place][1] == sign)


@cache
def known() -> Mapping[str, frozenset[str]]:
    """Every series of the registry, with its labels."""
    found: dict[str, frozenset[str]] = dict(BY_PROMETHEUS)
    for family in families():
        labels = frozenset(family.labels) | OF_THE_SCRAPE
        found[family.exposed] = labels
        if family.kind == "histogram":
            found[f"{family.name}_bucket"] = labels | {"le"}
            found |= {f"{family.name}_sum": labels, f"{family.name}_count": labels}
    return found


def mistakes(expr: str, series: Mapping[str, Iterable[str]] | None = None) -> list[str]:
    """What it names that does not exist."""
    exists = {name: set(labels) for name, labels in (known() if series is None else series).items()}
    found, of_all = [], set[str]()
    selectors, grouped = named(expr)
    if not selectors:
        return ["it names no metric"]
    for metric, labels in selectors:
        if metric not in exists:
            found.append(f"no metric {metric}")
            continue
        of_all |= exists[metric]
        found += [f"no label {label} on {metric}" for label in labels - exists[metric]]
    return found + ([f"no label {label}" for label in grouped - of_all] if not found else [])

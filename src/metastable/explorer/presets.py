"""Known settings to start from: the paper's figures, what lies beyond them, and variations."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from metastable.explorer.setting import Clock, Setting


def _setting(dim: int, beta: float, tokens: int, seed: int = 0, **rest: Any) -> dict[str, Any]:
    """One system; `rest`: further fields of the model, and `delta`."""
    delta = rest.pop("delta", None)
    table: dict[str, Any] = {"model": {"dim": dim, "beta": beta, **rest}, "start": {"tokens": tokens, "seed": seed}}
    return table if delta is None else {**table, "delta": delta}


def _eigenvalues(*values: float | complex) -> dict[str, Any]:
    return {"eigenvalues": [[complex(value).real, complex(value).imag] for value in values]}


def _preset(
    name: str, group: str, title: str, text: str, panels: list[dict[str, Any]], until: float, log: bool = False
) -> dict[str, Any]:
    return {
        "name": name,
        "group": group,
        "title": title,
        "text": text,
        "state": {"panels": panels, "clock": {"until": float(until), "log": log}},
    }


def _figure_1() -> list[dict[str, Any]]:
    """Figure 1: one sphere per row of Table 1 (d = 3, n = 32, beta = 9), and a complex pair.

    Rows 1 and 2 are shown to t = 1e9: at the paper's T = 5000 most draws still have several clusters.
    """
    rows: list[tuple[str, str, str, tuple[float | complex, ...], float]] = [
        ("a", "V = I: one point", "Theorem 4.1: every token ends where the first one began.", (1.0, 1.0, 1.0), 1e9),
        ("b", "Double top eigenvalue", "All tokens meet in one point of the plane L.", (1.0, 1.0, -0.5), 1e9),
        ("c", "Simple top eigenvalue", "Two points, ξ and −ξ.", (1.0, 0.5, -1.0), 5000.0),
        ("d", "Repulsion, double", "All eigenvalues negative: a cloud around the plane L.", (-1.0, -1.0, -2.0), 5000.0),
        ("e", "Repulsion, simple", "Two clouds, around ξ and −ξ.", (-1.0, -2.0, -2.0), 5000.0),
        ("f", "Complex pair", "The first token rotates for ever and the others follow it.", (1.0 + 0.3j, 0.2), 200.0),
    ]
    return [
        _preset(
            f"figure-1{letter}",
            "Figure 1: where everything ends",
            title,
            text,
            [
                _setting(
                    3, 9.0, 32, seed=1 if letter == "f" else 0, value=None if letter == "a" else _eigenvalues(*values)
                )
            ],
            until,
            until > 1000,
        )
        for letter, title, text, values, until in rows
    ]


def _meanwhile() -> list[dict[str, Any]]:
    anchors = [[math.cos(math.pi * k / 4 + 0.3), math.sin(math.pi * k / 4 + 0.3)] for k in range(8)]
    group = "Meanwhile: metastable clusters"
    return [
        _preset(
            "sphere",
            group,
            "A sphere of tokens",
            "400 tokens fall into clusters around the first of them in each neighbourhood.",
            [_setting(3, 36.0, 400)],
            1000.0,
            True,
        ),
        _preset(
            "figure-2",
            group,
            "Figure 2: parking on the circle",
            "Strong Rényi centers (red) stand still; the other centers (black) move and merge.",
            [_setting(2, 64.0, 200)],
            200.0,
        ),
        _preset(
            "cascade",
            group,
            "The cascade to t = 10³⁰",
            "Clusters live exponentially long, and still all merge: two hundred tokens become one.",
            [_setting(2, 32.0, 200)],
            1e30,
            True,
        ),
        _preset(
            "frozen",
            group,
            "Frozen tokens",
            "Theorem 5.2: eight anchors that never move; every free token ends near one of them.",
            [_setting(2, 64.0, 150, frozen={"tokens": anchors, "weights": [4.0] * 8})],
            5000.0,
            True,
        ),
    ]


def _comparisons() -> list[dict[str, Any]]:
    group = "Side by side"
    return [
        _preset(
            "full-causal",
            group,
            "Causal against full attention",
            "The same start. Causal: leaders hold their place. Full: everybody pulls everybody.",
            [_setting(2, 32.0, 120), _setting(2, 32.0, 120, mask={"kind": "full"})],
            1000.0,
            True,
        ),
        _preset(
            "norms",
            group,
            "Norms: Post-LN against Pre-LN",
            "Pre-LN lets tokens grow, so the same forces turn them ever more slowly.",
            [_setting(3, 25.0, 150), _setting(3, 25.0, 150, norm={"kind": "pre_ln"})],
            1000.0,
            True,
        ),
        _preset(
            "temperature",
            group,
            "Two temperatures",
            "Twice as many clusters for four times the beta on the circle.",
            [_setting(2, 25.0, 200), _setting(2, 100.0, 200)],
            1000.0,
            True,
        ),
    ]


def _variations() -> list[dict[str, Any]]:
    group = "Variations"
    return [
        _preset(
            "sixteen",
            group,
            "Sixteen dimensions",
            "Shown in the leading eigenspace of V, where all tokens end.",
            [_setting(16, 16.0, 150, value=_eigenvalues(1.0, 1.0, 1.0, *[0.0] * 13))],
            200.0,
        ),
        _preset(
            "noise",
            group,
            "With noise",
            "Brownian motion shakes the clusters; the deep ones survive.",
            [_setting(2, 64.0, 200, noise=0.08)],
            100.0,
        ),
        _preset(
            "window",
            group,
            "Sliding window",
            "Each token sees the sixteen before it: clusters form along the sequence.",
            [_setting(2, 36.0, 150, mask={"kind": "window", "width": 16})],
            500.0,
            True,
        ),
    ]


FIRST = "sphere"
"""What a page without a link shows."""


@cache
def catalogue() -> dict[str, Any]:
    """All presets in the order of the menu, checked, and the name of the first one to show."""
    items = [*_meanwhile(), *_figure_1(), *_comparisons(), *_variations()]
    for item in items:
        clock = Clock.from_dict(item["state"]["clock"])
        for panel in item["state"]["panels"]:
            Setting.from_dict(panel).check_clock(clock)
    return {"first": FIRST, "items": items}

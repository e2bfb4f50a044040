"""The few statistical tests by which recipes reach their verdicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

LEVEL = 1e-3
"""Significance level: a true statement is called false once in a thousand tests (a report makes about fifty)."""


@dataclass(frozen=True)
class Mean:
    """A mean with its standard error."""

    value: float
    error: float
    count: int

    @classmethod
    def of(cls, sample: Any) -> Mean:
        """Mean and standard error of independent values."""
        values = np.asarray(sample, dtype=float).ravel()
        spread = float(values.std(ddof=1)) if values.size > 1 else 0.0
        return cls(float(values.mean()), spread / float(np.sqrt(values.size)), values.size)

    def __str__(self) -> str:
        digits = max(0, min(6, 1 - int(np.floor(np.log10(self.error))))) if self.error > 0 else 4
        return f"{self.value:.{digits}f} ± {self.error:.{digits}f}"


def score(mean: Mean, target: float) -> float:
    """z = (mean - target)/standard error (0 when both are exact and equal)."""
    difference = mean.value - target
    if mean.error == 0:
        return 0.0 if abs(difference) <= 1e-12 * max(1.0, abs(target)) else float(np.inf) * float(np.sign(difference))
    return difference / mean.error


def consistent(mean: Mean, target: float, level: float = LEVEL) -> bool:
    """Two-sided t test: is `target` compatible with the measured mean?"""
    from scipy import stats

    if mean.error == 0:
        return score(mean, target) == 0.0
    return bool(2 * stats.t.sf(abs(score(mean, target)), max(mean.count - 1, 1)) > level)


def interval(successes: int, draws: int, confidence: float = 0.95) -> tuple[float, float]:
    """Exact (Clopper-Pearson) confidence interval of a probability."""
    from scipy import stats

    bounds = stats.binomtest(successes, draws).proportion_ci(confidence, method="exact")
    return float(bounds.low), float(bounds.high)


def slope(x: Any, y: Any, error: Any = None) -> Mean:
    """Least-squares slope of y against x with its standard error; `error`: standard errors of y (weights)."""
    a, b = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    weight = np.ones_like(b) if error is None else 1.0 / np.asarray(error, dtype=float) ** 2
    center = np.average(a, weights=weight)
    spread = np.sum(weight * (a - center) ** 2)
    value = float(np.sum(weight * (a - center) * b) / spread)
    residual = b - np.average(b, weights=weight) - value * (a - center)
    # Scatter beyond the stated errors widens the interval (chi^2 per degree of freedom above 1).
    inflation = max(1.0, float(np.sum(weight * residual**2)) / max(a.size - 2, 1)) if error is not None else 1.0
    variance = inflation / spread if error is not None else np.sum(residual**2) / max(a.size - 2, 1) / spread
    return Mean(value, float(np.sqrt(variance)), a.size)


def percent(successes: int, draws: int) -> str:
    """`18 of 20 (95 % interval 68 to 99 %)`."""
    low, high = interval(successes, draws)
    return f"{successes} of {draws} (95 % interval {100 * low:.0f} to {100 * high:.0f} %)"

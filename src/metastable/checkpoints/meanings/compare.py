"""Do heads with a real positive leading eigenvalue read and write the same words more often, and how does that move with depth?"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import _checks
from metastable._checks import FloatArray
from metastable.errors import InvalidInputError

if TYPE_CHECKING:
    import xarray as xr

NEEDED = (
    "alike",
    "alike_null",
    "alike_p",
    "alike_usual",
    "eigenvalue",
    "null_eigenvalue",
    "null_sign_score",
    "sign_score",
)
"""Variables of a dataset of `meaning` that are compared."""


@dataclass(frozen=True)
class Comparison:
    """Tests over all heads of a dataset of `meaning`, leading mode.

    `alike_real_positive`, `alike_others`: mean of `alike` over heads with a real positive leading eigenvalue and over the rest, with
    their numbers; `alike_null_real`, `alike_null_complex`: means over Haar heads of either kind. Random planes are less alike than
    random lines, so the tests are on the excess: `alike` less the mean over the head's own Haar heads of its kind (mirrored where the
    eigenvalue repels). `excess_real_positive`, `excess_others`: its means; `difference_p`: of their difference, two-sided, by permuting
    which heads are which (Welch's statistic, since the two kinds do not spread alike). `same_words`, `opposite_words`: heads whose
    `alike` is above (below) the median of their own Haar heads with p <= `level`; by chance about `level` of all heads are either.
    `sign_correlation`: Spearman's rank correlation of the excess with the sign score. It is not zero in random heads (u^T v = lambda:
    a larger leading eigenvalue raises both), so it goes with `sign_correlation_null`, the mean over draws of one Haar head for every
    head, and `sign_p` is two-sided about that mean. `depth_correlation`: of the excess with the layer. All p count heads as
    independent.
    """

    heads: int
    real_positive: int
    alike_real_positive: float
    alike_others: float
    difference_p: float
    alike_null_real: float
    alike_null_complex: float
    excess_real_positive: float
    excess_others: float
    same_words: int
    opposite_words: int
    same_words_real_positive: int
    level: float
    sign_correlation: float
    sign_correlation_null: float
    sign_p: float
    depth_correlation: float
    depth_p: float

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain numbers."""
        return asdict(self)


def _mean(values: FloatArray) -> float:
    return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")


def _permutation_p(values: FloatArray, chosen: Any, permutations: int, seed: int) -> float:
    """Two-sided p of the difference of means between chosen and other values, in units of its standard error."""
    if min(chosen.sum(), (~chosen).sum()) < 2 or np.ptp(values) == 0:
        return float("nan")

    def difference(flags: Any) -> float:
        one, other = values[flags], values[~flags]
        error = np.sqrt(one.var(ddof=1) / len(one) + other.var(ddof=1) / len(other))
        gap = abs(float(one.mean() - other.mean()))
        return gap / float(error) if error > 0 else float("inf") if gap > 0 else 0.0

    generator = np.random.default_rng(seed)
    observed = difference(chosen) * (1 - 1e-12)
    extreme = sum(difference(generator.permutation(chosen)) >= observed for _ in range(permutations))
    return (1 + extreme) / (1 + permutations)


def _excess(alike: FloatArray, value: Any, null: FloatArray, null_value: Any) -> tuple[FloatArray, FloatArray]:
    """`alike` (heads,) and `null` (heads, draws) less the mean of the head's draws of the same kind, real or complex.

    Draws whose eigenvalue has a negative real part are mirrored, as in `alike_p`. NaN where a head has no draw of the kind.
    """
    import warnings

    def sign(numbers: Any) -> FloatArray:
        return np.where(numbers.real < 0, -1.0, 1.0)

    real = null_value.imag == 0
    mirrored = null * sign(null_value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the mean of nothing is NaN, and said to be so
        line, plane = (np.nanmean(np.where(kind, mirrored, np.nan), axis=1) for kind in (real, ~real))
    own = np.where(value.imag == 0, line, plane) * sign(value)
    theirs = np.where(real, line[:, None], plane[:, None]) * sign(null_value)
    return alike - own, null - theirs


def _sign_test(excess: FloatArray, score: FloatArray, null: FloatArray, null_score: FloatArray) -> tuple[float, ...]:
    """Rank correlation of excess with sign score, its mean over draws (heads, draws) of random heads, and the two-sided p."""
    observed = _rank_correlation(excess, score)[0]
    drawn = []
    for one, other in zip(null.T, null_score.T):
        there = np.isfinite(one) & np.isfinite(other)
        if there.sum() >= 3:
            drawn.append(_rank_correlation(one[there], other[there])[0])
    found = np.array([one for one in drawn if np.isfinite(one)])
    if not found.size or not np.isfinite(observed):
        return observed, float("nan"), float("nan")
    middle = float(found.mean())
    extreme = int((np.abs(found - middle) >= abs(observed - middle)).sum())
    return observed, middle, (1 + extreme) / (1 + len(found))


def _rank_correlation(x: FloatArray, y: Any) -> tuple[float, float]:
    """Spearman's correlation and its p; NaN where one side does not vary."""
    from scipy.stats import spearmanr

    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return float("nan"), float("nan")
    result: Any = spearmanr(x, y)
    return float(result.statistic), float(result.pvalue)


def compare_heads(meanings: xr.Dataset, *, level: float = 0.05, permutations: int = 1999, seed: int = 0) -> Comparison:
    """`Comparison` over the heads of a dataset of `checkpoints.meaning` (leading mode; heads that write nothing are left out)."""
    level = _checks.number(level, "level", 0.0, 1.0, strict=True)
    permutations, seed = _checks.count(permutations, "permutations"), _checks.seed(seed)
    if not set(NEEDED) <= set(getattr(meanings, "variables", ())):
        raise InvalidInputError(f"meanings must be a dataset of checkpoints.meaning, not {type(meanings).__name__}")
    if meanings["alike_null"].dims != ("layer", "head", "mode", "draw"):
        raise InvalidInputError(
            f"meanings must keep its dims (layer, head, mode, draw), but alike_null has {meanings['alike_null'].dims}; choose with "
            "lists, as in isel(layer=[0]), and do not squeeze"
        )
    lead = meanings.isel(mode=0)
    alike = lead["alike"].values.ravel()
    kept = np.isfinite(alike)
    if kept.sum() < 3:
        raise InvalidInputError("comparing heads needs at least three of them; measure more layers or heads")
    alike = alike[kept]
    value = np.asarray(lead["eigenvalue"].values, dtype=np.complex128).ravel()[kept]
    null, null_value, null_score = (
        data.values.reshape(kept.size, -1)[kept]
        for data in (lead["alike_null"], lead["null_eigenvalue"], meanings["null_sign_score"])
    )
    null_real = np.imag(null_value) == 0
    excess, null_excess = _excess(alike, value, null, null_value)
    told = np.isfinite(excess)
    usual = lead["alike_usual"].values.ravel()[kept]
    significant = lead["alike_p"].values.ravel()[kept] <= level
    layer = np.broadcast_to(lead["layer"].values[:, None], lead["alike"].shape).ravel()[kept]
    positive = (value.imag == 0) & (value.real > 0)
    same = significant & (alike > usual)
    score = meanings["sign_score"].values.ravel()[kept]
    sign, sign_null, sign_p = _sign_test(excess[told], score[told], null_excess, null_score)
    depth, depth_p = _rank_correlation(excess[told], layer[told])
    return Comparison(
        heads=int(alike.size),
        real_positive=int(positive.sum()),
        alike_real_positive=_mean(alike[positive]),
        alike_others=_mean(alike[~positive]),
        difference_p=_permutation_p(excess[told], positive[told], permutations, seed),
        alike_null_real=_mean(null[null_real]),
        alike_null_complex=_mean(null[~null_real]),
        excess_real_positive=_mean(excess[positive]),
        excess_others=_mean(excess[~positive]),
        same_words=int(same.sum()),
        opposite_words=int((significant & (alike < usual)).sum()),
        same_words_real_positive=int((same & positive).sum()),
        level=level,
        sign_correlation=sign,
        sign_correlation_null=sign_null,
        sign_p=sign_p,
        depth_correlation=depth,
        depth_p=depth_p,
    )

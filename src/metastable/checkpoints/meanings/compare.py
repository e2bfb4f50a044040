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


@dataclass(frozen=True)
class Comparison:
    """Tests over all heads of a dataset of `meaning`, leading mode.

    `alike_real_positive`, `alike_others`: mean of `alike` over heads with a real positive leading eigenvalue and over the rest, with
    their numbers; `difference_p`: two-sided, by permuting which heads are which. `alike_null_real`, `alike_null_complex`: means over
    Haar heads of either kind. `same_words`, `opposite_words`: heads whose `alike` is above (below) the median of their own Haar heads
    with p <= `level`; by chance about `level` of all heads are either.
    `sign_correlation`: Spearman's rank correlation of `alike` with the sign score; `depth_correlation`: with the layer; each with its
    p, which counts heads as independent.
    """

    heads: int
    real_positive: int
    alike_real_positive: float
    alike_others: float
    difference_p: float
    alike_null_real: float
    alike_null_complex: float
    same_words: int
    opposite_words: int
    same_words_real_positive: int
    level: float
    sign_correlation: float
    sign_p: float
    depth_correlation: float
    depth_p: float

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain numbers."""
        return asdict(self)


def _mean(values: FloatArray) -> float:
    return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")


def _permutation_p(values: FloatArray, chosen: Any, permutations: int, seed: int) -> float:
    """Two-sided p of the difference of means between chosen and other values."""
    if chosen.all() or not chosen.any():
        return float("nan")

    def difference(flags: Any) -> float:
        return float(values[flags].mean() - values[~flags].mean())

    generator = np.random.default_rng(seed)
    observed = abs(difference(chosen))
    extreme = sum(abs(difference(generator.permutation(chosen))) >= observed for _ in range(permutations))
    return (1 + extreme) / (1 + permutations)


def _rank_correlation(x: FloatArray, y: Any) -> tuple[float, float]:
    """Spearman's correlation and its p; NaN where one side does not vary."""
    from scipy.stats import spearmanr

    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return float("nan"), float("nan")
    result: Any = spearmanr(x, y)
    return float(result.statistic), float(result.pvalue)


def compare_heads(meanings: xr.Dataset, *, level: float = 0.05, permutations: int = 1999, seed: int = 0) -> Comparison:
    """`Comparison` over the heads of a dataset of `checkpoints.meaning` (leading mode; heads that write nothing are left out)."""
    level = _checks.number(level, "level", 0.0, 1.0, strict=True)
    permutations, seed = _checks.count(permutations, "permutations"), _checks.seed(seed)
    if not {"alike", "alike_null", "alike_p", "alike_usual", "eigenvalue", "null_is_real", "sign_score"} <= set(
        getattr(meanings, "variables", ())
    ):
        raise InvalidInputError(f"meanings must be a dataset of checkpoints.meaning, not {type(meanings).__name__}")
    lead = meanings.isel(mode=0)
    alike = lead["alike"].values.ravel()
    kept = np.isfinite(alike)
    if kept.sum() < 3:
        raise InvalidInputError("comparing heads needs at least three of them; measure more layers or heads")
    alike = alike[kept]
    value = np.asarray(lead["eigenvalue"].values, dtype=np.complex128).ravel()[kept]
    null, null_real = (
        lead[name].values.reshape(kept.size, -1)[kept].ravel() for name in ("alike_null", "null_is_real")
    )
    usual = lead["alike_usual"].values.ravel()[kept]
    significant = lead["alike_p"].values.ravel()[kept] <= level
    layer = np.broadcast_to(lead["layer"].values[:, None], lead["alike"].shape).ravel()[kept]
    positive = (value.imag == 0) & (value.real > 0)
    same = significant & (alike > usual)
    sign, sign_p = _rank_correlation(alike, meanings["sign_score"].values.ravel()[kept])
    depth, depth_p = _rank_correlation(alike, layer)
    return Comparison(
        heads=int(alike.size),
        real_positive=int(positive.sum()),
        alike_real_positive=_mean(alike[positive]),
        alike_others=_mean(alike[~positive]),
        difference_p=_permutation_p(alike, positive, permutations, seed),
        alike_null_real=_mean(null[null_real]),
        alike_null_complex=_mean(null[~null_real]),
        same_words=int(same.sum()),
        opposite_words=int((significant & (alike < usual)).sum()),
        same_words_real_positive=int((same & positive).sum()),
        level=level,
        sign_correlation=sign,
        sign_p=sign_p,
        depth_correlation=depth,
        depth_p=depth_p,
    )

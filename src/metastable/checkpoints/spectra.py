"""Spectra of the value matrices of real checkpoints: Figures 5 and 6 of arXiv:2411.04990, with the nulls they need.

V_h = O_h W_h G (G the gain of the norm that feeds the layer) is dim x dim of rank at most head_dim; its non-zero eigenvalues are
those of the head_dim x head_dim matrix W_h G O_h. Being of low rank it also has a kernel, so its true rightmost eigenvalue is
max(that, 0): both are returned.

At random the leading eigenvalue is real about as often as not and its real part is positive, so neither says much on its
own. The sign score of the bulk, sum Re lambda / sum |lambda|, has a narrow null around zero: read it first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metastable._checks import FloatArray, choice, count
from metastable._checks import seed as check_seed
from metastable.checkpoints import arguments
from metastable.checkpoints.linear import gram_factor, haar_corner
from metastable.checkpoints.weights import AttentionWeights, LayerWeights
from metastable.errors import InvalidInputError

if TYPE_CHECKING:
    import xarray as xr

ComplexArray = NDArray[np.complex128]

NULLS = ("gaussian", "haar")


def _eigenvalues(matrices: FloatArray) -> ComplexArray:
    """Complex eigenvalues (..., k) of real matrices, by decreasing real part; the upper one of a conjugate pair first."""
    values = np.linalg.eigvals(matrices).astype(np.complex128)
    order = np.lexsort((-values.imag, -values.real), axis=-1)
    return np.take_along_axis(values, order, axis=-1)


def head_cores(layer: LayerWeights) -> FloatArray:
    """W_h O_h, shape (heads, head_dim, head_dim): the non-zero spectrum of each V_h (fold the layer first to include gains)."""
    groups = layer.head_count // layer.kv_head_count
    return np.repeat(layer.value, groups, axis=0) @ layer.output


def layer_core(layer: LayerWeights) -> FloatArray:
    """The non-zero spectrum of V = sum_h V_h from the smallest possible matrix, (kv_heads * head_dim) squared.

    Heads that share a value projection add their outputs first: V = sum_g (sum_{h in g} O_h) W_g.
    """
    groups = layer.head_count // layer.kv_head_count
    output = layer.output.reshape(layer.kv_head_count, groups, layer.dim, layer.head_dim).sum(axis=1)
    stacked = output.transpose(1, 0, 2).reshape(layer.dim, -1)
    return layer.value.reshape(-1, layer.dim) @ stacked


def atlas_row(leading: ArrayLike, multiplicity: ArrayLike = 1) -> NDArray[np.int64]:
    """Row of Table 1 of arXiv:2411.04990 for a leading eigenvalue (0: none, as for a complex pair or a zero).

    Rows 2 and 4 need multiplicity >= 2, rows 3 and 5 multiplicity 1. Row 1, V = c I, is beyond a matrix of low rank.
    """
    value, several = np.asarray(leading, dtype=np.complex128), np.asarray(multiplicity) > 1
    row = np.where(value.real > 0, np.where(several, 2, 3), np.where(several, 4, 5))
    return np.where((value.imag != 0) | (value.real == 0), 0, row).astype(np.int64)


def _dataset(values: ComplexArray, dims: tuple[str, ...], kernel: bool, attributes: dict[str, Any]) -> xr.Dataset:
    """The dataset that every spectrum function returns, from eigenvalues of shape (*dims, mode)."""
    import xarray as xr

    leading = values[..., 0]
    full: ComplexArray = np.where(leading.real < 0, 0.0 + 0.0j, leading) if kernel else leading
    score = values.real.sum(axis=-1) / np.abs(values).sum(axis=-1)
    variables = {
        "eigenvalue": ((*dims, "mode"), values),
        "leading": (dims, leading),
        "leading_with_kernel": (dims, full),
        "is_real": (dims, leading.imag == 0),
        "sign_score": (dims, score),
        "all_negative": (dims, (values.real < 0).all(axis=-1)),
        "all_positive": (dims, (values.real > 0).all(axis=-1)),
        "atlas_row": (dims, atlas_row(leading)),
        "atlas_row_with_kernel": (dims, atlas_row(full)),
    }
    return xr.Dataset(variables, attrs={"kernel": int(kernel), **attributes})


def _attributes(weights: AttentionWeights, fold_gain: bool, center: bool) -> dict[str, Any]:
    """What a spectrum was computed from."""
    return {
        "source": weights.source,
        "architecture": weights.architecture,
        "dim": weights.dim,
        "head_dim": weights.head_dim,
        "fold_gain": int(fold_gain),
        "center": int(center),
    }


def _chosen(weights: AttentionWeights, layers: list[int] | None) -> list[int]:
    """The layers asked for; of layers that share weights and norm (ALBERT) all are kept, since their gains may differ."""
    arguments.weights(weights)
    if layers is None:
        return list(range(weights.layer_count))
    if isinstance(layers, (str, bytes)) or not isinstance(layers, Iterable):
        raise InvalidInputError(f"layers must be a list of layer numbers, not {layers!r}")
    chosen = [weights.check_layer(index) for index in layers]
    if not chosen:
        raise InvalidInputError("layers is empty; name at least one layer, or leave it out for all")
    return chosen


def _folded(weights: AttentionWeights, layers: list[int], fold_gain: bool, center: bool) -> Iterator[LayerWeights]:
    arguments.switch(fold_gain, "fold_gain")
    for index in layers:
        yield weights.layer(index).fold(gain=fold_gain, center=center)


def _centers(weights: AttentionWeights, center: bool | None) -> bool:
    """Whether to centre: as asked, or where the model's norm does."""
    return weights.norm_kind == "layer" if center is None else arguments.switch(center, "center")


def ov_spectra(
    weights: AttentionWeights, fold_gain: bool = True, *, center: bool | None = None, layers: list[int] | None = None
) -> xr.Dataset:
    """Spectrum of V_h for every head, reading one layer at a time.

    Args:
        weights: from `load_weights` or `random_weights`.
        fold_gain: include the gain of the norm, V_h = O_h W_h G, as the tokens on the sphere see it.
        center: remove the direction (1, ..., 1) that LayerNorm never lets through; None: where the model has LayerNorm.
        layers: which layers (None: all).

    Returns:
        Dataset over (layer, head): `eigenvalue` (.., mode) by decreasing real part, `leading` (without the kernel's zero),
        `leading_with_kernel`, `is_real`, `sign_score` = sum Re / sum abs, `all_negative`, `all_positive`, and the row of
        Table 1 (0: none) that the leading eigenvalue belongs to, `atlas_row` and `atlas_row_with_kernel`.
    """
    chosen, center = _chosen(weights, layers), _centers(weights, center)
    values = np.stack([_eigenvalues(head_cores(layer)) for layer in _folded(weights, chosen, fold_gain, center)])
    result = _dataset(
        values, ("layer", "head"), weights.head_dim < weights.dim, _attributes(weights, fold_gain, center)
    )
    groups = weights.head_count // weights.kv_head_count
    return result.assign_coords(
        layer=chosen,
        head=np.arange(weights.head_count),
        kv_head=("head", np.arange(weights.head_count) // groups),
    )


def layer_spectra(
    weights: AttentionWeights, fold_gain: bool = True, *, center: bool | None = None, layers: list[int] | None = None
) -> xr.Dataset:
    """Spectrum of the sum over heads, V = sum_h V_h, for every layer: the value matrix of a layer that attends uniformly.

    Arguments and variables as in `ov_spectra`, over (layer,).
    """
    chosen, center = _chosen(weights, layers), _centers(weights, center)
    values = np.stack([_eigenvalues(layer_core(layer)) for layer in _folded(weights, chosen, fold_gain, center)])
    kernel = weights.kv_head_count * weights.head_dim < weights.dim
    result = _dataset(values, ("layer",), kernel, _attributes(weights, fold_gain, center))
    return result.assign_coords(layer=chosen)


def _singular_values(layer: LayerWeights) -> FloatArray:
    """Singular values (heads, head_dim) of each V_h, from head_dim x head_dim matrices."""
    groups = layer.head_count // layer.kv_head_count
    outer = gram_factor(layer.output)
    inner = np.repeat(gram_factor(layer.value.transpose(0, 2, 1)), groups, axis=0)
    return np.asarray(np.linalg.svd(outer @ inner.transpose(0, 2, 1), compute_uv=False), dtype=np.float64)


def ov_spectra_null(
    weights: AttentionWeights,
    kind: str = "gaussian",
    *,
    samples: int = 1,
    seed: int = 0,
    fold_gain: bool = True,
    layers: list[int] | None = None,
) -> xr.Dataset:
    """Spectra of random value matrices of the same sizes: what `ov_spectra` would show if nothing had been learned.

    `"gaussian"`: independent entries, V = O W, scaled to the Frobenius norm of the head's own V_h. `"haar"`: the head's own
    singular values between independent Haar-distributed frames, V = U S W^T; this keeps how strong and how low-rank a
    trained head is and randomises only how its outputs lie to its inputs.

    Returns:
        As `ov_spectra`, with a dimension `sample` in front.
    """
    choice(kind, "kind", NULLS)
    samples, chosen = count(samples, "samples", 1, 100_000), _chosen(weights, layers)
    dim, width, heads = weights.dim, weights.head_dim, weights.head_count
    values = np.empty((samples, len(chosen), heads, width), dtype=np.complex128)
    root = np.random.SeedSequence(check_seed(seed))
    center = _centers(weights, None)
    for place, layer in enumerate(_folded(weights, chosen, fold_gain, center)):
        child = np.random.SeedSequence(root.entropy, spawn_key=(chosen[place],))
        generator = np.random.default_rng(child)
        strengths = _singular_values(layer)
        for sample in range(samples):
            if kind == "haar":
                # Only the overlap W^T U of the two frames enters.
                cores = strengths[:, :, None] * haar_corner(generator, heads, dim, width)
            else:
                cores = generator.standard_normal((heads, width, dim)) @ generator.standard_normal((heads, dim, width))
                # E |O W|_F^2 = dim^2 width for standard normal factors.
                own = np.sqrt((strengths**2).sum(axis=-1) / (dim**2 * width))
                cores *= own[:, None, None]
            values[sample, place] = _eigenvalues(cores)
    attributes = {**_attributes(weights, fold_gain, center), "null": kind, "seed": int(seed)}
    result = _dataset(values, ("sample", "layer", "head"), width < dim, attributes)
    return result.assign_coords(layer=chosen, head=np.arange(heads))


@dataclass(frozen=True)
class LeadingCounts:
    """How many heads have which kind of leading eigenvalue, and how the bulk leans."""

    heads: int
    real_positive: int
    real_negative: int
    complex_positive: int
    complex_negative: int
    all_positive: int
    all_negative: int
    sign_score_deviation: float

    @property
    def real_fraction(self) -> float:
        """Fraction of heads whose leading eigenvalue is real."""
        return (self.real_positive + self.real_negative) / self.heads

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain numbers."""
        return asdict(self)


def count_leading(spectra: xr.Dataset) -> LeadingCounts:
    """Counts over all heads (and samples) of a dataset of `ov_spectra` or `ov_spectra_null`."""
    import xarray as xr

    needed = ("leading", "is_real", "all_positive", "all_negative", "sign_score")
    if (
        not isinstance(spectra, xr.Dataset)
        or not all(name in spectra for name in needed)
        or not spectra["leading"].size
    ):
        raise InvalidInputError(
            f"spectra must be a dataset of ov_spectra or ov_spectra_null, not {type(spectra).__name__}"
        )
    leading: ComplexArray = np.asarray(spectra["leading"].values, dtype=np.complex128)
    real = spectra["is_real"].values
    positive = leading.real > 0
    return LeadingCounts(
        heads=int(leading.size),
        real_positive=int((real & positive).sum()),
        real_negative=int((real & ~positive).sum()),
        complex_positive=int((~real & positive).sum()),
        complex_negative=int((~real & ~positive).sum()),
        all_positive=int(spectra["all_positive"].sum()),
        all_negative=int(spectra["all_negative"].sum()),
        sign_score_deviation=float(spectra["sign_score"].std()),
    )

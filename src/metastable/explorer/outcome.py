"""What is said about a run: the prediction before it, the curves along it, what happened at its end. Words and plain numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from metastable import sphere
from metastable._checks import FloatArray
from metastable.analysis import classify, merge_tree, predict
from metastable.analysis.atlas import OTHER, UNSETTLED, Prediction
from metastable.analysis.scales import attraction_width
from metastable.errors import UnsupportedError
from metastable.explorer import measure
from metastable.explorer.setting import Setting
from metastable.model import Attention
from metastable.run import Run

MERGES = 64
"""Merges that are reported: the last ones, which take longest."""
CLOUDS = (4, 5)
"""Rows of Table 1 that end in clouds."""
BASES = {"theorem": "theorem", "conjecture": "conjecture"}


def pretty(text: str, since: float = 0.0) -> str:
    """The package's plain words with the paper's letters; of a model that took over later, x₁ is where token 1 was then."""
    return (
        text.replace("x_1(0)", f"x₁({number(since)})")
        .replace("-xi", "−ξ")
        .replace("xi", "ξ")
        .replace("lambda_max", "λ max")
    )


def number(value: float) -> str:
    """Three digits, and powers of ten from 1e5 on: 37.2, 3.2·10⁷."""
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    mantissa, exponent = f"{value:.1e}".split("e")
    power = "10" + str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return power if mantissa == "1.0" else f"{mantissa.removesuffix('.0')}·{power}"


def facts(
    setting: Setting, times: FloatArray, renyi: np.ndarray, strong: np.ndarray, since: float = 0.0
) -> dict[str, Any]:
    """What is known before the run: prediction, spectrum, centers of the start, expected counts, the law N(t). `since`: when the model
    takes over, in a run of several."""
    prediction = predict(setting.model)
    eigenvalue = complex(prediction.eigenvalue)
    return {
        "prediction": {
            "text": prediction_text(prediction, since),
            "row": prediction.row,
            "eigenvalue": [eigenvalue.real, eigenvalue.imag],
        },
        "spectrum": measure.spectrum(setting.model),
        "total": measure.total_spectrum(setting.model),
        "centers": renyi.tolist(),
        "strong": strong.tolist(),
        "expected": measure.expected_centers(setting),
        "law": measure.law(setting, times),
    }


def prediction_text(prediction: Prediction, since: float = 0.0) -> str:
    """One line: the configuration and on what ground."""
    if prediction.basis in BASES:
        return pretty(f"{prediction.configuration} ({BASES[prediction.basis]})", since)
    if prediction.configuration != OTHER:
        return pretty(prediction.configuration, since)
    return pretty(prediction.reason)


def leading_shape(model: Attention, view: measure.View) -> dict[str, Any]:
    """Directions that span the leading space L, as they are shown; none where L is everything."""
    space = measure.leading_space(model)
    if space.shape[1] >= model.dim or model.dim > 3:
        return {"leading": None}
    return {"leading": view(space.T).tolist()}


def curves(
    setting: Setting, states: FloatArray, leaders: np.ndarray, renyi: np.ndarray, strong: np.ndarray
) -> dict[str, Any]:
    """Numbers per frame: clusters, and the share of tokens that are near a center."""
    return {
        "clusters": [len(np.unique(row)) for row in leaders],
        "renyi": measure.capture(states, renyi, setting.separation),
        "strong": measure.capture(states, strong, setting.separation),
        "energy": measure.energy(setting, states),
    }


@dataclass(frozen=True)
class Moments:
    """The moments of a run that are shown, in the form that the analysis takes a run."""

    times: FloatArray
    states: FloatArray
    model: Attention
    dense: None = None

    @property
    def start(self) -> FloatArray:
        return self.states[0]

    @property
    def final(self) -> FloatArray:
        return self.states[-1]


def merges(setting: Setting, states: FloatArray, times: FloatArray) -> list[dict[str, Any]]:
    """The last merges: when (to the next moment), which cluster into which (by first token), their sizes. None under noise."""
    if setting.model.noise > 0 or len(states) < 2:
        return []
    tree = merge_tree(Moments(times, states, setting.model), radius=setting.cluster_radius)
    rows = range(max(0, len(tree) - MERGES), len(tree))
    names = ("child", "parent", "child_size", "parent_size")
    return [{"time": float(tree.time[row]), **{name: int(getattr(tree, name)[row]) for name in names}} for row in rows]


def ending(setting: Setting, run: Run, states: FloatArray, times: FloatArray, leaders: np.ndarray) -> dict[str, Any]:
    """How the run ended and how it was computed."""
    return {
        "reached": reached(setting, run, states, times, leaders),
        "status": run.status,
        "message": run.message,
        "method": method_text(run),
        "engine": run.engine,
        "steps": run.stats.accepted,
        "until": float(run.end),
    }


def method_text(run: Run) -> str:
    """The method, with where an automatic one switched: "tsit5 to t = 64, then rodas"."""
    segments = run.notes.get("segments", [])
    if not segments:
        return run.method
    *earlier, last = segments
    return "".join(f"{part['method']} to t = {number(part['to'])}, then " for part in earlier) + last["method"]


def reached(setting: Setting, run: Run, states: FloatArray, times: FloatArray, leaders: np.ndarray) -> dict[str, Any]:
    """What happened, in words, and whether it is what was predicted (None: nothing was, or not yet)."""
    count = len(np.unique(leaders[-1]))
    clusters = "one cluster" if count == 1 else f"{count} clusters"
    end = number(float(run.end))
    if setting.model.frozen is not None:
        return _near_frozen(setting, states[-1], clusters)
    if setting.model.noise > 0:
        return {"text": f"{clusters} at t = {end}, under noise that never lets them rest", "agrees": None}
    if run.status == "unresolved":
        return {"text": f"{clusters} at t = {end}, where rounding hides whether they still move", "agrees": None}
    try:
        result = classify(run)  # pyright: ignore[reportArgumentType]  (a cached property reads like a property)
    except UnsupportedError:  # nobody knows where token 1 was when the last model took over
        return {"text": f"{clusters} at t = {end}", "agrees": None}
    moment = measure.settling_time(states[times >= result.since], times[times >= result.since])
    # Inside a cloud tokens rearrange for ever: it has no moment of arrival.
    when = "" if moment is None or result.row in CLOUDS else f" by t = {number(moment)}"
    if result.configuration not in (OTHER, UNSETTLED) and result.prediction.configuration != OTHER:
        return {"text": pretty(result.configuration, result.since) + when, "agrees": result.as_predicted}
    if result.configuration == UNSETTLED:
        waiting = "not yet: " if result.prediction.row is not None else ""
        return {"text": f"{waiting}{clusters} at t = {end}, still moving", "agrees": None}
    agrees = None if result.prediction.row is None else False
    if count == 1:
        return {"text": f"one point{when}", "agrees": agrees}
    # They may merge much later: clusters are never at rest.
    standing = "" if moment is None else f", nearly where they were at t = {number(moment)}"
    return {"text": f"{clusters} at t = {end}{standing}", "agrees": agrees}


def _near_frozen(setting: Setting, final: FloatArray, clusters: str) -> dict[str, Any]:
    """Theorem 5.2: every free token converges to the vicinity of some frozen one."""
    assert setting.model.frozen is not None
    reach = attraction_width(setting.model)
    away = sphere.pairwise_distance(final, setting.model.frozen.tokens).min(axis=1)
    near = int((away <= reach).sum())
    text = f"{clusters}; {near} of {len(final)} tokens within β^(−1/2) = {number(reach)} of a frozen one"
    return {"text": text, "agrees": True if near == len(final) and measure.theorem_applies(setting) else None}

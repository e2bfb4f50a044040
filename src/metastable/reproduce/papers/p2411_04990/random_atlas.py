"""Table 1 over random value matrices, and the law of the width of its clouds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import sphere
from metastable.analysis import classify, predict
from metastable.analysis.prediction import CLOUD_ANGLE
from metastable.figures import statements
from metastable.model import Attention
from metastable.reproduce.draws import each, gaussian_pair, rotation, seeds
from metastable.reproduce.papers.p2411_04990.atlas import DRAWN, ENDINGS
from metastable.reproduce.recipe import Finding, Recipe, Report, Settings, Verdict
from metastable.reproduce.statistics import interval, percent
from metastable.run import simulate

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

CONDITIONS = {
    "symmetric": "$Q = K = I$, $V$ symmetric",
    "general": "$Q = K = I$, $V$ not symmetric",
    "random": "Gaussian $Q$, $K$, $V$ symmetric",
}


def random_value(row: int, dim: int, seed: int, gaps: tuple[float, float], symmetric: bool = True) -> np.ndarray:
    """A random V of a row of Table 1: |lambda_max| = 1, the other eigenvalues below it by log-uniform gaps.

    Eigenvectors are orthonormal or, not `symmetric`, a Haar matrix plus half a Gaussian one of the same size. V is given in
    the coordinates in which it is (block) triangular, with its repeated eigenvalue exact: rotations change nothing, since
    starts, Q and K have rotation-invariant laws, but their rounding would split the eigenvalue at times beyond 1e15.
    """
    generator = np.random.default_rng(seed)
    if row == 1:
        return float(np.exp(generator.uniform(-1.0, 1.0))) * np.eye(dim)
    leading = 1.0 if row < 4 else -1.0
    size = 1 if row in (3, 5) else int(generator.integers(2, dim))
    low, high = float(np.log(gaps[0])), float(np.log(gaps[1]))
    below = leading - np.exp(generator.uniform(low, high, dim - size))
    diagonal = np.diag([*np.full(size, leading), *below])
    if symmetric:
        return diagonal
    vectors = rotation(dim, seed) + 0.5 * generator.standard_normal((dim, dim)) / np.sqrt(dim)
    triangle = np.linalg.qr(vectors)[1]
    value = np.triu(triangle @ diagonal @ np.linalg.inv(triangle))
    value[:size, :size] = leading * np.eye(size)
    return value


# ---------------------------------------------------------------------------------------------------- Table 1, random V


def _measure_table(parameters: Mapping[str, Any], settings: Settings, report: Report) -> xr.Dataset:
    import xarray as xr

    draws = settings.draws(parameters["draws"])
    rows, dim = list(ENDINGS), parameters["dim"]
    jobs = [
        (row, condition, seed)
        for row in rows
        for condition in CONDITIONS
        for seed in seeds(settings, f"table-1-random {row} {condition}", draws)
    ]

    def one(job: tuple[str, str, int]) -> tuple[bool, float, float, float]:
        row, condition, seed = job
        gaps = parameters["cloud_gaps" if row in ("4", "5") else "gaps"]
        value = random_value(int(row), dim, seed, gaps, condition != "general")
        query, key = gaussian_pair(dim, seed) if condition == "random" else (None, None)
        model = Attention(dim=dim, beta=parameters["beta"], query=query, key=key, value=value)
        horizon = parameters["until_random" if condition == "random" else "until"][row]
        run: Any = simulate(
            model,
            sphere.uniform(parameters["tokens"], dim=dim, seed=seed),
            times=[horizon],
            rtol=parameters["rtol"],
            method="tsit5" if horizon < 1e4 else "rodas",  # clouds do not rest for long, points do
            max_steps=parameters["max_steps"],
        )
        found = classify(run)
        axis = found.prediction.subspace[:, 0]
        own = 1.0 if query is None or key is None else float((query @ axis) @ (key @ axis))
        width = np.nan if found.prediction.width is None else found.prediction.width.median
        ended = found.as_predicted and run.status == "success"
        return ended, own, width, float(np.median(found.features.to_space))

    results = each(one, jobs, report)
    shape = (len(rows), len(CONDITIONS), draws)
    names = ("as_printed", "leading_logit", "predicted", "to_space")
    return xr.Dataset(
        {
            name: (("row", "condition", "draw"), np.array([result[index] for result in results]).reshape(shape))
            for index, name in enumerate(names)
        },
        coords={"row": rows, "condition": list(CONDITIONS)},
        attrs={"beta": parameters["beta"], "tokens": parameters["tokens"], "dim": dim},
    )


def _judge_table(data: xr.Dataset) -> list[Finding]:
    draws = data.sizes["draw"]
    findings = []
    for row in data.row.values:
        held = {name: int(data.as_printed.sel(row=row, condition=name).sum()) for name in CONDITIONS}
        everywhere = all(count == draws for count in held.values())
        name, chosen, meant = _condition(data, str(row))
        verdict: Verdict = (
            "agrees" if everywhere else "agrees under a condition" if meant == chosen and chosen > 0 else "disagrees"
        )
        findings.append(
            Finding(
                claim=f"row {row}: {ENDINGS[str(row)]}, whatever V of this kind, Q and K",
                measured=f"Q = K = I, V symmetric: {percent(held['symmetric'], draws)}; V not symmetric: "
                f"{percent(held['general'], draws)}; Gaussian Q, K: {percent(held['random'], draws)}; {name}: {meant} "
                "of "
                f"{chosen}" + (_by_sign(data) if row == "3" else ""),
                test=f"agrees: every draw; under a condition: every draw with {name}{PROVENANCE.get(str(row), '')}",
                verdict=verdict,
            )
        )
    return findings


PROVENANCE = {
    "3": ". (The condition tried first, Gaussian Q, K with ξᵀQᵀKξ > 0, failed in 2 of 37 draws; this one was chosen after that.)",
    "4": ". (Runs first ended at t = 300, where one of 12 draws was still moving; they were made longer after that.)",
}
"""How a condition was come by, where it was not fixed before the first run."""


def _condition(data: xr.Dataset, row: str) -> tuple[str, int, int]:
    """The condition under which a row is meant to hold: its name, the draws that have it, and how many of those ended so."""
    one = data.sel(row=row)
    if row in ("1", "2", "3"):
        chosen = np.broadcast_to((data.condition != "random").values[:, None], one.as_printed.shape)
        name = "Q = K = I"
    else:
        # A margin below the pi/6 of `classify`: the law is for many tokens, these runs have few.
        chosen = (one.predicted.values < 0.7 * CLOUD_ANGLE) & (data.condition == "symmetric").values[:, None]
        name = "Q = K = I, V symmetric and a predicted width below 0.7 π/6"
    return name, int(chosen.sum()), int(one.as_printed.values[chosen].sum())


def _by_sign(data: xr.Dataset) -> str:
    """Row 3 with Gaussian Q, K, split by the sign of the logit that xi gives itself."""
    held = data.as_printed.sel(row="3", condition="random").values
    positive = data.leading_logit.sel(row="3", condition="random").values > 0
    parts = (f"{int(held[side].sum())} of {int(side.sum())}" for side in (positive, ~positive))
    return "; Gaussian Q, K with ξᵀQᵀKξ > 0: {}, with < 0: {}".format(*parts)


def _draw_table(data: xr.Dataset) -> Figure:
    entries = []
    for row in data.row.values:
        for condition, label in CONDITIONS.items():
            held = data.as_printed.sel(row=row, condition=condition).values
            low, high = interval(int(held.sum()), held.size)
            entries.append(
                statements.Fraction(f"row {row}: {DRAWN[str(row)]}", label, int(held.sum()), held.size, low, high)
            )
    return statements.fractions_chart(entries)


TABLE_1_RANDOM = Recipe(
    name="table-1-random",
    title="Table 1 over random value matrices",
    statement="The rows of Table 1 for V drawn at random (d = 3, n = 32, beta = 9): eigenvalues with random gaps, "
    "random "
    "eigenvectors, orthonormal or not, and Q = K = I or Gaussian.",
    parameters={
        "dim": 3,
        "tokens": 32,
        "beta": 9.0,
        "draws": 12,
        "gaps": (0.2, 4.0),
        "cloud_gaps": (0.5, 20.0),
        "until": {"1": 1e9, "2": 1e9, "3": 1e9, "4": 1000.0, "5": 1000.0},
        "until_random": {"1": 1e50, "2": 1e50, "3": 1e12, "4": 1000.0, "5": 1000.0},
        "rtol": 1e-4,
        "max_steps": 20_000,
    },
    quick={"tokens": 12},
    measure=_measure_table,
    judge=_judge_table,
    draw=_draw_table,
    uses=("seed", "members"),
    seconds=5,
)


# ------------------------------------------------------------------------------------------------------ width of clouds


def _cloud_model(seed: int, parameters: Mapping[str, Any]) -> Attention:
    """The first random model of rows 4 and 5 for which there are enough tokens."""
    generator = np.random.default_rng(seed)
    while True:
        dim, row = int(generator.choice(parameters["dims"])), int(generator.choice([4, 5, 5]))
        row = 5 if dim == 2 else row
        value = random_value(
            row, dim, int(generator.integers(2**31)), parameters["gaps"], bool(generator.random() < 0.7)
        )
        beta = float(np.exp(generator.uniform(*np.log(parameters["betas"]))))
        model = Attention(dim=dim, beta=beta, value=value)
        width = predict(model).width
        if width is not None and width.tokens <= parameters["tokens"]:
            return model


def _measure_width(parameters: Mapping[str, Any], settings: Settings, report: Report) -> xr.Dataset:
    import xarray as xr

    tokens = parameters["tokens"]
    start = seeds(settings, "cloud-width", settings.draws(parameters["draws"]))

    def one(seed: int) -> tuple[float, float, float, float, float, float]:
        model = _cloud_model(seed, parameters)
        initial = sphere.uniform(tokens, dim=model.dim, seed=seed)
        run: Any = simulate(model, initial, times=[parameters["until"]], rtol=1e-4, method="tsit5")
        away = classify(run).features.to_space
        width: Any = predict(model).width
        rms = float(np.sqrt(np.mean(away**2)))
        return float(np.median(away)), width.median, rms, width.rms, model.all_heads[0].beta, float(model.dim)

    results = np.array(each(one, start, report))
    names = ("median", "predicted_median", "rms", "predicted_rms", "beta", "dim")
    return xr.Dataset({name: ("draw", results[:, index]) for index, name in enumerate(names)}, attrs={"tokens": tokens})


def _judge_width(data: xr.Dataset) -> list[Finding]:
    findings = []
    for name, words in (("median", "median"), ("rms", "root mean square")):
        error = np.abs(np.log(data[name].values / data[f"predicted_{name}"].values))
        near = int((error < np.log(1.25)).sum())
        findings.append(
            Finding(
                claim=f"the {words} distance of the tokens of a cloud to L is that of the mean field, with no "
                "constant fitted",
                measured=f"{percent(near, error.size)} of random V are within a factor of 1.25; half are within "
                f"{100 * (np.exp(np.median(error)) - 1):.0f} %, the worst is off by a factor of "
                f"{np.exp(error.max()):.2f}",
                test="nine in ten within a factor of 1.25",
                verdict="agrees" if near >= 0.9 * error.size else "disagrees",
            )
        )
    return findings


def _draw_width(data: xr.Dataset) -> Figure:
    panels = []
    for name, words in (("median", "median"), ("rms", "root mean square")):
        x, y = data[f"predicted_{name}"].values, data[name].values
        ends = np.array([0.85 * min(x.min(), y.min()), 1.15 * max(x.max(), y.max())])
        curves = [
            statements.Curve(f"$d = {dim}$", x[data["dim"].values == dim], y[data["dim"].values == dim], points=True)
            for dim in np.unique(data["dim"].values).astype(int)
        ]
        curves.append(statements.Curve("mean field", ends, ends, dashed=True, color="#444444"))
        panels.append(
            statements.Plot(
                f"{words} distance to $L$",
                "predicted (rad)",
                "measured (rad)",
                curves,
                ylim=(float(ends[0]), float(ends[1])),
                xlim=(float(ends[0]), float(ends[1])),
                legend="upper left",
            )
        )
    return statements.plots(panels, height=3.0)


CLOUD_WIDTH = Recipe(
    name="cloud-width",
    title="The width of clouds (rows 4 and 5)",
    statement="Ours: with Q = K = I and lambda_max < 0 tokens form a cloud around L with the variances "
    "1/(beta (lambda_i/lambda_max - 1)) across it; on the sphere a Bingham density. Random V, beta and d, 200 tokens.",
    parameters={
        "dims": (2, 3, 4),
        "tokens": 200,
        "draws": 16,
        "gaps": (0.3, 5.0),
        "betas": (6.0, 40.0),
        "until": 100.0,
    },
    quick={"tokens": 80, "dims": (3,)},
    measure=_measure_width,
    judge=_judge_width,
    draw=_draw_width,
    origin="beyond",
    uses=("seed", "members"),
    seconds=2,
)

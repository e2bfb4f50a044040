"""Lemma 5.3 and Theorem 5.2: each token descends its own energy, and frozen tokens attract the free ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import sphere
from metastable.analysis import gradient_flow_defect, token_energies
from metastable.figures import statements, style
from metastable.model import Attention, Frozen
from metastable.reproduce.draws import each, seeds
from metastable.reproduce.recipe import Finding, Recipe, Report, Settings, Verdict
from metastable.reproduce.statistics import percent
from metastable.run import simulate

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure


# --------------------------------------------------------------------------------------------------------- Lemma 5.3


def _measure_lemma(parameters: Mapping[str, Any], settings: Settings, report: Report) -> xr.Dataset:
    import xarray as xr

    tokens, beta = parameters["tokens"], parameters["beta"]
    chosen = seeds(settings, "lemma-5.3", settings.draws(parameters["draws"]))

    def defect(seed: int) -> float:
        anchors = Frozen(sphere.uniform(parameters["frozen"], dim=2, seed=seed + 1))
        starts = sphere.uniform(tokens, dim=2, seed=seed)
        plain, with_frozen = Attention(dim=2, beta=beta), Attention(dim=2, beta=beta, frozen=anchors)
        return float(max(gradient_flow_defect(model, starts).max() for model in (plain, with_frozen)))

    defects = each(defect, chosen, report)
    model = Attention(dim=2, beta=beta)
    times = np.linspace(0.0, parameters["until"], 401)
    run = simulate(model, sphere.uniform(tokens, dim=2, seed=chosen[0]), times=times, engine=settings.engine)
    energies = np.stack([token_energies(model, x) for x in run.states])
    return xr.Dataset(
        {"defect": ("draw", np.array(defects)), "energy": (("time", "token"), energies)},
        coords={"time": times},
        attrs={"beta": beta},
    )


def _judge_lemma(data: xr.Dataset) -> list[Finding]:
    defect = float(data.defect.max())
    energy = data.energy.values
    rises = np.diff(energy, axis=0).max(axis=0)
    rising = int((rises > 1e-9).sum())
    falls = int((energy[-1] < energy[0]).sum())
    return [
        Finding(
            claim="dphi_k/dt = -(1/Z_k) dE_k/dphi_k with E_k = -(1/beta) sum_{j<k} exp(beta (cos(phi_k - phi_j) - "
            "1)) and frozen terms",
            measured=f"largest difference between the velocity and the gradient of the energy {defect:.1e} "
            f"({data.sizes['draw']} random "
            "states, with and without frozen tokens)",
            test="below 1e-12 (the gradient is taken from the energy by complex steps)",
            verdict="agrees" if defect < 1e-12 else "disagrees",
            computed=True,
        ),
        Finding(
            claim="each token descends its own energy; there is no single energy for all of them",
            measured=f"{falls} of {energy.shape[1]} tokens end lower than they began, yet the energy of {rising} "
            "rises on the way, because the "
            "tokens before them move",
            test="most tokens end lower, and some energies are not monotone",
            verdict="agrees" if falls > energy.shape[1] / 2 and rising > 0 else "disagrees",
        ),
    ]


def _draw_lemma(data: xr.Dataset) -> Figure:
    energy = data.energy.values
    tokens = energy.shape[1]
    rises = np.diff(energy, axis=0).max(axis=0)
    shown = np.unique(np.concatenate([np.linspace(1, tokens - 1, 8).astype(int), [int(np.argmax(rises))]]))
    colors = style.token_colors(tokens)
    from matplotlib.colors import to_hex

    curves = [
        statements.Curve(f"token {k + 1}", data.time.values, energy[:, k], color=to_hex(tuple(colors[k])))
        for k in shown
    ]
    defect = data.defect.values
    return statements.plots(
        [
            statements.Plot("energies of some tokens along a run", "depth $t$", "energy $E_k$", curves, legend=None),
            statements.Plot(
                "velocity against gradient",
                "random state",
                r"$\max_k |\dot x_k + Z_k^{-1}\nabla E_k|$",
                [
                    statements.Curve("defect", np.arange(1, defect.size + 1), np.maximum(defect, 1e-18), points=True),
                    statements.Curve("rounding", [1, defect.size], [2.2e-16] * 2, dashed=True, color=style.MUTED),
                ],
                yscale="log",
                ylim=(1e-17, 1e-11),
            ),
        ]
    )


LEMMA_5_3 = Recipe(
    name="lemma-5.3",
    title="Lemma 5.3: causal attention is a sequential gradient flow",
    statement="On the circle every token descends an energy of its own, which depends on the tokens before it (and "
    "on frozen tokens).",
    parameters={"tokens": 60, "frozen": 5, "beta": 16.0, "draws": 40, "until": 40.0},
    measure=_measure_lemma,
    judge=_judge_lemma,
    draw=_draw_lemma,
    revision=2,
    seconds=1,
)


# ------------------------------------------------------------------------------------------------------- Theorem 5.2


def _measure_theorem(parameters: Mapping[str, Any], settings: Settings, report: Report) -> xr.Dataset:
    import xarray as xr

    beta, frozen = parameters["beta"], parameters["frozen"]
    separation = parameters["c"] / np.sqrt(beta)
    times = np.concatenate([[0.0], np.geomspace(0.1, parameters["until"], 160)])

    def one(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        generator = np.random.default_rng(seed)
        # Even spacing with jitter that keeps every gap above the separation of the theorem.
        jitter = 0.5 * (2 * np.pi / frozen - separation)
        angles = 2 * np.pi * np.arange(frozen) / frozen + generator.uniform(-jitter, jitter, frozen)
        anchors = sphere.from_angle(angles)
        model = Attention(dim=2, beta=beta, frozen=Frozen(anchors))
        run = simulate(model, sphere.uniform(parameters["tokens"], dim=2, seed=generator), times=times, method="rodas")
        nearest = np.stack([sphere.pairwise_distance(x, anchors).min(axis=1) for x in run.states])
        return anchors, run.states, nearest

    results = each(one, seeds(settings, "theorem-5.2", settings.draws(parameters["draws"])), report)
    anchors, states, _ = results[0]
    return xr.Dataset(
        {
            "x": (("time", "token", "coord"), states),
            "anchors": (("anchor", "coord"), anchors),
            "nearest": (("draw", "time", "token"), np.stack([nearest for _, _, nearest in results])),
        },
        coords={"time": times},
        attrs={"separation": separation, "beta": beta, "c": parameters["c"]},
    )


def _judge_theorem(data: xr.Dataset) -> list[Finding]:
    final = data.nearest.isel(time=-1).values.ravel()
    scale = float(data.attrs["beta"]) ** -0.5
    vicinity = float(data.attrs["separation"]) / 2
    inside = int((final < vicinity).sum())
    middle = np.median(data.nearest.isel(time=0).values)
    nearly: Verdict = "agrees under a condition" if inside > 0.99 * final.size else "disagrees"
    verdict: Verdict = "agrees" if inside == final.size else nearly
    return [
        Finding(
            claim="with frozen tokens further apart than c beta^(-1/2) every free token converges to the vicinity of "
            "one of them",
            measured=f"{percent(inside, final.size)} free tokens end within c/2 beta^(-1/2) of a frozen one (t = "
            f"{float(data.time[-1]):.0e}); median distance {np.median(final) / scale:.1e} beta^(-1/2), at the start "
            f"{middle / scale:.2f}; "
            f"largest {final.max() / scale:.1e}",
            test="all of them",
            verdict=verdict,
        )
    ]


def _draw_theorem(data: xr.Dataset) -> Figure:
    scale = float(data.attrs["beta"]) ** -0.5
    nearest = data.nearest.values / scale
    times = data.time.values[1:]
    levels = [(f"{q} %", np.quantile(nearest, q / 100, axis=(0, 2))[1:]) for q in (50, 90, 99, 100)]
    curves = [statements.Curve(name, times, np.maximum(level, 1e-9)) for name, level in levels]
    strip = statements.Strip(
        "free tokens (lines), frozen ones (orange)",
        data.time.values,
        data.x.values,
        log=True,
        frozen=data.anchors.values,
        reach=scale / 2,
    )
    extra = statements.Plot(
        f"quantiles over all tokens ({data.sizes['draw']} draws)",
        "depth $t$",
        r"distance to the nearest frozen token ($\beta^{-1/2}$)",
        curves,
        xscale="log",
        yscale="log",
        legend="lower left",
    )
    return statements.strips([strip], extra, height=2.8)


THEOREM_5_2 = Recipe(
    name="theorem-5.2",
    title="Theorem 5.2: frozen tokens attract all free ones",
    statement="d = 2, Q = K = V = I, with frozen tokens that every token attends to, pairwise further apart than c "
    "beta^(-1/2): every free "
    "token converges to the vicinity of one of them.",
    parameters={"tokens": 100, "frozen": 9, "beta": 64.0, "c": 4.0, "draws": 20, "until": 1e6},
    quick={"tokens": 20},
    measure=_measure_theorem,
    judge=_judge_theorem,
    draw=_draw_theorem,
    seconds=1,
)

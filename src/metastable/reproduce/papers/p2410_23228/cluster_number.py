"""How many clusters appear first, against the fastest mode."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import sphere
from metastable.analysis import cluster_count
from metastable.errors import StoppedEarlyWarning
from metastable.figures import style
from metastable.meanfield import Density, evolve, fastest_mode, growth_rates
from metastable.model import Attention, Full
from metastable.reproduce.draws import each, part, seeds, whole
from metastable.reproduce.recipe import Finding, Recipe, Report, Settings, Verdict
from metastable.reproduce.statistics import Mean, percent
from metastable.run import simulate

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure


KINDS = {
    "tokens": "tokens, counted when clusters are points",
    "forming": "tokens, counted as clusters form",
    "densities": "tokens, as a density with their noise, counted as clusters form",
}
"""What is counted, and when."""

PEAK = 3.0
"""Largest density, against the uniform one, from which on the first clusters count as formed."""


def noisy_density(tokens: float, modes: int, generator: np.random.Generator) -> Density:
    """The density of `tokens` independent uniform tokens as their first modes see it: 1 + 2 Re sum z_k e^(-ik theta), z_k complex
    normal of variance 1/n. For numbers of tokens at which a simulation has nothing else to show.
    """
    z = (generator.standard_normal(modes) + 1j * generator.standard_normal(modes)) / np.sqrt(2 * tokens)
    coefficients = np.zeros(2 * modes + 1)
    coefficients[0] = 1.0
    coefficients[1::2], coefficients[2::2] = np.sqrt(2) * z.real, np.sqrt(2) * z.imag
    return Density(2, coefficients)


def crests(density: Density, cells: int = 4096) -> int:
    """Arcs on which a density on the circle is above the uniform one."""
    return arcs(density.at_angle(np.linspace(-np.pi, np.pi, cells, endpoint=False)))


def arcs(values: Any) -> int:
    """Stretches of a periodic array that are above 1."""
    above = values > 1.0
    return int((above & ~np.roll(above, 1)).sum())


def smoothed(x: Any, modes: int, cells: int = 4096) -> Any:
    """Density of tokens x (n, 2) on the circle against the uniform one, by its first modes, at `cells` angles."""
    angles = np.arctan2(x[:, 1], x[:, 0])
    counts = np.bincount((np.floor((angles / (2 * np.pi) + 0.5) * cells)).astype(int) % cells, minlength=cells)
    spectrum = np.fft.rfft(counts * (cells / len(x)))
    spectrum[modes + 1 :] = 0.0
    return np.fft.irfft(spectrum, cells)


def modes_of(beta: float) -> int:
    """Modes in which a start is described: well beyond the fastest, about sqrt(2 beta)."""
    return max(32, int(6 * np.sqrt(beta)))


def _first_crests(model: Attention, tokens: float, seed: int) -> int:
    """Crests of the density when it has become so sharp that its series ends: the clusters are there, and have not moved."""
    beta = float(model.beta or 0.0)
    modes = modes_of(beta)
    rate = float(growth_rates(model, modes).max())
    start = noisy_density(tokens, modes, np.random.default_rng(seed))
    times = np.linspace(0.0, 2.5 * np.log(tokens) / (2 * rate), 120)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoppedEarlyWarning)  # it is meant to
        evolution = evolve(model, start, times, rtol=1e-5, modes=1024)
    return crests(evolution.final)


def _first_crests_of_tokens(model: Attention, tokens: int, seed: int, engine: str) -> int:
    """Crests of the density of tokens as soon as its peak is `PEAK` times the uniform one: clusters are there, and have not moved."""
    beta = float(model.beta or 0.0)
    modes = modes_of(beta)
    scale = np.log(tokens) / (2 * float(growth_rates(model, modes).max()))
    times = scale * np.linspace(0.5, 2.0, 31)
    start = sphere.uniform(tokens, dim=2, seed=seed)
    run = whole(simulate(model, start, times=times, rtol=1e-4, atol=1e-6, engine=engine, threads=1))
    shown = (smoothed(x, modes) for x in run.states)
    return arcs(next((values for values in shown if values.max() > PEAK), smoothed(run.final, modes)))


def _measure(parameters: Mapping[str, Any], settings: Settings, report: Report) -> xr.Dataset:
    import xarray as xr

    betas = [float(beta) for beta in parameters["betas"]]
    models = {beta: Attention(dim=2, beta=beta, mask=Full()) for beta in betas}
    rates = {beta: float(growth_rates(model, 256).max()) for beta, model in models.items()}
    kinds = ("tokens", "forming", "densities")
    sizes = [(kind, count) for kind in kinds for count in parameters[kind]]
    draws = settings.draws(parameters["draws"])

    def tokens(job: tuple[float, int, int]) -> int:
        beta, count, seed = job
        # Modes begin at n^(-1/2) and are of order one at ln(n)/(2 rate); clusters are counted well after, and long before they merge.
        until = parameters["wait"] * np.log(count) / (2 * rates[beta])
        run = whole(
            simulate(
                models[beta],
                sphere.uniform(count, dim=2, seed=seed),
                times=[until],
                rtol=1e-4,
                atol=1e-6,
                engine=settings.engine,
                threads=1,
            )
        )
        return cluster_count(run.final, 0.5 / np.sqrt(beta))

    def forming(job: tuple[float, int, int]) -> int:
        return _first_crests_of_tokens(models[job[0]], job[1], job[2], settings.engine)

    def density(job: tuple[float, float, int]) -> int:
        return _first_crests(models[job[0]], job[1], job[2])

    counting = {"tokens": tokens, "forming": forming, "densities": density}
    found = np.zeros((len(sizes), len(betas), draws), dtype=int)
    for k, (kind, count) in enumerate(sizes):
        jobs: Any = [
            (beta, count, seed) for beta in betas for seed in seeds(settings, f"cluster-number {count} {beta}", draws)
        ]
        tell = part(report, k / len(sizes), (k + 1) / len(sizes))
        found[k] = np.reshape(each(counting[kind], jobs, tell), (len(betas), draws))
    return xr.Dataset(
        {
            "clusters": (("tokens", "beta", "draw"), found),
            "fastest": ("beta", [fastest_mode(models[beta]) for beta in betas]),
            "kind": ("tokens", [kind for kind, _ in sizes]),
        },
        coords={"tokens": [float(count) for _, count in sizes], "beta": betas},
        attrs={"stated": [list(pair) for pair in parameters["stated"]]},
    )


def _judge(data: xr.Dataset) -> list[Finding]:
    stated = [(float(beta), int(mode)) for beta, mode in np.array(data.attrs["stated"]).reshape(-1, 2)]
    modes = [fastest_mode(Attention(dim=2, beta=beta, mask=Full())) for beta, _ in stated]
    findings = [
        Finding(
            claim="the fastest mode is "
            + ", ".join(f"{mode} (beta = {beta:g})" for beta, mode in stated)
            + ", about sqrt(2 beta)",
            measured="formula: " + ", ".join(str(mode) for mode in modes),
            test="equal",
            verdict="agrees" if modes == [mode for _, mode in stated] else "disagrees",
            computed=True,
        )
    ]
    for k, tokens in enumerate(data.tokens.values):
        off = data.clusters.values[k] - data.fastest.values[:, None]
        means = ", ".join(
            f"beta = {beta:g}: {Mean.of(data.clusters.values[k, j])} ({int(data.fastest[j])})"
            for j, beta in enumerate(data.beta.values)
        )
        exact, near = int((off == 0).sum()), int((np.abs(off) <= 1).sum())
        verdict: Verdict = (
            "agrees" if near > 0.9 * off.size else "agrees under a condition" if near > 0.5 * off.size else "disagrees"
        )
        kind = KINDS[str(data.kind.values[k])]
        findings.append(
            Finding(
                claim=f"n = {tokens:g} {kind}: the number of first clusters is the fastest mode",
                measured=f"equal in {percent(exact, off.size)}, at most one off in {near} of {off.size} draws; mean "
                f"(fastest mode) {means}",
                test="at most one off in nine draws of ten (under a condition: in half of them)",
                verdict=verdict,
            )
        )
    return findings


def _draw(data: xr.Dataset) -> Figure:
    with style.theme("print"):
        columns = data.sizes["beta"]
        page, axes = style.figure(style.PAGE_WIDTH, 2.3, 1, columns, squeeze=False)
        width = 0.8 / data.sizes["tokens"]
        for letter, ax, beta in zip("abcdefgh", axes[0], data.beta.values):
            one = data.sel(beta=beta)
            low, high = int(one.clusters.min()), int(one.clusters.max())
            for k, tokens in enumerate(data.tokens.values):
                counts = np.bincount(one.clusters.values[k] - low, minlength=high - low + 1) / data.sizes["draw"]
                place = np.arange(low, high + 1) + (k - 0.5 * (data.sizes["tokens"] - 1)) * width
                size = f"{tokens:g}" if tokens < 1e4 else rf"10^{{{round(np.log10(tokens))}}}"
                name = f"density, $n = {size}$" if one.kind.values[k] == "densities" else f"$n = {size}$"
                ax.bar(place, 100 * counts, width, color=style.CATEGORICAL[k], label=name)
            ax.axvline(float(one.fastest), color=style.INK, linestyle=(0, (3, 2)), linewidth=0.9, label="fastest mode")
            ax.set_xticks(np.unique(np.linspace(low, high, min(high - low + 1, 5)).round().astype(int)))
            ax.set_xlabel("clusters")
            style.grid(ax, "y")
            style.panel(ax, letter, rf"$\beta = {beta:g}$")
        axes[0][0].set_ylabel("draws (%)")
        handles, labels = axes[0][0].get_legend_handles_labels()
        page.legend(handles, labels, loc="outside lower center", ncols=6)
    return page


CLUSTER_NUMBER = Recipe(
    name="cluster-number",
    title="How many clusters appear first",
    statement="From independent uniform tokens on the circle the first metastable state has as many clusters as the "
    "fastest growing mode has crests. Numbers "
    "of clusters over draws: up to 1000 tokens once clusters are points (some have merged by then), and 10^4 and 10^5 "
    "tokens and the density of 10^6 as clusters form.",
    parameters={
        "betas": (4.0, 8.0, 16.0, 32.0, 64.0),
        "tokens": (200, 1000),
        "forming": (10_000, 100_000),
        "densities": (1e6,),
        "draws": 16,
        "wait": 3.0,
        "stated": ((1, 1), (2, 2), (4, 3), (5, 3), (7, 4), (16, 6), (64, 11), (100, 14), (256, 23)),
    },
    quick={"betas": (8.0,), "tokens": (100,), "forming": (1000,), "densities": (1e4,)},
    measure=_measure,
    judge=_judge,
    draw=_draw,
    revision=2,
    seconds=40,
    hindsight="10^4 tokens were a density with noise first, and tokens were counted only when clusters are points, where "
    "some have merged and the number is too small. Counting as clusters form (peak 3 times the uniform density) was "
    "added after that, for 10^4 and 10^5 tokens, and the lines counted late were kept",
)

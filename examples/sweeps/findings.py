"""What the ready-made sweeps show: slopes with confidence intervals beside their predictions, and the pictures of the docs.

    for name in clusters law lifetime norms; do metastable sweep examples/sweeps/$name.toml --out out/sweeps/$name; done
    python examples/sweeps/findings.py out/sweeps --pictures docs/images/sweeps

Intervals are 95 % bootstrap intervals: members are drawn again with replacement at every grid point, a thousand times.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np

from metastable import theory
from metastable.figures import phase, style
from metastable.figures.curves import draw_error_points
from metastable.sweep import open_results

RESAMPLES = 1000
LEVEL = 0.95
EPSILON = 0.25
"""A center's life ends when it has moved by this share of delta."""
LOST = 0.25
"""The life time of a setting: when this share of its centers has ended."""
EARLIEST = 0.02
"""The same for the shortest lives, which the lemma bounds."""


def slope(x: np.ndarray, y: np.ndarray) -> float:
    """Least-squares slope."""
    return float(np.polyfit(x, y, 1)[0])


def exponent(beta: np.ndarray, counts: np.ndarray) -> float:
    """Exponent in beta of the mean of `counts` (beta, member)."""
    return slope(np.log(beta), np.log(counts.mean(axis=1)))


def bootstrap(measure: Callable[[np.ndarray], float], members: int, seed: int = 0) -> tuple[float, float, float]:
    """`measure` of all members and its confidence interval; `measure` takes indices of members."""
    generator = np.random.default_rng(seed)
    draws = [measure(generator.integers(0, members, members)) for _ in range(RESAMPLES)]
    low, high = np.nanquantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return measure(np.arange(members)), float(low), float(high)


def row(what: str, found: tuple[float, float, float], predicted: float | str) -> str:
    """One line of a table."""
    value, low, high = found
    verdict = ""
    if isinstance(predicted, float):
        off = 100 * abs(value / predicted - 1)
        verdict = "inside" if low <= predicted <= high else f"outside, off by {off:.1f} %"
        predicted = f"{predicted:.3f}"
    return f"| {what} | {value:.3f} | [{low:.3f}, {high:.3f}] | {predicted} | {verdict} |"


HEAD = "| quantity | measured | 95 % interval | predicted | |\n|---|---|---|---|---|"


def clusters(folder: Path, pictures: Path | None) -> list[str]:
    """Exponent of the number of clusters in beta at fixed depth, and the law N(t), for causal and full attention."""
    data = open_results(folder)["clusters"].load()
    beta = data["beta"].values
    lines = [HEAD]
    for mask in data["mask"].values:
        for time in (10.0, 100.0, 1000.0):
            here = data.sel(mask=mask).sel(time=time, method="nearest").values
            found = bootstrap(lambda pick, here=here: exponent(beta, here[:, pick]), here.shape[1])
            lines.append(row(f"{mask}: exponent in beta at t = {time:g}", found, theory.center_exponent(2)))
    for time in (10.0, 100.0, 1000.0):
        curved = exponent(beta, np.array([[theory.cluster_count(time, b, 2)] for b in beta]))
        lines.append(f"| the same of N(t) at t = {time:g} | {curved:.3f} | | | |")
    late = data.sel(mask="causal").mean("member").sel(time=slice(9.0, None)).transpose("beta", "time")
    law_of = np.array([[theory.cluster_count(t, b, 2) for t in late["time"].values] for b in beta])
    # Close to the final collapse (ln t comparable with 2 beta) there is nothing left to count.
    young = np.log(late["time"].values)[None, :] < 0.5 * beta[:, None]
    ratio = (late.values / law_of)[young]
    lines.append(
        f"\nMeasured over N(t) = pi/arccos(1 - ln t/beta), causal, t >= 10: median {np.median(ratio):.2f}, from "
        f"{ratio.min():.2f} to {ratio.max():.2f}."
    )
    if pictures is not None:
        page = phase.phase_figure(
            data, x="time", y="beta", kind="map", log=True, label="clusters", contours=[2, 4, 8, 16]
        )
        style.save(page, pictures / "clusters")
    return lines


def law(folder: Path, pictures: Path | None, time: float = 20.0) -> list[str]:
    """Exponents in beta for d = 2, 3, 4 and for dim L = 2, 3 inside d = 8."""
    data = open_results(folder)["clusters"].load()
    beta = data["beta"].values
    dims = {"d = 2": 2, "d = 3": 3, "d = 4": 4, "dim L = 2, d = 8": 2, "dim L = 3, d = 8": 3}
    lines = [HEAD]
    for case, dim in dims.items():
        for at in (10.0, time, 40.0):
            here = data.sel(case=case, time=at).values
            found = bootstrap(lambda pick, here=here: exponent(beta, here[:, pick]), here.shape[1])
            exact = exponent(beta, np.array([[theory.cluster_count(at, b, dim)] for b in beta]))
            lines.append(row(f"{case}, t = {at:g} (N(t) gives {exact:.3f})", found, theory.center_exponent(dim)))
    if pictures is not None:
        with style.theme("print"):
            page, ax = style.figure(style.TEXT_WIDTH, 3.0)
            for color, (case, dim) in zip(style.CATEGORICAL, dims.items()):
                here = data.sel(case=case, time=time)
                mean = here.mean("member").values
                error = here.std("member", ddof=1).values / np.sqrt(here.sizes["member"])
                draw_error_points(ax, beta, mean, 1.96 * error, color=color, label=case)
                power = theory.center_exponent(dim)
                middle = len(beta) // 2
                ax.plot(
                    beta,
                    mean[middle] * (beta / beta[middle]) ** power,
                    color=color,
                    linewidth=0.8,
                    linestyle=(0, (4, 2)),
                )
            ax.set_xscale("log", base=2)
            ax.set_yscale("log")
            ax.set_xlabel(phase.LABELS["beta"])
            ax.set_ylabel(f"clusters at $t = {time:g}$")
            ax.legend(fontsize="x-small")
            style.grid(ax)
            style.save(page, pictures / "law")
    return lines


def lifetimes(displacement: np.ndarray, times: np.ndarray, limit: float) -> np.ndarray:
    """First time at which a center has moved by `limit`; infinite while it has not. Shape (member, token), NaN: no center."""
    moved = displacement > limit
    first = np.where(moved.any(axis=1), times[np.argmax(moved, axis=1)], np.inf)
    return np.where(np.isnan(displacement[:, 0]), np.nan, first)


def lifetime(folder: Path, pictures: Path | None, beta: float = 64.0) -> list[str]:
    """Life time of strong centers against c^2/2, and against the lower bound of Lemma 5.1 for every center."""
    data = open_results(folder)["displacement"].load()
    c, times = data["c"].values, data["time"].values
    # Token 1 never moves; it is left out, and token k has column k - 2.
    lives = [lifetimes(data.sel(c=value).values[:, :, 1:], times, EPSILON * value / beta**0.5) for value in c]
    members = data.sizes["member"]

    def quantile(pick: np.ndarray, place: int, share: float = LOST) -> float:
        sample = lives[place][pick]
        return float(np.quantile(sample[~np.isnan(sample)], share, method="inverted_cdf"))

    everybody = np.arange(members)
    lines = [HEAD]
    for share in (LOST, EARLIEST):
        life = np.array([quantile(everybody, k, share) for k in range(len(c))])
        inside = np.flatnonzero(np.isfinite(life) & (life > times[0]))

        def growth(pick: np.ndarray, inside: np.ndarray = inside, share: float = share) -> float:
            return slope(c[inside] ** 2 / 2, np.log([min(quantile(pick, k, share), times[-1]) for k in inside]))

        name = f"ln(time until {share:.0%} have moved) per c^2/2, c = {c[inside][0]:g}..{c[inside][-1]:g}"
        lines.append(row(name, bootstrap(growth, members), "at least 1"))
    lines += ["", "| c | strong centers | life time | shortest over bound, all centers |", "|---|---|---|---|"]
    bound = []
    for place, value in enumerate(c):
        present = ~np.isnan(lives[place])
        index = np.nonzero(present)[1] + 2
        bounds = np.array([theory.strong_center_time(int(k), beta, float(value), EPSILON) for k in index])
        bound.append(np.quantile(bounds, LOST))
        ratio = lives[place][present] / bounds
        lines.append(f"| {value:g} | {present.sum()} | {quantile(everybody, place):.3g} | {ratio.min():.3g} |")
    if pictures is not None:
        _draw_lifetime(pictures, c, times, lives, [quantile(everybody, k) for k in range(len(c))], bound)
    return lines


def _draw_lifetime(
    pictures: Path, c: np.ndarray, times: np.ndarray, lives: list[np.ndarray], life: list[float], bound: list[float]
) -> None:
    with style.theme("print"):
        page, axes = style.figure(style.PAGE_WIDTH, 2.6, columns=2)
        colors = style.sequence_map()(np.linspace(0, 0.9, len(c)))
        for color, value, sample in zip(colors, c, lives):
            known = sample[~np.isnan(sample)]
            axes[0].plot(times, [(known > t).mean() for t in times], color=color, label=f"$c = {value:g}$")
        axes[0].axhline(1 - LOST, color=style.MUTED, linewidth=0.6)
        style.log_time_axis(axes[0], float(times[0]), float(times[-1]))
        axes[0].set_ylabel("share of strong centers in place")
        axes[0].legend(fontsize="x-small")
        seen = np.isfinite(life)
        axes[1].plot(c[seen] ** 2 / 2, np.array(life)[seen], "o", markersize=4, color=style.MEASURED, label="measured")
        axes[1].plot(c**2 / 2, bound, color=style.THEORY, label="Lemma 5.1 (lower bound)")
        axes[1].set_yscale("log")
        axes[1].set_xlabel("$c^2/2$")
        axes[1].set_ylabel("life time")
        axes[1].legend(fontsize="x-small")
        style.save(page, pictures / "lifetime")


def norms(folder: Path, pictures: Path | None) -> list[str]:
    """How 1 - mean cosine falls at the end of the collapse, in the variable in which the theory says it is a line."""
    data = open_results(folder)["mean_cosine"].load()
    gap = 1 - data
    times = data["time"].values
    clocks: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray], float]] = {
        "post_ln": ("t", lambda t: t, -2.0),
        "ngpt": ("t", lambda t: t, -2.0),
        "sqrt_scaling": ("sqrt(t + 1)", lambda t: np.sqrt(t + 1), -4.0),
        "pre_ln": ("ln t", np.log, -2.0),
        "peri_ln": ("ln t", np.log, -2.0),
    }
    lines = [HEAD]
    for norm, (name, clock, predicted) in clocks.items():
        values = gap.sel(norm=norm).transpose("member", "time").values
        mean = values.mean(axis=0)
        chosen = (mean < 1e-3) & (mean > 1e-10) if name != "ln t" else times > times[-1] / 10
        x = clock(times[chosen])
        found = bootstrap(lambda pick, v=values[:, chosen], x=x: slope(x, np.log(v[pick]).mean(axis=0)), len(values))
        lines.append(row(f"{norm}: ln(1 - mean cosine) per {name}", found, predicted))
    half = gap.mean("member")
    reached = {str(n): float(times[np.argmax(half.sel(norm=n).values < 0.5)]) for n in clocks}
    lines.append(
        "\nDepth at which the mean cosine passes 1/2: " + ", ".join(f"{n} {t:.2g}" for n, t in reached.items()) + "."
    )
    if pictures is not None:
        with style.theme("print"):
            page, axes = style.figure(style.PAGE_WIDTH, 2.6, columns=2)
            for color, norm in zip(style.CATEGORICAL, clocks):
                mean = half.sel(norm=norm).values
                axes[0].plot(times, 1 - mean, color=color, label=norm)
                axes[1].plot(times, np.where(mean > 1e-13, mean, np.nan), color=color)
            for ax in axes:
                style.log_time_axis(ax, float(times[0]), float(times[-1]))
                style.grid(ax, "y")
            axes[1].set_yscale("log")
            axes[0].set_ylabel("mean cosine over pairs")
            axes[1].set_ylabel("1 - mean cosine")
            axes[0].legend(fontsize="x-small")
            style.save(page, pictures / "norms")
    return lines


SECTIONS = {"clusters": clusters, "law": law, "lifetime": lifetime, "norms": norms}


def main() -> None:
    """Print the tables of every sweep that is there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder that holds the folders of the sweeps")
    parser.add_argument("--pictures", type=Path, help="folder for the pictures")
    chosen = parser.parse_args()
    if chosen.pictures is not None:
        chosen.pictures.mkdir(parents=True, exist_ok=True)
    for name, section in SECTIONS.items():
        if (chosen.folder / name / "results.zarr").exists():
            print(f"\n## {name}\n\n" + "\n".join(section(chosen.folder / name, chosen.pictures)))


if __name__ == "__main__":
    main()

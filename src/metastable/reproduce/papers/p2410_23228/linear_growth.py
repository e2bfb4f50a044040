"""Growth of single modes, of tokens and of densities, against k^2 I_k(beta)/(beta I_0(beta)); densities against tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special

from metastable.figures import statements, style
from metastable.meanfield import Density, evolve, growth_rates
from metastable.model import Attention, Full
from metastable.reproduce.draws import each, whole
from metastable.reproduce.recipe import Finding, Recipe, Report, Settings
from metastable.run import simulate

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure


def circle_rate(mode: Any, beta: float) -> Any:
    """k^2 I_k(beta)/(beta I_0(beta)), softmax attention on the circle."""
    return np.asarray(mode) ** 2 * special.ive(mode, beta) / (beta * special.ive(0, beta))


def fourier(x: Any, modes: int) -> Any:
    """Means of e^(-i k theta) of tokens x (n, 2), k = 1..modes."""
    z = x[:, 0] - 1j * x[:, 1]
    return np.array([np.mean(z**k) for k in range(1, modes + 1)])


# ------------------------------------------------------------------------------------------------------ growth rates


def _measure_rates(parameters: Mapping[str, Any], settings: Settings, report: Report) -> xr.Dataset:
    import xarray as xr

    jobs = [(float(beta), int(mode)) for beta, modes in parameters["cases"] for mode in modes]
    size, until = parameters["size"], parameters["until"]

    def one(job: tuple[float, int]) -> tuple[float, float, float]:
        beta, mode = job
        model = Attention(dim=2, beta=beta, mask=Full())
        start = Density.perturbed(2, {mode: size}, degree=max(32, 4 * mode))
        density = evolve(model, start, [0.0, until], rtol=1e-10).amplitudes(mode)[:, -1]
        # Tokens at equal shares of the density: as quiet a start as there is, so that no other mode is seeded.
        run = whole(
            simulate(
                model,
                start.quantiles(parameters["tokens"]),
                times=[0.0, until],
                rtol=1e-10,
                atol=1e-13,
                engine=settings.engine,
            )
        )
        seen = [abs(fourier(x, mode)[-1]) for x in run.states]
        grown = [float(np.log(seen[1] / seen[0]) / until), float(np.log(density[1] / density[0]) / until)]
        return grown[0], grown[1], float(circle_rate(mode, beta))

    results = np.array(each(one, jobs, report))
    sphere = [(int(dim), float(beta)) for dim, beta in parameters["spheres"]]
    wide = np.array([_zonal(dim, beta, parameters) for dim, beta in sphere])
    return xr.Dataset(
        {
            "tokens_rate": ("case", results[:, 0]),
            "density_rate": ("case", results[:, 1]),
            "formula": ("case", results[:, 2]),
            "beta": ("case", [beta for beta, _ in jobs]),
            "mode": ("case", [mode for _, mode in jobs]),
            "sphere_rate": (("sphere", "degree"), wide[:, 0]),
            "sphere_formula": (("sphere", "degree"), wide[:, 1]),
        },
        coords={"sphere": [f"d = {dim}, beta = {beta:g}" for dim, beta in sphere], "degree": np.arange(1, 5)},
        attrs={"tokens": parameters["tokens"], "stated": list(parameters["stated"])},
    )


def _zonal(dim: int, beta: float, parameters: Mapping[str, Any]) -> Any:
    """Growth of zonal perturbations of degree 1..4 in dimension d, from the evolution of the density, and by the formula."""
    model = Attention(dim=dim, beta=beta, mask=Full())
    axis = np.eye(1, dim)[0]
    found = []
    for degree in range(1, 5):
        start = Density.perturbed(dim, {degree: parameters["size"]}, axis=axis)
        seen = evolve(model, start, [0.0, parameters["until"]], rtol=1e-10).amplitudes(degree)[:, -1]
        found.append(float(np.log(seen[1] / seen[0]) / parameters["until"]))
    return np.array([found, growth_rates(model, 4)])


def _judge_rates(data: xr.Dataset) -> list[Finding]:
    tokens = np.abs(data.tokens_rate - data.formula).values
    density = np.abs(data.density_rate - data.formula).values
    five = data.formula.values[data.beta.values == 5.0][:4]
    measured = data.tokens_rate.values[data.beta.values == 5.0][:4]
    wide = float(np.abs(data.sphere_rate - data.sphere_formula).max())
    worst = int(np.argmax(tokens))
    return [
        Finding(
            claim="on the circle mode k of the density grows at k^2 I_k(beta)/(beta I_0(beta)) (softmax)",
            measured=f"{data.attrs['tokens']} tokens: rates differ by at most {tokens.max():.1e} (beta = "
            f"{data.beta.values[worst]:g}, k = "
            f"{data['mode'].values[worst]}), over {tokens.size} modes; the density itself by {density.max():.1e}",
            test="five digits: below 1e-5 for tokens and density",
            verdict="agrees" if max(tokens.max(), density.max()) < 1e-5 else "disagrees",
        ),
        Finding(
            claim="at beta = 5 these are "
            + ", ".join(f"{value:.6f}" for value in data.attrs["stated"])
            + " for k = 1..4 (noted beforehand)",
            measured="simulated "
            + ", ".join(f"{value:.6f}" for value in measured)
            + "; formula "
            + ", ".join(f"{value:.6f}" for value in five),
            test="each within 1e-5",
            verdict="agrees"
            if np.abs(measured - np.array(data.attrs["stated"])[: len(measured)]).max() < 1e-5
            else "disagrees",
        ),
        Finding(
            claim="in dimension d degree l grows at l (l + d - 2) c_l/(beta c_0), c_l = Gamma(d/2)(2/beta)^(d/2-1) "
            "I_{l+d/2-1}(beta)",
            measured=f"zonal densities ({', '.join(str(name) for name in data.sphere.values)}): largest difference "
            f"{wide:.1e}, degrees 1 to 4",
            test="below 1e-5",
            verdict="agrees" if wide < 1e-5 else "disagrees",
        ),
    ]


def _draw_rates(data: xr.Dataset) -> Figure:
    rates, errors = [], []
    for number, beta in enumerate(np.unique(data.beta.values)):
        chosen = data.beta.values == beta
        mode = data["mode"].values[chosen]
        fine = np.arange(1, int(mode.max()) + 3)
        color = style.CATEGORICAL[number]
        rates.append(statements.Curve("", fine, circle_rate(fine, float(beta)), color=color))
        rates.append(
            statements.Curve(rf"$\beta = {beta:g}$", mode, data.tokens_rate.values[chosen], points=True, color=color)
        )
        errors.append(
            statements.Curve(
                "",
                mode,
                np.maximum(np.abs(data.tokens_rate - data.formula).values[chosen], 1e-12),
                points=True,
                color=color,
            )
        )
    errors.append(
        statements.Curve("five digits", [0.5, float(data["mode"].max())], [1e-5, 1e-5], dashed=True, color=style.MUTED)
    )
    return statements.plots(
        [
            statements.Plot(
                f"{data.attrs['tokens']} tokens (points), formula (lines)",
                "mode $k$",
                "growth rate",
                rates,
                ylim=(0, 1.5 * float(data.formula.max())),
                legend="upper right",
                whole=True,
            ),
            statements.Plot(
                "difference",
                "mode $k$",
                "|simulated $-$ formula|",
                errors,
                yscale="log",
                ylim=(3e-13, 1e-4),
                legend="center right",
                whole=True,
            ),
        ],
        height=2.6,
    )


GROWTH_RATES = Recipe(
    name="growth-rates",
    title="How fast perturbations of the uniform density grow",
    statement="A perturbation cos(k theta) of the uniform density on the circle grows at k^2 I_k(beta)/(beta "
    "I_0(beta)) under softmax attention; zonal "
    "harmonics likewise on spheres.",
    parameters={
        "cases": (
            (1.0, (1, 2, 3)),
            (5.0, (1, 2, 3, 4, 5, 6)),
            (16.0, (2, 4, 6, 8)),
            (64.0, (4, 8, 11, 14)),
        ),
        "spheres": ((3, 4.0), (3, 16.0), (8, 8.0)),
        "stated": (0.178677, 0.514117, 0.682678, 0.600089),
        "size": 1e-5,
        "until": 1.0,
        "tokens": 400,
    },
    quick={"cases": ((5.0, (1, 2, 3, 4)),), "spheres": ((3, 4.0),), "tokens": 100},
    measure=_measure_rates,
    judge=_judge_rates,
    draw=_draw_rates,
    uses=("engine",),
    seconds=2,
)


# ----------------------------------------------------------------------------------------------- density and tokens


def _measure_both(parameters: Mapping[str, Any], settings: Settings, report: Report) -> xr.Dataset:
    import xarray as xr

    model = Attention(dim=2, beta=parameters["beta"], mask=Full())
    start = Density.perturbed(2, {int(mode): size for mode, size in parameters["amplitudes"]})
    times = np.linspace(0.0, parameters["until"], parameters["times"])
    evolution = evolve(model, start, times, rtol=1e-10)
    report(0.3)
    smooth = np.array([density.fourier(parameters["modes"]) for density in evolution.densities])
    sizes = list(parameters["sizes"])
    apart = np.zeros((len(sizes), times.size, parameters["modes"]))
    for k, tokens in enumerate(sizes):
        run = whole(
            simulate(model, start.quantiles(tokens), times=times, rtol=1e-10, atol=1e-12, engine=settings.engine)
        )
        apart[k] = [np.abs(fourier(x, parameters["modes"]) - there) for x, there in zip(run.states, smooth)]
        report(0.3 + 0.7 * (k + 1) / len(sizes))
    angles, values = evolution.on_circle(360)
    return xr.Dataset(
        {
            "difference": (("tokens", "time", "mode"), apart),
            "amplitude": (("time", "mode"), np.abs(smooth)),
            "density": (("time", "angle"), values),
        },
        coords={"tokens": sizes, "time": times, "mode": np.arange(1, parameters["modes"] + 1), "angle": angles},
        attrs={"beta": parameters["beta"]},
    )


def _judge_both(data: xr.Dataset) -> list[Finding]:
    worst = data.difference.max(("time", "mode"))
    last = int(data.tokens.values[-1])
    return [
        Finding(
            claim="the density of the continuity equation is what many tokens do",
            measured=f"Fourier modes 1 to {data.sizes['mode']} of tokens at equal shares of the start differ from "
            "those of the density by at most "
            + ", ".join(f"{float(worst.sel(tokens=n)):.1e} (n = {n})" for n in data.tokens.values)
            + f" up to t = {float(data.time[-1]):g}",
            test=f"below 1e-6 at n = {last}",
            verdict="agrees" if float(worst.sel(tokens=last)) < 1e-6 else "disagrees",
        )
    ]


def _draw_both(data: xr.Dataset) -> Figure:
    with style.theme("print"):
        page, (left, right) = style.figure(style.PAGE_WIDTH, 2.6, 1, 2)
        mesh = left.pcolormesh(
            data.time.values,
            data.angle.values,
            np.log10(np.maximum(data.density.values.T, 1e-2)),
            cmap=style.heat_map(),
            rasterized=True,
        )
        style.angle_axis(left)
        left.set_xlim(float(data.time[0]), float(data.time[-1]))
        left.set_xlabel("depth $t$")
        style.panel(left, "a", rf"density of infinitely many tokens, $\beta = {data.attrs['beta']:g}$")
        bar = page.colorbar(mesh, ax=left, pad=0.01, aspect=30)
        bar.set_label(r"$\log_{10}$ density")
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
        for k, mode in enumerate(data["mode"].values):
            right.plot(
                data.time.values,
                np.where(
                    data.amplitude.values[:, k] > 1e-9, data.amplitude.values[:, k], np.nan
                ),  # three begin with nothing
                color=style.CATEGORICAL[k],
                label=f"mode {mode}",
            )
        for number, tokens in enumerate(data.tokens.values):
            difference = np.maximum(data.difference.sel(tokens=tokens).max("mode").values, 1e-14)
            right.plot(
                data.time.values,
                difference,
                color=style.INK,
                linestyle=(0, (1 + 3 * number, 2)),
                label=f"$n = {tokens}$: difference",
            )
        right.set_yscale("log")
        right.set_ylim(1e-13, 2)
        right.set_xlabel("depth $t$")
        right.set_ylabel("amplitude")
        style.grid(right)
        style.panel(right, "b", "its modes, and how far tokens are off")
        right.legend(loc="center", ncols=2, fontsize="x-small")
    return page


DENSITY_AND_TOKENS = Recipe(
    name="density-and-tokens",
    title="The density against tokens",
    statement="The continuity equation of the density, solved by itself, against tokens that begin at equal shares of "
    "the same density.",
    parameters={
        "beta": 5.0,
        "amplitudes": ((1, 0.02), (2, 0.05), (3, 0.05)),
        "until": 4.0,
        "times": 41,
        "modes": 6,
        "sizes": (100, 400, 1000),
    },
    quick={"sizes": (50, 100), "until": 2.0, "times": 11},
    measure=_measure_both,
    judge=_judge_both,
    draw=_draw_both,
    uses=("engine",),
    seconds=4,
)

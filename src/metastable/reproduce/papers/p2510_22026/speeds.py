"""Speeds of the six norms: at the start, at the end, and how long they keep tokens apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import sphere
from metastable.figures import statements, style
from metastable.model import NGPT, Attention, Full, MixLN, PeriLN, PostLN, PreLN, SqrtScaling
from metastable.model.norms import Norm
from metastable.reproduce.draws import each, seeds, whole
from metastable.reproduce.recipe import Finding, Recipe, Report, Settings
from metastable.reproduce.statistics import Mean, slope
from metastable.run import simulate

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

SWITCH = 5.0
"""Depth at which Mix-LN changes from Post-LN to Pre-LN."""

NORMS: dict[str, Norm] = {
    "Post-LN": PostLN(),
    "nGPT": NGPT(1.0),
    "sqrt scaling": SqrtScaling(),
    "Pre-LN": PreLN(),
    "Peri-LN": PeriLN(),
    "Mix-LN": MixLN(SWITCH),
}

LAWS = {
    "Post-LN": ("e^(-2t)", "t", 2.0),
    "nGPT": ("e^(-2t)", "t", 2.0),
    "sqrt scaling": ("e^(-4 sqrt(t+1))", "sqrt(t+1)", 4.0),
    "Pre-LN": ("t^(-2)", "ln t", 2.0),
    "Peri-LN": ("t^(-2)", "ln t", 2.0),
    "Mix-LN": ("t^(-2)", "ln t", 2.0),
}
"""Law of the gap 1 - cosine near collapse, the variable in which its logarithm is a line, and the slope of that line (with a minus)."""


def variable(name: str, times: Any) -> Any:
    """The variable of `LAWS` at the given depths."""
    kind = LAWS[name][1]
    return times if kind == "t" else np.sqrt(times + 1) if kind == "sqrt(t+1)" else np.log(np.maximum(times, 1e-9))


def mean_gap(x: Any) -> float:
    """Mean of 1 - <x_i, x_j> = |x_i - x_j|^2/2 over pairs: exact for tokens that almost touch."""
    n = len(x)
    spread = x - x.mean(axis=0)
    return float((spread**2).sum() / (n - 1))  # sum over pairs of |x_i - x_j|^2 = n sum |x_i - mean|^2


# -------------------------------------------------------------------------------------------------------------- end


def _measure_end(parameters: Mapping[str, Any], settings: Settings, report: Report) -> xr.Dataset:
    import xarray as xr

    draws = settings.draws(parameters["draws"])
    chosen = seeds(settings, "end-speed", draws)
    times = np.concatenate([[0.0], np.geomspace(0.01, parameters["until"], parameters["times"] - 1)])

    def one(job: tuple[str, int]) -> Any:
        name, seed = job
        # Exponential laws leave the range of double precision soon; what comes after is rounding.
        last = {"t": 16.0, "sqrt(t+1)": 80.0}.get(LAWS[name][1], parameters["until"])
        start = sphere.uniform(parameters["tokens"], dim=parameters["dim"], seed=seed)
        model = Attention(dim=parameters["dim"], beta=parameters["beta"], mask=Full(), norm=NORMS[name])
        asked = times[times <= last]
        run = whole(simulate(model, start, times=asked, rtol=1e-8, atol=1e-13, engine=settings.engine))
        return np.concatenate([[mean_gap(x) for x in run.states], np.full(times.size - asked.size, np.nan)])

    results = each(one, [(name, seed) for name in NORMS for seed in chosen], report)
    return xr.Dataset(
        {"gap": (("norm", "draw", "time"), np.reshape(results, (len(NORMS), draws, times.size)))},
        coords={"norm": list(NORMS), "time": times},
        attrs={name: parameters[name] for name in ("tokens", "dim", "beta")},
    )


def _window(name: str, times: Any, gap: Any) -> Any:
    """Where the exponent is measured: gaps that are small and resolved; for powers of t the last two decades."""
    if LAWS[name][1] == "ln t":
        return times > times[-1] / 100
    return (gap < 1e-3) & (gap > 1e-10)


def _exponents(data: xr.Dataset, name: str) -> Any:
    times = data.time.values
    rows = data.gap.sel(norm=name).values
    found = []
    for row in rows:
        seen = np.isfinite(row)
        chosen = _window(name, times[seen], row[seen])
        x, y = variable(name, times[seen][chosen]), np.log(row[seen][chosen])
        found.append(-slope(x, y).value if x.size > 4 else 0.0)  # 0: the gap never became so small
    return np.array(found)


def _judge_end(data: xr.Dataset) -> list[Finding]:
    findings = []
    for name, (law, unit, wanted) in LAWS.items():
        found = _exponents(data, name)
        mean = Mean.of(found)
        worst = float(np.abs(found / wanted - 1).max())
        extra = f" after the switch at t = {SWITCH:g}" if name == "Mix-LN" else ""
        findings.append(
            Finding(
                claim=f"{name}: near collapse 1 - cosine goes like {law}{extra}",
                measured=f"slope of ln(1 - cosine) against {unit}: -{mean} over {found.size} draws (stated: "
                f"-{wanted:g})",
                test="within 1 % in every draw",
                verdict="agrees" if worst < 0.01 else "disagrees",
            )
        )
    return findings


def _draw_end(data: xr.Dataset) -> Figure:
    decay, local = [], []
    times = data.time.values
    for number, name in enumerate(NORMS):
        color = style.CATEGORICAL[number]
        gap = np.exp(np.log(np.maximum(data.gap.sel(norm=name).values, 1e-300)).mean(axis=0))
        seen = np.isfinite(gap) & (gap > 1e-14) & (times > 0)
        decay.append(statements.Curve(name, times[seen], gap[seen], color=color, dashed=name in ("nGPT", "Peri-LN")))
        x, y = variable(name, times[seen]), np.log(gap[seen])
        rate = -np.gradient(y, x) / LAWS[name][2]
        fine = (gap[seen] > 1e-11) & (times[seen] > 0.05)
        local.append(
            statements.Curve(name, times[seen][fine], rate[fine], color=color, dashed=name in ("nGPT", "Peri-LN"))
        )
    local.append(statements.Curve("", [0.05, times[-1]], [1, 1], dashed=True, color=style.MUTED))
    return statements.plots(
        [
            statements.Plot(
                "distance to collapse",
                "depth $t$",
                "mean of $1 - $ cosine",
                decay,
                "log",
                "log",
                (1e-14, 2),
                (0.01, float(times[-1])),
                "lower left",
            ),
            statements.Plot(
                "local exponent over the stated one",
                "depth $t$",
                "ratio",
                local,
                "log",
                ylim=(0, 1.6),
                xlim=(0.05, float(times[-1])),
                legend=None,
            ),
        ],
        height=2.7,
    )


END_SPEED = Recipe(
    name="end-speed",
    title="How fast the last distance closes, for six norms",
    statement="Near collapse 1 - cosine goes like e^(-2t) (Post-LN, nGPT), e^(-4 sqrt(t+1)) (square-root scaling) and "
    "t^(-2) (Pre-LN, Peri-LN, and "
    "Mix-LN once it is Pre-LN): the radius of the residual stream grows like t and slows the angle.",
    parameters={"tokens": 24, "dim": 6, "beta": 1.0, "draws": 10, "until": 1e6, "times": 240},
    quick={"tokens": 8, "until": 1e5, "times": 120},
    measure=_measure_end,
    judge=_judge_end,
    draw=_draw_end,
    seconds=5,
)


# ------------------------------------------------------------------------------------------------------------- start


def start_speed(name: str, tokens: int, beta: float) -> float:
    """d cosine/dt at t = 0 of orthogonal tokens (n of them, radius 1): 2/(e^beta + n - 1), and 2/sqrt(e^(2 beta) + n - 1) where
    the update is normalised (nGPT, Peri-LN): A = (e^beta x_i + sum_{j != i} x_j)/(e^beta + n - 1).
    """
    if name in ("nGPT", "Peri-LN"):
        return 2.0 / float(np.sqrt(np.exp(2 * beta) + tokens - 1))
    return 2.0 / float(np.exp(beta) + tokens - 1)


def _measure_start(parameters: Mapping[str, Any], settings: Settings, report: Report) -> xr.Dataset:
    import xarray as xr

    sizes, betas, step = list(parameters["sizes"]), list(parameters["betas"]), parameters["step"]

    def one(job: tuple[str, int, float]) -> float:
        name, tokens, beta = job
        rate = start_speed(name, tokens, beta)
        model = Attention(dim=tokens, beta=beta, mask=Full(), norm=NORMS[name])
        first, second = step / rate, 2 * step / rate
        run = whole(
            simulate(model, np.eye(tokens), times=[first, second], rtol=1e-10, atol=1e-14, engine=settings.engine)
        )
        cosines = [(x.sum(axis=0) @ x.sum(axis=0) - tokens) / (tokens * (tokens - 1)) for x in run.states]
        return float((4 * cosines[0] - cosines[1]) / (2 * first))  # one-sided difference of second order; cosine(0) = 0

    jobs = [(name, tokens, beta) for name in NORMS for tokens in sizes for beta in betas]
    shape = (len(NORMS), len(sizes), len(betas))
    return xr.Dataset(
        {
            "speed": (("norm", "tokens", "beta"), np.reshape(each(one, jobs, report), shape)),
            "formula": (("norm", "tokens", "beta"), np.reshape([start_speed(*job) for job in jobs], shape)),
        },
        coords={"norm": list(NORMS), "tokens": sizes, "beta": betas},
    )


def _judge_start(data: xr.Dataset) -> list[Finding]:
    off = float(np.abs(data.speed / data.formula - 1).max())
    gain = data.speed.sel(norm="nGPT").values / data.speed.sel(norm="Post-LN").values
    least, most = float(gain.min()), float(gain.max())
    return [
        Finding(
            claim="from orthogonal tokens the cosine starts with 2/(e^beta + n - 1) (Post-LN, Pre-LN, Mix-LN, "
            "square-root scaling) and with "
            "2/sqrt(e^(2 beta) + n - 1) where the update is normalised (nGPT, Peri-LN)",
            measured=f"largest relative difference {off:.1e}, n = {', '.join(str(n) for n in data.tokens.values)}, "
            "beta = "
            f"{float(data.beta.min()):g} to {float(data.beta.max()):g}",
            test="below 1e-4",
            verdict="agrees" if off < 1e-4 else "disagrees",
        ),
        Finding(
            claim="normalising the update makes the first layers work more",
            measured=f"nGPT and Peri-LN begin {least:.2f} to {most:.2f} times as fast as Post-LN",
            test="faster at every n and beta that was tried",
            verdict="agrees" if least > 1 else "disagrees",
        ),
    ]


def _draw_start(data: xr.Dataset) -> Figure:
    panels = []
    for tokens in data.tokens.values:
        curves = []
        for number, name in enumerate(("Post-LN", "nGPT")):
            color = style.CATEGORICAL[number]
            others = "Post-LN, Pre-LN, Mix-LN, sqrt" if name == "Post-LN" else "nGPT, Peri-LN"
            fine = np.linspace(float(data.beta[0]), float(data.beta[-1]), 100)
            curves.append(
                statements.Curve(others, fine, [start_speed(name, int(tokens), b) for b in fine], color=color)
            )
        for number, name in enumerate(NORMS):
            color = style.CATEGORICAL[int(name in ("nGPT", "Peri-LN"))]
            shift = 0.05 * (number - 2.5)
            speed = data.speed.sel(norm=name, tokens=tokens).values
            curves.append(statements.Curve("", data.beta.values + shift, speed, points=True, color=color))
        panels.append(
            statements.Plot(
                f"$n = {tokens}$",
                r"inverse temperature $\beta$",
                r"$d\gamma/dt$ at $t = 0$",
                curves,
                yscale="log",
                legend="lower left",
            )
        )
    return statements.plots(panels, height=2.5)


START_SPEED = Recipe(
    name="start-speed",
    title="How fast tokens begin to gather",
    statement="Orthogonal tokens of radius 1: norms that divide the update by its own length (nGPT, Peri-LN) begin "
    "faster than the others, by "
    "(e^beta + n - 1)/sqrt(e^(2 beta) + n - 1), about sqrt(n) for small beta.",
    parameters={"sizes": (16, 64), "betas": (0.0, 1.0, 2.0, 4.0, 6.0), "step": 1e-5},
    quick={"sizes": (4,), "betas": (0.0, 2.0)},
    hindsight="The step of the difference quotient was 1e-4 first; it became 1e-5 after its error had been seen",
    measure=_measure_start,
    judge=_judge_start,
    draw=_draw_start,
    uses=("engine",),
    seconds=2,
)


# -------------------------------------------------------------------------------------------------------- resistance


def _measure_depth(parameters: Mapping[str, Any], settings: Settings, report: Report) -> xr.Dataset:
    import xarray as xr

    draws, betas = settings.draws(parameters["draws"]), list(parameters["betas"])
    chosen = seeds(settings, "resistance", draws)
    times = np.concatenate([[0.0], np.geomspace(0.05, parameters["until"], 400)])

    def one(job: tuple[str, float, int]) -> float:
        name, beta, seed = job
        start = sphere.uniform(parameters["tokens"], dim=parameters["dim"], seed=seed)
        model = Attention(dim=parameters["dim"], beta=beta, mask=Full(), norm=NORMS[name])
        run = whole(simulate(model, start, times=times, rtol=1e-5, atol=1e-8, engine=settings.engine))
        gap = np.array([mean_gap(x) for x in run.states])
        below = np.flatnonzero(gap < parameters["gap"])
        if not below.size:
            return float("inf")
        k = int(below[0])
        return float(
            np.exp(
                np.interp(
                    -np.log(parameters["gap"]),
                    -np.log(gap[k - 1 : k + 1]),
                    np.log(np.maximum(times[k - 1 : k + 1], 1e-9)),
                )
            )
        )

    jobs = [(name, beta, seed) for name in NORMS for beta in betas for seed in chosen]
    return xr.Dataset(
        {"depth": (("norm", "beta", "draw"), np.reshape(each(one, jobs, report), (len(NORMS), len(betas), draws)))},
        coords={"norm": list(NORMS), "beta": betas},
        attrs={
            "gap": parameters["gap"],
            "until": parameters["until"],
            "tokens": parameters["tokens"],
            "dim": parameters["dim"],
        },
    )


def _judge_depth(data: xr.Dataset) -> list[Finding]:
    from scipy import stats

    until = float(data.attrs["until"])
    findings = []
    for slow, fast in (("Pre-LN", "Post-LN"), ("Peri-LN", "nGPT"), ("sqrt scaling", "Post-LN")):
        pair = [data.depth.sel(norm=name).values for name in (slow, fast)]
        late = [int(np.isinf(values).sum()) for values in pair]
        # A run that had not come so far counts with the end of its run: for the slow norm that is less than it needs.
        gain = np.log(np.minimum(pair[0], until)) - np.log(np.minimum(pair[1], until))  # (beta, draw)
        rest = (
            f"; {late[0]} runs of {slow} and {late[1]} of {fast} had not come so far by t = {until:g} and count as if they had "
            "then"
            if any(late)
            else ""
        )
        # The starts are the same at every beta, so each start counts once.
        test: Any = stats.ttest_1samp(gain.mean(axis=0), 0.0)
        ratio, more = float(np.exp(gain.mean())), "at least " if late[0] and not late[1] else ""
        listed = ", ".join(f"{np.exp(row.mean()):.2f} (beta = {b:g})" for row, b in zip(gain, data.beta.values))
        findings.append(
            Finding(
                claim=f"{slow} keeps tokens apart longer than {fast}",
                measured=f"it needs {more}{ratio:.2f} times the depth for the mean of 1 - cosine to fall to "
                f"{data.attrs['gap']:g} (geometric mean over {data.sizes['draw']} starts): {listed}{rest}",
                test="paired t test of the logarithms, averaged over beta for each start, "
                f"p = {float(test.pvalue):.1e} (level 0.001; not available: not decided)",
                verdict="not available" if not test.pvalue < 1e-3 else "agrees" if ratio > 1 else "disagrees",
            )
        )
    return findings


def _draw_depth(data: xr.Dataset) -> Figure:
    curves: list[statements.Curve] = []
    open_ends: list[statements.Curve] = []
    until = float(data.attrs["until"])
    for number, name in enumerate(NORMS):
        values = np.log10(np.minimum(data.depth.sel(norm=name).values, until))
        middle = np.median(values, axis=1)
        error = np.stack([middle - np.quantile(values, 0.1, axis=1), np.quantile(values, 0.9, axis=1) - middle])
        place = data.beta.values + 0.08 * (number - 2.5)
        curves.append(statements.Curve(name, place, middle, error, color=style.CATEGORICAL[number]))
        late = np.isinf(data.depth.sel(norm=name).values).any(axis=1)
        if late.any():
            open_ends.append(
                statements.Curve(
                    "",
                    place[late],
                    np.full(int(late.sum()), np.log10(until)),
                    color=style.CATEGORICAL[number],
                    marker="^",
                    hollow=True,
                )
            )
    if open_ends:
        first = replace(open_ends[0], label=f"some draws later than {until:g}")
        open_ends = [first, *open_ends[1:]]
    curves += open_ends
    title = f"$n = {data.attrs['tokens']}$, $d = {data.attrs['dim']}$; median, 10 and 90 % of draws"
    plot = statements.Plot(
        title,
        r"inverse temperature $\beta$",
        rf"$\log_{{10}}$ depth to a gap of {data.attrs['gap']:g}",
        curves,
        legend="upper left",
    )
    return statements.plots([plot], height=3.0)


RESISTANCE = Recipe(
    name="resistance",
    title="How deep a stack each norm keeps tokens apart",
    statement="The depth at which the mean of 1 - cosine has fallen to 0.01, from uniform tokens: norms with a "
    "growing residual stream resist collapse "
    "longest.",
    parameters={"tokens": 24, "dim": 8, "betas": (0.0, 1.0, 2.0, 3.0), "draws": 10, "gap": 0.01, "until": 1e3},
    quick={"tokens": 8, "betas": (1.0,), "until": 500.0},
    measure=_measure_depth,
    judge=_judge_depth,
    draw=_draw_depth,
    revision=2,
    seconds=15,
    hindsight="Runs that had not come so far were left out first, and the four runs of one start (one for each beta) counted as "
    "independent; now every run counts, and each start once. A pair of norms that the test could not tell apart was a "
    "disagreement at first; it is now not decided",
)

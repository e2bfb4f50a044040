"""Draw the pictures of the page "From tokens to densities", and print its numbers.

    python docs/densities.py

Takes some minutes on one core; the ramps with noise take most of them.
"""

from pathlib import Path

import numpy as np

import metastable as ms
from metastable.figures import style
from metastable.meanfield import (
    Density,
    branch,
    critical_kappa,
    evolve,
    fastest_mode,
    growth_rates,
    tricritical_beta,
    uniform_branch,
)

IMAGES = Path(__file__).parent / "images"
SIZES = (50, 150, 500, 1500)
RAMP_TOKENS = 2000


def angle(x: np.ndarray) -> np.ndarray:
    """Angles of points of the circle."""
    return np.arctan2(x[:, 1], x[:, 0])


def beginning() -> Density:
    """Nearly uniform: small waves of many lengths, as random tokens have."""
    rng = np.random.default_rng(3)
    sizes, turns = 0.05 * rng.random(12), 2 * np.pi * rng.random(12)

    def density(x: np.ndarray) -> np.ndarray:
        waves = np.arange(1, 13)[:, None] * angle(x) + turns[:, None]
        return 1 + (sizes[:, None] * np.cos(waves)).sum(axis=0)

    return Density.from_function(density, 2)


def evolution() -> None:
    """The density, and tokens that began as its quantiles."""
    model = ms.Attention(dim=2, beta=16.0, mask=ms.Full())
    start = beginning()
    found = evolve(model, start, np.linspace(0, 5.4, 217), rtol=1e-6)
    print(f"beta = 16: fastest mode {fastest_mode(model)}, {found}")
    run = ms.simulate(model, start.quantiles(1000), times=found.times, rtol=1e-8, atol=1e-10)
    modes = np.arange(1, 7)
    away = max(
        np.abs(law.fourier(6) - np.mean((x @ [1, -1j])[:, None] ** modes, axis=0)).max()
        for law, x in zip(found.densities, run.states)
    )
    print(f"1000 tokens: the first six modes differ by at most {away:.1e}")
    page, axes = style.figure(9.6, 3.4, 1, 2)
    image = ms.figures.draw_evolution(axes[0], found)
    style.panel(axes[0], "a", "infinitely many tokens")
    page.colorbar(image, ax=axes[0], pad=0.01, label="density (1: uniform)")
    shown = ms.figures.draw_world_density(axes[1], found.times, run.states, cells=120)
    style.panel(axes[1], "b", "1000 tokens")
    page.colorbar(shown, ax=axes[1], pad=0.01, label="tokens per cell")
    style.save(page, IMAGES / "densities-evolution")


def growth() -> None:
    """Growth rates: formula, density, tokens; and how fast tokens come near the density."""
    page, axes = style.figure(9.6, 3.3, 1, 2)
    for beta, color in zip((1.0, 5.0, 16.0), style.CATEGORICAL):
        model = ms.Attention(dim=2, beta=beta, mask=ms.Full())
        rates = growth_rates(model, 10)
        axes[0].plot(np.arange(1, 11), rates, color=color, linewidth=1, label=rf"$\beta = {beta:g}$")
        until, measured = 0.5 / rates.max(), []
        for mode in range(1, 7):
            begin = Density.perturbed(2, {mode: 1e-6})
            sizes = evolve(model, begin, [0.0, until], rtol=1e-12).amplitudes(mode)[:, -1]
            measured.append(np.log(sizes[1] / sizes[0]) / until)
        axes[0].plot(np.arange(1, 7), measured, "o", color=color, markersize=4)
        print(
            f"beta = {beta:g}: largest relative error of six growth rates {np.abs(measured / rates[:6] - 1).max():.1e}"
        )
    axes[0].set_xlabel("mode $k$")
    axes[0].set_ylabel("growth rate")
    axes[0].legend()
    style.grid(axes[0])
    style.panel(axes[0], "a", "formula (lines), density (dots)")
    model, start = ms.Attention(dim=2, beta=5.0, mask=ms.Full()), Density.perturbed(2, {1: 0.3, 2: 0.2, 3: 0.2})
    known = evolve(model, start, [1.0], rtol=1e-11).final.fourier(4)

    def error(x: np.ndarray) -> float:
        final = ms.simulate(model, x, times=[1.0], rtol=1e-10, atol=1e-12).final @ [1, -1j]
        return float(np.abs(np.mean(final[:, None] ** np.arange(1, 5), axis=0) - known).max())

    drawn = [[error(start.sample(n, seed)) for seed in range(10)] for n in SIZES]
    rough = np.sqrt(np.mean(np.square(drawn), axis=1))
    even = [error(start.quantiles(n)) for n in SIZES]
    axes[1].loglog(SIZES, rough, "o-", color=style.MEASURED, label="independent tokens")
    axes[1].loglog(SIZES, even, "s-", color=style.GREEN, label="quantiles")
    axes[1].loglog(SIZES, rough[0] * np.sqrt(SIZES[0] / np.array(SIZES)), "--", color=style.MUTED, label=r"$n^{-1/2}$")
    axes[1].set_xlabel("tokens $n$")
    axes[1].set_ylabel("error of four modes at $t = 1$")
    axes[1].legend()
    style.grid(axes[1])
    style.panel(axes[1], "b", "tokens against the density")
    print("error of independent tokens", rough, "of quantiles", even)
    style.save(page, IMAGES / "densities-growth")


def noisy(beta: float, kappa: float = 1.0, dim: int = 2) -> ms.Attention:
    """USA with noise."""
    return ms.Attention(dim=dim, beta=beta, mask=ms.Full(), weights="unnormalized", noise=float(np.sqrt(2 / kappa)))


def ramp(beta: float, kappas: list[float], hold: float, step: float) -> tuple[list[float], list[float]]:
    """Order parameter of tokens with noise while kappa goes up, and down again."""
    x = ms.sphere.uniform(RAMP_TOKENS, 2, 1)
    ways = []
    for sequence in (kappas, kappas[::-1]):
        found = []
        for number, kappa in enumerate(sequence):
            times = hold * np.array([0.6, 0.7, 0.8, 0.9, 1.0])
            seed = number + len(kappas) * len(ways)
            run = ms.simulate(noisy(beta, kappa), x, times=times, seed=seed, step=step, threads=1, progress=False)
            found.append(float(run.observe(ms.observe.order_parameter()).mean()))
            x = run.final
        ways.append(found)
    print(f"beta = {beta:g}, kappa {kappas}: up {np.round(ways[0], 3)}, down {np.round(ways[1][::-1], 3)}")
    return ways[0], ways[1][::-1]


def branches() -> None:
    """Continuous below the tricritical beta, with a jump and hysteresis above it."""
    page, axes = style.figure(9.6, 3.5, 1, 3)
    settings = (
        (1.0, (1.2, 3.2), [1.3, 1.5, 1.6, 1.7, 1.8, 1.9, 2.05, 2.3, 2.65, 3.0], 40.0, 0.04),
        (4.0, (0.36, 0.46), [0.37, 0.376, 0.382, 0.388, 0.394, 0.4, 0.406, 0.412, 0.42, 0.43, 0.445], 16.0, 0.016),
    )
    for ax, letter, (beta, limits, kappas, hold, step) in zip(axes, "ab", settings):
        found = branch(noisy(beta), limits=limits)
        ms.figures.draw_branches(ax, [uniform_branch(noisy(beta), limits=limits), found], labels=letter == "a")
        up, down = ramp(beta, kappas, hold, step)
        ax.plot(kappas, up, ">", color=style.INK, markersize=4.5, label="tokens, up", zorder=5)
        ax.plot(kappas, down, "<", color=style.RED, markersize=4.5, label="tokens, down", zorder=5)
        if letter == "a":
            ax.legend(loc="lower right")
        style.panel(ax, letter, rf"$\beta = {beta:g}$")
        print(f"beta = {beta:g}: kappa_# = {critical_kappa(noisy(beta)):.6f}, folds {found.folds}")
    betas = np.linspace(0.2, 6, 60)
    axes[2].plot(betas, [critical_kappa(noisy(b)) for b in betas], color=style.BLUE, label=r"$\kappa_\#$")
    star = tricritical_beta(2)
    above = np.linspace(star + 0.05, 6, 12)
    folds = [
        branch(noisy(b), limits=(0.5 * critical_kappa(noisy(b)), 1.3 * critical_kappa(noisy(b)))).folds for b in above
    ]
    axes[2].plot(
        [star, *above], [critical_kappa(noisy(star)), *(f[0] for f in folds)], color=style.VERMILLION, label="fold"
    )
    axes[2].plot([star], [critical_kappa(noisy(star))], "o", color=style.INK, markersize=4, label=r"$\beta_*$")
    axes[2].set_yscale("log")
    axes[2].set_xlabel(r"$\beta$")
    axes[2].set_ylabel(r"$\kappa$")
    axes[2].legend()
    style.grid(axes[2])
    style.panel(axes[2], "c", "where states exist")
    style.save(page, IMAGES / "densities-branches")


def causal() -> None:
    """Laws that turn along the sequence, and twenty thousand causal tokens."""
    model = ms.Attention(dim=2, beta=5.0)
    start = ms.meanfield.CausalDensity.from_function(lambda u, x: np.exp(1.5 * np.cos(angle(x) - 4 * u)), 2)
    found = evolve(model, start, [0.0, 1.5, 3.0], rtol=1e-5)
    tokens = 20_000
    run = ms.simulate(model, start.sequence(tokens, seed=0), times=[1.5, 3.0])
    places = np.linspace(0.0, 1, 101)
    page, axes = style.figure(9.6, 3.2, 1, 3)
    grid = np.linspace(-np.pi, np.pi, 241)
    pictures = [np.array([law.at(float(u)).at_angle(grid) for u in places]) for law in found.densities]
    top = max(picture.max() for picture in pictures)
    for ax, letter, t, picture in zip(axes, "abc", found.times, pictures):
        shown = ax.pcolormesh(
            places, grid, picture.T, cmap=style.density_map(), vmin=0, vmax=min(top, 6.0), rasterized=True
        )
        x = run.start if t == 0 else run.at(float(t))
        some = np.arange(0, tokens, 25)
        ax.plot((some + 0.5) / tokens, angle(x[some]), ".", color=style.ORANGE, markersize=1.5, alpha=0.8)
        style.angle_axis(ax)
        ax.set_xlim(0, 1)
        ax.set_xlabel("position $u$ in the sequence")
        style.panel(ax, letter, style.time_label(float(t)))
    ends = "max" if top > 6.0 else "neither"
    page.colorbar(shown, ax=list(axes), pad=0.01, label="density (1: uniform)", extend=ends)
    for u in (0.5, 1.0):
        z = run.final[: int(tokens * u)] @ [1, -1j]
        print(f"causal, t = 3, u <= {u}: mean token off by {abs(z.mean() - found.final.mean(u).fourier(1)[0]):.1e}")
    style.save(page, IMAGES / "densities-causal")


if __name__ == "__main__":
    with style.theme("screen"):
        evolution()
        growth()
        causal()
        branches()

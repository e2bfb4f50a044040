"""Long horizons: Rodas5P with the triangular Jacobian against LSODA with the same right-hand side and the analytic Jacobian.

    python -m benchmarks.bench_rodas                        # n = 200 and 1000, T = 1e6 and 1e30
    python -m benchmarks.bench_rodas --tokens 4000          # takes minutes: LSODA factors n^3
    python -m benchmarks.bench_rodas --cost                 # cost per step against n
    python -m benchmarks.bench_rodas --acceptance           # the full counts behind tests/validation/test_collapse.py

Both save the same output times, four per decade. The error is the worst token at the worst output time, against Rodas5P at
tolerance 1e-10; LSODA runs at several tolerances, and its time at equal error is interpolated (log against log). Contenders take
turns and CPU seconds of the process count, so a busy machine disturbs both alike. Set OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import math
import time

import numpy as np
from scipy.integrate import ode

import metastable as ms
from benchmarks.timing import Contender, race
from metastable.environment import processor_name
from metastable.integrate import rodas
from metastable.integrate.plan import Accuracy, Save
from metastable.kernels.cpu.compiled import compiled
from metastable.kernels.jacobian_circle import Columns, Line, finish_row, keep_weights, padded
from metastable.kernels.minimax import LOG2E

BETA = 64.0
TOLERANCE = 1e-4
LSODA_TOLERANCES = (1e-5, 1e-6)
"""They bracket the error of Rodas5P at `TOLERANCE`."""
ONCE_ABOVE = 2000
"""More tokens are run once only: LSODA takes minutes."""


def start(tokens: int, seed: int) -> np.ndarray:
    """Random angles."""
    return np.random.default_rng(seed).uniform(-np.pi, np.pi, tokens)


def points(angles: np.ndarray) -> np.ndarray:
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1)


def by_rodas(angles: np.ndarray, times: np.ndarray, tolerance: float, beta: float = BETA) -> np.ndarray:
    """Angles at the output times, (times, tokens)."""
    solution = rodas.solve(
        ms.Attention(dim=2, beta=beta), points(angles), Save(times[-1], times), Accuracy(tolerance, 0.0)
    )
    return np.arctan2(solution.states[:, :, 1], solution.states[:, :, 0])


@compiled
def circle_rows(angles, beta, out, jacobian):
    """dth/dt under the causal mask by the sums of Rodas5P, and its lower triangular Jacobian unless that is empty."""
    n = angles.size
    width = padded(n)
    bias, row = np.full(width, -beta * LOG2E), np.zeros(width)
    columns = Columns(np.zeros(width), np.zeros(width), np.zeros(width))
    columns.cosine[:n], columns.sine[:n] = np.cos(angles), np.sin(angles)
    for k in range(n):
        line = Line(bias, row, columns.cosine[k], columns.sine[k])
        force, weights = keep_weights(columns, line, 0, k, beta * LOG2E)
        inverse = 1.0 / (1.0 + weights)
        out[k] = force * inverse
        if jacobian.size > 0:
            entries, _ = finish_row(columns, line, 0, k, beta, inverse, out[k])
            jacobian[k, :k] = row[:k]
            jacobian[k, k] = -entries


def by_lsoda(angles: np.ndarray, times: np.ndarray, tolerance: float, beta: float = BETA) -> np.ndarray:
    """The same by LSODA; the right-hand side and the Jacobian are those of Rodas5P."""
    n = angles.size
    out, matrix = np.empty(n), np.zeros((n, n))

    def velocity(t: float, y: np.ndarray) -> np.ndarray:
        circle_rows(y, beta, out, matrix[:0])
        return out

    def jacobian(t: float, y: np.ndarray) -> np.ndarray:
        circle_rows(y, beta, out, matrix)
        return matrix

    solver = ode(velocity, jacobian).set_integrator("lsoda", with_jacobian=True, rtol=0.0, atol=tolerance, nsteps=10**6)
    solver.set_initial_value(angles, 0.0)
    return np.array([solver.integrate(t).copy() for t in times])


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """Largest angle between two sets of angles."""
    return float(np.abs((a - b + np.pi) % (2 * np.pi) - np.pi).max())


def compare(tokens: int, decades: int, seeds: int, rounds: int) -> float:
    """Ratio of CPU seconds at equal error, the median over draws; prints what it is made of."""
    times = 10.0 ** np.arange(-1, decades + 0.01, 0.25)
    ratios = []
    for seed in range(seeds):
        angles = start(tokens, seed)
        exact = by_rodas(angles, times, 1e-10)
        contenders = [Contender("rodas", lambda a=angles: by_rodas(a, times, TOLERANCE))]
        for tolerance in LSODA_TOLERANCES:
            run = lambda a=angles, tol=tolerance: by_lsoda(a, times, tol)  # noqa: E731
            contenders.append(Contender(f"lsoda {tolerance:g}", run))
        race(contenders, rounds=rounds)
        errors = [distance(contender.result, exact) for contender in contenders]
        seconds = [contender.best for contender in contenders]
        # Log of the time against log of the error, extrapolated where the bracket misses.
        slope = math.log(seconds[2] / seconds[1]) / math.log(errors[2] / errors[1])
        equal = seconds[1] * (errors[0] / errors[1]) ** slope
        ratios.append(equal / seconds[0])
        table = ", ".join(f"{c.name}: {s:.3f} s, error {e:.1e}" for c, s, e in zip(contenders, seconds, errors))
        print(
            f"  n = {tokens}, T = 1e{decades}, draw {seed}: {table}; at equal error {ratios[-1]:.1f} times", flush=True
        )
    return float(np.median(ratios))


def compare_once(tokens: int, decades: int) -> float:
    """For many tokens: one run each, LSODA at its looser tolerance, whose error is the larger one. A lower bound on the ratio."""
    times = 10.0 ** np.arange(-1, decades + 0.01, 0.25)
    angles = start(tokens, 0)
    by_rodas(angles[:50], times[:5], TOLERANCE)
    by_lsoda(angles[:50], times[:5], 1e-5)
    exact = by_rodas(angles, times, 1e-7)
    seconds, errors = [], []
    for run in (lambda: by_rodas(angles, times, TOLERANCE), lambda: by_lsoda(angles, times, LSODA_TOLERANCES[0])):
        begin = time.process_time()
        result = run()
        seconds.append(time.process_time() - begin)
        errors.append(distance(result, exact))
        print(f"  n = {tokens}, T = 1e{decades}: {seconds[-1]:.2f} s, error {errors[-1]:.1e}", flush=True)
    return seconds[1] / seconds[0]


def cost_per_step(sizes: tuple[int, ...] = (250, 500, 1000, 2000, 4000), steps: int = 12) -> float:
    """Exponent of the seconds per step against n while all tokens are free (nobody is slaved yet)."""
    contenders = []
    for n in sizes:
        x = points(start(n, 0))
        model = ms.Attention(dim=2, beta=BETA)
        turns = max(1, 1000 // n)

        def run(x: np.ndarray = x, model: ms.Attention = model, turns: int = turns) -> None:
            for _ in range(turns):
                rodas.solve(model, x, Save(1e6, np.array([1e6])), Accuracy(1e-6, 0.0, steps))

        contenders.append(Contender(f"n = {n}", run, units=turns * steps))
    race(contenders, rounds=3)
    seconds = np.array([contender.best for contender in contenders])
    for n, value in zip(sizes, seconds):
        print(f"  n = {n}: {1e3 * value:.3f} ms per step, {1e9 * value / (4 * n * n):.2f} ns per pair and stage")
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


# ----------------------------------------------------------------------------------------------------- acceptance


def collapse_time(angles: np.ndarray, beta: float, tolerance: float, reach: float = 1e-3) -> tuple[float, float]:
    """(log10 of the time from which all tokens are within `reach` of the first, largest distance at the end)."""
    until = 10.0 ** (2 * beta / math.log(10) + 12)
    solution = rodas.solve(ms.Attention(dim=2, beta=beta), points(angles), Save(until), Accuracy(tolerance, 0.0))
    assert solution.dense is not None
    dense = solution.dense.parts[0]

    def far(polynomial: np.ndarray, u: float) -> float:
        place = sum(polynomial[p] * u**p for p in range(5))
        return distance(place, place[0])

    ends = dense.coefficients.sum(axis=1)[:, :, 0]
    apart = np.abs((ends - ends[:, :1] + np.pi) % (2 * np.pi) - np.pi).max(axis=1)
    last = int(np.flatnonzero(apart >= reach)[-1]) + 1
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if far(dense.coefficients[last][:, :, 0], middle) > reach else (low, middle)
    end = np.linalg.norm(solution.states[-1] - solution.states[-1, 0], axis=1).max()
    return math.log10(dense.start[last] + low * dense.width[last]), float(end)


def acceptance(draws: int) -> None:
    """The whole cascade for many draws, agreement with LSODA, and Theorem 4.1 with random Q and K."""
    for beta in (16.0, 32.0, 64.0):
        begin = time.process_time()
        loose = np.array([collapse_time(start(200, seed), beta, 1e-5) for seed in range(draws)])
        tight = np.array([collapse_time(start(200, seed), beta, 1e-7) for seed in range(draws)])
        print(
            f"  beta = {beta:g}: {draws} draws, largest distance at the end {loose[:, 1].max():.1e}, log10 of the collapse time "
            f"{tight[:, 0].min():.2f}..{tight[:, 0].max():.2f}, changed by at most {np.abs(loose - tight)[:, 0].max():.1e} "
            f"by a hundredfold tolerance; {time.process_time() - begin:.1f} s",
            flush=True,
        )
    for seed in range(3):
        angles = start(200, seed)
        times = np.array([1e6, 1e20, 1e50])
        gap = [distance(a, b) for a, b in zip(by_rodas(angles, times, 1e-10), by_lsoda(angles, times, 1e-11))]
        print(f"  draw {seed}, beta = 64: distance to LSODA at t = 1e6, 1e20, 1e50: {gap}", flush=True)
    reached = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        query, key = rng.standard_normal((3, 3)), rng.standard_normal((3, 3))
        x = ms.sphere.uniform(32, dim=3, seed=seed)
        model = ms.Attention(dim=3, beta=9.0, query=query, key=key)
        final = rodas.solve(model, x, Save(1e50)).states[-1]
        reached += bool(np.linalg.norm(final - x[0], axis=1).max() < 1e-10)
    print(f"  Theorem 4.1, d = 3, n = 32, beta = 9, Gaussian Q and K, T = 1e50: {reached} of 20 draws at x_1(0)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="*", default=[200, 1000])
    parser.add_argument("--decades", type=int, nargs="*", default=[6, 30])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--acceptance", action="store_true")
    parser.add_argument("--draws", type=int, default=30)
    arguments = parser.parse_args()
    print(processor_name())
    if arguments.cost:
        print(f"cost per step ~ n^{cost_per_step():.2f}")
        return
    if arguments.acceptance:
        acceptance(arguments.draws)
        return
    results: list[tuple[int, int, float]] = []
    for tokens in arguments.tokens:
        for decades in arguments.decades:
            if tokens > ONCE_ABOVE:
                ratio = compare_once(tokens, decades)
            else:
                ratio = compare(tokens, decades, arguments.seeds, arguments.rounds)
            results.append((tokens, decades, ratio))
    for tokens, decades, ratio in results:
        print(f"n = {tokens}, T = 1e{decades}: {ratio:.1f} times faster than LSODA at equal error")


if __name__ == "__main__":
    main()

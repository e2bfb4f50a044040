"""`simulate`: the verb that users call."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from metastable._progress import progress_bar
from metastable.errors import StoppedEarlyWarning
from metastable.model import Attention
from metastable.run.handle import Run, from_solution
from metastable.run.problem import check
from metastable.run.solvers import SOLVERS


def simulate(
    model: Attention | Sequence[Attention],
    start: Any,
    until: float | str | None = None,
    *,
    times: Any = None,
    method: str = "auto",
    engine: str = "auto",
    interaction: str = "auto",
    rtol: float = 1e-6,
    atol: float = 1e-9,
    step: float | None = None,
    seed: int | None = None,
    max_steps: int = 100_000,
    threads: int | None = None,
    dtype: str = "float64",
    progress: bool | None = None,
) -> Run:
    """Move the tokens `start` (tokens, dim) under `model` from depth 0 to `until`.

    Parameters
    ----------
    model : an `Attention`; for `method="layers"` also a list with one model per layer.
    start : unit vectors, shape (tokens, dim), for example `metastable.sphere.uniform(200, dim=2, seed=0)`.
    until : the time to reach; `"settled"` runs until all tokens stopped for good. May be left out when `times` is given.
    times : output times. None keeps every step with dense output, so that `run.at(t)` works for any t.
    method : "tsit5" (explicit, adaptive), "rodas" (implicit, for long horizons), "layers" (x <- N(x + step A(x))),
        "sde" (with noise), or "auto".
    engine : "reference" (NumPy), "cpu" (Numba), "cuda", or "auto".
    interaction : "direct" sums over pairs, "series" (Fourier or harmonic expansions, O(n) in the tokens), or "auto".
    rtol, atol : tolerances of the adaptive methods; tokens have length one, so they add up.
    step : step of "layers" (required with a single model) and of "sde" (default 0.01).
    seed : seed of the noise.
    max_steps : give up after this many steps; the part that was computed is kept.
    threads : CPU threads (None: all). Results do not depend on it.
    dtype : "float64", or "float32" on the GPU for statistics (never for long horizons).
    progress : show a progress bar; None shows one on a terminal.

    Returns a `Run`, whose `status` is "success", "max_steps", "diverged" or "unresolved".

    >>> import metastable as ms
    >>> run = ms.simulate(ms.Attention(dim=2, beta=9.0), ms.sphere.uniform(8, dim=2, seed=0), until=20.0)
    >>> run.status
    'success'
    """
    problem = check(
        model,
        start,
        until,
        times=times,
        method=method,
        engine=engine,
        interaction=interaction,
        rtol=rtol,
        atol=atol,
        step=step,
        seed=seed,
        max_steps=max_steps,
        threads=threads,
        dtype=dtype,
    )
    with progress_bar("simulate", problem.until, progress) as report:
        solution = SOLVERS[problem.method](problem, report)
    if solution.status != "success":
        warnings.warn(
            f"{solution.message} (the run holds what was reached, its status is {solution.status!r})",
            StoppedEarlyWarning,
            stacklevel=2,
        )
    return from_solution(problem, solution)

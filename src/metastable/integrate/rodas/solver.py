"""Long horizons: Rodas5P, implicit, with the triangular Jacobian that causality gives (t = 1e30 and beyond).

Under a causal mask token k depends on tokens 1..k only. The Jacobian is block lower triangular, its diagonal blocks show all
eigenvalues, linear systems are solved by substitution, and no rounding error of a fast token reaches a slow one: the whole
cascade of merges down to one cluster is a matter of some hundred steps. Three systems stand behind `solve`:

- the circle with Q = K = V = I, in angles (`circle`);
- any dimension, heads, Q, K, V, in gnomonic charts (`sphere`);
- a dense leading block for full attention and prefix masks (`dense`), honest to `DENSE_HORIZON` only.

The tolerance is `atol + rtol`, absolute in angle, the worst token of every step (`control`). Range: differences of
logits must stay above -700, i.e. beta below 350 when Q = K = I; beyond, forces between antipodes underflow to zero.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from metastable._checks import FloatArray
from metastable._progress import Report
from metastable.errors import NumericalRangeError
from metastable.integrate.plan import ATOL, MAX_STEPS, RTOL
from metastable.integrate.rodas.prepare import Prepared, dense_tokens, prepare, sphere_system
from metastable.integrate.solution import (
    DENSE_LIMIT,
    Dense,
    Resume,
    Solution,
    Statistics,
    Status,
    dense_overflow,
    unchart,
)
from metastable.model import Attention, Rule, Support, require, why_not

SETTLED = 1e-12
"""`settled`: how far (radians) any token may still have to go."""
DENSE_HORIZON = 1e20
"""Horizon of a dense block: beyond, rounding errors of its slow eigenvalues decide."""
DENSE_SIZE = 6000
"""Largest dense block, tokens times (dim - 1)."""
LOGIT_SPREAD = 700.0
"""Largest difference of logits whose exponential double precision holds with relative accuracy."""
CHUNK_BYTES = 2**26


# ------------------------------------------------------------------------------------------------------ questions


def _size_rule(model: Attention, tokens: int | None) -> str | None:
    """A dense leading block is factored as a whole."""
    size = 0 if tokens is None else dense_tokens(model, tokens) * (model.dim - 1)
    if size <= DENSE_SIZE:
        return None
    return f"factors a dense matrix of order {size} for this mask, more than {DENSE_SIZE}"


SUPPORT = Support(
    "method='rodas'",
    norms=frozenset({"post_ln"}),
    masks=frozenset({"causal", "full", "window", "sink", "prefix", "matrix"}),
    weights=frozenset({"softmax"}),
    biases=frozenset({"alibi"}),
    parts=frozenset({"heads", "bilinear", "value", "frozen", "blind"}),
    use="use method='tsit5'",
    rules=(Rule("size", _size_rule, "use a causal mask or method='tsit5'"),),
)


def refusal(model: Attention, tokens: int | None = None) -> str | None:
    """Why Rodas cannot do this model (with the fix), or None."""
    return why_not(model, SUPPORT, tokens)


def check_range(model: Attention) -> None:
    """Raise `NumericalRangeError` when logits differ by more than double precision can exponentiate."""
    for head in model.all_heads:
        strength = 1.0 if head.bilinear is None else float(np.linalg.norm(head.bilinear, 2))
        if 2.0 * head.beta * strength > LOGIT_SPREAD:
            limit = LOGIT_SPREAD / (2.0 * strength)
            form = "" if head.bilinear is None else f" (Q^T K has norm {strength:.4g})"
            raise NumericalRangeError(
                f"beta = {head.beta:g} is beyond the underflow limit of method='rodas', beta <= {limit:.4g}{form}: "
                f"the force between antipodes, exp(-2 beta), leaves double precision; lower beta, or use method='tsit5' "
                "for short horizons"
            )


def horizon_refusal(model: Attention, tokens: int, until: float, settled: bool) -> str | None:
    """Why Rodas cannot take this model to `until` (or until all tokens have settled), or None."""
    reason = refusal(model, tokens)
    if reason is not None:
        return reason
    try:
        check_range(model)
    except NumericalRangeError as error:
        return str(error)
    if not settled and until > DENSE_HORIZON and dense_tokens(model, tokens):
        return f"a mask with a dense block has no implicit method beyond t = {DENSE_HORIZON:g}"
    return None


def rotation(model: Attention) -> complex | None:
    """The leading eigenvalue of the sum of the value matrices when it is one of a complex pair, else None."""
    total = sum(np.eye(model.dim) if head.value is None else head.value for head in model.all_heads)
    values = np.linalg.eigvals(total)
    top = values[np.argmax(values.real)]
    return complex(top) if abs(top.imag) > 1e-12 * abs(top) else None


def chart_jacobian(model: Attention, x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Tangent bases E (tokens, dim, dim - 1) and the Jacobian (tokens, dim - 1, tokens, dim - 1) of the velocity in them.

    It is what the steps at x linearise with; a token moves by E_k y to first order.
    """
    from metastable.integrate.rodas.dense import DenseSystem, bases

    require(model, SUPPORT, len(x))
    dense = DenseSystem(sphere_system(model, x, len(x)))
    dense.begin(1.0)
    return bases(dense.system.tokens, model.dim), dense.jacobian()


# ---------------------------------------------------------------------------------------------------------- solve


def solve(
    model: Attention,
    start: FloatArray,
    *,
    times: FloatArray | None = None,
    until: float,
    rtol: float = RTOL,
    atol: float = ATOL,
    max_steps: int = MAX_STEPS,
    settled: bool = False,
    keep_dense: bool = True,
    progress: Report | None = None,
    begin: float = 0.0,
    first_step: float | None = None,
    resume: Resume | None = None,
) -> Solution:
    """Integrate the tokens `start` (tokens, dim) from `begin` to `until`; `first_step` None: a short one is chosen. With `resume`,
    whose state `start` is, go on from there.

    `times` None: every step is saved, with dense output unless `keep_dense` is False; else only those times are saved.
    `max_steps` counts accepted and rejected steps.

    `settled`: stop as soon as all tokens have stopped for good. That means that every token either feels exactly no force, or is
    stable (all eigenvalues of its diagonal block of the Jacobian have negative real part) and within `SETTLED` radians of
    the rest that a Newton step predicts. Where rounding errors are larger than what would tell, the status is "unresolved".
    `notes["settled"]` then holds the time, and later output times hold the state at rest.
    """
    require(model, SUPPORT, len(start))
    check_range(model)
    horizon = float(until)
    if dense_tokens(model, len(start)):
        if not settled and horizon > DENSE_HORIZON:
            raise NumericalRangeError(
                f"until = {horizon:g} is beyond what a mask with a dense block allows, t = {DENSE_HORIZON:g}: rounding errors "
                f"would decide where clusters go; use until <= {DENSE_HORIZON:g} or a causal mask"
            )
        horizon = min(horizon, DENSE_HORIZON)
    prepared = prepare(model, start)
    if first_step is not None:
        prepared = replace(prepared, first_step=first_step)
    march = _March(prepared, start, times, begin if resume is None else resume.t, horizon, keep_dense)
    if resume is not None:
        march.take_up(resume)
    code = march.run(atol + rtol, SETTLED if settled else 0.0, max_steps, progress)
    return march.solution(model, code, settled, max_steps)


class _March:
    """One integration: arrays that the compiled loop fills, chunk by chunk."""

    def __init__(
        self,
        prepared: Prepared,
        start: FloatArray,
        times: FloatArray | None,
        begin: float,
        until: float,
        keep_dense: bool,
    ) -> None:
        from metastable.integrate.rodas import control

        self.prepared, self.start, self.begin, self.until = prepared, start, begin, until
        self.every_step = times is None
        self.keep_dense = keep_dense and self.every_step
        self.times = np.empty(0) if times is None else np.asarray(times, dtype=float)
        shape = (len(start), prepared.components)
        self.saved = np.full((self.times.size, *shape), np.nan)
        self.control = control.first_control(begin, min(prepared.first_step, until - begin))
        self.counters = np.zeros(control.COUNTER_SIZE, dtype=np.int64)
        self.counters[control.OUTPUTS] = np.searchsorted(self.times, begin, side="right")
        piece = 5 * 8 * math.prod(shape)
        self.chunk = int(np.clip(CHUNK_BYTES // piece, 8, 256))
        self.starts: list[FloatArray] = []
        self.widths: list[FloatArray] = []
        self.pieces: list[FloatArray] = []
        self.ends: list[FloatArray] = []
        self.last_piece: FloatArray | None = None
        self.room = DENSE_LIMIT // piece

    def take_up(self, resume: Resume) -> None:
        """Remember what the step control and the counters of an earlier march knew."""
        from metastable.integrate.rodas import control

        for name, value in resume.control.items():
            self.control[control.MEMORY.index(name)] = value
        done = resume.statistics
        self.counters[: control.OUTPUTS] = done.accepted, done.rejected, done.evaluations, done.jacobians

    def here(self, code: int) -> Resume | None:
        """Where the march can be taken up: at its end, or before the step that was cut short for it."""
        from metastable.integrate.rodas import control

        if code in (control.LOST, control.UNRESOLVED):
            return None
        counts = [int(count) for count in self.counters[: control.OUTPUTS]]
        state, memory = self.prepared.current().copy(), self.control[: control.LANDS]
        if code == control.REACHED and self.control[control.LANDS] and self.last_piece is not None:
            state, memory = self.prepared.back(self.last_piece[0]), self.control[control.BEFORE :]
            counts = [count - spent for count, spent in zip(counts, (1, 0, 8, 1))]
        return Resume(
            "rodas",
            float(memory[control.T]),
            unchart(state, self.prepared.chart, self.start.shape[1]),
            Statistics(*counts),
            dict(zip(control.MEMORY, memory.tolist())),
        )

    def run(self, tolerance: float, settle: float, max_steps: int, progress: Report | None) -> int:
        """March to the end; returns the code of `control`, or -1 when dense output has no room left."""
        from metastable.integrate.rodas import control

        shape = (5, len(self.start), self.prepared.components)
        kept = 0
        # On the circle a sweep whose error is already twice what is allowed need not be finished.
        self.prepared.result[3] = (2.0 if self.prepared.chart == "angle" else 1.0) * tolerance
        while True:
            self.counters[control.PIECES] = 0
            starts, widths = np.zeros(self.chunk), np.zeros(self.chunk)
            pieces = np.zeros((self.chunk if self.every_step else 1, *shape))
            code = self.prepared.march(
                self.prepared.system,
                self.control,
                self.counters,
                self.until,
                tolerance,
                settle,
                max_steps,
                self.times,
                self.saved,
                starts,
                widths,
                pieces,
                self.every_step,
            )
            count = int(self.counters[control.PIECES])
            if count:
                self.last_piece = pieces[count - 1 if self.every_step else 0].copy()
            if self.every_step and count:
                self._keep(starts[:count], widths[:count], pieces[:count])
                kept += count
            if progress is not None:
                # Decades are what these runs go through.
                reached = math.log1p(self.control[control.T]) / math.log1p(self.until)
                progress(self.until * min(1.0, reached))
            if code != control.FULL:
                return code
            if self.keep_dense and kept > self.room:
                return -1

    def _keep(self, starts: FloatArray, widths: FloatArray, pieces: FloatArray) -> None:
        pieces = self.prepared.back(pieces)
        self.starts.append(starts)
        self.widths.append(widths)
        self.ends.append(unchart(pieces.sum(axis=1), self.prepared.chart, self.start.shape[1]))
        if self.keep_dense:
            self.pieces.append(pieces)

    @property
    def t(self) -> float:
        from metastable.integrate.rodas import control

        return float(self.control[control.T])

    def dense(self) -> Dense | None:
        """The dense output of what was computed."""
        if not self.pieces:
            return None
        joined = [np.concatenate(part) for part in (self.starts, self.widths, self.pieces)]
        return Dense(self.prepared.chart, self.start.shape[1], *joined)

    def outputs(self, code: int) -> tuple[FloatArray, FloatArray]:
        """Saved times and states."""
        from metastable.integrate.rodas import control

        dim = self.start.shape[1]
        if not self.every_step:
            done = int(self.counters[control.OUTPUTS])
            saved = self.prepared.back(self.saved)
            if code == control.SETTLED:
                saved[done:] = self.prepared.current()
                done = self.times.size
            states = unchart(saved[:done], self.prepared.chart, dim)
            states[self.times[:done] <= self.begin] = self.start
            return self.times[:done], states
        if not self.starts:
            return np.array([self.begin]), self.start[None].copy()
        starts, widths = np.concatenate(self.starts), np.concatenate(self.widths)
        ends = np.append(starts[1:], min(starts[-1] + widths[-1], self.until) if self.t < self.until else self.until)
        times = np.append(self.begin, ends)
        states = np.concatenate([self.start[None], *self.ends])
        # Where the system is, which differs from the end of the last polynomial by the snapping of slaved tokens.
        states[-1] = unchart(self.prepared.current().copy(), self.prepared.chart, dim)
        # Steps that are too short to move the clock end at the same time: the last one counts.
        last = np.append(times[1:] > times[:-1], True)
        return times[last], states[last]

    def solution(self, model: Attention, code: int, settled: bool, max_steps: int) -> Solution:
        """What `solve` returns."""
        from metastable.integrate.rodas import control

        times, states = self.outputs(code)
        status, message = _verdict(model, code, self.t, settled, max_steps)
        notes: dict[str, Any] = {"reached": self.t}
        if code == control.SETTLED:
            notes["settled"] = self.t
        counters = self.counters
        statistics = Statistics(
            int(counters[control.ACCEPTED]),
            int(counters[control.REJECTED]),
            int(counters[control.EVALUATIONS]),
            int(counters[control.JACOBIANS]),
        )
        return Solution(times, states, status, statistics, self.dense(), message, notes, self.here(code))


def _verdict(model: Attention, code: int, t: float, settled: bool, max_steps: int) -> tuple[Status, str]:
    """Status and message for the way a march ended."""
    from metastable.integrate.rodas import control

    if code == control.SETTLED or (code == control.REACHED and not settled):
        return "success", ""
    if code == control.REACHED:
        return "max_steps", f"the tokens had not settled at t = {t:.6g}, where method='rodas' ends for this model"
    if code == control.UNRESOLVED:
        return "unresolved", (
            f"from t = {t:.6g} on rounding errors hide whether tokens still move, so that rest cannot be told from motion; "
            "give a horizon instead of until='settled'"
        )
    if code == control.LOST:
        return "diverged", f"no step was short enough near t = {t:.6g}"
    if code == -1:
        return dense_overflow(t)
    message = f"stopped after {max_steps} steps at t = {t:.6g}"
    leading = rotation(model)
    if leading is not None:
        pair = f"{leading.real:.4g} +- {abs(leading.imag):.4g} i"
        return "max_steps", (
            f"{message}: the leading eigenvalues of the value matrix are the complex pair {pair}, so token 1 rotates for ever "
            "and the others follow it; use a shorter horizon"
        )
    return "max_steps", f"{message}; raise max_steps"

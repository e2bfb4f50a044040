"""The truth of "settled": a run that claims rest is at rest, judged by other means than those of the method.

Causal models are judged token by token in 350 digits: Newton's method must find an exact rest within 1e-9 of the final state, and no
eigenvalue of the token's block of the Jacobian (differences in 350 digits) may have a positive real part. With V a positive
multiple of the identity and Q = K = I the theorem of collapse decides: all tokens at x_1(0). Full attention is continued by LSODA.
A V whose leading eigenvalues agree up to rounding stands for one in which they are equal (docs/long-horizons.md); products
Q diag(2, 2, ...) Q^T and 1.1 Q Q^T are judged by the matrix that they round.

`METASTABLE_SETTLED_MODELS=200 pytest tests/validation/test_settled.py -s` checks more models and prints what they ended in.
"""

from __future__ import annotations

import os
import warnings
from typing import NamedTuple

import mpmath
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import metastable as ms
from metastable.errors import StoppedEarlyWarning
from metastable.model.values import leading_frame, scalar_multiple

MODELS = int(os.environ.get("METASTABLE_SETTLED_MODELS", "12"))
KINDS = (
    "identity",
    "multiple",
    "gap",
    "pair",
    "turned pair",
    "symmetric",
    "jordan",
    "rotation",
    "negative",
    "gaussian",
)


class Value(NamedTuple):
    """A value matrix in double precision, and the axes and eigenvalues of the symmetric one that it rounds (or None)."""

    rounded: np.ndarray | None
    axes: np.ndarray | None = None
    eigenvalues: np.ndarray | None = None


def turned(axes: np.ndarray, eigenvalues: np.ndarray) -> Value:
    return Value(axes @ np.diag(eigenvalues) @ axes.T, axes, eigenvalues)


def value_matrix(kind: str, dim: int, rng: np.random.Generator) -> Value:
    """A value matrix of this kind."""
    axes = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
    gauss = rng.normal(size=(dim, dim))
    pair = np.array([2.0, 2.0, *rng.uniform(-1, 1, dim - 2)])
    return {
        "identity": Value(None),
        "multiple": turned(axes, np.full(dim, 1.1)),
        "gap": Value(np.diag(np.sort(rng.uniform(-1, 2, dim))[::-1])),
        "pair": Value(np.diag(pair)),
        "turned pair": turned(axes, pair),
        "symmetric": Value(gauss + gauss.T),
        "jordan": Value(np.eye(dim) + np.eye(dim, k=1)),
        "rotation": Value(axes),
        "negative": Value(-np.diag(rng.uniform(0.5, 2, dim))),
        "gaussian": Value(gauss),
    }[kind]


def exact_value(value: Value, dim: int) -> list:
    """The value matrix that is meant, in the precision of the moment."""
    if value.axes is None or value.eigenvalues is None:
        return [[mpmath.mpf(v) for v in row] for row in (np.eye(dim) if value.rounded is None else value.rounded)]
    columns: list = []
    for axis in value.axes.T:
        column = [mpmath.mpf(v) for v in axis]
        for earlier in columns:
            overlap = mpmath.fdot(column, earlier)
            column = [c - overlap * e for c, e in zip(column, earlier)]
        length = mpmath.sqrt(mpmath.fdot(column, column))
        columns.append([c / length for c in column])
    weights = [mpmath.mpf(v) for v in value.eigenvalues]
    return [[mpmath.fsum(w * c[a] * c[b] for w, c in zip(weights, columns)) for b in range(dim)] for a in range(dim)]


def random_model(seed: int) -> tuple[str, Value, ms.Attention, np.ndarray]:
    rng = np.random.default_rng([14, seed])
    dim, tokens = int(rng.integers(2, 6)), int(rng.integers(2, 13))
    kind = KINDS[seed % len(KINDS)]
    mask = ms.Full() if rng.random() < 0.2 else ms.Causal()
    beta = float(np.exp(rng.uniform(np.log(0.5), np.log(330.0))))
    value = value_matrix(kind, dim, rng)
    model = ms.Attention(dim=dim, beta=beta, value=value.rounded, mask=mask)
    return kind, value, model, ms.sphere.uniform(tokens, dim=dim, seed=seed)


def drift(x, others, value, beta):
    """Tangential velocity of a token at the unit vector x that sees `others` and itself, in the precision of its arguments."""
    seen = [*others, x]
    weights = [mpmath.exp(beta * (mpmath.fdot(x, y) - 1)) for y in seen]
    total = mpmath.fsum(weights)
    mean = [mpmath.fdot(weights, [y[a] for y in seen]) / total for a in range(len(x))]
    force = [mpmath.fdot(row, mean) for row in value]
    radial = mpmath.fdot(x, force)
    return [force[a] - radial * x[a] for a in range(len(x))]


def true_rest(x, others, value, beta):
    """The exact rest of a token near x, and the eigenvalues of its Jacobian there, by Newton's method in charts."""
    small = mpmath.mpf(10) ** (-mpmath.mp.dps // 3)
    for _ in range(12):
        basis = np.linalg.qr(np.array([[float(v) for v in x]]).T, mode="complete")[0][:, 1:]
        base = [[mpmath.mpf(v) for v in column] for column in basis.T]
        for column in base:
            overlap = mpmath.fdot(column, x)
            column[:] = [c - overlap * v for c, v in zip(column, x)]

        def at(y, x=x, base=base):
            point = [x[a] + mpmath.fsum(y[b] * base[b][a] for b in range(len(base))) for a in range(len(x))]
            length = mpmath.sqrt(mpmath.fdot(point, point))
            force = drift([p / length for p in point], others, value, beta)
            return [mpmath.fdot(column, force) for column in base], [p / length for p in point]

        m = len(base)
        here, _ = at([mpmath.mpf(0)] * m)
        jacobian = mpmath.matrix(m, m)
        for b in range(m):
            ahead, _ = at([small if c == b else mpmath.mpf(0) for c in range(m)])
            for a in range(m):
                jacobian[a, b] = (ahead[a] - here[a]) / small
        if max(abs(v) for v in here) < mpmath.mpf(10) ** (-mpmath.mp.dps * 3 // 4):
            break
        size = max(abs(v) for v in jacobian)
        # A neutral direction (a family of rests) is left alone.
        shift = mpmath.eye(m) * (size * mpmath.mpf(10) ** (-mpmath.mp.dps // 4))
        step = mpmath.lu_solve(jacobian - shift, mpmath.matrix([-v for v in here]))
        _, x = at(list(step))
    eigenvalues = [jacobian[0, 0]] if m == 1 else list(mpmath.eig(jacobian, left=False, right=False))
    return x, eigenvalues, here


def judge_causal(model: ms.Attention, meant: Value, final: np.ndarray) -> str | None:
    """Why a claim of rest is false, or None."""
    with mpmath.workdps(350):
        value = exact_value(meant, model.dim)
        others: list = []
        for k, row in enumerate(final):
            x = [mpmath.mpf(v) for v in row]
            length = mpmath.sqrt(mpmath.fdot(x, x))
            rest, eigenvalues, force = true_rest([v / length for v in x], others, value, mpmath.mpf(model.beta))
            far = max(abs(float(a) - b) for a, b in zip(rest, row))
            if not far < 1e-9:
                return f"token {k}: the nearest rest is {far:.1e} away"
            fastest = max(eigenvalues, key=lambda number: mpmath.re(number))
            if mpmath.re(fastest) > mpmath.mpf(10) ** -290 and float(max(abs(v) for v in force)) > 0:
                size = max(abs(v) for v in eigenvalues)
                if mpmath.re(fastest) > 1e-25 * size:
                    return f"token {k}: unstable, rate {mpmath.nstr(mpmath.re(fastest), 3)}"
            others.append(rest)
    return None


def judge_full(model: ms.Attention, final: np.ndarray) -> str | None:
    def velocity(t, y):
        return ms.velocity(model, y.reshape(final.shape), engine="reference").ravel()

    end = solve_ivp(velocity, (0, 1e4), final.ravel(), "LSODA", rtol=1e-10, atol=1e-12).y[:, -1]
    far = np.abs(end - final.ravel()).max()
    return None if far < 1e-6 else f"LSODA moves it by {far:.1e}"


def verdict(seed: int) -> tuple[str, str, str | None]:
    """Kind and status of a random model, and why its claim of rest is false (None: it is not, or none was made)."""
    kind, value, model, x = random_model(seed)
    steps = 500 if isinstance(model.mask, ms.Full) else 8000  # dense steps are dear
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = ms.simulate(model, x, until="settled", method="rodas", max_steps=steps)
    if run.status != "success":
        return kind, run.status, None
    if isinstance(model.mask, ms.Full):
        return kind, run.status, judge_full(model, run.final)
    if kind in ("identity", "multiple") and np.abs(run.final - x[0]).max() > 1e-9:
        return kind, run.status, "it has not collapsed to token 1"
    return kind, run.status, judge_causal(model, value, run.final)


@pytest.mark.parametrize("seed", range(MODELS))
def test_claims_of_rest_are_true(seed):
    kind, status, why = verdict(seed)
    print(kind, status)
    assert why is None, (kind, why)


def pair(angle: float, dim: int) -> np.ndarray:
    x = np.zeros((2, dim))
    x[0, 0] = 1.0
    x[1, :2] = np.cos(angle), np.sin(angle)
    return x


def test_speeds_whose_squares_underflow_are_not_rest():
    run = ms.simulate(ms.Attention(dim=3, beta=200.0), pair(3.0, 3), until="settled", method="rodas")
    assert run.status == "success"
    assert 1e172 < run.notes["settled"] < 1e173
    assert np.abs(run.final - run.start[0]).max() < 1e-11


@pytest.mark.parametrize("rotated", [False, True])
def test_a_pair_in_the_leading_eigenspace_collapses(rotated):
    axes = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0] if rotated else np.eye(3)
    model = ms.Attention(dim=3, beta=28.0, value=axes @ np.diag([2.0, 2.0, 1.0]) @ axes.T)
    x = pair(1.9, 3) @ axes.T
    early = ms.simulate(model, x, until=2e14, method="rodas")
    assert np.abs(early.final[1] - early.final[0]).max() > 0.1
    run = ms.simulate(model, x, until="settled", method="rodas")
    assert run.status == "success"
    assert np.abs(run.final[1] - run.final[0]).max() < 1e-11
    assert run.notes["settled"] > 2.3e14


def test_a_multiple_of_the_identity_up_to_rounding_is_one():
    axes = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    value = 1.1 * axes @ axes.T
    assert scalar_multiple(value) == pytest.approx(1.1, rel=1e-15)
    assert scalar_multiple(np.diag([1.0, 1.0, 1.0 + 1e-9])) is None
    assert leading_frame(np.array([[0.0, -1.0], [1.0, 0.0]])) is None
    run = ms.simulate(ms.Attention(dim=3, beta=28.0, value=value), pair(1.9, 3), until="settled", method="rodas")
    assert run.status == "success"
    assert np.abs(run.final - run.start[0]).max() < 1e-11


def test_where_rounding_hides_the_answer_the_status_says_so():
    """V = -I, four tokens: token 3 rests anywhere on a circle, and nothing holds it there."""
    x = ms.sphere.uniform(4, dim=3, seed=1)
    with pytest.warns(StoppedEarlyWarning, match="rounding errors"):
        run = ms.simulate(ms.Attention(dim=3, beta=4.0, value=-np.eye(3)), x, until="settled", method="rodas")
    assert run.status == "unresolved"


@pytest.mark.parametrize("method", ["rodas", "auto"])
@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("beta", [4.0, 64.0])
def test_antipodes_end_soon_and_never_as_collapsed(beta, dim, method):
    """x and -x stand in an unstable rest: settled where the force is exactly zero, unresolved where rounding hides whether it is."""
    model = ms.Attention(dim=dim, beta=beta)
    one = ms.sphere.uniform(1, dim=dim, seed=0)
    starts = {"exact": pair(np.pi, dim).round(), "rounded": pair(np.pi, dim), "general": np.concatenate([one, -one])}
    for name, x in starts.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", StoppedEarlyWarning)
            run = ms.simulate(model, x, until="settled", method=method, max_steps=400)
        # In general it depends on how the sum is rounded, which differs between vector widths.
        expected = {"exact": ["success" if dim == 3 else "unresolved"], "general": ["success", "unresolved"]}
        assert run.status in expected.get(name, ["unresolved"]), name
        assert run.final[1] @ run.final[0] == pytest.approx(-1.0)
    # Nearly antipodal pairs, told from antipodes by their angles, collapse.
    run = ms.simulate(model, pair(np.pi - 1e-12, dim), until="settled", method=method)
    assert run.status == "success"
    assert run.final[1] @ run.final[0] == pytest.approx(1.0)


@pytest.mark.parametrize("dim", [2, 3, 4, 6])
def test_one_token_under_a_jordan_block_reaches_the_right_pole(dim):
    """Against exp(t V) x / |exp(t V) x| with V = I + N, whose rest is stable from one side only."""
    nilpotent = np.eye(dim, k=1)
    model = ms.Attention(dim=dim, beta=1.0, value=np.eye(dim) + nilpotent)
    for seed in range(4):
        x = ms.sphere.uniform(1, dim=dim, seed=seed)
        run = ms.simulate(model, x, times=[1e2, 1e6, 1e12, 1e14], method="rodas")
        assert run.status == "success"
        for t, state in zip(run.times, run.states):
            exact = term = x[0].astype(np.longdouble)
            for power in range(1, dim):
                term = nilpotent @ term * (np.longdouble(t) / power)
                exact = exact + term
            assert np.abs(state[0] - exact / np.sqrt((exact**2).sum())).max() < 2e-6

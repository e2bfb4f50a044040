"""What must hold for every run on every engine: norms, symmetries, causality, energy.

Under Numba's CUDA simulator (`tests/equivalence/test_cuda.py` starts it, in a process of its own) the engine is "cuda", else it is
"reference" and "cpu", the latter with direct sums and with series.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from scipy.stats import special_ortho_group

import metastable as ms
from metastable.errors import ModelError, UnsupportedError
from metastable.kernels.cuda import device
from tests import variants


@dataclass(frozen=True)
class Way:
    """How velocities are computed, and how exactly (sums of a series cancel more)."""

    engine: str
    interaction: str = "direct"
    rounding: float = 1e-12

    def velocity(self, model, x):
        """The velocity this way; an example that the engine refuses is none."""
        try:
            return ms.velocity(model, x, engine=self.engine, interaction=self.interaction)
        except UnsupportedError:
            assume(False)

    def run(self, model, x, **options):
        """A run this way; an example that the engine refuses is none."""
        try:
            return ms.simulate(
                model, x, engine=self.engine, interaction=self.interaction, method="tsit5", progress=False, **options
            )
        except UnsupportedError:
            assume(False)


DIRECT = [Way("cuda")] if device.SIMULATED else [Way("reference"), Way("cpu")]
WAYS = [*DIRECT, Way("cuda" if device.SIMULATED else "cpu", "series", 1e-10)]
ways = pytest.mark.parametrize("way", WAYS, ids=lambda way: f"{way.engine}-{way.interaction}")
direct_ways = pytest.mark.parametrize("way", DIRECT, ids=lambda way: way.engine)

seeds = st.integers(0, 2**32 - 1)
# The simulator takes a thousand times as long as a GPU, and the reference engine has the same examples.
QUICK = settings(max_examples=2 if device.SIMULATED else 25, deadline=None)
SHORT = 0.1 if device.SIMULATED else 1.0
"""Horizons are multiplied by this: each step of the simulator takes a second."""


def draw(rng, way: Way, tokens: int, dim: int, beta: float, mask: str, heads: int, **given_fields):
    """A random model that the way can do: a series has one head, and on the sphere Q = K = V = I."""
    if way.interaction == "series":
        kept = {name: item for name, item in given_fields.items() if name == "norm" and not isinstance(item, ms.NGPT)}
        return ms.Attention(dim=2 if way.engine == "cuda" else int(rng.integers(2, 4)), beta=beta, **kept)
    if way.engine != "reference":
        given_fields["feedforward"] = None
    return variants.model(rng, tokens, dim, beta, mask, heads, **given_fields)


@ways
@QUICK
@given(seeds, st.sampled_from(variants.MASKS), st.sampled_from([ms.PostLN(), ms.NGPT(0.5), ms.SqrtScaling()]))
def test_tokens_stay_on_the_sphere(way, seed, mask, norm):
    """Unit length to 1e-12 at every saved time and in between."""
    rng = np.random.default_rng(seed)
    m = draw(rng, way, 8, 3, float(rng.uniform(0, 20)), mask, 2, norm=norm)
    r = way.run(m, variants.tokens(rng, 8, m.dim), until=2.0 * SHORT, rtol=1e-4)
    assert np.abs(np.linalg.norm(r.states, axis=2) - 1).max() < 1e-12
    assert np.abs(np.linalg.norm(r.at(float(rng.uniform(0, 2 * SHORT))), axis=1) - 1).max() < 1e-12


@ways
@QUICK
@given(seeds, st.sampled_from(variants.MASKS), st.sampled_from(variants.WEIGHTS))
def test_rotation_equivariance(way, seed, mask, weights):
    """(RQR^T, RKR^T, RVR^T) moves R x exactly as (Q, K, V) moves x."""
    rng = np.random.default_rng(seed)
    n = 9
    m = draw(rng, way, n, 4, 3.0, mask, 2, weights=weights, feedforward=None, frozen=None, tie_tolerance=1e-9)
    R = special_ortho_group.rvs(m.dim, random_state=rng)

    def turn(a):
        return None if a is None else R @ a @ R.T

    turned = m
    if m.heads is not None:
        heads = tuple(ms.Head(turn(h.query), turn(h.key), turn(h.value), h.beta) for h in m.heads)
        turned = m.replace(heads=heads)
    x = variants.tokens(rng, n, m.dim)
    np.testing.assert_allclose(way.velocity(turned, x @ R.T), way.velocity(m, x) @ R.T, atol=10 * way.rounding)


@direct_ways
@QUICK
@given(seeds)
def test_permutation_equivariance_under_full_attention(way, seed):
    rng = np.random.default_rng(seed)
    m = draw(rng, way, 9, 3, 3.0, "full", 2, bias=None)
    x = variants.tokens(rng, 9, 3)
    order = rng.permutation(9)
    np.testing.assert_allclose(way.velocity(m, x[order]), way.velocity(m, x)[order], atol=way.rounding)


@ways
@QUICK
@given(seeds, st.sampled_from(["causal", "window", "sink"]))
@example(400, "sink")
def test_causality(way, seed, mask):
    """The first m tokens move alone as they move in company: to rounding for the velocity, to tolerance for runs.

    Some draws multiply errors by more than a thousand (the example: 1.5e-5 at rtol 1e-8, 2e-8 at 1e-10, 1e-10 at 1e-12), so the
    runs are tight; 180 draws at this tolerance differ by 4e-9 at the most.
    """
    rng = np.random.default_rng(seed)
    n, few = 12, int(rng.integers(1, 12))
    m = draw(rng, way, n, 3, float(rng.uniform(0, 10)), mask, 2)
    x = variants.tokens(rng, n, m.dim)
    np.testing.assert_allclose(way.velocity(m, x)[:few], way.velocity(m, x[:few]), atol=0.1 * way.rounding)
    if device.SIMULATED:
        return  # runs this tight take minutes there
    options = {"until": 2.0, "rtol": 1e-11, "atol": 1e-14}
    together, apart = way.run(m, x, **options), way.run(m, x[:few], **options)
    np.testing.assert_allclose(together.final[:few], apart.final, atol=1e-6)


@direct_ways
@QUICK
@given(seeds)
def test_heads_commute(way, seed):
    rng = np.random.default_rng(seed)
    m = draw(rng, way, 7, 3, 3.0, "causal", 4, bias=None)
    x = variants.tokens(rng, 7, 3)
    shuffled = m.replace(heads=tuple(m.heads[i] for i in rng.permutation(4)))
    np.testing.assert_allclose(way.velocity(shuffled, x), way.velocity(m, x), atol=way.rounding)


@direct_ways
@QUICK
@given(seeds, st.floats(0.1, 20.0))
def test_energy_of_full_attention_never_decreases(way, seed, beta):
    """E = (1/(2 beta)) sum_ij exp(beta <x_i, x_j>) grows along (SA) and (USA) with Q = K = V = I (arXiv:2312.10794)."""
    rng = np.random.default_rng(seed)
    m = ms.Attention(dim=3, beta=beta, mask=ms.Full())
    r = way.run(m, variants.tokens(rng, 8, 3), until=3.0 * SHORT, rtol=1e-7)
    energy = np.exp(beta * (np.einsum("tid,tjd->tij", r.states, r.states) - 1)).sum(axis=(1, 2))
    assert (np.diff(energy) > -1e-6 * energy[:-1]).all()


@direct_ways
@QUICK
@given(seeds, st.integers(2, 6))
def test_first_token_follows_the_matrix_exponential(way, seed, dim):
    """x_1(t) = exp(tV) x_1(0) / |exp(tV) x_1(0)| up to t = 50, whatever the others do (Lemma 3.1)."""
    rng = np.random.default_rng(seed)
    V = rng.normal(size=(dim, dim)) / np.sqrt(dim)
    m = ms.Attention(dim=dim, beta=2.0, value=V)
    x = variants.tokens(rng, 3, dim)
    times = [0.1, 0.3] if device.SIMULATED else [1.0, 10.0, 50.0]
    r = way.run(m, x, times=times, rtol=1e-9, atol=1e-12)
    for t, state in zip(r.times, r.states):
        exact = ms.theory.single_token(V, x[0], t)
        # Near-ties of real parts turn slowly and amplify: the tolerance leaves room for that.
        assert np.linalg.norm(state[0] - exact) < 1e-6


def blind_to_themselves(tokens: int) -> list:
    """Masks under which tokens do not see themselves (but the first, which would see nobody)."""

    class Earlier(ms.Causal.__bases__[0]):
        """A mask made of ranges, as a user may write one."""

        kind: ClassVar[str] = "earlier"
        label: ClassVar[str] = "earlier tokens"

        def intervals(self, tokens):
            ranges = np.zeros((tokens, 2, 2), dtype=np.int64)
            ranges[:, 0, 1] = np.maximum(np.arange(tokens), 1)
            return ranges

    allowed = np.tri(tokens, k=-1, dtype=bool)
    allowed[0, 0] = True
    return [Earlier(), ms.Mask(allowed), ms.Causal(include_self=False), ms.Full(include_self=False)]


@ways
@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("number", range(4))
def test_masks_without_the_diagonal_are_right_or_refused(way, dim, number):
    """The sum runs over whom a token sees, and over nobody else: never a number for another mask."""
    rng = np.random.default_rng(number)
    n = 7
    try:
        m = ms.Attention(dim=dim, beta=3.0, mask=blind_to_themselves(n)[number])
        allowed = m.mask.matrix(n)
        x = variants.tokens(rng, n, dim)
        found = ms.velocity(m, x, engine=way.engine, interaction=way.interaction)
    except (UnsupportedError, ModelError):
        return
    # Who sees nobody stands still; so does, with V = I, who sees only itself, and that the slow loop can do.
    nobody = ~allowed.any(axis=1)
    truth, _ = variants.slow_velocity(m.replace(mask=ms.Mask(allowed | np.diag(nobody))), x)
    np.testing.assert_allclose(found, truth, atol=way.rounding)


def test_every_example_is_not_refused():
    """The reference engine refuses nothing that is drawn here, so that no property holds for lack of examples."""
    rng = np.random.default_rng(0)
    for mask in variants.MASKS:
        m = variants.model(rng, 8, 3, 2.0, mask, 2)
        x = variants.tokens(rng, 8, 3)
        found = ms.velocity(m, x, engine="reference")  # whatever it raises fails the test, and names the part
        assert found.shape == x.shape, mask
        assert np.isfinite(found).all(), mask

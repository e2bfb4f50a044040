"""What must hold for every run: norms, symmetries, causality, energy."""

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import special_ortho_group

import metastable as ms
from tests import variants

seeds = st.integers(0, 2**32 - 1)
QUICK = settings(max_examples=25, deadline=None)


@QUICK
@given(seeds, st.sampled_from(variants.MASKS), st.sampled_from([ms.PostLN(), ms.NGPT(0.5), ms.SqrtScaling()]))
def test_tokens_stay_on_the_sphere(seed, mask, norm):
    """Unit length to 1e-12 at every saved time and in between."""
    rng = np.random.default_rng(seed)
    m = variants.model(rng, 8, 3, float(rng.uniform(0, 20)), mask, 2, norm=norm)
    r = ms.simulate(m, variants.tokens(rng, 8, 3), until=2.0, engine="reference", rtol=1e-4)
    assert np.abs(np.linalg.norm(r.states, axis=2) - 1).max() < 1e-12
    assert np.abs(np.linalg.norm(r.at(float(rng.uniform(0, 2))), axis=1) - 1).max() < 1e-12


@QUICK
@given(seeds, st.sampled_from(variants.MASKS), st.sampled_from(variants.WEIGHTS))
def test_rotation_equivariance(seed, mask, weights):
    """(RQR^T, RKR^T, RVR^T) moves R x exactly as (Q, K, V) moves x."""
    rng = np.random.default_rng(seed)
    n, d = 9, 4
    m = variants.model(rng, n, d, 3.0, mask, 2, weights=weights, feedforward=None, frozen=None, tie_tolerance=1e-9)
    R = special_ortho_group.rvs(d, random_state=rng)

    def turn(a):
        return R @ (np.eye(d) if a is None else a) @ R.T

    heads = tuple(ms.Head(turn(h.query), turn(h.key), turn(h.value), h.beta) for h in m.all_heads)
    x = variants.tokens(rng, n, d)
    np.testing.assert_allclose(
        ms.velocity(m.replace(heads=heads), x @ R.T, engine="reference"),
        ms.velocity(m, x, engine="reference") @ R.T,
        atol=1e-11,
    )


@QUICK
@given(seeds)
def test_permutation_equivariance_under_full_attention(seed):
    rng = np.random.default_rng(seed)
    m = variants.model(rng, 9, 3, 3.0, "full", 2, bias=None)
    x = variants.tokens(rng, 9, 3)
    order = rng.permutation(9)
    moved = ms.velocity(m, x[order], engine="reference")
    np.testing.assert_allclose(moved, ms.velocity(m, x, engine="reference")[order], atol=1e-12)


@QUICK
@given(seeds, st.sampled_from(["causal", "window", "sink"]))
@example(400, "sink")
def test_causality(seed, mask):
    """The first m tokens move alone as they move in company: exactly for the velocity, to tolerance for runs.

    Some draws multiply errors by more than a thousand (the example: 1.5e-5 at rtol 1e-8, 2e-8 at 1e-10, 1e-10 at 1e-12), so the
    runs are tight; 180 draws at this tolerance differ by 4e-9 at the most.
    """
    rng = np.random.default_rng(seed)
    n, few = 12, int(rng.integers(1, 12))
    m = variants.model(rng, n, 3, float(rng.uniform(0, 10)), mask, 2)
    x = variants.tokens(rng, n, 3)
    alone, company = ms.velocity(m, x[:few], engine="reference"), ms.velocity(m, x, engine="reference")
    np.testing.assert_allclose(company[:few], alone, atol=1e-13)
    options = {"until": 2.0, "engine": "reference", "rtol": 1e-11, "atol": 1e-14}
    together, apart = ms.simulate(m, x, **options), ms.simulate(m, x[:few], **options)
    np.testing.assert_allclose(together.final[:few], apart.final, atol=1e-6)


@QUICK
@given(seeds)
def test_heads_commute(seed):
    rng = np.random.default_rng(seed)
    m = variants.model(rng, 7, 3, 3.0, "causal", 4, bias=None)
    x = variants.tokens(rng, 7, 3)
    shuffled = m.replace(heads=tuple(m.heads[i] for i in rng.permutation(4)))
    np.testing.assert_allclose(
        ms.velocity(shuffled, x, engine="reference"), ms.velocity(m, x, engine="reference"), atol=1e-12
    )


@QUICK
@given(seeds, st.floats(0.1, 20.0))
def test_energy_of_full_attention_never_decreases(seed, beta):
    """E = (1/(2 beta)) sum_ij exp(beta <x_i, x_j>) grows along (SA) and (USA) with Q = K = V = I (arXiv:2312.10794)."""
    rng = np.random.default_rng(seed)
    m = ms.Attention(dim=3, beta=beta, mask=ms.Full())
    r = ms.simulate(m, variants.tokens(rng, 8, 3), until=3.0, engine="reference", rtol=1e-7)
    energy = np.exp(beta * (np.einsum("tid,tjd->tij", r.states, r.states) - 1)).sum(axis=(1, 2))
    assert (np.diff(energy) > -1e-6 * energy[:-1]).all()


@QUICK
@given(seeds, st.integers(2, 6))
def test_first_token_follows_the_matrix_exponential(seed, dim):
    """x_1(t) = exp(tV) x_1(0) / |exp(tV) x_1(0)| up to t = 50, whatever the others do (Lemma 3.1)."""
    rng = np.random.default_rng(seed)
    V = rng.normal(size=(dim, dim)) / np.sqrt(dim)
    m = ms.Attention(dim=dim, beta=2.0, value=V)
    x = variants.tokens(rng, 3, dim)
    r = ms.simulate(m, x, times=[1.0, 10.0, 50.0], engine="reference", rtol=1e-9, atol=1e-12)
    for t, state in zip(r.times, r.states):
        exact = ms.theory.single_token(V, x[0], t)
        # Near-ties of real parts turn slowly and amplify: the tolerance leaves room for that.
        assert np.linalg.norm(state[0] - exact) < 1e-6

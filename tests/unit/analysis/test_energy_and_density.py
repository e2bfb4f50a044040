"""The energy of full attention and the density of tokens, for runs and ensembles."""

import numpy as np
import pytest

import metastable as ms
from metastable.analysis import attention_energy, global_energy
from metastable.errors import InvalidInputError, UnsupportedError


def models():
    rng = np.random.default_rng(0)
    form = rng.normal(size=(3, 3))
    form = form + form.T
    anchors = ms.Frozen(ms.sphere.uniform(2, 3, 5), [1.0, 3.0])
    full = ms.Full()
    return [
        ms.Attention(dim=3, beta=2.0, mask=full),
        ms.Attention(dim=3, beta=2.0, mask=full, weights="unnormalized", query=form, value=form),
        ms.Attention(dim=3, beta=1.0, mask=full, query=form, value=form, norm=ms.NGPT(0.5)),
        ms.Attention(
            dim=3,
            beta=-1.0,
            mask=ms.Full(include_self=False),
            query=form,
            value=form,
            frozen=anchors,
            masses=rng.random(8) + 0.1,
        ),
    ]


@pytest.mark.parametrize("model", models())
def test_tokens_climb_the_energy(model):
    """The velocity is the gradient of the energy (by differences) up to a positive factor for each token; USA: one factor for all."""
    x = ms.sphere.uniform(8, 3, 1)
    gradient = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[place] = 1e-6
        ahead, behind = (attention_energy(model, ms.sphere.normalize(x + sign * step)) for sign in (1, -1))
        gradient[place] = (ahead - behind) / 2e-6
    velocity = ms.velocity(model, x, engine="reference")
    lengths = np.linalg.norm(velocity, axis=1), np.linalg.norm(gradient, axis=1)
    assert (np.einsum("kd,kd->k", velocity, gradient) / lengths[0] / lengths[1]).min() > 1 - 1e-7
    if model.weights == "unnormalized":
        assert np.ptp(lengths[0] / lengths[1]) < 1e-5 * (lengths[0] / lengths[1]).max()
    run = ms.simulate(model, x, until=3.0, engine="reference", method="tsit5")
    energy = run.observe(ms.observe.energy())
    assert energy.dims == ("time",)
    assert np.diff(energy.values).min() > -1e-7 * np.abs(energy.values).max()


@pytest.mark.parametrize("weights", ["softmax", "unnormalized"])
@pytest.mark.parametrize("kind", ["plain", "form", "masses", "frozen", "repulsion"])
def test_the_energy_grows_at_the_rate_of_a_gradient_flow(kind, weights):
    """dE/dt along a run, by differences, is sum_i m_i N_i |dx_i/dt|^2/N^2, N_i what row i is divided by (the sum of its weights for SA,
    of all masses and frozen weights for USA), all weights over exp(|beta| |V|). Written out by hand, without the package's sums."""
    rng = np.random.default_rng(3)
    form = np.eye(3) if kind in ("plain", "masses") else (lambda a: 0.5 * (a + a.T))(rng.normal(size=(3, 3)))
    beta = -1.5 if kind == "repulsion" else 2.0
    mass = rng.random(7) + 0.2 if kind == "masses" else np.ones(7)
    anchors, heavy = ms.sphere.uniform(2, 3, 5), np.array([1.0, 3.0]) if kind == "frozen" else np.zeros(2)
    model = ms.Attention(dim=3, beta=beta, mask=ms.Full(), weights=weights, query=form, value=form)
    if kind == "masses":
        model = model.replace(masses=mass)
    if kind == "frozen":
        model = model.replace(frozen=ms.Frozen(anchors, heavy))
    times, h = np.array([0.0, 0.3, 0.9]), 2e-5
    near = np.unique(np.concatenate([times, times + h, times + 2 * h]))
    run = ms.simulate(model, ms.sphere.uniform(7, 3, 2), times=near, engine="reference", rtol=1e-12, atol=1e-14)
    energy = run.observe(ms.observe.energy()).values
    top = abs(beta) * np.linalg.norm(form, 2)
    for t in times + h:
        middle = int(np.argmin(np.abs(near - t)))
        x = run.states[middle]
        pulls = mass * np.exp(beta * x @ form @ x.T - top)
        extra = heavy * np.exp(beta * x @ form @ anchors.T - top)
        field = pulls @ x @ form + extra @ anchors @ form
        if weights == "softmax":
            divisor = pulls.sum(axis=1) + extra.sum(axis=1)
        else:
            divisor = np.full(7, (mass.sum() + heavy.sum()) * np.exp(-top))
        speed = field - np.einsum("kd,kd->k", field, x)[:, None] * x
        speed /= divisor[:, None]
        rate = float((mass * divisor * (speed**2).sum(axis=1)).sum() / mass.sum() ** 2)
        assert (energy[middle + 1] - energy[middle - 1]) / (2 * h) == pytest.approx(rate, rel=2e-6, abs=1e-10)


@pytest.mark.parametrize(
    ("changes", "observable", "error", "words"),
    [
        ({}, ms.observe.energy(), UnsupportedError, "token_energies"),
        ({"weights": "unnormalized"}, ms.observe.attention_entropy(), UnsupportedError, "probabilities"),
        ({}, ms.observe.attention(head=3), InvalidInputError, "head"),
        ({}, ms.observe.attention_rank(head=3), InvalidInputError, "head"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_an_ensemble_moves(changes, observable, error, words):
    """The refusal came from the first member that had been moved, hours later for a large ensemble."""
    model = ms.Attention(dim=2, beta=5.0, **changes)
    with pytest.raises(error, match=words):
        ms.ensemble(model, tokens=5, members=2, times=[1.0], seed=0, observe={"found": observable}, start=never)


def never(generator):
    """A start that nobody may ask for."""
    raise AssertionError("a member was drawn")


def test_the_identity_is_the_energy_that_was_there():
    x = ms.sphere.uniform(20, 4, 0)
    model = ms.Attention(dim=4, beta=3.0, mask=ms.Full())
    known = np.exp(3.0 * (x @ x.T - 1)).sum() / (2 * 3.0 * 400)
    assert attention_energy(model, x) == pytest.approx(known, rel=1e-13)
    assert global_energy(x, 3.0) == pytest.approx(known, rel=1e-13)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mask": ms.Causal()}, "token_energies"),
        ({"value": np.diag([2.0, 1.0])}, "Q\\^T K = V"),
        ({"query": [[0.0, 1.0], [-1.0, 0.0]], "value": [[0.0, 1.0], [-1.0, 0.0]]}, "symmetric"),
        ({"weights": "hardmax"}, "hardmax"),
        ({"beta": 0.0}, "beta"),
        ({"bias": ms.ALiBi(1.0)}, "bias"),
    ],
)
def test_what_is_no_gradient_flow_has_no_energy(changes, words):
    model = ms.Attention(dim=2, beta=1.0, mask=ms.Full()).replace(**changes)
    with pytest.raises(UnsupportedError, match=words):
        attention_energy(model, ms.sphere.uniform(3, 2, 0))


def test_densities_of_tokens_in_cells():
    """1 on average in every kind of cell, which have equal measure; an ensemble measures them as a run does."""
    for dim, observable, shape in (
        (2, ms.observe.density(10), (10,)),
        (3, ms.observe.density(8), (4, 8)),
        (5, ms.observe.density(6, axis=[0, 0, 0, 0, 1.0]), (6,)),
    ):
        model = ms.Attention(dim=dim, beta=1.0)
        stats = ms.ensemble(
            model, tokens=1000, members=2, times=[0.0, 1e-3], seed=0, observe={"d": observable}, engine="reference"
        )
        found = stats.d.values[:, 0]
        assert found.shape == (2, *shape)
        assert found.reshape(2, -1).mean(axis=1) == pytest.approx(1.0)
        cells = found[0].size
        assert np.abs(found - 1).max() < 5 * np.sqrt(cells / 1000)
    angles = np.array([0.1, 0.2, -3.0, 3.1])
    run = ms.simulate(
        ms.Attention(dim=2, beta=1.0), ms.sphere.from_angle(angles), times=[0.0, 1e-6], engine="reference"
    )
    assert run.observe(ms.observe.density(4)).values[0].tolist() == [1.0, 0.0, 2.0, 1.0]
    with pytest.raises(UnsupportedError, match="axis"):
        ms.simulate(ms.Attention(dim=4, beta=1.0), ms.sphere.uniform(3, 4, 0), times=[1.0]).observe(
            ms.observe.density()
        )


def test_a_run_has_a_smooth_density():
    x = ms.sphere.uniform(200, 2, 0)
    run = ms.simulate(ms.Attention(dim=2, beta=4.0), x, until=2.0, engine="reference", method="tsit5")
    start, end = run.density(t=0.0, bandwidth=0.1), run.density(bandwidth=0.1)
    assert start.mean == pytest.approx(x.mean(axis=0) * np.exp(-0.005), abs=1e-12)
    assert end.mean == pytest.approx(run.final.mean(axis=0) * np.exp(-0.005), abs=1e-12)
    assert end.values.max() > 1.2 * start.values.max()
    weighted = ms.simulate(run.model.replace(masses=np.arange(1.0, 201.0)), x, times=[1.0], engine="reference")
    known = np.average(weighted.final, axis=0, weights=np.arange(1.0, 201.0))
    assert weighted.density(bandwidth=0.1).mean == pytest.approx(known * np.exp(-0.005), abs=1e-12)
    high = ms.simulate(ms.Attention(dim=4, beta=1.0), ms.sphere.uniform(50, 4, 0), until=1.0, engine="reference")
    assert high.density(axis=[1.0, 0, 0, 0]).mean[0] != 0
    with pytest.raises(UnsupportedError, match="axis"):
        high.density()


def test_masses_count_in_the_density():
    """A token of mass 3 is as dense as three tokens."""
    for dim, item in (
        (2, ms.observe.density(6)),
        (3, ms.observe.density(4)),
        (4, ms.observe.density(3, axis=[0, 0, 0, 1.0])),
    ):
        x = ms.sphere.uniform(5, dim=dim, seed=dim)
        masses = np.array([3, 1, 2, 1, 1])
        heavy = ms.simulate(ms.Attention(dim=dim, beta=1.0, masses=masses), x, times=[0.0, 1e-6])
        many = ms.simulate(ms.Attention(dim=dim, beta=1.0), np.repeat(x, masses, axis=0), times=[0.0, 1e-6])
        np.testing.assert_allclose(heavy.observe(item).values, many.observe(item).values, atol=1e-12)

"""The temperature (or another knob) for a number of clusters."""

import math

import numpy as np
import pytest

import metastable as ms
from metastable.analysis.cascade import counts_after
from metastable.control import Knob, temperature, tune
from metastable.control.knobs import applied, knob_of, value_of
from metastable.errors import GoalError, InvalidInputError, MetastableError, ModelError, OwnFunctionError

PLAIN = ms.Attention(dim=2, beta=1.0)


def test_counts_of_leaders_are_those_of_simulations():
    """Beyond t = 100 the flow of leaders counts what a full simulation counts, member by member."""
    model = ms.Attention(dim=2, beta=24.0)
    stats = ms.ensemble(model, tokens=60, members=24, times=[100.0], seed=3)
    exact = ms.ensemble(
        model, tokens=60, members=24, times=[1e4, 1e8], seed=3, observe={"clusters": ms.observe.clusters()}
    )
    found = np.array([counts_after(x, model, 100.0, np.array([1e4, 1e8])) for x in stats["x"].values[:, 0]])
    assert (found != exact["clusters"].values).sum() <= 1


def test_temperature_of_a_long_horizon():
    """An independent ensemble, simulated to the end, has the mean that was asked for."""
    found = temperature(PLAIN, 60, 3, 1e4, accuracy=0.05, seed=1)
    assert found.members <= 20_000
    assert found.counted.startswith("simulated to t = 100")
    assert found.checked > 0
    assert found.interval[0] < found.value < found.interval[1]
    stats = ms.ensemble(
        found.model, tokens=60, members=200, times=[1e4], seed=77, observe={"clusters": ms.observe.clusters()}
    )
    counts = stats["clusters"].values[:, 0]
    assert abs(counts.mean() - 3.0) < 4.0 * math.hypot(counts.std() / math.sqrt(200), found.error)
    assert found.law == pytest.approx(math.log(1e4) / (1.0 - math.cos(math.pi / 3.0)), rel=1e-3)
    assert f"{found.value:.6g}" in repr(found)
    assert "tried" in found._repr_html_()


def test_seeds_decide():
    options = {"accuracy": 0.2, "members": 1000}
    one, two, other = (temperature(PLAIN, 30, 3, 50.0, seed=seed, **options) for seed in (0, 0, 1))
    assert one == two
    assert one.value != other.value


def test_a_window_as_a_knob():
    model = ms.Attention(dim=2, beta=16.0, mask=ms.Window(8))
    found = tune(model, "window", tokens=40, clusters=6.0, until=30.0, accuracy=0.2, between=(2, 40))
    assert isinstance(found.value, int)
    assert found.model.mask == ms.Window(found.value)
    assert found.counted == "simulated to the end"


def test_tokens_as_a_knob():
    found = tune(ms.Attention(dim=2, beta=16.0), "tokens", tokens=10, clusters=3.0, until=50.0, accuracy=0.15)
    assert found.tokens == found.value
    assert 3 <= found.value < 100


@pytest.mark.parametrize(
    ("model", "name", "value", "field"),
    [
        (ms.Attention(dim=2, beta=4.0), "beta", 8.0, lambda m: m.beta),
        (ms.Attention(dim=2, heads=(ms.Head(beta=2.0), ms.Head(beta=4.0))), "beta", 8.0, lambda m: m.heads[1].beta),
        (ms.Attention(dim=2, beta=4.0, noise=0.1), "noise", 0.3, lambda m: m.noise),
        (ms.Attention(dim=2, beta=4.0, norm=ms.NGPT(0.5)), "norm", 0.7, lambda m: m.norm.alpha),
        (ms.Attention(dim=2, beta=4.0, norm=ms.MixLN(2.0)), "norm", 3.0, lambda m: m.norm.tau),
        (ms.Attention(dim=2, beta=4.0, mask=ms.Sink(2, 8)), "window", 5, lambda m: m.mask.width),
        (ms.Attention(dim=2, beta=4.0, frozen=ms.Frozen(np.eye(2))), "sink", 6.0, lambda m: m.frozen.weights.sum()),
        (ms.Attention(dim=2, beta=4.0, value=np.diag([2.0, 0.5])), "gap", 0.3, lambda m: m.value[0, 0] - m.value[1, 1]),
    ],
)
def test_knobs_set_and_get(model, name, value, field):
    knob = knob_of(model, name)
    changed = applied(knob, model, value)
    assert field(changed) == pytest.approx(value)
    assert value_of(knob, changed) == pytest.approx(value)
    assert applied(knob, model, value_of(knob, model)) == model or name == "gap"


def test_a_sink_of_no_weight_can_be_given_some(monkeypatch):
    """Its tokens share equally what has no shares yet; a search from there begins in the middle of its bounds."""
    model = ms.Attention(dim=2, beta=4.0, frozen=ms.Frozen(np.eye(2), np.zeros(2)))
    np.testing.assert_array_equal(applied(knob_of(model, "sink"), model, 6.0).frozen.weights, [3.0, 3.0])
    monkeypatch.setattr("metastable.control.counting.Counter.counts", counts_like(lambda m: 5 / m.frozen.weights.sum()))
    found = tune(model, "sink", tokens=20, clusters=3.5, until=30.0, accuracy=0.1, between=(0.01, 100.0))
    assert found.value == pytest.approx(2.0, rel=0.2)
    assert found.status == "success"


def counts_like(mean):
    """Counts whose mean is 1 + mean(model), instead of simulations."""

    def counts(self, model, tokens, members, number):
        return 1.0 + np.random.default_rng([self.seed, number]).poisson(mean(model), members)

    return counts


def test_a_whole_number_may_be_far_from_its_goal(monkeypatch):
    """10 clusters at a width of 2, 5 at 3 and none between: 3 is the nearer one, and says so."""
    monkeypatch.setattr(
        "metastable.control.counting.Counter.counts", counts_like(lambda model: 36.0 / model.mask.width**2)
    )
    model = ms.Attention(dim=2, beta=16.0, mask=ms.Window(12))
    found = tune(model, "window", tokens=40, clusters=7.0, until=30.0, accuracy=0.05)
    assert found.value == 3
    assert found.status == "nearest"
    assert found.interval == (2.0, 3.0)
    assert found.mean == pytest.approx(5.0, abs=4.0 * found.error)
    assert found.error <= 0.05
    assert "2 has" in found.facts["nearest"]
    assert "3 has" in found.facts["nearest"]
    assert "where there are" in repr(found)
    near = tune(model, "window", tokens=40, clusters=5.0, until=30.0, accuracy=0.05)
    assert (near.value, near.status) == (3, "success")


def test_the_nearest_whole_number_is_that_of_the_nearest_mean(monkeypatch):
    """Means 9.4 and 12.4 at 8 and 9, goal 10.8: the root is at 8.5, nearer to 9 in the knob, and 9.4 is nearer than 12.4."""
    monkeypatch.setattr(
        "metastable.control.counting.Counter.counts",
        counts_like(lambda model: 9.4 * (model.mask.width / 8.0) ** 2.35 - 1.0),
    )
    model = ms.Attention(dim=2, beta=16.0, mask=ms.Window(8))
    found = tune(model, "window", tokens=40, clusters=10.84, until=30.0, accuracy=0.05)
    assert found.value == 8
    assert found.status == "nearest"


def test_knobs_that_a_model_has_not():
    for name in ("window", "norm", "sink", "gap"):
        with pytest.raises(ModelError, match="give"):
            knob_of(PLAIN, name)
    with pytest.raises(ModelError, match="beta above 0"):
        knob_of(ms.Attention(dim=2, heads=(ms.Head(beta=0.0), ms.Head(beta=-1.0))), "beta")
    with pytest.raises(InvalidInputError, match="one of"):
        knob_of(PLAIN, "temperature")
    with pytest.raises(InvalidInputError, match="greater than 0"):
        value_of(knob_of(PLAIN, "noise"), PLAIN)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"clusters": 300}, "200 tokens make at most 200"),
        ({"clusters": 199}, "nearly every token"),
        ({"clusters": 1.0}, "one cluster"),
        ({"clusters": 60, "until": 1e12}, "more than the sphere holds"),
        ({"clusters": 5, "between": (1.0, 3.0)}, "no value of the knob"),
    ],
)
def test_impossible_goals_are_refused_before_work(arguments, word, monkeypatch):
    monkeypatch.setattr("metastable.control.counting.ensembles.ensemble", _no_work)
    with pytest.raises(GoalError, match=word):
        temperature(PLAIN, **{"tokens": 200, "clusters": 5, "until": 1e6, **arguments})


def test_more_clusters_than_the_sphere_holds_at_this_beta(monkeypatch):
    monkeypatch.setattr("metastable.control.counting.ensembles.ensemble", _no_work)
    with pytest.raises(GoalError, match="holds at most"):
        tune(ms.Attention(dim=2, beta=16.0), "tokens", tokens=100, clusters=40, until=1e6)


@pytest.mark.parametrize(
    ("model", "knob"),
    [
        (
            ms.Attention(dim=2, beta=16.0, bias=ms.ALiBi(0.1)),
            Knob("slope", lambda model, value: model.replace(bias=ms.ALiBi(value)), lambda model: model.bias.slope),
        ),
        (ms.Attention(dim=2, beta=16.0), Knob("slope", lambda model, value: model.replace(bias=ms.ALiBi(value)))),
        (ms.Attention(dim=2, beta=16.0), Knob("beta", lambda model, value: model.replace(masses=[value] * 100))),
        (ms.Attention(dim=2, beta=16.0, bias=ms.ALiBi(0.1)), "beta"),
        (ms.Attention(dim=2, beta=16.0, masses=[1e-9] * 100), "beta"),
    ],
)
def test_the_law_is_about_beta_alone(model, knob, monkeypatch):
    """What the law says of beta refuses no goal of another knob, nor of another model; they are tried."""
    monkeypatch.setattr("metastable.control.counting.ensembles.ensemble", _no_work)
    with pytest.raises(AssertionError, match="work was begun"):
        tune(model, knob, tokens=100, clusters=40, until=1e6)


def _no_work(*arguments, **options):
    raise AssertionError("work was begun")


@pytest.mark.parametrize(
    "arguments",
    [
        {"model": "x"},
        {"tokens": 0},
        {"tokens": "many"},
        {"clusters": float("nan")},
        {"clusters": None},
        {"until": 1.0},
        {"until": -1.0},
        {"until": float("inf")},
        {"accuracy": 0.0},
        {"members": 10},
        {"between": (3.0, 1.0)},
        {"between": 3.0},
        {"radius": -1.0},
        {"seed": -1},
        {"exact": "yes"},
        {"progress": "often"},
        {"nonsense": 1},
    ],
)
def test_nonsense_is_told(arguments, monkeypatch):
    monkeypatch.setattr("metastable.control.counting.ensembles.ensemble", _no_work)
    given = {"model": PLAIN, "tokens": 50, "clusters": 3.0, "until": 100.0, **arguments}
    with pytest.raises(MetastableError):
        temperature(**given)


@pytest.mark.parametrize("arguments", [{"name": 3}, {"set": 3}, {"low": 0.0}, {"low": 2.0, "high": 1.0}, {"whole": 2}])
def test_knobs_of_ones_own_are_checked(arguments):
    with pytest.raises(MetastableError):
        Knob(**{"name": "mine", "set": lambda model, value: model, **arguments})


def test_knobs_of_ones_own_that_raise_are_named():
    """Before any ensemble where the value is asked for, and at the first try where it is set."""

    def broken(model, value=None):
        raise ZeroDivisionError("of mine")

    arguments = {"tokens": 20, "clusters": 2.0, "until": 10.0}
    with pytest.raises(OwnFunctionError, match=r"knob 'mine'.*of mine"):
        tune(PLAIN, Knob("mine", broken), **arguments)
    with pytest.raises(OwnFunctionError, match=r"knob 'mine'.*of mine"):
        tune(PLAIN, Knob("mine", lambda model, value: model, broken), **arguments)
    with pytest.raises(InvalidInputError, match="value of the knob 'mine'"):
        tune(PLAIN, Knob("mine", lambda model, value: model, lambda model: "much"), **arguments)


@pytest.mark.parametrize(("goal", "spread"), [(3.0, 0.34), (8.0, 0.33), (10.0, 0.39)])
def test_answers_are_known_to_a_quarter_of_what_500_members_tell(goal, spread, monkeypatch):
    """Counts as wide as those of clusters are, `spread` sqrt(goal); within the 20,000 member-runs that may be spent."""

    def counts(self, model, tokens, members, number):
        mean = goal * (model.beta / 50.0) ** 0.52
        return np.random.default_rng([self.seed, number]).normal(mean, spread * math.sqrt(mean), members)

    monkeypatch.setattr("metastable.control.counting.Counter.counts", counts)
    for seed in range(5):
        found = temperature(PLAIN, 200, goal, 100.0, seed=seed)
        assert found.error <= 0.25 * spread * math.sqrt(goal / 500.0)
        assert abs(goal * (found.value / 50.0) ** 0.52 - goal) < 4.0 * found.error
        assert found.members <= 20_000

"""Every function of control, and the derivatives, asked nonsense in every argument: a named exception, before any work."""

import math

import numpy as np
import pytest

import metastable as ms
from metastable.control import Apart, Together, elasticities, paired_elasticities, place, schedule, temperature, tune
from metastable.errors import InvalidInputError, MetastableError

MODEL = ms.Attention(dim=2, beta=12.0)
START = ms.sphere.uniform(12, dim=2, seed=3)
NONSENSE = (
    *(math.nan, math.inf, -math.inf, -1, 10**400, 1j, "much", "", b"x", [], (), {}, object()),
    *(np.array([]), np.eye(3), np.array(math.nan), np.array("3"), (math.nan, 1.0), [math.nan], np.float64("nan")),
)
"""What makes sense for no argument at all."""
ENSEMBLE = {
    **{"method": "auto", "engine": "auto", "interaction": "auto", "rtol": 1e-6, "atol": 1e-9, "step": None},
    **{"max_steps": 1000, "memory": 10**9, "threads": None, "dtype": "float64", "start": "uniform"},
}
PAIRED = {
    **{"tokens": 8, "until": 100.0, "clusters": 1, "members": 10, "turn": 0.1, "seed": 0, "radius": None},
    **{"progress": None, **ENSEMBLE},
}
TUNED = {
    **{"tokens": 50, "clusters": 3.0, "until": 100.0, "seed": 0, "accuracy": None, "members": 20_000},
    **{"between": None, "radius": None, "exact": False, "progress": None, **ENSEMBLE},
}
SINGLE = {"kind": "frozen", "weight": 1.0, "tries": 8, "seed": 0, "radius": None, "verify": True, "progress": None}
STEPS = {"engine": "auto", "rtol": 1e-6, "atol": 1e-9, "max_steps": 1000, "max_step": None, "threads": None}
CALLS = {
    "temperature": (temperature, {"model": MODEL, **TUNED}),
    "tune": (tune, {"model": MODEL, "knob": "beta", **TUNED}),
    "paired_elasticities": (paired_elasticities, {"model": MODEL, "knobs": ["beta"], **PAIRED}),
    "elasticities of a model": (elasticities, {"source": MODEL, "knobs": ["beta"], "since": None, **PAIRED}),
    "elasticities": (elasticities, {"source": None, "knobs": None, "since": None, "radius": None}),
    "schedule": (
        schedule,
        {"run": None, "event": None, "at": 1e6, "since": None, "radius": None, "verify": True, "progress": None},
    ),
    "place": (place, {"source": MODEL, "start": START, "goal": Together((1, 2)), "until": 1e4, **SINGLE}),
    "gradient": (
        ms.gradient,
        {
            **{"model": MODEL, "start": START, "observable": ms.derivatives.order_parameter(), "until": 1.0},
            **{"wrt": None, "times": None, "differences": None, "progress": None, **STEPS},
        },
    ),
    "jacobian_spectrum": (ms.jacobian_spectrum, {"run": None, "t": 1.0, "engine": "auto", "progress": None}),
}


@pytest.fixture(scope="module")
def run():
    return ms.simulate(MODEL, START, until=100.0)


@pytest.fixture
def idle(monkeypatch):
    """Whatever takes time raises."""

    def work(*arguments, **options):
        raise AssertionError("work was begun")

    for name in (
        "ensembles.simulation._run_batches",
        "control.placement.simulate",
        "control.placement.tree_of",
        "control.steering.simulate",
        "control.steering.tree_of",
        "control.elasticity.tree_of",
        "derivatives.gradients.adjoint.walk",
        "derivatives.lyapunov.tangent.carry",
    ):
        monkeypatch.setattr(f"metastable.{name}", work)


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize(
    ("name", "argument"), [(name, argument) for name, (_, given) in CALLS.items() for argument in given]
)
def test_nonsense_is_refused_before_any_work(name, argument, run):
    function, given = CALLS[name]
    given = {word: run if value is None and word in ("run", "source") else value for word, value in given.items()}
    for value in NONSENSE:
        with pytest.raises(MetastableError) as told:
            function(**{**given, argument: value})
        assert 10 < len(str(told.value)) < 1000, (argument, value)


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize("name", CALLS)
def test_what_is_asked_here_makes_sense(name, run):
    """The other arguments are not what is refused above."""
    function, given = CALLS[name]
    given = {word: run if value is None and word in ("run", "source") else value for word, value in given.items()}
    with pytest.raises(AssertionError, match="work was begun"):
        function(**given)


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize(("given", "missing"), [({"until": 10.0}, "tokens"), ({"tokens": 5}, "until")])
@pytest.mark.parametrize("ask", [paired_elasticities, elasticities])
def test_elasticities_of_a_model_need_tokens_and_a_time(ask, given, missing):
    with pytest.raises(InvalidInputError, match=f"say {missing}= as well"):
        ask(MODEL, ["beta"], **given)


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize(
    ("name", "arguments", "word"),
    [
        ("temperature", {"accuracy": 1e-300}, "members tell"),
        ("temperature", {"accuracy": 1e300}, "accuracy must be less than"),
        ("temperature", {"radius": 7.0}, "radius must be less than"),
        ("temperature", {"radius": 1e-300}, "radius must be at least"),
        ("temperature", {"knob": "noise"}, "control.tune"),
        ("temperature", {"observe": {}}, "no option 'observe'"),
        ("paired_elasticities", {"nonsense": 1}, "no option 'nonsense'"),
        ("paired_elasticities", {"times": [1.0]}, "no option 'times'"),
        ("paired_elasticities", {"radius": 4.0}, "radius must be less than"),
        ("elasticities of a model", {"nonsense": 1}, "no option 'nonsense'"),
        ("elasticities of a model", {"knobs": []}, "names nothing"),
        ("elasticities", {"knobs": []}, "names nothing"),
        ("elasticities", {"knobs": (), "since": 0.0}, "names nothing"),
        ("elasticities", {"radius": 7.0}, "radius must be less than"),
        ("elasticities", {"knobs": ["beta", "heat"]}, "each of knobs"),
        ("schedule", {"radius": 7}, "radius must be less than"),
        ("schedule", {"radius": math.pi}, "radius must be less than"),
        ("schedule", {"verify": "no"}, "verify must be"),
        ("schedule", {"verify": False, "progress": "often"}, "progress must be"),
        ("schedule", {"event": (3, 3.5)}, "target of event"),
        ("place", {"verify": 2}, "verify must be"),
        ("place", {"progress": "often"}, "progress must be"),
        ("place", {"radius": 7.0}, "radius must be less than"),
        ("place", {"weight": (1.0, math.inf)}, r"weight\[1\]"),
        ("place", {"goal": Apart(1, 99)}, "each token of the goal"),
        ("gradient", {"observable": "cosine"}, "observable must be"),
        ("gradient", {"observable": ms.derivatives.pair_cosine(1, 99)}, "holds 99"),
        ("gradient", {"observable": ms.derivatives.pair_angle(99, 1)}, "holds 99"),
        ("gradient", {"observable": ms.derivatives.spread([3, 99])}, "holds 99"),
        ("gradient", {"observable": ms.derivatives.mean_cosine([0.0, 0.0, 1.0])}, "target has dimension 3"),
        ("gradient", {"observable": ms.derivatives.mean_cosine(np.eye(2), [1, 2, 3])}, "2 rows for 3 tokens"),
    ],
)
def test_what_is_wrong_is_named(name, arguments, word, run):
    function, given = CALLS[name]
    given = {word: run if value is None and word in ("run", "source") else value for word, value in given.items()}
    with pytest.raises(MetastableError, match=word):
        function(**{**given, **arguments})


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize("name", ["tokens", "until"])
def test_elasticities_of_a_model_say_what_is_missing(name):
    given = {"tokens": 8, "until": 100.0}
    del given[name]
    with pytest.raises(InvalidInputError, match=f"{name}="):
        elasticities(MODEL, ["beta"], **given)


def test_knobs_that_cannot_be_set_are_told_before_the_first_ensemble(monkeypatch):
    """Also where the knob before them can."""

    def broken(model, value):
        raise ZeroDivisionError("of mine")

    def work(*arguments, **options):
        raise AssertionError("work was begun")

    monkeypatch.setattr("metastable.control.paired.ensemble", work)
    mine = ms.control.Knob("mine", broken, lambda model: 1.0)
    with pytest.raises(ms.errors.OwnFunctionError, match="of mine"):
        paired_elasticities(MODEL, ["beta", mine], tokens=8, until=10.0)


def test_members_that_stop_early_are_told_as_such():
    """They were said to have too many clusters left at the end."""
    with pytest.raises(ms.errors.ConvergenceError, match="10 of 10 members stopped before t = 100"):
        paired_elasticities(MODEL, ["beta"], tokens=4, until=100.0, members=10, max_steps=1)

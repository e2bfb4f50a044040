"""Variants declare themselves, and whoever does not list one refuses it: a new variant is never taken for an old one."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

import metastable as ms
from metastable.analysis import energy
from metastable.errors import ModelError, UnsupportedError
from metastable.integrate import fused, layers, methods, rodas
from metastable.integrate.plan import Save
from metastable.kernels import cpu, reference, select
from metastable.kernels.cpu import support as cpu_support
from metastable.kernels.cuda import support as cuda_support
from metastable.model import Bias, Law, Masking, Norm, Support, Weights, WeightsLaw, declare, why_not
from metastable.model import refusals as model_refusals
from metastable.model.masks import _ranges
from tests import explicit, variants

N = 6


# -------------------------------------------------------------------------------------------------- new variants


def new_norm() -> Norm:
    """Half as fast, and decaying like (t + 1)^-1/3: no radius, no jump, nothing that an old engine would stumble over."""

    @dataclass(frozen=True)
    class Slow(Norm):
        kind: ClassVar[str] = "slow"

        def law(self, t: float) -> Law:
            return Law(amplitude=0.5, decay=1 / 3)

    return Slow()


def heir_of_post_ln() -> Norm:
    """A child of PostLN that says nothing of its kind."""

    @dataclass(frozen=True)
    class Heir(ms.PostLN):
        def law(self, t: float) -> Law:
            return Law(amplitude=3.0)

    return Heir()


def new_mask() -> Masking:
    """Everybody before me, but not me: ranges without the diagonal. Token 0 sees nobody."""

    @dataclass(frozen=True)
    class Strict(Masking):
        kind: ClassVar[str] = "strict"

        def intervals(self, tokens: int) -> np.ndarray:
            return _ranges((0, np.arange(tokens)), tokens=tokens)

    return Strict()


def heir_of_causal() -> Masking:
    """The same as a child of Causal."""

    @dataclass(frozen=True)
    class Earlier(ms.Causal):
        def intervals(self, tokens: int) -> np.ndarray:
            return _ranges((0, np.arange(tokens)), tokens=tokens)

    return Earlier()


def new_weights() -> Weights:
    """No law that two words could say."""

    @dataclass(frozen=True)
    class Sigmoid(Weights):
        kind: ClassVar[str] = "sigmoid"

    return Sigmoid()


def lawful_weights() -> Weights:
    """The most attended, divided by the number of visible tokens: a new pair of known words."""

    @dataclass(frozen=True)
    class Votes(Weights):
        kind: ClassVar[str] = "votes"
        law: ClassVar[WeightsLaw | None] = WeightsLaw("largest", "visible")

    return Votes()


def new_bias() -> Bias:
    """A bonus for the neighbour before."""

    @dataclass(frozen=True)
    class Neighbour(Bias):
        kind: ClassVar[str] = "neighbour"

        def logits(self, head, heads, rows, columns):
            return np.where(rows[:, None] - columns == 1, 2.0, 0.0)

    return Neighbour()


NEW = {
    "norm": ("norm", new_norm),
    "child of PostLN": ("norm", heir_of_post_ln),
    "mask": ("mask", new_mask),
    "child of Causal": ("mask", heir_of_causal),
    "weights": ("weights", new_weights),
    "weights with a law": ("weights", lawful_weights),
    "bias": ("bias", new_bias),
}
LAWFUL = [name for name in NEW if name != "weights"]


def make(name: str, dim: int = 2, beta: float = 4.0) -> ms.Attention:
    field, variant = NEW[name]
    return ms.Attention(dim=dim, beta=beta, **{field: variant()})


def tokens(dim: int = 2) -> np.ndarray:
    return ms.sphere.uniform(N, dim=dim, seed=1)


def slow_velocity(model: ms.Attention, x: np.ndarray, t: float = 0.0) -> np.ndarray:
    """The velocity of the new variants, pair by pair, knowing nothing of laws."""
    kind = type(model.norm).__name__
    factor = {"Slow": 0.5 * (t + 1.0) ** (-1 / 3), "Heir": 3.0}.get(kind, 1.0)
    strict = type(model.mask).__name__ in ("Strict", "Earlier")
    out = np.zeros_like(x)
    for k in range(len(x)):
        seen = range(k if strict else k + 1)
        if not len(seen):
            continue
        logit = np.array([4.0 * x[k] @ x[j] + (2.0 if model.bias is not None and k - j == 1 else 0.0) for j in seen])
        if model.weights == "votes":
            weight = (logit >= logit.max() - 1e-12) / len(seen)
        else:
            weight = np.exp(logit) / np.exp(logit).sum()
        A = sum(w * x[j] for w, j in zip(weight, seen))
        out[k] = factor * (A - (x[k] @ A) * x[k])
    return out


# ---------------------------------------------------------------------------------------------- everybody is asked

TIMES = np.array([0.5, 1.0])


ADDED = {
    "repulsion": lambda: {"beta": -4.0},
    "others only": lambda: {"mask": ms.Causal(include_self=False)},
    "masses": lambda: {"masses": np.arange(1.0, N + 1.0)},
}
"""Fields of variants that the compiled engine has: the others are asked. (`tests/equivalence/test_additions.py` has the engines.)"""

LISTED = (
    "velocity cpu",
    "cpu.right_hand_side",
    "fused.system_of",
    "fused.solve_members",
    "simulate cpu",
    "ensemble cpu",
)


@pytest.mark.parametrize("name", ADDED)
@pytest.mark.parametrize("dim", [2, 3, 5])
def test_an_added_variant_is_refused_by_everybody_who_does_not_list_it(name, dim):
    model = ms.Attention(**{"dim": dim, "beta": 4.0, **ADDED[name]()})
    for who, call in ask_everybody(model).items():
        if who in LISTED or (who == "jacobian" and name == "others only"):
            call()
            continue
        with pytest.raises(UnsupportedError) as caught:
            call()
        assert len(str(caught.value)) > 20, who
    others = [*cpu_support.SERIES.values(), *cuda_support.DIRECT.values(), rodas.SUPPORT]
    for item in [*others, *cuda_support.FUSED.values(), cuda_support.SERIES, cuda_support.TOTAL, energy.SUPPORT]:
        assert why_not(model, item, N) is not None, item.who
    assert not cuda_support.wins(model, 10**6, 10**4)
    assert not cpu.series_wins(model, 10**6)
    assert rodas.horizon_refusal(model, N, 1e6, settled=False) is not None
    assert (ms.predict(model).row, ms.predict(model).basis) == (None, "none")


def ask_everybody(model: ms.Attention):
    """Everyone who computes something for a model, by name, as a call."""
    x = tokens(model.dim)
    run = {"progress": False, "until": 1.0}
    many = {"tokens": N, "members": 2, "times": [0.5, 1.0], "seed": 0, "progress": False}
    calls = {
        "velocity cpu": lambda: ms.velocity(model, x, engine="cpu"),
        "velocity series": lambda: ms.velocity(model, x, engine="cpu", interaction="series"),
        "velocity cuda": lambda: ms.velocity(model, x, engine="cuda"),
        "cpu.right_hand_side": lambda: cpu.right_hand_side(model, N),
        "fused.system_of": lambda: fused.system_of(explicit.plan(model, 1.0), x),
        "fused.solve_members": lambda: explicit.solve_members(model, x[None], TIMES),
        "simulate cpu": lambda: ms.simulate(model, x, method="tsit5", engine="cpu", **run),
        "simulate cuda": lambda: ms.simulate(model, x, engine="cuda", **run),
        "simulate rodas": lambda: ms.simulate(model, x, method="rodas", **run),
        "simulate settled": lambda: ms.simulate(model, x, until="settled", progress=False),
        "rodas.solve": lambda: rodas.solve(model, x, Save(1.0)),
        "rodas.chart_jacobian": lambda: rodas.chart_jacobian(model, x),
        "ensemble cpu": lambda: ms.ensemble(model, engine="cpu", **many),
        "ensemble cuda": lambda: ms.ensemble(model, engine="cuda", **many),
        "ensemble rodas": lambda: ms.ensemble(model, method="rodas", **many),
        "ensemble series": lambda: ms.ensemble(model, interaction="series", **many),
        "energies": lambda: energy.token_energies(model, x),
        "energy gradients": lambda: energy.energy_gradients(model, x),
        "gradient flow": lambda: energy.gradient_flow_defect(model, x),
    }
    if model.norm.kind != "post_ln" or model.weights != "softmax":
        calls["jacobian"] = lambda: reference.jacobian(model, x)
    return calls


@pytest.mark.parametrize("name", NEW)
@pytest.mark.parametrize("dim", [2, 3, 5])
def test_a_new_variant_is_refused_by_everybody_who_does_not_list_it(name, dim):
    model = make(name, dim)
    for who, call in ask_everybody(model).items():
        with pytest.raises(UnsupportedError) as caught:
            call()
        assert len(str(caught.value)) > 20, who
    density = ms.meanfield.Density.uniform(dim, axis=np.eye(dim)[0])
    for call in (lambda: ms.meanfield.evolve(model, density, [1.0]), lambda: ms.meanfield.growth_rates(model)):
        with pytest.raises(UnsupportedError):
            call()


@pytest.mark.parametrize("name", NEW)
def test_every_declaration_refuses_a_new_variant(name):
    """The lists themselves, those of the GPU included, whether or not there is one."""
    for dim in (2, 3):
        model = make(name, dim)
        lists: list[Support] = [
            cpu_support.DIRECT,
            *cpu_support.SERIES.values(),
        ]
        lists += [
            *cuda_support.DIRECT.values(),
            *cuda_support.FUSED.values(),
            cuda_support.SERIES,
            cuda_support.TOTAL,
            rodas.SUPPORT,
            energy.SUPPORT,
        ]
        for item in lists:
            assert why_not(model, item, N) is not None, item.who
        assert not cuda_support.wins(model, 10**6, 10**4)
        assert not cpu.series_wins(model, 10**6)
        assert rodas.horizon_refusal(model, N, 1e6, settled=False) is not None
        prediction = ms.predict(model)
        assert prediction.row is None
        assert prediction.basis == "none"


@pytest.mark.parametrize("name", LAWFUL)
@pytest.mark.parametrize("dim", [2, 3])
def test_the_reference_engine_reads_the_law(name, dim):
    """A law is all that the readable engine needs; "auto" and the adaptive method go through it."""
    model, x = make(name, dim), tokens(dim)
    for t in (0.0, 2.5):
        found = ms.velocity(model, x, engine="reference", t=t)
        np.testing.assert_allclose(found, slow_velocity(model, x, t), rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(ms.velocity(model, x), ms.velocity(model, x, engine="reference"))
    run = ms.simulate(model, x, until=0.3, method="tsit5", rtol=1e-9, atol=1e-12, progress=False)
    assert run.engine == "reference"
    y = x.copy()
    steps = 300
    for i in range(steps):
        h, t = 0.3 / steps, 0.3 * i / steps
        middle = y + 0.5 * h * slow_velocity(model, y / np.linalg.norm(y, axis=1, keepdims=True), t)
        middle /= np.linalg.norm(middle, axis=1, keepdims=True)
        y = y + h * slow_velocity(model, middle, t + 0.5 * h)
        y /= np.linalg.norm(y, axis=1, keepdims=True)
    np.testing.assert_allclose(run.final, y, atol=1e-5)


@pytest.mark.parametrize("name", LAWFUL)
def test_layers_read_the_law(name):
    """x <- N(x + step v) agrees with the velocity to first order in the step."""
    model, x = make(name, 3), tokens(3)
    step = 1e-6
    run = ms.simulate(model, x, until=step, method="layers", step=step, progress=False)
    np.testing.assert_allclose((run.final - x) / step, slow_velocity(model, x), atol=1e-5)


def test_weights_without_a_law_are_refused_by_the_readable_engine_too():
    model, x = make("weights"), tokens()
    for call in (
        lambda: ms.velocity(model, x),
        lambda: ms.velocity(model, x, engine="reference"),
        lambda: reference.right_hand_side(model, N),
        lambda: reference.attention_weights(model, x),
        lambda: ms.simulate(model, x, until=1.0, progress=False),
        lambda: ms.simulate(model, x, until=1.0, method="layers", step=0.5, progress=False),
        lambda: ms.simulate(model, x, until=1.0, method="sde", seed=0, progress=False),
        lambda: ms.ensemble(model, tokens=N, members=1, times=[1.0], seed=0, progress=False),
    ):
        with pytest.raises(UnsupportedError, match="law"):
            call()


def test_a_radius_that_layers_do_not_know_is_refused():
    @dataclass(frozen=True)
    class Odd(Norm):
        def law(self, t: float) -> Law:
            return Law(radius_power=2.0, radial=1.0)

    model = ms.Attention(dim=2, beta=1.0, norm=Odd())
    with pytest.raises(UnsupportedError, match="radius"):
        ms.simulate(model, tokens(), until=1.0, method="layers", step=0.5, progress=False)
    with pytest.raises(UnsupportedError, match="radius"):
        layers.solve([model], np.ones((2, 3)), 0.5)
    assert ms.simulate(model, tokens(), until=0.1, progress=False).radius is not None


def test_noise_is_refused_by_methods_without_it():
    model = ms.Attention(dim=2, beta=1.0, noise=0.1)
    for method in ("tsit5", "rodas", "layers"):
        assert "method='sde'" in (methods.METHODS[method].refusal(model, N) or "")
    assert methods.METHODS["sde"].refusal(model, N) is None


# ------------------------------------------------------------------------------------------ the declarations hold


def test_every_field_of_a_model_is_guarded():
    """Whoever adds a field must say which list or part guards it, or that everybody reads it."""
    names = {field.name for cls in (ms.Attention, ms.Head) for field in dataclasses.fields(cls)}
    assert names == set(model_refusals.FIELDS)
    guards = {guard for guard in model_refusals.FIELDS.values() if guard is not None}
    lists = {field.name for field in dataclasses.fields(Support)}
    assert guards <= lists | set(model_refusals.PARTS)


def test_lists_name_known_kinds_and_parts():
    """A misspelt kind would be refused for ever."""
    found = [
        reference.SUPPORT,
        reference.JACOBIAN,
        cpu_support.DIRECT,
        *cpu_support.SERIES.values(),
    ]
    found += [
        *cuda_support.DIRECT.values(),
        *cuda_support.FUSED.values(),
        cuda_support.SERIES,
        cuda_support.TOTAL,
        rodas.SUPPORT,
        rodas.JOINED,
        rodas.RESTING,
    ]
    found += [energy.SUPPORT, layers.SUPPORT, *methods.EXPLICIT.values(), methods.SDE]
    for item in found:
        for family, listed in (
            ("norm", item.norms),
            ("mask", item.masks),
            ("weights", item.weights),
            ("bias", item.biases),
        ):
            assert (listed or frozenset()) <= set(declare.kinds(family)), (item.who, family)
        assert item.parts <= set(model_refusals.PARTS), item.who


@pytest.mark.parametrize("norm", variants.NORMS, ids=repr)
def test_laws_say_what_the_norms_are(norm):
    """radius, depth and jumps follow from the law."""
    assert norm.has_radius == isinstance(norm, (ms.PreLN, ms.MixLN, ms.PeriLN))
    assert norm.autonomous == (not isinstance(norm, (ms.MixLN, ms.SqrtScaling)))
    assert norm.breakpoints == ((0.7,) if isinstance(norm, ms.MixLN) else ())
    assert isinstance(norm.law(0.3), Law)


@pytest.mark.parametrize("kind", variants.MASKS)
def test_who_sees_itself_is_read_off_the_mask(kind):
    rng = np.random.default_rng(5)
    for n in (1, 2, 7):
        mask = variants.mask(kind, rng, n)
        assert mask.sees_self(n) == bool(mask.matrix(n).diagonal().all())
    assert not ms.Mask([[1, 1], [1, 0]]).sees_self(2)
    assert not new_mask().sees_self(3)


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ({"norms": {"postln"}}, "unknown norm kinds postln; there are post_ln, "),
        ({"masks": {"causal", "triangle"}}, "unknown mask kinds triangle"),
        ({"weights": {"soft"}}, "unknown weights kinds soft"),
        ({"biases": {"slope"}}, "unknown bias kinds slope"),
        ({"parts": {"heads", "head"}}, "unknown parts head; there are heads, "),
    ],
)
def test_a_support_lists_what_is_declared(lists, message):
    """Misspelt, a kind would be refused by the engine that was meant to have it, as one that it does not know."""
    with pytest.raises(ModelError, match=message):
        Support("engine='mirror'", **{name: frozenset(names) for name, names in lists.items()})


def test_a_token_that_sees_nobody_is_a_part_of_its_own():
    """Who lists masks without the diagonal does not yet know what to do without any weight."""
    model = ms.Attention(dim=2, beta=1.0, mask=new_mask())
    item = Support(
        "somebody", norms=None, masks=None, weights=None, biases=None, parts=frozenset({"blind"}), use="look"
    )
    assert "has no mask under which a token sees nobody" in (why_not(model, item, N) or "")
    assert (
        why_not(model.replace(frozen=ms.Frozen([[1.0, 0.0]])), dataclasses.replace(item, parts={"blind", "frozen"}))
        is None
    )
    assert why_not(model.replace(frozen=ms.Frozen([[1.0, 0.0]], [0.0])), reference.SUPPORT) is None
    assert not new_mask().sees_somebody(3)
    assert ms.Mask([[0, 1], [1, 0]]).sees_somebody(2)
    # Nobody in sight, no force, and nothing that a shift of others would change.
    derivative = reference.jacobian(model, tokens())
    assert not derivative[0].any()
    step = 1e-6
    moved = tokens()
    moved[1] += step * np.array([-moved[1, 1], moved[1, 0]])
    change = (ms.velocity(model, moved / np.linalg.norm(moved, axis=1)[:, None]) - ms.velocity(model, tokens())) / step
    tangent = np.array([-tokens()[1, 1], tokens()[1, 0]])
    np.testing.assert_allclose(derivative[:, :, 1] @ tangent, change, atol=1e-5)


def test_fields_that_may_be_left_out_do_not_hide_a_kind():
    @dataclass(frozen=True)
    class Dotted(Masking):
        width: int = declare.parameter("width", suggestion=3, minimum=1, whole=True)
        loop: bool = True

        def intervals(self, tokens: int) -> np.ndarray:
            return _ranges((0, tokens), tokens=tokens)

    assert declare.made_of_numbers(Dotted)
    assert not declare.made_of_numbers(ms.Mask)


def test_a_kind_belongs_to_one_class():
    with pytest.raises(ModelError, match="taken by PostLN"):

        @dataclass(frozen=True)
        class Impostor(Norm):
            kind: ClassVar[str] = "post_ln"

            def law(self, t: float) -> Law:
                return Law()

    assert heir_of_post_ln().kind != "post_ln"
    assert heir_of_post_ln().kind == heir_of_post_ln().kind  # a class made twice replaces itself


def test_new_variants_round_trip():
    for name in NEW:
        model = make(name)
        # The class of `make` was replaced by none since, so that the registry still knows it.
        assert ms.Attention.from_json(model.to_json()) == model


def test_fields_are_checked_as_declared():
    declared = declare.parameters(ms.NGPT)["alpha"]
    assert (declared.minimum, declared.strict, declared.symbol) == (0.0, True, "α")
    with pytest.raises(ModelError, match=r"NGPT\.alpha must be greater than 0"):
        ms.NGPT(0.0)
    with pytest.raises(ModelError, match=r"Sink\.sinks must be at least 1"):
        ms.Sink(0, 3)
    for family in declare.REGISTRY:
        for cls in declare.kinds(family).values():
            for name, item in declare.parameters(cls).items():
                assert item.label, (cls, name)
                if item.suggestion is not None:
                    assert item.check(item.suggestion, name) == item.suggestion


def test_sentences_say_who_what_and_how_to_fix_it():
    def told(item, tokens=N, **fields):
        return why_not(ms.Attention(**{"dim": 2, "beta": 1.0, **fields}), item, tokens)

    cuda, cpu_list = cuda_support.DIRECT["float64"], cpu_support.DIRECT
    assert told(cuda, weights="hardmax") == (
        "engine='cuda' has no hardmax weights (only softmax, unnormalized); use engine='cpu' or 'reference'"
    )
    assert told(cpu_list, norm=ms.PreLN()) == (
        "engine='cpu' has no norm with a radius: PreLN() (only PostLN, NGPT, SqrtScaling); use engine='reference'"
    )
    assert told(cpu_list, mask=ms.Mask(np.eye(N))) == (
        "engine='cpu' has no mask Mask(matrix) (only Causal, Full, Window, Sink, Prefix); use engine='reference'"
    )
    assert told(rodas.SUPPORT, noise=0.5) == "method='rodas' has no noise (the model has noise=0.5); use method='sde'"
    assert told(cpu_support.CIRCLE_SERIES, dim=7) == (
        "interaction='series' exists in dimension 2 and 3, not for dim=7; use interaction='direct'"
    )
    assert told(cpu_support.CIRCLE_SERIES, bias=ms.ALiBi(0.1)) == (
        "interaction='series' has no positional bias; use interaction='direct'"
    )


def test_backends_are_named():
    assert select.choose(ms.Attention(dim=2, beta=1.0), 5, "reference") == select.Backend("reference")

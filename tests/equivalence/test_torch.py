"""engine="torch" against a loop over pairs of tokens, the reference engine, and the NumPy march. (More: METASTABLE_MODELS=200.)"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

import metastable as ms
from metastable.errors import MissingExtraError, NumericalRangeError, UnsupportedError
from metastable.integrate import march
from metastable.kernels import reference, select
from metastable.kernels import torch as engine
from metastable.model import Bias
from tests import variants
from tests.equivalence.test_heads import MODELS, TIME, packed_velocity, slow_packed
from tests.unit import test_extend
from tests.unit.test_model_arrays import stored_and_extended

TOLERANCE = {"float64": 1e-12, "float32": 3e-5}


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_torch_equals_the_loop_over_pairs(dtype):
    seen = 0
    for seed in range(MODELS):
        model, x, radius = variants.wide_model(seed)
        if engine.refusal(model, len(x), dtype) is not None:
            assert dtype == "float32"
            assert model.weights == "hardmax"
            continue
        seen += 1
        truth, size = slow_packed(model, x, radius)
        found = packed_velocity(engine, model, x, radius, dtype=dtype)
        assert (np.abs(found - truth) <= TOLERANCE[dtype] * size).all(), (seed, model)
    assert seen >= 0.75 * MODELS


def plain_model(rng, n: int, d: int, heads: int, low: bool, mask) -> tuple[ms.Attention, np.ndarray]:
    """Softmax attention with nothing added: what torch has a product of its own for."""
    rank = max(1, d // 2) if low else d

    def head() -> ms.Head:
        q, k, v = (rng.normal(size=(rank, d)) for _ in range(3))
        output = rng.normal(size=(d, rank)) if low else None
        return ms.Head(q, k, v, float(rng.choice([3.0, -1.0])), output=output)

    return ms.Attention(dim=d, heads=tuple(head() for _ in range(heads)), mask=mask), variants.tokens(rng, n, d)


@pytest.mark.parametrize("mask", [ms.Causal(), ms.Full()], ids=repr)
@pytest.mark.parametrize("low", [False, True])
def test_torchs_own_product_is_the_same(mask, low, monkeypatch):
    from metastable.kernels.torch.engine import Velocity

    for seed in range(6):
        rng = np.random.default_rng(seed)
        model, x = plain_model(rng, 3 + 7 * seed, 2 + seed, 1 + seed % 3, low, mask)
        truth = packed_velocity(reference, model, x, None)
        made = engine.right_hand_side(model, len(x))
        assert isinstance(made, Velocity)
        # A GPU has it in single precision only.
        assert any(made._is_fused(group) for group in made.groups) == (made.device.type == "cpu")
        size = np.abs(truth).max() + sum(head.value_size for head in model.all_heads)
        for fused in (True, False):
            monkeypatch.setattr(Velocity, "_is_fused", lambda self, group, fused=fused: fused)
            np.testing.assert_allclose(packed_velocity(engine, model, x, None), truth, rtol=0, atol=1e-13 * size)
        monkeypatch.undo()


def test_blocks_of_rows_change_nothing_and_bound_memory(monkeypatch):
    """However small the blocks and whatever the first row, the numbers are the same; no block holds more than it may."""
    from metastable.kernels.torch import engine as inside

    held = []
    logits = inside.Velocity._logits

    def watched(self, *rest):
        made, fixed = logits(self, *rest)
        held.append(made.shape[1])
        return made, fixed

    monkeypatch.setattr(inside.Velocity, "_logits", watched)
    kind = inside.choose_device("float64").type
    usual = inside.HELD[kind]
    monkeypatch.setitem(inside.FEWEST, kind, 2)
    monkeypatch.setattr(inside.Velocity, "_is_fused", lambda self, group: False)
    for seed in range(14):
        model, x, radius = variants.wide_model(seed)
        truth = packed_velocity(engine, model, x, radius)
        monkeypatch.setitem(inside.HELD, kind, 1)
        first = len(x) // 3
        held.clear()
        small = packed_velocity(engine, model, x, radius, first=first)
        assert max(held) <= 2
        np.testing.assert_allclose(small[first:], truth[first:], rtol=1e-12, atol=1e-12)
        assert not small[:first].any()
        monkeypatch.setitem(inside.HELD, kind, usual)


def test_evaluated_again_and_again_it_is_the_same():
    """On a GPU what is asked for often is recorded and launched as a whole; other states, depths and rows then give what they must."""
    import torch

    from metastable.kernels.torch import engine as inside

    for seed in range(12):
        model, x, radius = variants.wide_model(seed)
        first = min(seed % 3, len(x) - 1)
        rng = np.random.default_rng(seed)
        velocity = inside.Velocity(model, len(x), first, None, "float64")
        for number in range(inside.RECORD_AFTER + 3):
            packed = variants.tokens(rng, *x.shape)
            if radius is not None:
                packed = np.column_stack([packed, radius])
            depth = 0.3 * number
            y = torch.tensor(packed, device=velocity.home)
            found, truth = torch.full_like(y, 7.0), torch.full_like(y, 7.0)
            velocity.evaluate(depth, y, found)
            velocity.compute(depth, y, truth)
            np.testing.assert_allclose(found.cpu(), truth.cpu(), rtol=1e-13, atol=1e-13)
            assert (found[:first] == 7.0).all()


@pytest.mark.parametrize("norm", variants.NORMS, ids=repr)
def test_marches_equal_the_numpy_march(norm):
    """States on the device: the same steps as the readable march, the same dense output."""
    rng = np.random.default_rng(4)
    head = variants.wide_head(rng, 6, 2.0)
    model = ms.Attention(dim=6, heads=(head, ms.Head(beta=2.0)), norm=norm)
    x = variants.tokens(rng, 9, 6)
    options = {"until": 2.0, "method": "tsit5", "rtol": 1e-8, "atol": 1e-10, "progress": False}
    ours, plain = (ms.simulate(model, x, engine=name, **options) for name in ("torch", "reference"))
    assert (ours.engine, ours.status) == ("torch", "success")
    assert ours.stats == plain.stats
    np.testing.assert_allclose(ours.final, plain.final, atol=1e-11)
    np.testing.assert_allclose(ours.at(1.234), plain.at(1.234), atol=1e-10)
    chosen = ms.simulate(model, x, times=[0.5, 2.0], engine="torch", **{**options, "until": None})
    np.testing.assert_allclose(chosen.states[-1], plain.final, atol=1e-11)
    if plain.radius is not None:
        np.testing.assert_allclose(ours.radius, plain.radius, atol=1e-10)
    single = ms.simulate(model, x, engine="torch", dtype="float32", **{**options, "rtol": 1e-5})
    np.testing.assert_allclose(single.final, plain.final, atol=1e-3)


@pytest.mark.parametrize("every", [True, False], ids=["every step", "times"])
@pytest.mark.parametrize("norm", test_extend.NORMS, ids=repr)
def test_runs_are_extended(norm, every):
    """States live on the device; where they are taken up comes back from it."""
    model = ms.Attention(dim=3, beta=6.0, norm=norm)
    half, end = test_extend.HALF, test_extend.END
    options = {"method": "tsit5", "engine": "torch", "n": 8, **test_extend.kept(every)}
    further, whole = test_extend.pair(model, half, end, **options)
    assert (further.engine, whole.engine, further.end) == ("torch", "torch", end)
    test_extend.agree(further, whole, test_extend.ROUNDING)


@pytest.mark.parametrize("every", [True, False], ids=["every step", "times"])
def test_stored_runs_are_extended(tmp_path, every):
    kept = stored_and_extended(tmp_path, "torch", every)
    assert (kept.engine, kept.end) == ("torch", 0.25)


def test_ends_early_as_the_readable_march_does():
    """A radius that vanishes, and steps that run out."""
    model = ms.Attention(dim=2, beta=1.0, value=-np.eye(2), norm=ms.PreLN())
    x = np.array([[1.0, 0.0]])
    with pytest.warns(ms.errors.StoppedEarlyWarning):
        ours = ms.simulate(model, x, until=2.0, engine="torch", progress=False)
    with pytest.warns(ms.errors.StoppedEarlyWarning):
        plain = ms.simulate(model, x, until=2.0, engine="reference", progress=False)
    assert ours.status == plain.status == "diverged"
    assert ours.end == pytest.approx(plain.end, rel=1e-6)


def test_the_rest_of_the_house_takes_it():
    """Noise, members, more tokens, derivatives of depth."""
    rng = np.random.default_rng(6)
    model = ms.Attention(dim=3, heads=(ms.Head(rotary=ms.Rotary(dims=2), beta=3.0),))
    x = variants.tokens(rng, 5, 3)
    run = ms.simulate(model, x, until=1.0, engine="torch", rtol=1e-9, progress=False)
    longer = run.append(variants.tokens(rng, 2, 3), progress=False)
    together = ms.simulate(model, longer.start, until=1.0, engine="torch", rtol=1e-9, progress=False)
    np.testing.assert_allclose(longer.final, together.final, atol=1e-7)
    options = {"tokens": 4, "members": 3, "times": [1.0], "seed": 0, "progress": False}
    ours, plain = (ms.ensemble(model, engine=name, **options) for name in ("torch", "reference"))
    np.testing.assert_allclose(ours["x"].values, plain["x"].values, atol=1e-11)
    noisy = model.replace(noise=0.3)
    ours, plain = (
        ms.simulate(noisy, x, until=0.1, seed=1, engine=name, progress=False).final for name in ("torch", "reference")
    )
    np.testing.assert_allclose(ours, plain, atol=1e-12)


def test_threads_are_given_back():
    import torch

    before = torch.get_num_threads()
    model, x, _ = variants.wide_model(3)
    ms.velocity(model, x, engine="torch", threads=1)
    assert torch.get_num_threads() == before


# --------------------------------------------------------------------------------------------------------- refusals


def test_without_torch_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    x = np.eye(3)
    with pytest.raises(MissingExtraError, match=r'pip install "metastable\[torch\]"'):
        ms.velocity(ms.Attention(dim=3, beta=1.0), x, engine="torch")
    with pytest.raises(MissingExtraError, match="torch"):
        ms.simulate(ms.Attention(dim=3, beta=1.0), x, until=1.0, engine="torch", progress=False)
    assert not engine.installed()


def test_what_it_cannot_do_is_said():
    model, x = ms.Attention(dim=3, beta=1.0), np.eye(3)
    with pytest.raises(UnsupportedError, match="no series"):
        ms.velocity(model, x, engine="torch", interaction="series")
    with pytest.raises(UnsupportedError, match="engine='cpu'"):
        ms.simulate(model, x, until=1.0, method="rodas", engine="torch", progress=False)
    with pytest.raises(UnsupportedError, match="single precision has no hardmax"):
        ms.simulate(model.replace(weights="hardmax"), x, until=1.0, engine="torch", dtype="float32", progress=False)
    with pytest.raises(NumericalRangeError, match="leaves double precision"):
        ms.velocity(model.replace(beta=1e3, weights="unnormalized"), x, engine="torch")
    hot = engine.right_hand_side(model.replace(beta=1e2, weights="unnormalized"), 3, dtype="float32")
    with pytest.raises(NumericalRangeError, match="leaves single precision"):
        hot(TIME, x, np.zeros_like(x))

    @dataclass(frozen=True)
    class Odd(Bias):
        kind: ClassVar[str] = "odd"

        def logits(self, head, heads, rows, columns):
            return np.zeros((len(rows), len(columns)))

    with pytest.raises(UnsupportedError, match=r"no bias .*Odd"):
        ms.velocity(model.replace(bias=Odd()), x, engine="torch")


X = variants.tokens(np.random.default_rng(0), 6, 4)
BEYOND = {
    "small masses": {"beta": 1.0, "masses": [1e-60] * 6},
    "one small mass": {"beta": 1.0, "masses": [1e-60, 1.0, 1.0, 1.0, 1.0, 1.0]},
    "large masses": {"beta": 1.0, "masses": [1e300] * 6},
    "frozen tokens that outweigh all": {"beta": 1.0, "frozen": ms.Frozen(X[:2], [1e60, 0.0])},
    "a large value": {"beta": 1.0, "value": 1e39 * np.eye(4)},
    "a small value": {"beta": 1.0, "value": 1e-50 * np.eye(4)},
    "a large beta": {"beta": -1e39},
    "a large bias of the logits": {"beta": 1.0, "bias": ms.LogitBias(np.full((6, 6), 1e60))},
    "a large bias of the keys": {"heads": (ms.Head(key_bias=np.full(4, 1e60)),)},
    "a small output": {"heads": (ms.Head(output=1e-40 * np.eye(4)),)},
    "a small layer": {
        "beta": 0.0,
        "value": np.zeros((4, 4)),
        "feedforward": ms.FeedForward(np.eye(4), np.zeros(4), 1e-50 * np.eye(4), np.zeros(4), "tanh"),
    },
}


@pytest.mark.parametrize("name", BEYOND)
def test_what_single_precision_cannot_hold_is_refused(name):
    """Masses of 1e-60 were zero and the run a success."""
    model = ms.Attention(dim=4, **BEYOND[name])
    with pytest.raises(UnsupportedError, match=r"holds numbers from 1e-15 to 1e\+15.*use dtype='float64'"):
        ms.simulate(model, X, until=1.0, engine="torch", dtype="float32", progress=False)
    assert engine.refusal(model, 6) is None
    assert engine.refusal(ms.Attention(dim=4, beta=0.0, masses=[1e-3, 1, 1, 1, 1, 1e3]), 6, "float32") is None


def test_single_precision_is_refused_before_work_starts(monkeypatch):
    """Also where only a later model of a schedule needs more."""
    plain = ms.Attention(dim=4, beta=1.0)
    pieces = ms.Schedule([(0.0, plain), (0.5, plain.replace(weights="hardmax", mask=ms.Causal(include_self=False)))])

    def never(*_, **__):
        raise AssertionError("work had begun")

    monkeypatch.setattr(march, "integrate", never)
    with pytest.raises(UnsupportedError, match="single precision has no hardmax"):
        ms.simulate(pieces, X, until=1.0, engine="torch", dtype="float32", progress=False)


# -------------------------------------------------------------------------------------------------------------- auto


def low_rank(d: int, heads: int) -> ms.Attention:
    rng = np.random.default_rng(0)
    q, v = rng.normal(size=(2, d)), rng.normal(size=(d, 2))
    return ms.Attention(dim=d, heads=tuple(ms.Head(q, q, q, 1.0, output=v) for _ in range(heads)))


def test_auto_follows_the_table(monkeypatch):
    """Compiled loops below `PRODUCTS_FROM`; beyond, and for what they refuse, products: torch's where its row says so, if installed."""

    def chosen(model, tokens, **options):
        return select.choose(model, tokens, **options).engine

    monkeypatch.setattr(select.engine_module("cuda"), "wins", lambda *_: False)  # as on a machine without a GPU
    row, others = select.TORCH_WINS["several heads of low rank"], select.TORCH_WINS["others"]
    assert chosen(ms.Attention(dim=select.PRODUCTS_FROM - 1, beta=1.0), 5000) == "cpu"
    assert chosen(ms.Attention(dim=select.PRODUCTS_FROM, beta=1.0), others.tokens - 1) == "reference"
    assert chosen(ms.Attention(dim=select.PRODUCTS_FROM, beta=1.0), others.tokens) == "torch"
    assert chosen(ms.Attention(dim=select.PRODUCTS_FROM, beta=1.0), others.tokens, members=9) == "cpu"
    assert chosen(low_rank(row.dim, 2), row.tokens) == "torch"
    assert chosen(low_rank(row.dim, 2), row.tokens - 1) == "reference"
    assert chosen(low_rank(row.dim, 1), row.tokens) == "reference"
    assert chosen(low_rank(others.dim, 1), others.tokens) == "torch"
    assert chosen(low_rank(others.dim - 1, 1), others.tokens) == "reference"
    assert chosen(low_rank(row.dim - 1, 2), row.tokens) == "reference"
    monkeypatch.setattr(engine, "installed", lambda: False)
    assert chosen(low_rank(row.dim, 2), row.tokens) == "reference"
    assert chosen(ms.Attention(dim=select.PRODUCTS_FROM, beta=1.0), others.tokens) == "reference"

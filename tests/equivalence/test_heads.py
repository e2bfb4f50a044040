"""Heads of real transformers: low rank, outputs, biases, rotary positions, logit biases, masks by rule.

Against a loop over pairs of tokens, against `transformers`' own attention modules, and against the same head written out as
dim x dim matrices. More random models: METASTABLE_MODELS=200.
"""

from __future__ import annotations

import os
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

import metastable as ms
from metastable.errors import ModelError, UnsupportedError
from metastable.integrate import methods
from metastable.kernels import reference, select
from metastable.model import why_not
from tests import variants
from tests.unit.test_declarations import N, ask_everybody

MODELS = int(os.environ.get("METASTABLE_MODELS", "40"))
TIME = 0.7


def packed_velocity(module, model: ms.Attention, x: np.ndarray, radius: np.ndarray | None, **options) -> np.ndarray:
    """The packed right-hand side of an engine at `TIME`."""
    y = x if radius is None else np.concatenate([x, radius[:, None]], axis=1)
    out = np.zeros_like(y)
    module.right_hand_side(model, len(x), **options)(TIME, y, out)
    return out


def slow_packed(model: ms.Attention, x: np.ndarray, radius: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """The same by the loop over pairs, and the size that its rounding is measured by, one number for each token."""
    v, radial = variants.slow_velocity(model, x, TIME, radius)
    size = np.array([np.linalg.norm(variants.slow_attention(model, x, k)) for k in range(len(x))])
    # Heads may cancel: what rounds is each of them.
    parts = sum(head.value_size * np.exp(_top(model, head)) for head in model.all_heads)
    size = np.maximum(size, 1e-3 * parts) / (1.0 if radius is None else np.minimum(radius, 1.0))
    if isinstance(model.norm, ms.NGPT | ms.PeriLN):
        size = np.maximum(1.0, parts / np.maximum(size, 1e-30))
    return (v if radius is None else np.concatenate([v, radial[:, None]], axis=1)), size[:, None]


def _top(model: ms.Attention, head: ms.Head) -> float:
    return 2.0 if model.weights == "unnormalized" else 0.0


# ------------------------------------------------------------------------------------------------ the loop over pairs


def test_reference_equals_the_loop_over_pairs():
    kinds = set()
    for seed in range(MODELS):
        model, x, radius = variants.wide_model(seed)
        truth, size = slow_packed(model, x, radius)
        found = packed_velocity(reference, model, x, radius)
        assert (np.abs(found - truth) <= 1e-12 * size).all(), (seed, model)
        kinds |= {name for name in ("has_factors", "has_biases") if any(getattr(h, name) for h in model.all_heads)}
        kinds |= {"interleaved" if h.rotary.interleaved else "halves" for h in model.all_heads if h.rotary is not None}
        kinds |= {type(model.bias).__name__, "rule" if getattr(model.mask, "is_rule", False) else "no rule"}
    assert kinds >= {"has_factors", "has_biases", "interleaved", "halves", "LogitBias", "ALiBi", "rule"}


def test_sizes_of_real_heads_and_rescaled_frequencies():
    """d to 70, heads of one shape and of several, keys and values shared, frequencies of one's own."""
    for seed in range(max(6, MODELS // 8)):
        rng = np.random.default_rng([seed, 70])
        n, d, count = int(rng.integers(1, 17)), int(rng.integers(10, 71)), int(rng.integers(2, 5))
        heads: list[ms.Head] = []
        for number in range(count):
            rank, size = (8, 5) if seed % 2 else (int(r) for r in rng.integers(2, d + 4, 2))
            turned = ms.Rotary(interleaved=bool(number % 2), frequencies=tuple(rng.normal(size=max(1, rank // 3))))
            made = ms.Head(
                *(rng.normal(size=shape) / d**0.5 for shape in ((rank, d), (rank, d), (size, d))),
                float(rng.choice([1.0, 9.0])),
                output=rng.normal(size=(d, size)),
                rotary=turned if seed % 3 else None,
                key_bias=rng.normal(size=rank) if seed % 4 == 1 else None,
            )
            if number % 2 and seed % 2:  # grouped queries
                made = replace(heads[-1], query=made.query)
            heads.append(made)
        bias = ms.LogitBias(rng.normal(size=(count, n, n))) if seed % 3 == 2 else None
        model = ms.Attention(dim=d, heads=tuple(heads), mask=variants.mask(variants.MASKS[seed % 6], rng, n), bias=bias)
        x = variants.tokens(rng, n, d)
        truth, size = slow_packed(model, x, None)
        for engine in ("reference", "torch"):
            found = packed_velocity(select.engine_module(engine), model, x, None)
            assert (np.abs(found - truth) <= 1e-12 * size).all(), (seed, engine)


def test_blocks_of_rows_change_nothing(monkeypatch):
    """Any size of block, any first row."""
    for seed in range(12):
        model, x, radius = variants.wide_model(seed)
        whole = packed_velocity(reference, model, x, radius)
        small = reference.blocks(model.mask, len(x), 0, 1, 1 + seed % 3)
        assert [rows.start for rows in small] == list(range(0, len(x), 1 + seed % 3))
        monkeypatch.setattr(reference.blocks, "__defaults__", (0, 1, 1 + seed % 3))
        first = len(x) // 3
        np.testing.assert_allclose(packed_velocity(reference, model, x, radius), whole, atol=1e-12, rtol=1e-12)
        part = packed_velocity(reference, model, x, radius, first=first)
        np.testing.assert_allclose(part[first:], whole[first:], atol=1e-12, rtol=1e-12)
        assert not part[:first].any()
        monkeypatch.undo()


def test_memory_does_not_grow_with_the_square_of_the_tokens():
    n, d = 4096, 6
    rng = np.random.default_rng(0)
    head = ms.Head(rng.normal(size=(2, d)), rng.normal(size=(2, d)), None, 1.0, rotary=ms.Rotary())
    model, x = ms.Attention(dim=d, heads=(head,)), variants.tokens(rng, n, d)
    tracemalloc.start()
    reference.attention_sum(model, x)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    block = max(reference.FEWEST, reference.BLOCK // n)
    assert peak < 8 * 8 * n * (d + block) < 8 * n * n / 2


def test_low_rank_heads_are_their_products():
    """<Q x, K y> = x^T (Q^T K) y and O V, written out."""
    rng = np.random.default_rng(3)
    d, x = 6, variants.tokens(rng, 9, 6)
    q, k, v, o = (rng.normal(size=shape) for shape in ((2, d), (2, d), (3, d), (d, 3)))
    low = ms.Attention(dim=d, heads=(ms.Head(q, k, v, 2.0, output=o),))
    full = ms.Attention(dim=d, beta=2.0, query=q.T @ k, value=(o @ v)).replace(query=None, key=q.T @ k)
    np.testing.assert_allclose(ms.velocity(low, x), ms.velocity(full, x, engine="reference"), atol=1e-13)
    assert low.all_heads[0].value_size == pytest.approx(np.linalg.norm(o @ v, 2), rel=1e-12)
    np.testing.assert_allclose(low.all_heads[0].value_matrix(d), o @ v)
    with pytest.raises(UnsupportedError, match="stay factors"):
        _ = low.all_heads[0].bilinear


def test_rotary_positions_are_relative():
    """The logit depends on k - j alone: tokens behind a repeated beginning feel the same when nobody sees the beginning."""
    rng = np.random.default_rng(4)
    d, shift = 6, 5
    x = variants.tokens(rng, 7, d)
    later = np.concatenate([variants.tokens(rng, shift, d), x])
    head = ms.Head(rng.normal(size=(4, d)), rng.normal(size=(4, d)), None, 3.0, rotary=ms.Rotary(base=50.0))
    plain = ms.Attention(dim=d, heads=(head,))
    apart = plain.replace(mask=ms.Mask(lambda k, j: j <= k and (k < shift or j >= shift)))
    np.testing.assert_allclose(ms.velocity(apart, later)[shift:], ms.velocity(plain, x), atol=1e-13)
    turned = ms.velocity(plain.replace(heads=(ms.Head(head.query, head.key, None, 3.0),)), x)
    assert np.abs(turned - ms.velocity(plain, x)).max() > 1e-2


# --------------------------------------------------------------------------------------- transformers' own attention


def _llama(rng, torch):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaAttention

    heads, groups, rank = [(4, 2, 6), (6, 2, 4), (3, 3, 8), (4, 1, 2)][int(rng.integers(4))]
    d = heads * int(rng.integers(1, 5))
    config = LlamaConfig(
        hidden_size=d,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        head_dim=rank,
        attention_bias=bool(rng.integers(2)),
        rope_theta=float(rng.choice([100.0, 10000.0])),
    )
    config._attn_implementation = "sdpa"  # the eager one makes its softmax in single precision
    module = LlamaAttention(config, 0)
    weights = {name: item.detach().double().numpy() for name, item in _randomise(module, rng, torch).items()}
    base = config.rope_parameters["rope_theta"]

    def part(name, number, what):
        array = weights.get(f"{name}_proj.{what}")
        return None if array is None else array[number * rank : (number + 1) * rank]

    built = [
        ms.Head(
            part("q", h, "weight"),
            part("k", h // (heads // groups), "weight"),
            part("v", h // (heads // groups), "weight"),
            rank**-0.5,
            output=weights["o_proj.weight"][:, h * rank : (h + 1) * rank],
            rotary=ms.Rotary(base),
            query_bias=part("q", h, "bias"),
            key_bias=part("k", h // (heads // groups), "bias"),
            value_bias=part("v", h // (heads // groups), "bias"),
        )
        for h in range(heads)
    ]
    return module, built, d, (rank, base), weights.get("o_proj.bias", 0.0)


def _neox(rng, torch):
    from transformers import GPTNeoXConfig
    from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXAttention

    heads, rank, share = [(4, 8, 0.25), (2, 6, 1.0), (3, 8, 0.5)][int(rng.integers(3))]
    d = heads * rank
    config = GPTNeoXConfig(hidden_size=d, num_attention_heads=heads, attention_bias=bool(rng.integers(2)))
    config.rope_parameters = {"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": share}
    config._attn_implementation = "sdpa"  # the eager one makes its softmax in single precision
    module = GPTNeoXAttention(config, 0)
    weights = {name: item.detach().double().numpy() for name, item in _randomise(module, rng, torch).items()}
    dims = int(rank * share)
    stacked = weights["query_key_value.weight"].reshape(heads, 3, rank, d)
    biases = weights.get("query_key_value.bias", np.zeros(3 * d)).reshape(heads, 3, rank)
    built = [
        ms.Head(
            *stacked[h],
            rank**-0.5,
            output=weights["dense.weight"][:, h * rank : (h + 1) * rank],
            rotary=ms.Rotary(1000.0, dims=dims),
            query_bias=biases[h, 0],
            key_bias=biases[h, 1],
            value_bias=biases[h, 2],
        )
        for h in range(heads)
    ]
    return module, built, d, (dims, 1000.0), weights.get("dense.bias", 0.0)


def _randomise(module, rng, torch) -> dict:
    """Random double weights for a module, by name."""
    module.double().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.tensor(rng.normal(size=tuple(parameter.shape)) / parameter.shape[-1] ** 0.5))
    return dict(module.named_parameters())


@pytest.mark.parametrize("family", [_llama, _neox])
def test_heads_are_those_of_transformers(family):
    """Grouped queries, partial rotations, biases: to 1e-12 in double precision, on random small configurations."""
    import torch

    for seed in range(max(6, MODELS // 5)):
        rng = np.random.default_rng([seed, 5])
        module, heads, d, (dims, base), rest = family(rng, torch)
        n = int(rng.integers(2, 12))
        x = variants.tokens(rng, n, d)
        # The tables of their rotary module are single precision; the rotation itself is what is compared.
        angles = np.outer(np.arange(n), base ** (-np.arange(0, dims, 2) / dims))
        tables = tuple(torch.tensor(f(np.concatenate([angles, angles], axis=1)))[None] for f in (np.cos, np.sin))
        hidden = torch.tensor(np.triu(np.full((n, n), -np.inf), 1))[None, None]
        with torch.no_grad():
            theirs = module(torch.tensor(x)[None], attention_mask=hidden, position_embeddings=tables)[0][0].numpy()
        ours = reference.attention_sum(ms.Attention(dim=d, heads=tuple(heads)), x) + rest
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12 * np.abs(theirs).max())


# ----------------------------------------------------------------------------------------------- whole runs, stores

D = 4
RNG = np.random.default_rng(8)
LOW = ms.Head(
    RNG.normal(size=(2, D)), RNG.normal(size=(2, D)), RNG.normal(size=(3, D)), 2.0, output=RNG.normal(size=(D, 3))
)
NEW = {
    "low rank": {"heads": (LOW,)},
    "output": {"heads": (ms.Head(output=RNG.normal(size=(D, D))),)},
    "rotary": {"heads": (ms.Head(rotary=ms.Rotary()),)},
    "query bias": {"heads": (ms.Head(query_bias=np.ones(D)),)},
    "key bias": {"heads": (ms.Head(key_bias=np.ones(D)),)},
    "value bias": {"heads": (ms.Head(value_bias=np.ones(D)),)},
    "logit bias": {"beta": 2.0, "bias": ms.LogitBias(RNG.normal(size=(N, N)))},
}


@pytest.mark.parametrize("name", NEW)
def test_who_does_not_list_them_refuses_them(name):
    """Every engine, method, series, ensemble, energy and derivative is asked; a sentence comes back, never a number."""
    model = ms.Attention(dim=D, **NEW[name])
    calls = ask_everybody(model)
    if name != "logit bias":  # which the derivative reads as it reads every bias
        calls["jacobian"] = lambda: reference.jacobian(model, variants.tokens(np.random.default_rng(0), N, D))
    for who, call in calls.items():
        with pytest.raises(UnsupportedError) as caught:
            call()
        assert len(str(caught.value)) > 20, who
    for method in ("tsit5", "layers", "sde"):
        assert methods.METHODS[method].refusal(model, N) is None
    assert why_not(model, reference.SUPPORT, N) is None
    prediction = ms.predict(model)
    assert (prediction.row, prediction.basis) == (None, "none")


@pytest.mark.parametrize("name", NEW)
def test_runs_are_kept_and_opened(name, tmp_path):
    model = ms.Attention(dim=D, **NEW[name])
    x = variants.tokens(np.random.default_rng(1), N, D)
    run = ms.simulate(model, x, until=1.0, engine="reference", progress=False)
    assert run.status == "success"
    assert run.engine == "reference"
    run.save(tmp_path / "run.zarr")
    assert ms.load(tmp_path / "run.zarr").model == model
    half = ms.simulate(model, x, until=1.0, engine="reference", rtol=1e-9, atol=1e-11, progress=False)
    np.testing.assert_allclose(run.final, half.final, atol=1e-5)
    assert ms.simulate(model, x, method="layers", step=0.5, until=1.0, progress=False).status == "success"
    assert np.isfinite(run.observe(ms.observe.attention_entropy()).values).all()


def test_a_mask_by_rule_is_stored_as_its_matrix(tmp_path):
    model = ms.Attention(dim=3, beta=4.0, mask=ms.Mask(lambda k, j: k - 2 <= j <= k))
    x = variants.tokens(np.random.default_rng(2), 6, 3)
    run = ms.simulate(model, x, until=1.0, engine="reference", progress=False)
    same = ms.simulate(model.replace(mask=ms.Window(3)), x, until=1.0, engine="reference", progress=False)
    np.testing.assert_allclose(run.final, same.final, atol=1e-12)
    run.save(tmp_path / "run.zarr")
    stored = ms.load(tmp_path / "run.zarr").model
    assert stored.mask == ms.Mask(ms.Window(3).matrix(6))
    stats = ms.ensemble(model, tokens=6, members=2, times=[1.0], seed=0, engine="reference", progress=False)
    assert ms.Attention.from_json(stats.attrs["model"]) == stored
    with pytest.raises(ModelError, match="for_tokens"):
        model.to_json()
    assert model.mask.is_causal(9)
    assert model.for_tokens(4).mask.fixed_length == 4
    assert model.mask == ms.Mask(model.mask.allowed) != stored.mask


def test_round_trips_are_exact():
    for seed in range(MODELS):
        model = variants.wide_model(seed)[0]
        if isinstance(model.mask, ms.Mask):
            model = model.replace(mask=ms.Causal())
        assert ms.Attention.from_dict(model.to_dict()) == model
        assert ms.Attention.from_json(model.to_json()) == model
        assert ms.Attention.from_toml(model.to_toml()) == model
    # What was written before there were low ranks is what it was.
    old = {"dim": 2, "heads": [{"beta": 1.0, "value": [[0.0, 1.0], [1.0, 0.0]]}, {"beta": 2.0}]}
    model = ms.Attention.from_dict(old)
    assert model == ms.Attention(dim=2, heads=(ms.Head(value=[[0, 1], [1, 0]]), ms.Head(beta=2.0)))
    assert model.to_dict() == old


def test_one_thing_has_one_form():
    eye = np.eye(D)
    head = ms.Head(eye, eye, eye, 1.0, output=eye, query_bias=np.zeros(D), value_bias=np.zeros(D))
    assert ms.Attention(dim=D, heads=(head,)) == ms.Attention(dim=D, heads=(ms.Head(),))
    assert ms.Attention(dim=D, heads=(head,)).is_identity
    assert not ms.Attention(dim=D, heads=(ms.Head(rotary=ms.Rotary()),)).is_identity


WRONG = {
    "ranks that differ": (lambda: ms.Head(np.ones((2, D)), np.ones((3, D))), "rows must be as many"),
    "a query alone": (lambda: ms.Head(np.ones((2, D))), "key makes 4 numbers"),
    "a low value alone": (lambda: ms.Head(value=np.ones((2, D))), "or come with output, 4 x 2"),
    "an output that does not fit": (lambda: ms.Head(value=np.ones((2, D)), output=np.ones((D, 3))), "transpose"),
    "two dimensions": (lambda: ms.Head(np.ones((2, D)), np.ones((2, 5))), "of one dimension"),
    "another dimension": (lambda: ms.Attention(dim=3, heads=(LOW,)), r"heads\[0\].query must have 3 columns"),
    "a bias of another length": (
        lambda: ms.Attention(dim=D, heads=(ms.Head(query_bias=np.ones(3)),)),
        "4 numbers, not 3",
    ),
    "an odd rank": (lambda: ms.Attention(dim=3, heads=(ms.Head(rotary=ms.Rotary()),)), "even"),
    "odd dims": (lambda: ms.Rotary(dims=3), "even"),
    "too many dims": (lambda: ms.Attention(dim=D, heads=(ms.Head(rotary=ms.Rotary(dims=6)),)), "more than the 4"),
    "no base": (lambda: ms.Rotary(base=0.0), "greater than 0"),
    "rank zero": (lambda: ms.Head(np.ones((0, D)), np.ones((0, D))), "rank 1 or more"),
    "values of rank zero": (lambda: ms.Head(value=np.ones((0, D)), output=np.ones((D, 0))), "rank 1 or more"),
    "angles beyond double precision": (
        lambda: ms.velocity(
            ms.Attention(dim=2, heads=(ms.Head(rotary=ms.Rotary(frequencies=(1e308,))),)), np.eye(2)[[0, 1, 0]]
        ),
        r"heads\[0\].rotary turns the last of 3 tokens by inf",
    ),
    "angles that rounding makes": (
        lambda: ms.velocity(ms.Attention(dim=D, heads=(ms.Head(rotary=ms.Rotary(base=1e-300)),)), np.eye(D)),
        "angles up to 1e",
    ),
    "a bias that no logit can hold": (lambda: ms.LogitBias(np.full((2, 2), 1.7e308)), "the mask says"),
    "a slope that no logit can hold": (lambda: ms.ALiBi((0.1, 1.7e308)), "at most 1e"),
    "a rule that fails": (
        lambda: ms.velocity(ms.Attention(dim=2, beta=1.0, mask=ms.Mask(lambda k, j: 1 / (k - 1) > 0)), np.eye(2)),
        r"failed for the positions \(1, 0\): ZeroDivisionError",
    ),
    "no rotary": (lambda: ms.Head(rotary=10000.0), "Rotary"),
    "an oblong bias": (lambda: ms.LogitBias(np.ones((2, 3))), "n x n"),
    "an infinite bias": (lambda: ms.LogitBias([[0.0, -np.inf], [0.0, 0.0]]), "infinity"),
    "a bias for other heads": (
        lambda: ms.Attention(dim=2, beta=1.0, bias=ms.LogitBias(np.ones((2, 3, 3)))),
        "2 matrices for 1",
    ),
    "a bias of another length of sequence": (
        lambda: ms.velocity(ms.Attention(dim=2, beta=1.0, bias=ms.LogitBias(np.ones((3, 3)))), np.eye(2)),
        "3 x 3, but there are 2 tokens",
    ),
    "a rule that leaves one alone": (
        lambda: ms.velocity(ms.Attention(dim=2, beta=1.0, mask=ms.Mask(lambda k, j: j < k)), np.eye(2)),
        "sees nobody",
    ),
    "a rule that answers something else": (
        lambda: ms.velocity(ms.Attention(dim=2, beta=1.0, mask=ms.Mask(lambda k, j: "yes")), np.eye(2)),
        r"positions \(0, 0\) must be True or False",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_said(name):
    make, words = WRONG[name]
    with pytest.raises(ModelError, match=words):
        make()

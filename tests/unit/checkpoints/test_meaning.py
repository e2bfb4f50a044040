"""Eigenvectors of value matrices in words: against dense eigenvectors, on heads whose meaning is known, and against their nulls."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.stats

from metastable import checkpoints
from metastable.checkpoints.meanings import found as found_module
from metastable.checkpoints.meanings import modes, nulls, vocabulary
from metastable.errors import InvalidInputError, UnsupportedError
from tests.unit.checkpoints.flow_models import ENCODER, VOCABULARY, build


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"[UNK]": 0, "[PAD]": 1} | {f"w{i}": i for i in range(2, VOCABULARY)}
    made = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]", pad_token="[PAD]")


@pytest.mark.parametrize("seed", range(4))
def test_modes_are_left_and_right_eigenvectors(seed: int) -> None:
    """Against the dense dim x dim problem; the modes together make V."""
    generator = np.random.default_rng(seed)
    output, value = generator.standard_normal((20, 5)), generator.standard_normal((5, 20))
    dense = output @ value
    found = modes.modes_of(output, value, range(5))
    eigenvalues, left, right = scipy.linalg.eig(dense, left=True, right=True)
    for number, eigenvalue in enumerate(found.eigenvalue):
        place = int(np.argmin(np.abs(eigenvalues - eigenvalue)))
        assert abs(eigenvalues[place] - eigenvalue) < 1e-10
        for ours, theirs in ((found.write[number], right[:, place]), (found.read[number], left[:, place].conj())):
            cosine = abs(np.vdot(ours, theirs)) / (np.linalg.norm(ours) * np.linalg.norm(theirs))
            assert cosine == pytest.approx(1.0, abs=1e-9)
        assert found.read[number] @ found.write[number] == pytest.approx(eigenvalue, abs=1e-9)
    assert (np.diff(found.eigenvalue.real) <= 1e-12).all()
    assert (found.eigenvalue.imag >= 0).all()
    everything = sum(
        np.outer(w, r) if value.imag == 0 else 2 * np.outer(w, r).real
        for w, r, value in zip(found.write, found.read, found.eigenvalue)
    )
    np.testing.assert_allclose(everything, dense, atol=1e-9)
    assert found.sign_score == pytest.approx(found.spectrum.real.sum() / np.abs(found.spectrum).sum())


def whole_haar_head(strengths: np.ndarray, dim: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Factors of a random value matrix with these singular values between two Haar frames of R^dim: the slow way."""
    frames = []
    for _ in range(2):
        q, r = np.linalg.qr(generator.standard_normal((dim, len(strengths))))
        frames.append(q * np.sign(np.diag(r)))
    return frames[0] * strengths, frames[1].T


def some_words(generator: np.random.Generator, dim: int, count: int = 60) -> vocabulary.Vocabulary:
    """Words whose inputs and outputs are related and not isotropic, centred."""
    inputs = generator.standard_normal((count, dim)) * np.linspace(0.3, 2.0, dim)
    outputs = inputs + 0.8 * generator.standard_normal((count, dim))
    inputs, outputs = ((rows - rows.mean(axis=0)).astype(np.float32) for rows in (inputs, outputs))
    return vocabulary.Vocabulary(np.arange(count), inputs, outputs, "output embedding")


def slow_likeness(words: vocabulary.Vocabulary, output: np.ndarray, value: np.ndarray) -> tuple[float, complex]:
    """Likeness and eigenvalue of the leading mode, from the dense eigenvectors and word by word."""
    values, left, right = scipy.linalg.eig(output @ value, left=True, right=True)
    # The kernel is no mode, and of a pair the upper one counts.
    there = (np.abs(values) > 1e-9 * np.abs(values).max()) & (values.imag >= 0)
    place = np.flatnonzero(there)[np.argmax(values.real[there])]
    u, v = left[:, place].conj(), right[:, place]
    v = v * values[place] / (u @ v)
    r, s = words.inputs @ u, words.outputs @ v
    return float((r * s).sum().real / np.sqrt((abs(r) ** 2).sum() * (abs(s) ** 2).sum())), values[place]


def test_haar_draws_have_the_law_of_whole_heads() -> None:
    """Draws from k x k cores against frames of R^dim and dense eigenvectors: Kolmogorov-Smirnov over 400 heads each."""
    generator = np.random.default_rng(1)
    dim, strengths = 14, np.array([3.0, 2.0, 1.5, 0.7, 0.2])
    words = some_words(generator, dim)
    alike, value, _ = nulls.haar_likeness(strengths, [0, 1], nulls.Moments.of(words), 1600, generator)
    fast = alike[::4, 0], value[::4, 0]  # one of each core: independent
    slow = [slow_likeness(words, *whole_haar_head(strengths, dim, generator)) for _ in range(400)]
    likenesses, values = np.array([one for one, _ in slow]), np.array([one for _, one in slow])
    for kind in (True, False):
        ours, theirs = (fast[1].imag == 0) == kind, (values.imag == 0) == kind
        assert min(ours.sum(), theirs.sum()) > 60
        assert scipy.stats.ks_2samp(fast[0][ours], likenesses[theirs]).pvalue > 0.01
        assert scipy.stats.ks_2samp(alike[np.repeat(ours, 4), 0], likenesses[theirs]).pvalue > 0.001
        assert scipy.stats.ks_2samp(np.abs(fast[1][ours]), np.abs(values[theirs])).pvalue > 0.01
    assert (value[:, 0].real >= value[:, 1].real).all()


def planted(sign: float, tokenizer: Any) -> checkpoints.Flow:
    """A Llama whose head 0 of layer 1 reads word 7 and writes `sign` times word 7, and head 1 reads word 9 and writes word 21."""
    import torch

    model = copy.deepcopy(build("llama"))
    with torch.no_grad():
        # Nearly orthogonal words, an output that is the input, no gains.
        rows = torch.nn.functional.normalize(model.model.embed_tokens.weight, dim=1)
        rows = rows - rows.mean(dim=0)
        model.model.embed_tokens.weight.copy_(rows)
        model.lm_head.weight.copy_(rows)
        model.model.norm.weight.fill_(1.0)
        layer = model.model.layers[1]
        layer.input_layernorm.weight.fill_(1.0)
        layer.self_attn.v_proj.weight.zero_()
        layer.self_attn.o_proj.weight.zero_()
        # Head 0 and head 1 share value head 0, whose first row reads word 7 and whose second row reads word 9.
        layer.self_attn.v_proj.weight[0] = rows[7]
        layer.self_attn.v_proj.weight[1] = rows[9]
        layer.self_attn.o_proj.weight[:, 0] = sign * rows[7]
        layer.self_attn.o_proj.weight[:, 6 + 1] = rows[21] + 0.5 * rows[9]
    return checkpoints.flow(model, tokenizer=tokenizer)


def test_words_of_planted_heads(tokenizer) -> None:
    """A head that copies a word attracts, one that takes it away repels, one that turns a word into another says which."""
    found = checkpoints.meaning(planted(1.0, tokenizer), layer=1, words=3)
    copying = found.sel(layer=1, head=0).isel(mode=0)
    assert copying["read"].values[0] == copying["written"].values[0] == "w7"
    assert float(copying["alike"]) > 0.8
    assert int(copying["shared"]) >= 1
    assert float(copying["eigenvalue"].values.real) > 0
    turning = found.sel(layer=1, head=1).isel(mode=0)
    assert (turning["read"].values[0], turning["written"].values[0]) == ("w9", "w21")
    assert float(turning["alike"]) < float(copying["alike"]) - 0.2
    repelling = checkpoints.meaning(planted(-1.0, tokenizer), layer=1, head=0, words=3, modes=6).squeeze()
    # The head's other eigenvalues are zero: its one negative mode comes last.
    worst = repelling.isel(mode=int(np.argmin(repelling["eigenvalue"].values.real)))
    assert worst["read"].values[0] == "w7"
    assert "w7" not in worst["written"].values
    assert float(worst["alike"]) < -0.8
    # A head that writes nothing has no words and no likeness, and does not spoil the others.
    silent = found.sel(layer=1, head=3).isel(mode=0)
    assert np.isnan(float(silent["alike"]))
    assert np.isnan(float(silent["alike_p"]))
    assert set(silent["written"].values) == {""}


def test_lists_agree_with_a_slow_way(tokenizer) -> None:
    """Scores word by word in float64 for a random model: lists, likeness and complex planes."""
    flow = checkpoints.flow(build("qwen2"), tokenizer=tokenizer)
    found = checkpoints.meaning(flow, modes=3, words=4)
    weights = checkpoints.load_weights(flow.model)
    table = flow.model.get_input_embeddings().weight.detach().numpy().astype(float)[2:]
    unembedding = flow.model.lm_head.weight.detach().numpy().astype(float)[2:]
    gain = flow.model.model.norm.weight.detach().numpy().astype(float)
    inputs = table / np.linalg.norm(table, axis=1, keepdims=True)
    seen = set()
    for layer, head, mode in ((0, 0, 0), (1, 2, 0), (2, 3, 1), (2, 1, 0), (0, 3, 0), (1, 1, 2)):
        row = found.sel(layer=layer, head=head).isel(mode=mode)
        eigenvalue = complex(row["eigenvalue"].values)
        values, left, right = scipy.linalg.eig(weights.layer(layer).fold().value_matrix(head), left=True, right=True)
        place = int(np.argmin(np.abs(values - eigenvalue)))
        u, v = left[:, place].conj(), right[:, place]
        v = v * (eigenvalue / (u @ v))
        r = np.array([u @ (word - inputs.mean(axis=0)) for word in inputs])
        s = np.array([v @ ((word - unembedding.mean(axis=0)) * gain) for word in unembedding])
        alike = (r * s).sum().real / (np.linalg.norm(r) * np.linalg.norm(s))
        assert float(row["alike"]) == pytest.approx(alike, abs=1e-4)
        seen.add(eigenvalue.imag == 0)
        if eigenvalue.imag:
            expected = np.argsort(-np.abs(r))[:1], np.argsort(-np.abs(s))[:1]
        else:
            phase = r[np.argmax(np.abs(r))]
            r, s = (r * abs(phase) / phase).real, (s * phase / abs(phase)).real
            top, bottom = np.sort(r)[-4:].mean(), -np.sort(r)[:4].mean()
            r, s = (r, s) if top >= bottom else (-r, -s)
            expected = np.argsort(-r)[:1], np.argsort(-s)[:1]
        assert row["read"].values[0] == f"w{int(expected[0][0]) + 2}"
        assert row["written"].values[0] == f"w{int(expected[1][0]) + 2}"
    assert seen == {True, False}


def test_p_values_are_uniform_for_haar_heads() -> None:
    """Heads drawn from the null itself, whole: p <= 0.1 in a tenth of them and p <= 0.5 in half, for real modes and for planes."""
    generator = np.random.default_rng(0)
    dim, strengths = 14, np.array([3.0, 2.0, 1.5, 0.7, 0.2])
    words = some_words(generator, dim)
    moments = nulls.Moments.of(words)
    found: dict[bool, list[float]] = {True: [], False: []}
    for number in range(300):
        output, value = whole_haar_head(strengths, dim, generator)
        np.testing.assert_allclose(modes.singular_values(output, value), strengths, rtol=1e-8)
        # A head and its negative are as likely: every other one repels.
        sign = 1 - 2 * (number % 2)
        alike, eigenvalue = slow_likeness(words, output, value)
        null = nulls.haar_likeness(strengths, [0], moments, 200, generator)
        p, usual = found_module.p_value(sign * alike, sign * eigenvalue, null[0][:, 0], null[1][:, 0])
        assert np.sign(usual) == np.sign(sign * eigenvalue.real)
        found[eigenvalue.imag == 0].append(p)
    for p in found.values():
        assert len(p) > 60
        assert np.mean(np.array(p) <= 0.1) == pytest.approx(0.1, abs=0.06)
        assert np.mean(np.array(p) <= 0.5) == pytest.approx(0.5, abs=0.12)
    drawn, values = np.linspace(0.0, 0.2, 99), np.ones(99, dtype=complex)
    assert found_module.p_value(0.9, 1.0 + 0j, drawn, values) == pytest.approx((1 / 100, 0.1))
    assert found_module.p_value(0.1, 1.0 + 0j, drawn, values)[0] == 1.0
    assert np.isnan(found_module.p_value(0.9, 1.0 + 1j, drawn, values)).all()  # no draw of its kind


def test_a_head_does_not_depend_on_what_else_was_asked(tokenizer) -> None:
    """p, its draws and z of one head alone are those of the head among all others."""
    flow = checkpoints.flow(build("qwen2"), tokenizer=tokenizer)
    everything = checkpoints.meaning(flow, modes=2, words=4, draws=80)
    alone = checkpoints.meaning(flow, layer=1, head=2, modes=2, words=4, draws=80)
    one = everything.sel(layer=[1], head=[2])
    for name in ("alike", "alike_p", "alike_usual", "alike_null", "read_z", "write_z"):
        np.testing.assert_allclose(alone[name].values, one[name].values, atol=1e-6)
    # p is the place of its own likeness among its own draws of its own kind.
    row = one.isel(layer=0, head=0, mode=0)
    same = row["null_is_real"].values == bool(row["is_real"])
    drawn = row["alike_null"].values[same]
    away = np.abs(drawn - np.median(drawn)) >= abs(float(row["alike"]) - np.median(drawn))
    assert float(row["alike_p"]) == pytest.approx((1 + away.sum()) / (1 + same.sum()))
    assert 0 < float(row["alike_p"]) <= 1


def test_strengths_of_random_planes_and_lines() -> None:
    """In units of the null random directions have mean 0 and spread 1; so have planes of any shape, which reach further."""
    generator = np.random.default_rng(0)
    rows = generator.standard_normal((500, 20)).astype(np.float32)
    null = nulls.strength_null(rows, 8, True, generator)
    one_sided = nulls.strength_null(rows, 8, False, generator)
    assert one_sided.line[0] < null.line[0]
    for narrow in (0.0, 0.4, 1.0):
        planes = generator.standard_normal((100, 20)) + 1j * narrow * generator.standard_normal((100, 20))
        shapes = modes.plane_shape(planes)
        assert ((shapes >= 0) & (shapes <= 1)).all()
        z = [null.standardize(nulls.top_strength(abs(rows @ q), 8), float(shape)) for q, shape in zip(planes, shapes)]
        assert abs(np.mean(z)) < 0.45
        assert 0.6 < np.std(z) < 1.5
    a, b = np.eye(20)[:2]
    turn = np.exp(0.7j)
    np.testing.assert_allclose(
        modes.plane_shape(turn * np.array([a + 0j, a + 0.25j * b, a + 1j * b])), [0, 0.25, 1], atol=1e-7
    )


def test_modes_that_are_not_there(tokenizer) -> None:
    """A pair counts once, so some heads have fewer modes than dimensions: NaN, no words, counted nowhere."""
    flow = checkpoints.flow(build("qwen2"), tokenizer=tokenizer)
    found = checkpoints.meaning(flow, modes=6, words=3, draws=24)
    value = np.asarray(found["eigenvalue"].values)
    missing = np.isnan(value.real)
    assert missing.any()
    for layer, head in ((0, 0), (1, 3), (2, 2)):
        everything = checkpoints.load_weights(flow.model).layer(layer).fold()
        core = everything.value[everything.kv_head(head)] @ everything.output[head]
        assert (~missing[layer, head]).sum() == (np.linalg.eigvals(core).imag >= 0).sum()
    assert not found["is_real"].values[missing].any()
    for name in ("alike", "alike_p", "alike_usual", "read_z", "write_z"):
        assert np.isnan(found[name].values[missing]).all()
    assert (found["read"].values[missing] == "").all()
    assert (found["shared"].values[missing] == 0).all()
    assert np.isnan(found["alike_null"].values).any()
    assert not found["null_is_real"].values[np.isnan(found["alike_null"].values)].any()
    last = found.isel(mode=[5])
    there = int((~missing[..., 5]).sum())
    if there >= 3:
        assert checkpoints.compare_heads(last).heads == there
    else:
        with pytest.raises(InvalidInputError, match="three"):
            checkpoints.compare_heads(last)


def test_comparison_of_heads() -> None:
    import xarray as xr

    generator = np.random.default_rng(0)
    shape = (6, 10, 1)
    positive = generator.random(shape) < 0.5
    value = np.where(positive, 1.0, -0.5 + 1.0j)
    alike = 0.1 + 0.05 * generator.standard_normal(shape) + 0.3 * positive
    drawn = np.where(value.real < 0, -0.1, 0.1)[..., None] + np.linspace(-0.05, 0.05, 5)
    data = xr.Dataset(
        {
            "alike": (("layer", "head", "mode"), alike),
            "alike_null": (("layer", "head", "mode", "draw"), drawn),
            "null_eigenvalue": (("layer", "head", "mode", "draw"), np.repeat(value[..., None], 5, axis=-1)),
            "null_sign_score": (("layer", "head", "draw"), 0.03 * generator.standard_normal((*shape[:2], 5))),
            "alike_usual": (("layer", "head", "mode"), np.full(shape, 0.1)),
            "alike_p": (("layer", "head", "mode"), np.where(alike > 0.25, 0.01, 0.5)),
            "eigenvalue": (("layer", "head", "mode"), value),
            "sign_score": (("layer", "head"), np.where(positive, 0.5, -0.5)[..., 0]),
        },
        coords={"layer": np.arange(6)},
    )
    result = checkpoints.compare_heads(data)
    assert (result.heads, result.real_positive) == (60, int(positive.sum()))
    assert result.alike_real_positive == pytest.approx(alike[positive].mean())
    assert [result.alike_null_real, result.alike_null_complex] == pytest.approx([0.1, -0.1])
    assert result.excess_real_positive == pytest.approx((alike - 0.1)[positive].mean())
    assert result.excess_others == pytest.approx((alike + 0.1)[~positive].mean())
    assert result.difference_p <= 0.001
    assert result.same_words == result.same_words_real_positive == int((alike > 0.25).sum())
    assert result.sign_correlation > 0.7
    assert abs(result.depth_correlation) < 0.35
    assert result.to_dict()["heads"] == 60
    with pytest.raises(InvalidInputError, match="three"):
        checkpoints.compare_heads(data.isel(layer=[0], head=[0]))
    for lost in (data.isel(mode=0), data.isel(layer=0), data.squeeze()):
        with pytest.raises(InvalidInputError, match="dims"):
            checkpoints.compare_heads(lost)


def test_comparison_finds_nothing_in_random_models(tokenizer) -> None:
    """Random planes are less alike than random lines, and sign scores go with likeness: neither is a finding."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    options: dict[str, Any] = {
        "hidden_size": 24,
        "intermediate_size": 16,
        "num_hidden_layers": 40,
        "vocab_size": VOCABULARY,
    }
    p = []
    for seed in range(6):
        torch.manual_seed(seed)
        config = LlamaConfig(num_attention_heads=4, num_key_value_heads=4, tie_word_embeddings=True, **options)
        flow = checkpoints.flow(LlamaForCausalLM(config).eval(), tokenizer=tokenizer)
        found = checkpoints.compare_heads(checkpoints.meaning(flow, draws=50, progress=False), permutations=499)
        assert found.alike_real_positive > found.alike_others + 0.03  # what the null has to take away
        assert found.sign_correlation_null > 0.1
        p.append((found.difference_p, found.sign_p, found.depth_p))
    # Of six uniform p the median is below 0.1 with probability 0.02, and the smallest below 0.002 with 0.01.
    assert (np.median(p, axis=0) > 0.1).all(), p
    assert (np.min(p, axis=0) > 0.002).all(), p


@pytest.mark.parametrize("shape", [(2, 2), (3, 2), (3, 1), (4, 8)], ids=str)
def test_narrow_streams(shape: tuple[int, int]) -> None:
    """Streams of two or three dimensions, and heads wider than the stream, have their draws: against whole frames."""
    dim, size = shape
    generator = np.random.default_rng(0)
    words = some_words(generator, dim)
    strengths = np.linspace(2.0, 1.0, size)
    alike, value, score = nulls.haar_likeness(strengths, [0], nulls.Moments.of(words), 800, generator)
    assert np.isfinite(alike).all()
    assert (np.abs(score) <= 1 + 1e-12).all()
    kept = strengths[:dim]
    slow = [slow_likeness(words, *whole_haar_head(kept, dim, generator)) for _ in range(200)]
    real = value[::4, 0].imag == 0
    theirs = np.array([one for one, number in slow if number.imag == 0])
    assert scipy.stats.ks_2samp(alike[::4, 0][real], theirs).pvalue > 0.01


def test_an_eigenvalue_of_rounding_is_no_mode() -> None:
    """A repelling head of rank one in a core of four: its leading eigenvalues are zero and say nothing."""
    generator = np.random.default_rng(3)
    direction, mixing = generator.standard_normal(20), generator.standard_normal(4)
    output, value = -np.outer(direction, mixing), np.outer(mixing, direction)
    found = modes.modes_of(output, value, range(4))
    assert (found.eigenvalue[:-1] == 0).all()
    assert found.eigenvalue[-1].real < 0
    assert not found.read[:-1].any()
    assert not found.write[:-1].any()
    assert found.sign_score == -1.0


def test_states_of_post_norm_models_are_read_without_gain(tokenizer) -> None:
    """z = (h - shift) / gain: the first of the read tokens is the one whose z excites u most, computed by hand."""
    import torch

    model = copy.deepcopy(build("bert"))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for layer in model.encoder.layer:
            layer.output.LayerNorm.weight.copy_(torch.rand(24, generator=generator) * 3 + 0.05)
            layer.output.LayerNorm.bias.copy_(torch.randn(24, generator=generator))
    flow = checkpoints.flow(model, tokenizer=tokenizer)
    text = " ".join(f"w{i}" for i in range(10, 26))
    found = checkpoints.meaning(flow, layer=2, words=3, text=text, draws=8)
    norm = model.encoder.layer[1].output.LayerNorm
    run = flow.run(text)
    z = (run.hidden[2] - norm.bias.detach().numpy()) / norm.weight.detach().numpy()
    z = z[1:] / np.linalg.norm(z[1:], axis=1, keepdims=True)
    z = z - z.mean(axis=0)
    folded = checkpoints.load_weights(model).layer(2).fold(center=True)
    for head in range(4):
        mode = modes.modes_of(folded.output[head], folded.value[head], [0])
        real = mode.eigenvalue[0].imag == 0
        score = z @ mode.read[0]
        ranked = [np.argsort(-side)[:3] for side in ((score.real, -score.real) if real else (np.abs(score),))]
        lists = [[run.text[1 + i] for i in one] for one in ranked]
        assert found["read"].sel(layer=2, head=head).isel(mode=0).values.tolist() in lists


def test_the_layers_asked_for_do_not_change_a_head(tokenizer) -> None:
    """ALBERT, whose first layer is fed by another norm than the rest."""
    from transformers import AlbertConfig, AlbertModel

    flow = checkpoints.flow(AlbertModel(AlbertConfig(**ENCODER, embedding_size=24)).eval(), tokenizer=tokenizer)
    alone, together = (checkpoints.meaning(flow, layer=which, words=3, draws=8).sel(layer=[1]) for which in (1, [0, 1]))
    assert alone.drop_attrs().equals(together.drop_attrs())


def test_text_takes_the_place_of_the_vocabulary(tokenizer) -> None:
    flow = checkpoints.flow(build("llama"), tokenizer=tokenizer)
    found = checkpoints.meaning(flow, layer=[0, 2], head=1, words=5, text=" ".join(f"w{i}" for i in range(10, 22)))
    assert found.attrs["reading"] == "tokens of a text"
    assert found.sizes["layer"] == 2
    assert set(found["read"].values.ravel()) <= {f"w{i}" for i in range(11, 22)}
    # Eleven tokens have no such best ones as a vocabulary has: random weights stand out by nothing, in units of their own null.
    everything = checkpoints.meaning(flow, words=5, text=" ".join(f"w{i}" for i in range(10, 22)), draws=8)
    assert abs(float(everything["read_z"].mean())) < 1.0
    with pytest.raises(InvalidInputError, match="three tokens"):
        checkpoints.meaning(flow, text="w3 w4")


def test_what_is_refused(tokenizer) -> None:
    with pytest.raises(InvalidInputError, match="no tokenizer"):
        checkpoints.meaning(build("llama"))
    flow = checkpoints.flow(build("llama"), tokenizer=tokenizer)
    with pytest.raises(InvalidInputError, match="layers 0 to 2"):
        checkpoints.meaning(flow, layer=7)
    with pytest.raises(InvalidInputError, match="heads 0 to 3"):
        checkpoints.meaning(flow, head=4)
    with pytest.raises(InvalidInputError, match="modes"):
        checkpoints.meaning(flow, modes=99)
    with pytest.raises(InvalidInputError, match="at least one"):
        checkpoints.meaning(flow, head=[])
    for wrong in (
        {"layer": [1.7]},
        {"layer": ["x"]},
        {"layer": [[0, 1]]},
        {"head": [None]},
        {"head": [True]},
        {"layer": "1"},
    ):
        with pytest.raises(InvalidInputError, match="whole number"):
            checkpoints.meaning(flow, **wrong)
    with pytest.raises(InvalidInputError, match="whole number"):
        checkpoints.meaning(flow, layer=np.array([0.0, 1.0]))
    with pytest.raises(InvalidInputError, match="draws"):
        checkpoints.meaning(flow, draws=0)
    with pytest.raises(UnsupportedError, match="dimension"):
        checkpoints.meaning(checkpoints.flow(build("albert"), tokenizer=tokenizer))


def odd_gpt2() -> Any:
    """A GPT-2 of odd dimension: a LayerNorm with gain, shift and mean, and no direction of signs that has mean zero."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        n_embd=15, n_layer=2, n_head=3, vocab_size=VOCABULARY, n_positions=16, bos_token_id=1, eos_token_id=2
    )
    model = GPT2LMHeadModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2", "gpt_neox", "odd"])
def test_final_norm_is_the_models_own(name: str, tokenizer) -> None:
    """Words of a direction against the model's own norm and head, applied to the direction and to its negative (shifts cancel)."""
    import torch

    flow = checkpoints.flow(odd_gpt2() if name == "odd" else build(name), tokenizer=tokenizer)
    norm = vocabulary.final_norm(flow)
    assert norm is not None
    weight = flow.final_norm.weight.detach().numpy() + (name == "gemma2")
    np.testing.assert_allclose(norm.gain, weight, rtol=1e-4, atol=1e-5)
    assert norm.centers == (name in ("gpt2", "gpt_neox", "odd"))
    words = vocabulary.vocabulary_of(flow, checkpoints.load_weights(build("llama")).norm_kind)
    assert words.writing == "output embedding"
    direction = 100.0 * np.random.default_rng(0).standard_normal(flow.dim) + 30.0
    with torch.no_grad():
        head = flow.model.get_output_embeddings()
        state = torch.tensor(direction, dtype=torch.float32)
        own = 0.5 * (head(flow.final_norm(state)) - head(flow.final_norm(-state))).numpy()[words.ids]
    ours = words.outputs @ direction
    own = own - own.mean()
    np.testing.assert_allclose(ours / np.linalg.norm(ours), own / np.linalg.norm(own), atol=1e-5)


def test_a_head_that_is_not_linear_is_not_taken_for_the_output_embedding(tokenizer) -> None:
    """The decoder of a masked language model sees states behind a dense layer and an activation: directions have input words only."""
    from transformers import BertConfig, BertForMaskedLM

    assert vocabulary.final_norm(checkpoints.flow(build("bert"))) is None
    model = BertForMaskedLM(BertConfig(**ENCODER)).eval()
    words = vocabulary.vocabulary_of(
        checkpoints.flow(model, tokenizer=tokenizer), checkpoints.load_weights(model).norm_kind
    )
    assert words.writing == "input embeddings"


def test_words_of_smollm2(smollm2) -> None:
    """A head of the last layer that is about China and Japan, and the finding over the last layers."""
    found = checkpoints.meaning(checkpoints.flow(smollm2), layer=29, words=10)
    row = found.sel(layer=29, head=2).isel(mode=0)
    for name in ("read", "written"):
        assert {" China", " Chinese", " Japanese"} <= set(row[name].values.tolist())
    assert float(row["alike"]) == pytest.approx(0.647, abs=0.01)
    # A random head is hardly ever as alike; its words stand out as those of no random direction do.
    assert float(row["alike_p"]) < 0.03
    assert float(row["read_z"]) > 3
    assert float(np.quantile(np.abs(row["alike_null"].values), 0.95)) < 0.35


@pytest.mark.parametrize("which", modes.ORDERS)
def test_modes_are_chosen_in_an_order(which: str) -> None:
    """Against sorting by hand; numbers pick from the same order, and what a head does not have is left out at the end."""
    generator = np.random.default_rng(7)
    output, value = generator.standard_normal((20, 6)), generator.standard_normal((6, 20))
    spectrum = np.linalg.eigvals(value @ output)
    spectrum = spectrum[spectrum.imag >= 0]
    key = {"largest": -spectrum.real, "most negative": spectrum.real, "modulus": -np.abs(spectrum)}[which]
    expected = spectrum[np.argsort(key)]
    np.testing.assert_allclose(modes.modes_of(output, value, range(6), which).eigenvalue, expected, rtol=1e-9)
    some = modes.modes_of(output, value, [1, 2, 5], which).eigenvalue
    np.testing.assert_allclose(some, expected[[number for number in (1, 2, 5) if number < len(expected)]], rtol=1e-9)


def test_the_most_negative_mode_of_a_repelling_head(tokenizer) -> None:
    """The planted head that takes word 7 away is found at once, and the word is in the list of what it suppresses."""
    flow = planted(-1.0, tokenizer)
    found = checkpoints.meaning(flow, layer=1, which="most negative", words=3, draws=40)
    row = found.sel(layer=1, head=0).isel(mode=0)
    assert complex(row["eigenvalue"].values).real < 0
    assert row["read"].values[0] == row["suppressed"].values[0] == "w7"
    assert int(row["shared_suppressed"]) >= 1
    assert int(row["shared"]) == 0
    assert float(row["alike"]) < -0.8
    assert float(row["suppress_z"]) > float(row["write_z"]) + 3
    assert found.attrs["which"] == "most negative"
    # The leading mode of the same head is one of its zeros, and says nothing.
    assert np.isnan(float(checkpoints.meaning(flow, layer=1, head=0, words=3, draws=8)["alike"].values.item()))
    everything = checkpoints.meaning(flow, layer=0, head=0, which="modulus", modes=6, words=3, draws=8)
    size = np.abs(everything["eigenvalue"].values[0, 0])
    assert (np.diff(size[np.isfinite(size)]) <= 1e-12).all()
    picked = checkpoints.meaning(flow, layer=0, head=0, which="modulus", modes=[0, 2], words=3, draws=8)
    assert picked["mode"].values.tolist() == [0, 2]
    for name in ("eigenvalue", "alike", "read", "written", "suppressed"):
        np.testing.assert_array_equal(picked[name].values, everything[name].sel(mode=[0, 2]).values)
    planes = ~everything["is_real"].values
    assert planes.any()
    assert (everything["suppressed"].values[planes] == "").all()
    assert np.isnan(everything["suppress_z"].values[planes]).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"which": "smallest"}, "which"),
        ({"modes": [2, 0]}, "increasing"),
        ({"modes": [1, 1]}, "increasing"),
        ({"modes": []}, "increasing"),
        ({"modes": [-1]}, "modes"),
        ({"modes": [6]}, "modes"),
        ({"modes": 7}, "modes"),
        ({"modes": 1.5}, "modes"),
    ],
    ids=str,
)
def test_wrong_modes_are_refused(options: dict[str, Any], words: str, tokenizer) -> None:
    with pytest.raises(InvalidInputError, match=words):
        checkpoints.meaning(planted(1.0, tokenizer), **options)


def test_draws_of_the_most_negative_mode_have_the_law_of_whole_heads() -> None:
    """Kolmogorov-Smirnov over 300 heads: the lowest mode of V is the leading one of -V, which `slow_likeness` takes from dense V."""
    generator = np.random.default_rng(2)
    dim, strengths = 14, np.array([3.0, 2.0, 1.5, 0.7, 0.2])
    words = some_words(generator, dim)
    alike, value, _ = nulls.haar_likeness(strengths, [0], nulls.Moments.of(words), 1200, generator, "most negative")
    slow = []
    for _ in range(300):
        output, rows = whole_haar_head(strengths, dim, generator)
        one, number = slow_likeness(words, -output, rows)
        slow.append((-one, -number))
    for kind in (True, False):
        theirs = np.array([one for one, number in slow if (number.imag == 0) == kind])
        ours = alike[::4, 0][(value[::4, 0].imag == 0) == kind]
        assert min(len(ours), len(theirs)) > 50
        assert scipy.stats.ks_2samp(ours, theirs).pvalue > 0.01
    assert (value.real < 0).mean() > 0.9


def test_the_deviation_of_random_directions_is_known_to_three_percent() -> None:
    """Over 16 nulls: 512 draws leave 1/sqrt(1024) = 3 %; 128 would leave 6 %. And strengths row by row are those one by one."""
    generator = np.random.default_rng(0)
    rows = generator.standard_normal((400, 20)).astype(np.float32)
    found = [nulls.strength_null(rows, 8, True, generator) for _ in range(16)]
    for deviations in ([null.line[1] for null in found], *(np.array([null.planes[:, 1] for null in found]).T)):
        assert np.std(deviations) / np.mean(deviations) < 0.048
    scores = rows @ generator.standard_normal((20, 30)).astype(np.float32)
    slow = [nulls.top_strength(one, 8) for one in scores.T]
    np.testing.assert_allclose(nulls.top_strengths(np.ascontiguousarray(scores.T), 8), slow, rtol=1e-5)
    assert (nulls.top_strengths(np.zeros((2, 9), np.float32), 3) == 0).all()

"""Eigenvectors of value matrices in words: against dense eigenvectors, on heads whose meaning is known, and against their nulls."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import scipy.linalg

from metastable import checkpoints
from metastable.checkpoints.meanings import measure, modes, vocabulary
from metastable.errors import InvalidInputError, UnsupportedError
from tests.unit.checkpoints.flow_models import VOCABULARY, build


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
    found = modes.modes_of(output, value, 5)
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


def test_haar_head_keeps_singular_values() -> None:
    generator = np.random.default_rng(0)
    output, value = generator.standard_normal((30, 6)), generator.standard_normal((6, 30))
    drawn = modes.haar_head(output, value, generator)
    singular = [np.linalg.svd(a @ b, compute_uv=False)[:6] for a, b in ((output, value), drawn)]
    np.testing.assert_allclose(*singular, rtol=1e-8)
    zero = modes.haar_head(np.zeros((30, 6)), value, generator)
    assert np.abs(zero[0] @ zero[1]).max() == 0


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
    """Heads drawn from the null itself: p <= 0.1 in about a tenth of them, on either side of zero."""
    generator = np.random.default_rng(0)
    null, other = generator.normal(0.1, 0.05, 400), generator.normal(0.1, 0.05, (40, 10))
    p = measure._p_values(other, np.ones_like(other), null)
    assert np.mean(p <= 0.1) == pytest.approx(0.1, abs=0.05)
    mirrored = measure._p_values(-other, -np.ones_like(other), null)
    np.testing.assert_array_equal(p, mirrored)
    assert measure._p_values(np.array([0.9]), np.array([1.0]), null)[0] == pytest.approx(1 / 401)


def test_comparison_of_heads() -> None:
    import xarray as xr

    generator = np.random.default_rng(0)
    shape = (6, 10, 1)
    positive = generator.random(shape) < 0.5
    value = np.where(positive, 1.0, -0.5 + 1.0j)
    alike = 0.1 + 0.05 * generator.standard_normal(shape) + 0.3 * positive
    data = xr.Dataset(
        {
            "alike": (("layer", "head", "mode"), alike),
            "alike_null": (("layer", "head", "mode"), np.full(shape, 0.1)),
            "null_is_real": (("layer", "head", "mode"), positive),
            "alike_p": (("layer", "head", "mode"), np.where(alike > 0.25, 0.01, 0.5)),
            "eigenvalue": (("layer", "head", "mode"), value),
            "sign_score": (("layer", "head"), np.where(positive, 0.5, -0.5)[..., 0]),
        },
        coords={"layer": np.arange(6)},
    )
    result = checkpoints.compare_heads(data)
    assert (result.heads, result.real_positive) == (60, int(positive.sum()))
    assert result.alike_real_positive == pytest.approx(alike[positive].mean())
    assert [result.alike_null_real, result.alike_null_complex] == pytest.approx([0.1, 0.1])
    assert result.difference_p <= 0.001
    assert result.same_words == result.same_words_real_positive == int((alike > 0.25).sum())
    assert result.sign_correlation > 0.7
    assert abs(result.depth_correlation) < 0.35
    assert result.to_dict()["heads"] == 60
    with pytest.raises(InvalidInputError, match="three"):
        checkpoints.compare_heads(data.isel(layer=[0], head=[0]))


def test_text_takes_the_place_of_the_vocabulary(tokenizer) -> None:
    flow = checkpoints.flow(build("llama"), tokenizer=tokenizer)
    found = checkpoints.meaning(flow, layer=[0, 2], head=1, words=5, text=" ".join(f"w{i}" for i in range(10, 22)))
    assert found.attrs["reading"] == "tokens of a text"
    assert found.sizes["layer"] == 2
    assert set(found["read"].values.ravel()) <= {f"w{i}" for i in range(11, 22)}


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
    with pytest.raises(UnsupportedError, match="dimension"):
        checkpoints.meaning(checkpoints.flow(build("albert"), tokenizer=tokenizer))


def test_final_gain(tokenizer) -> None:
    flow = checkpoints.flow(build("llama"))
    np.testing.assert_allclose(vocabulary.final_gain(flow), flow.model.model.norm.weight.detach(), rtol=1e-4)
    flow = checkpoints.flow(build("gpt2"))
    np.testing.assert_allclose(vocabulary.final_gain(flow), flow.model.transformer.ln_f.weight.detach(), rtol=1e-4)
    assert vocabulary.final_gain(checkpoints.flow(build("bert"))) is None


def test_words_of_smollm2(smollm2) -> None:
    """A head of the last layer that is about China and Japan, and the finding over the last layers."""
    found = checkpoints.meaning(checkpoints.flow(smollm2), layer=29, words=10)
    row = found.sel(layer=29, head=2).isel(mode=0)
    for name in ("read", "written"):
        assert {" China", " Chinese", " Japanese"} <= set(row[name].values.tolist())
    assert float(row["alike"]) == pytest.approx(0.647, abs=0.01)
    assert abs(found["alike_null"].values).max() < 0.35

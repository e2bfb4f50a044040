"""`meaning`: for the eigenvectors of value matrices, the words they read and the words they write, against two nulls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import _checks
from metastable._checks import FloatArray
from metastable._progress import progress_bar
from metastable.checkpoints.flows.flow import Flow
from metastable.checkpoints.flows.handle import FlowRun
from metastable.checkpoints.flows.lens import names_of
from metastable.checkpoints.meanings.modes import Modes, haar_head, modes_of
from metastable.checkpoints.meanings.vocabulary import Vocabulary, project, vocabulary_of
from metastable.checkpoints.weights import LayerWeights
from metastable.errors import InvalidInputError

if TYPE_CHECKING:
    import xarray as xr

RANDOM_DIRECTIONS = 128
"""Random directions that the strength of word lists is compared with."""


@dataclass(frozen=True)
class Reading:
    """One mode in words: rows of its two lists, how strongly they stand out, and how alike reading and writing are."""

    read: Any
    written: Any
    read_strength: float
    write_strength: float
    alike: float


def _best(scores: FloatArray, count: int) -> np.ndarray:
    """Indices of the `count` largest scores, best first."""
    top = np.argpartition(scores, -count)[-count:]
    return top[np.argsort(-scores[top])]


def _strength(scores: FloatArray, best: np.ndarray) -> float:
    """Mean score of the best words in units of the root mean square over the vocabulary: a random direction has about 4."""
    size = float(np.sqrt(np.mean(np.square(scores, dtype=np.float64))))
    return float(scores[best].mean()) / size if size > 0 else 0.0


def likeness(r: Any, s: Any) -> float:
    """Re sum_w r_w s_w / (|r| |s|) over all words w, with r_w = <u, input of w> and s_w = <v, output of w>.

    How much a word that excites the mode is itself written by it. +1: reads and writes the same words (attracts), -1: opposite ones
    (repels); NaN for a mode that reads or writes nothing.
    """
    sizes = float(np.linalg.norm(r)) * float(np.linalg.norm(s))
    return float((r * s).sum().real) / sizes if np.isfinite(sizes) and sizes > 0 else float("nan")


def read_mode(r: Any, s: Any, alike: float, real: bool, count: int) -> Reading:
    """The lists of one mode from its scores: r over what can be read (words, or tokens of a text), s over the words.

    A real mode ranks by signed scores. (u, v) and (-u, -v) are one mode: shown is the side on which its reading words stand out more. A
    complex pair ranks by the length in its plane.
    """
    reading, writing = (r.real, s.real) if real else (np.abs(r), np.abs(s))
    size = min(count, len(reading))
    if real and _strength(-reading, _best(-reading, size)) > _strength(reading, _best(reading, size)):
        reading, writing = -reading, -writing
    first, second = _best(reading, size), _best(writing, count)
    return Reading(first, second, _strength(reading, first), _strength(writing, second), alike)


def _in_units(value: FloatArray, null: FloatArray) -> FloatArray:
    """Values in standard deviations of the null from its mean."""
    deviation = float(null.std())
    return (value - null.mean()) / deviation if deviation > 0 else np.zeros_like(value)


def _p_values(alike: FloatArray, real_part: FloatArray, null: FloatArray) -> FloatArray:
    """Two-sided p of `alike` against the null, mirrored for modes with negative real part (the null's are all positive)."""
    if not null.size:
        return np.full(alike.shape, np.nan)
    middle = float(np.median(null))
    mirrored = np.where(real_part < 0, -alike, alike)
    away = np.abs(mirrored - middle)
    extreme = (np.abs(null - middle)[:, None] >= away.ravel()[None, :]).sum(axis=0).reshape(alike.shape)
    return (1.0 + extreme) / (1.0 + null.size)


def _random_strengths(words: Vocabulary, count: int, generator: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Strengths of the read and written lists of random directions, (directions,) each."""
    drawn = generator.standard_normal((RANDOM_DIRECTIONS, words.inputs.shape[1]))
    found = np.empty((2, RANDOM_DIRECTIONS))
    for row, matrix in enumerate((words.inputs, words.outputs)):
        scores = project(matrix, drawn).T.copy()
        for column, one in enumerate(scores):
            found[row, column] = max(_strength(side, _best(side, count)) for side in (one, -one))
    return found[0], found[1]


def _factors(layer: LayerWeights, head: int) -> tuple[FloatArray, FloatArray]:
    """O_h (dim, head_dim) and W_h (head_dim, dim) of a folded layer."""
    return layer.output[head], layer.value[layer.kv_head(head)]


def _chosen(value: Any, check: Any, count: int) -> list[int]:
    """Layers or heads asked for: one, several, or None for all."""
    if value is None:
        return list(range(count))
    if isinstance(value, (range, list, tuple, np.ndarray)):
        found = [check(int(item)) for item in value]
        if not found:
            raise InvalidInputError("give at least one layer and one head")
        return found
    return [check(value)]


def meaning(
    source: Any,
    layer: int | Sequence[int] | None = None,
    head: int | Sequence[int] | None = None,
    *,
    modes: int = 1,
    words: int = 10,
    text: Any = None,
    max_tokens: int | None = None,
    seed: int = 0,
    revision: str | None = None,
    progress: bool | None = None,
) -> xr.Dataset:
    """What the leading eigenvectors of value matrices V_h = O_h W_h G say in words.

    A mode of V_h reads with its left eigenvector u and writes its right one v. Written words: logits of v through the unembedding
    with the final norm's gain folded in. Read words: those whose embeddings, passed through a norm without gain, excite u; with `text`,
    the tokens of the text whose states at that layer do. A complex pair is a plane; its words are those that reach furthest into it.

    Two nulls. Random directions: how much do the best words of a direction stand out when it means nothing (`read_z`, `write_z`)? Haar
    heads (`haar_head`, one for each head): how alike are read and written words when a head has the same singular values and random
    frames (`alike_null`, `alike_p`)? They are needed: u^T v = lambda ties the two sides of any leading mode together a little.

    Args:
        source: as in `checkpoints.flow`, or a `Flow`. Its architecture needs an adapter (`known_architectures`).
        layer, head: one, several, or None for all.
        modes: how many modes of largest real part of each head.
        words: length of the lists.
        text: None, or a text whose tokens take the place of the vocabulary on the reading side.
        seed: of both nulls.

    Returns:
        Dataset over (layer, head, mode): `eigenvalue`, `is_real`, `alike` (-1..1), `alike_p`, `shared` (words in both lists), `read_z`,
        `write_z` (how far the lists stand out, in standard deviations of random directions), `read`, `written` (.., word); over
        (layer, head): `sign_score`; over (layer, head, mode): `alike_null` and `null_is_real`, one Haar head each.
    """
    from metastable.checkpoints.flows.opening import flow as open_flow
    from metastable.checkpoints.sources import load_weights

    count, length = _checks.count(modes, "modes"), _checks.count(words, "words", 1, 1000)
    root = _checks.seed(seed)
    flow = source if isinstance(source, Flow) else open_flow(source, revision=revision)
    weights = load_weights(flow.model)
    layers = _chosen(layer, weights.check_layer, weights.layer_count)
    heads = _chosen(head, weights.check_head, weights.head_count)
    count = _checks.count(count, "modes", 1, weights.head_dim)
    vocabulary = vocabulary_of(flow, weights.layer(layers[0]).norm)
    length = min(length, len(vocabulary.ids))
    tokens = None if text is None else flow.run(text, max_tokens=max_tokens)
    found = _Found((len(layers), len(heads), count), length)
    with progress_bar("meaning", len(layers), progress) as report:
        for place, number in enumerate(layers):
            folded = weights.layer(number).fold(center=weights.norm_kind == "layer")
            generator = np.random.default_rng(np.random.SeedSequence(root, spawn_key=(number,)))
            items = _Items(vocabulary.inputs, vocabulary.ids) if tokens is None else _states(tokens, number, folded)
            _measure_layer(found, place, folded, heads, vocabulary, items, generator)
            report(place + 1.0)
    return found.dataset(flow, vocabulary, layers, heads, root, text is not None)


@dataclass(frozen=True)
class _Items:
    """What can be read: directions (items, dim) and token ids."""

    directions: Any
    ids: Any


def _states(run: FlowRun, layer: int, folded: LayerWeights) -> _Items:
    """The states that enter `layer`, without the first token (a sink) and without their mean."""
    states = folded.norm.standardize(run.hidden[layer].astype(np.float64))[1:]
    states /= np.linalg.norm(states, axis=1, keepdims=True)
    return _Items((states - states.mean(axis=0)).astype(np.float32), run.dataset["id"].values[1:])


class _Found:
    """What is measured, head by head."""

    def __init__(self, shape: tuple[int, int, int], words: int) -> None:
        self.words = words
        self.numbers = {
            name: np.full(shape, np.nan) for name in ("alike", "alike_null", "read_strength", "write_strength")
        }
        self.eigenvalue = np.zeros(shape, dtype=np.complex128)
        self.null_eigenvalue = np.zeros(shape, dtype=np.complex128)
        self.score = np.zeros(shape[:2])
        self.read = np.full((*shape, words), -1, dtype=np.int64)
        self.written = np.full((*shape, words), -1, dtype=np.int64)

    def put(self, at: tuple[int, int, int], reading: Reading, items: _Items, vocabulary: Vocabulary) -> None:
        """Keep one mode; lists as token ids."""
        self.numbers["alike"][at] = reading.alike
        if not np.isfinite(reading.alike):
            return
        self.numbers["read_strength"][at] = reading.read_strength
        self.numbers["write_strength"][at] = reading.write_strength
        self.read[at][: len(reading.read)] = items.ids[reading.read]
        self.written[at] = vocabulary.ids[reading.written]

    def dataset(
        self, flow: Flow, vocabulary: Vocabulary, layers: list[int], heads: list[int], root: int, from_text: bool
    ) -> xr.Dataset:
        """Everything with its nulls."""
        import xarray as xr

        generator = np.random.default_rng(np.random.SeedSequence(root, spawn_key=(2**31,)))
        random_read, random_write = _random_strengths(vocabulary, self.words, generator)
        alike, null = self.numbers["alike"], self.numbers["alike_null"]
        p = np.full(alike.shape, np.nan)
        for mode in range(p.shape[2]):
            drawn = null[..., mode].ravel()
            p[..., mode] = _p_values(alike[..., mode], self.eigenvalue[..., mode].real, drawn[np.isfinite(drawn)])
        p[~np.isfinite(alike)] = np.nan
        shared = (self.read[..., :, None] == self.written[..., None, :]).any(axis=-1) & (self.read >= 0)
        dims = ("layer", "head", "mode")
        return xr.Dataset(
            {
                "eigenvalue": (dims, self.eigenvalue),
                "is_real": (dims, self.eigenvalue.imag == 0),
                "sign_score": (("layer", "head"), self.score),
                "alike": (dims, alike),
                "alike_null": (dims, null),
                "null_is_real": (dims, self.null_eigenvalue.imag == 0),
                "alike_p": (dims, p),
                "shared": (dims, shared.sum(axis=-1)),
                "read_z": (dims, _in_units(self.numbers["read_strength"], random_read)),
                "write_z": (dims, _in_units(self.numbers["write_strength"], random_write)),
                "read": ((*dims, "word"), _names(flow.tokenizer, self.read)),
                "written": ((*dims, "word"), _names(flow.tokenizer, self.written)),
            },
            coords={"layer": layers, "head": heads, "mode": np.arange(p.shape[2]), "word": np.arange(self.words)},
            attrs={
                "source": flow.source,
                "architecture": flow.architecture,
                "vocabulary": len(vocabulary.ids),
                "seed": root,
                "reading": "tokens of a text" if from_text else "embeddings",
                "random_read_strength": float(random_read.mean()),
                "random_write_strength": float(random_write.mean()),
            },
        )


def _names(tokenizer: Any, ids: Any) -> Any:
    """Words of an array of token ids, empty where there is none (-1)."""
    unique = np.unique(ids[ids >= 0])
    known = dict(zip(unique.tolist(), names_of(tokenizer, unique)))
    return np.array([known.get(number, "") for number in ids.ravel().tolist()], dtype=str).reshape(ids.shape)


def _measure_layer(
    found: _Found,
    place: int,
    folded: LayerWeights,
    heads: list[int],
    vocabulary: Vocabulary,
    items: _Items,
    generator: np.random.Generator,
) -> None:
    """All heads of a layer and one Haar head for each, with one product over the vocabulary for all of them."""
    count = found.eigenvalue.shape[2]
    trained, drawn = [], []
    for column, head in enumerate(heads):
        factors = _factors(folded, head)
        trained.append(modes_of(*factors, count))
        drawn.append(modes_of(*haar_head(*factors, generator), count))
        found.score[place, column] = trained[-1].sign_score
    own, null = _scores(vocabulary, trained), _scores(vocabulary, drawn)
    over_items = own[0] if items.directions is vocabulary.inputs else project(items.directions, _stack(trained, "read"))
    number = 0
    for column, modes in enumerate(trained):
        for mode, value in enumerate(modes.eigenvalue):
            found.eigenvalue[place, column, mode] = value
            r, s = own[0][:, number], own[1][:, number]
            reading = read_mode(over_items[:, number], s, likeness(r, s), bool(value.imag == 0), found.words)
            found.put((place, column, mode), reading, items, vocabulary)
            number += 1
    number = 0
    for column, modes in enumerate(drawn):
        for mode, value in enumerate(modes.eigenvalue):
            found.null_eigenvalue[place, column, mode] = value
            found.numbers["alike_null"][place, column, mode] = likeness(null[0][:, number], null[1][:, number])
            number += 1


def _stack(modes: list[Modes], side: str) -> Any:
    return np.concatenate([getattr(one, side) for one in modes])


def _scores(vocabulary: Vocabulary, modes: list[Modes]) -> tuple[Any, Any]:
    """Reading and writing scores (words, modes) of all modes of several heads."""
    return project(vocabulary.inputs, _stack(modes, "read")), project(vocabulary.outputs, _stack(modes, "write"))

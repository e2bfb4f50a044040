"""`meaning`: for the eigenvectors of value matrices, the words they read and the words they write, against two nulls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import _checks
from metastable._checks import FloatArray
from metastable._progress import progress_bar
from metastable.checkpoints.flows.beginnings import is_text
from metastable.checkpoints.flows.flow import Flow
from metastable.checkpoints.flows.flow_run import FlowRun
from metastable.checkpoints.meanings.found import Found, Reading
from metastable.checkpoints.meanings.modes import Modes, modes_of, plane_shape, singular_values
from metastable.checkpoints.meanings.nulls import (
    Moments,
    StrengthNull,
    best,
    haar_likeness,
    strength,
    strength_null,
    top_strength,
)
from metastable.checkpoints.meanings.vocabulary import Vocabulary, project, vocabulary_of
from metastable.checkpoints.weights import AttentionWeights, Norm
from metastable.errors import InvalidInputError

if TYPE_CHECKING:
    import xarray as xr

DIRECTIONS_KEY = 2**31
"""Child of the seed from which random directions come; those of heads are numbered (layer, head)."""


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
    if real and top_strength(-reading, count) > top_strength(reading, count):
        reading, writing = -reading, -writing
    first, second = best(reading, min(count, len(reading))), best(writing, count)
    return Reading(first, second, strength(reading, first), strength(writing, second), alike)


def _chosen(value: Any, check: Any, count: int) -> list[int]:
    """Layers or heads asked for: one, several, or None for all."""
    if value is None:
        return list(range(count))
    if isinstance(value, (range, list, tuple)) or (isinstance(value, np.ndarray) and value.ndim > 0):
        found = [check(item) for item in value]
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
    draws: int = 200,
    seed: int = 0,
    revision: str | None = None,
    progress: bool | None = None,
) -> xr.Dataset:
    """What the leading eigenvectors of value matrices V_h = O_h W_h G say in words.

    A mode of V_h reads with its left eigenvector u and writes its right one v. Written words: logits of v through the unembedding
    with the final norm folded in. Read words: those whose embeddings, passed through a norm without gain, excite u; with `text`,
    the tokens of the text whose states at that layer do. A complex pair is a plane; its words are those that reach furthest into it.

    Two nulls. Random directions, or for a complex pair random planes of its shape: how much do the best words stand out when a
    direction means nothing (`read_z`, `write_z`; over the tokens of the text where one is given)? Haar heads with the singular values
    of the head and random frames, `draws` of them for each head, from a child of `seed` that belongs to its layer and head: how alike
    are read and written words there (`alike_null`, `alike_p`)? They are needed: u^T v = lambda ties the two sides of any leading mode
    together a little. A real mode is compared with the real ones among its draws, a plane with planes.

    Args:
        source: as in `checkpoints.flow`, or a `Flow`. Its architecture needs an adapter (`known_architectures`).
        layer, head: one, several, or None for all.
        modes: how many modes of largest real part of each head; a complex pair is one.
        words: length of the lists.
        text: None, or a text whose tokens take the place of the vocabulary on the reading side.
        draws: Haar heads for each head; the smallest p is about 2/`draws`.
        seed: of both nulls.

    Returns:
        Dataset over (layer, head, mode): `eigenvalue`, `is_real`, `alike` (-1..1), `alike_p`, `alike_usual` (median likeness of its
        Haar heads), `shared` (words in both lists), `read_z`, `write_z` (how far the lists stand out, in standard deviations of random
        directions), `read`, `written` (.., word), `alike_null`, `null_eigenvalue`,
        `null_is_real` (.., draw); over (layer, head): `sign_score`, and `null_sign_score` (.., draw). A head
        with fewer modes than asked for (pairs count once) has NaN there, `is_real` False and no words.
    """
    from metastable.checkpoints.flows.opening import flow as open_flow
    from metastable.checkpoints.sources import load_weights

    count, length = _checks.count(modes, "modes"), _checks.count(words, "words", 1, 1000)
    _checks.progress(progress)
    root, samples = _checks.seed(seed), _checks.count(draws, "draws", 1, 1_000_000)
    if text is not None and not is_text(text):
        raise InvalidInputError("text must be a text or a list of token ids: hidden states have no words to be read")
    flow = source if isinstance(source, Flow) else open_flow(source, revision=revision)
    weights = load_weights(flow.model)
    layers = _chosen(layer, weights.check_layer, weights.layer_count)
    heads = _chosen(head, weights.check_head, weights.head_count)
    count = _checks.count(count, "modes", 1, weights.head_dim)
    vocabulary = vocabulary_of(flow, weights.norm_kind)
    length = min(length, len(vocabulary.ids))
    tokens = None if text is None else flow.run(text, max_tokens=max_tokens, progress=False)
    if tokens is not None and len(tokens.start) < 3:
        raise InvalidInputError("text must have at least three tokens: the first is a sink and is not read")
    study = _Study(vocabulary, Moments.of(vocabulary), tokens, length, samples, root)
    found = Found((len(layers), len(heads), count), length, samples)
    with progress_bar("meaning", len(layers), progress) as report:
        for place, number in enumerate(layers):
            study.measure_layer(found, place, number, weights, heads)
            report(place + 1.0)
    return found.dataset(flow, vocabulary, layers, heads, root, study.reading)


@dataclass(frozen=True)
class _Items:
    """What can be read: directions (items, dim), token ids, and what random directions find among them."""

    directions: Any
    ids: Any
    null: StrengthNull


class _Study:
    """What all layers share: the words, what random directions find among them, and how heads are measured."""

    def __init__(
        self, vocabulary: Vocabulary, moments: Moments, tokens: FlowRun | None, length: int, draws: int, root: int
    ) -> None:
        self.vocabulary, self.moments, self.tokens = vocabulary, moments, tokens
        self.length, self.draws, self.root = length, draws, root
        self.write_null = strength_null(vocabulary.outputs, length, False, self._generator(DIRECTIONS_KEY))
        self.words = (
            _Items(vocabulary.inputs, vocabulary.ids, self._null(vocabulary.inputs, DIRECTIONS_KEY + 1))
            if tokens is None
            else None
        )

    @property
    def reading(self) -> str:
        return "embeddings" if self.tokens is None else "tokens of a text"

    def _generator(self, *key: int) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence(self.root, spawn_key=key))

    def _null(self, directions: Any, *key: int) -> StrengthNull:
        return strength_null(directions, self.length, True, self._generator(*key))

    def _items(self, number: int, norm: Norm) -> _Items:
        """The words, or the states of the text that enter layer `number`, without the first token (a sink) and without their mean.

        `norm`: the layer's own, unfolded: the states of a post-norm model hold its gain and shift, and u has the gain already.
        """
        if self.words is not None or self.tokens is None:
            assert self.words is not None
            return self.words
        states = norm.standardize(self.tokens.hidden[number].astype(np.float64))[1:]
        states /= np.linalg.norm(states, axis=1, keepdims=True)
        directions = (states - states.mean(axis=0)).astype(np.float32)
        ids = self.tokens.dataset["id"].values[1:]
        return _Items(directions, ids, self._null(directions, DIRECTIONS_KEY + 1, number))

    def measure_layer(self, found: Found, place: int, number: int, weights: AttentionWeights, heads: list[int]) -> None:
        """All chosen heads of a layer, with one product over the vocabulary for all of them."""
        layer = weights.layer(number)
        folded = layer.fold(center=weights.norm_kind == "layer")
        items = self._items(number, layer.norm)
        count = found.eigenvalue.shape[2]
        factors = [(folded.output[head], folded.value[folded.kv_head(head)]) for head in heads]
        trained = [modes_of(*pair, count) for pair in factors]
        reading, writing = (np.concatenate([getattr(one, side) for one in trained]) for side in ("read", "write"))
        r, s = project(self.vocabulary.inputs, reading), project(self.vocabulary.outputs, writing)
        over_items = r if self.tokens is None else project(items.directions, reading)
        first = 0
        for column, (head, modes) in enumerate(zip(heads, trained)):
            found.score[place, column] = modes.sign_score
            generator = self._generator(number, head)
            null = haar_likeness(singular_values(*factors[column]), count, self.moments, self.draws, generator)
            found.put_null((place, column), *null)
            rows = slice(first, first + len(modes.eigenvalue))
            self._measure_head(found, (place, column), modes, over_items[:, rows], r[:, rows], s[:, rows], items)
            first = rows.stop

    def _measure_head(
        self, found: Found, at: tuple[int, int], modes: Modes, over_items: Any, r: Any, s: Any, items: _Items
    ) -> None:
        """The modes of one head, from their scores over items and words (.., modes)."""
        shapes: list[FloatArray] = [plane_shape(side) for side in (modes.read, modes.write)]
        for mode, value in enumerate(modes.eigenvalue):
            real = bool(value.imag == 0)
            alike = likeness(r[:, mode], s[:, mode])
            one = read_mode(over_items[:, mode], s[:, mode], alike, real, found.words)
            read_shape, write_shape = (None if real else float(shape[mode]) for shape in shapes)
            z = (
                items.null.standardize(one.read_strength, read_shape),
                self.write_null.standardize(one.write_strength, write_shape),
            )
            found.put((*at, mode), complex(value), one, z, items.ids, self.vocabulary.ids)

"""The models of a run as a page has them: from when each holds, and what heading, attention, spectrum and marks show of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from metastable._checks import FloatArray
from metastable.analysis import predict
from metastable.explorer import measure, outcome
from metastable.figures.titles import in_letters, words_of_each
from metastable.model import Attention
from metastable.run import Run

LARGEST = 200_000
"""Characters of the models that travel with the page, so that the attention chart can be drawn."""
NOT_OF_ATTENTION = ("norm", "feedforward", "noise", "value", "output", "value_bias")
"""Fields, of models and of heads, that say nothing about who looks at whom."""


@dataclass(frozen=True)
class Stretch:
    """A model and the depth from which it holds, up to the next one."""

    begin: float
    model: Attention


def stretches(run: Run, times: FloatArray) -> list[Stretch]:
    """The different models of a run in order; a joint that is one of `times` but for rounding is that one."""
    pieces = run.schedule.pieces
    found = [pieces[0]]
    found += [(begin, model) for (_, before), (begin, model) in pairwise(pieces) if begin < run.end and model != before]
    nearest = [times[np.abs(times - begin).argmin()] for begin, _ in found]
    return [
        Stretch(float(time if abs(time - begin) <= 4 * np.spacing(begin) else begin), model)
        for time, (begin, model) in zip(nearest, found)
    ]


def numbers_at(models: list[Stretch], times: FloatArray) -> np.ndarray:
    """For each of `times` the number of the model that holds then."""
    return np.searchsorted([item.begin for item in models], times, side="right") - 1


def headings(models: list[Stretch], tokens: int, further: list[str]) -> list[str]:
    """What stands above the picture while each of the models holds: the words of titles, which of how many it is, and what is `further`
    to say."""
    found = words_of_each([item.model for item in models], tokens)
    several = [[] if len(found) == 1 else [f"model {number} of {len(found)}"] for number in range(1, len(found) + 1)]
    return [" · ".join(map(in_letters, (*words, *which, *further))) for words, which in zip(found, several)]


def pieces(models: list[Stretch], view: measure.View, tokens: int, further: list[str]) -> list[dict[str, Any]]:
    """What the page is told of the models; it asks for the attention of those with a `model`."""
    tables = _tables([item.model for item in models], tokens)
    return [
        {
            "from": item.begin,
            "heading": heading,
            "heads": len(item.model.all_heads),
            "model": table,
            **_look(item.model, view),
        }
        for item, heading, table in zip(models, headings(models, tokens, further), tables)
    ]


def _look(model: Attention, view: measure.View) -> dict[str, Any]:
    eigenvalue = complex(predict(model).eigenvalue)
    return {
        "total": measure.total_spectrum(model),
        "eigenvalue": [eigenvalue.real, eigenvalue.imag],
        "frozen": None if model.frozen is None else view(model.frozen.tokens).tolist(),
        **outcome.leading_shape(model, view),
    }


def _tables(models: Sequence[Attention], tokens: int) -> Sequence[dict[str, Any] | None]:
    """All of the models that says who looks at whom; None where the page cannot draw it: it needs the tokens themselves, and room."""
    nothing = [None] * len(models)
    if models[0].dim > 3:
        return nothing
    found = [_table(model.for_tokens(tokens).to_dict()) for model in models]
    return found if len(json.dumps(found)) <= LARGEST else nothing


def _table(whole: dict[str, Any]) -> dict[str, Any]:
    kept = {name: item for name, item in whole.items() if name not in NOT_OF_ATTENTION}
    return kept | {"heads": [_table(head) for head in kept["heads"]]} if kept.get("heads") else kept

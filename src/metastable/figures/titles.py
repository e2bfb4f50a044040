"""What a picture says above itself: tokens, dimension, the model or models that moved them, and whether the run stopped early."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterable, Sequence
from dataclasses import is_dataclass
from typing import Any

import numpy as np

from metastable._words import counted
from metastable.figures import style
from metastable.figures.moments import RunLike
from metastable.model.declare import parameters
from metastable.model.values import scalar_multiple

USUAL = {
    "weights": "softmax",
    "norm": "PostLN",
    "noise": r"$\sigma = 0$",
    "form": "$Q = K = I$",
    "value": "$V = I$",
    "feedforward": "no feed-forward layer",
    "frozen": "none frozen",
    "masses": "equal masses",
    "bias": "no bias",
}
"""What is not said of a model that has it, unless another model of the run has not."""
GREEK = {"beta": "β", "sigma": "σ"}
"""Letters of formulas."""
SHORT_MATRIX = 3
"""Size up to which a diagonal, or the weights of frozen tokens, are written out."""
PER_INCH = 13.0
"""Letters to an inch of a title."""


def describe(model: Any, tokens: int) -> str:
    """One line for a title: tokens, dimension, inverse temperature, mask and what else is not the default."""
    return ", ".join(words_of([model], tokens))


def describe_run(run: RunLike, inches: float = 1e9, more: str = "") -> str:
    """The same for a run, all of whose models are in it, and what `more` there is to say; broken into lines that fit a page so wide.

    Of several models (a `Schedule`, layers) it says how many there are, and where they differ the first and the last, or the range of
    beta. A run that stopped early says so.
    """
    words = words_of(getattr(run, "models", (run.model,)), len(run.start))
    status = getattr(run, "status", "success")
    if status != "success":
        words.append(f"stopped early at {style.time_label(float(run.times[-1]) if len(run.times) else 0.0)} ({status})")
    return broken([*words, more] if more else words, int(PER_INCH * inches))


def last_model(run: RunLike) -> Any:
    """The model that holds at the end of a run."""
    return getattr(run, "models", (run.model,))[-1]


def without_formulas(text: str) -> str:
    """A title for those who typeset no formulas: "beta = 9" for `$\\beta = 9$`."""
    text = text.replace(r"\to", "→").replace(r"\$", "\0").replace("$", "").replace("\0", "$")
    return re.sub(r"\\([A-Za-z]+)", r"\1", text)


def in_letters(text: str) -> str:
    """The same in the letters of formulas: "β = 9"."""
    for name, letter in GREEK.items():
        text = text.replace(f"\\{name}", letter)
    return without_formulas(text)


def words_of_each(models: Sequence[Any], tokens: int) -> list[list[str]]:
    """The parts of a title for each of several models: also what is usual, where another one of them is not."""
    facts = [_all_facts(model) for model in models]
    said = {
        name
        for name in dict.fromkeys(name for found in facts for name in found)
        if any(found.get(name, USUAL.get(name)) != USUAL.get(name) for found in facts)
    }
    return [
        [f"$n = {tokens}$", f"$d = {model.dim}$", *(text for name, text in found.items() if name in said)]
        for model, found in zip(models, facts)
    ]


def words_of(models: Sequence[Any], tokens: int) -> list[str]:
    """The parts of a title."""
    first = models[0]
    words = [f"$n = {tokens}$", f"$d = {first.dim}$"]
    if hasattr(first, "summary"):  # the layers of a checkpoint, which are no `Attention`
        return [*words, style.plain(first.summary), type(first.mask).__name__.lower()]
    if len(models) > 1:
        words.append(f"{len(models)} models")
    facts = [_facts(model) for model in models]
    for name in dict.fromkeys(name for found in facts for name in found):
        values = [found.get(name, USUAL.get(name, "")) for found in facts]
        distinct = list(dict.fromkeys(values))
        if len(distinct) == 1:
            words.append(values[0])
        elif name == "beta" and len(models) > 2:
            words.append(_beta_range(models))
        elif len(models) == 2:
            words.append(_joined(*values))
        elif values[0] != values[-1]:
            words.append(f"{values[0]} at first, {values[-1]} at last")
        else:
            between = distinct[1] if len(distinct) == 2 else f"{len(distinct) - 1} others"
            words.append(f"{values[0]} at first and at last, {between} in between")
    return words


def in_common(settings: Iterable[tuple[Any, int]], but: Collection[str] = ()) -> str:
    """What all of some settings (model, tokens) have in common, as one line, `but` for some fields: of a sweep what has no axis."""
    found = [{"tokens": f"$n = {tokens}$", "dim": f"$d = {model.dim}$", **_facts(model)} for model, tokens in settings]
    shared = set.intersection(*({*facts.items()} for facts in found)) if found else set()
    return (
        ", ".join(text for name, text in found[0].items() if (name, text) in shared and name not in but)
        if found
        else ""
    )


def _joined(before: str, after: str) -> str:
    """`$\\beta = 30 \\to 2$` of two formulas with one left-hand side, else both."""
    symbol = before.split(" = ")[0]
    if before.startswith("$") and before.count("$") == 2 and after.startswith(f"{symbol} = ") and after.endswith("$"):
        return f"{before[:-1]} \\to {after.split(' = ', 1)[1]}"
    return f"{before} $\\to$ {after}"


def _beta_range(models: Sequence[Any]) -> str:
    found = [head.beta for model in models for head in model.all_heads]
    return rf"$\beta$ between {min(found):g} and {max(found):g}"


def _facts(model: Any) -> dict[str, str]:
    """What sets an `Attention` apart, by field: the inverse temperature, the mask, and all that is not usual."""
    return {name: text for name, text in _all_facts(model).items() if text != USUAL.get(name)}


def _all_facts(model: Any) -> dict[str, str]:
    """What there is to say of an `Attention`, by field; of several heads nothing about their matrices."""
    heads = model.all_heads
    facts: dict[str, str] = {}
    if len(heads) == 1:
        facts["beta"] = rf"$\beta = {heads[0].beta:g}$" + (", 1 head" if model.beta is None else "")
    else:
        facts["beta"] = f"{len(heads)} heads"
    facts["mask"] = _variant(model.mask).lower()
    if getattr(model.mask, "include_self", True) is False:
        facts["mask"] += " without self"
    facts["weights"] = model.weights if isinstance(model.weights, str) else type(model.weights).__name__.lower()
    facts["norm"] = _variant(model.norm)
    facts["noise"] = rf"$\sigma = {model.noise:g}$"
    if len(heads) == 1:
        facts["form"] = USUAL["form"] if heads[0].bilinear is None and not _positional(heads[0]) else "own $Q$, $K$"
        facts["value"] = _value(heads[0], model.dim)
    facts["feedforward"] = USUAL["feedforward"] if model.feedforward is None else "feed-forward layer"
    facts["frozen"] = USUAL["frozen"] if model.frozen is None else _frozen(model.frozen.weights)
    facts["masses"] = USUAL["masses"] if model.masses is None else "unequal masses"
    if model.masses is not None and np.ptp(model.masses) == 0:
        facts["masses"] = f"masses {model.masses[0]:g}"
    facts["bias"] = USUAL["bias"] if model.bias is None else _variant(model.bias)
    return facts


def _variant(item: Any) -> str:
    """`NGPT(0.5)`, `Window(4)`: the name of a variant with its numbers."""
    numbers = [getattr(item, name) for name in parameters(item)] if is_dataclass(item) else []
    shown = [f"{value:g}" for value in numbers if not isinstance(value, bool) and isinstance(value, (int, float))]
    return type(item).__name__ + (f"({', '.join(shown)})" if shown else "")


def _frozen(weights: np.ndarray) -> str:
    """`3 frozen tokens of weights 1 to 5`: how many there are, and how much they weigh, unless that is 1."""
    words, low, high = counted(len(weights), "frozen token"), float(weights.min()), float(weights.max())
    if low == high:
        return words if low == 1 else f"{words} of weight {low:g}"
    if len(weights) <= SHORT_MATRIX:
        return f"{words} of weights {', '.join(f'{weight:g}' for weight in weights)}"
    return f"{words} of weights {low:g} to {high:g}"


def _positional(head: Any) -> bool:
    """True for a head whose logits are more than a bilinear form of two tokens."""
    return any(getattr(head, name, None) is not None for name in ("rotary", "query_bias", "key_bias"))


def _value(head: Any, dim: int) -> str:
    matrix = np.asarray(head.value_matrix(dim))
    factor = scalar_multiple(matrix)
    if factor is not None:
        return f"$V = {'' if factor == 1 else '-' if factor == -1 else f'{factor:g} '}I$"
    diagonal = np.diag(matrix)
    if dim <= SHORT_MATRIX and np.array_equal(matrix, np.diag(diagonal)):
        return f"$V =$ diag({', '.join(f'{number:g}' for number in diagonal)})"
    return "own $V$"


def filled(text: str, most: int) -> str:
    """A text in lines of at most so many letters: broken between words, but not around "=", nor inside of formulas."""
    whole = re.sub(r" = |(?<!\\)\$[^$]*\$", lambda part: part[0].replace(" ", "\xa0"), text)
    wrap = textwrap.TextWrapper(most, break_long_words=False, break_on_hyphens=False).wrap
    lines = [line for part in whole.split("\n") for line in wrap(part) or [""]]
    return "\n".join(lines).replace("\xa0", " ")


def broken(words: Sequence[str], most: int) -> str:
    """The words with commas between them, in lines of at most so many letters (as they look)."""
    lines: list[list[str]] = [[]]
    for word in words:
        if lines[-1] and len(without_formulas(", ".join([*lines[-1], word]))) > most:
            lines.append([])
        lines[-1].append(word)
    texts = [", ".join(line) for line in lines]
    # What is too long for a line by itself is broken between its words; formulas stay whole.
    return ",\n".join(
        text if "$" in text else textwrap.fill(text, most, break_long_words=False, break_on_hyphens=False)
        for text in texts
    )

"""What `metastable flow` runs: the stack and one looped layer, as they are, with parts off, and with nulls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import checkpoints, observe
from metastable._checks import number, seed
from metastable._progress import part_of, progress_bar
from metastable.analysis import MergeTree, cluster_labels, cluster_sizes, merge_tree
from metastable.checkpoints.flows.lens import cluster_words
from metastable.checkpoints.flows.plan import check_layers
from metastable.errors import UnsupportedError
from metastable.reports import tokens

if TYPE_CHECKING:
    import xarray as xr

    from metastable.checkpoints import Flow, FlowRun

WORDS = 3
"""Words that name a cluster."""
NAMED = 12
"""Clusters that are named in a picture, the largest ones."""

STACK: dict[str, dict[str, Any]] = {
    "the model": {},
    "attention only": {"parts": "attention"},
    "feed-forward only": {"parts": "mlp"},
    "null: text shuffled": {"null": "text"},
    "null: Haar values": {"null": "haar"},
    "null: random weights": {"null": "gaussian"},
}
LOOP: dict[str, dict[str, Any]] = {
    "attention only": {"parts": "attention"},
    "with its feed-forward part": {},
    "half the temperature": {"parts": "attention", "temperature": 0.5},
    "null: text shuffled": {"parts": "attention", "null": "text"},
    "null: Haar values": {"parts": "attention", "null": "haar"},
    "null: random weights": {"parts": "attention", "null": "gaussian"},
}
VARIANTS = {"stack": STACK, "loop": LOOP}
COST = {"stack": 1.0, "loop": 10.0}
"""About how long a run of each kind takes, for progress bars: loading a model and its decomposition are one."""


@dataclass(frozen=True)
class Choices:
    """Everything that was chosen, so that the report can say it."""

    max_tokens: int
    layer: int | None
    until: float
    radius: float
    drop_first: int
    seed: int


@dataclass(frozen=True)
class Variant:
    """One run, measured: `time`, `cosine`, `clusters` and `rank` along it, and the words of its largest clusters at the end."""

    run: FlowRun
    time: np.ndarray
    cosine: np.ndarray
    clusters: np.ndarray
    rank: float
    largest: int
    words: tuple[str, ...]


@dataclass(frozen=True)
class Study:
    """All variants, by name; `refused` says which could not be run and why."""

    flow: Flow
    choices: Choices
    layer: int
    tokens: int
    stack: Mapping[str, Variant]
    loop: Mapping[str, Variant]
    refused: Mapping[str, str]
    parts: xr.Dataset | None


MOMENTS = (1.0, 10.0, 30.0, 100.0)
"""Times in a loop at which the page counts clusters, and its end."""


def moments(until: float) -> list[float]:
    """The times of a loop at which clusters are counted."""
    return [time for time in MOMENTS if time < until] + [until]


def loop_times(until: float) -> list[float]:
    """Times to keep in a loop: the start, then even in log time from a tenth (at most) to the end, and `moments`."""
    first = min(0.1, until / 10)
    return sorted({0.0, *np.geomspace(first, until, 60)[:-1].tolist(), *moments(until)})


def _measure(flow: Flow, run: FlowRun, choices: Choices) -> Variant:
    kept = run.drop_first(choices.drop_first)
    labels = cluster_labels(kept.final, choices.radius)
    sizes = cluster_sizes(labels)
    largest = int(np.argmax(sizes))
    return Variant(
        kept,
        kept.times,
        kept.observe(observe.mean_cosine()).values,
        kept.observe(observe.clusters(choices.radius)).values,
        checkpoints.effective_rank(kept.final),
        int(sizes[largest]),
        _words(flow, kept, labels, [largest])[0],
    )


def _words(flow: Flow, run: FlowRun, labels: Any, chosen: Sequence[int]) -> list[tuple[str, ...]]:
    """Words of the chosen clusters at the end of a run; none where embeddings have another dimension than states."""
    try:
        return cluster_words(flow, run.hidden[-1], labels, WORDS, chosen)
    except UnsupportedError:
        return [()] * len(chosen)


def study(
    source: str,
    text: str,
    choices: Choices,
    *,
    device: str | None = None,
    revision: str | None = None,
    progress: bool | None = None,
    tell: Callable[[str], None] | None = None,
) -> Study:
    """Run everything. What a model cannot do (parts that cannot be told apart) is left out and said.

    `progress`: show a progress bar (None: on a terminal); `tell` is called with the name of what is done next.
    """
    number(choices.radius, "--radius", 0.0, np.pi, strict=True)
    number(choices.until, "--until", 0.0, strict=True)
    seed(choices.seed, "--seed")
    tokens.check_options(choices.max_tokens, choices.drop_first)
    told = tell or (lambda name: None)
    found: dict[str, dict[str, Variant]] = {"stack": {}, "loop": {}}
    refused: dict[str, str] = {}
    steps = [(kind, name) for kind, variants in VARIANTS.items() for name in variants]
    with progress_bar("flow", 2.0 + sum(COST[kind] for kind, _ in steps), progress) as report:
        told(f"loading {source}")
        flow = checkpoints.flow(source, device=device, revision=revision)
        tokens.check_text(source, flow.model, flow.tokenizer, text, choices.max_tokens, choices.drop_first)
        layer = flow.depth // 3 if choices.layer is None else choices.layer
        layer = check_layers(layer, None, flow.depth)[0]
        done = 1.0
        report(done)
        for place, (kind, name) in enumerate(steps):
            told(f"run {place + 1} of {len(steps)}: {kind}, {name}")
            more = (
                {"layer": layer, "until": choices.until, "times": loop_times(choices.until)} if kind == "loop" else {}
            )
            with part_of(report, done, COST[kind]):
                try:
                    run = flow.run(
                        text, max_tokens=choices.max_tokens, seed=choices.seed, **more, **VARIANTS[kind][name]
                    )
                    found[kind][name] = _measure(flow, run, choices)
                except UnsupportedError as reason:
                    refused[f"{kind}: {name}"] = str(reason)
            done += COST[kind]
        told("what each part of a layer does")
        try:
            parts = flow.decompose(text, max_tokens=choices.max_tokens, drop_first=choices.drop_first)
        except UnsupportedError as reason:
            parts, refused["decomposition"] = None, str(reason)
        report(done + 1.0)
    measured = len(next(iter(found["stack"].values())).run.start)
    return Study(flow, choices, layer, measured, found["stack"], found["loop"], refused, parts)


def merges(study: Study, variant: Variant) -> tuple[MergeTree, dict[int, str]]:
    """The merge tree of a variant, and size and words of its largest clusters at the end, by leader."""
    run: Any = variant.run  # a trajectory in all that a merge tree asks for
    tree = merge_tree(run, radius=study.choices.radius)
    sizes = cluster_sizes(tree.final_labels)
    chosen = [int(label) for label in np.argsort(-sizes, kind="stable")[:NAMED] if sizes[label] > 1]
    named: dict[int, str] = {}
    for label, words in zip(chosen, _words(study.flow, variant.run, tree.final_labels, chosen)):
        named[int(np.argmax(tree.final_labels == label))] = (
            f"{int(sizes[label])} → {' '.join(word.strip() or '␣' for word in words)}".strip(" →")
        )
    return tree, named

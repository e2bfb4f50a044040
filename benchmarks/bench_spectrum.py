"""`metastable spectrum` on SmolLM2: seconds and peak memory, against building the model with transformers and taking dim x dim
eigenvalues, as scripts do.

    python benchmarks/bench_spectrum.py

Each way runs in its own process; both must find the same leading eigenvalues.
"""

from __future__ import annotations

import multiprocessing
import resource
import time
from collections.abc import Callable

import numpy as np

FEW_LAYERS = [0, 10, 20]
"""The slow way is measured on these layers and scaled to all."""


def ours(layers: list[int] | None) -> np.ndarray:
    """metastable: attention weights only, one layer at a time, head_dim x head_dim matrices."""
    from metastable import checkpoints

    return checkpoints.ov_spectra(checkpoints.load_weights("smollm2"), layers=layers)["leading_with_kernel"].values.real


def script(layers: list[int] | None) -> np.ndarray:
    """transformers: the whole model in memory, eigenvalues of dim x dim matrices."""
    from metastable import checkpoints

    model, _ = checkpoints.load_model("smollm2")
    found = []
    for index in layers or range(model.config.num_hidden_layers):
        block = model.model.layers[index]
        gain = block.input_layernorm.weight.detach().double().numpy()
        value = block.self_attn.v_proj.weight.detach().double().numpy().reshape(3, 64, -1)
        output = block.self_attn.o_proj.weight.detach().double().numpy().reshape(-1, 9, 64)
        found.append([np.linalg.eigvals(output[:, h] @ (value[h // 3] * gain)).real.max() for h in range(9)])
    return np.array(found)


def measure(way: Callable, layers: list[int] | None, queue: multiprocessing.Queue) -> None:
    """Runs `way` and reports its result, seconds and peak memory."""
    start = time.perf_counter()
    result = way(layers)
    queue.put((result, time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))


def run(way: Callable, layers: list[int] | None) -> tuple[np.ndarray, float, float]:
    """`measure` in a process of its own."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=measure, args=(way, layers, queue))
    process.start()
    answer = queue.get()
    process.join()
    return answer


def main() -> None:
    """Both ways, and whether they agree."""
    from metastable.checkpoints.cache import convert_gguf
    from metastable.checkpoints.sources import packaged

    convert_gguf(packaged("smollm2"))
    mine, seconds, memory = run(ours, None)
    theirs, slow, large = run(script, FEW_LAYERS)
    np.testing.assert_allclose(mine[FEW_LAYERS], theirs, atol=1e-9)
    print(f"metastable, all {len(mine)} layers:           {seconds:6.1f} s  {memory:6.0f} MB")
    print(f"model + dim x dim, {len(FEW_LAYERS)} layers:            {slow:6.1f} s  {large:6.0f} MB")


if __name__ == "__main__":
    main()

"""Save a run over an older one and be killed before the n-th call of the file system (a program; its argument is a folder).

Each kill has a folder of its own, `FOLDER/n/run.zarr`. A program of its own, because zarr keeps a thread once it was used, and a
process with threads cannot be copied.
"""

import json
import os
import shutil
import sys
from functools import partial
from pathlib import Path

import xarray  # noqa: F401  (imported here once, not in every copy)
import zarr  # noqa: F401

import metastable as ms
from metastable import dataset
from tests.unit.stores.breaking import Breaker, killed_at


def simulate(beta: float) -> ms.Run:
    start = ms.sphere.uniform(3, dim=2, seed=0)
    return ms.simulate(ms.Attention(dim=2, beta=beta), start, times=[0.5], engine="reference")


def main(folder: Path) -> None:
    old, new = simulate(1.0), simulate(2.0)
    breaker = Breaker()
    os.fsync = breaker.fsync
    killed_at(lambda: dataset.save(old.dataset, folder / "old.zarr"), breaker, folder, 0)

    def count() -> None:
        shutil.copytree(folder / "old.zarr", folder / "0" / "run.zarr")
        calls = breaker.run(partial(save, folder / "0"), folder / "0", 0, lambda: None)
        (folder / "calls").write_text(json.dumps([calls, *breaker.moves[-2:]]))

    def save(place: Path) -> None:
        dataset.save(new.dataset, place / "run.zarr", overwrite=True)

    killed_at(count, breaker, folder, 0)
    calls, first, second = json.loads((folder / "calls").read_text())
    assert second == first + 1
    # All calls around the two moves; elsewhere, where zarr does the same again and again, every few.
    for at in sorted({*range(1, calls, 16), *range(first - 2, second + 4)}):
        place = folder / str(at)
        shutil.copytree(folder / "old.zarr", place / "run.zarr")
        killed_at(partial(save, place), breaker, place, at)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

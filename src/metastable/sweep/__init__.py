"""Sweeps: grids of ensembles, declared once, run on a laptop or a cluster, resumable, never losing a result.

- `Sweep`: what is swept, from TOML or Python, checked as a whole
- `run(sweep, out, ...)`: run what is not done yet; `open_results(out)`: the results so far, as an `xarray.Dataset`
- `estimate(sweep)`: tasks, time and size before anything runs; `status(out)`: how far it is

The same from a shell: `metastable sweep FILE --out DIR`, `metastable sweep status DIR`, `metastable sweep plot DIR`.
"""

from metastable.sweep.estimate import Estimate, estimate
from metastable.sweep.results import open_results
from metastable.sweep.runner import Outcome, run
from metastable.sweep.specification import Sweep
from metastable.sweep.status import Status, status
from metastable.sweep.tasks import Task

__all__ = ["Estimate", "Outcome", "Status", "Sweep", "Task", "estimate", "open_results", "run", "status"]

"""Where a run can be taken up, as part of its dataset: the variable `resume_state` and the attributes `resume` and `asked`.

Runs of earlier versions lack them and go on from their last state.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import dataset as datasets
from metastable.errors import IncompleteStoreError
from metastable.integrate.plan import Wishes
from metastable.integrate.solution import Resume, Solution, Statistics

if TYPE_CHECKING:
    import xarray as xr

STATE = "resume_state"
ASKED = ("method", "engine", "interaction")
"""What of the call is remembered as it was asked: "auto" may mean something else on a longer horizon."""


def remembered(resume: Resume | None, wishes: Wishes | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Where a run can be taken up, and what was asked, as variables and attributes of its dataset."""
    attributes: dict[str, Any] = {}
    if wishes is not None:
        attributes["asked"] = json.dumps({name: getattr(wishes, name) for name in ASKED})
    if resume is None:
        return {}, attributes
    known = {
        "method": resume.method,
        "t": resume.t,
        "statistics": asdict(resume.statistics),
        "control": resume.control,
    }
    return {STATE: (("token", "resume_column"), np.array(resume.state))}, attributes | {"resume": json.dumps(known)}


def asked(dataset: xr.Dataset) -> dict[str, str]:
    """What was asked for when the run was made; "auto" where it does not say."""
    return dict.fromkeys(ASKED, "auto") | json.loads(dataset.attrs.get("asked", "{}"))


def recall(dataset: xr.Dataset) -> Resume | None:
    """Where the run of a dataset can be taken up, None where it does not say."""
    if "resume" not in dataset.attrs or STATE not in dataset:
        return None
    try:
        known: dict[str, Any] = json.loads(dataset.attrs["resume"])
        statistics = Statistics(**{name: int(count) for name, count in known["statistics"].items()})
        memory = {str(name): float(value) for name, value in known["control"].items()}
        state = np.array(dataset[STATE].values, dtype=float)
        return Resume(str(known["method"]), float(known["t"]), state, statistics, memory)
    except (ValueError, TypeError, KeyError, AttributeError) as reason:
        raise IncompleteStoreError(f"the attribute resume of this run is damaged ({reason}); simulate again") from None


def solution_of(dataset: xr.Dataset) -> Solution:
    """The solution that a run was made of."""
    states = dataset["x"].values
    if "radius" in dataset:
        states = np.concatenate([states, dataset["radius"].values[:, :, None]], axis=2)
    attrs = dataset.attrs
    counts = (int(attrs[name]) for name in ("accepted", "rejected", "evaluations", "jacobians"))
    return Solution(
        dataset["time"].values,
        states,
        attrs["status"],
        Statistics(*counts),
        datasets.dense_of(dataset),
        attrs["message"],
        json.loads(attrs["notes"]),
        recall(dataset),
    )

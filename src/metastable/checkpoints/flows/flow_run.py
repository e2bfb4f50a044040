"""`FlowRun`: what a flow returns, with the attributes of a `Run`, so that the analysis and the figures take it as one."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from metastable import _checks
from metastable import dataset as stores
from metastable._checks import FloatArray
from metastable._words import counted
from metastable.checkpoints.flows import beginnings, caches
from metastable.errors import InvalidInputError, StoreError, TimeError, UnsupportedError
from metastable.handle import BEGIN, Handle, moments_of
from metastable.integrate.solution import Solution, Statistics
from metastable.model import Causal, Full, PostLN, PreLN


@dataclass(frozen=True)
class _LearnedHead:
    """A head of a checkpoint: it has no inverse temperature of its own."""

    @property
    def beta(self) -> float:
        raise UnsupportedError(
            "a checkpoint's heads have no beta from which a radius could be taken; give radius=, for example radius=0.3"
        )


@dataclass(frozen=True)
class LayerModel:
    """What moved the tokens, as far as the analysis and the figures ask: the layers of a checkpoint, not an `Attention`."""

    description: Mapping[str, Any]

    @property
    def dim(self) -> int:
        return int(self.description["dim"])

    @property
    def summary(self) -> str:
        """What moved the tokens, in words, for the titles of figures."""
        what = self.description.get("what")
        return f"{self.description['architecture']}, {what}" if what else "given states"

    @property
    def beta(self) -> None:
        """None: the heads of a checkpoint have no common inverse temperature."""
        return

    @property
    def all_heads(self) -> tuple[_LearnedHead, ...]:
        """The heads of one layer, which know nothing but their number."""
        return (_LearnedHead(),) * int(self.description["heads"])

    @property
    def mask(self) -> Causal | Full:
        return Causal() if self.description["causal"] else Full()

    @property
    def norm(self) -> PreLN | PostLN:
        return PostLN() if self.description["layer_kind"] == "post" else PreLN()

    @property
    def weights(self) -> str:
        return "softmax"

    @property
    def noise(self) -> float:
        return 0.0


def make(
    solution: Solution,
    start: np.ndarray,
    *,
    text: Sequence[str],
    ids: Sequence[int],
    description: Mapping[str, Any],
    attributes: Mapping[str, Any],
) -> FlowRun:
    """The run of a solution whose states are hidden states (times, tokens, dim) of the model's precision."""
    import xarray as xr

    from metastable import __version__

    tokens, dim = start.shape
    hidden = np.asarray(solution.states, dtype=start.dtype).reshape(-1, tokens, dim)
    x = hidden.astype(np.float64)
    radius = beginnings.lengths(x, solution.times)
    x /= radius[..., None]
    opening = start.astype(np.float64)
    statistics = solution.statistics
    data = xr.Dataset(
        {
            "x": (("time", "token", "coord"), x),
            "radius": (("time", "token"), radius),
            "hidden": (("time", "token", "coord"), hidden),
            "start": (("token", "coord"), opening / beginnings.lengths(opening[None], [0.0])[0][:, None]),
        },
        coords={
            "time": solution.times,
            "token": np.arange(tokens),
            "coord": np.arange(dim),
            "text": ("token", np.asarray(list(text), dtype=str)),
            "id": ("token", np.asarray(list(ids), dtype=np.int64)),
        },
        attrs={
            "format": stores.FORMAT,
            "metastable_version": __version__,
            "model": json.dumps({"kind": "checkpoint layers", **description}),
            "start_hash": stores.fingerprint(start),
            "status": solution.status,
            "message": solution.message,
            "accepted": statistics.accepted,
            "rejected": statistics.rejected,
            "evaluations": statistics.evaluations,
            "jacobians": 0,
            "notes": json.dumps({}),
            "engine": "torch",
            "interaction": "direct",
            **attributes,
        },
    )
    return FlowRun._of_computed(data)


@dataclass(frozen=True, eq=False, repr=False)
class FlowRun(Handle):
    """The result of `Flow.run`: a handle on an `xarray.Dataset` of the schema of every run.

    Dims `time`, `token`, `coord`. `x`: unit tokens, float64; `radius`: their lengths; `hidden`: the hidden states as the model has
    them, bit for bit; `start`: unit tokens at the beginning; coordinates `text` and `id` name the tokens. `cluster_labels`,
    `renyi_centers`, `merge_tree(run, radius=...)`, observables, `checkpoints.token_geometry(run.dataset)`,
    `checkpoints.capture_curves(run.dataset, delta)`, `run.plot()` and `run.animate(path)` work as for any other.
    """

    def __post_init__(self) -> None:
        import xarray as xr

        if not isinstance(self.dataset, xr.Dataset) or not {"x", "start", "time"} <= set(self.dataset.variables):
            raise InvalidInputError(
                "a FlowRun holds a dataset of Flow.run or from_states; open a store with FlowRun.load"
            )
        super().__post_init__()

    def __repr__(self) -> str:
        tokens, dim = self.start.shape
        return (
            f"<FlowRun: {counted(tokens, 'token')} in R^{dim}, {self._made.attrs.get('flow', 'layers')}, "
            f"t = {self.begin:g}..{self.end:g}, {self.method}, {counted(self.stats.accepted, 'step')}, {self.status}>"
        )

    @cached_property
    def model(self) -> LayerModel:
        """What moved the tokens."""
        return LayerModel(json.loads(self._made.attrs["model"]))

    @property
    def radius(self) -> FloatArray:
        """Lengths of the hidden states, shape (times, tokens)."""
        return self._made["radius"].values

    @property
    def hidden(self) -> np.ndarray:
        """Hidden states as the model has them, shape (times, tokens, dim)."""
        return self._made["hidden"].values

    @property
    def text(self) -> tuple[str, ...]:
        """The tokens' texts."""
        return tuple(str(item) for item in self._made["text"].values)

    @property
    def method(self) -> str:
        """ "layers" (the model's own), "euler" or "tsit5"."""
        return super().method

    @property
    def dense(self) -> None:
        """None: states between the saved times are not kept."""
        return

    def at(self, t: float | Sequence[float] | FloatArray) -> FloatArray:
        """Unit tokens at a saved time t, shape (tokens, dim); a list of times gives one more axis."""
        t = moments_of(t)
        if isinstance(t, np.ndarray):
            return np.array([self.at(float(time)) for time in t]).reshape(-1, *self.start.shape)
        near = np.flatnonzero(np.isclose(self.times, t, rtol=1e-9, atol=1e-9))
        if near.size:
            return self.states[near[0]]
        raise TimeError(
            f"this run kept {len(self.times)} times, and t = {t:g} is not among them; run it with times=[{t:g}, ...]"
        )

    def drop_first(self, tokens: int = 1) -> FlowRun:
        """The run without its first tokens: they still moved the others (the attention sink does), but are not measured."""
        tokens = _checks.count(tokens, "tokens", 0, len(self.start) - 1)
        return FlowRun._of_computed(self._kept().isel(token=slice(tokens, None)).copy())

    @staticmethod
    def load(path: str | os.PathLike[str]) -> FlowRun:
        """The run that `FlowRun.save` stored."""
        data = stores.load(path)
        if "hidden" not in data:
            raise StoreError(
                f"{path} holds a run of a model, not of a checkpoint's layers; open it with metastable.load"
            )
        return FlowRun._of_computed(data)


def from_states(states: Any, *, text: Sequence[str] | None = None, causal: bool = True) -> FlowRun:
    """Hidden states that you already have as a run, to be measured and drawn like any other.

    Args:
        states: an array (layers, tokens, dim) or a list of arrays or tensors (tokens, dim), layer after layer, such as the
            `hidden_states` that transformers returns; or a mapping of names to arrays (anything with `keys()` and items), as
            TransformerLens (`blocks.3.hook_resid_pre`, `hook_resid_mid`, `hook_resid_post`) and nnsight or hooks
            (`model.layers.3.output`) fill them; other names in it are passed over. A batch axis of one is dropped.
            TransformerLens changes a model's weights unless it is loaded without processing; its states are then not those of the
            checkpoint. Where the names begin at a later layer the run begins there: `run.begin` is its depth, `run.start` its state.
        text: names of the tokens.
        causal: whether tokens see only earlier ones (only for titles).
    """
    if beginnings.is_mapping(states):
        times, found = caches.all_from_cache(states)
        array = np.stack(found)
    else:
        array = beginnings.as_array(states, "states")
        if array.ndim == 4 and array.shape[1] == 1:
            array = array[:, 0]
        if array.ndim != 3 or array.dtype.kind != "f":
            raise InvalidInputError(f"states must have shape (layers, tokens, dim), not {array.shape} of {array.dtype}")
        times = [float(layer) for layer in range(len(array))]
    if not array.size:
        raise InvalidInputError(f"states hold nothing: their shape (layers, tokens, dim) is {array.shape}")
    _checks.real_array(array, "states")
    tokens, dim = array.shape[1:]
    names = [""] * tokens if text is None else _checks.instances(text, str, "text")
    if len(names) != tokens:
        raise InvalidInputError(f"text names {len(names)} tokens, but the states have {tokens}")
    causal = _checks.flag(causal, "causal")
    solution = Solution(np.array(times), array, "success", Statistics(len(times) - 1, 0, 0), None, "")
    description = {"dim": dim, "heads": 0, "causal": causal, "layers": [], "architecture": "given"}
    return make(
        solution,
        array[0],
        text=names,
        ids=[-1] * tokens,
        description={**description, "layer_kind": "given"},
        attributes={
            "flow": "given states",
            BEGIN: times[0],
            "method": "layers",
            "until": times[-1],
            "seed": -1,
            "dtype": str(array.dtype),
            # Nobody solved anything; a store has these attributes all the same.
            "rtol": 0.0,
            "atol": 0.0,
            "step": 1.0,
            "max_steps": len(times),
        },
    )

"""`Run`: the handle that users hold on a finished simulation."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import _checks
from metastable._checks import FloatArray
from metastable._progress import progress_bar
from metastable._words import counted
from metastable.errors import InvalidInputError, ModelError, StoppedEarlyWarning, TimeError, UnsupportedError
from metastable.handle import Handle, moments_of
from metastable.integrate.methods import FIXED_STEP
from metastable.integrate.plan import SETTLED_HORIZON, Accuracy, Plan, Save, Wishes
from metastable.integrate.solution import Dense, JoinedDense, Solution
from metastable.integrate.tableau import TABLEAUS
from metastable.kernels import select
from metastable.kernels.directions import require_directions
from metastable.model import Attention, Schedule

if TYPE_CHECKING:
    from metastable.meanfield.density import Density
    from metastable.run.trees import MergeTree


def from_solution(plan: Plan, start: FloatArray, solution: Solution, wishes: Wishes | None = None) -> Run:
    """The run that a solved plan makes of the tokens `start`; `wishes`: what was asked for."""
    from metastable import dataset
    from metastable.run.resume import remembered

    segments = solution.notes.get("segments", [])
    attributes = {
        "method": "+".join(dict.fromkeys(segment["method"] for segment in segments)) or plan.method,
        **asdict(plan.accuracy),
        "engine": plan.backend.engine,
        "interaction": plan.backend.interaction,
        "dtype": plan.backend.dtype,
        "until": plan.save.until,
        "seed": -1 if plan.seed is None else plan.seed,
    }
    if plan.joints:
        attributes["schedule"] = json.dumps(plan.joints)
        return Run._of_computed(dataset.from_solution(solution, plan.models, start, attributes))
    first = plan.model
    models = first if all(item is first or item == first for item in plan.models) else plan.models
    variables, known = remembered(solution.resume, wishes)
    return Run._of_computed(dataset.from_solution(solution, models, start, attributes | known, variables))


def warn_if_early(solution: Solution) -> None:
    """`StoppedEarlyWarning` where a solution did not reach its end; it is the caller's caller that is warned."""
    if solution.status != "success":
        warnings.warn(
            f"{solution.message} (the run holds what was reached, its status is {solution.status!r})",
            StoppedEarlyWarning,
            stacklevel=3,
        )


@dataclass(frozen=True, eq=False, repr=False)
class Run(Handle):
    """The result of `simulate`: a handle on an `xarray.Dataset`; what it shares with other results is in `metastable.handle.Handle`.

    Its arrays are read-only; `run.final.copy()` may be changed.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_all_tokens()
        self._check_all_time()

    def _check_all_tokens(self) -> None:
        """Refuse a dataset with other tokens than the run had: those moved among all of them."""
        from metastable.dataset import describes_layers, fingerprint

        attrs = self._made.attrs
        if not {"model", "start_hash"} <= attrs.keys() or "start" not in self._made or describes_layers(attrs["model"]):
            return  # what lacks them, or belongs to another class, is refused where it is used
        if attrs["start_hash"] != fingerprint(self._made["start"].values):
            raise InvalidInputError(
                "dataset has other tokens or coordinates than the run was started with, so it is no run: those it has moved among all "
                "of them. Select from its arrays instead, for example run.dataset.x.isel(token=slice(0, 10))"
            )

    def _check_all_time(self) -> None:
        """Refuse times that go back, and a part in time of a run with dense output: that would go on to show what lies before and
        behind the part."""
        if (np.diff(self.times) < 0).any():
            raise InvalidInputError("the times of a run increase, and those of dataset do not; slice them forwards")
        if not {"dense0_start", "dense0_width", "time"} <= {str(name) for name in self._made.variables}:
            return
        starts, widths, times = (self._made[name].values for name in ("dense0_start", "dense0_width", "time"))
        if starts.size == 0:
            return
        begin, end = float(starts[0]), float(starts[-1] + widths[-1])
        if times.size and times[0] <= begin and times[-1] >= end * (1 - 1e-12):
            return
        part = f"from t = {times[0]:g} to {times[-1]:g}" if times.size else "without any time"
        raise InvalidInputError(
            f"dataset is a part in time of a run ({part}), whose dense output covers t = {begin:g} to {end:g}, so it is no run: look "
            "at arrays, for example run.dataset.x.isel(time=slice(0, 4)), or simulate with until= or times= for a run of just that"
        )

    def __repr__(self) -> str:
        tokens, dim = self.start.shape
        return (
            f"<Run: {counted(tokens, 'token')} on the sphere of R^{dim}, t = 0..{self.end:g}, {self.method} on {self.engine}, "
            f"{counted(self.stats.accepted, 'step')}, {self.status}>"
        )

    def _repr_html_(self) -> str:
        from metastable.model.describe import table

        tokens, dim = self.start.shape
        stats, models = self.stats, self.models
        facts = {
            "tokens": f"{tokens} on the unit sphere of R^{dim}",
            "time": f"0 to {self.end:g}, {len(self.times)} states kept{'' if self.dense is None else ', dense output'}",
            "model": repr(models[0]) if len(models) == 1 else f"{len(models)} models, the first {models[0]!r}",
            "method": f"{self.method} on engine {self.engine}, {self.interaction} interaction",
            "work": f"{counted(stats.accepted, 'step')}, {stats.rejected} rejected, "
            + counted(stats.evaluations, "evaluation"),
            "status": f"{self.status}{': ' + self.message if self.message else ''}",
        }
        return table("Run", facts)

    @cached_property
    def models(self) -> tuple[Attention, ...]:
        """The models in order: those of a `Schedule`, or of the layers (one, where all are the same). `schedule` says which is when."""
        from metastable import dataset

        if dataset.describes_layers(self._made.attrs["model"]):
            raise UnsupportedError(
                "the layers of a checkpoint made this run, not an Attention; open it with metastable.checkpoints.FlowRun.load"
            )
        return dataset.models_of(self._made)

    @property
    def model(self) -> Attention:
        """The model (of the first layer)."""
        return self.models[0]

    @cached_property
    def schedule(self) -> Schedule:
        """Which model is when: the `Schedule` of the run; layer i of a layered run holds from depth i step on."""
        if len(self.models) == 1:
            return Schedule(((0.0, self.model),))
        joints = self._made.attrs.get("schedule")
        if joints is not None:
            return Schedule(tuple(zip(json.loads(joints), self.models)))
        step = float(self._made.attrs["step"])
        return Schedule(tuple((number * step, model) for number, model in enumerate(self.models)))

    def model_at(self, t: float) -> Attention:
        """The model that moves the tokens at depth t (the last one at the end)."""
        return self.schedule.at(t)

    @property
    def method(self) -> str:
        """The method that made the run; "tsit5+rodas" where an automatic one switched (`notes["segments"]` says when)."""
        return super().method

    @cached_property
    def _dense(self) -> Dense | JoinedDense | None:
        from metastable import dataset

        return dataset.dense_of(self._made)

    @property
    def dense(self) -> Dense | JoinedDense | None:
        """Dense output, where the run kept it (no `times` given, adaptive method)."""
        # A cached property itself would not be the attribute that `Trajectory` asks for, in the eyes of type checkers.
        return self._dense

    def at(self, t: float | Sequence[float] | FloatArray) -> FloatArray:
        """Tokens at time t, shape (tokens, dim): dense output of order four, or a saved time. A list of times gives one more axis.

        Layers, and steps under noise, have nothing in between.
        """
        t = moments_of(t)
        if isinstance(t, np.ndarray):
            return np.array([self.at(float(time)) for time in t]).reshape(-1, *self.start.shape)
        if self.dense is not None:
            return self.dense(t)[:, : self.model.dim]
        near = np.flatnonzero(np.isclose(self.times, t, rtol=1e-12, atol=0.0))
        if near.size:
            return self.states[near[0]]
        if t > self.end:
            raise TimeError(f"t = {t!r} is outside the run, which ends at {self.end!r}")
        nearest = float(self.times[np.abs(self.times - t).argmin()])
        raise TimeError(
            f"this run kept {counted(len(self.times), 'state')}, and none at t = {t!r} (the nearest is at {nearest!r}); "
            f"{self._between()}"
        )

    def _between(self) -> str:
        """What is between the states that a run without dense output kept, in words."""
        if self.method not in FIXED_STEP:
            return "simulated or extended with times= a run keeps states alone; simulate without times= to have every t"
        each = "layer" if self.method == "layers" else "step"
        more = "" if self._kept_every_step() else f", and without times= every {each} is kept"
        return f"its {each}s are {self._made.attrs['step']!r} apart, with nothing in between{more}"

    def _kept_every_step(self) -> bool:
        """True where no times were chosen."""
        return self.dense is not None or len(self.times) == self.stats.accepted + 1

    def density(self, t: float | None = None, bandwidth: float | None = None, axis: Any = None) -> Density:
        """The law of the tokens at time t (None: the end) as a smooth density; see `metastable.meanfield.Density.from_tokens`.

        Each token is smeared out by `bandwidth` radians (None: 0.5 n^(-1/(d + 3))). Circle and S^2; with an `axis`, in any dimension,
        the density of the heights <x, axis>. Masses count.

        >>> import metastable as ms
        >>> run = ms.simulate(ms.Attention(dim=2, beta=4.0), ms.sphere.uniform(100, dim=2, seed=0), until=2.0)
        >>> run.density(t=1.0).mass
        1.0
        """
        from metastable.meanfield.density import Density

        tokens = self.final if t is None else self.at(t)
        masses = self.model_at(self.end if t is None else t).masses
        return Density.from_tokens(tokens, bandwidth, masses=masses, axis=axis)

    def predict_merges(self, t: float | None = None, **options: Any) -> MergeTree:
        """The merges after time t (None: the end) as they follow from the clusters at t alone; see `metastable.predict_merges`.

        In a run of several models t is no earlier than the last joint: from then on one model holds (the last one, for ever).
        """
        from metastable.run.trees import predict_merges

        moment = self.end if t is None else _checks.number(t, "t", 0.0, error=TimeError)
        self._check_last_model(moment)
        return predict_merges(self.final if t is None else self.at(t), self.model_at(moment), moment, **options)

    def to_html(self, path: str | os.PathLike[str], **options: Any) -> None:
        """The run as one page that plays it: a file for a browser, a mail or a web host, which needs nothing else and no network.

        Of several models (a `Schedule`, layers) heading, attention, spectrum, energy and frozen tokens are those of the moment that is
        shown. A run without dense output (chosen `times`, layers, noise) is shown at its saved states, each held until the next.

        Parameters
        ----------
        path : where the page is written, "run.html".
        title, text : what stands above the picture.
        frames : moments that are shown, 361 unless said; runs without dense output have no more than their saved states.
        log : logarithmic time; None for runs beyond t = 1000.
        delta, radius : how far apart Renyi centers and how near tokens of one cluster are; None for 4 and 0.5 beta^(-1/2). A run of
            several models with different beta needs them, as `metastable.merge_tree` does.

        >>> import metastable as ms
        >>> run = ms.simulate(ms.Attention(dim=2, beta=9.0), ms.sphere.uniform(8, dim=2, seed=0), until=5.0)
        >>> from tempfile import mkdtemp
        >>> run.to_html(f"{mkdtemp()}/run.html", title="Eight tokens")
        """
        from metastable.explorer import export_run

        export_run.write(self, path, **options)

    def _check_last_model(self, moment: float) -> None:
        """Refuse a moment behind which other models come: what one model makes of it is not what the run does."""
        last, further = self.schedule.joints[-1], self.notes.get("next_joint")
        if further is not None:
            raise UnsupportedError(
                f"the Schedule of this run goes on with another model at depth {further:g}, which the run does not reach and does not "
                "hold; simulate the Schedule beyond its last joint, and ask that run"
            )
        if moment < last:
            raise UnsupportedError(
                f"behind t = {moment:g} other models come, and merges are predicted for one; this run has its last model from "
                f"t = {last:g} on: ask run.predict_merges(t) with t >= {last:g}, or read metastable.merge_tree(run)"
            )

    def append(self, tokens: Any, *, progress: bool | None = None) -> Run:
        """The run with more tokens behind the others: only the new ones are computed.

        Exact under masks where earlier tokens never notice later ones (causal, window, sink, prefix beyond its length). The earlier
        tokens are read off the dense output of an explicit run; for other runs the message says the call that does the same
        (under such a mask tokens move as if those behind them were not there, so all of them together are as exact).
        """
        from metastable.integrate import append

        model = self.model
        if len(self.models) > 1:
            raise UnsupportedError(
                f"append takes runs of one model; simulate all tokens together: {self._call('numpy.concatenate([run.start, tokens])')}"
            )
        new = _checks.tokens(tokens, "tokens", dim=model.dim)
        before, after = len(self.start), len(self.start) + len(new)
        if model.mask.fixed_length is not None:
            raise UnsupportedError(
                f"the mask is a matrix for {before} tokens (a rule is kept as the matrix that it made), which does not say whom "
                f"{after} tokens see; simulate all of them together, with a mask for {after}"
            )
        if not model.mask.extends(before, after):
            raise UnsupportedError(
                f"under {model.mask!r} the first {before} tokens move differently when more are there; "
                "simulate all of them together"
            )
        try:
            model.check_count(after)
        except ModelError as reason:
            call = self._call("numpy.concatenate([run.start, tokens])", "model")
            raise ModelError(
                f"{reason}. append goes on with the model of the run; simulate all tokens together, with "
                f"model=run.model.replace(...) made for {after} tokens: {call}"
            ) from None
        if self.status != "success":
            raise UnsupportedError(f"this run stopped early ({self.message}); {self._way_on()}")
        if self.dense is None or self.method not in TABLEAUS:
            raise UnsupportedError(
                f"append reads the earlier tokens off the dense output of an explicit run, which this one ({self.method}"
                f"{'' if self.dense is not None else ', without dense output'}) does not have; simulate all tokens together, the "
                f"earlier ones move as before: {self._call('numpy.concatenate([run.start, tokens])')}"
            )
        self._check_added_fits("coord")
        attrs = self._made.attrs
        plan = Plan(
            self.models,
            self.method,
            Save(self.end),
            Accuracy(attrs["rtol"], attrs["atol"], attrs["max_steps"]),
            select.choose(model, after, self.engine, "direct", dtype=attrs["dtype"]),
        )
        require_directions(model, np.concatenate([self.start, new]), first=before)
        with progress_bar("append", self.end, progress) as report:
            solution = append.solve(plan, self.dense, plan.packed(new), report)
        warn_if_early(solution)
        return self._with_added(from_solution(plan, np.concatenate([self.start, new]), solution))

    def extend(
        self,
        until: float | str | None = None,
        *,
        times: Any = None,
        method: str = "auto",
        max_steps: int | None = None,
        threads: int | None = None,
        progress: bool | None = None,
    ) -> Run:
        """The same run, further: what `simulate` with a later `until` would have given; only the new part is computed.

        Depth, radii, noise and the memory of the step control go on where they were, also in a run that was loaded. Equal to the
        run that is longer from the beginning: bit for bit for "layers" and "sde" (the noise goes on, too), to rounding for
        "tsit5" and "rodas" (the same steps are made; so with every step kept, the last one, which was cut short to end on
        time, is made anew), to the tolerance where the method changes (as "auto" may, by what is left to do), where the run was saved
        by version 0.1, and behind `append`.
        (`simulate(model, run.final)` is another thing: a new run, from depth 0 and with radii 1.)

        Parameters
        ----------
        until : the later time to reach, or "settled"; may be left out when `times` is given.
        times : further output times, all beyond `run.end`. A run that kept every step and is extended with `times` keeps its steps
            so far, but no dense output. A run that kept chosen times and is extended without them keeps the state at `until`. Either
            way the states that were kept stay as they are, the exact one at the earlier end included.
        method : "auto" goes on as the run was made; a run that was explicit because its horizon was short goes on implicitly where that
            pays. "tsit5" and "rodas" decide.
        max_steps : give up after this many further steps (None: as many as the run was given).
        threads, progress : as in `metastable.simulate`.

        >>> import metastable as ms
        >>> model, start = ms.Attention(dim=2, beta=9.0, norm=ms.PreLN()), ms.sphere.uniform(8, dim=2, seed=0)
        >>> further = ms.simulate(model, start, until=5.0).extend(until=20.0)
        >>> abs(further.final - ms.simulate(model, start, until=20.0).final).max() < 1e-12
        np.True_
        """
        from metastable.run.extension import extended

        self._check_added_fits("token", "coord")
        plan, wishes, solution = extended(self, until, times, method, max_steps, threads, progress)
        warn_if_early(solution)
        return self._with_added(from_solution(plan, self.start, solution, wishes))

    def _check_added_fits(self, *dims: str) -> None:
        """Refuse what was added to the dataset along dims of the run that are not `dims`: a longer one has them in another length."""
        for name in self._added()["variables"]:
            lost = sorted({*map(str, self.dataset[name].dims)} & {*map(str, self._made.dims)} - {*dims})
            if lost:
                raise InvalidInputError(
                    f"run.dataset[{name!r}], which you added, is over {', '.join(lost)} and would not fit the longer run; keep it "
                    f"elsewhere and take it out first: del run.dataset[{name!r}]"
                )

    def _with_added(self, longer: Run) -> Run:
        """`longer` with what was added to the dataset of this run, and with where this one is stored."""
        added = self._added()
        if not any(added.values()):
            return longer._continuing(self)
        names = added["variables"]
        data = longer.dataset.assign({name: self.dataset.variables[name] for name in names})
        data = data.set_coords([name for name in names if name in self.dataset.coords])
        own = {name: self.dataset.attrs[name] for name in added["attributes"]}
        return Run(data.assign_attrs(own))._continuing(self)

    def _continuing(self, earlier: Run) -> Run:
        """This run, which knows from now on where the `earlier` one is stored that it continues."""
        object.__setattr__(self, "_continued", earlier._stored or earlier._continued)
        return self

    def _way_on(self) -> str:
        """What to do with a run that stopped early before tokens are appended."""
        if self.status != "max_steps" or self.end >= SETTLED_HORIZON:
            return "tokens behind the others cannot go on alone; simulate the time before that, and append there"
        end = float(self._made.attrs["until"])
        wanted = "'settled'" if end >= SETTLED_HORIZON else repr(end)
        return f"finish it first: run.extend({wanted}, max_steps=...)"

    def _call(self, start: str, model: str = "run.model") -> str:
        """The call of `simulate` that makes this run from other tokens, and with another `model`."""
        attrs = self._made.attrs
        options = [
            f"{name}={attrs[name]!r}" for name in ("rtol", "atol") if self.method.split("+")[0] not in FIXED_STEP
        ]
        options += [f"step={attrs['step']!r}"] if self.method in FIXED_STEP else []
        options += [f"seed={attrs['seed']}"] if attrs["seed"] >= 0 else []
        method = "auto" if "+" in self.method else self.method
        several = "run.schedule" if "schedule" in attrs else "list(run.models)"
        models = several if len(self.models) > 1 else model
        when = f"until={self.end!r}" if self._kept_every_step() else "times=run.times"
        return f"metastable.simulate({models}, {start}, {when}, method={method!r}, {', '.join(options)})"


def load(path: str | os.PathLike[str]) -> Run:
    """The run that `Run.save` stored."""
    from metastable import dataset

    data, stored = dataset.opened(_checks.path(path))
    run = Run._of_computed(data)
    object.__setattr__(run, "_stored", stored)
    return run

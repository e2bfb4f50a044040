"""What moves life times: d log(life time)/d log(knob), by derivative where it exists and by paired ensembles where not."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import _checks, sphere, theory
from metastable._checks import FloatArray
from metastable.analysis.merging import MergeTree
from metastable.analysis.standing import Clusters
from metastable.control.asking import radius_of
from metastable.control.counting import gathered
from metastable.control.reduced import Event, changed, clusters_of, events_of, fall_of, tree_of
from metastable.errors import InvalidInputError, ModelError, TimeError
from metastable.model import NGPT, Attention, Causal
from metastable.run import Run

if TYPE_CHECKING:
    import pandas as pd

DERIVATIVES = ("beta", "masses", "distance", "sink")
"""Knobs in which the flow of clusters is smooth."""
STEP = 1e-3
"""Step in log(knob) of the differences; twice as much gives the next order and the error."""
TIGHT = 1e-10
"""Tolerance of the flow of clusters then."""


@dataclass(frozen=True)
class Elasticity:
    """One number: d log(life time)/d log(knob).

    Fields
    ------
    cluster : which one: "15 into 1", or "the last 3" for the time from which 3 clusters are left.
    life : the life time (the median over members, for ensembles).
    knob, value : what is turned, and the elasticity.
    low, high : an interval of 95 %; for derivatives, what they are known to numerically.
    theory : the same for a single token that falls onto the mass of its target (`theory.pair_elasticities`), or a law; None: none.
    how : "derivative", or the paired ensembles.
    """

    cluster: str
    life: float
    knob: str
    value: float
    low: float
    high: float
    theory: float | None
    how: str


@dataclass(frozen=True, repr=False)
class Elasticities:
    """Elasticities of life times, one row for each cluster and knob.

    `left_out`: what has none, in words: where the cluster falls elsewhere, or its time jumps, for values of the knob nearby.
    """

    rows: tuple[Elasticity, ...]
    left_out: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Elasticity:
        return self.rows[index]

    def of(self, knob: str) -> tuple[Elasticity, ...]:
        """The rows of one knob."""
        return tuple(row for row in self.rows if row.knob == knob)

    def to_dataframe(self) -> pd.DataFrame:
        """The rows as a pandas data frame."""
        import pandas as pd

        return pd.DataFrame([asdict(row) for row in self.rows])

    def __repr__(self) -> str:
        lines = [
            f"  {row.cluster:>12}  life {row.life:9.3g}  {row.knob:>8}  {row.value:9.4f}  ({row.low:.4f} to {row.high:.4f})"
            + ("" if row.theory is None else f"  theory {row.theory:.4f}")
            for row in self.rows
        ]
        lines += [f"  left out (it jumps): {text}" for text in self.left_out]
        return "\n".join(["<Elasticities: d log(life time)/d log(knob)", *lines]) + ">"

    def _repr_html_(self) -> str:
        names = ("cluster", "life time", "knob", "elasticity", "95 %", "theory", "how")
        head = "".join(f"<th style='text-align:left'>{name}</th>" for name in names)
        body = ""
        for row in self.rows:
            theory = "" if row.theory is None else f"{row.theory:.4f}"
            cells = (
                row.cluster,
                f"{row.life:.3g}",
                row.knob,
                f"{row.value:.4f}",
                f"{row.low:.4f} to {row.high:.4f}",
                theory,
                row.how,
            )
            body += "<tr>" + "".join(f"<td style='text-align:left'>{cell}</td>" for cell in cells) + "</tr>"
        return f"<table><tr>{head}</tr>{body}</table>"


def elasticities(
    source: Run | Attention,
    knobs: Sequence[str] | None = None,
    *,
    since: float | None = None,
    radius: float | None = None,
    **ensemble: Any,
) -> Elasticities:
    """How each life time depends on each knob: d log(life time)/d log(knob).

    *Of a run*: for each metastable cluster, the time until it falls into another one, by derivative of the flow of clusters from the
    state at `since` on (central differences with two steps at tolerance 1e-10: four more cascades a knob). Knobs: "beta"; "masses"
    (of the cluster that it falls into); "distance" (from that one, along the geodesic); "sink" (the weight of the frozen token,
    where the model has one). Theory is the exact quadrature for a token that falls onto so many, with nobody else around.

    *Of a model*: for the time from which `clusters` clusters are left, by ensembles that are paired member by member (same starts,
    same noise), with the knob a factor exp(+-turn) away: any knob of `metastable.control.tune`, such as "noise", "norm", "window",
    "sink", "gap". See `metastable.control.paired_elasticities` for the further arguments (tokens, clusters, until, members, turn,
    seed).

    Args:
        source: a `Run` or an `Attention`.
        knobs: names; None: of a run all that its model has, of a model "beta".
        since: depth of the clusters of a run (None: 100/|V|, or its end if that is earlier). A model has none.
        radius: of a cluster (None: that of the model).

    >>> import metastable as ms
    >>> import numpy as np
    >>> pair = np.array([[1.0, 0.0], [np.cos(2.0), np.sin(2.0)]])
    >>> run = ms.simulate(ms.Attention(dim=2, beta=16.0), pair, until=1.0)
    >>> found = ms.control.elasticities(run, ["beta"], since=0.0)[0]
    >>> abs(found.value - found.theory) < 1e-4
    True
    """
    if isinstance(source, Attention):
        from metastable.control.paired import paired_elasticities

        if since is not None:
            raise InvalidInputError(
                "since is the depth of the clusters of a run; members of a model begin at 0: leave it out"
            )
        return paired_elasticities(source, ["beta"] if knobs is None else knobs, radius=radius, **ensemble)
    _checks.instance(source, Run, "source")
    if ensemble:
        raise InvalidInputError(
            f"{next(iter(ensemble))!r} is for ensembles of a model; a run has the tokens that it has"
        )
    wanted = _knobs(knobs, source.model)
    clusters = _clusters(source, since, radius)
    natural = tree_of(clusters, tolerance=TIGHT)
    rows: list[Elasticity] = []
    left_out: list[str] = []
    for event in events_of(natural):
        for row in _rows(clusters, event, natural, wanted, source.model):
            if math.isfinite(row.value):
                rows.append(row)
            else:
                left_out.append(f"{row.cluster}, {row.knob}")
    return Elasticities(tuple(rows), tuple(left_out))


def _clusters(run: Run, since: float | None, radius: float | None) -> Clusters:
    if len(run.models) != 1:
        raise InvalidInputError("run must be of one model")
    moment = min(run.end, gathered(run.model)) if since is None else since
    moment = _checks.number(moment, "since", 0.0, run.end, error=TimeError)
    radius = radius_of(radius, run.model)
    state = run.final if moment == run.end else run.start if moment == 0.0 else run.at(moment)
    return clusters_of(state, run.model, moment, radius)


def _knobs(knobs: Sequence[str] | None, model: Attention) -> list[str]:
    if knobs is None:
        return [name for name in DERIVATIVES if name != "sink" or model.frozen is not None]
    given = _checks.listed(knobs, "knobs", "a name, such as ['beta']")
    names = list(dict.fromkeys(_checks.choice(name, "each of knobs", DERIVATIVES) for name in given))
    if not names:
        raise InvalidInputError(f"knobs names nothing; leave it out for all, or say which: {', '.join(DERIVATIVES)}")
    if "sink" in names and model.frozen is None:
        raise ModelError("the knob 'sink' is the weight of a frozen token, and this model has none")
    return names


def _rows(clusters: Clusters, event: Event, natural: MergeTree, knobs: list[str], model: Attention) -> list[Elasticity]:
    """The elasticities of one merge."""
    sink = model.frozen is not None
    weight = float(np.asarray(model.frozen.weights)[0]) if model.frozen is not None else 0.0
    here = {int(leader): number for number, leader in enumerate(clusters.leaders)}
    child, parent = here[event.child], here[event.parent]
    target = _target(clusters, parent, natural, event)
    turned: dict[str, Callable[[float], MergeTree]] = {
        "beta": lambda factor: tree_of(
            clusters, [(clusters.t0, factor * clusters.model.all_heads[0].beta)], tolerance=TIGHT
        ),
        "masses": lambda factor: tree_of(_heavier(clusters, target, factor), tolerance=TIGHT),
        "distance": lambda factor: tree_of(_further(clusters, child, parent, factor), tolerance=TIGHT),
        "sink": lambda factor: tree_of(_heavier_sink(clusters, weight, factor), tolerance=TIGHT),
    }
    rows = []
    for knob in knobs:
        value, error = _derivative(turned[knob], event, clusters.t0)
        expected = _theory(clusters, child, parent, target, knob)
        life = event.time - clusters.t0
        rows.append(
            Elasticity(event.pair(sink), life, knob, value, value - error, value + error, expected, "derivative")
        )
    return rows


def _derivative(turned: Callable[[float], MergeTree], event: Event, t0: float) -> tuple[float, float]:
    """d log(time - t0)/d log(knob) by central differences with steps h and 2 h, Richardson's combination, and its error; NaN where
    it jumps.
    """
    slopes = []
    for step in (STEP, 2.0 * STEP):
        waits = []
        for factor in (math.exp(step), math.exp(-step)):
            fall = fall_of(turned(factor), event.child)
            if fall is None or fall.parent != event.parent:
                return math.nan, math.nan
            waits.append(fall.time - t0)
        slopes.append(math.log(waits[0] / waits[1]) / (2.0 * step))
    return (4.0 * slopes[0] - slopes[1]) / 3.0, abs(slopes[0] - slopes[1]) / 3.0 + 1e-9 * abs(slopes[0])


def _target(clusters: Clusters, parent: int, natural: MergeTree, event: Event) -> list[int]:
    """The clusters that are where `parent` is when the event happens: itself, and who fell into it before."""
    labels = natural.labels_at(max(clusters.t0, event.time * (1.0 - 1e-12)))
    return [
        number
        for number, leader in enumerate(clusters.leaders)
        if labels[leader] == labels[event.parent] and leader != event.child
    ]


def _heavier(clusters: Clusters, target: list[int], factor: float) -> Clusters:
    """The same with the mass of some clusters changed, for all who see them from elsewhere."""
    masses = np.array(clusters.masses)
    for number in target:
        own = masses[number, number]
        masses[:, number] *= factor
        if isinstance(clusters.model.mask, Causal):
            masses[number, number] = own  # a leader sees itself, not its followers
    return changed(clusters, masses=masses)


def _heavier_sink(clusters: Clusters, weight: float, factor: float) -> Clusters:
    """The same with the frozen token, the first point, `factor` times as heavy as its `weight`; tokens on it stay as they are."""
    masses = np.array(clusters.masses)
    masses[1:, 0] += (factor - 1.0) * weight
    return changed(clusters, masses=masses)


def _further(clusters: Clusters, child: int, parent: int, factor: float) -> Clusters:
    """The same with the child's place moved along the geodesic from its parent, to `factor` times the distance."""
    places = np.array(clusters.places)
    distance = float(sphere.distance(places[child], places[parent]))
    places[child] = _along(places[parent], places[child], factor * distance)
    return changed(clusters, places=places)


def _along(origin: FloatArray, through: FloatArray, angle: float) -> FloatArray:
    """The point at `angle` from the origin on the great circle through another point."""
    tangent = through - (through @ origin) * origin
    tangent /= np.linalg.norm(tangent)
    return math.cos(angle) * origin + math.sin(angle) * tangent


def _theory(clusters: Clusters, child: int, parent: int, target: list[int], knob: str) -> float | None:
    """The quadrature for one token that falls onto the mass of its target, alone on the sphere."""
    if not clusters.causal or knob == "sink" or clusters.model.all_heads[0].bilinear is not None:
        return None
    distance = float(sphere.distance(clusters.places[child], clusters.places[parent]))
    mass = float(clusters.masses[child, target].sum() / clusters.masses[child, child])
    if not clusters.radius < distance < math.pi:
        return None
    found = theory.pair_elasticities(clusters.radius, clusters.model.all_heads[0].beta, distance, mass)
    return {"beta": found.beta, "masses": found.mass, "distance": found.distance}[knob]


def law_of(model: Attention, knob: str) -> float | None:
    """Elasticities that are known for every start: nGPT's alpha is the pace."""
    return -1.0 if knob == "norm" and isinstance(model.norm, NGPT) else None

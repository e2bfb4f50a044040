"""What a recipe is: one item of a paper as three plain functions of data (measure, judge, draw) and the claim it checks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from metastable import __version__, _checks

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

    from metastable.run import Run

Verdict = Literal["agrees", "agrees under a condition", "disagrees", "not available"]
VERDICTS: tuple[str, ...] = get_args(Verdict)

Report = Callable[[float], None]
"""Called with the fraction of the work that is done, 0..1."""


@dataclass(frozen=True)
class Settings:
    """What the user chose for the whole command.

    `members`: experiments of Figure 3; every other item uses its own number of draws, or `members` if that is smaller.
    """

    seed: int = 0
    members: int = 5000
    engine: str = "auto"

    def __post_init__(self) -> None:
        _checks.seed(self.seed)
        _checks.count(self.members, "members", minimum=2)
        _checks.choice(self.engine, "engine", ("auto", "reference", "cpu", "cuda"))

    def draws(self, wanted: int) -> int:
        """`wanted` draws, or fewer when the user asked for a small run."""
        return min(_checks.count(wanted, "wanted"), self.members)


@dataclass(frozen=True)
class Finding:
    """One line of the report: what the paper says, what was measured, by which test the verdict was reached.

    `ours`: the claim is not the paper's (a prediction or a question of this project, tested beside those of the paper).
    `computed`: nothing was simulated or drawn for it (formulas, states of rest and their stability).
    """

    claim: str
    measured: str
    test: str
    verdict: Verdict
    ours: bool = False
    computed: bool = False

    def __post_init__(self) -> None:
        _checks.choice(self.verdict, "verdict", VERDICTS)
        _checks.flag(self.ours, "ours")
        _checks.flag(self.computed, "computed")


@dataclass(frozen=True)
class Recipe:
    """One item: `measure` computes a dataset, `judge` and `draw` use nothing but that dataset.

    name : what the user types, for example "figure-3".
    title : one line.
    statement : what the paper (or, with `origin="beyond"`, this project) says.
    parameters : every number that enters, given to `measure` as its first argument.
    measure : (parameters, settings, report) -> xarray.Dataset with everything that was measured.
    judge : dataset -> findings, each decided by a statistical test.
    draw : dataset -> figure.
    uses : the settings that change the result ("seed", "members", "engine").
    revision : increase it when the meaning of the item changes, so that stored results are computed again.
    seconds : about how long it takes on two processors, for `metastable reproduce --list` (None: not measured).
    quick : parameters that make the item small, for tests (see `small`).
    hindsight : what of the item was chosen or changed after a result had been seen (empty: nothing); the report says it.
    options : what the command line needs to find the item, for example "--paper 2312.10794" (set by `Paper`).
    source : hash of the code of a paper outside the package, whose changes mean computing again (set by `load_paper`).
    play : dataset -> runs by title, which the report offers as pages that play them (None: there is nothing that moves).
    """

    name: str
    title: str
    statement: str
    parameters: Mapping[str, Any]
    measure: Callable[[Mapping[str, Any], Settings, Report], xr.Dataset]
    judge: Callable[[xr.Dataset], list[Finding]]
    draw: Callable[[xr.Dataset], Figure]
    origin: Literal["paper", "beyond"] = "paper"
    uses: tuple[str, ...] = ("seed", "members", "engine")
    revision: int = 1
    seconds: float | None = None
    quick: Mapping[str, Any] = field(default_factory=dict)
    hindsight: str = ""
    options: str = ""
    source: str = ""
    play: Callable[[xr.Dataset], Mapping[str, Run]] | None = None

    def small(self) -> Recipe:
        """The same item with the parameters of `quick`."""
        return replace(self, parameters={**self.parameters, **self.quick})

    def fingerprint(self, settings: Settings) -> str:
        """Hash of everything that decides the result: two results with the same fingerprint are the same computation."""
        _checks.instance(settings, Settings, "settings")
        content = {
            "name": self.name,
            "revision": self.revision,
            "version": __version__,
            "parameters": dict(self.parameters),
            "settings": {name: getattr(settings, name) for name in self.uses},
        }
        if self.source:
            content["source"] = self.source
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16]

    def command(self, settings: Settings) -> str:
        """The command line that recomputes this item alone."""
        _checks.instance(settings, Settings, "settings")
        defaults = Settings()
        chosen = [f"--seed {settings.seed}"]
        if settings.members != defaults.members:
            chosen.append(f"--members {settings.members}")
        if settings.engine != defaults.engine:
            chosen.append(f"--engine {settings.engine}")
        return " ".join(["metastable reproduce", *([self.options] if self.options else []), self.name, *chosen])


def overall(findings: Sequence[Finding]) -> Verdict:
    """The item's verdict: that of its findings when they are unanimous, otherwise "agrees under a condition" (the lines say which).

    Claims of our own count only where the item has no others, and findings that could not be checked only if nothing else was.
    """
    checked = [finding for finding in findings if finding.verdict != "not available"]
    counted: set[Verdict] = {finding.verdict for finding in checked if not finding.ours}
    counted = counted or {finding.verdict for finding in checked}
    if not counted:
        return "not available"
    return counted.pop() if len(counted) == 1 else "agrees under a condition"

"""Who can do what: the one place that compares engines and turns "auto" into a name."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Literal, get_args

from metastable import _checks
from metastable._checks import FloatArray
from metastable.errors import InvalidInputError, TimeError, UnsupportedError
from metastable.kernels import reference
from metastable.kernels.protocol import Interaction, Precision, RightHandSide
from metastable.model import Attention, require

Engine = Literal["reference", "cpu", "cuda"]
ENGINES: tuple[str, ...] = ("auto", *get_args(Engine))
INTERACTIONS: tuple[str, ...] = ("auto", *get_args(Interaction))
PRECISIONS: tuple[str, ...] = get_args(Precision)

IMPLICIT = ("auto", "rodas")
"""Methods that end in implicit steps: their forces are far below the rounding of a series. ("auto" is what is left of the wish
when nothing simpler was found, see `integrate.planning`.)"""
LONG_HORIZON = 1e3
"""Beyond this time forces of metastable clusters fall below the rounding floor of a series: only direct sums are used."""


@dataclass(frozen=True)
class Backend:
    """What does the work: the engine, how it sums interactions, on how many threads (None: all), in which precision."""

    engine: Engine
    interaction: Interaction = "direct"
    threads: int | None = None
    dtype: Precision = "float64"


def engine_module(engine: str) -> ModuleType:
    """The module of an engine (imported when first used: Numba takes a while)."""
    return reference if engine == "reference" else import_module(f"metastable.kernels.{engine}")


def choose(
    model: Attention,
    tokens: int,
    engine: str = "auto",
    interaction: str = "auto",
    horizon: float = 0.0,
    threads: int | None = None,
    *,
    members: int = 1,
    method: str = "tsit5",
    dtype: str = "float64",
) -> Backend:
    """The engine and interaction for a model, or `UnsupportedError` with the reason when the named one cannot do it.

    `horizon` is the time to be reached; a series is never chosen (and refused when asked for) beyond `LONG_HORIZON`. "auto"
    means the GPU only where `members` and tokens are many and the work is explicit: implicit steps are made on the CPU.
    `dtype="float32"` is for statistics on the GPU.
    """
    _checks.choice(engine, "engine", ENGINES)
    _checks.choice(interaction, "interaction", INTERACTIONS)
    _checks.choice(dtype, "dtype", PRECISIONS)
    if threads is not None:
        threads = _checks.count(threads, "threads")
    reference.check_range(model)
    explicit = method == "tsit5" and horizon <= LONG_HORIZON
    chosen = _choose_engine(model, tokens, engine, members, explicit)
    if dtype == "float32" and chosen != "cuda":
        raise UnsupportedError(f"dtype='float32' is for engine='cuda', not {chosen!r}; use dtype='float64'")
    if method in IMPLICIT and interaction == "series":
        raise UnsupportedError(f"method={method!r} on a long horizon sums directly; use interaction='direct' or 'auto'")
    summed = "direct" if method in IMPLICIT else _choose_interaction(model, tokens, chosen, interaction, horizon)
    return Backend(chosen, summed, threads, dtype)  # type: ignore[arg-type]


def _choose_engine(model: Attention, tokens: int, engine: str, members: int, explicit: bool) -> str:
    if engine != "auto":
        reason = engine_module(engine).refusal(model, tokens)
        if reason is not None:
            raise UnsupportedError(reason)
        return engine
    if explicit and engine_module("cuda").wins(model, tokens, members):
        return "cuda"
    if engine_module("cpu").refusal(model, tokens) is None:
        return "cpu"
    require(model, reference.SUPPORT, tokens)
    return "reference"


def _choose_interaction(model: Attention, tokens: int, engine: str, interaction: str, horizon: float) -> str:
    if engine == "reference":
        if interaction == "series":
            raise UnsupportedError("engine='reference' has no series interaction; use engine='cpu'")
        return "direct"
    module = engine_module(engine)
    if interaction == "series":
        if horizon > LONG_HORIZON:
            raise InvalidInputError(
                f"interaction='series' is accurate to about 1e-16 times the number of tokens, which is more than the forces "
                f"that matter beyond t = {LONG_HORIZON:g}; use interaction='direct'"
            )
        reason = module.series_refusal(model, tokens)
        if reason is not None:
            raise UnsupportedError(reason)
        return "series"
    wins = interaction == "auto" and horizon <= LONG_HORIZON and module.series_wins(model, tokens)
    return "series" if wins else "direct"


def right_hand_side(model: Attention, tokens: int, choice: Backend, first: int = 0) -> RightHandSide:
    """The velocity on packed states from the chosen engine; rows below `first` are inputs only."""
    if choice.engine == "reference":
        return reference.right_hand_side(model, tokens, first)
    options = {"dtype": choice.dtype} if choice.engine == "cuda" else {}
    return engine_module(choice.engine).right_hand_side(
        model, tokens, first, interaction=choice.interaction, threads=choice.threads, **options
    )


def velocity(
    model: Attention,
    x: FloatArray,
    engine: str = "auto",
    *,
    t: float = 0.0,
    radius: FloatArray | None = None,
    interaction: str = "direct",
    threads: int | None = None,
) -> FloatArray:
    """The right-hand side at x: dx_k/dt of every token (of its direction, for norms with a radius), shape (tokens, dim).

    `radius` (tokens,) is for `PreLN`, `MixLN` and `PeriLN` (default: ones); `t` for norms that depend on depth.

    >>> velocity(Attention(dim=2, beta=1.0), [[1.0, 0.0], [0.0, 1.0]], engine="reference").round(3)
    array([[ 0.   ,  0.   ],
           [ 0.269,  0.   ]])
    """
    import numpy as np

    if not isinstance(model, Attention):
        raise InvalidInputError(f"model must be an Attention, not {model!r}")
    t = _checks.number(t, "t", 0.0, error=TimeError)
    tokens = model.check_tokens(x, "x")
    choice = choose(model, len(tokens), engine, interaction, threads=threads)
    packed = tokens
    if model.norm.has_radius:
        column = np.ones(len(tokens)) if radius is None else _checks.vector(radius, "radius", len(tokens))
        if (column <= 0).any():
            raise InvalidInputError(f"radius must be positive, but entry {int(column.argmin())} is {column.min():g}")
        packed = np.concatenate([tokens, column[:, None]], axis=1)
    elif radius is not None:
        raise InvalidInputError(f"{type(model.norm).__name__} has no radius; leave radius out")
    out = np.zeros_like(packed)
    right_hand_side(model, len(tokens), choice)(t, packed, out)
    return out[:, : model.dim] + 0.0

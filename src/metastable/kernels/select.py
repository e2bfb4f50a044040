"""Who can do what: the one place that compares engines and turns "auto" into a name."""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from metastable import _checks
from metastable._checks import FloatArray
from metastable.errors import InvalidInputError, TimeError, UnsupportedError
from metastable.kernels import reference
from metastable.kernels.directions import require_directions
from metastable.kernels.protocol import Interaction, Precision, RightHandSide, Steps
from metastable.model import Attention, require, why_not

if TYPE_CHECKING:
    from metastable.kernels.pullback import Pullback

Engine = Literal["reference", "cpu", "cuda", "torch"]
ENGINES: tuple[str, ...] = ("auto", *get_args(Engine))
INTERACTIONS: tuple[str, ...] = ("auto", *get_args(Interaction))
PRECISIONS: tuple[str, ...] = get_args(Precision)

SINGLE = ("cuda", "torch")
"""Engines that have single precision."""
EXPLICIT = ("reference", "cuda", "torch")
"""Engines that have nothing but explicit steps: with one of them "auto" is explicit, whatever the horizon."""
LONG_HORIZON = 1e3
"""Beyond this time forces of metastable clusters fall below the rounding floor of a series: only direct sums are used (noise hides
forces that small at any time)."""


PRODUCTS_FROM = 128
"""Dimension from which matrix products (torch, or NumPy in the reference engine) beat the compiled loops of engine="cpu": measured
on one thread, cpu / torch is 0.5 to 0.7 at d = 64, 1 to 1.9 at d = 128, 4.4 at d = 384 with 12 heads, 4.7 at d = 576 with 9."""
GPU_LOOPS_TO, GPU_LOOPS_LONG = 16, 8192
"""The same on a GPU, for single systems: up to this dimension engine="cuda" wins, and up to its largest (32) for more tokens than
this. Measured on an H200, cuda / torch: 1.4 to 2.3 at n = 4096, 0.5 to 0.85 at n = 16384 and 65536, for d = 20 to 32 in both
precisions; in float64 1.3 to 4.6 at d = 48."""


class Wins(NamedTuple):
    """The least dimension and number of tokens from which torch is taken."""

    dim: int
    tokens: int


TORCH_WINS = {"several heads of low rank": Wins(32, 64), "others": Wins(64, 256)}
"""Where torch, once installed, beats the reference engine (the same matrix products in NumPy) on the CPU.

Measured on one thread, reference / torch: 1.3 to 2.3 for several heads of low rank (d = 64, 384, 576 with 8, 12, 9 heads, n = 64 to
2048). For one head (d = 64, 384, 576, n = 256 and 512) 1.1 to 1.7 on an Intel Xeon, where torch's products are the better ones, and
0.85 to 1.1 on an AMD EPYC. Below these sizes importing torch takes longer than what it saves."""


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
    steps: Steps = "explicit",
    dtype: str = "float64",
) -> Backend:
    """The engine and interaction for a model, or `UnsupportedError` with the reason when the named one cannot do it.

    `horizon` is the time to be reached; without noise a series is never chosen (and refused when asked for) beyond `LONG_HORIZON`.
    "auto" means the GPU only where `members` and tokens are many and `steps` are explicit: others are made on the CPU. Forces of
    implicit steps are far below the rounding of a series.
    `dtype="float32"` is for statistics on the GPU.
    """
    _checks.choice(engine, "engine", ENGINES)
    _checks.choice(interaction, "interaction", INTERACTIONS)
    _checks.choice(dtype, "dtype", PRECISIONS)
    if threads is not None:
        threads = _checks.count(threads, "threads")
    reference.check_range(model)
    explicit = steps == "explicit" and horizon <= LONG_HORIZON
    chosen = _choose_engine(model, tokens, engine, members, explicit)
    if dtype == "float32":
        if chosen not in SINGLE:
            raise UnsupportedError(
                f"dtype='float32' is for engine='cuda' or 'torch', not {chosen!r}; use dtype='float64'"
            )
        reason = engine_module(chosen).refusal(model, tokens, dtype)
        if reason is not None:
            raise UnsupportedError(reason)
    if steps == "implicit" and interaction == "series":
        raise UnsupportedError("implicit steps on a long horizon sum directly; use interaction='direct' or 'auto'")
    summed = "direct" if steps == "implicit" else _choose_interaction(model, tokens, chosen, interaction, horizon)
    return Backend(chosen, summed, threads, dtype)  # type: ignore[arg-type]


def _choose_engine(model: Attention, tokens: int, engine: str, members: int, explicit: bool) -> str:
    if engine != "auto":
        reason = engine_module(engine).refusal(model, tokens)
        if reason is not None:
            raise UnsupportedError(reason)
        if engine == "torch":
            engine_module(engine).library()  # its own named error where it is not installed
        return engine
    if explicit and members == 1 and _products_on_gpu(model, tokens):
        return "torch"
    if explicit and engine_module("cuda").wins(model, tokens, members):
        return "cuda"
    compiled = engine_module("cpu").refusal(model, tokens) is None
    if compiled and (model.dim < PRODUCTS_FROM or members > 1):
        return "cpu"
    if _torch_wins(model, tokens):
        return "torch"
    require(model, reference.SUPPORT, tokens)
    return "reference"


def _torch_wins(model: Attention, tokens: int) -> bool:
    """True when torch is installed, can do the model, and was measured to be faster than the reference engine."""
    low_rank = len(model.all_heads) > 1 and any(head.has_factors for head in model.all_heads)
    row = TORCH_WINS["several heads of low rank" if low_rank else "others"]
    if model.dim < row.dim or tokens < row.tokens:
        return False
    module = engine_module("torch")
    return module.installed() and module.refusal(model, tokens) is None


def _products_on_gpu(model: Attention, tokens: int) -> bool:
    """True when a GPU pays and its matrix products beat the loops of engine="cuda", or do what that cannot."""
    cuda, torch = engine_module("cuda"), engine_module("torch")
    short = tokens <= GPU_LOOPS_LONG or cuda.refusal(model, tokens) is not None
    if model.dim <= GPU_LOOPS_TO or not short or not cuda.pays(model, tokens):
        return False
    return torch.installed() and torch.refusal(model, tokens) is None and torch.library().cuda.is_available()


def _choose_interaction(model: Attention, tokens: int, engine: str, interaction: str, horizon: float) -> str:
    module = engine_module(engine)
    if not hasattr(module, "series_wins"):
        if interaction == "series":
            raise UnsupportedError(f"engine={engine!r} has no series interaction; use engine='cpu'")
        return "direct"
    scale = _time_scale(model)
    if interaction == "series":
        if horizon > LONG_HORIZON * scale:
            raise InvalidInputError(
                f"interaction='series' is accurate to about 1e-16 times the number of tokens, which is more than the forces "
                f"that matter beyond t = {LONG_HORIZON * scale:g}; use interaction='direct'"
            )
        reason = module.series_refusal(model, tokens)
        if reason is not None:
            raise UnsupportedError(reason)
        return "series"
    wins = interaction == "auto" and horizon <= LONG_HORIZON * scale and module.series_wins(model, tokens)
    return "series" if wins else "direct"


def _time_scale(model: Attention) -> float:
    """The unit of time of the fastest force: one for weights that are divided by their sum, else e^-|beta|.

    Noise drowns every force that rounding could hide: then no horizon is too long for a series.
    """
    if model.noise > 0:
        return math.inf
    if model.weighting.kind != "unnormalized":
        return 1.0
    return math.exp(-min(700.0, max(abs(head.beta) for head in model.all_heads)))


def right_hand_side(model: Attention, tokens: int, choice: Backend, first: int = 0) -> RightHandSide:
    """The velocity on packed states from the chosen engine; rows below `first` are inputs only."""
    if choice.engine == "reference":
        return reference.right_hand_side(model, tokens, first)
    options = {"dtype": choice.dtype} if choice.engine in SINGLE else {}
    return engine_module(choice.engine).right_hand_side(
        model, tokens, first, interaction=choice.interaction, threads=choice.threads, **options
    )


DIFFERENTIABLE: tuple[str, ...] = ("auto", "reference", "cpu")
"""Engines with derivatives."""


def choose_derivative(model: Attention, tokens: int, engine: str = "auto") -> str:
    """The engine for derivatives of a model, or `UnsupportedError` with the reason why the named one has none."""
    from metastable.kernels import pullback as readable

    _checks.choice(engine, "engine", ENGINES)
    if engine not in DIFFERENTIABLE:
        raise UnsupportedError(f"engine={engine!r} has no derivatives; use engine='cpu' or 'reference'")
    support = engine_module("cpu").DERIVATIVE
    if engine == "cpu":
        require(model, support, tokens)
    elif engine == "reference" or model.dim >= PRODUCTS_FROM or why_not(model, support, tokens) is not None:
        require(model, readable.SUPPORT, tokens)
        return "reference"
    return "cpu"


def pullback(model: Attention, tokens: int, choice: Backend, chart: str = "ambient") -> Pullback:
    """Derivatives of the velocity from the chosen engine, for states in `chart`."""
    if choice.engine == "cpu":
        return engine_module("cpu").make_pullback(model, tokens, chart, choice.threads)
    from metastable.kernels import pullback as readable

    return readable.make_pullback(model, tokens)


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

    >>> (velocity(Attention(dim=2, beta=1.0), [[1.0, 0.0], [0.0, 1.0]], engine="reference").round(3) + 0.0).tolist()
    [[0.0, 0.0], [0.269, 0.0]]
    """
    import numpy as np

    if not isinstance(model, Attention):
        raise InvalidInputError(f"model must be an Attention, not {model!r}")
    t = _checks.number(t, "t", 0.0, error=TimeError)
    tokens = model.check_tokens(x, "x")
    choice = choose(model, len(tokens), engine, interaction, threads=threads)
    require_directions(model, tokens, t)
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

"""What the CUDA engine can do and when it wins. No Numba here: asking costs nothing."""

from __future__ import annotations

import math
import os
from dataclasses import replace

import numpy as np

from metastable.kernels import single
from metastable.kernels.cuda import device
from metastable.kernels.expansion import EPSILON, expected_modes, frozen_share, too_much
from metastable.kernels.minimax import LOG2E
from metastable.model import Attention, Causal, Full, Head, Rule, Support, why_not
from metastable.model.refusals import PROBE

LARGEST_GAP = {"float64": 900.0, "float32": 90.0}
"""How far (in powers of two) the Cauchy-Schwarz bound may lie above a token's own logit before row maxima are computed first."""

LOG_MAX = {"float64": 700.0, "float32": 80.0}
"""Unnormalised weights beyond exp of this are refused."""

LARGEST_DIM = 32
"""Largest dimension of direct sums: beyond, matrix products (engine="torch") are faster (see docs/performance-gpu.md)."""

FUSED_DIM = 8
"""Largest dimension that is integrated inside a thread block."""

FUSED_THREADS = 1024
"""Largest thread block; each thread owns two tokens."""

MOST_MEMBERS = 2**15
"""Members per launch: enough to fill any GPU, few enough to report progress."""

PAIRS_PER_SECOND = {"cpu": 8e8, "cuda": 5e11}
"""Float64 rates on the circle of one core and of a data centre GPU (see docs/performance-gpu.md)."""

MODES_PER_SECOND = {"cpu": 1e9, "cuda": 2e11}
"""The same for tokens times modes of a series."""

CALL_SECONDS = 4e-4
"""What one evaluation costs on the GPU at least: launches, and a share of the round trip of the error norm."""


def refusal(model: Attention, tokens: int, dtype: str = "float64") -> str | None:
    """Why the CUDA engine cannot do the model on this machine, with the fix; None if it can."""
    return why_not(model, DIRECT[dtype], tokens) or device.missing()


def _range_rule(dtype: str) -> Rule:
    """Weights that are not divided by their sum must stay within the range of the precision."""

    def broken(model: Attention, tokens: int | None) -> str | None:
        if model.weighting.kind != "unnormalized":
            return None
        size = max(head.beta * head.bilinear_size for head in model.all_heads)
        if size <= LOG_MAX[dtype]:
            return None
        return f"keeps unnormalized weights below exp({LOG_MAX[dtype]:.0f}) in {dtype}, but beta |Q^T K| is {size:.4g}"

    return Rule("range", broken, "use engine='reference' or lower beta")


def _beyond(model: Attention, tokens: int | None) -> str | None:
    return f"goes up to dimension {LARGEST_DIM}, not {model.dim}" if model.dim > LARGEST_DIM else None


DIRECT = {
    dtype: Support(
        "engine='cuda'",
        norms=frozenset({"post_ln", "pre_ln", "mix_ln", "peri_ln", "ngpt", "sqrt_scaling"}),
        masks=frozenset({"causal", "full", "window", "sink", "prefix"}),
        weights=frozenset({"softmax", "unnormalized"}),
        biases=frozenset({"alibi"}),
        parts=frozenset({"heads", "bilinear", "value", "frozen", "noise", "radius", "depth", "jumps"}),
        use="use engine='cpu' or 'reference'",
        rules=(
            Rule("dimension", _beyond, "use engine='torch', whose matrix products are faster there"),
            _range_rule(dtype),
            *((single.RULE,) if dtype == "float32" else ()),
        ),
    )
    for dtype in LOG_MAX
}
"""Direct sums, by precision."""

SERIES = Support(
    "interaction='series' on engine='cuda'",
    norms=DIRECT["float64"].norms,
    masks=frozenset({"causal", "full", "prefix"}),
    weights=frozenset({"softmax"}),
    parts=frozenset({"noise", "radius", "depth", "jumps"}),
    dims=frozenset({2, 3}),
    use="use interaction='direct' or engine='cpu'",
)
"""Fourier series on the circle and harmonics on the sphere, by prefix sums."""


def _accuracy_rule(model: Attention, tokens: int | None) -> str | None:
    """Sums are rounded to what is in them, frozen tokens among it."""
    loss = frozen_share(model, tokens or PROBE)
    return too_much(loss, (tokens or PROBE) * EPSILON * loss) if model.weights == "softmax" else None


TOTAL = replace(
    SERIES,
    masks=frozenset({"full"}),
    weights=frozenset({"softmax", "unnormalized"}),
    parts=SERIES.parts | {"frozen"},
    rules=(Rule("accuracy", _accuracy_rule),),
)
"""The same under full attention: one total."""


def series_support(model: Attention) -> Support:
    """The list that a series for the model is held against."""
    return TOTAL if isinstance(model.mask, Full) else SERIES


def weight_gap(head: Head) -> float:
    """Bound on `log2` of (largest possible weight) / (own weight) of a token: `beta log2(e) max_x (|M^T x| - x^T M x)`.

    At most the largest singular value of M minus the smallest eigenvalue of its symmetric part; 0 for Q = K = I.
    """
    if head.bilinear is None:
        return 0.0
    M = head.bilinear
    return LOG2E * head.beta * float(np.linalg.norm(M, 2) - np.linalg.eigvalsh(0.5 * (M + M.T))[0])


def matrices(model: Attention) -> np.ndarray:
    """(heads, 2, dim, dim): `beta log2(e) Q^T K` and V of every head, as the kernels read them."""
    found = np.empty((len(model.all_heads), 2, model.dim, model.dim))
    for both, head in zip(found, model.all_heads):
        both[0] = LOG2E * head.beta * (np.eye(model.dim) if head.bilinear is None else head.bilinear)
        both[1] = np.eye(model.dim) if head.value is None else head.value
    return found


def padded(count: int) -> int:
    """Room for so many of what is loaded four at a time."""
    return -(-count // 4) * 4


def on_circle(model: Attention) -> bool:
    """True when members are integrated by their angles."""
    return model.dim == 2 and model.is_identity


def block_threads(tokens: int, lanes: int = device.LANES) -> int:
    """Threads of the block that integrates one member: two tokens each, in whole warps."""
    return math.ceil(math.ceil(tokens / lanes) / 2) * lanes


def shared_bytes(model: Attention, tokens: int, itemsize: int) -> int:
    """Shared memory of the block that integrates one member."""
    coordinates = 2 if on_circle(model) else padded(model.dim)
    return (coordinates * padded(tokens) + block_threads(tokens)) * itemsize


def _fused_rule(dtype: str) -> Rule:
    """What of a member must fit into a thread block and into the precision."""

    def broken(model: Attention, tokens: int | None) -> str | None:
        if model.dim > FUSED_DIM:
            return f"goes up to dimension {FUSED_DIM}, not {model.dim}"
        if max(weight_gap(head) for head in model.all_heads) > LARGEST_GAP[dtype]:
            return f"cannot have this Q^T K: the weights of a token can leave the range of {dtype}"
        room = shared_bytes(model, tokens or 0, np.dtype(dtype).itemsize)
        if block_threads(tokens or 0) > FUSED_THREADS or room > device.SHARED_BYTES:
            return f"has no room for {tokens} tokens"
        return None

    return Rule("room", broken)


FUSED = {
    dtype: Support(
        "the integration inside one thread block",
        norms=frozenset({"post_ln"}),
        masks=frozenset({"causal"}),
        weights=frozenset({"softmax"}),
        parts=frozenset({"heads", "bilinear", "value", "noise"}),
        rules=(_fused_rule(dtype),),
    )
    for dtype in LARGEST_GAP
}
"""Members integrated inside a thread block, by precision."""


def fused_refusal(model: Attention, tokens: int, dtype: str = "float64") -> str | None:
    """Why a member cannot be integrated inside one thread block (it is then integrated launch by launch); None if it can."""
    return why_not(model, FUSED[dtype], tokens)


def wins(model: Attention, tokens: int, members: int = 1) -> bool:
    """True when a GPU is present, these kernels can do the model, and by the cost model they beat all cores of this machine."""
    return why_not(model, DIRECT["float64"]) is None and pays(model, tokens, members)


def pays(model: Attention, tokens: int, members: int = 1) -> bool:
    """True when a GPU is present and by the cost model beats all cores of this machine, whoever uses it."""
    if device.SIMULATED:
        return False
    causal = isinstance(model.mask, Causal)
    pairs = members * tokens * tokens * (0.5 if causal else 1.0) * len(model.all_heads) * (2 + model.dim) / 4.0
    seconds = {engine: pairs / rate for engine, rate in PAIRS_PER_SECOND.items()}
    if series_refusal(model, tokens) is None:
        modes = members * tokens * expected_terms(model)
        seconds = {engine: min(seconds[engine], modes / rate) for engine, rate in MODES_PER_SECOND.items()}
    launches = members if members > 1 and fused_refusal(model, tokens) is not None else 1
    if seconds["cpu"] / (os.cpu_count() or 1) <= launches * CALL_SECONDS + seconds["cuda"]:
        return False
    return device.missing() is None


def series_refusal(model: Attention, tokens: int) -> str | None:
    """Why the interaction cannot be summed as a series on the GPU; None if it can."""
    return why_not(model, series_support(model), tokens)


LARGEST_DEGREE = {"float64": 1500, "float32": 140}
"""Degree up to which harmonics and their derivatives stay in range: they reach (1 + sqrt(2))^(l/2) l^2 at the poles."""

SERIES_TOKENS = 10_000
"""From here on the series beats direct sums on the GPU: on the circle at beta = 64 (measured; see docs/performance-gpu.md)."""

SERIES_HARMONICS = 900
"""On the sphere so many harmonics are taken for as many tokens (measured: 10^4 at beta = 9, 25,000 at beta = 64, float64)."""


def expected_terms(model: Attention) -> float:
    """Modes, or harmonics on the sphere, that a series of the model has, to about ten percent."""
    degree = expected_modes(model.all_heads[0].beta)
    return degree if model.dim == 2 else 0.5 * degree * degree


def series_wins(model: Attention, tokens: int) -> bool:
    """True when the series is possible and faster than direct sums."""
    if series_refusal(model, tokens) is not None:
        return False
    beta = max(model.all_heads[0].beta, 1.0)
    if model.dim == 2:
        return tokens > SERIES_TOKENS * math.sqrt(beta / 64.0)
    # Not where single precision would have to refuse: "auto" is decided before the precision is looked at.
    harmonics = expected_terms(model)
    within = 2.0 * harmonics < (0.9 * LARGEST_DEGREE["float32"]) ** 2
    return within and tokens > SERIES_TOKENS * max(1.0, harmonics / SERIES_HARMONICS)

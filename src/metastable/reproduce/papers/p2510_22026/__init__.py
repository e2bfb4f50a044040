"""Normalisation in attention dynamics: six norms, how fast tokens gather at the start and at the end."""

from metastable.reproduce.paper import Paper
from metastable.reproduce.papers.p2510_22026.speeds import END_SPEED, RESISTANCE, START_SPEED

PAPER = Paper(
    number="2510.22026",
    title="Normalization in attention dynamics",
    citation="N. Karagodin, S. Ge, Y. Polyanskiy, P. Rigollet, Normalization in Attention Dynamics, 2025",
    summary="Where a transformer normalises decides how fast its tokens become alike: exponentially (Post-LN, nGPT), "
    "more slowly (square-root "
    "scaling), or like 1/t^2 (Pre-LN, Peri-LN), because the residual stream grows.",
    picture="end-speed",
    recipes=(END_SPEED, START_SPEED, RESISTANCE),
)

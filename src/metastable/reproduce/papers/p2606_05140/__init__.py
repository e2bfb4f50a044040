"""Noise: where the uniform state loses its stability, with or without a jump, and hysteresis."""

from metastable.reproduce.paper import Paper
from metastable.reproduce.papers.p2606_05140.diagram import DIAGRAM
from metastable.reproduce.papers.p2606_05140.hysteresis import HYSTERESIS
from metastable.reproduce.papers.p2606_05140.phases import BRANCHES, CRITICAL_NOISE

PAPER = Paper(
    number="2606.05140",
    title="Noise and phase transitions of attention",
    citation="K. Mun, M. Rosenzweig, Phase transitions for the noisy transformer model in arbitrary dimension, 2026 (with "
    "arXiv:2510.20094 and section 7 of arXiv:2512.01868)",
    summary="With enough noise tokens stay uniform. As noise falls they order: smoothly when beta is small, with a "
    "jump and hysteresis when it is above "
    "a threshold that depends on the dimension alone.",
    picture="hysteresis",
    recipes=(CRITICAL_NOISE, BRANCHES, DIAGRAM, HYSTERESIS),
)

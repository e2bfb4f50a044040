"""Metastable clustering in the mean field: how perturbations of the uniform density grow, and how many clusters appear first."""

from metastable.reproduce.paper import Paper
from metastable.reproduce.papers.p2410_23228.cluster_number import CLUSTER_NUMBER
from metastable.reproduce.papers.p2410_23228.linear_growth import DENSITY_AND_TOKENS, GROWTH_RATES

PAPER = Paper(
    number="2410.23228",
    title="Emergence of meta-stable clustering in mean-field transformer models",
    citation="G. Bruno, F. Pasqualotto, A. Agazzi, Emergence of meta-stable clustering in mean-field transformer "
    "models, 2024",
    summary="Infinitely many tokens that begin uniformly on the circle first form as many clusters as the mode of "
    "their density that grows "
    "fastest has crests: about sqrt(2 beta).",
    picture="cluster-number",
    recipes=(GROWTH_RATES, CLUSTER_NUMBER, DENSITY_AND_TOKENS),
)

"""Synchronisation on the circle: how much repulsion tokens bear before they stop gathering in one point."""

from metastable.reproduce.paper import Paper
from metastable.reproduce.papers.p2507_22857.repulsion import SYNCHRONISATION, TRIANGLES

PAPER = Paper(
    number="2507.22857",
    title="Synchronization of mean-field models on the circle",
    citation="Y. Polyanskiy, P. Rigollet, A. Yao, Synchronization of mean-field models on the circle, 2025",
    covers="The statements on repulsion",
    summary="On the circle tokens gather in one point even when they repel a little: for every beta down to -0.16 "
    "from almost every start, and no "
    "longer below -2/3. Where it stops between the two was left open.",
    recipes=(SYNCHRONISATION, TRIANGLES),
)

"""A mathematical perspective on transformers: full attention as an interacting particle system."""

from metastable.reproduce.paper import Paper
from metastable.reproduce.papers.p2312_10794.collapse import HEMISPHERE, ONE_CLUSTER
from metastable.reproduce.papers.p2312_10794.equiangular import EQUIANGULAR
from metastable.reproduce.papers.p2312_10794.gradient import GRADIENT_FLOW
from metastable.reproduce.papers.p2312_10794.phase_diagram import PHASE_DIAGRAM

PAPER = Paper(
    number="2312.10794",
    title="A mathematical perspective on transformers",
    citation="B. Geshkovski, C. Letrouit, Y. Polyanskiy, P. Rigollet, A mathematical perspective on transformers, 2023",
    summary="Under full attention tokens gather in one point from almost every start. In high dimension how long that "
    "takes is a "
    "sharp curve in the plane of depth and temperature.",
    picture="phase-diagram",
    recipes=(PHASE_DIAGRAM, EQUIANGULAR, GRADIENT_FLOW, HEMISPHERE, ONE_CLUSTER),
)

"""Dynamic metastability: under full attention clusters stand still for exponential times, and the closest pair merges next."""

from metastable.reproduce.paper import Paper
from metastable.reproduce.papers.p2410_06833.merging_order import ORDER, PLATEAUS
from metastable.reproduce.papers.p2410_06833.staircase import STAIRCASE

PAPER = Paper(
    number="2410.06833",
    title="Dynamic metastability in the self-attention model",
    citation="B. Geshkovski, H. Koubbi, Y. Polyanskiy, P. Rigollet, Dynamic metastability in the self-attention "
    "model, 2024",
    summary="Under full attention separated clusters stand still for a time like exp(beta (1 - cosine)), then the "
    "closest pair merges: the energy "
    "is a staircase in the logarithm of time.",
    picture="staircase",
    recipes=(STAIRCASE, PLATEAUS, ORDER),
)

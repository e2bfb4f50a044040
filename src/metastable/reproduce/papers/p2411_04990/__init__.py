"""Clustering in causal attention masking: one file per group of items; `PAPER` holds them all, in the order of the report."""

from metastable.reproduce.paper import Paper
from metastable.reproduce.papers.p2411_04990.atlas import FIGURE_1, TABLE_1
from metastable.reproduce.papers.p2411_04990.beyond import CASCADE, CAUSAL_VS_FULL, CLUSTER_LAW
from metastable.reproduce.papers.p2411_04990.cascade_law import CASCADE_LAW
from metastable.reproduce.papers.p2411_04990.center_counts import COUNTS_SCALING, LEMMA_C1
from metastable.reproduce.papers.p2411_04990.convergence import CONJECTURE_1, CONJECTURE_2, THEOREM_4_1
from metastable.reproduce.papers.p2411_04990.gradient_flow import LEMMA_5_3, THEOREM_5_2
from metastable.reproduce.papers.p2411_04990.interaction_peak import FIGURE_4, LEMMA_A1
from metastable.reproduce.papers.p2411_04990.one_token import LEMMA_3_1
from metastable.reproduce.papers.p2411_04990.parking import FIGURE_2, FIGURE_3, LEMMA_5_1
from metastable.reproduce.papers.p2411_04990.random_atlas import CLOUD_WIDTH, TABLE_1_RANDOM
from metastable.reproduce.papers.p2411_04990.value_spectra import FIGURE_5, FIGURE_6

PAPER = Paper(
    number="2411.04990",
    title="Clustering in causal attention masking",
    citation="N. Karagodin, Y. Polyanskiy, P. Rigollet, Clustering in Causal Attention Masking, NeurIPS 2024",
    covers="Every figure, table, lemma and theorem",
    summary="Under the causal mask the value matrix alone decides where tokens end, and with V = I all of them end at "
    "the "
    "first one. On the way there Renyi centers hold clusters for exponentially long times.",
    picture="figure-3",
    recipes=(
        FIGURE_1,
        FIGURE_2,
        FIGURE_3,
        FIGURE_4,
        FIGURE_5,
        FIGURE_6,
        TABLE_1,
        TABLE_1_RANDOM,
        LEMMA_3_1,
        THEOREM_4_1,
        CONJECTURE_1,
        CONJECTURE_2,
        LEMMA_5_1,
        THEOREM_5_2,
        LEMMA_5_3,
        LEMMA_A1,
        LEMMA_C1,
        COUNTS_SCALING,
        CASCADE,
        CASCADE_LAW,
        CLUSTER_LAW,
        CLOUD_WIDTH,
        CAUSAL_VS_FULL,
    ),
)

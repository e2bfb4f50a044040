"""One file per group of items; `CATALOGUE` holds them all, in the order of the report."""

from metastable.reproduce.recipes.atlas import FIGURE_1, TABLE_1
from metastable.reproduce.recipes.beyond import CASCADE, CAUSAL_VS_FULL, CLUSTER_LAW
from metastable.reproduce.recipes.cascade_law import CASCADE_LAW
from metastable.reproduce.recipes.center_counts import COUNTS_SCALING, LEMMA_C1
from metastable.reproduce.recipes.convergence import CONJECTURE_1, CONJECTURE_2, THEOREM_4_1
from metastable.reproduce.recipes.gradient_flow import LEMMA_5_3, THEOREM_5_2
from metastable.reproduce.recipes.interaction import FIGURE_4, LEMMA_A1
from metastable.reproduce.recipes.one_token import LEMMA_3_1
from metastable.reproduce.recipes.parking import FIGURE_2, FIGURE_3, LEMMA_5_1
from metastable.reproduce.recipes.random_atlas import CLOUD_WIDTH, TABLE_1_RANDOM
from metastable.reproduce.recipes.value_spectra import FIGURE_5, FIGURE_6

CATALOGUE = (
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
)

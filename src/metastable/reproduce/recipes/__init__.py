"""One file per group of items; `CATALOGUE` holds them all, in the order of the report."""

from metastable.reproduce.recipes.interaction import FIGURE_4, LEMMA_A1
from metastable.reproduce.recipes.one_token import LEMMA_3_1
from metastable.reproduce.recipes.spectra import FIGURE_5, FIGURE_6

CATALOGUE = (FIGURE_4, FIGURE_5, FIGURE_6, LEMMA_3_1, LEMMA_A1)

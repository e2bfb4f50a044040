"""The survey of the field: long contexts, where beta grows with the number of tokens."""

from metastable.reproduce.paper import Paper
from metastable.reproduce.papers.p2512_01868.long_context import LONG_CONTEXT

PAPER = Paper(
    number="2512.01868",
    title="Long contexts: a phase transition in beta = gamma ln n",
    citation="P. Rigollet, The Mean-Field Dynamics of Transformers, 2025 (section 6)",
    covers="The statement on long contexts",
    summary="If the inverse temperature grows like gamma times the logarithm of the context length, one layer either "
    "merges all tokens or "
    "does nothing; between the two lies a single value of gamma.",
    recipes=(LONG_CONTEXT,),
)

"""Lost in the middle: how much the last token reads of a token at position s, in closed form."""

from metastable.reproduce.paper import Paper
from metastable.reproduce.papers.p2605_09213.closed_form import CLOSED_FORM
from metastable.reproduce.papers.p2605_09213.profile import CRITICAL_TIME, PROFILE

PAPER = Paper(
    number="2605.09213",
    title="Lost in the middle",
    citation="Duerinckx, Geshkovski, Rossi, Kinetic theory for Transformers and the lost-in-the-middle phenomenon, 2026",
    summary="With a causal mask and a bias for near tokens, the last token reads the beginning and the end of the "
    "context and loses the middle, "
    "until a critical depth. The profile has a closed form for long contexts.",
    picture="closed-form",
    recipes=(CLOSED_FORM, PROFILE, CRITICAL_TIME),
)

"""What the methods can do, whatever the engine: the one place that asks them all."""

from __future__ import annotations

from metastable.errors import UnsupportedError
from metastable.model import EVERY_PART, Attention, Support, why_not


def _everything(method: str, but: frozenset[str] = frozenset()) -> Support:
    """A method that leaves the right-hand side to the engines."""
    return Support(
        f"method={method!r}",
        norms=None,
        masks=None,
        weights=None,
        biases=None,
        parts=EVERY_PART - but,
        use="use method='auto'",
    )


SUPPORTS = {"tsit5": _everything("tsit5", frozenset({"noise"})), "sde": _everything("sde")}
"""Methods that take whatever an engine evaluates. Rodas and layers look inside the model: they have lists of their own."""


def refusal(model: Attention, method: str, tokens: int | None = None) -> str | None:
    """Why a method cannot do the model, whatever the engine; None if it can. "auto" chooses among the methods: it never refuses."""
    if method == "auto":
        return None
    if method == "rodas":
        from metastable.integrate import rodas

        return rodas.refusal(model, tokens)
    if method == "layers":
        from metastable.integrate import layers

        return why_not(model, layers.SUPPORT, tokens)
    return why_not(model, SUPPORTS[method], tokens)


def check_method(model: Attention, method: str, tokens: int | None = None) -> None:
    """Raise `UnsupportedError` where `refusal` has a reason."""
    reason = refusal(model, method, tokens)
    if reason is not None:
        raise UnsupportedError(reason)

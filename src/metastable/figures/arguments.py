"""What a drawing function was given, checked: the axis by us, colours, markers and shapes by matplotlib, whose refusals get a name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from metastable.errors import InvalidInputError, MetastableError

Drawing = TypeVar("Drawing", bound=Callable[..., Any])


def drawing(function: Drawing) -> Drawing:
    """A function whose first argument is a matplotlib axis, with errors of `metastable.errors` for what it cannot draw.

    Names, sizes and styles go through to matplotlib, which knows best what it takes; its exception stays attached as the cause. A
    call that does not fit the signature raises `TypeError`, as for any function.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*positional: Any, **named: Any) -> Any:
        from matplotlib.axes import Axes

        given = signature.bind(*positional, **named)
        ax = next(iter(given.arguments.values()))
        if not isinstance(ax, Axes):
            raise InvalidInputError(
                f"{function.__name__} draws on a matplotlib axis, not on {type(ax).__name__}; make one: "
                "fig, ax = matplotlib.pyplot.subplots()"
            )
        try:
            return function(*positional, **named)
        except MetastableError:
            raise
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError) as reason:
            raise InvalidInputError(
                f"{function.__name__} cannot draw this ({type(reason).__name__}: {reason}); see its docstring for shapes"
            ) from reason

    return checked  # type: ignore[return-value]

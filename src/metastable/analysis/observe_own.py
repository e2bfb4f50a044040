"""Observables of one's own: plain functions, and the one place where what an observable returns is checked."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable._checks import FloatArray, readonly
from metastable.errors import InvalidInputError, ObservableError, own_function
from metastable.model import Attention

if TYPE_CHECKING:
    from metastable.analysis.observe import Observable

TAKEN = ("time", "member")
"""Dimensions that results have anyway."""
OURS = "metastable.analysis.observe"
"""Where the functions live that make observables, which are no observables themselves."""


def required_arguments(function: Callable[..., Any]) -> int | None:
    """How many arguments a function must be given by place; None where nobody can tell."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(item.kind in by_place and item.default is item.empty for item in parameters)


def required_names(function: Callable[..., Any]) -> list[str]:
    """The arguments that a function must be given by name."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [item.name for item in parameters if item.kind is item.KEYWORD_ONLY and item.default is item.empty]


def takes_seed(function: Callable[..., Any]) -> bool:
    """True for samplers like those of `metastable.starts`: the number of tokens comes first, and the generator is a `seed`."""
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return False
    return names[:1] == ["tokens"] and "seed" in names


def name_of(function: Callable[..., Any]) -> str:
    """The name of a function (of the function behind a `functools.partial`)."""
    function = getattr(function, "func", function)
    return getattr(function, "__name__", type(function).__name__)


@dataclass(frozen=True)
class Own:
    """An observable made of a plain function; made by `own`. `dims` None: as many as it returns, `NAME_0`, `NAME_1`, ..."""

    function: Callable[..., Any]
    name: str
    dims: tuple[str, ...] | None
    whole: bool
    """True for f(states, times, model), False for f(x)."""

    @property
    def follows_model(self) -> bool:
        """A function that is given the model gets the one of each time."""
        return self.whole

    def __repr__(self) -> str:
        return f"own({name_of(self.function)}, {'f(states, times, model)' if self.whole else 'f(x)'})"

    def measure(self, states: FloatArray, *, start: FloatArray, model: Attention, times: FloatArray) -> np.ndarray:
        """What the function says of the states (times, n, d), as an array (times, ...)."""
        if self.whole:
            return self._array(self.function(states, times, model))
        values = [self._array(self.function(x)) for x in states]
        shapes = sorted({value.shape for value in values})
        if len(shapes) > 1:
            raise ObservableError(
                f"the observable {self.name!r} returned arrays of different shapes, {shapes[0]} and {shapes[-1]}; return as many "
                "numbers for every state"
            )
        return np.array(values) if values else np.empty((0, *(() if self.dims is None else (0,) * len(self.dims))))

    def _array(self, found: Any) -> np.ndarray:
        try:
            return _with_gaps(found)
        except ValueError as reason:
            raise ObservableError(f"the observable {self.name!r} returned no array: {reason}") from None


def own(function: Callable[..., Any], *, dims: Sequence[str] | None = None, name: str | None = None) -> Own:
    """An observable made of a function of your own, with names for its dimensions.

    `run.observe` and `ensemble(observe=...)` take plain functions, too; this says more about them.

    Args:
        function: `f(x) -> number or array` for one state x (n, d), called for every time; or `f(states, times, model) -> array` of
            shape (times, ...) for all states (times, n, d) at once. Which of them it is is told by how many arguments it needs. In a
            run with several models (a `Schedule`, layers) the second is called once for each, with the times at which it holds.
        dims: names of the dimensions of what it returns for one time, for example ("token",); None: `NAME_0`, `NAME_1`, ...
        name: of the result; None: that of the function.

    >>> import metastable as ms
    >>> run = ms.simulate(ms.Attention(dim=2, beta=4.0), ms.sphere.uniform(5, dim=2, seed=0), times=[0.0, 1.0])
    >>> run.observe(ms.observe.own(lambda x: x[:, 0], dims=("token",), name="height")).dims
    ('time', 'token')
    """
    if not callable(function) or isinstance(function, type):
        raise InvalidInputError(f"own takes a function f(x) or f(states, times, model), not {function!r}")
    label = name_of(function) if name is None else name
    if not isinstance(label, str):
        raise InvalidInputError(f"name must be text, not {label!r}")
    listed = isinstance(dims, Sequence) and not isinstance(dims, (str, bytes))
    if dims is not None and not (listed and all(isinstance(dim, str) for dim in dims)):
        raise InvalidInputError(f'dims must be a list of names such as ("token",), not {dims!r}')
    taken = [dim for dim in dims or () if dim in TAKEN]
    if taken:
        raise InvalidInputError(
            f"dims: {taken[0]!r} is in front of every result already; name only what comes after it, by other names"
        )
    if dims is not None and len(set(dims)) < len(dims):
        raise InvalidInputError(f"dims: every dimension has a name of its own, not {tuple(dims)!r}")
    needed, missing = required_arguments(function), required_names(function)
    if missing:
        raise InvalidInputError(
            f"the observable {label!r} is called as f(x) or f(states, times, model), and it needs {', '.join(missing)} by name; "
            "give it with functools.partial(f, name=value), in a sweep as an argument of its table, or a default"
        )
    if needed not in (None, 1, 3):
        raise InvalidInputError(
            f"the observable {label!r} must be a function of one state, f(x), or of all, f(states, times, model), and it "
            f"needs {needed} arguments; fix the others with functools.partial(f, name=value)"
        )
    return Own(function, label, None if dims is None else tuple(dims), needed == 3)


def as_observable(value: Any, name: str, label: str | None = None) -> Observable | Own:
    """An observable as it is, a plain function as `Own` called `label`; anything else is refused (`name`: whose argument it is)."""
    from metastable.analysis.observe import Observable

    if isinstance(value, Own):
        return value
    if isinstance(value, Observable) and not isinstance(value, type):
        return value
    made = getattr(value, "__module__", None)
    if callable(value) and not isinstance(value, type) and not (isinstance(made, str) and made.startswith(OURS)):
        return own(value, name=label)
    raise InvalidInputError(
        f"{name} takes an observable such as metastable.observe.clusters(radius=0.1), or a function f(x) of your own, not {value!r}"
    )


def _with_gaps(found: Any) -> np.ndarray:
    """What a function returned as an array; entries that a masked array marks as missing are NaN, not what lies behind the mask."""
    if np.ma.is_masked(found) and np.ma.getdata(found).dtype.kind in "biuf":
        return np.ma.filled(np.ma.asarray(found).astype(np.float64), np.nan)
    return np.asarray(found)


def measured(
    observable: Observable | Own,
    name: str,
    states: FloatArray,
    *,
    start: FloatArray,
    model: Any,
    times: FloatArray,
    whose: str = "",
) -> tuple[np.ndarray, tuple[str, ...]]:
    """What an observable says of states (times, n, d), shape (times, ...), with the names of its dims after time.

    `ObservableError` where it does not return one entry per time, or other dims than it declares; `OwnFunctionError` where it is
    somebody's own and raises. `whose`: the states are those of "member 3 of seed 0", for messages.
    """
    # Whoever writes to what is measured would change what the next observable sees.
    states, start = readonly(states.view()), readonly(start.view())
    try:
        found = observable.measure(states, start=start, model=model, times=times)
    except ObservableError:
        raise
    except Exception as reason:  # whatever a function of somebody raises
        if not isinstance(observable, Own) and type(observable).__module__.startswith("metastable."):
            raise
        called = f" (the function {name_of(observable.function)!r})" if isinstance(observable, Own) else ""
        raise own_function(f"the observable {name!r}{called}", whose, reason) from reason
    try:
        values = _with_gaps(found)
    except ValueError as reason:
        raise ObservableError(f"the observable {name!r} returned no array: {reason}") from None
    if values.dtype == object and any(np.asarray(item).tolist() is None for item in values.ravel()):
        raise ObservableError(f"the observable {name!r} returned None; does it end without a return?")
    if values.dtype.kind not in "biuf":
        raise ObservableError(f"the observable {name!r} must return real numbers, not {values.dtype} ({found!r:.80})")
    if values.ndim == 0 or len(values) != len(states):
        raise ObservableError(
            f"the observable {name!r} returned an array of shape {values.shape} for {len(states)} times; its first axis must be time: "
            f"({len(states)}, ...)"
        )
    dims = observable.dims
    if dims is None:
        dims = tuple(f"{name}_{axis}" for axis in range(values.ndim - 1))
    elif len(dims) != values.ndim - 1:
        raise ObservableError(
            f"the observable {name!r} returned an array of shape {values.shape}, but its dims after time are {dims!r}; return "
            f"{len(dims) + 1} axes, or name as many dims as there are"
        )
    return values, tuple(dims)


def coordinates_of(observable: Any, dims: tuple[str, ...], shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """The coordinates of the dims of an observable, after time: those that it has, and that are one number for each place."""
    known = getattr(observable, "coordinates", {})
    found = {dim: np.asarray(known[dim]) for dim in dims if dim in known}
    return {dim: found[dim] for dim, size in zip(dims, shape) if dim in found and found[dim].shape == (size,)}

"""How the tokens of a member are represented inside its thread block: what `circle.py` and `sphere.py` provide."""

from __future__ import annotations

from typing import Any, NamedTuple


class Geometry(NamedTuple):
    """Device functions of one representation; a thread holds two tokens, low and high, one behind the other.

    - `components`: numbers per token in the state that is integrated, `coordinates`: numbers per token in shared memory.
    - `velocity(z, f, shared, tokens, shift, matrices)`: slopes `f` (2 components,) at the states `z` of all threads.
    - `read(y, at, starts, member, token)`: one token of the start into `y[at:]`.
    - `retract(z)`: put new states back on the sphere.
    - `write(z, at, out, member, slot, token)`: the unit vector of the state `z[at:]` into the output.
    """

    components: int
    coordinates: int
    velocity: Any
    read: Any
    retract: Any
    write: Any

"""Named exceptions. Every message says what was wrong and how to fix it.

All of them derive from `MetastableError`, and from the built-in exception that a caller would expect (`ValueError`,
`FileExistsError`, ...), so `except ValueError` keeps working.
"""

from __future__ import annotations


class MetastableError(Exception):
    """Base of every exception that metastable raises on purpose."""


class InvalidInputError(MetastableError, ValueError):
    """An argument has the wrong value, shape or type."""


class TokenError(InvalidInputError):
    """An array of tokens is not a list of unit vectors."""


class ModelError(InvalidInputError):
    """A model cannot be made from these fields."""


class VariantError(ModelError):
    """No class is known here that makes this norm, mask, kind of weights or bias (import the module that defines one of your own
    first), or the class has other fields."""


class TimeError(InvalidInputError):
    """A horizon or a list of output times makes no sense."""


class ObservableError(InvalidInputError):
    """An observable returned something that is not one entry per time; the message names it."""


class OwnFunctionError(MetastableError, RuntimeError):
    """A function of your own (observable, start, random model) raised; the message names it, and `__cause__` is what it raised."""


class UnsupportedError(MetastableError, NotImplementedError):
    """A method or an engine cannot do this variant; the message names one that can."""


class NumericalRangeError(MetastableError, ArithmeticError):
    """The requested quantity leaves the range of double precision."""


class ResolutionError(MetastableError, ArithmeticError):
    """A density has more detail than the modes that it may have can hold."""


class ConvergenceError(MetastableError, ArithmeticError):
    """An iteration did not arrive; the message says how far it came and what to start from instead."""


class GoalError(InvalidInputError):
    """What was asked of `metastable.control` cannot be reached; the message says why, and what can."""


class DeviceMemoryError(MetastableError, MemoryError):
    """A computation does not fit into the memory of the GPU; nothing was computed and the GPU stays usable."""


class StoreError(MetastableError, OSError):
    """A store on disk cannot be read or written."""


class StoreExistsError(StoreError, FileExistsError):
    """Something is already stored there; it was left untouched."""


class IncompleteStoreError(StoreError):
    """A store was not finished (interrupted or damaged)."""


class SweepError(InvalidInputError):
    """A sweep cannot be made from this description."""


class StoreLockedError(StoreError, BlockingIOError):
    """Another process is writing to this store."""


class StoreFullError(StoreError):
    """There is no room left on the disk; what was stored before is safe."""


class SchedulerLostError(MetastableError, ConnectionError):
    """The scheduler of a cluster went away; what was finished before is safe."""


class CheckpointError(MetastableError, OSError):
    """A checkpoint cannot be read: missing, incomplete, damaged, or in a format that is not safe to open."""


class UnknownArchitectureError(CheckpointError, ValueError):
    """No adapter knows this architecture; the message lists the known ones and how to add one."""


class ContextLengthError(InvalidInputError):
    """A text has more tokens than the model's context holds."""


class MissingExtraError(MetastableError, ImportError):
    """An optional dependency is missing; the message names the extra to install."""


class StoppedEarlyWarning(UserWarning):
    """A run, or members of an ensemble, stopped before their time; what they reached is kept."""


class DroppedPartWarning(UserWarning):
    """A model of the theory was made from a checkpoint, and a part of it was left out."""


class StandstillWarning(UserWarning):
    """A model in which nothing can move was asked to."""


class PassingMergeWarning(UserWarning):
    """The merge tree of a run with noise, in which tokens that meet part again: its merges are not for good."""


class RepeatedMembersWarning(UserWarning):
    """An ensemble in which members are there more than once, as if they were others."""


class UnreadJournalWarning(UserWarning):
    """Results of a sweep of which the journal cannot be read: what only the journal knows is missing."""


def missing_extra(package: str, extra: str, purpose: str) -> MissingExtraError:
    """The error for a missing optional dependency, with the command that installs it."""
    return MissingExtraError(
        f"{purpose} needs the package {package!r}, which is not installed; install it with: "
        f'pip install "metastable[{extra}]"'
    )


def own_function(what: str, where: str, reason: Exception) -> OwnFunctionError:
    """The error for an exception inside a function of the user's own: `what` it is, and `where` it was called ("": unknown)."""
    place = f" for {where}" if where else ""
    return OwnFunctionError(f"{what} raised {type(reason).__name__}{place}: {reason}")

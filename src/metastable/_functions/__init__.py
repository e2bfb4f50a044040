"""How a function of somebody is told from another one of the same name, and from its own edited version."""

from metastable._functions.reading import CODE, VERSION, Parts, Reading, fingerprint, note_changes, read, same, watched

__all__ = ["CODE", "VERSION", "Parts", "Reading", "fingerprint", "note_changes", "read", "same", "watched"]

"""Every public function, asked questions that make sense and questions that make none: it answers, or says what was wrong.

Seeded (the same calls every time) and bounded (`EXAMPLES` calls each). A failure prints the call.
"""

from __future__ import annotations

import faulthandler
import os

import pytest
from hypothesis import HealthCheck, Phase, given, settings

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # names of models that do not exist are not looked for elsewhere

from tests.fuzz import outcome, surface, values

EXAMPLES = 40
ENTRIES = surface.entries()
SLOW = {"simulate": 60, "ensemble": 40, "checkpoints.load_model": 15}
"""Functions that get another number of calls: they do more, or take longer."""


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path, monkeypatch):
    """Files that a call writes go to a folder of their own; a call that never ends ends the process, loudly."""
    monkeypatch.chdir(tmp_path)
    faulthandler.dump_traceback_later(600, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.mark.parametrize("name", ENTRIES)
def test_answers_or_says_what_was_wrong(name):
    entry = ENTRIES[name]
    if entry.owner is not None:
        assert values.specimens(entry.owner), f"tests/fuzz/values.py: specimens() has no {entry.owner.__name__}"

    @settings(
        max_examples=SLOW.get(name, EXAMPLES),
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(values.calls(entry))
    def ask(call):
        instance, arguments = call
        complaint = outcome.complaint(entry, instance, arguments)
        assert complaint is None, f"{name}(**{arguments!r}) of {instance!r}: {complaint}"

    ask()


def test_what_is_left_out_is_there():
    """A name that was left out and is gone is taken off the list."""
    every = {entry.name for module in surface.rooms().values() for entry in surface.all_entries(module)}
    assert set(surface.NOT_CALLED) <= every


def test_what_a_bad_function_does_is_noticed():
    """The judge itself: raw exceptions, NaN and silence are complaints; named exceptions are not."""

    def raw(x):
        return [1, 2, 3][x]

    def undefined(x):
        return {"value": float("nan")}

    def fine(x):
        raise values.ms.errors.InvalidInputError("x must be something else; give another")

    def greedy(x):
        return bytearray(outcome.SPARE * 2)

    judged = {
        f.__name__: outcome.complaint(surface.Entry(f.__name__, f), (), {"x": 7})
        for f in (raw, undefined, fine, greedy)
    }
    assert judged["raw"].startswith("IndexError")
    assert "NaN" in judged["undefined"]
    assert judged["fine"] is None
    assert judged["greedy"].startswith("MemoryError")


def test_a_call_that_never_ends_is_noticed(monkeypatch):
    monkeypatch.setattr(outcome, "PATIENCE", 0.2)

    def endless(x):
        while x:
            pass

    assert outcome.complaint(surface.Entry("endless", endless), (), {"x": 1}).startswith("HangError")

"""Helpers of the tests that break things."""

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from metastable import sweep as sweeps
from metastable.sweep import cluster as clusters
from metastable.sweep import journal
from tests.unit.sweep import toy

ROOT = Path(__file__).parents[3]
PATIENCE = 300
"""Seconds after which a test gives up: far more than anything takes, also on a busy machine."""


def zarr_files(folder):
    """Every file of the zarr store of a sweep, with its bytes."""
    root = Path(folder) / "results.zarr"
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """The files of the store of `toy.small_sweep`, run in the plain loop with nothing going wrong."""
    folder = tmp_path_factory.mktemp("undisturbed") / "sweep"
    sweeps.run(toy.small_sweep(), folder, workers=0, execute=toy.execute)
    return zarr_files(folder)


@pytest.fixture
def environment(monkeypatch, tmp_path):
    """An environment in which child processes find the tests, and slow tasks leave the number of their process."""
    pids = tmp_path / "pids"
    pids.mkdir()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("METASTABLE_TEST_PIDS", str(pids))
    monkeypatch.setenv("METASTABLE_TEST_SECONDS", "0.25")
    # The dashboard takes longer to start than everything else here; one test asks for it.
    monkeypatch.setattr(clusters, "DASHBOARD", None)
    return pids


class Background(threading.Thread):
    """`run` in a thread, so that the test can break something meanwhile."""

    def __init__(self, *arguments, **options):
        super().__init__(daemon=True)
        self._call = (arguments, options)
        self.outcome, self.error = None, None
        self.start()

    def run(self):
        try:
            self.outcome = sweeps.run(*self._call[0], **self._call[1])
        except BaseException as error:
            self.error = error

    def result(self, timeout=PATIENCE):
        self.join(timeout)
        assert not self.is_alive(), "the sweep hangs"
        if self.error is not None:
            raise self.error
        return self.outcome


def wait_for(condition, timeout=PATIENCE):
    """Wait until `condition()` is true."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def stored(folder):
    """Tasks in the journal of a sweep."""
    place = Path(folder) / "journal"
    return len(journal.read(place).entries) if place.exists() else 0


def start(code, **options):
    """A Python process that runs `code`."""
    return subprocess.Popen([sys.executable, "-c", code], **options)


class SmallDisk:
    """A folder with little room. As root a tmpfs; otherwise writes of the journal beyond `room` bytes fail as on a full disk."""

    def __init__(self, path, room, monkeypatch):
        self.path, self._room, self._patch = path, room, monkeypatch
        path.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={room}", "tmpfs", str(path)]
        allowed = hasattr(os, "geteuid") and os.geteuid() == 0 and shutil.which("mount") is not None
        self.mounted = allowed and subprocess.run(command, capture_output=True).returncode == 0
        if not self.mounted:
            self._limit()

    def _limit(self):
        real, left = os.fsync, [self._room]

        def fsync(descriptor):
            left[0] -= os.fstat(descriptor).st_size
            if left[0] < 0:
                raise OSError(28, "No space left on device")
            real(descriptor)

        self._patch.setattr(os, "fsync", fsync)

    def grow(self):
        """More room."""
        if self.mounted:
            subprocess.run(["mount", "-o", "remount,size=64m", str(self.path)], check=True)
        else:
            self._patch.undo()

    def close(self):
        if self.mounted:
            subprocess.run(["umount", str(self.path)], check=False)


@pytest.fixture
def small_disk(tmp_path, monkeypatch):
    """A folder on a disk of 100 kB."""
    disk = SmallDisk(tmp_path / "disk", 100 * 1024, monkeypatch)
    with contextlib.closing(disk):
        yield disk

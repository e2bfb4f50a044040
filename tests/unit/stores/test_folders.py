"""Whatever happens to a writer, one whole store is there afterwards, and nothing else is."""

import multiprocessing
import os
import shutil
import sys
import time
from pathlib import Path

import pytest

from metastable import stores
from metastable.errors import StoreError, StoreExistsError
from metastable.stores import folders
from tests.unit.stores import breaking

NAMES = ("a", "b/c", "b/d")
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="a process is copied for every kill")


def write(target: Path, content: str, overwrite: bool = True) -> None:
    """A folder of three files that all say `content`."""
    with stores.new_folder(target, overwrite=overwrite) as folder:
        for name in NAMES:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(content)


def read(target: Path) -> str | None:
    """What a whole store says; None when there is none."""
    place = stores.find(target)
    if not place.exists():
        return None
    assert sorted(p.relative_to(place).as_posix() for p in place.rglob("*") if p.is_file()) == sorted(NAMES)
    (content,) = {(place / name).read_text() for name in NAMES}
    return content


def visible(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


@pytest.fixture
def target(tmp_path) -> Path:
    return tmp_path / "run [1].zarr"  # a name that a glob would misread


def test_new_replaced_and_refused(target):
    write(target, "one", overwrite=False)
    assert read(target) == "one"
    with pytest.raises(StoreExistsError, match="left untouched"):
        write(target, "two", overwrite=False)
    assert read(target) == "one"
    write(target, "two")
    assert read(target) == "two"
    assert visible(target.parent) == [target.name]


def fail_halfway(target, error):
    with stores.new_folder(target, overwrite=True) as folder:
        (folder / "half").write_text("two")
        raise error


def test_a_body_that_fails_changes_nothing(target):
    write(target, "one")
    for error in (ValueError, KeyboardInterrupt, GeneratorExit):
        with pytest.raises(error):
            fail_halfway(target, error)
        assert read(target) == "one"
        assert visible(target.parent) == [target.name]


@needs_fork
@pytest.mark.parametrize("before", [None, "old"])
def test_killed_at_every_call(target, breaker, before):
    """`kill -9` before each call of the file system in turn: the next reader finds the old store or the new one."""
    seen = set()
    for at in range(1, 1000):
        shutil.rmtree(target, ignore_errors=True)
        if before is not None:
            write(target, before)
        killed = breaking.killed_at(lambda: write(target, "new"), breaker, target.parent, at)
        found = read(target)
        assert found in (before, "new")
        seen.add(found)
        for lock in target.parent.glob(".*.lock"):  # a lock alone is young; a minute later it is nobody's
            os.utime(lock, (0, 0))
        stores.settle(target)
        assert visible(target.parent) == ([] if found is None else [target.name]), at
        write(target, "next")
        assert read(target) == "next"
        if not killed:
            break
    assert at > 25
    assert seen == {before, "new"}


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("before", [None, "old"])
def test_an_exception_at_every_call(target, breaker, before, error):
    def fail():
        raise error

    failures = 0
    for at in range(1, 1000):
        shutil.rmtree(target, ignore_errors=True)
        if before is not None:
            write(target, before)
        try:
            breaker.run(lambda: write(target, "new"), target.parent, at, fail)
        except (StoreError, KeyboardInterrupt):
            failures += 1
        found = read(target)
        assert found in (before, "new")
        for item in target.parent.glob(".*"):
            # What one failing call kept from being removed goes later; nobody holds it.
            os.utime(item, (0, 0))
        stores.settle(target)
        assert visible(target.parent) == ([] if found is None else [target.name]), at
        if breaker.count < at:
            break
    assert failures > 10


@needs_fork
def test_killed_while_undoing(target, breaker):
    """The one who cleans up may be killed as well, and the next one cleans up after both."""

    def dies(at):
        write(target, "old")
        assert breaking.killed_at(lambda: write(target, "new"), breaker, target.parent, at)

    between = 1
    dies(between)
    while target.exists():
        between += 1
        dies(between)
    for at in range(1, 1000):
        dies(between)
        assert not target.exists()
        killed = breaking.killed_at(lambda: stores.settle(target), breaker, target.parent, at)
        assert read(target) == "old"
        if not killed:
            break
    assert at > 5


def test_a_store_removed_later_stays_removed(target, monkeypatch):
    """`old` without `store`: both steps were done. What the user deleted afterwards does not come back."""
    write(target, "one")
    with monkeypatch.context() as patch:
        patch.setattr(folders, "_undo", lambda folder, target: None)
        write(target, "two")
    shutil.rmtree(target)
    assert [p for p in target.parent.glob(".*.partial") if (p / "old").exists()]
    for item in target.parent.glob(".*.partial"):
        for place in (*item.rglob("*"), item):
            os.utime(place, (0, 0))
    assert read(target) is None
    assert visible(target.parent) == []


def test_leftovers_of_version_0_1(target):
    """Its partial folders have no lock: after an hour they are nobody's, and the old store comes back."""
    write(target, "one")
    leftover = target.with_name(f".{target.name}.ab_3x9z1.partial")
    leftover.mkdir()
    target.rename(leftover / "old")
    (leftover / "store").mkdir()
    stores.settle(target)
    assert leftover.exists()
    for place in (*leftover.rglob("*"), leftover):
        os.utime(place, (time.time() - 2 * folders.ABANDONED,) * 2)
    assert read(target) == "one"
    assert visible(target.parent) == [target.name]


def _write_slowly(target, ready, leave):
    with stores.new_folder(target, overwrite=True) as folder:
        ready.set()
        leave.wait(60)
        for name in NAMES:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text("slow")


def test_the_work_of_a_living_writer_is_not_touched(target):
    write(target, "one")
    context = multiprocessing.get_context("spawn")
    ready, leave = context.Event(), context.Event()
    process = context.Process(target=_write_slowly, args=(target, ready, leave))
    process.start()
    assert ready.wait(60)
    for leftover in target.parent.glob(".*"):
        os.utime(leftover, (0, 0))  # however old it looks
    write(target, "two")
    assert read(target) == "two"
    stores.tidy(target.parent)
    assert len(visible(target.parent)) == 3
    leave.set()
    process.join(60)
    assert process.exitcode == 0
    assert read(target) == "slow"
    assert visible(target.parent) == [target.name]


def _write_often(target, content, times):
    for _ in range(times):
        write(target, content)


def test_rivals(target):
    """Three processes replace the same store at the same time: nobody fails, and the last one's is whole."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_write_often, args=(target, str(i), 30)) for i in range(3)]
    for process in processes:
        process.start()
    while any(process.is_alive() for process in processes):
        time.sleep(0.02)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert read(target) in ("0", "1", "2")
    assert visible(target.parent) == [target.name]


def test_a_reader_waits_for_a_writer_between_its_steps(target, monkeypatch):
    write(target, "one")
    with folders.scratch(target) as folder:
        (folder / "store").mkdir()
        target.rename(folder / "old")
        monkeypatch.setattr(folders, "PATIENCE", 0.2)
        assert stores.find(target) == folder / "old"
    assert read(target) == "one"


def test_locked_disks_and_missing_folders(target, monkeypatch):
    with pytest.raises(StoreError, match="could not be written"):
        write(target / "no" / "where", "one")

    def no_locks(self):
        raise OSError("no locks available")

    monkeypatch.setattr(folders.Lock, "acquire", no_locks)
    write(target, "one")
    write(target, "two")
    assert read(target) == "two"
    assert visible(target.parent) == [target.name]


def test_files_appear_whole(tmp_path, breaker):
    path = tmp_path / "note"
    stores.write_file(path, b"old")
    for at in range(1, 100):

        def fail():
            raise OSError(28, "No space left on device")

        try:
            count = breaker.run(lambda: stores.write_file(path, b"new" * 1000), tmp_path, at, fail)
        except StoreError:
            count = at
        assert path.read_bytes() in (b"old", b"new" * 1000)
        if count < at:
            break
    assert at > 3
    for item in tmp_path.glob(".*"):
        os.utime(item, (0, 0))
    stores.tidy(tmp_path)
    assert visible(tmp_path) == ["note"]
    assert sys.platform == "win32" or path.stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    value = os.umask(0)
    os.umask(value)
    return value

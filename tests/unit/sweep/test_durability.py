"""Real clusters, broken on purpose. In the end the store is, byte for byte, the one of an undisturbed run."""

import os
import signal
import subprocess
import sys
import urllib.request

import dask
import numpy as np
import psutil
import pytest

from metastable import sweep as sweeps
from metastable.errors import MissingExtraError, SchedulerLostError, StoreFullError, StoreLockedError, SweepError
from metastable.sweep import cluster as clusters
from metastable.sweep import runner
from tests.unit.sweep import toy
from tests.unit.sweep.conftest import PATIENCE, Background, start, stored, wait_for, zarr_files

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
SLOW = "tests.unit.sweep.toy:slow"
EXECUTE = "tests.unit.sweep.toy:execute"

CHILD = """
from metastable import sweep
from metastable.sweep import cluster
from tests.unit.sweep import toy
if __name__ == "__main__":
    cluster.DASHBOARD = None
    sweep.run(toy.small_sweep(), {folder!r}, workers={workers}, execute="tests.unit.sweep.toy:slow")
"""


def test_workers_make_no_difference(tmp_path, undisturbed, environment, monkeypatch):
    monkeypatch.setattr(clusters, "DASHBOARD", "127.0.0.1:0")
    lines = []

    def say(line):
        lines.append(line)
        with urllib.request.urlopen(line.removeprefix("dashboard: "), timeout=PATIENCE) as page:
            assert page.status == 200

    outcome = sweeps.run(toy.small_sweep(), tmp_path / "two", workers=2, execute=EXECUTE, say=say)
    assert outcome.complete
    assert outcome.ran == 12
    assert [line.split(":")[0] for line in lines] == ["dashboard"]
    assert zarr_files(tmp_path / "two") == undisturbed


def test_killed_worker(tmp_path, undisturbed, environment):
    run = Background(toy.small_sweep(), tmp_path / "sweep", workers=2, execute=SLOW)
    wait_for(lambda: stored(tmp_path / "sweep") >= 2)
    victim = int(next(environment.iterdir()).name)
    assert victim != os.getpid()
    psutil.Process(victim).kill()
    outcome = run.result()
    assert outcome.complete
    assert zarr_files(tmp_path / "sweep") == undisturbed


KILL_WHILE_STARTING = """
import sys, threading, time
import psutil
from metastable import sweep
from metastable.sweep import cluster
from tests.unit.sweep import toy

def kill_the_first_worker():
    while True:
        for child in psutil.Process().children():
            try:
                if any("spawn_main" in part for part in child.cmdline()):
                    child.kill()
                    return
            except psutil.Error:
                pass
        time.sleep(0.002)

if __name__ == "__main__":
    cluster.DASHBOARD = None
    killer = threading.Thread(target=kill_the_first_worker, daemon=True)
    killer.start()
    outcome = sweep.run(toy.small_sweep(), sys.argv[1], workers=2, execute="tests.unit.sweep.toy:execute")
    killer.join(60)
    assert outcome.complete and not killer.is_alive()
"""


def test_worker_killed_while_starting(tmp_path, undisturbed, environment):
    """The others are started again, and nothing is printed."""
    program = tmp_path / "program.py"
    program.write_text(KILL_WHILE_STARTING)
    result = subprocess.run([sys.executable, str(program), str(tmp_path / "sweep")], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout + result.stderr == ""
    assert zarr_files(tmp_path / "sweep") == undisturbed


def test_workers_that_never_start(tmp_path, monkeypatch):
    def killed(**options):
        raise RuntimeError("Nanny failed to start.")

    monkeypatch.setattr("distributed.LocalCluster", killed)
    with pytest.raises(SchedulerLostError, match=r"2 worker processes could not be started.*Nanny failed.*workers=0"):
        sweeps.run(toy.small_sweep(), tmp_path / "sweep", workers=2, execute=EXECUTE)
    assert sweeps.run(toy.small_sweep(), tmp_path / "sweep", workers=0, execute=toy.execute).complete


def test_a_task_that_kills_its_worker_is_recorded_and_spares_the_others(tmp_path, environment):
    sweep = toy.small_sweep(grid={"beta": [1.0, 2.0, 3.0]})
    with dask.config.set({"distributed.scheduler.allowed-failures": 1}):
        outcome = sweeps.run(sweep, tmp_path / "sweep", workers=2, execute="tests.unit.sweep.toy:deadly")
    assert (outcome.done, outcome.failed) == (2, 1)
    failure = sweeps.status(tmp_path / "sweep").failures[0]
    assert failure.where == "beta = 2"
    assert "the worker died" in failure.error
    healed = sweeps.run(sweep, tmp_path / "sweep", workers=0, execute=toy.execute, retry_failed=True)
    assert (healed.done, healed.ran) == (3, 1)


@pytest.fixture
def scheduler(tmp_path, environment):
    """A Dask scheduler and a worker, each in a process of its own."""
    file = tmp_path / "scheduler.json"
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    options = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)]
    processes = [subprocess.Popen([*command, *options], **quiet)]
    wait_for(file.exists)
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", "--scheduler-file", str(file)]
    rest = ["--nthreads", "1", "--no-nanny", "--no-dashboard", "--death-timeout", "5"]
    processes.append(subprocess.Popen([*worker, *rest], **quiet))
    import json

    yield json.loads(file.read_text())["address"], processes[0]
    for process in processes:
        process.kill()
        process.wait()


def test_killed_scheduler(tmp_path, undisturbed, scheduler, monkeypatch):
    address, process = scheduler
    monkeypatch.setattr(clusters, "PATIENCE", 1.0)
    folder = tmp_path / "sweep"
    run = Background(toy.small_sweep(), folder, scheduler=address, execute=SLOW)
    wait_for(lambda: stored(folder) >= 2)
    process.kill()
    with pytest.raises(SchedulerLostError, match=r"scheduler.*went away; \d+ of 12 tasks are done and safe"):
        run.result()
    done = stored(folder)
    assert 2 <= done < 12
    assert int((sweeps.open_results(folder)["task_status"] == 1).sum()) == done
    outcome = sweeps.run(toy.small_sweep(), folder, workers=0, execute=toy.execute)
    assert outcome.ran == 12 - done
    assert zarr_files(folder) == undisturbed


def test_absent_scheduler(tmp_path, monkeypatch):
    monkeypatch.setattr(clusters, "CONNECT", 1.0)
    with pytest.raises(SchedulerLostError, match="no Dask scheduler answers"):
        sweeps.run(toy.small_sweep(), tmp_path / "sweep", scheduler="tcp://127.0.0.1:9", execute=EXECUTE)


@pytest.mark.parametrize("workers", [0, 2])
def test_everything_killed(tmp_path, undisturbed, environment, workers):
    folder = tmp_path / "sweep"
    process = start(CHILD.format(folder=str(folder), workers=workers))
    wait_for(lambda: stored(folder) >= 3)
    with pytest.raises(StoreLockedError, match=f"process {process.pid} on"):
        sweeps.run(toy.small_sweep(), folder, workers=0, execute=toy.execute)
    found = sweeps.status(folder)
    assert found.process["pid"] == process.pid
    process.kill()
    process.wait()
    done = stored(folder)
    assert done < 12
    # Readers find all that is safe, not only what the view held when its writer died.
    found = sweeps.open_results(folder)
    assert int((found["task_status"] == 1).sum()) == done == sweeps.status(folder).done
    assert found["clusters"].attrs["done_tasks"] == done
    outcome = sweeps.run(toy.small_sweep(), folder, workers=0, execute=toy.execute)
    assert outcome.ran == 12 - done
    assert zarr_files(folder) == undisturbed


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C cannot be sent to one process there")
def test_interrupted(tmp_path, undisturbed, environment):
    folder = tmp_path / "sweep"
    process = start(CHILD.format(folder=str(folder), workers=2), stderr=subprocess.DEVNULL)
    wait_for(lambda: stored(folder) >= 3)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) != 0
    done = stored(folder)
    assert int((sweeps.open_results(folder)["task_status"] == 1).sum()) == done < 12
    assert sweeps.run(toy.small_sweep(), folder, workers=0, execute=toy.execute).complete
    assert zarr_files(folder) == undisturbed


def test_full_disk(tmp_path, small_disk):
    sweep = toy.small_sweep(members=1000)
    whole = sweeps.run(sweep, tmp_path / "whole", workers=0, execute=toy.execute)
    folder = small_disk.path / "sweep"
    with pytest.raises(StoreFullError, match="no room left"):
        sweeps.run(sweep, folder, workers=0, execute=toy.execute)
    found = sweeps.status(folder)
    assert found.done < 12
    assert not list((folder / "journal").glob(".*"))
    small_disk.grow()
    outcome = sweeps.run(sweep, folder, workers=0, execute=toy.execute)
    assert outcome.ran == 12 - found.done
    assert zarr_files(folder) == zarr_files(whole.folder)


# ------------------------------------------------------------------------------------------- other ways to run


@pytest.mark.skipif(sys.platform == "win32", reason="job scripts are for a POSIX shell")
def test_batch_system_jobs(tmp_path, undisturbed, environment, monkeypatch):
    """dask-jobqueue's own stand-in for a batch system: jobs are real job scripts, started on this machine."""
    package = clusters.jobqueue()
    from dask_jobqueue.local import LocalCluster

    monkeypatch.setattr(package, "LocalCluster", LocalCluster, raising=False)
    monkeypatch.setitem(clusters.CLUSTERS, "here", "LocalCluster")
    options = {"cores": 1, "memory": "1GB", "log_directory": str(tmp_path / "logs"), "interface": LOOPBACK}
    outcome = sweeps.run(
        toy.small_sweep(), tmp_path / "sweep", cluster="here", workers=1, cluster_options=options, execute=EXECUTE
    )
    assert outcome.complete
    assert zarr_files(tmp_path / "sweep") == undisturbed


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        ("slurm", {"queue": "main", "cores": 16, "memory": "32GB"}, ["#SBATCH -p main", "#SBATCH --cpus-per-task=16"]),
        ("pbs", {"queue": "long", "cores": 4, "memory": "8GB"}, ["#PBS -q long", "ncpus=4"]),
        ("lsf", {"cores": 2, "memory": "4GB"}, ["#BSUB -n 2"]),
    ],
)
def test_job_scripts(kind, options, expected):
    with clusters.job_cluster(kind, options) as cluster:
        script = cluster.job_script()
    for line in expected:
        assert line in script
    assert "--nthreads 1" in script


def test_ctrl_c_keeps_its_meaning():
    """Importing dask_jobqueue replaces the handler of Ctrl-C; a sweep on a batch system must still stop in an orderly way."""
    code = (
        "import signal\n"
        "from metastable.sweep import cluster\n"
        "cluster.jobqueue()\n"
        "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
        "import dask_jobqueue.runner\n"
        "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_wrong_cluster_options_are_named():
    with pytest.raises(SweepError, match="cluster must be one of"):
        runner.check_place(None, None, "cloud")
    with pytest.raises(SweepError, match="slurm cluster cannot be made"):
        clusters.job_cluster("slurm", {"corez": 3})


def test_contradictions_are_refused(tmp_path):
    with pytest.raises(SweepError, match="has its own workers"):
        sweeps.run(toy.small_sweep(), tmp_path / "s", scheduler="tcp://127.0.0.1:1", workers=2)
    assert not (tmp_path / "s").exists()


WITHOUT_DASK = """
import sys
from importlib.machinery import PathFinder
class Without(PathFinder):
    @staticmethod
    def find_spec(name, path=None, target=None):
        absent = name.split(".")[0] in ("dask", "distributed", "dask_jobqueue")
        return None if absent else PathFinder.find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Without
import warnings
warnings.simplefilter("error")
from metastable import sweep
from metastable.errors import MissingExtraError
from tests.unit.sweep import toy
lines = []
outcome = sweep.run(toy.small_sweep(), sys.argv[1], execute=toy.execute, say=lines.append)
assert outcome.complete and "Dask is not installed" in lines[0], lines
for way in ({"workers": 2}, {"scheduler": "tcp://127.0.0.1:1"}, {"cluster": "slurm"}):
    try:
        sweep.run(toy.small_sweep(), sys.argv[1] + "-other", execute=toy.execute, **way)
    except MissingExtraError as error:
        assert 'pip install "metastable[sweep]"' in str(error)
    else:
        raise AssertionError(way)
assert not {"dask", "distributed"} & set(sys.modules)
"""


def test_without_dask(tmp_path, undisturbed, environment):
    subprocess.run([sys.executable, "-c", WITHOUT_DASK, str(tmp_path / "sweep")], check=True)
    assert zarr_files(tmp_path / "sweep") == undisturbed
    assert not (tmp_path / "sweep-other").exists()
    assert issubclass(MissingExtraError, ImportError)


def test_many_small_tasks(tmp_path, environment):
    """Batches: far fewer segments than tasks, and the client keeps no arrays."""
    sweep = toy.small_sweep(grid={"beta": {"range": [1, 20], "count": 20}, "draw": {"range": [0, 14], "step": 1}})
    outcome = sweeps.run(sweep, tmp_path / "sweep", workers=2, execute=EXECUTE)
    assert outcome.complete
    assert len(list((tmp_path / "sweep" / "journal").glob("*.segment"))) < 100
    assert np.isfinite(outcome.dataset["clusters"].values).all()

"""Windows and macOS: nothing that only Linux has, no fork, no POSIX path or signal."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import metastable

ROOT = Path(__file__).parents[2]
SOURCES = sorted(Path(metastable.__file__).parent.rglob("*.py"))

POSIX_MODULES = {
    "fcntl",
    "grp",
    "posix",
    "pty",
    "pwd",
    "readline",
    "resource",
    "syslog",
    "termios",
    "tty",
    "curses",
    "crypt",
}
POSIX_NAMES = {
    "os": {
        "fork",
        "forkpty",
        "getuid",
        "geteuid",
        "getgid",
        "getegid",
        "setsid",
        "setpgrp",
        "killpg",
        "kill",
        "getpgid",
        "wait",
    }
    | {
        "waitpid",
        "pread",
        "pwrite",
        "mkfifo",
        "chown",
        "chroot",
        "sysconf",
        "uname",
        "statvfs",
        "getloadavg",
        "nice",
        "sync",
    }
    | {
        "sched_getaffinity",
        "sched_setaffinity",
        "posix_fallocate",
        "O_DIRECTORY",
        "O_NOFOLLOW",
        "O_NONBLOCK",
        "O_CLOEXEC",
    },
    "signal": {
        "SIGKILL",
        "SIGHUP",
        "SIGQUIT",
        "SIGUSR1",
        "SIGUSR2",
        "SIGALRM",
        "SIGCHLD",
        "SIGPIPE",
        "alarm",
        "setitimer",
        "pause",
    },
    "socket": {"AF_UNIX"},
    "select": {"poll", "epoll", "kqueue"},
    "multiprocessing": {"set_start_method"},
}


def posix_only(tree: ast.AST, text: str) -> list[str]:
    """Imports and names that Windows or macOS lack, unless the same line asks `hasattr` first."""
    lines = text.splitlines()
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [item.name for item in node.names if item.name.split(".")[0] in POSIX_MODULES]
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in POSIX_MODULES:
            found.append(node.module)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            known = POSIX_NAMES.get(node.value.id, set())
            if node.attr in known and "hasattr" not in lines[node.lineno - 1]:
                found.append(f"{node.value.id}.{node.attr}")
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value.startswith(("/tmp", "/dev/", "/proc"))
        ):
            found.append(node.value)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("read_text", "write_text"):
            named = {keyword.arg for keyword in node.keywords}  # UTF-8 is the default on POSIX, a code page on Windows
            found += [] if "encoding" in named else [f"{ast.unparse(node.func)} without encoding"]
    return found


def test_the_scan_finds_what_it_should():
    text = 'import fcntl\nimport os\nos.fork()\nos.kill(1, 0)\nopen("/tmp/x")\nPath("a").read_text()\n'
    wanted = {"fcntl", "/tmp/x", "os.fork", "os.kill", "Path('a').read_text without encoding"}
    assert set(posix_only(ast.parse(text), text)) == wanted
    guarded = 'n = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1\n'
    assert posix_only(ast.parse(guarded), guarded) == []


def test_no_module_needs_posix():
    found = {}
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        found[str(path)] = posix_only(ast.parse(text), text)
    assert len(found) > 200
    assert {path: names for path, names in found.items() if names} == {}


def test_tests_that_need_posix_say_so():
    """`make test-core` runs on Windows and macOS too: a test with a POSIX signal or call asks where it is, or has a mark."""
    found = {}
    for room in ("unit", "equivalence", "smoke"):
        for path in sorted((ROOT / "tests" / room).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            names = [name for name in posix_only(ast.parse(text), text) if name.startswith(("os.", "signal."))]
            asks = "win32" in text or "hasattr(os" in text or path.name == "breaking.py"  # whose callers have the mark
            if names and not asks:
                found[str(path)] = names
    assert found == {}


HIDE = """
# Read by every Python process of the test, the spawned ones too: modules that Windows lacks cannot be imported by our package nor
# by the lock library. (The rest of the machine is Linux and may use them: Dask, tornado and psutil look for them by platform.)
import builtins
HIDDEN = {hidden!r}
_import = builtins.__import__
def _hiding(name, globals=None, locals=None, fromlist=(), level=0):
    asking = (globals or {{}}).get("__name__", "").split(".")[0]
    if level == 0 and name.split(".")[0] in HIDDEN and asking in ("metastable", "filelock", "__main__", "__mp_main__"):
        raise ModuleNotFoundError(f"No module named {{name!r}} (hidden)", name=name)
    return _import(name, globals, locals, fromlist, level)
builtins.__import__ = _hiding
"""

PROGRAM = """
import importlib, pkgutil, sys, multiprocessing, warnings
warnings.simplefilter("ignore")
import metastable as ms
from metastable.sweep import cluster

OPTIONAL = {"torch", "transformers", "huggingface_hub", "numba_cuda", "cuda", "gguf", "safetensors"}

def import_everything():
    count = 0
    for item in pkgutil.walk_packages(ms.__path__, "metastable."):
        if item.name.startswith(("metastable.kernels.cuda", "metastable.integrate.fused.cuda")) or item.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(item.name)
        except ImportError as reason:
            if (reason.name or "").split(".")[0] not in OPTIONAL:
                raise
        count += 1
    assert count > 100, count

def run_sweep(folder, workers):
    sweep = ms.sweep.Sweep(
        model={"dim": 2}, grid={"beta": [1.0, 2.0, 3.0]}, observe={"mean_cosine": {}}, times=[0.5], members=2, tokens=4,
        options={"engine": "reference"},
    )
    outcome = sweep.run(folder, workers=workers, progress=False)
    assert outcome.complete
    assert sweep.run(folder, workers=0).ran == 0

if __name__ == "__main__":
    try:
        import fcntl
    except ModuleNotFoundError:
        pass
    else:
        raise AssertionError("fcntl is not hidden")
    import_everything()
    cluster.DASHBOARD = None
    run_sweep(sys.argv[1] + "/here", 0)
    run_sweep(sys.argv[1] + "/workers", 2)
    # The same in a spawned process: what runs there is imported anew, nothing is inherited.
    process = multiprocessing.get_context("spawn").Process(target=run_sweep, args=(sys.argv[1] + "/spawned", 0))
    process.start()
    process.join(120)
    assert process.exitcode == 0, process.exitcode
    print("done")
"""


def test_without_posix_modules_and_with_spawn(tmp_path):
    (tmp_path / "site").mkdir()
    hidden = sorted(POSIX_MODULES | {"_posixshmem"})
    (tmp_path / "site" / "sitecustomize.py").write_text(HIDE.format(hidden=hidden), encoding="utf-8")
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    source = str(Path(metastable.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), source])}
    environment["DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD"] = "spawn"
    result = subprocess.run(
        [sys.executable, str(tmp_path / "program.py"), str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    assert result.stdout.strip().endswith("done")

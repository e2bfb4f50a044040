"""A server of the explorer in a process of its own, for tests that talk to it as a browser or an attacker would."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field

import psutil
from websockets.sync.client import connect


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclass
class Server:
    """`start`, `stop`, and where it is."""

    port: int = field(default_factory=free_port)
    workers: int = 2
    process: subprocess.Popen | None = None

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def address(self) -> str:
        return f"http://{self.host}/"

    @property
    def socket_address(self) -> str:
        return f"ws://{self.host}/socket"

    def start(self) -> Server:
        code = (
            "from metastable.explorer.server import serve\n"
            f"serve(port={self.port}, browser=False, workers={self.workers})"
        )
        self.process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
        for _ in range(300):
            assert self.process.poll() is None, "the server ended"
            try:
                urllib.request.urlopen(self.address, timeout=1).close()
                return self
            except OSError:
                time.sleep(0.1)
        raise AssertionError("the server does not answer")

    def warm(self) -> Server:
        """Wait until runs are quick: on a new machine the engine is compiled first, which is no part of what is tested."""
        with connect(self.socket_address, origin=f"http://{self.host}", max_size=None) as page:  # type: ignore[arg-type]
            for run, (dim, until) in enumerate([(2, 5.0), (3, 5.0), (2, 1e6), (3, 1e6)]):
                setting = {"model": {"dim": dim, "beta": 4.0}, "start": {"tokens": 4}}
                order = {
                    "type": "simulate",
                    "panel": 0,
                    "run": run,
                    "setting": setting,
                    "clock": {"until": until, "log": True},
                }
                page.send(json.dumps(order))
                while True:
                    message = page.recv(timeout=900)
                    if (
                        isinstance(message, str)
                        and (data := json.loads(message)).get("run") == run
                        and data["type"] in ("end", "error")
                    ):
                        break
        return self

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(timeout=20)
            self.process = None

    def memory(self) -> float:
        """Resident memory of the server process itself, in MiB."""
        assert self.process is not None
        return psutil.Process(self.process.pid).memory_info().rss / 2**20

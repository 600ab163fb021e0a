"""What rows are measured on: a fresh keeper in a temporary home, and room for the floor's files."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import holdfast
from holdfast.client.connect import open_client
from holdfast.core.home import Home

from ._floor import Scratch, end_by_pidfd, new_root

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from holdfast import SyncClient

# Ours only: what the caller has set for holdfast must not change what is measured.
_SETTINGS = {"HOLDFAST_TIMEOUT": "10m"}


class Stage:
    def __init__(self, *, quick: bool) -> None:
        self.quick = quick
        self.root = new_root()
        self.home = self.root + "/home"
        self.scratch = Scratch(self.root + "/floor")
        for name in [name for name in os.environ if name.startswith("HOLDFAST_")]:
            del os.environ[name]
        os.environ.update(_SETTINGS, HOLDFAST_HOME=self.home)

    def pick(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    @contextmanager
    def limits(self, *, max_running: int = 400, max_finished: int = 100) -> Iterator[None]:
        """Limits for the clients that connect in this block."""
        settings = {
            "HOLDFAST_MAX_RUNNING": str(max_running),
            "HOLDFAST_MAX_FINISHED": str(max_finished),
        }
        before = {name: os.environ.pop(name, None) for name in settings}
        os.environ.update(settings)
        try:
            yield
        finally:
            for name, value in before.items():
                del os.environ[name]
                if value is not None:
                    os.environ[name] = value

    @contextmanager
    def client(self, *, max_finished: int = 100) -> Iterator[SyncClient]:
        """A client in a session of its own, which ends with it."""
        with self.limits(max_finished=max_finished), holdfast.connect(home=self.home) as client:
            yield client

    def keeper(self, client: SyncClient) -> tuple[int, int]:
        """The pids of guard and worker."""
        status = client.keeper_status()
        if not status["running"]:
            raise RuntimeError("the keeper is not running")
        return status["guard"], status["worker"]

    def __enter__(self) -> Stage:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, self.root, ignore_errors=True)
            if not os.path.exists(self.home):
                return
            client = open_client(Home(self.home), None)
            stack.callback(client.close)
            status = client.keeper_status()
            if status["running"]:
                pidfds = [os.pidfd_open(status["guard"]), os.pidfd_open(status["worker"])]
                stack.callback(end_by_pidfd, pidfds, 5.0)
                client.keeper_stop(kill=True)

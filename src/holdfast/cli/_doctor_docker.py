"""`doctor`'s look at Docker: the engine, and containers of ours that nobody keeps any more."""

from __future__ import annotations

from holdfast.client import docker_client
from holdfast.core.errors import Unavailable
from holdfast.core.home import Home
from holdfast.core.store import Store

from ._doctor_check import Check

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


def docker_checks(home: Home) -> Iterator[Check]:
    try:
        engine = docker_client.find_engine()
        version = docker_client.version(engine)
        left = docker_client.left_over(engine, Store(home))
    except Unavailable as error:
        yield Check("note", "docker", f"{error} (only --docker needs it)")
        return
    yield Check("ok", "docker", f"engine {version} at {engine.path}, for --docker")
    for name in left:
        yield Check(
            "note",
            "docker",
            f"the container {name} belongs to no process any more; "
            f"`docker -H unix://{engine.path} rm -f {name}` removes it",
        )

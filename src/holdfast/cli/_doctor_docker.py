"""`doctor`'s look at Docker: the engine, and containers of ours that nobody keeps any more."""

from __future__ import annotations

from holdfast import _docker
from holdfast._errors import Unavailable
from holdfast._home import Home
from holdfast._store import Store

from ._doctor import Check

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


def docker_checks(home: Home) -> Iterator[Check]:
    try:
        engine = _docker.find_engine()
        version = _docker.version(engine)
        left = _docker.left_over(engine, Store(home))
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

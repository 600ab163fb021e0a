"""Why a container could not be started, in our words."""

from __future__ import annotations

import errno
import re

from .engine import EngineError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Not compiled here: few runners ever need one.
_BAD_DIRECTORY = (
    r"Cannot mkdir|is not a directory|bind source path does not exist|destination can't be '/'"
    r"|chdir to cwd|working directory"
)
_NOT_EXECUTABLE = r'exec: "([^"]*)": ([^:]*)'
_OF_RUNTIME = r"^.*(?:container process|runtime create failed|task): "
_NO_USER = r"unable to find (user|group) ([^:]+)"
_NO_NETWORK = r"network (\S+) not found"
_TINI = rb"\[FATAL tini \(\d+\)\] exec (.*) failed: (.*?)\r?\n"


class Refused(Exception):
    """A start that cannot be. `kind` is one of those that the keeper's client knows."""

    def __init__(self, sentence: str, kind: str, *, missing: bool = False) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.kind = kind
        self.missing = missing  # the program is not there at all

    def public(self) -> dict[str, Any]:
        return {"error": self.sentence, "kind": self.kind, "missing": self.missing}


def silent(error: EngineError, path: str) -> Refused:
    if error.number == errno.EACCES:
        return Refused(
            f"you may not use the Docker engine at {path}; join the group docker", "unavailable"
        )
    if error.number == errno.ETIMEDOUT:
        return Refused(
            f"the Docker engine at {path} does not answer in time; restart it", "unavailable"
        )
    return Refused(
        f"no Docker engine answers at {path}; start it, or set DOCKER_HOST", "unavailable"
    )


def refused(error: EngineError, path: str, image: str) -> Refused:
    """The refusal of a start that an error of the engine means."""
    said = re.sub(_OF_RUNTIME, "", error.message).rstrip(".").removesuffix(": unknown")
    if error.status == 0:
        return silent(error, path)
    if error.status == 404 and "o such image" in said:
        return Refused(
            f"the engine has no image {image}; docker pull {image}, or ask with pull", "not_found"
        )
    if found := re.search(_NO_NETWORK, said):
        return Refused(
            f"the engine has no network {found.group(1)}; docker network ls shows which there are",
            "bad_request",
        )
    if found := re.search(_NO_USER, said):
        kind, name = found.groups()
        return Refused(f"the image has no {kind} {name}; give one that it has", "bad_request")
    if re.search(_BAD_DIRECTORY, said):
        return Refused(
            f"the directory cannot be used in the container: {said}; give another", "bad_directory"
        )
    if found := re.search(_NOT_EXECUTABLE, said):
        return not_executable(*found.groups())
    if error.status in (400, 404, 409):
        return Refused(f"the engine refuses: {said}", "bad_request")
    return Refused(f"the engine cannot start it: {said}", "unavailable")


def not_executable(program: str, why: str) -> Refused:
    if "permission" in why.lower():
        return Refused(
            f"{program} in the image may not be executed; check its permissions", "not_executable"
        )
    if "not found" in why or "No such file" in why:
        return Refused(
            f"no program {program!r} in the image; check the name, or use another image",
            "not_executable",
            missing=True,
        )
    return Refused(f"{program} in the image cannot be run: {why.strip()}", "not_executable")


def of_init(code: int | None, output: bytes) -> Refused | None:
    """The container's init says itself that it could not run the program, and ends with 126/127."""
    found = re.match(_TINI, output) if code in (126, 127) else None
    if found is None:
        return None
    program, why = (part.decode(errors="replace") for part in found.groups())
    return not_executable(program, why)

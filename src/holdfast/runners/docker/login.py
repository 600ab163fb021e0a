"""Credentials for a registry: what `docker login` left, as the engine wants to be told it."""

from __future__ import annotations

import base64
import json
import os
import subprocess

from .engine import config_directory, read_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_HUB = "https://index.docker.io/v1/"
_BY_TOKEN = "<token>"  # a user's name that says that the secret is one
_PATIENCE = 10.0


def login(image: str, environ: Mapping[str, str]) -> str:
    """The value of X-Registry-Auth for an image; empty where nobody has logged in."""
    registry = _registry(image)
    config = read_json(os.path.join(config_directory(environ), "config.json"))
    helper = (config.get("credHelpers") or {}).get(registry) or config.get("credsStore")
    if helper:
        found = _ask(str(helper), registry, environ)
    else:
        found = _written((config.get("auths") or {}).get(registry))
    if not found:
        return ""
    return base64.urlsafe_b64encode(
        json.dumps(found | {"serveraddress": registry}).encode()
    ).decode()


def _registry(image: str) -> str:
    """The first part of a name is a registry if it could not be anything else."""
    first, slash, _ = image.partition("/")
    return first if slash and (first == "localhost" or set(".:") & set(first)) else _HUB


def _written(entry: Any) -> dict[str, str]:
    if not isinstance(entry, dict):
        return {}
    if entry.get("identitytoken"):
        return {"identitytoken": str(entry["identitytoken"])}
    try:
        plain = base64.b64decode(entry.get("auth") or "").decode()
    except ValueError:
        return {}
    name, colon, secret = plain.partition(":")
    return {"username": name, "password": secret.rstrip("\0")} if colon else {}


def _ask(helper: str, registry: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Ask the program that keeps them, as Docker's own command does."""
    if os.sep in helper:
        return {}
    try:
        asked = subprocess.run(
            [f"docker-credential-{helper}", "get"],
            input=registry.encode(),
            capture_output=True,
            timeout=_PATIENCE,
            env=dict(environ),
        )
        told = json.loads(asked.stdout) if asked.returncode == 0 else {}
        name, secret = str(told["Username"]), str(told["Secret"])
    except (OSError, ValueError, LookupError, TypeError, subprocess.TimeoutExpired):
        return {}  # then as nobody: the registry says whether that is enough
    return (
        {"identitytoken": secret} if name == _BY_TOKEN else {"username": name, "password": secret}
    )

"""Calling tools from tests that have no event loop."""

from __future__ import annotations

from holdfast import SyncClient, Toolset
from holdfast.client.link import run
from holdfast.tools import Result

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def toolset(hf: SyncClient, dialect: Any, **options: Any) -> Toolset:
    return Toolset(hf._client, dialect, **options)


def call(tools: Toolset, name: str, **arguments: Any) -> Result:
    return run(tools.call(name, arguments))

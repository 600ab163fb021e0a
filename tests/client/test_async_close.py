"""An asyncio client that is closed while it still does something."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from holdfast import HoldfastError, connect

pytestmark = pytest.mark.anyio


async def test_a_request_that_connects_while_its_client_closes_is_refused(home: str) -> None:
    """Nothing is started for a session that is over."""
    client = connect(home=home, session="s")
    hf = await client.__aenter__()
    await hf.spawn("true")
    status = await hf.keeper_status()
    for pid in (status["guard"], status["worker"]):
        os.kill(pid, signal.SIGKILL)
    start = asyncio.ensure_future(hf.spawn("sleep 600"))
    while not hf._link._connecting.locked():  # type: ignore[attr-defined]
        await asyncio.sleep(0)
    await hf.close()
    with pytest.raises(HoldfastError, match="closed"):
        await start
    async with connect(home=home, session="s") as other:
        assert [each.record.command for each in await other.list() if each.record.running] == []

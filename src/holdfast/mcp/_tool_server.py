"""The MCP server: requests of both protocol eras, answered by the session of their connection."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import mcp_types as types
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.shared.exceptions import MCPError

from ..core.errors import BadRequest, HoldfastError, NotFound
from ..core.home import check_session, new_session
from ..tools import Result
from ..tools.detachable import Call
from . import _advertised, _resources, _subagents, _tasks
from ._answers import COMPLETE, encodable, error_answer, in_words, readable, result_answer
from ._limits import patience_of, wakes_its_model
from ._push import Push
from ._session import Session, Settings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mcp.server.context import ServerRequestContext
    from mcp.server.extension import MethodBinding
    from mcp.server.session import ServerSession

    Context = ServerRequestContext["Connections", Any]
    Answer = dict[str, Any]

MODERN = "2026"
_UNCACHED: Answer = {**COMPLETE, "ttlMs": 0, "cacheScope": "private"}
_OLD_NOT_FOUND = -32002
_SETTLE = 1.0  # seconds for what was said before the end of input
_TURNS = 5  # of the event loop without anything left to do
_STOPPING = (
    "the server was told to stop before this was over. Nothing was undone: what was started goes "
    "on, and the next connection in this directory is told of it"
)


class Connection:
    """One client: its session with us, those of its subagents, and what it wants to be told."""

    def __init__(self, settings: Settings, session: str) -> None:
        self.session = Session(settings, session)
        self.push = Push(self.session, settings.channel)
        self._settings = settings
        self._tasks = {session: _tasks.Tasks(self.session)}  # by the names of their sessions
        self._subagents: dict[str, Session] = {}

    def session_of(self, agent: object) -> Session:
        """The session of a subagent that gives its name."""
        name = _subagents.session_name(self.session.name, agent)
        if name not in self._subagents:
            if len(self._subagents) >= _subagents.MOST:
                raise BadRequest(
                    f"there are {_subagents.MOST} subagents already; use the name of one of them"
                )
            self._subagents[name] = Session(self._settings, name, adoption=False)
        return self._subagents[name]

    def tasks_of(self, session: Session) -> _tasks.Tasks:
        if session.name not in self._tasks:
            self._tasks[session.name] = _tasks.Tasks(session)
        return self._tasks[session.name]

    def tasks_with(self, id: str) -> _tasks.Tasks:
        """Those in which this one is; what nobody knows yet is the client's own to take up."""
        known = (tasks for tasks in self._tasks.values() if id in tasks)
        return next(known, self._tasks[self.session.name])

    async def close(self, orderly: bool) -> None:
        self.push.close()
        for tasks in self._tasks.values():
            tasks.close()
        for session in (self.session, *self._subagents.values()):
            await (session.end() if orderly else session.let_go())


def connection_key(id: str | None, name: str | None) -> str:
    """The key that tells clients apart over HTTP: an older one has an id."""
    return f"name {name or ''}" if id is None else f"id {id}"


class Connections:
    """Every connection there is, by the key that tells clients apart, and the calls under way.

    On stdio there is one. Over HTTP an older client has an id; newer ones have none by design, and
    belong to the session that the address names, or else to that of the whole server.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.by_key: dict[str, Connection] = {}
        self.calls: set[asyncio.Task[Result]] = set()
        self.stopping = False

    def of(self, ctx: Context) -> Connection:
        name = self.settings.session
        key = ""
        if ctx.request is not None:
            named = ctx.request.query_params.get("session")
            try:
                name = name or (named and check_session(named)) or None
            except HoldfastError as error:
                raise MCPError(types.INVALID_PARAMS, str(error)) from None
            id = ctx.request.headers.get("mcp-session-id", "")
            key = connection_key(None if ctx.protocol_version >= MODERN else id, name)
        connection = self.open(key, name)
        connection.push.to = ctx.session
        connection.push.begin()
        return connection

    def open(self, key: str, name: str | None = None) -> Connection:
        connection = self.by_key.get(key)
        if connection is None:
            connection = Connection(self.settings, name or new_session())
            self.by_key[key] = connection
        return connection

    async def ended(self, key: str, *, orderly: bool) -> None:
        """A client is gone; `--on-exit` counts more than how it went."""
        connection = self.by_key.pop(key, None)
        if connection is not None:
            how = self.settings.on_exit
            await connection.close(orderly if how is None else how == "stop")

    async def lost(self, key: str, *, forget: bool) -> None:
        """A client seems to be gone; unless it is forgotten it may come back to its session."""
        connection = self.by_key.get(key)
        if connection is not None:
            await connection.close(orderly=self.settings.on_exit == "stop")
            if forget:
                self.by_key.pop(key, None)

    async def close(self) -> None:
        """The server ends: to every client that is still there it looks like a loss."""
        ends = [self.ended(key, orderly=False) for key in list(self.by_key)]
        await asyncio.gather(*ends, return_exceptions=True)

    async def settle(self, unheard: Callable[[], int]) -> None:
        """No more will be said: let what was said before get to the keeper, for a moment."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _SETTLE
        quiet = 0
        while quiet < _TURNS and loop.time() < until:
            busy = bool(unheard() or self.calls)
            quiet = 0 if busy else quiet + 1
            await asyncio.sleep(0.01 if busy else 0)

    def stop(self) -> None:
        """Answer whoever waits; what they wait for goes on."""
        self.stopping = True
        for task in self.calls:
            task.cancel()
        for connection in self.by_key.values():
            connection.push.finish()


class ToolServer(Server[Connections]):
    """The package's server, with the capabilities that we advertise in both eras."""

    channel = False

    def get_capabilities(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
        *,
        protocol_version: str | None = None,
    ) -> types.ServerCapabilities:
        found = super().get_capabilities(
            notification_options,
            experimental_capabilities,
            extensions,
            protocol_version=protocol_version,
        )
        modern = protocol_version is not None and protocol_version >= MODERN
        offered = _advertised.capabilities(channel=self.channel, modern=modern)
        ours = types.ServerCapabilities.model_validate(offered)
        return found.model_copy(update={name: getattr(ours, name) for name in offered})


def build(connections: Connections) -> ToolServer:
    described = Session(connections.settings, "unused")  # for what there is; it is never held
    tools, definitions = described.tools, described.definitions
    schemas = {each["name"]: each["inputSchema"] for each in definitions}

    async def list_tools(ctx: Context, params: Any) -> Answer:
        connections.of(ctx)
        return {**_UNCACHED, "tools": definitions}

    async def call_tool(ctx: Context, params: types.CallToolRequestParams) -> Answer:
        if params.name not in tools.callable:
            raise MCPError(types.INVALID_PARAMS, _unknown_tool(params.name, tools.names))
        return await _call(connections, ctx, params)

    async def list_resources(ctx: Context, params: Any) -> Answer:
        return {
            **_UNCACHED,
            "resources": await _resources.listed(connections.of(ctx).session.client),
        }

    async def list_templates(ctx: Context, params: Any) -> Answer:
        return {**_UNCACHED, "resourceTemplates": _resources.TEMPLATES}

    async def read_resource(ctx: Context, params: types.ReadResourceRequestParams) -> Answer:
        uri = str(params.uri)
        try:
            content = await _resources.read(connections.of(ctx).session.client, uri)
        except NotFound as error:
            code = types.INVALID_PARAMS if ctx.protocol_version >= MODERN else _OLD_NOT_FOUND
            raise MCPError(code, readable(str(error)), {"uri": readable(uri)}) from None
        return {**_UNCACHED, "contents": [content]}

    async def subscribe(ctx: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
        connection, uri = connections.of(ctx), str(params.uri)
        try:
            await _resources.check(connection.session.client, uri)
        except NotFound as error:
            raise MCPError(_OLD_NOT_FOUND, readable(str(error)), {"uri": readable(uri)}) from None
        await connection.push.subscribe(uri)
        return types.EmptyResult()

    async def unsubscribe(
        ctx: Context, params: types.UnsubscribeRequestParams
    ) -> types.EmptyResult:
        connections.of(ctx).push.unsubscribe(str(params.uri))
        return types.EmptyResult()

    async def listen(
        ctx: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        return await connections.of(ctx).push.listen(ctx, params)

    server = ToolServer(
        _advertised.NAME,
        version=_advertised.VERSION,
        title=_advertised.TITLE,
        instructions=tools.dialect.instructions or None,
        on_subscriptions_listen=listen,
        get_tool_input_schema=schemas.get,
    )
    server.channel = connections.settings.channel
    server.middleware.clear()  # it has tracing, which nobody asked for
    for method, kind, handler in (
        ("tools/list", types.PaginatedRequestParams, list_tools),
        ("tools/call", types.CallToolRequestParams, call_tool),
        ("resources/list", types.PaginatedRequestParams, list_resources),
        ("resources/templates/list", types.PaginatedRequestParams, list_templates),
        ("resources/read", types.ReadResourceRequestParams, read_resource),
        ("resources/subscribe", types.SubscribeRequestParams, subscribe),
        ("resources/unsubscribe", types.UnsubscribeRequestParams, unsubscribe),
    ):
        server.add_request_handler(method, kind, _guarded(handler))
    for binding in _tasks.methods(lambda ctx, id: connections.of(ctx).tasks_with(id)):
        server.add_request_handler(binding.method, binding.params_type, _guarded(_gated(binding)))
    return server


async def _call(
    connections: Connections, ctx: Context, params: types.CallToolRequestParams
) -> Answer:
    connection = connections.of(ctx)
    session, arguments = connection.session, dict(params.arguments or {})
    if _subagents.ARGUMENT in arguments and session.tools.dialect.subagents:
        try:
            session = connection.session_of(arguments.pop(_subagents.ARGUMENT))
        except HoldfastError as error:
            return error_answer(str(error), error.code)
    tasks = connection.tasks_of(session)
    token = (ctx.meta or {}).get("progress_token")

    async def progress(seconds: float, text: str) -> None:
        await ctx.session.report_progress(seconds, None, text)

    name = _client_name(ctx.session)
    patience = connections.settings.patience
    if patience is None:
        patience = patience_of(name, token is not None)
    call = Call(
        patience,
        None if token is None else progress,
        detachable=_tasks.declares(ctx),
        leaves=wakes_its_model(name),
    )
    # A task of its own, so that `stop` can end the wait and this can still answer.
    work = asyncio.get_running_loop().create_task(session.perform(call, params.name, arguments))
    connections.calls.add(work)
    work.add_done_callback(connections.calls.discard)
    try:
        if call.detachable:
            task = await tasks.instead_of(call, work)
            if task is not None:
                connections.calls.discard(work)
                return task
        result = await work
    except asyncio.CancelledError:
        mine = asyncio.current_task()
        tasks.give_up(call, work)
        if not connections.stopping or (mine is not None and mine.cancelling()):
            raise
        return error_answer(_STOPPING, "stopping")
    except Exception as error:
        tasks.give_up(call, work)
        return error_answer(in_words(error), getattr(error, "code", "error"))
    if call.detachable:
        tasks.told_of(call.ends)
        await call.told()
    return result_answer(result)


def _gated(binding: MethodBinding) -> Callable[[Context, Any], Awaitable[Any]]:
    """A method of an extension, for the protocol versions that have it."""

    async def gated(ctx: Context, params: Any) -> Any:
        versions = binding.protocol_versions
        if versions is not None and ctx.protocol_version not in versions:
            raise MCPError(types.METHOD_NOT_FOUND, "Method not found", binding.method)
        return await binding.handler(ctx, params)

    return gated


def _guarded(
    handler: Callable[[Context, Any], Awaitable[Any]],
) -> Callable[[Context, Any], Awaitable[Any]]:
    """Wrap a handler: what goes wrong is said in one line, with what to do next."""

    async def guarded(ctx: Context, params: Any) -> Any:
        try:
            answer = await handler(ctx, params)
            return encodable(answer) if isinstance(answer, dict) else answer
        except MCPError:
            raise
        except Exception as error:
            raise MCPError(types.INTERNAL_ERROR, readable(in_words(error))) from None

    return guarded


def _client_name(session: ServerSession) -> str | None:
    params = session.client_params
    return None if params is None else params.client_info.name


def _unknown_tool(name: str, names: list[str]) -> str:
    return f"there is no tool {name[:60]!r}; there are {', '.join(names)}"

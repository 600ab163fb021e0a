"""Our MCP server with the tools and resources that the conformance suite asks for added.

The suite calls tools by name that every tested server has to have. They go through the very
plumbing that ours do; run as a program it serves them over HTTP, on a port of its own choice.
"""

from __future__ import annotations

import asyncio
from typing import Any

import mcp_types as types

from holdfast.mcp._address import Address
from holdfast.mcp._http import serve_http
from holdfast.mcp._session import Settings
from holdfast.mcp._tool_server import Connections, ToolServer, build

PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJ"
    "RU5ErkJggg=="
)
SILENCE = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAESsAACJWAAACABAAZGF0YQAAAAA="
COMPLETE: dict[str, Any] = {"resultType": "complete"}
SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def embedded(uri: str, kind: str, words: str) -> dict[str, Any]:
    return {"type": "resource", "resource": {"uri": uri, "mimeType": kind, "text": words}}


IMAGE = {"type": "image", "data": PIXEL, "mimeType": "image/png"}
ANSWERS: dict[str, list[dict[str, Any]]] = {
    "test_simple_text": [text("This is a simple text response for testing.")],
    "test_image_content": [IMAGE],
    "test_audio_content": [{"type": "audio", "data": SILENCE, "mimeType": "audio/wav"}],
    "test_embedded_resource": [
        embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")
    ],
    "test_multiple_content_types": [
        text("Multiple content types test:"),
        IMAGE,
        embedded(
            "test://mixed-content-resource", "application/json", '{"test":"data","value":123}'
        ),
    ],
    "test_error_handling": [text("This tool intentionally returns an error for testing")],
    "test_tool_with_progress": [text("done")],
    "json_schema_2020_12_tool": [text("ok")],
}
RESOURCES: dict[str, dict[str, str]] = {
    "test://static-text": {
        "mimeType": "text/plain",
        "text": "This is the content of the static text resource.",
    },
    "test://static-binary": {"mimeType": "image/png", "blob": PIXEL},
    "test://template/123/data": {
        "mimeType": "application/json",
        "text": '{"id":"123","templateTest":true,"data":"Data for ID: 123"}',
    },
}


def with_fixtures(connections: Connections) -> ToolServer:
    server = build(connections)
    before: dict[str, Any] = {}
    for method in ("tools/list", "tools/call", "resources/read", "resources/subscribe"):
        entry = server.get_request_handler(method)
        assert entry is not None
        before[method] = entry.handler

    async def list_tools(ctx: Any, params: Any) -> dict[str, Any]:
        ours: dict[str, Any] = await before["tools/list"](ctx, params)
        plain = {"type": "object", "properties": {}}
        schemas = {"json_schema_2020_12_tool": SCHEMA}
        theirs = [
            {"name": name, "description": name, "inputSchema": schemas.get(name, plain)}
            for name in ANSWERS
        ]
        return {**ours, "tools": [*ours["tools"], *theirs]}

    async def call_tool(ctx: Any, params: types.CallToolRequestParams) -> Any:
        if params.name not in ANSWERS:
            return await before["tools/call"](ctx, params)
        if params.name == "test_tool_with_progress":
            for done in (0, 50, 100):
                await ctx.session.report_progress(done, 100, f"Completed step {done} of 100")
                await asyncio.sleep(0.05)
        wrong = params.name == "test_error_handling"
        return {**COMPLETE, "content": ANSWERS[params.name], "isError": wrong}

    async def read_resource(ctx: Any, params: types.ReadResourceRequestParams) -> Any:
        uri = str(params.uri)
        if uri not in RESOURCES:
            return await before["resources/read"](ctx, params)
        contents = [{"uri": uri, **RESOURCES[uri]}]
        return {**COMPLETE, "ttlMs": 0, "cacheScope": "private", "contents": contents}

    async def subscribe(ctx: Any, params: types.SubscribeRequestParams) -> Any:
        if not str(params.uri).startswith("test://"):
            return await before["resources/subscribe"](ctx, params)
        return types.EmptyResult()

    server.add_request_handler("resources/subscribe", types.SubscribeRequestParams, subscribe)
    server.add_request_handler("tools/list", types.PaginatedRequestParams, list_tools)
    server.add_request_handler("tools/call", types.CallToolRequestParams, call_tool)
    server.add_request_handler("resources/read", types.ReadResourceRequestParams, read_resource)
    return server


if __name__ == "__main__":
    serve_http(Settings(), Address.parse("127.0.0.1:0", []), None, with_fixtures)

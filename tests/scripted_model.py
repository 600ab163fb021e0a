"""A model that follows a script, on loopback: what real agents talk to in tests.

It speaks Anthropic's Messages, OpenAI's chat completions and Responses, and Gemini's API, streamed
or not, and understands as much of each as agents use. A script is a function from `Request` to a
reply, or a list of replies for one request after the other. A reply is text, a `Use` of a tool, or
a list of both; in a list of replies a function may stand for one.

    with ScriptedModel([Use("spawn_process", command="make"), "started"]) as model:
        ...  # an agent whose endpoint is model.url
    assert model.told("exit code 2") == 1

Each request has a thread, so a script may wait for whatever the test waits for. Requests beside
the conversation (titles, summaries, a look at the quota), which offer no tools, are answered by
themselves and never reach the script.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from holdfast.testing import wait_until

Json = dict[str, Any]
_ids = itertools.count(1)


@dataclass(frozen=True)
class Use:
    """The use of a tool, by its own name: agents put that of the server before it."""

    tool: str
    arguments: Json

    def __init__(self, tool: str, /, **arguments: Any) -> None:
        object.__setattr__(self, "tool", tool)
        object.__setattr__(self, "arguments", arguments)


@dataclass(frozen=True)
class Part:
    """A piece of a conversation."""

    role: str  # "user", "assistant" (its use of tools too), "tool" for a result, or "system"
    text: str
    id: str = ""  # of the use that a result is for


Reply = str | Use | Sequence[str | Use]
Step = Reply | Callable[["Request"], Reply]


@dataclass
class Request:
    """One request to the model."""

    api: str  # "messages", "chat", "responses" or "gemini"
    path: str
    headers: dict[str, str]
    body: Json
    system: str = ""
    parts: list[Part] = field(default_factory=list)
    tools: list[str] = field(default_factory=list)
    answer: list[str | Use] = field(default_factory=list)  # once it was given

    @property
    def beside(self) -> bool:
        """Not of the conversation: a title, a summary, a look at the quota."""
        return not self.tools

    @property
    def news(self) -> list[Part]:
        """The parts that came after the model's last answer."""
        turns = [i for i, part in enumerate(self.parts) if part.role == "assistant"]
        return self.parts[turns[-1] + 1 :] if turns else self.parts

    @property
    def text(self) -> str:
        """What the user said after the last answer."""
        return "\n".join(part.text for part in self.news if part.role == "user")

    @property
    def results(self) -> list[str]:
        """The results of tools since the last answer."""
        return [part.text for part in self.news if part.role == "tool"]

    @property
    def said(self) -> str:
        """All that the model was told: what users said and what tools gave."""
        return "\n".join(part.text for part in self.parts if part.role != "assistant")

    @property
    def conversation(self) -> str:
        """The same for all requests of one conversation, and for no other's."""
        user = str(self.body.get("metadata", {}).get("user_id", ""))
        names = ("x-claude-code-session-id", "session_id", "session-id", "x-session-affinity")
        ids = [user, *(self.headers.get(name, "") for name in names)]
        said = (p.text for p in self.parts if p.role == "user" and not _is_reminder(p.text))
        return "\n".join([*filter(None, ids), next(said, "")])

    def named(self, tool: str) -> str:
        """The name under which this tool is offered."""
        found = [name for name in self.tools if re.search(rf"(^|[_/]){re.escape(tool)}$", name)]
        if not found:
            raise LookupError(f"{tool!r} is not among the tools offered: {self.tools}")
        return min(found, key=len)  # wait_process ends in process too


def _is_reminder(text: str) -> bool:
    """Text that agents put before what the user said."""
    marks = (
        "<system-reminder>",
        "<environment_context>",
        "<user_instructions>",
        "<session_context",
    )
    return text.lstrip().startswith(marks)


class ScriptedModel:
    """The endpoint, for as long as the block lasts."""

    def __init__(self, script: Callable[[Request], Reply] | Sequence[Step]) -> None:
        self._script = script
        self._steps = None if callable(script) else list(script)
        self._lock = threading.Lock()
        self._busy = 0
        self.requests: list[Request] = []  # of the conversations
        self.beside: list[Request] = []  # and those beside them
        self.unknown: list[str] = []  # paths that were asked for and do not exist here
        self.failures: list[str] = []  # of scripts
        model = self

        class Handler(_Handler):
            owner = model

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> ScriptedModel:
        self._thread.start()
        return self

    def __exit__(self, what: object, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        wait_until(lambda: not self._busy, what="the answers to all requests")
        if what is None:
            assert not self.failures, self.failures[0]

    def told(self, text: str) -> int:
        """How often the models were told this: the most that one request had of it, added up.

        Each request has the whole conversation in it. So it is counted once however often the agent
        asks, and again in another conversation, that of the next agent for example.
        """
        most: dict[str, int] = {}
        for request in list(self.requests):
            key = request.conversation
            most[key] = max(most.get(key, 0), request.said.count(text))
        return sum(most.values())

    @property
    def last(self) -> Request:
        return self.requests[-1]

    def reply_to(self, request: Request) -> list[str | Use]:
        if request.beside:
            self.beside.append(request)
            return ["{}" if "json" in json.dumps(request.body).lower() else "Scripted"]
        with self._lock:
            self.requests.append(request)
            if self._steps is None:
                step: Step = self._script  # type: ignore[assignment]
            else:
                step = self._steps.pop(0) if self._steps else "done"
        try:
            reply = step(request) if callable(step) else step
            given = [reply] if isinstance(reply, str | Use) else list(reply)
            for each in given:
                if isinstance(each, Use):
                    request.named(each.tool)
        except Exception:
            # An answer all the same: agents ask again and again after an error.
            self.failures.append(traceback.format_exc())
            given = [f"the script failed: {self.failures[-1]}"]
        request.answer = given
        return given


class _Handler(BaseHTTPRequestHandler):
    owner: ScriptedModel

    def log_message(self, *_: object) -> None:
        return

    def handle(self) -> None:
        with self.owner._lock:
            self.owner._busy += 1
        try:
            super().handle()
        except OSError:
            pass  # the agent was killed, or gave up
        finally:
            with self.owner._lock:
                self.owner._busy -= 1

    def do_HEAD(self) -> None:
        self._json({})

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path.endswith("/models"):
            self._json({"object": "list", "data": [], "models": []})
        elif path == "/":
            self._json({})
        else:
            self._unknown(path)

    def do_POST(self) -> None:
        path = urlsplit(self.path).path
        data = self.rfile.read(int(self.headers.get("content-length") or 0))
        try:
            body: Json = json.loads(data or b"{}")
        except ValueError:
            self._json({"error": {"message": "this is no JSON"}}, 400)
            return
        if path.endswith(("/count_tokens", ":countTokens")):
            self._json({"input_tokens": 1000, "totalTokens": 1000})
            return
        api = next((api for ending, api in _PATHS.items() if re.search(ending, path)), None)
        if api is None:
            self._unknown(path)
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(api, path, headers, body)
        _READERS[api](request)
        whole, events = _WRITERS[api](request, self.owner.reply_to(request))
        if body.get("stream") or "stream" in path.rpartition(":")[2]:
            self._stream(events)
        else:
            self._json(whole)

    def _unknown(self, path: str) -> None:
        self.owner.unknown.append(f"{self.command} {path}")
        self._json({"error": {"type": "not_found_error", "message": f"no {path} here"}}, 404)

    def _json(self, data: Json, status: int = 200) -> None:
        text = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def _stream(self, events: Iterator[tuple[str, Json | str]]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for name, data in events:
            text = data if isinstance(data, str) else json.dumps(data)
            line = f"event: {name}\n" if name else ""
            self.wfile.write(f"{line}data: {text}\n\n".encode())


_PATHS = {
    r"/messages$": "messages",
    r"/chat/completions$": "chat",
    r"/responses$": "responses",
    r":(stream)?[gG]enerateContent$": "gemini",
}


def _text(content: Any) -> str:
    """The text of a piece of content, in any of the ways there are to write it."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(_text(each) for each in content)
    if isinstance(content, dict):
        for key in ("text", "content", "output"):
            if key in content:
                return _text(content[key])
        return json.dumps(content)
    return "" if content is None else str(content)


# -- Anthropic: Messages ---------------------------------------------------------------------------


def _read_messages(request: Request) -> None:
    request.system = _text(request.body.get("system", ""))
    request.tools = [tool["name"] for tool in request.body.get("tools") or ()]
    for message in request.body.get("messages", ()):
        content = message["content"]
        for block in [{"text": content}] if isinstance(content, str) else content:
            if block.get("type") == "tool_result":
                part = Part("tool", _text(block.get("content")), block["tool_use_id"])
            elif block.get("type") == "tool_use":
                part = Part("assistant", json.dumps(block["input"]), block["id"])
            else:
                part = Part(message["role"], _text(block))
            request.parts.append(part)


def _write_messages(request: Request, reply: list[str | Use]) -> Any:
    blocks: list[Json] = [
        {"type": "text", "text": each}
        if isinstance(each, str)
        else {
            "type": "tool_use",
            "id": f"toolu_{next(_ids):06}",
            "name": request.named(each.tool),
            "input": each.arguments,
        }
        for each in reply
    ]
    used = any(block["type"] == "tool_use" for block in blocks)
    whole = {
        "id": f"msg_{next(_ids):06}",
        "type": "message",
        "role": "assistant",
        "model": request.body.get("model"),
        "content": blocks,
        "stop_reason": "tool_use" if used else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 100, "output_tokens": 10},
    }

    def events() -> Iterator[tuple[str, Json]]:
        def event(type: str, **more: Any) -> tuple[str, Json]:
            return type, {"type": type, **more}

        yield event("message_start", message={**whole, "content": [], "stop_reason": None})
        for index, block in enumerate(blocks):
            if block["type"] == "text":
                begin: Json = {"type": "text", "text": ""}
                delta: Json = {"type": "text_delta", "text": block["text"]}
            else:
                begin = {**block, "input": {}}
                delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
            yield event("content_block_start", index=index, content_block=begin)
            yield event("content_block_delta", index=index, delta=delta)
            yield event("content_block_stop", index=index)
        stop = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
        yield event("message_delta", delta=stop, usage={"output_tokens": 10})
        yield event("message_stop")

    return whole, events()


# -- OpenAI: chat completions ----------------------------------------------------------------------


def _read_chat(request: Request) -> None:
    request.tools = [tool["function"]["name"] for tool in request.body.get("tools") or ()]
    for message in request.body.get("messages", ()):
        text = _text(message.get("content"))
        if message["role"] in ("system", "developer"):
            request.system += text
            continue
        if text or message["role"] != "assistant":
            request.parts.append(Part(message["role"], text, message.get("tool_call_id", "")))
        for use in message.get("tool_calls") or ():
            request.parts.append(Part("assistant", use["function"]["arguments"], use["id"]))


def _write_chat(request: Request, reply: list[str | Use]) -> Any:
    text = "\n".join(each for each in reply if isinstance(each, str))
    uses = [
        {
            "index": index,
            "id": f"call_{next(_ids):06}",
            "type": "function",
            "function": {
                "name": request.named(each.tool),
                "arguments": json.dumps(each.arguments),
            },
        }
        for index, each in enumerate(each for each in reply if isinstance(each, Use))
    ]
    message: Json = {"role": "assistant", "content": text or None}
    if uses:
        message["tool_calls"] = uses
    finish = "tool_calls" if uses else "stop"
    about = {"id": f"chat-{next(_ids)}", "created": 0, "model": request.body.get("model")}
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    whole = {
        **about,
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": usage,
    }

    def events() -> Iterator[tuple[str, Json | str]]:
        chunk = {**about, "object": "chat.completion.chunk"}
        yield "", {**chunk, "choices": [{"index": 0, "delta": message, "finish_reason": None}]}
        yield "", {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}
        yield "", {**chunk, "choices": [], "usage": usage}
        yield "", "[DONE]"

    return whole, events()


# -- OpenAI: Responses -----------------------------------------------------------------------------


def _read_responses(request: Request) -> None:
    request.system = _text(request.body.get("instructions", ""))
    for tool in request.body.get("tools") or ():
        if tool.get("type") == "namespace":
            request.tools += [f"{tool['name']}/{each['name']}" for each in tool["tools"]]
        else:
            request.tools.append(tool.get("name") or tool["type"])
    given = request.body.get("input", ())
    for item in [{"role": "user", "content": given}] if isinstance(given, str) else given:
        kind = item.get("type", "message")
        if kind == "message" and item["role"] in ("system", "developer"):
            request.system += _text(item["content"])
        elif kind == "message":
            content = item["content"]
            for block in [content] if isinstance(content, str) else content:
                request.parts.append(Part(item["role"], _text(block)))
        elif kind.endswith("_output"):
            request.parts.append(Part("tool", _text(item.get("output")), item["call_id"]))
        elif kind.endswith("_call"):
            text = str(item.get("arguments") or item.get("input") or "")
            request.parts.append(Part("assistant", text, item.get("call_id", "")))


def _write_responses(request: Request, reply: list[str | Use]) -> Any:
    items: list[Json] = []
    for each in reply:
        if isinstance(each, str):
            content = [{"type": "output_text", "text": each, "annotations": []}]
            item: Json = {"type": "message", "role": "assistant", "content": content}
        else:
            space, _, name = request.named(each.tool).rpartition("/")
            item = {
                "type": "function_call",
                "call_id": f"call_{next(_ids):06}",
                "name": name,
                "arguments": json.dumps(each.arguments),
                **({"namespace": space} if space else {}),
            }
        items.append({"id": f"item_{next(_ids):06}", "status": "completed", **item})
    whole = {
        "id": f"resp_{next(_ids):06}",
        "object": "response",
        "created_at": 0,
        "status": "completed",
        "model": request.body.get("model"),
        "output": items,
        "usage": {
            "input_tokens": 100,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 10,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 110,
        },
    }

    def events() -> Iterator[tuple[str, Json]]:
        numbers = itertools.count()

        def event(type: str, **more: Any) -> tuple[str, Json]:
            return type, {"type": type, "sequence_number": next(numbers), **more}

        begun = {**whole, "status": "in_progress", "output": [], "usage": None}
        yield event("response.created", response=begun)
        for index, item in enumerate(items):
            yield event("response.output_item.added", output_index=index, item=item)
            if item["type"] == "message":
                delta = item["content"][0]["text"]
                where: Json = {"item_id": item["id"], "output_index": index, "content_index": 0}
                yield event("response.output_text.delta", **where, delta=delta)
            yield event("response.output_item.done", output_index=index, item=item)
        yield event("response.completed", response=whole)

    return whole, events()


# -- Gemini ----------------------------------------------------------------------------------------


def _read_gemini(request: Request) -> None:
    body = request.body
    request.system = _text(body.get("systemInstruction", {}).get("parts", ""))
    if "responseJsonSchema" not in body.get("generationConfig", {}):
        request.tools = [
            each["name"]
            for tool in body.get("tools") or ()
            for each in tool.get("functionDeclarations", ())
        ]
    for content in body.get("contents", ()):
        role = "assistant" if content.get("role") == "model" else "user"
        for part in content["parts"]:
            if "functionResponse" in part:
                found = part["functionResponse"]
                text = _text(found.get("response"))
                request.parts.append(Part("tool", text, found.get("id", "")))
            elif "functionCall" in part:
                request.parts.append(Part("assistant", json.dumps(part["functionCall"])))
            else:
                request.parts.append(Part(role, _text(part)))


def _write_gemini(request: Request, reply: list[str | Use]) -> Any:
    parts = [
        {"text": each}
        if isinstance(each, str)
        else {"functionCall": {"name": request.named(each.tool), "args": each.arguments}}
        for each in reply
    ]
    usage = {"promptTokenCount": 100, "candidatesTokenCount": 10, "totalTokenCount": 110}
    content = {"role": "model", "parts": parts}
    whole = {
        "candidates": [{"index": 0, "content": content, "finishReason": "STOP"}],
        "usageMetadata": usage,
    }
    return whole, iter([("", whole)])


_READERS = {
    "messages": _read_messages,
    "chat": _read_chat,
    "responses": _read_responses,
    "gemini": _read_gemini,
}
_WRITERS = {
    "messages": _write_messages,
    "chat": _write_chat,
    "responses": _write_responses,
    "gemini": _write_gemini,
}

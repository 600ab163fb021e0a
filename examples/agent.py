#!/usr/bin/env python3
"""A chat with an agent that starts background processes, and wakes when something happens to them.

    $ export ANTHROPIC_API_KEY=...
    $ python examples/agent.py --model claude-sonnet-4-5
    (session 7t6mhcq2yk3hk2vd)
    Run the tests, and tell me when they are done.
      spawn_process {'command': 'make test', 'label': 'tests'}
    agent: They are running, I will tell you.
    * news of proc-234px4b2gu2t5red
    agent: 12 passed, 1 failed: test_login. Shall I look into it?

With ``--api openai`` the endpoint is one for chat completions, as most others have too, a server on
your own machine for example: ``--url http://127.0.0.1:11434``.

Killed, even with -9, and started again with ``--session`` and that name, it finds its processes,
and is told of what happened to them meanwhile. At the end of its input it stops them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

import holdfast

Json = dict[str, Any]

SYSTEM = """You are an agent on its user's machine, with tools for background processes. Start what
takes long without waiting for it, say so, and end your turn: a message tells you when a process has
ended, asks for something, or whatever else you watch for. Never sleep, and never poll."""


@dataclass
class Call:
    """A tool that the model wants to be called."""

    id: str
    name: str
    arguments: Any


class Anthropic:
    """A model behind Anthropic's Messages API."""

    url, key = "https://api.anthropic.com", "ANTHROPIC_API_KEY"

    def __init__(self, url: str, key: str, model: str, tools: holdfast.SyncToolset) -> None:
        self._url = f"{url}/v1/messages"
        self._headers = {"x-api-key": key, "anthropic-version": "2023-06-01"}
        self._fixed = {"model": model, "max_tokens": 8192, "system": SYSTEM}
        self._fixed["tools"] = tools.definitions("anthropic")

    def ask(self, history: list[Json]) -> tuple[Json, str, list[Call]]:
        """The answer as it belongs into the history, its text, and what it wants to be called."""
        content = post(self._url, self._headers, {**self._fixed, "messages": history})["content"]
        text = "\n".join(each["text"] for each in content if each["type"] == "text")
        uses = [each for each in content if each["type"] == "tool_use"]
        calls = [Call(each["id"], each["name"], each["input"]) for each in uses]
        return {"role": "assistant", "content": content or "(nothing)"}, text, calls

    def results(self, done: list[tuple[Call, holdfast.Result]]) -> list[Json]:
        blocks = [
            {
                "type": "tool_result",
                "tool_use_id": call.id,
                "content": result.text,
                "is_error": result.is_error,
            }
            for call, result in done
        ]
        return [{"role": "user", "content": blocks}]


class OpenAI:
    """A model behind OpenAI's chat completions, or anybody's who speaks that."""

    url, key = "https://api.openai.com", "OPENAI_API_KEY"

    def __init__(self, url: str, key: str, model: str, tools: holdfast.SyncToolset) -> None:
        self._url = f"{url}/v1/chat/completions"
        self._headers = {"authorization": f"Bearer {key}"}
        self._fixed = {"model": model, "tools": tools.definitions("openai")}

    def ask(self, history: list[Json]) -> tuple[Json, str, list[Call]]:
        messages = [{"role": "system", "content": SYSTEM}, *history]
        reply = post(self._url, self._headers, {**self._fixed, "messages": messages})
        answer = reply["choices"][0]["message"]
        uses = [(each["id"], each["function"]) for each in answer.get("tool_calls") or ()]
        calls = [Call(id, use["name"], use["arguments"]) for id, use in uses]
        return answer, answer.get("content") or "", calls

    def results(self, done: list[tuple[Call, holdfast.Result]]) -> list[Json]:
        return [
            {"role": "tool", "tool_call_id": call.id, "content": result.text}
            for call, result in done
        ]


def post(url: str, headers: dict[str, str], body: Json) -> Any:
    headers = {**headers, "content-type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=600) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        said = error.read(500).decode(errors="replace")
        raise ConnectionError(f"{url} answered {error.code}: {said}") from None
    except (OSError, HTTPException, ValueError) as error:
        raise ConnectionError(f"{url} did not answer: {error}") from None


class Agent:
    """A conversation: what was said so far, and one turn at a time."""

    def __init__(self, model: Anthropic | OpenAI, tools: holdfast.SyncToolset) -> None:
        self._model = model
        self._tools = tools
        self._history: list[Json] = []
        self.turn = threading.Lock()

    def hear(self, text: str) -> None:
        """A turn: ask the model and call its tools, until it has answered."""
        with self.turn:
            said = {"role": "user", "content": text}
            self._history.append(said)
            try:
                while calls := self._ask():
                    done = [(call, self._call(call)) for call in calls]
                    self._history += self._model.results(done)
                self._tools.read()  # it has answered, so it has read all that the results told
            except ConnectionError as error:
                if self._history[-1] is said:  # the model has not heard of it
                    self._history.pop()
                    raise
                print(f"(the turn broke off: {error})", flush=True)

    def wake(self, message: holdfast.Message) -> None:
        """A turn that nobody asked for, when something has happened. What raises is told again."""
        print(f"* news of {', '.join(message.handles)}", flush=True)
        self.hear(str(message))

    def _ask(self) -> list[Call]:
        answer, text, calls = self._model.ask(self._history)
        self._history.append(answer)
        if text:
            print(f"agent: {text}", flush=True)
        return calls

    def _call(self, call: Call) -> holdfast.Result:
        print(f"  {call.name} {call.arguments}", flush=True)
        return self._tools.call(call.name, call.arguments)


def main() -> None:
    apis: dict[str, type[Anthropic | OpenAI]] = {"anthropic": Anthropic, "openai": OpenAI}
    parser = argparse.ArgumentParser(description="A chat with an agent that has processes.")
    parser.add_argument("--api", choices=apis, default="anthropic")
    parser.add_argument("--url", help="the endpoint, such as http://127.0.0.1:11434")
    parser.add_argument("--model", required=True)
    parser.add_argument("--session", help="go on with the processes of this one")
    given = parser.parse_args()
    api = apis[given.api]
    url = (given.url or api.url).rstrip("/").removesuffix("/v1")
    with holdfast.connect(session=given.session) as hf:
        print(f"(session {hf.session})", flush=True)
        tools = holdfast.SyncToolset(hf)
        agent = Agent(api(url, os.environ.get(api.key, ""), given.model, tools), tools)
        stop = threading.Event()
        options = {"busy": agent.turn.locked, "toolset": tools, "attempts": None, "stop": stop}
        wakes = threading.Thread(
            target=holdfast.deliver, args=(hf, agent.wake), kwargs=options, daemon=True
        )
        wakes.start()
        try:
            for line in filter(str.strip, sys.stdin):
                try:
                    agent.hear(line.strip())
                except ConnectionError as error:
                    print(f"({error}; say it again)", flush=True)
        except KeyboardInterrupt:
            print()
        finally:
            stop.set()
            wakes.join(10)


if __name__ == "__main__":
    main()

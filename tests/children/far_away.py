"""A place where jobs run that no keeper knows: far_away.py SOCKET.

A connection says in one line of JSON what it wants. Jobs go by a name. Their output is kept, and
can be had from any offset on, as often as somebody asks.

    start    begin a job                  look     whether it is there
    signal   send it a signal             size     tell its output of a terminal's size
    output   its output, to the end       input    what follows is its stdin, which ends with it
    state    how it ended, once it has    remove   forget it
    tell     what was done to it so far   complain of a runner
"""

import json
import os
import signal
import socketserver
import subprocess
import sys
import threading
from typing import Any, BinaryIO

# What was done to each job stays known when it is removed.
jobs: dict[str, "Job"] = {}
told: dict[str, list[str]] = {}


class Job:
    def __init__(self, name: str, asked: dict[str, Any]) -> None:
        self.grown = threading.Condition()
        self.output = {"stdout": b"", "stderr": b""}
        self.process = subprocess.Popen(
            ["sh", "-c", asked["command"]],
            env={"PATH": os.environ["PATH"], **asked["env"]},
            stdin=subprocess.PIPE if asked["stdin"] else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if asked["separate"] else subprocess.STDOUT,
            start_new_session=True,
        )
        pipes = [("stdout", self.process.stdout), ("stderr", self.process.stderr)]
        self.open = {stream for stream, pipe in pipes if pipe is not None}
        for stream, pipe in pipes:
            if pipe is not None:
                threading.Thread(target=self.keep, args=(stream, pipe), daemon=True).start()

    def keep(self, stream: str, pipe: BinaryIO) -> None:
        while data := os.read(pipe.fileno(), 1 << 16):
            self.add(stream, data)
        with self.grown:
            self.open.discard(stream)
            self.grown.notify_all()

    def add(self, stream: str, data: bytes) -> None:
        with self.grown:
            self.output[stream] += data
            self.grown.notify_all()

    def piece(self, stream: str, begin: int) -> bytes:
        """What there is from an offset on; nothing only at its end."""
        with self.grown:
            self.grown.wait_for(lambda: len(self.output[stream]) > begin or stream not in self.open)
            return self.output[stream][begin : begin + (1 << 16)]

    def signal(self, number: int) -> None:
        send = os.killpg if number == signal.SIGKILL else os.kill
        try:
            send(self.process.pid, number)
        except ProcessLookupError:
            pass


class Desk(socketserver.StreamRequestHandler):
    rbufsize = 0  # what follows the line is read from the socket itself

    def handle(self) -> None:
        asked = json.loads(self.rfile.readline())
        name, what = asked["name"], asked["do"]
        history = told.setdefault(name, [])
        if what == "tell":
            self.answer(history)
            return
        if what == "start":
            history.append("start")
            jobs[name] = Job(name, asked)
        job = jobs.get(name)
        if what == "remove":
            if jobs.pop(name, None) is not None:
                history.append("remove")
        elif what == "complain":
            history.append(asked["about"])
        elif job is None:
            self.answer({"there": False})
            return
        elif what == "output":
            begin = asked["from"]
            while data := job.piece(asked["stream"], begin):
                self.request.sendall(data)
                begin += len(data)
            return
        elif what == "input":
            history.append("input")
            self.pass_on(job)
            return
        elif what == "signal":
            history.append(signal.Signals(asked["number"]).name)
            job.signal(asked["number"])
        elif what == "size":
            job.add("stdout", b"size %dx%d\n" % (asked["columns"], asked["rows"]))
        code = job.process.wait() if job is not None and what == "state" else None
        self.answer({"there": True, "code": code})

    def pass_on(self, job: Job) -> None:
        assert job.process.stdin is not None
        try:
            while data := self.request.recv(1 << 16):
                job.process.stdin.write(data)
                job.process.stdin.flush()
            job.process.stdin.close()
        except (BrokenPipeError, ConnectionResetError):
            return

    def answer(self, what: object) -> None:
        self.wfile.write(json.dumps(what).encode() + b"\n")


class Place(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 100

    def handle_error(self, request: object, client_address: object) -> None:
        """Whoever asked was killed meanwhile."""


def leave(number: int, frame: object) -> None:
    for job in list(jobs.values()):
        job.signal(signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, leave)
    with Place(sys.argv[1], Desk) as place:
        print("ready", flush=True)
        place.serve_forever()

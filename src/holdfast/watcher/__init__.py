"""The watcher: looks at processes while no client does, and tells the keeper what it saw.

The keeper never interprets output and never asks the kernel what a process waits for. It starts
this program while there is a process that may ask for something or is watched (`core.watch`), and
tells it of each. One JSON object in a line, each way:

    in   {"add": HANDLE, "pid": n, "tty": PATH | null, "cgroups": [PATH, ...],
          "runner": what stands for it, whose pid that is then, or null,
          "queries": whether what it asks of its terminal is to be answered,
          "log": PATH, "head": PATH, "err_log": PATH | null, "err_head": PATH,
          "sizes": [[offset, columns, rows], ...], "from": OFFSET,
          "input": whether somebody can type to it, "watches": [WATCH, ...]}
         {"sizes": HANDLE, "to": [[offset, columns, rows], ...]}
         {"answered": HANDLE}
         {"watch": HANDLE, "of": WATCH}
         {"unwatch": HANDLE, "id": ID}
         {"ended": HANDLE, "size": n, "err_size": n | null}
         {"drop": HANDLE}
    out  {"input": HANDLE, "offset": n, "prompt": TEXT, "kind": "line" | "password" | "key",
          "screen": TEXT, where the program draws}
         {"settled": HANDLE, "offset": n}
         {"reply": HANDLE, "data": BASE64}
         {"watch": HANDLE, "id": ID, "from": PLACE, "place": PLACE, "partly": bool,
          "over": bool, "event": {"line": TEXT, "tail": BASE64, ...}, if something was seen}
          (places and "partly" are lists of two where both logs are looked at)
         {"done": HANDLE}

"answered" says that what is asked for next is another prompt, though nothing was written since.
"settled" says that a prompt is past, whoever answered it. "from" is where in the log to begin
looking for queries. Without it that is the log's end, or its beginning for a process that has only
just started: programs ask first of all.

"ended" says that a process has ended, with logs of this size: what its watches find in the rest of
them is said, then "done", and it is dropped.

DESIGN. It holds nothing that cannot be lost. Killed and started again it may tell of a prompt that
it told of before, with the same offset, which is how the keeper knows it. A query is answered at
most once: the place in the log is moved on before the answer is made. What a watch saw is said with
the step from one place to the next; the keeper takes only steps from the place that it knows, and a
new watcher begins there. It ends when its stdin does.
"""

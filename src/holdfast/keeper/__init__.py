"""The keeper: the parent of every background process, and nothing more.

Standard library only. `__main__` starts it, `guard` and `worker` are its two processes, `launch`
begins a child, `child` is one live child, `pump` moves its output, `stop` ends a tree, `adopt`
finds again what an earlier keeper left, `leases` ends what a session leaves behind. It imports
`core` and `linux`, and is imported by nobody: clients speak to it through its socket.
"""

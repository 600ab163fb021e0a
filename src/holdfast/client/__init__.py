"""The caller's side: connections, sessions, processes, groups, agents, waits, settings.

It finds the keeper, or starts it, and asks it; what is on disk it reads by itself. It imports every
room below it, which are all but `keeper`, `watcher` and the front ends.
"""

"""Torture: clients that do everything at once while what they rely on is killed under them.

The plan of a round (who starts what, who is killed when) follows from the seed and the number of
the round alone; when things happen within it is the machine's. Each round has a home of its own.
When it is over, what was promised is compared with what is on disk and in the process table.

As root each run is in a pid and a mount namespace of its own, where pids are used again after a few
thousand, disks are small, and nothing can survive the run. Ordinary users do without these.
"""

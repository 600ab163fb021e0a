"""How fast holdfast is, as ratios to the least a machine can do: ``python -m bench``.

Every duration is measured in turns with its floor (ours, floor, ours, floor, ...) in the same run,
and the medians are compared. The floor is the same shell started with `subprocess.Popen`, its
output in a file and its end noticed through a pidfd: what anybody who wants a background process
has to pay. A ratio travels from machine to machine, a number of microseconds does not.
"""

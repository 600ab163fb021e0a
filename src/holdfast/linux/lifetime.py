"""The lifetime of the keeper: what would take it and its processes along.

The keeper belongs to no login and no terminal, but it cannot leave the container or the systemd
unit it was started in. If that is ended, so is everything holdfast keeps, whatever it does.
"""

from __future__ import annotations

import os
import re

_UNIT = re.compile(r"[^/]+\.(?:service|scope)$")


def ends_with(pid: int) -> str | None:
    """Say what besides the machine ends this process and all it keeps, and the way around it."""
    container = _container()
    if container is not None:
        return f"{container}; what must outlive it has to be started outside"
    unit = _unit(pid)
    if unit is None:
        return None
    if unit.startswith("session-") and unit.endswith(".scope"):
        if not _kills_user_processes():
            return None
        return (
            f"the login {unit} (logind has KillUserProcesses=yes); `loginctl enable-linger` and "
            "`systemd-run --user --scope holdfast ...` avoid it"
        )
    if unit.startswith("user@"):
        return None if lingers() else "your last login; `loginctl enable-linger` avoids it"
    return f"{unit} when it is stopped; KillMode=process in the unit avoids it"


def _container() -> str | None:
    if os.path.exists("/.dockerenv"):
        return "this Docker container"
    if os.path.exists("/run/.containerenv"):
        return "this Podman container"
    kind = _read("/run/systemd/container").strip()
    if kind:
        return f"this container ({kind})"
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return "this Kubernetes pod"
    first = _read("/proc/1/comm").strip()
    if first and first not in ("systemd", "init", "runit", "s6-svscan", "openrc-init", "launchd"):
        return f"pid 1, which is {first} and no init (a container, it seems)"
    return None


def _unit(pid: int) -> str | None:
    """The innermost systemd unit a process is in."""
    for line in _read(f"/proc/{pid}/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "name=systemd"):
            found = [part for part in path.split("/") if _UNIT.fullmatch(part)]
            if found:
                return found[-1]
    return None


def _kills_user_processes() -> bool:
    """True if logind ends what a login leaves behind; off unless somebody turned it on."""
    paths = ["/etc/systemd/logind.conf"]
    for directory in ("/usr/lib/systemd", "/etc/systemd", "/run/systemd"):
        try:
            names = sorted(os.listdir(f"{directory}/logind.conf.d"))
        except OSError:
            continue
        paths += [f"{directory}/logind.conf.d/{name}" for name in names if name.endswith(".conf")]
    answer = False
    for path in paths:
        for value in re.findall(r"(?m)^\s*KillUserProcesses\s*=\s*(\S+)", _read(path)):
            answer = value.lower() in ("yes", "true", "on", "1")
    return answer and not lingers()


def lingers() -> bool:
    import pwd

    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return False
    return os.path.exists(f"/var/lib/systemd/linger/{name}")


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""

"""What would take the keeper along, by what the machine's files say."""

from __future__ import annotations

import pytest

from holdfast.linux import lifetime

SYSTEMD = {"/proc/1/comm": "systemd\n"}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The files of a machine; what is not in here does not exist on it."""
    files: dict[str, str] = {}
    monkeypatch.setattr(lifetime, "_read", lambda path: files.get(path, ""))
    monkeypatch.setattr("os.path.exists", files.__contains__)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    return files


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"/.dockerenv": ""}, "this Docker container"),
        ({"/run/.containerenv": ""}, "this Podman container"),
        ({"/run/systemd/container": "lxc\n"}, "this container (lxc)"),
        ({"/proc/1/comm": "node\n"}, "pid 1, which is node"),
        ({**SYSTEMD, "/proc/7/cgroup": "0::/system.slice/agent.service\n"}, "agent.service when"),
        (
            {
                **SYSTEMD,
                "/proc/7/cgroup": "0::/user.slice/user-1000.slice/session-3.scope\n",
                "/etc/systemd/logind.conf": "[Login]\nKillUserProcesses=yes\n",
            },
            "the login session-3.scope",
        ),
        (
            {**SYSTEMD, "/proc/7/cgroup": "0::/user.slice/user@1000.service/app.slice/x.scope\n"},
            "x.scope when it is stopped",
        ),
        (
            {**SYSTEMD, "/proc/7/cgroup": "1:name=systemd:/user.slice/user@1000.service\n"},
            "your last login",
        ),
    ],
)
def test_what_would_take_the_keeper_along_is_named(
    machine: dict[str, str], files: dict[str, str], says: str
) -> None:
    """A container, a unit, a login: each with the way around it."""
    machine.update(files)
    found = lifetime.ends_with(7)
    assert found is not None
    assert found.startswith(says)


@pytest.mark.parametrize(
    "files",
    [
        {**SYSTEMD, "/proc/7/cgroup": "0::/\n"},
        {
            **SYSTEMD,
            "/proc/7/cgroup": "0::/user.slice/user-1000.slice/session-3.scope\n",
            "/etc/systemd/logind.conf": "[Login]\n#KillUserProcesses=yes\n",
        },
    ],
)
def test_an_ordinary_login_takes_nothing_along(
    machine: dict[str, str], files: dict[str, str]
) -> None:
    """logind leaves processes alone unless it was told otherwise."""
    machine.update(files)
    assert lifetime.ends_with(7) is None

"""Labels offered by the shells' completion: those that the command would take."""

from __future__ import annotations

import pytest

from tests.cli.test_completion_scripts import complete, environment, start

__all__ = ["environment"]  # the fixture

pytestmark = pytest.mark.shared_keeper

SHELLS = ["bash", "zsh", "fish"]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_label_is_offered_beside_its_handle(shell: str, environment: dict[str, str]) -> None:
    handle = start(environment, "--label", "web", "--", "sleep", "60")
    assert sorted(complete(shell, environment, "holdfast", "logs", "")) == [handle, "web"]
    assert complete(shell, environment, "holdfast", "logs", "we") == ["web"]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_label_of_several_is_offered_only_if_it_means_one(
    shell: str, environment: dict[str, str]
) -> None:
    """One that runs among those that ended is meant; of two that run, neither."""
    start(environment, "--label", "web", "--", "true")
    start(environment, "--label", "web", "--", "sleep", "60")
    assert complete(shell, environment, "holdfast", "kill", "w") == ["web"]
    start(environment, "--label", "web", "--", "sleep", "60")
    assert complete(shell, environment, "holdfast", "kill", "w") == []


@pytest.mark.parametrize("shell", SHELLS)
def test_only_the_session_that_the_command_looks_in_is_offered(
    shell: str, environment: dict[str, str]
) -> None:
    start(environment, "--session", "a", "--label", "mine", "--", "sleep", "60")
    start(environment, "--session", "b", "--label", "theirs", "--", "sleep", "60")
    words = ("holdfast", "logs", "--session", "a", "")
    assert "mine" in complete(shell, environment, *words)
    assert "theirs" not in complete(shell, environment, *words)
    own = {**environment, "HOLDFAST_SESSION": "b"}
    assert "theirs" in complete(shell, own, "holdfast", "logs", "")
    assert "mine" not in complete(shell, own, "holdfast", "logs", "")

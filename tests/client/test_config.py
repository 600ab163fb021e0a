"""Settings: argument before environment before file, and clear words about bad ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import BadRequest, ConfigError, connect
from holdfast.client.config import SETTINGS, UNSET, Config, load_config
from holdfast.core.home import Home
from holdfast.core.units import parse_duration, parse_size

VALUES: dict[str, tuple[object, str, Any, Any]] = {
    # key: value in the file, text in the environment, what each means
    "timeout": ("10m", "90s", 600.0, 90.0),
    "grace": (1.5, "2", 1.5, 2.0),
    "lease_grace": ("1h30m", "0", 5400.0, 0.0),
    "retention": (60, "500ms", 60.0, 0.5),
    "max_running": (3, "4", 3, 4),
    "max_finished": (5, "6", 5, 6),
    "log_cap": ("64MiB", "1g", 64 << 20, 1 << 30),
    "log_limit": ("1KiB", "none", 1024, None),
    "memory": ("64MiB", "none", 64 << 20, None),
    "cpu": (1.5, "0.5", 1.5, 0.5),
    "processes": (50, "none", 50, None),
    "files": (100, "200", 100, 200),
    "containment": ("tree", "cgroup-v1", "tree", "cgroup-v1"),
    "size": ("100x30", " 80 x 24 ", [100, 30], [80, 24]),
    "shell": ("/bin/sh", "/bin/bash", "/bin/sh", "/bin/bash"),
    "keeper_idle": (5, "7s", 5.0, 7.0),
}


def config(tmp_path: Path, text: str = "", **environ: str) -> Config:
    path = tmp_path / "home"
    path.mkdir(mode=0o700, exist_ok=True)
    (path / "config.toml").write_text(text)
    return load_config(Home(str(path)), environ)


def test_every_setting_is_tried_here() -> None:
    assert set(VALUES) == set(SETTINGS)


@pytest.mark.parametrize("key", SETTINGS)
def test_argument_before_environment_before_file(tmp_path: Path, key: str) -> None:
    """Each setting takes its value from the nearest place that has one."""
    in_file, in_environment, from_file, from_environment = VALUES[key]
    line = f"{key} = {in_file!r}"
    name = "HOLDFAST_" + key.upper()
    assert config(tmp_path)[key] == SETTINGS[key].default
    assert config(tmp_path, line)[key] == from_file
    both = config(tmp_path, line, **{name: in_environment})
    assert both[key] == from_environment
    assert both.choose(key, UNSET) == from_environment
    assert both.choose(key, in_file) == from_file


def test_a_bad_value_in_the_file_is_named_with_its_line(tmp_path: Path) -> None:
    text = '# a comment\ngrace = 1\n\ntimeout = "soon"\n'
    with pytest.raises(
        ConfigError, match=r"config\.toml, line 4: timeout must be a duration.*'soon'"
    ):
        config(tmp_path, text)


def test_a_setting_that_does_not_exist_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"line 2: no setting 'tiemout'; there are timeout"):
        config(tmp_path, "grace = 1\ntiemout = 5\n")


def test_a_file_that_is_not_toml_says_where(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is not TOML: .*line 2"):
        config(tmp_path, "grace = 1\n= =\n")


def test_a_bad_value_in_the_environment_names_the_variable(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="HOLDFAST_MAX_RUNNING must be a whole number above 0"):
        config(tmp_path, HOLDFAST_MAX_RUNNING="-1")


def test_a_bad_argument_names_the_argument(home: str) -> None:
    """Nothing is started for a request that makes no sense."""
    with connect("c") as hf:
        with pytest.raises(BadRequest, match="timeout must be a duration"):
            hf.spawn("true", timeout="whenever")
        with pytest.raises(BadRequest, match="log_cap must be at least 1MiB"):
            hf.spawn("true", log_cap=10)
        assert hf.list() == []


def test_settings_reach_the_process(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """File and environment are read when a client connects, whoever started the keeper."""
    with connect("first") as first:
        Path(home, "config.toml").write_text('timeout = "7m"\nshell = "/bin/sh"\n')
        monkeypatch.setenv("HOLDFAST_GRACE", "1.5")
        with connect("second") as second:
            record = second.spawn("echo $0").record
            assert (record.timeout, record.grace) == (420.0, 1.5)
            assert second.get(record.handle).wait(30).ok
            assert second.get(record.handle).tail().text == "/bin/sh\n"
        assert first.spawn("true").record.timeout == 1800.0


def test_a_bad_shell_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"line 1: shell must be a shell that can be run"):
        config(tmp_path, 'shell = "/nope"\n')
    with pytest.raises(ConfigError, match="HOLDFAST_SHELL must be a shell that can be run"):
        config(tmp_path, HOLDFAST_SHELL="no-such-shell")


def test_no_deadline_can_be_asked_for(home: str) -> None:
    with connect("c") as hf:
        assert hf.spawn("true", timeout=None).record.timeout is None
        assert hf.spawn("true", timeout=0).record.timeout is None


@given(st.floats(0, 1e9, allow_nan=False))
def test_a_number_is_a_duration_in_seconds(seconds: float) -> None:
    assert parse_duration(seconds) == seconds


@given(st.integers(0, 100), st.integers(0, 59), st.integers(0, 59))
def test_units_of_a_duration_add_up(hours: int, minutes: int, seconds: int) -> None:
    assert parse_duration(f"{hours}h{minutes}m{seconds}s") == hours * 3600 + minutes * 60 + seconds


@given(st.text(max_size=12))
def test_any_text_is_a_duration_and_a_size_or_a_clear_error(text: str) -> None:
    for parse in (parse_duration, parse_size):
        complaint = ""
        try:
            assert parse(text) >= 0
        except ValueError as error:
            complaint = str(error)
        assert not complaint or complaint.startswith("must be")


@pytest.mark.parametrize(
    "value", [10**400, 1e300, float("inf"), float("nan"), -1, "9" * 400, "9" * 30 + "t", "-1"]
)
def test_what_was_never_meant_is_a_clear_error(value: object) -> None:
    for parse in (parse_duration, parse_size):
        with pytest.raises(ValueError, match="must be"):
            parse(value)


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("10", 10), ("1k", 1024), ("1KB", 1024), ("2MiB", 2 << 20), ("1.5G", 3 << 29)],
)
def test_sizes_are_counted_in_powers_of_1024(text: str, size: int) -> None:
    assert parse_size(text) == size

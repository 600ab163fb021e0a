"""Defaults from ``config.toml`` in the home and from ``HOLDFAST_*``: argument, environment, file.

Settings are resolved by the caller and travel with each request, so that the environment of
whoever happened to start the keeper decides nothing for anybody else.
"""

from __future__ import annotations

import os
import re

from ..core.errors import ConfigError, why
from ..core.home import Home, read_private
from ..core.spawn_spec import SPAWN_SPEC, Option
from ..core.units import parse_duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


def _text(value: object) -> str:
    if isinstance(value, str) and "\0" not in value:
        return value
    raise ValueError("must be text")


def _shell(value: object) -> str:
    shell = _text(value)
    places = [""] if "/" in shell else [place + "/" for place in os.get_exec_path()]
    if shell and not any(os.access(place + shell, os.X_OK) for place in places):
        raise ValueError("must be a shell that can be run")
    return shell


# The environment variable is HOLDFAST_ and the key in capitals.
SETTINGS: dict[str, Option] = {
    **{name: option for name, option in SPAWN_SPEC.items() if option.setting},
    "lease_grace": Option("lease_grace", parse_duration, 1800.0, "TIME"),
    "shell": Option("shell", _shell, ""),
    "keeper_idle": Option("keeper_idle", parse_duration, 60.0, "TIME"),
}


class _Default:
    """The setting in force, where an argument was not given."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<default>"


UNSET: Any = _Default()
DEFAULT = "default"  # where a value is from that nobody has set


class Config:
    """The settings in force for one caller.

    With an `error` in them they can still be carried about: whoever only looks and stops needs
    none. Asking for one then raises.
    """

    __slots__ = ("_error", "_sources", "_values")

    def __init__(
        self,
        values: dict[str, Any],
        error: ConfigError | None = None,
        sources: Mapping[str, str] | None = None,
    ) -> None:
        self._values = values
        self._error = error
        self._sources = sources or {}

    def __getitem__(self, key: str) -> Any:
        if self._error is not None:
            raise self._error
        return self._values[key]

    def source(self, key: str) -> str:
        """The place a value is from: ``default``, a file, a variable's name or ``argument``."""
        return self._sources.get(key, DEFAULT)

    @property
    def keeper_idle(self) -> float:
        idle: float = self._values["keeper_idle"]
        return idle

    def choose(self, key: str, argument: object) -> Any:
        """The argument if one was given (checked), else the setting."""
        if argument is UNSET:
            return self[key]
        return SETTINGS[key].meaning(argument)

    def options(self, arguments: Mapping[str, object]) -> dict[str, Any]:
        """Every option of a start: the argument of its name (checked), else the setting."""
        if self._error is not None:
            raise self._error
        return {
            name: self._values[name]
            if (argument := arguments.get(name, UNSET)) is UNSET
            else option.meaning(argument)
            for name, option in SPAWN_SPEC.items()
        }

    def changed(self, **arguments: object) -> Config:
        """These settings with others for what was given (checked); as a session's own defaults."""
        given = {key: value for key, value in arguments.items() if value is not UNSET}
        chosen = {key: self.choose(key, value) for key, value in given.items()}
        sources = {**self._sources, **dict.fromkeys(given, "argument")}
        return Config({**self._values, **chosen}, self._error, sources)

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{key}={value!r}' for key, value in self._values.items())})"


def load_config_later(home: Home) -> Config:
    """The settings, but a bad one is an error only for whoever asks for one."""
    try:
        return load_config(home)
    except ConfigError as error:
        return Config({key: option.default for key, option in SETTINGS.items()}, error)


def load_config(home: Home, environ: Mapping[str, str] | None = None) -> Config:
    """Read file and environment; a bad value raises `ConfigError` naming key and line."""
    values = {key: option.default for key, option in SETTINGS.items()}
    found = _from_file(home.config)
    values.update(found)
    sources = dict.fromkeys(found, home.config)
    source = os.environ if environ is None else environ
    for key, option in SETTINGS.items():
        name = "HOLDFAST_" + key.upper()
        text = source.get(name)
        if text:
            try:
                values[key] = option.parse(text)
            except ValueError as error:
                raise ConfigError(f"{name} {error}, not {text!r}") from None
            sources[key] = name
    return Config(values, None, sources)


def _from_file(path: str) -> dict[str, Any]:
    try:
        raw = read_private(path)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {why(error)}; mend or remove it") from error
    import tomllib

    try:
        text = raw.decode()
        table = tomllib.loads(text)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}, line {line}: not UTF-8; save it as such") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML: {error}; mend or remove it") from None
    values = {}
    for key, value in table.items():
        where = f"{path}, line {_line_of(text, key)}"
        if key not in SETTINGS:
            raise ConfigError(f"{where}: no setting {key!r}; there are {', '.join(SETTINGS)}")
        try:
            values[key] = SETTINGS[key].parse(value)
        except ValueError as error:
            raise ConfigError(f"{where}: {key} {error}, not {value!r}") from None
    return values


def _line_of(text: str, key: str) -> int:
    pattern = re.compile(rf"""\s*\[*\s*["']?{re.escape(key)}\b""")
    for number, line in enumerate(text.splitlines(), 1):
        if pattern.match(line):
            return number
    return 1

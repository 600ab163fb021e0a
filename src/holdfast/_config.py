"""Defaults from ``config.toml`` in the home and from ``HOLDFAST_*``: argument, environment, file.

Settings are resolved by the caller and travel with each request, so that the environment of
whoever happened to start the keeper decides nothing for anybody else.
"""

from __future__ import annotations

import os
import re

from ._errors import BadRequest, ConfigError, why
from ._home import Home, read_private

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?")
_UNITS = {"ms": 0.001, "s": 1.0, None: 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?b)?", re.IGNORECASE)
_SCREEN = re.compile(r"(\d{1,4})\s*[xX×]\s*(\d{1,4})")  # noqa: RUF001
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
# Three hundred years, and more than any file can hold: what is beyond was not meant.
_LONGEST = 1e10
_LARGEST = 1 << 62


def parse_duration(value: object) -> float:
    """``90``, ``"90s"``, ``"1h30m"``, ``"500ms"``: seconds."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if not 0 <= value < _LONGEST:
            raise ValueError("must be a number of seconds, neither negative nor for ever")
        return float(value)
    if isinstance(value, str):
        text = value.strip().lower().replace(" ", "")
        parts = _DURATION.findall(text)
        whole = parts and "".join(number + unit for number, unit in parts) == text
        if whole and (len(parts) == 1 or all(unit for _, unit in parts)):
            return parse_duration(
                sum(float(number) * _UNITS[unit or None] for number, unit in parts)
            )
    raise ValueError("must be a duration like 90s, 30m or 1h30m")


def parse_timeout(value: object) -> float | None:
    """A duration; 0 and ``"none"`` mean no deadline."""
    if value is None or (isinstance(value, str) and value.strip().lower() == "none"):
        return None
    return parse_duration(value) or None


def parse_patience(value: object, name: str = "timeout") -> float:
    """How long to wait at most, from an argument."""
    try:
        return parse_duration(value)
    except ValueError as error:
        raise BadRequest(f"{name} {error}, not {value!r}") from None


def parse_size(value: object) -> int:
    """``1048576``, ``"64KiB"``, ``"1G"``: bytes, counted in powers of 1024."""
    size: float = -1
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    elif isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        size = float(match[1]) * 1024 ** _POWERS[match[2].lower()]
    if 0 <= size < _LARGEST:
        return int(size)
    raise ValueError("must be a size like 64KiB, 256MiB or 1GiB")


def parse_screen_size(value: object) -> list[int]:
    """``"120x40"`` or ``(120, 40)``: columns and rows of a terminal."""
    if isinstance(value, str) and (match := _SCREEN.fullmatch(value.strip())):
        value = [int(match[1]), int(match[2])]
    if isinstance(value, (list, tuple)) and len(value) == 2:
        columns, rows = value
        if type(columns) is type(rows) is int and 2 <= columns <= 1000 and 1 <= rows <= 1000:
            return [columns, rows]
    raise ValueError("must be columns and rows like 120x40, from 2x1 to 1000x1000")


def _optional_size(value: object) -> int | None:
    if value is None or (isinstance(value, str) and value.strip().lower() == "none"):
        return None
    return parse_size(value) or None


def _log_cap(value: object) -> int:
    size = parse_size(value)
    if size < 1 << 20:
        raise ValueError("must be at least 1MiB")
    return size


_FEWEST_FILES = 8


def _count(value: object) -> int:
    if isinstance(value, str) and value.strip().isdigit():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise ValueError("must be a whole number above 0")


def _optional_count(value: object) -> int | None:
    if value is None or (isinstance(value, str) and value.strip().lower() == "none"):
        return None
    return _count(value)


def _memory(value: object) -> int | None:
    size = _optional_size(value)
    if size is not None and size < 4 << 20:
        raise ValueError("must be at least 4MiB")
    return size


def _files(value: object) -> int | None:
    files = _optional_count(value)
    if files is not None and files < _FEWEST_FILES:
        raise ValueError(f"must be at least {_FEWEST_FILES}: a program needs some to start")
    return files


def _cpus(value: object) -> float | None:
    if value is None or (isinstance(value, str) and value.strip().lower() == "none"):
        return None
    try:
        cpus = float(value) if isinstance(value, (str, int, float)) else 0.0
    except ValueError:
        cpus = 0.0
    if 0.01 <= cpus < 100_000:
        return cpus
    raise ValueError("must be a number of CPUs like 0.5 or 2, at least 0.01")


def _containment(value: object) -> str:
    if value in ("auto", "cgroup-v1", "tree"):
        return str(value)
    raise ValueError("must be auto, cgroup-v1 or tree")


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


# key: (parser, default). The environment variable is HOLDFAST_ and the key in capitals.
SETTINGS: dict[str, tuple[Callable[[object], Any], Any]] = {
    "timeout": (parse_timeout, 1800.0),
    "grace": (parse_duration, 5.0),
    "lease_grace": (parse_duration, 1800.0),
    "retention": (parse_duration, 1800.0),
    "max_running": (_count, 20),
    "max_finished": (_count, 100),
    "log_cap": (_log_cap, 256 << 20),
    "log_limit": (_optional_size, None),
    "memory": (_memory, None),
    "cpu": (_cpus, None),
    "processes": (_optional_count, None),
    "files": (_files, None),
    "containment": (_containment, "auto"),
    "size": (parse_screen_size, [120, 40]),
    "shell": (_shell, ""),
    "keeper_idle": (parse_duration, 60.0),
}
UNSET: Any = object()


class Config:
    """The settings in force for one caller.

    With an `error` in them they can still be carried about: whoever only looks and stops needs
    none. Asking for one then raises.
    """

    __slots__ = ("_error", "_values")

    def __init__(self, values: dict[str, Any], error: ConfigError | None = None) -> None:
        self._values = values
        self._error = error

    def __getitem__(self, key: str) -> Any:
        if self._error is not None:
            raise self._error
        return self._values[key]

    @property
    def keeper_idle(self) -> float:
        idle: float = self._values["keeper_idle"]
        return idle

    def choose(self, key: str, argument: object) -> Any:
        """The argument if one was given (checked), else the setting."""
        if argument is UNSET:
            return self[key]
        try:
            return SETTINGS[key][0](argument)
        except ValueError as error:
            raise BadRequest(f"{key} {error}, not {argument!r}") from None

    def changed(self, **arguments: object) -> Config:
        """These settings with others for what was given (checked); as a session's own defaults."""
        given = {key: value for key, value in arguments.items() if value is not UNSET}
        chosen = {key: self.choose(key, value) for key, value in given.items()}
        return Config({**self._values, **chosen}, self._error)

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{key}={value!r}' for key, value in self._values.items())})"


def load_config_later(home: Home) -> Config:
    """The settings, but a bad one is an error only for whoever asks for one."""
    try:
        return load_config(home)
    except ConfigError as error:
        return Config({key: default for key, (_, default) in SETTINGS.items()}, error)


def load_config(home: Home, environ: Mapping[str, str] | None = None) -> Config:
    """Read file and environment; a bad value raises `ConfigError` naming key and line."""
    values = {key: default for key, (_, default) in SETTINGS.items()}
    values.update(_from_file(home.config))
    source = os.environ if environ is None else environ
    for key, (parse, _) in SETTINGS.items():
        name = "HOLDFAST_" + key.upper()
        text = source.get(name)
        if text:
            try:
                values[key] = parse(text)
            except ValueError as error:
                raise ConfigError(f"{name} {error}, not {text!r}") from None
    return Config(values)


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
            values[key] = SETTINGS[key][0](value)
        except ValueError as error:
            raise ConfigError(f"{where}: {key} {error}, not {value!r}") from None
    return values


def _line_of(text: str, key: str) -> int:
    pattern = re.compile(rf"""\s*\[*\s*["']?{re.escape(key)}\b""")
    for number, line in enumerate(text.splitlines(), 1):
        if pattern.match(line):
            return number
    return 1

"""Arguments as a model gives them, checked against the schema that it was shown.

Only what our schemas use is known: types, enum, bounds, items, nested objects. The message names
the argument and what it should have been, because a model reads it and tries again.
"""

from __future__ import annotations

import difflib

from ..core.errors import BadRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    Schema = dict[str, Any]

_LARGEST = 1e15
_TYPES: dict[str, tuple[str, tuple[type, ...]]] = {
    "string": ("text", (str,)),
    "integer": ("a whole number", (int,)),
    "number": ("a number", (int, float)),
    "boolean": ("true or false", (bool,)),
    "array": ("a list", (list, tuple)),
    "object": ("an object", (dict,)),
}


def object_schema(properties: Mapping[str, Schema], required: tuple[str, ...] = ()) -> Schema:
    schema: Schema = {"type": "object", "properties": dict(properties)}
    if required:
        schema["required"] = list(required)
    schema["additionalProperties"] = False
    return schema


def check(arguments: object, schema: Schema, tool: str) -> dict[str, Any]:
    """The arguments, with whole floats as the integers they stand for; BadRequest otherwise."""
    if not isinstance(arguments, dict):
        raise BadRequest(f"the arguments of {tool} are an object, not {_shown(arguments)}")
    return _object(arguments, schema, "", tool)


def _object(value: dict[Any, Any], schema: Schema, where: str, tool: str) -> dict[str, Any]:
    known: dict[str, Schema] = schema.get("properties", {})
    found: dict[str, Any] = {}
    for name, given in value.items():
        if name not in known:
            if schema.get("additionalProperties", True) is not False:
                found[name] = given
                continue
            raise BadRequest(_unknown(str(name), list(known), where, tool))
        path = f"{where}.{name}" if where else str(name)
        if given is None and name not in schema.get("required", ()):
            continue  # as if it were not there, which is how some models leave arguments out
        found[name] = _value(given, known[name], path, tool)
    missing = [name for name in schema.get("required", ()) if name not in found]
    if missing:
        raise BadRequest(f"{tool} needs {' and '.join(map(repr, missing))}; nothing was done")
    return found


def _value(value: object, schema: Schema, where: str, tool: str) -> Any:
    if "anyOf" in schema:
        return _any_of(value, schema["anyOf"], where, tool)
    kind = schema.get("type")
    if kind is not None:
        word, types = _TYPES[kind]
        if isinstance(value, float) and value.is_integer() and kind == "integer":
            value = int(value)
        if not isinstance(value, types) or (isinstance(value, bool) and kind != "boolean"):
            raise BadRequest(f"{where!r} of {tool} is {word}, not {_shown(value)}")
    if "enum" in schema and value not in schema["enum"]:
        near = _nearest(str(value), [str(each) for each in schema["enum"]])
        choices = ", ".join(map(str, schema["enum"]))
        raise BadRequest(f"{where!r} of {tool} is one of {choices}, not {_shown(value)}{near}")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        _check_bounds(value, schema, where, tool)
    elif isinstance(value, str):
        _check_length(value, schema, where, tool)
    elif isinstance(value, (list, tuple)):
        items = schema.get("items", {})
        return [_value(each, items, f"{where}[{n}]", tool) for n, each in enumerate(value)]
    elif isinstance(value, dict):
        return _object(value, schema, where, tool)
    return value


def _any_of(value: object, schemas: list[Schema], where: str, tool: str) -> Any:
    for schema in schemas:
        try:
            return _value(value, schema, where, tool)
        except BadRequest as error:
            last = error
            if isinstance(value, dict) and schema.get("type") == "object":
                raise  # which says what is wrong inside
    words = [_TYPES[each["type"]][0] for each in schemas if "type" in each]
    if len(words) == len(schemas):
        raise BadRequest(f"{where!r} of {tool} is {' or '.join(words)}, not {_shown(value)}")
    raise last


def _check_bounds(value: float, schema: Schema, where: str, tool: str) -> None:
    least, most = schema.get("minimum"), schema.get("maximum")
    if value != value or abs(value) == float("inf"):  # Python's JSON has words for them
        raise BadRequest(f"{where!r} of {tool} is a number, not {value}")
    if abs(value) > _LARGEST:
        raise BadRequest(f"{where!r} of {tool} is too large; nothing was done")
    if least is not None and value < least:
        raise BadRequest(f"{where!r} of {tool} is at least {least}, not {value}")
    if most is not None and value > most:
        raise BadRequest(f"{where!r} of {tool} is at most {most}, not {value}")


def _check_length(value: str, schema: Schema, where: str, tool: str) -> None:
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if len(value) < least:
        what = "must not be empty" if least == 1 else f"has at least {least} characters"
        raise BadRequest(f"{where!r} of {tool} {what}")
    if most is not None and len(value) > most:
        raise BadRequest(f"{where!r} of {tool} has at most {most} characters, not {len(value)}")


def _unknown(name: str, known: list[str], where: str, tool: str) -> str:
    inside = f" in {where!r}" if where else ""
    takes = f"it takes {', '.join(known)}" if known else "it takes none"
    near = _nearest(name, known)
    return f"{tool} has no argument {name[:60]!r}{inside}{near}; {takes}. Nothing was done"


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."

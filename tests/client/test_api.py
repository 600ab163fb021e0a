"""The public surface: what is exported, and that both clients are the same one."""

from __future__ import annotations

import ast
import inspect
import itertools
import subprocess
import sys
import types

import pytest

import holdfast
from holdfast.client.config import UNSET
from holdfast.core import errors
from holdfast.core import types as types_of_ours

pytestmark = pytest.mark.shared_keeper

PUBLIC = sorted(holdfast.__all__)
ALIASES = {  # with a sentence after them, which editors show
    ast.unparse(alias.target)
    for alias, about in itertools.pairwise(ast.parse(inspect.getsource(types_of_ours)).body)
    if isinstance(alias, ast.AnnAssign) and isinstance(about, ast.Expr)
}


def test_what_is_exported_is_what_is_named() -> None:
    """Importable from the package without an underscore means listed in ``__all__``."""
    exported = {
        name
        for name in dir(holdfast)
        if not name.startswith("_") and not isinstance(getattr(holdfast, name), types.ModuleType)
    }
    exported.discard("TYPE_CHECKING")
    assert exported | {"__version__"} == set(holdfast.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        holdfast.nothing  # noqa: B018


def test_a_part_of_the_package_does_not_load_the_rest() -> None:
    """The keeper and its helpers import a few modules, and pay for these alone."""
    code = (
        "import sys, holdfast.core.home; print([*filter(lambda n: 'holdfast' in n, sys.modules)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (
        done.stdout.strip()
        == "['holdfast', 'holdfast.core', 'holdfast.core.errors', 'holdfast.core.home']"
    )


@pytest.mark.parametrize("name", [name for name in PUBLIC if name not in ("__version__",)])
def test_everything_public_says_what_it_is(name: str) -> None:
    """Every public class and function has a docstring, or is an error the tree describes."""
    value = getattr(holdfast, name)
    if inspect.isclass(value) and issubclass(value, holdfast.HoldfastError):
        assert name in (errors.__doc__ or "")
    elif hasattr(types_of_ours, name):
        assert name in ALIASES
    else:
        assert inspect.getdoc(value)


@pytest.mark.parametrize(
    ("asynchronous", "plain"),
    [
        (holdfast.Client, holdfast.SyncClient),
        (holdfast.Process, holdfast.SyncProcess),
        (holdfast.Group, holdfast.SyncGroup),
        (holdfast.Agent, holdfast.SyncAgent),
        (holdfast.Toolset, holdfast.SyncToolset),
    ],
)
def test_the_two_clients_offer_the_same(asynchronous: type, plain: type) -> None:
    """Without await, the same methods with the same arguments."""

    def methods(cls: type) -> dict[str, list[tuple[str, object]]]:
        return {
            name: [
                (parameter.name, "unset" if parameter.default is UNSET else parameter.default)
                for parameter in inspect.signature(value).parameters.values()
            ]
            for name, value in vars(cls).items()
            if inspect.isfunction(value) and not name.startswith("_")
        }

    assert methods(asynchronous) == methods(plain)


def test_every_error_has_a_code_of_its_own() -> None:
    """Front ends map codes, so no two classes share one."""
    classes = [
        value
        for value in vars(errors).values()
        if inspect.isclass(value) and issubclass(value, holdfast.HoldfastError)
    ]
    codes = [cls.code for cls in classes]
    assert len(set(codes)) == len(codes)
    for cls in classes:
        again = errors.from_wire(cls("a message", handle="proc-x", why=1).to_wire())
        assert type(again) is cls
        assert (str(again), again.handle, again.detail) == ("a message", "proc-x", {"why": 1})


def test_errors_can_be_caught_as_what_they_also_are() -> None:
    assert issubclass(holdfast.WaitTimeout, TimeoutError)
    assert issubclass(holdfast.BadRequest, ValueError)
    for cls in (
        holdfast.NotExecutable,
        holdfast.BadDirectory,
        holdfast.LimitReached,
        holdfast.Unavailable,
    ):
        assert issubclass(cls, holdfast.SpawnError)


def test_check_raises_only_for_what_did_not_complete(hf: holdfast.SyncClient) -> None:
    """A failing command is data until somebody asks for an error."""
    good = hf.spawn("true").wait(30)
    assert good.check() is good
    bad = hf.spawn("exit 7").wait(30)
    with pytest.raises(holdfast.ExitError, match="exit code 7"):
        bad.check()
    with pytest.raises(holdfast.ExitError, match="SIGTERM"):
        hf.spawn("kill -TERM $$").wait(30).check()


def test_reprs_are_worth_pasting_and_show_no_environment(hf: holdfast.SyncClient) -> None:
    process = hf.spawn("exit 3", label="unit", env={"TOKEN": "s3cret-value"})
    end = process.wait(30)
    shown = [repr(value) for value in (hf, process, process.record, end, *hf.events())]
    shown += [repr(process.tail()), repr(hf.config), repr(holdfast.connect("x"))]
    assert process.handle in repr(process)
    assert "failed 3" in repr(process)
    assert not any("s3cret" in text for text in shown)


def test_a_connector_is_entered_once(home: str) -> None:
    connector = holdfast.connect("once")
    with connector:
        pass
    with pytest.raises(RuntimeError, match="entered once"):
        connector.__enter__()

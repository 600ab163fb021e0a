"""One line of `doctor`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Check:
    """One line: ``ok``, ``note`` (works, with a limit) or ``problem`` (holdfast cannot work)."""

    state: str
    name: str
    text: str

    def public(self) -> dict[str, str]:
        return {"state": self.state, "name": self.name, "text": self.text}

"""Finds the nodes that keep a set-up, because an env_reset with that set-up is cheaper there."""

from __future__ import annotations

from collections.abc import Mapping


class SetUpIndex:
    """The set-ups that managers keep, by `ActionRequest.set_up`."""

    def __init__(self) -> None:
        """Starts with none."""
        self._keepers: dict[str, int] = {}
        self._took_s: dict[str, float] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._keepers

    def took_s(self, name: str) -> float:
        """Seconds that it took, as last told; 0 if nobody keeps it."""
        return self._took_s.get(name, 0.0)

    def change(self, before: Mapping[str, float], after: Mapping[str, float]) -> None:
        """Takes over what one service keeps, with the seconds that each took, instead of what it kept before."""
        for name in after.keys() - before.keys():
            self._keepers[name] = self._keepers.get(name, 0) + 1
        self._took_s.update(after)
        for name in before.keys() - after.keys():
            self._keepers[name] -= 1
            if not self._keepers[name]:
                del self._keepers[name], self._took_s[name]

"""The user that an image's commands run as, looked up in its own passwd and group. Blocks."""

from __future__ import annotations

import os
from collections.abc import Sequence

from callsheet.managers.sandbox.errors import InputRefusedError
from callsheet.managers.sandbox.files.images.lower_layers import LowerLayers
from callsheet.managers.sandbox.files.root_filesystem import ROOT, ImageUser

_ROOTS = frozenset({"", "root", "0"})
_PASSWD_FIELDS, _GROUP_FIELDS = 7, 4
_MOST_BYTES = 1 << 20
# bwrap takes no larger ones.
_MOST_ID = 2**31 - 1


def find_user(layers: Sequence[str], wanted: str) -> ImageUser:
    """Returns the user that USER[:GROUP] means in an image, by the rules of Docker.

    Args:
        layers: Directories of the image, the lowest first.
        wanted: Names or numbers; empty for root.

    Raises:
        InputRefusedError: The image has no such user or group.
    """
    name, _, group = wanted.partition(":")
    if name in _ROOTS:
        return ROOT
    seen = LowerLayers(layers)
    users = _entries(seen, "etc/passwd", _PASSWD_FIELDS)
    entry = next((fields for fields in users if name in (fields[0], fields[2])), None)
    uid = entry[2] if entry is not None else name
    gid = entry[3] if entry is not None else "0"
    if group:
        groups = _entries(seen, "etc/group", _GROUP_FIELDS)
        gid = next((fields[2] for fields in groups if group in (fields[0], fields[2])), group)
    for number in (uid, gid):
        if not number.isdecimal() or int(number) > _MOST_ID:
            raise InputRefusedError(
                "user_refused", f"user: {wanted[:200]!r}: must be a user, or USER:GROUP, of the image"
            )
    home = entry[5] if entry is not None else ""
    return ImageUser(int(uid), int(gid), entry[0] if entry is not None else name, home or "/")


def _entries(seen: LowerLayers, path: str, fields: int) -> list[list[str]]:
    place = seen.find(path)
    if place is None or os.path.islink(place) or not os.path.isfile(place):
        return []
    with open(place, "rb") as file:
        lines = file.read(_MOST_BYTES).decode(errors="replace").splitlines()
    return [each for line in lines if len(each := line.split(":")) == fields]

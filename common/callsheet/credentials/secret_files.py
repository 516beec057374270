"""Files that hold secrets, and who else may read them. Needs the standard library only."""

from __future__ import annotations

import logging
import stat
from contextlib import suppress
from pathlib import Path

_log = logging.getLogger("callsheet.credentials")
_looked_at: set[str] = set()


def secret_file(path: str | Path) -> Path:
    """Returns the path of a file that holds a secret; the log warns once if every user of the machine may read it.

    A file below a directory that others cannot enter is safe, whatever its own mode is.
    """
    if str(path) not in _looked_at:
        # A file that is not there is the business of its reader.
        with suppress(OSError):
            file = Path(path).resolve(strict=True)
            doors = [file.stat().st_mode & stat.S_IROTH, *(each.stat().st_mode & stat.S_IXOTH for each in file.parents)]
            _looked_at.add(str(path))
            if all(doors):
                _log.warning("every user of this machine may read a secret file=%s remedy='chmod go= %s'", path, path)
    return Path(path)

"""Which state of the contract this code speaks; see GetServerInfoResponse.

`CONTRACT` grows by one with every addition that clients use. A client needs a scheduler with at least its own, and a
scheduler serves clients down to `OLDEST_CONTRACT`.
"""

from __future__ import annotations

from typing import Final

CONTRACT: Final = 1
OLDEST_CONTRACT: Final = 1

"""The same for a manager that is no root."""

from __future__ import annotations

import os

import pytest

from tests.support.other_user import TESTS_TIMEOUT_S, run_tests_as_other_user
from tests.support.samples import is_nightly

# For anybody else those tests run as an unprivileged user already. Plain processes keep nobody in, whoever runs them;
# containers are their engine's.
if os.geteuid() == 0:

    @pytest.mark.timeout(TESTS_TIMEOUT_S + 20)
    def test_all_of_this_holds_for_an_unprivileged_user() -> None:
        containment = "tests/integration/sandbox_containment"
        # By day it is the walls; what runs behind them has the same walls.
        containment += "" if is_nightly() else "/test_containment_walls.py"
        run_tests_as_other_user("bubblewrap", containment, "tests/contract/sandbox_backend", marked="not alone")

"""Attacks on the machine for a manager that is no root. A file of its own: the tests of one file follow each other."""

from __future__ import annotations

import os

import pytest

from tests.support.other_user import TESTS_TIMEOUT_S, run_tests_as_other_user

# For anybody else those tests run as an unprivileged user already.
if os.geteuid() == 0:

    @pytest.mark.nightly
    @pytest.mark.alone
    @pytest.mark.timeout(TESTS_TIMEOUT_S + 20)
    def test_attacks_end_as_well_for_an_unprivileged_user() -> None:
        run_tests_as_other_user("bubblewrap", "tests/integration/sandbox_containment", marked="alone")

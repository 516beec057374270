"""The same for a manager that is no root."""

from __future__ import annotations

import os
import sys

import pytest

from tests.support.other_user import REPOSITORY, directory_of_other_user, run_as_other_user

# For anybody else those tests run as an unprivileged user already.
if os.geteuid() == 0:

    @pytest.mark.timeout(400)
    @pytest.mark.parametrize("tests", ["tests/integration/sandbox_containment", "tests/contract/sandbox_backend"])
    def test_all_of_this_holds_for_an_unprivileged_user(tests: str) -> None:
        with directory_of_other_user() as home:
            done = run_as_other_user(
                [
                    *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={home}/pytest"),
                    *(f"--rootdir={REPOSITORY}", "-c", str(REPOSITORY / "pyproject.toml")),
                    # Plain processes keep nobody in, whoever runs them; containers are their engine's.
                    *("-k", "bubblewrap", str(REPOSITORY / tests)),
                ],
                home,
                {"CI": os.environ.get("CI", "")},
                timeout_s=380,
            )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]

"""Numbers as the dashboard tells them."""

from __future__ import annotations

import pytest
from callsheet.dashboard.words import number


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (0.0000123456, "0.0000123"),
        (-2.5e-7, "-0.00000025"),
        (99.96, "100"),
        (12.34, "12.3"),
        (1234.56, "1,234.6"),
        (3.0, "3"),
        (0.0, "0"),
        (float("nan"), "nan"),
    ],
)
def test_a_number_is_told_in_few_digits_and_without_powers_of_ten(value: float, told: str) -> None:
    assert number(value) == told

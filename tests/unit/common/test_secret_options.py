"""Options that may hold secrets: each has one for its file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import pytest
from callsheet.options.declaration import Setting, declared_options, from_texts, from_values, holds_secret


@dataclass(frozen=True, slots=True)
class Guarded:
    """Settings of a driver of an outside service."""

    api_key: Annotated[str | None, Setting("Its key.", variable="DRIVER_API_KEY", secret=True)] = field(
        default=None, repr=False
    )


def test_a_secret_has_an_option_for_its_file(tmp_path: Path) -> None:
    value, file = declared_options(Guarded)
    assert (file.name, file.setting.flag, file.setting.variable) == (
        "api_key_file",
        "--api-key-file",
        "DRIVER_API_KEY_FILE",
    )
    assert value.name == "api_key"
    path = tmp_path / "key"
    path.write_text("  right\n")
    assert from_values(Guarded, {"api_key_file": path}).api_key == "right"
    assert from_texts(Guarded, [f"api-key-file={path}"]).api_key == "right"
    assert from_values(Guarded, {}).api_key is None


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    path = tmp_path / "key"
    with pytest.raises(ValueError, match=r"api_key_file: .*key: cannot be read"):
        from_values(Guarded, {"api_key_file": path})
    path.write_text("\n")
    with pytest.raises(ValueError, match=r"api_key_file: .*key: is empty"):
        from_values(Guarded, {"api_key_file": path})
    with pytest.raises(ValueError, match="api_key_file: must not be given with api_key"):
        from_values(Guarded, {"api_key": "x", "api_key_file": path})
    with pytest.raises(ValueError, match="a secret needs one"):
        Setting("Without a variable.", secret=True)


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("token", True),
        ("redis://h:1/0", False),
        ("redis://u@h:1/0", False),
        ("redis://:p@h:1/0", True),
        ("postgresql+psycopg://u:p@h/n", True),
        ("postgresql://h/n?user=u&password=p", True),
        ("postgresql://h/n?options=a:b@c", False),
    ],
)
def test_a_url_is_a_secret_if_it_has_a_password(text: str, is_one: bool) -> None:
    assert holds_secret(text) == is_one

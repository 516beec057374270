"""Whether a stack has a gateway, and why it has none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from callsheet.cli.up_command import note_gateway
from callsheet.deploy.gateway_process import gateway_listen, why_no_gateway
from callsheet.deploy.roles import Role
from callsheet.deploy.stack_settings import AUTO_GATEWAY, StackSettings

_TEMPLATE = {"chat_template": "{{ messages }}"}


def model(directory: Path, config: dict[str, Any], *files: str) -> StackSettings:
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    for name in files:
        (directory / name).write_text("{}")
    return StackSettings(directory.parent, given={"model": str(directory)}, gateway=AUTO_GATEWAY)


@pytest.mark.parametrize(
    ("config", "files", "why"),
    [
        (_TEMPLATE, ("tokenizer.json",), None),
        ({}, ("tokenizer.json", "chat_template.jinja"), None),
        ({"chat_template": None}, ("tokenizer.json",), "has no chat template"),
        ({}, ("tokenizer.json",), "has no chat template"),
        (_TEMPLATE, (), "has no tokenizer.json"),
    ],
)
def test_a_model_of_ones_own_has_a_gateway_if_it_can_be_spoken_to(
    tmp_path: Path, config: dict[str, Any], files: tuple[str, ...], why: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = model(tmp_path / "model", config, *files)
    found = why_no_gateway(settings)
    assert (found is None) if why is None else (found is not None and found.endswith(why))
    assert (gateway_listen(settings) is None) == (why is not None)
    note_gateway(settings)
    assert ("no gateway runs: " in capsys.readouterr().err) == (why is not None)


def test_nothing_is_said_where_no_gateway_is_expected(tmp_path: Path) -> None:
    for managers in (StackSettings(tmp_path).managers, (Role.SANDBOX,)):
        assert why_no_gateway(StackSettings(tmp_path, managers=managers, gateway=AUTO_GATEWAY)) is None
    assert why_no_gateway(StackSettings(tmp_path, gateway=None)) is None

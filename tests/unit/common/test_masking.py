"""Secrets are taken out of texts in all their forms, and nothing else is."""

from __future__ import annotations

import base64
import html
import json
import logging
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
import structlog
from callsheet.cli.output import describe
from callsheet.credentials.masking import Mask, without_credentials
from callsheet.deploy.logs import configure_logs
from callsheet.options.common import LogFormat, LogLevel

SECRET = 'sk-0123+56/89"ab&cdefé'


@pytest.mark.parametrize(
    "form",
    [
        str,
        lambda secret: quote(secret, safe=""),
        lambda secret: quote(secret, safe="").replace("%2B", "%2b").replace("%2F", "%2f").replace("%C3%A9", "%c3%a9"),
        lambda secret: json.dumps(secret)[1:-1],
        lambda secret: json.dumps(secret)[1:-1].replace("/", "\\/"),
        lambda secret: json.dumps(secret)[1:-1].replace("&", "\\u0026"),
        lambda secret: json.dumps(secret)[1:-1].replace("&", "\\u0026").replace("+", "\\u002B"),
        quote,
        html.escape,
        *(
            lambda secret, before=before, encode=encode: encode(f"{before}{secret}:x".encode()).decode()
            for before in ("", "u", "us", "user:")
            for encode in (base64.b64encode, base64.urlsafe_b64encode)
        ),
    ],
)
def test_a_secret_is_hidden_in_each_form_and_at_each_cut(form: Callable[[str], str]) -> None:
    mask, told = Mask(f"Bearer {SECRET}"), form(SECRET)
    assert "***" in mask(f"before {told} after")
    whole = f"{'x' * 40}{told}{'y' * 400}{told}".encode()
    kept = {told[begin : begin + 6] for begin in range(len(told) - 6)}
    for most in range(30, 40 + len(told)):
        cut = mask.content(whole[: most + mask.longest], most).decode(errors="replace")
        assert len(cut.encode()) <= most
        assert sum(each in cut for each in kept) <= 2, "at most bits beside what the secret alone decides"


def test_what_is_no_secret_stays() -> None:
    text = "Bearer of the short key abc: sk-0123+56/8 is none, and it ends with sk-0123"
    assert Mask(f"Bearer {SECRET}", "abc", "")(text) == text
    assert Mask(SECRET).content(b"ends with sk-0") == b"ends with sk-0", "it is not cut"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("postgresql://u:pa55@h/db?sslmode=on", "postgresql://***@h/db?sslmode=on"),
        ("no Redis at redis://:pa55@h:1, nor at rediss://h:1", "no Redis at redis://***@h:1, nor at rediss://h:1"),
        ("redis://:p@ss'pa55@h:1/0: refused", "redis://***@h:1/0: refused"),
        ("redis://:it's@pa55@h,redis://h", "redis://***@h,redis://h"),
        ("(redis://h:1, it's a@b)", "(redis://h:1, it's a@b)"),
        ("git clone https://ghp_pa55@github.com/a/b@c", "git clone https://***@github.com/a/b@c"),
        ("GET https://r/v2?scope=pull&token=pa55&n=1 failed", "GET https://r/v2?scope=pull&token=***&n=1 failed"),
        ("postgresql:///db?host=/run&password=pa55", "postgresql:///db?host=/run&password=***"),
        ("https://r/x?page_token=2&q=token=3", "https://r/x?page_token=2&q=token=3"),
        ("mail a@b.c of http://h:80/@scope", "mail a@b.c of http://h:80/@scope"),
    ],
)
def test_urls_show_no_credentials_in_errors_and_logs(text: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert without_credentials(text) == told
    assert describe(ValueError(text)) == told
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)
    monkeypatch.setattr(structlog, "configure", lambda processors, **_: chains.append(processors))
    chains: list[list[structlog.typing.Processor]] = []
    for log_format in LogFormat:
        configure_logs(log_format, LogLevel.INFO)
        event: Any = {"event": "broke", "reasons": [text], "exc_info": OSError(text)}
        for processor in chains.pop():
            event = processor(None, "error", event)
        assert told in event
        assert "pa55" not in event

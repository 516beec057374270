"""Certificates that cannot be used are told as such, at the start and when they are replaced."""

from __future__ import annotations

from pathlib import Path

import pytest
from callsheet.scheduler.service.rpc.tls import CertificateFiles
from structlog.testing import capture_logs

from tests.support.certificates import Authority


def test_files_that_do_not_fit_are_refused_by_name(tmp_path: Path) -> None:
    authority, text = Authority(tmp_path), tmp_path / "text"
    text.write_text("no PEM")
    cert, key = authority.sign("server")
    _, other = authority.sign("other")
    for wrong, named in (((cert, other), other), ((text, key), text), ((cert, text), text), ((cert, key, text), text)):
        with pytest.raises(ValueError, match=r"tls: .*as PEM") as caught:
            CertificateFiles(*wrong)
        assert str(named) in str(caught.value)
    CertificateFiles(cert, key, authority.ca)


def test_a_key_that_does_not_fit_any_more_is_told_once(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.sign("server")
    _, other = authority.sign("other")
    files = CertificateFiles(cert, key)
    right = key.read_bytes()
    with capture_logs() as lines:
        key.write_bytes(other.read_bytes())
        assert files._changed() is None
        assert files._changed() is None
        key.unlink()
        key.write_bytes(right)
        assert files._changed() is not None
        assert files._changed() is None
    assert [line["event"] for line in lines] == ["certificates_unusable", "certificates_replaced"]
    assert str(key) in lines[0]["reason"]

"""Images in the OCI layout, made byte by byte, and a real registry to push them to."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import platform
import re
import subprocess
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import zstandard

from tests.support.binaries import Program, require_program

ANSWER_S = 30.0
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
_OCI = "application/vnd.oci.image"
_DOCKER = "application/vnd.docker"


@dataclass(frozen=True)
class Entry:
    """One member of a layer's archive; a directory unless it has content or a link."""

    name: str
    content: bytes | None = None
    link: str = ""
    kind: bytes = tarfile.DIRTYPE
    mode: int = 0o755

    def member(self) -> tarfile.TarInfo:
        """Its header."""
        member = tarfile.TarInfo(self.name)
        member.type = tarfile.REGTYPE if self.content is not None else self.kind
        member.size = len(self.content or b"")
        member.linkname, member.mode, member.mtime, member.uid = self.link, self.mode, 1_000_000_000, 4242
        return member


def file(name: str, content: bytes = b"", mode: int = 0o644) -> Entry:
    """A file."""
    return Entry(name, content, mode=mode)


def symlink(name: str, target: str) -> Entry:
    """A symbolic link."""
    return Entry(name, link=target, kind=tarfile.SYMTYPE)


def hard_link(name: str, target: str) -> Entry:
    """Another name of a file."""
    return Entry(name, link=target, kind=tarfile.LNKTYPE)


def archive_of(entries: Sequence[Entry]) -> bytes:
    """Returns a tar archive."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for entry in entries:
            archive.addfile(entry.member(), io.BytesIO(entry.content) if entry.content is not None else None)
    return out.getvalue()


def archive_of_tree(root: Path) -> bytes:
    """Returns a tar archive of a directory's content."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.add(root, ".")
    return out.getvalue()


def compressed(archive: bytes, compression: str) -> bytes:
    """Returns a layer's blob: "gzip", "zstd" or "" for none."""
    if compression == "gzip":
        return gzip.compress(archive, 1, mtime=0)
    return zstandard.compress(archive) if compression == "zstd" else archive


@dataclass
class Layout:
    """An OCI layout below a directory, with one image in its index."""

    directory: Path
    docker: bool = False
    layers: list[dict[str, object]] = field(default_factory=list)
    diff_ids: list[str] = field(default_factory=list)

    def blob(self, content: bytes) -> str:
        """Keeps a blob; returns its digest."""
        digest = hashlib.sha256(content).hexdigest()
        place = self.directory / "blobs" / "sha256" / digest
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        return f"sha256:{digest}"

    def add(self, archive: bytes, compression: str = "gzip") -> str:
        """Puts a layer on top; returns the digest of its blob."""
        content = compressed(archive, compression)
        media = f"{_OCI}.layer.v1.tar" + (f"+{compression}" if compression else "")
        digest = self.blob(content)
        self.layers.append({"mediaType": media, "digest": digest, "size": len(content)})
        self.diff_ids.append(f"sha256:{hashlib.sha256(archive).hexdigest()}")
        return digest

    def image(self, config: Mapping[str, object] | None = None, architecture: str = ARCHITECTURE) -> dict[str, object]:
        """Writes config and manifest; returns the manifest's descriptor."""
        written = json.dumps(
            {
                "architecture": architecture,
                "os": "linux",
                "config": dict(config or {}),
                "rootfs": {"type": "layers", "diff_ids": self.diff_ids},
                "history": [{"created_by": "a step"} for _ in self.diff_ids],
            }
        ).encode()
        manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": f"{_OCI}.manifest.v1+json",
                "config": {
                    "mediaType": f"{_OCI}.config.v1+json",
                    "digest": self.blob(written),
                    "size": len(written),
                },
                "layers": self.layers,
            }
        ).encode()
        return {
            "mediaType": f"{_OCI}.manifest.v1+json",
            "digest": self.blob(manifest),
            "size": len(manifest),
            "platform": {"architecture": architecture, "os": "linux"},
        }

    def finish(self, *images: Mapping[str, object]) -> str:
        """Writes the index: of one image, or of a list with several; returns the digest of what it names."""
        top = dict(images[0])
        if len(images) > 1:
            media = f"{_OCI}.index.v1+json"
            listed = json.dumps({"schemaVersion": 2, "mediaType": media, "manifests": list(images)}).encode()
            top = {"mediaType": media, "digest": self.blob(listed), "size": len(listed)}
        (self.directory / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        (self.directory / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [top]}))
        return str(top["digest"])


@dataclass(frozen=True)
class Registry:
    """A registry that runs; `address` is HOST:PORT."""

    address: str
    storage: Path
    log: Path
    skopeo: Program

    def push(self, layout: Path, name: str, *options: str) -> None:
        """Pushes a layout's image; NAME[:TAG]."""
        subprocess.run(
            [
                *(str(self.skopeo.path), "--insecure-policy", "copy", "--all", "--quiet", "--dest-tls-verify=false"),
                *(*options, f"oci:{layout}", f"docker://{self.address}/{name}"),
            ],
            check=True,
            env={**os.environ, **self.skopeo.environment},
            timeout=ANSWER_S,
        )

    def requests(self) -> list[str]:
        """What was asked for so far: "GET /v2/..."."""
        found = []
        for line in self.log.read_text(errors="replace").splitlines():
            before, quote, after = line.partition('"')
            if quote and before and after.startswith(("GET /v2/", "HEAD /v2/")):
                found.append(after.partition(" HTTP/")[0])
        return found


# "secret" as bcrypt has it, with as few rounds as it allows.
USER, PASSWORD = "reader", "secret"
_ENTRY = f"{USER}:$2b$04$r6KEhKnKzNU.abZOjcgOXebFgJ1Ap6wG9U/CfuREY4T20elKTtZLS\n"


@contextmanager
def running_registry(directory: Path, *, closed: bool = False) -> Iterator[Registry]:
    """Runs Debian's docker-registry on a free loopback port; a closed one wants USER and PASSWORD."""
    program, skopeo = require_program("docker-registry"), require_program("skopeo")
    storage, settings, log = directory / "storage", directory / "config.yml", directory / "log"
    settings.write_text(
        "version: 0.1\nlog: {level: info}\n"
        f"storage: {{filesystem: {{rootdirectory: {storage}}}, delete: {{enabled: true}}}}\n"
        "http: {addr: '127.0.0.1:0'}\n"
        + (f"auth: {{htpasswd: {{realm: tests, path: {directory / 'users'}}}}}\n" if closed else "")
    )
    (directory / "users").write_text(_ENTRY)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [program.path, "serve", settings],
            stdout=output,
            stderr=output,
            env={**os.environ, **program.environment, "OTEL_TRACES_EXPORTER": "none"},
        )
    try:
        port = _await_port(log, process)
        yield Registry(f"127.0.0.1:{port}", storage, log, skopeo)
    finally:
        process.terminate()
        process.wait(ANSWER_S)


def _await_port(log: Path, process: subprocess.Popen[bytes]) -> int:
    """Returns the port that the registry took: one that is chosen before may be another's by then."""
    deadline = time.monotonic() + ANSWER_S
    while not (found := re.search(r"listening on 127\.0\.0\.1:(\d+)", log.read_text())):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)
    return int(found.group(1))

"""The real input of coding tasks: source releases of small pure-Python packages, pinned by hash, with their tests."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from callsheet.options.temporary_directories import temporary_directory

FETCH_TIMEOUT_S = 180.0

TEST_REQUIREMENTS = ("pytest==8.4.2",)
"""Requirements of the test suites beside the package itself."""


class SourceReleaseError(RuntimeError):
    """A source release is missing or is not what was pinned."""


@dataclass(frozen=True, slots=True)
class PythonPackage:
    """A pinned source release.

    Attributes:
        name: Its name in the package index.
        version: Its version.
        sha256: Lower-case hexadecimal hash of the archive.
        import_directory: What goes on PYTHONPATH, relative to the root of the release.
        test_paths: Files and directories with its tests, relative to the root.
    """

    name: str
    version: str
    sha256: str
    import_directory: str
    test_paths: tuple[str, ...]

    @property
    def root(self) -> str:
        """The directory that the archive unpacks to."""
        return f"{self.name}-{self.version}"

    @property
    def archive_name(self) -> str:
        """The file name of the archive."""
        return f"{self.root}.tar.gz"


PACKAGES = (
    PythonPackage(
        name="inflection",
        version="0.5.1",
        sha256="1a29730d366e996aaacffb2f1f1cb9593dc38e2ddd30c91250c6dde09ea9b417",
        import_directory=".",
        test_paths=("test_inflection.py",),
    ),
    PythonPackage(
        name="parse",
        version="1.20.2",
        sha256="b41d604d16503c79d81af5165155c0b20f6c8d6c559efa66b4b695c3e5a0a0ce",
        import_directory=".",
        test_paths=("tests",),
    ),
    PythonPackage(
        name="semver",
        version="3.0.2",
        sha256="6253adb39c70f6e51afed2fa7152bcd414c411286088fb4b9effb133885ab4cc",
        import_directory="src",
        test_paths=("tests",),
    ),
    PythonPackage(
        name="toolz",
        version="1.0.0",
        sha256="2c86e3d9a04798ac556793bced838816296a2f085017664e4995cb40a1047a02",
        import_directory=".",
        test_paths=("toolz/tests",),
    ),
)
"""All of them pass all of their tests on Python 3.11 to 3.13, in one to two seconds on one core."""


def default_cache_directory(environment: Mapping[str, str]) -> Path:
    """Returns the directory that keeps inputs between runs: below XDG_CACHE_HOME, else below ~/.cache."""
    configured = Path(environment.get("XDG_CACHE_HOME", ""))
    base = configured if configured.is_absolute() else Path.home() / ".cache"
    return base / "callsheet"


@dataclass(frozen=True, slots=True)
class SourceRelease:
    """A source release at hand: a package and the bytes of its archive."""

    package: PythonPackage
    archive: bytes

    def read(self, path: str) -> str:
        """Returns the text of one file, by its path relative to the root.

        Raises:
            SourceReleaseError: There is no such file.
        """
        with tarfile.open(fileobj=io.BytesIO(self.archive)) as archive:
            try:
                member = archive.extractfile(f"{self.package.root}/{path}")
            except KeyError:
                member = None
            if member is None:
                raise SourceReleaseError(f"{self.package.archive_name}: no file {path!r} in it")
            return member.read().decode()

    def test_files(self) -> tuple[str, ...]:
        """Returns the files that pytest collects tests from, relative to the root, in order."""
        with tarfile.open(fileobj=io.BytesIO(self.test_archive())) as tests:
            paths = [Path(name).relative_to(self.package.root) for name in tests.getnames()]
        return tuple(sorted(str(path) for path in paths if path.match("test_*.py") or path.match("*_test.py")))

    def test_archive(self) -> bytes:
        """Returns a tar archive of the test files alone, with the same paths as in the release."""
        roots = tuple(f"{self.package.root}/{path}" for path in self.package.test_paths)
        packed = io.BytesIO()
        with (
            tarfile.open(fileobj=io.BytesIO(self.archive)) as source,
            tarfile.open(fileobj=packed, mode="w:gz") as tests,
        ):
            for member in source.getmembers():
                if member.isfile() and (member.name in roots or member.name.startswith(tuple(f"{r}/" for r in roots))):
                    tests.addfile(member, source.extractfile(member))
        return packed.getvalue()


def _cached(package: PythonPackage, directory: Path) -> SourceRelease | None:
    try:
        content = (directory / package.archive_name).read_bytes()
    except FileNotFoundError:
        return None
    return SourceRelease(package, content) if hashlib.sha256(content).hexdigest() == package.sha256 else None


def missing_packages(packages: Iterable[PythonPackage], directory: Path) -> list[PythonPackage]:
    """The packages whose source release is not in the cache, or is damaged there."""
    return [package for package in packages if _cached(package, directory) is None]


def fetch_releases(packages: Iterable[PythonPackage], directory: Path) -> tuple[SourceRelease, ...]:
    """Returns the source releases, from the cache where they are there and else through pip.

    Blocks for up to `FETCH_TIMEOUT_S` seconds.

    Args:
        packages: Which ones.
        directory: The cache; created if it is not there.

    Raises:
        SourceReleaseError: pip cannot get one, or not the one that was pinned.
    """
    wanted = tuple(packages)
    missing = missing_packages(wanted, directory)
    if missing:
        _download(missing, directory)
    releases = []
    for package in wanted:
        release = _cached(package, directory)
        if release is None:
            raise SourceReleaseError(f"{package.archive_name}: not the archive that is pinned (SHA-256 differs)")
        releases.append(release)
    return tuple(releases)


def _download(packages: list[PythonPackage], directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    # Beside the cache, so that the finished archives can be renamed into it.
    with temporary_directory("download-", directory) as scratch:
        requirements = scratch / "requirements.txt"
        requirements.write_text(
            "".join(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n" for package in packages)
        )
        _run_pip(requirements, str(scratch), ", ".join(f"{package.name} {package.version}" for package in packages))
        for package in packages:
            archive = scratch / package.archive_name
            if not archive.is_file():
                raise SourceReleaseError(f"{package.archive_name}: pip did not leave it in its download directory")
            archive.replace(directory / package.archive_name)


def _run_pip(requirements: Path, destination: str, names: str) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", "--no-binary", ":all:", "--require-hashes", "--dest", destination, "-r", str(requirements)]
    try:
        finished = subprocess.run(command, check=False, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise SourceReleaseError(f"source releases of {names}: pip did not finish in {FETCH_TIMEOUT_S:.0f} s") from None
    if finished.returncode != 0:
        said = " | ".join(finished.stderr.strip().splitlines()[-3:])
        raise SourceReleaseError(
            f"source releases of {names}: pip could not fetch them; the first run needs the package index: {said}"
        )

"""Images in a layout on disk: the seam for whatever makes images, as registries do and builders may."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest
from callsheet.managers.sandbox.errors import SandboxCreateError
from callsheet.managers.sandbox.files.images.downloads import Downloads
from callsheet.managers.sandbox.files.images.errors import ImageError
from callsheet.managers.sandbox.files.images.layer_cache import LayerCache
from callsheet.managers.sandbox.files.images.oci import Blob, Platform, digest_of
from callsheet.managers.sandbox.files.images.oci_layers import LayoutBlobs, OciImage, OciLayers, read_layout
from callsheet.managers.sandbox.files.images.source import PreparedImage
from callsheet.managers.sandbox.files.images.sources import build_images
from callsheet.managers.sandbox.provisioning_settings import ProvisioningSettings
from callsheet.managers.sandbox.registry_settings import RegistrySettings
from callsheet.managers.sandbox.settings import SandboxSettings

from tests.support.oci_images import Layout, archive_of, file

pytestmark = pytest.mark.anyio
BASE = archive_of([file("etc/base", b"base"), file("srv/app/file", b"")])


def layout(directory: Path, *archives: bytes, config: dict[str, object] | None = None) -> Layout:
    made = Layout(directory)
    for archive in archives:
        made.add(archive)
    made.finish(made.image(config))
    return made


async def prepare(layers: OciLayers, made: Layout, image: OciImage | None = None) -> PreparedImage:
    image = image or read_layout(made.directory, Platform.here())
    with anyio.fail_after(60):
        return await layers.prepare(made.directory.name, image, LayoutBlobs(made.directory), anyio.Event())


@pytest.fixture
def cache(tmp_path: Path) -> LayerCache:
    return LayerCache(tmp_path / "cache", 1 << 24)


async def test_images_on_one_base_share_its_layer(cache: LayerCache, tmp_path: Path) -> None:
    layers = OciLayers(cache)
    config: dict[str, object] = {"Env": ["A=1"], "WorkingDir": "/srv/app"}
    first = await prepare(layers, layout(tmp_path / "first", BASE, config=config))
    second = await prepare(layers, layout(tmp_path / "second", BASE, archive_of([file("etc/.wh.base")])))
    assert first.layers == second.layers[:1]
    assert (first.layers[0] / "etc/base").read_text() == "base"
    assert first.digest != second.digest
    assert (first.config.environment, first.config.working_directory) == ({"A": "1"}, "/srv/app")
    assert first.name == "first"


async def test_a_working_directory_that_is_not_there_is_no_default(cache: LayerCache, tmp_path: Path) -> None:
    layers = OciLayers(cache)
    prepared = await prepare(layers, layout(tmp_path / "a", BASE, config={"WorkingDir": "/srv/gone"}))
    assert prepared.config.working_directory == ""


async def test_layers_in_use_stay_and_others_make_room(tmp_path: Path) -> None:
    cache = LayerCache(tmp_path / "cache", 40_000)
    layers = OciLayers(cache)
    images = [layout(tmp_path / str(n), archive_of([file(f"{n}", os.urandom(15_000))])) for n in range(4)]
    held = await prepare(layers, images[0])
    for each in images[1:]:
        (await prepare(layers, each)).release()
    assert held.layers[0].exists()
    assert len(list((tmp_path / "cache").glob("oci-*"))) < 4
    held.release()


@pytest.mark.parametrize("harm", ["cut", "other", "archive"])
async def test_a_blob_that_is_not_what_it_should_be_is_refused(cache: LayerCache, tmp_path: Path, harm: str) -> None:
    made = Layout(tmp_path / "a")
    digest = made.add(BASE)
    if harm == "archive":
        made.diff_ids[0] = digest_of(b"another")
    made.finish(made.image())
    place = made.directory / "blobs" / "sha256" / digest.removeprefix("sha256:")
    content = place.read_bytes()
    if harm == "cut":
        place.write_bytes(content[:-1])
    elif harm == "other":
        place.write_bytes(content[:-5] + bytes(5))
    with pytest.raises(ImageError, match=rf"layer {digest}: (is cut off|wrong digest)"):
        await prepare(OciLayers(cache), made)
    assert list((tmp_path / "cache").iterdir()) == []


async def test_what_is_larger_than_the_cache_is_refused_before_it_is_read(tmp_path: Path) -> None:
    cache = LayerCache(tmp_path / "cache", 1000)
    with pytest.raises(ImageError, match="see the setting layer_cache_mib"):
        await prepare(OciLayers(cache), layout(tmp_path / "a", archive_of([file("a", os.urandom(5000))])))


def test_an_interrupted_pull_goes_on_with_the_blobs_that_it_has(tmp_path: Path) -> None:
    downloads = Downloads(tmp_path / "pulls")
    whole, stand_in = Blob(digest_of(b"whole"), 5), Blob(digest_of(b"unpacked before"), 1 << 30)
    layout = downloads.begin("image", [stand_in])
    blobs = layout / "blobs" / "sha256"
    assert (blobs / stand_in.file_name).stat().st_size == 1 << 30
    assert (blobs / stand_in.file_name).stat().st_blocks == 0
    (blobs / whole.file_name).write_bytes(b"whole")
    for half in (layout / "index.json", layout / "oci-put-blob1", blobs / "half"):
        half.write_bytes(b"half")
    downloads.end_stand_ins("image", [stand_in])
    downloads.interrupt("image")
    assert downloads.begin("image", []) == layout
    assert [path.name for path in layout.rglob("*") if path.is_file()] == [whole.file_name]
    downloads.end("image")
    assert list((tmp_path / "pulls").iterdir()) == []


def test_few_interrupted_pulls_are_kept_and_none_over_a_restart(tmp_path: Path) -> None:
    downloads = Downloads(tmp_path / "pulls")
    for number in range(6):
        downloads.begin(str(number), [])
        downloads.interrupt(str(number))
    assert sorted(path.name for path in (tmp_path / "pulls").iterdir()) == ["2", "3", "4", "5"]
    Downloads(tmp_path / "pulls")
    assert list((tmp_path / "pulls").iterdir()) == []


def test_without_skopeo_nothing_can_be_pulled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    registry = RegistrySettings(registries=("docker.io",))
    settings = SandboxSettings(data_directory=tmp_path, provisioning=ProvisioningSettings(registry=registry))
    with pytest.raises(SandboxCreateError, match=r"docker\.io: no skopeo here: install the system package"):
        build_images(settings, LayerCache(tmp_path / "cache", 1))
    assert build_images(SandboxSettings(data_directory=tmp_path), LayerCache(tmp_path / "cache", 1)) is None

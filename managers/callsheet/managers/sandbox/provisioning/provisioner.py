"""Gives trajectories their sandboxes: with the image and the set-up they ask for, and no work done twice."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio
import anyio.to_thread
import structlog
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.backend import CommandOutcome, SandboxSpec, Sizes
from callsheet.managers.sandbox.errors import SandboxCreateError
from callsheet.managers.sandbox.files.changes import ChangesTooLargeError
from callsheet.managers.sandbox.files.images.buildah import Dockerfile
from callsheet.managers.sandbox.files.images.builds import ImageBuilds
from callsheet.managers.sandbox.files.images.errors import ImageBuildError, ImageError
from callsheet.managers.sandbox.files.images.image_users import find_user
from callsheet.managers.sandbox.files.images.layer_cache import BuiltLayer, LayerCache, LayerHold
from callsheet.managers.sandbox.files.images.source import ImageSource, PreparedImage
from callsheet.managers.sandbox.files.root_filesystem import ROOT, RootFilesystem
from callsheet.managers.sandbox.provisioning.admitting_backend import AdmittingBackend, CreationsFailingError
from callsheet.managers.sandbox.provisioning.archives import ArchiveError, restore_archives, save_archives, unpack_copy
from callsheet.managers.sandbox.provisioning.snapshots import (
    KEY_PREFIX,
    KeptSetUp,
    Note,
    SetUp,
    encode_note,
    layer_name,
    read_note,
    serves,
    snapshot_key,
)
from callsheet.managers.sandbox.provisioning.warm_pool import WarmPool
from callsheet.managers.sandbox.sharing.sandbox_use import SandboxUse
from callsheet.managers.sandbox.stopping import unless_stopped

# Every heartbeat tells them.
MOST_TOLD = 64

_MOST_UNREPEATABLE = 4096


class KeptSetUps:
    """The set-ups whose layers are in a cache."""

    def __init__(self, cache: LayerCache) -> None:
        """Blocks: reads what an earlier process noted."""
        self._cache = cache
        notes = {key: read_note(note) for key, note in cache.notes().items() if key.startswith(KEY_PREFIX)}
        # By key, the last used one at the end.
        self._kept = {key: note.set_up for key, note in notes.items()}
        self._listeners: list[Callable[[], None]] = []
        self._last_told = self.told()
        cache.on_change(self._on_layer)

    def told(self) -> Sequence[KeptSetUp]:
        """Those that the scheduler is to hear of: the ones that were used last."""
        return list(self._kept.values())[-MOST_TOLD:]

    def on_change(self, listener: Callable[[], None]) -> None:
        """Takes a function to call, on the event loop, when `told` has others than before."""
        self._listeners.append(listener)

    def serving(self, key: str, asked: Sizes) -> str:
        """Returns the layer to begin with: one whose set-up had no less than is asked for, else the one to be made."""
        return next((layer for layer in self._kept if serves(layer, key, asked)), layer_name(key, asked))

    def use(self, key: str, kept: KeptSetUp) -> None:
        """Notes that a layer was made, or that a sandbox begins with it."""
        self._kept.pop(key, None)
        if key in self._cache:
            self._kept[key] = kept
        self._tell()

    def _on_layer(self, key: str) -> None:
        if key not in self._cache and self._kept.pop(key, None) is not None:
            self._tell()

    def _tell(self) -> None:
        before, self._last_told = self._last_told, self.told()
        if set(before) != set(self._last_told):
            for listener in self._listeners:
                listener()


_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The sandbox that is asked for.

    Attributes:
        specification: Its id, sizes and cores; the files it begins with are found by the provisioner.
        image: The files it begins with; whoever asks releases it.
        image_name: As it was asked for; empty for the manager's default.
        set_up: What is done in it first.
        set_up_name: As the scheduler knows that.
        repeat_set_up: Do it in any case, even where its result is kept.
        user: Whom its commands run as; empty for the one that the image names.
    """

    specification: SandboxSpec
    image: PreparedImage = field(default_factory=PreparedImage)
    image_name: str = ""
    set_up: SetUp = field(default_factory=SetUp)
    set_up_name: str = ""
    repeat_set_up: bool = False
    user: str = ""


@dataclass(frozen=True, slots=True)
class Provided:
    """A sandbox that is set up.

    Attributes:
        sandbox: It belongs to the caller, who destroys it.
        outcome: Of the set-up command; None if there was none.
        reused: Whether the outcome is that of an earlier run.
        took_s: Seconds that its set-up took, in this or that run.
        snapshot: What is kept of its set-up, as long as the sandbox lives; None if nothing is.
    """

    sandbox: AgentSandbox
    outcome: CommandOutcome | None
    reused: bool = False
    took_s: float = 0.0
    snapshot: Path | None = None

    @property
    def is_starved(self) -> bool:
        """True if its set-up is known to have met a limit of it and went on."""
        return self.outcome is not None and self.outcome.met_limit


class SetUpEndedError(Exception):
    """The set-up command did not succeed, and the sandbox is gone.

    Attributes:
        outcome: Of the command.
    """

    def __init__(self, outcome: CommandOutcome) -> None:
        super().__init__("the set-up command did not succeed")
        self.outcome = outcome


class SetUpFailedError(SetUpEndedError):
    """It failed, and would fail for others as well."""


class _FilesGoneError(SandboxCreateError):
    """Layers that a sandbox was to begin with are not in the cache any more."""


class _NotKeptError(Exception):
    """The result of a set-up cannot be kept for another beginning."""


# What befalls the one that runs a set-up is told to all who wait for it; after anything else the next of them runs it.
_SHARED = (SetUpFailedError, CreationsFailingError, _NotKeptError)


class Provisioner:
    """Makes sandboxes, keeps what set-ups leave, and keeps some sandboxes ready."""

    def __init__(
        self,
        backend: AdmittingBackend,
        cache: LayerCache,
        images: ImageSource | None,
        *,
        keep_set_ups: bool,
        warm_memory_mib: int,
        largest_set_up_bytes: int,
        environment: Sequence[str],
        default_image: str = "",
        builds: ImageBuilds | None = None,
    ) -> None:
        """Args:
        backend: Makes the sandboxes.
        cache: Keeps images and what set-ups leave.
        images: The images of a store, for a backend that has none of its own; None for none.
        keep_set_ups: Whether what set-ups leave is kept.
        warm_memory_mib: What all ready sandboxes may hold together.
        largest_set_up_bytes: The most that is kept of one set-up.
        environment: Whatever the result of a set-up depends on besides image, files and command.
        default_image: Of sandboxes that name none; empty for the machine's own system.
        builds: Builds images; None where that is not allowed.
        """
        self._backend = backend
        self._cache = cache
        self._images = backend.images or (images if backend.overlays else None)
        self._keep_set_ups = keep_set_ups
        self._largest_bytes = largest_set_up_bytes
        self._environment = tuple(environment)
        self._default_image = default_image
        self._builds = builds if backend.overlays else None
        self.kept_set_ups = KeptSetUps(cache)
        self._report_loss: Callable[[str, str], None] | None = None
        self._unrepeatable: OrderedDict[str, None] = OrderedDict()
        self.pool = WarmPool(warm_memory_mib, self._make_ready, lambda: backend.creating > 0 or backend.is_slow)
        backend.use_spares(self.pool)

    @property
    def images(self) -> ImageSource | None:
        """The images that sandboxes can have; None where there can be none."""
        return self._images

    @property
    def builds(self) -> ImageBuilds | None:
        """Builds images; None where that is not allowed or possible."""
        return self._builds

    def on_lost(self, report: Callable[[str, str], None]) -> None:
        """Takes the function to call with the id of a sandbox that ended by itself, and why."""
        self._report_loss = report

    @asynccontextmanager
    async def image(self, asked_for: str, stop: anyio.Event) -> AsyncIterator[PreparedImage]:
        """Gives an image, the manager's default for an empty name; its files stay until the end of the block.

        Raises:
            StoppedError: `stop` was set before it was ready.
            ImageError: The image is not there or cannot be used.
            SandboxCreateError: The disk refuses it.
        """
        image = await self._prepare(asked_for or self._default_image, stop)
        try:
            yield image
        finally:
            image.release()

    @asynccontextmanager
    async def built_image(self, asked_for: Dockerfile, stop: anyio.Event) -> AsyncIterator[PreparedImage]:
        """Gives the image of a Dockerfile, as `image` does, and raises the same.

        Raises:
            ImageBuildError: It does not build.
        """
        builds = self._builds
        if builds is None:
            raise ImageBuildError("build: this manager builds no images: see the setting build_images")
        try:
            image = await unless_stopped(stop, lambda: builds.prepare(asked_for, stop), _release)
        except OSError as error:
            raise SandboxCreateError(f"building an image: {error}") from error
        try:
            yield image
        finally:
            image.release()

    async def _prepare(self, name: str, stop: anyio.Event) -> PreparedImage:
        if not name:
            return PreparedImage()
        images = self._images
        if images is None:
            raise ImageError(f"image {name[:300]!r}: this manager has no images, or cannot mount them")
        try:
            return await unless_stopped(stop, lambda: images.prepare(name, stop), _release)
        except OSError as error:
            raise SandboxCreateError(f"image {name[:300]!r}: {error}") from error

    async def provide(self, wanted: Wanted, use: SandboxUse) -> Provided:
        """Returns a sandbox as wanted.

        Raises:
            SetUpFailedError: Its set-up failed, in this attempt or in the one that it waited for.
            SetUpEndedError: Its set-up was stopped, or met a limit of this sandbox.
            StoppedError: `stop` was set at another time.
            InputRefusedError: The image has no such user.
            SandboxCreateError: It could not be made.
            Exception: An error of writing files or of running commands, see `AgentSandbox`.
        """
        image, name = wanted.image, wanted.user or wanted.image.config.user
        layers = tuple(map(str, image.layers))
        user = await anyio.to_thread.run_sync(find_user, layers, name) if layers and name else ROOT
        spec = replace(wanted.specification, root=RootFilesystem(image.name, image.layers, user))
        if wanted.set_up.is_empty:
            return Provided(await self._begin(spec, use.stop), None)
        if wanted.set_up.is_short or wanted.repeat_set_up or not self._keep_set_ups:
            return await self._set_up(spec, wanted.set_up, use)
        key = snapshot_key(
            image.digest,
            wanted.set_up,
            [*self._environment, str(self._backend.overlays), str(user), *map(str, spec.network)],
        )
        if layer_name(key, spec.sizes) in self._unrepeatable:
            return await self._set_up(spec, wanted.set_up, use)
        return await self._set_up_once(key, spec, wanted, use)

    async def begin_with(self, spec: SandboxSpec, snapshot: Path, stop: anyio.Event) -> AgentSandbox:
        """Returns a sandbox that begins with what a set-up left, as long as another one that does so lives.

        Raises:
            StoppedError: `stop` was set.
            SandboxCreateError: It could not be made.
        """
        root = replace(spec.root, snapshot=snapshot, keeps_changes=True)
        return await self._begin(replace(spec, root=root), stop)

    async def provide_copy(self, spec: SandboxSpec, source: Path, use: SandboxUse) -> AgentSandbox:
        """Returns a sandbox that begins with the files that `Sandbox.copy_files` put into a directory.

        Args:
            spec: Its root is that of the sandbox they are from.
            source: The directory; it belongs to the new sandbox until that is destroyed.
            use: The attempt that it is for.

        Raises:
            StoppedError: The attempt is to stop.
            SandboxCreateError: It could not be made.
            ArchiveError: The files could not be unpacked in it.
        """
        if self._backend.begins_with_copies:
            return await self._make(replace(spec, root=replace(spec.root, copy=source)), use.stop)
        sandbox = await self._make(spec, use.stop)
        try:
            async with use.inside(sandbox):
                await unpack_copy(sandbox, source, use.stop)
        except BaseException:
            await sandbox.destroy()
            raise
        return sandbox

    async def _set_up(self, spec: SandboxSpec, set_up: SetUp, use: SandboxUse) -> Provided:
        """Takes or makes a sandbox and sets it up."""
        sandbox = await self._begin(spec, use.stop)
        began = time.monotonic()
        try:
            async with use.inside(sandbox):
                for file in set_up.files:
                    await sandbox.write_file(file, use.stop)
                outcome = await sandbox.execute(set_up.command, use.stop) if set_up.command is not None else None
            if outcome is not None and (outcome.stopped or outcome.out_of_memory or outcome.process_limit):
                if outcome.stopped or outcome.failed:
                    raise SetUpEndedError(outcome)
            elif outcome is not None and outcome.failed:
                raise SetUpFailedError(outcome)
        except BaseException:
            await sandbox.destroy()
            raise
        return Provided(sandbox, outcome, took_s=time.monotonic() - began)

    async def _set_up_once(self, key: str, spec: SandboxSpec, wanted: Wanted, use: SandboxUse) -> Provided:
        """Begins with what the same set-up left before; the first runs it while others wait for its result.

        A set-up that runs out of memory, disk or processes may leave a part. So nobody gets that of a smaller sandbox.
        """
        set_up, layer = wanted.set_up, self.kept_set_ups.serving(key, spec.sizes)
        made: list[Provided] = []
        keeping = replace(spec, root=replace(spec.root, keeps_changes=self._backend.overlays))

        async def build(target: Path) -> BuiltLayer:
            made.append(await self._set_up(keeping, set_up, use))
            if (outcome := made[0].outcome) is not None and outcome.met_limit:
                raise _NotKeptError("something in it met a limit or a signal")
            try:
                size = await self._keep(made[0], target, use)
                return BuiltLayer(size, encode_note(Note(_kept(wanted, made[0].took_s), outcome)))
            except (ChangesTooLargeError, ArchiveError, OSError) as error:
                raise _NotKeptError(str(error)) from error

        try:
            lease = await self._cache.obtain(layer, build, use.stop, shared=_SHARED)
        except _NotKeptError as error:
            self._note_unrepeatable(layer, str(error))
            return made[0] if made else await self._set_up(spec, set_up, use)
        except BaseException:
            for provided in made:
                await provided.sandbox.destroy()
            raise
        try:
            if not made:
                provided = await self._from_snapshot(spec, lease, use)
                self.kept_set_ups.use(layer, _kept(wanted, provided.took_s))
                return provided
            self.kept_set_ups.use(layer, _kept(wanted, made[0].took_s))
            if not self._backend.overlays:
                return made[0]
            # Copies of it begin with what its set-up left in places that no copy has.
            made[0].sandbox.on_destroyed(lease.keep())
            return replace(made[0], snapshot=lease.path)
        except ArchiveError as error:
            # It may fit into larger ones.
            self._note_unrepeatable(layer_name(key, spec.sizes), str(error))
            return await self._set_up(spec, set_up, use)
        finally:
            lease.release()

    async def _keep(self, provided: Provided, target: Path, use: SandboxUse) -> int:
        """Keeps the files of a sandbox that was just set up; returns how many bytes they are."""
        sandbox = provided.sandbox
        if await sandbox.has_processes():
            raise _NotKeptError("processes stay behind")
        if self._backend.overlays:
            return await sandbox.save_changes(target, self._largest_bytes)
        async with use.inside(sandbox):
            return await save_archives(sandbox, target, self._largest_bytes, use.stop)

    async def _from_snapshot(self, spec: SandboxSpec, lease: LayerHold, use: SandboxUse) -> Provided:
        note = read_note(await anyio.to_thread.run_sync(lease.note))
        if self._backend.overlays:
            root = replace(spec.root, snapshot=lease.path, keeps_changes=True)
            sandbox = await self._begin(replace(spec, root=root), use.stop)
        else:
            sandbox = await self._begin(spec, use.stop)
            try:
                async with use.inside(sandbox):
                    await restore_archives(sandbox, lease.path, use.stop)
            except BaseException:
                await sandbox.destroy()
                raise
        return Provided(sandbox, note.outcome, reused=True, took_s=note.set_up.took_s)

    async def _begin(self, spec: SandboxSpec, stop: anyio.Event) -> AgentSandbox:
        """Returns a sandbox with the files that it begins with, in which nothing ran: a ready one or a new one."""
        ready = await self.pool.take(spec)
        if ready is None:
            return await self._make(spec, stop)
        try:
            await unless_stopped(stop, lambda: self._backend.memory.admit(ready.spec.sandbox_id, spec))
        except BaseException:
            await ready.destroy()
            raise
        return ready

    async def _make(self, spec: SandboxSpec, stop: anyio.Event) -> AgentSandbox:
        async def create() -> AgentSandbox:
            return await self._backend.create(spec, lambda reason: self._tell_loss(spec.sandbox_id, reason))

        with self._lease_files(spec.root) as leases:
            sandbox = await unless_stopped(stop, create, lambda late: late.destroy())
            sandbox.on_destroyed(leases.pop_all().close)
        return sandbox

    async def _make_ready(self, spec: SandboxSpec) -> AgentSandbox | None:
        """Makes a sandbox for the warm pool; None if its files are not there any more."""
        try:
            sandbox = await self._make(spec, anyio.Event())
        except _FilesGoneError:
            return None
        try:
            await self._backend.memory.rest(sandbox)
        except BaseException:
            await sandbox.destroy()
            raise
        return sandbox

    def _tell_loss(self, sandbox_id: str, reason: str) -> None:
        if self._report_loss is not None:
            self._report_loss(sandbox_id, reason)

    def _lease_files(self, root: RootFilesystem) -> ExitStack:
        """Keeps the layers of a sandbox in the cache until the stack is closed."""
        with ExitStack() as leases:
            for path in (*root.layers, *([root.snapshot] if root.snapshot is not None else [])):
                if not self._cache.holds(path):
                    continue
                lease = self._cache.lease(path.parent.name)
                if lease is None:
                    raise _FilesGoneError("its files are not kept any more")
                leases.callback(lease.release)
            return leases.pop_all()

    def _note_unrepeatable(self, key: str, reason: str) -> None:
        if key not in self._unrepeatable:
            _log.info("set_up_not_kept", key=key, reason=reason)
        self._unrepeatable[key] = None
        while len(self._unrepeatable) > _MOST_UNREPEATABLE:
            self._unrepeatable.popitem(last=False)


async def _release(image: PreparedImage) -> None:
    image.release()


def _kept(wanted: Wanted, took_s: float) -> KeptSetUp:
    return KeptSetUp(wanted.set_up_name, wanted.image_name, took_s)

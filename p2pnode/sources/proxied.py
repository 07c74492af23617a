"""Text through the signaling server, for a node that cannot reach the text's own source.

The server is not trusted with it: which files, how large, and the hashes of what they hold come
from the run's manifest, so nothing of this works without one. May import: blocks, http, listing,
retry, limits, errors.
"""

from __future__ import annotations

import dataclasses
import threading
import time
import urllib.error
import urllib.parse
from collections.abc import Callable, Mapping
from typing import IO, TypeVar

from p2pnode.errors import DataError, SourceAwayError
from p2pnode.limits import LIMITS, Limits
from p2pnode.sources.blocks import Ranges
from p2pnode.sources.http import HttpFile, opener
from p2pnode.sources.listing import Listing, Skipped, is_local, list_files
from p2pnode.sources.retry import PATIENCE, Patience, Transient

T = TypeVar("T")

OWN_AGAIN_SECONDS = 600.0
"""After which a source that was given up for the server is tried again."""
_FEW_ATTEMPTS = 2
_SHORT_STALL = 10.0
"""Patience with a source in whose place there is another."""

_direct = opener(follows=False)


@dataclasses.dataclass(frozen=True)
class Offer:
    """What the server says that it serves: numbered sources, to whoever has the token."""

    address: str
    """Ends with a slash; a source's number and a file's name follow."""
    token: str
    sources: int


class DataProxy:
    """The server's offer at the moment. Thread-safe."""

    def __init__(self, say: Callable[[str], object] = lambda text: None) -> None:
        """`say` is told, in any thread, of what the owner shall read."""
        self.offer: Offer | None = None
        self.say = say


class ProxiedFile(HttpFile):
    """A file of one of the server's sources."""

    def __init__(self, proxy: DataProxy, source: int, name: str, patience: Patience) -> None:
        offer = _offered(proxy)
        super().__init__(f"{offer.address}{source}/{urllib.parse.quote(name)}", patience)
        self.name = f"{name} (through the signaling server)"
        self._opener = _direct
        self._proxy = proxy
        self._path = f"{source}/{urllib.parse.quote(name)}"

    def _asked(self) -> tuple[str, dict[str, str]]:
        """As the offer is now: a new connection to the server has a new token."""
        offer = self._proxy.offer
        if offer is None:
            raise Transient("there is no connection to the signaling server")
        return f"{offer.address}{self._path}", {"Authorization": f"Bearer {offer.token}"}

    def _refusal(self, error: urllib.error.HTTPError, redirected: bool) -> Exception:
        if error.code in (401, 403):
            return Transient(f"status {error.code}: the server knows this node no more")
        if error.code in (404, 410):
            return DataError(f"There is no {self.name}.")
        return super()._refusal(error, redirected)

    def _download(self) -> IO[bytes]:
        raise DataError(f"{self.name}: the server sends whole files, not the ranges asked for.")


class EitherFile:
    """A file by its own source, or through the server while that does not work. Not thread-safe."""

    def __init__(
        self, name: str, size: int | None, own: Callable[[], Ranges] | None, way: Way
    ) -> None:
        """`size`: bytes it must have, if that is known. `own` opens it where it comes from."""
        self.name = name
        self._wanted = size
        self._open_own = own
        self._way = way
        self._own: Ranges | None = None
        self._through: Ranges | None = None

    @property
    def size(self) -> int:
        return self._ask(lambda file: file.size)

    def read(self, start: int, length: int) -> bytes:
        return self._ask(lambda file: file.read(start, length))

    def _ask(self, question: Callable[[Ranges], T]) -> T:
        refused = self._way.refused
        if self._open_own is not None and self._way.own_counts():
            try:
                if self._own is None:
                    self._own = self._checked(self._open_own())
                answer = question(self._own)
            except DataError as error:
                self._own = None
                if self._way.proxy.offer is None:
                    raise
                refused = error
            else:
                self._way.own_answered()
                return answer
        try:
            if self._through is None:
                self._through = self._found()
            answer = question(self._through)
        except DataError as error:
            self._through = None
            self._way.try_own()
            if refused is None:
                raise
            # What one of the two may still bring is worth waiting for.
            away = isinstance(refused, SourceAwayError) or isinstance(error, SourceAwayError)
            kind = SourceAwayError if away else DataError
            raise kind(f"{refused} The signaling server does not help: {error}") from None
        self._way.went_through(refused)
        return answer

    def _checked(self, file: Ranges) -> Ranges:
        """Raises DataError for another file of this name, or a page that says why there is none,
        if there is a chance that the server has the right one."""
        if self._wanted is not None and self._way.proxy.offer is not None:
            size = file.size
            if size != self._wanted:
                raise DataError(f"{file.name} has {size} bytes; the run's has {self._wanted}.")
        return file

    def _found(self) -> Ranges:
        """The file in one of the server's sources. Raises DataError, SourceAwayError."""
        away: SourceAwayError | None = None
        for source in range(_offered(self._way.proxy).sources):
            try:
                file = ProxiedFile(self._way.proxy, source, self.name, self._way.patience)
                if self._wanted in (None, file.size):
                    return file
            except SourceAwayError as error:
                away = error
            except DataError:
                continue
        raise away or DataError(f"The signaling server serves no {self.name!a} of that size.")


class Way:
    """Which way one text's files come at the moment. Thread-safe."""

    def __init__(self, proxy: DataProxy, patience: Patience) -> None:
        self.proxy = proxy
        self.patience = patience
        self.refused: DataError | None = None
        """Why not even a list of the files can be had from their own source."""
        self._lock = threading.Lock()
        self._own_at = 0.0
        self._through = False

    def own_counts(self) -> bool:
        """Whether the text's own source is worth a try."""
        return self.proxy.offer is None or time.monotonic() >= self._own_at

    def try_own(self) -> None:
        """Try the own source next."""
        self._own_at = 0.0

    def own_answered(self) -> None:
        """The own source works."""
        if self._turned(through=False):
            self.proxy.say("The text's own source answers again.")

    def went_through(self, refused: DataError | None) -> None:
        """The server gave what the own source did not, if that was asked and is to blame."""
        if refused is not None:
            self._own_at = time.monotonic() + OWN_AGAIN_SECONDS
        if self._turned(through=True):
            why = refused or "There is no other source of the text here."
            self.proxy.say(
                f"{why} It is read through the signaling server instead, and checked as ever."
            )

    def _turned(self, *, through: bool) -> bool:
        """Note which way it is now; whether that is another than before."""
        with self._lock:
            before, self._through = self._through, through
        return before != through


@dataclasses.dataclass(frozen=True)
class EitherListing(Listing):
    """Files of which each comes by itself or through the server."""

    own: Listing | None
    sizes: Mapping[str, int | None]
    way: Way

    def ranges(self, path: str) -> Ranges:
        own = self.own
        known = own is not None and any(path == there for _, there in own.files)
        name = next(name for name, there in self.files if there == path)
        open_own = (lambda: own.ranges(path)) if own is not None and known else None
        return EitherFile(name, self.sizes.get(name), open_own, self.way)


def list_either(
    spec: str | None,
    sizes: Mapping[str, int | None],
    proxy: DataProxy,
    limits: Limits = LIMITS,
    patience: Patience = PATIENCE,
) -> Listing:
    """What `spec` names, as `list_files`, and what the server serves of it if that cannot be had.

    `sizes`: the files of the run's text, with their bytes if they are known. None for `spec`: this
    machine has no source of its own. Raises DataError, SourceAwayError.
    """
    way = Way(proxy, patience)
    own = None
    if spec is not None:
        try:
            own = list_files(spec, limits, _brief(patience) if proxy.offer else patience)
        except DataError as error:
            if proxy.offer is None or is_local(spec):
                raise
            way.refused = error
        else:
            if own.local:
                return own
    here = own.files if own is not None else ()
    names = {name for name, _ in here}
    lacking = [(name, name) for name in sizes if name not in names] if proxy.offer else []
    return EitherListing(
        own.spec if own is not None else spec or "the signaling server",
        tuple(sorted((*here, *lacking), key=lambda file: file[0].encode("utf-8"))),
        own.skipped if own is not None else Skipped(),
        False,
        None,
        patience,
        own,
        sizes,
        way,
    )


def _brief(patience: Patience) -> Patience:
    return dataclasses.replace(
        patience,
        attempts=min(patience.attempts, _FEW_ATTEMPTS),
        stall=min(patience.stall, _SHORT_STALL),
    )


def _offered(proxy: DataProxy) -> Offer:
    offer = proxy.offer
    if offer is None:
        raise SourceAwayError("The signaling server serves no text at the moment.")
    return offer

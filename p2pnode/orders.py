"""The room's chain of records at this node: taken from others, made by this owner, kept on disk.

May import: protocol, chain_file, ui.events, config, errors. Decides; the node carries out what
follows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from p2pnode.chain_file import ChainFile
from p2pnode.config import RunConfig
from p2pnode.errors import ConfigError, PeerError, UsageError
from p2pnode.protocol.chain import Chain, Record, Records, begin, decode_records, open_chain
from p2pnode.protocol.identity import Identity, PeerId
from p2pnode.ui.events import Event, Info, Warn


class Orders:
    """Which chain this node goes by."""

    def __init__(
        self,
        identity: Identity,
        room: bytes,
        file: ChainFile,
        members: Callable[[], tuple[Sequence[PeerId], Sequence[PeerId]]],
        show: Callable[[Event], None],
    ) -> None:
        """`members`: who may sign, in join order, and who could before it was removed."""
        self._identity = identity
        self._room = room
        self._file = file
        self._members = members
        self._show = show
        self.chain: Chain | None = None
        """None while this node knows of no run."""

    def begin(self, config: RunConfig, text: bytes, step: int | None) -> Chain:
        """Host: start a run. `step`: it goes on from a state of so many steps; then the saved
        chain still holds, unless it is another run's, or said to stop there."""
        saved = self.saved()
        chain = begin(self._identity, self._room, config, text)
        if saved is not None and step is not None and not saved.stopped and saved.text == text:
            chain = saved if saved.config.at(step) == config else chain
        return self._keep(chain)

    def saved(self) -> Chain | None:
        """What the states on this machine's disk were made under; None if that is not known."""
        raw = self._file.load()
        if raw is None:
            return None
        members, former = self._members()
        try:
            return open_chain(decode_records(raw), self._room, members, former)
        except (PeerError, ConfigError):  # damaged, as by a power cut, or of another room
            return None

    def hear(self, records: Records) -> Chain | None:
        """A member tells its chain. Returns it if it counts from now on, None if not. Raises
        PeerError for one that breaks a rule, ConfigError if it cannot be computed here."""
        members, former = self._members()
        chain = open_chain(records, self._room, members, former, self.chain)
        if self.chain is None:
            self._keep(chain)
            return chain
        if chain.shared(self.chain) == 0:
            raise ConfigError(
                "Another member trains another run in this room; it and this node go on apart. "
                "Start one of the two again to have them train together."
            )
        if not chain.beats(self.chain, members):
            return None
        self._keep(chain)
        return chain

    def change(self, after: int, steps: int | None, lr: float | None, warmup: int | None) -> Chain:
        """This owner's order: other settings after a step. Raises UsageError."""
        chain = self._own()
        try:
            config = chain.config.changed(after, steps=steps, lr=lr, warmup=warmup)
            return self._keep(chain.change(self._identity, after, config))
        except ConfigError as error:
            raise UsageError(f"These settings cannot be: {error}.") from None

    def stop(self, after: int) -> Chain:
        """This owner's order: the run ends after a step. Raises UsageError."""
        try:
            return self._keep(self._own().stop(self._identity, after))
        except ConfigError as error:
            raise UsageError(f"This cannot be ordered: {error}.") from None

    def rewind(self, step: int, state: bytes, culprits: Sequence[PeerId]) -> Chain | None:
        """Back to a state, without these peers; None if they are left out already. Raises
        UsageError."""
        chain = self._own()
        if set(culprits) <= set(chain.excluded):
            return None
        try:
            return self._keep(chain.rewind(self._identity, step, state, culprits))
        except (ConfigError, PeerError) as error:
            raise UsageError(f"The run cannot be taken back to step {step}: {error}.") from None

    def _own(self) -> Chain:
        if self.chain is None:
            raise UsageError("There is no run yet.")
        return self.chain

    def _keep(self, chain: Chain) -> Chain:
        self.chain = chain
        try:
            self._file.save(chain.encode())
        except OSError as error:
            self._show(
                Warn(
                    text=f"Cannot write {self._file.path} ({error.strerror}): after a restart this "
                    "node learns from the others what was ordered."
                )
            )
        return chain


def sentence(record: Record, chain: Chain, signer: str) -> Info:
    """What a record means to the owners; `signer`: a clean name."""
    step = record.step
    if record.kind == "change":
        config = chain.config
        text = (
            f"{signer} changed the settings: after step {step} the run goes on with "
            f"{config.steps} steps, learning rate {config.lr:g}, warm-up {config.warmup}."
        )
    elif record.kind == "stop":
        text = f"{signer} ends the run after step {step}."
    elif record.kind == "rewind":
        text = f"{signer} takes the run back to step {step}: wrong work came after it."
    else:
        text = f"{signer} started the run."
    return Info(text=text)

"""The chain of records: who may sign what, and which of two chains counts."""

from __future__ import annotations

import hashlib
import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pnode.config import RunConfig, RunOptions
from p2pnode.errors import ConfigError, PeerError
from p2pnode.protocol import chain as c
from p2pnode.protocol.chain import Chain, Record, SignedRecord, begin, decode_records, open_chain
from p2pnode.protocol.identity import Identity

HOST, FIRST, SECOND, STRANGER = (Identity(bytes([i]) * 32) for i in range(1, 5))
ORDER = tuple(who.peer_id for who in (HOST, FIRST, SECOND))
ROOM = b"r" * 32
STATE = b"s" * 32
CULPRIT = b"c" * 32


def run_config(**options: object) -> RunConfig:
    return RunOptions(preset="nano", steps=40, **options).config(  # type: ignore[arg-type]
        arithmetic_version=1, gates_digest="a" * 64, data="d" * 64
    )


START = begin(HOST, ROOM, run_config(), b"t" * 32)


def faster(chain: Chain, step: int, steps: int = 60, lr: float | None = None) -> RunConfig:
    return chain.config.changed(step, steps=steps, lr=lr, warmup=None)


def opened(chain: Chain, **options: object) -> Chain:
    return open_chain(decode_records(chain.encode()), ROOM, ORDER, **options)  # type: ignore[arg-type]


def forged(record: Record, signer: Identity) -> SignedRecord:
    raw = msgspec.msgpack.encode(record)
    return SignedRecord(raw, signer.sign(b"record", raw))


def test_a_chain_says_what_is_trained_and_how_far() -> None:
    assert (START.last_step, START.stopped, START.text) == (40, False, b"t" * 32)
    changed = START.change(HOST, 12, faster(START, 12))
    assert changed.config.steps == changed.last_step == 60
    assert changed.config.at(12) == START.config
    assert changed.config.at(13) == changed.config
    stopped = changed.stop(FIRST, 30)
    assert (stopped.last_step, stopped.stopped) == (30, True)
    assert stopped.config == changed.config, "a stop changes no setting"
    back = stopped.rewind(FIRST, 20, STATE, [CULPRIT])
    assert (back.excluded, back.last_step) == ((CULPRIT,), 30)
    again = back.change(HOST, 25, faster(back, 25, steps=80))
    assert (again.stopped, again.last_step, again.excluded) == (False, 80, (CULPRIT,))
    assert opened(again) == again
    assert len({START.tag, changed.tag, stopped.tag, back.tag, again.tag}) == 5


def test_the_same_start_is_the_same_chain() -> None:
    """A host that starts again with its own run carries on with it."""
    assert begin(HOST, ROOM, run_config(), b"t" * 32) == START


def test_a_run_is_named_by_its_settings_not_by_who_ordered_them() -> None:
    config = faster(START, 12)
    ways = [START.change(who, 12, config) for who in (HOST, FIRST)]
    ways.append(START.rewind(HOST, 3, STATE, [CULPRIT]).change(HOST, 12, config))
    assert len({way.config.run_id() for way in ways}) == 1
    assert START.change(HOST, 13, faster(START, 13)).config.run_id() != config.run_id()


GOOD = START.change(HOST, 12, faster(START, 12))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"room": b"q" * 32}, "does not follow"),
        ({"index": 2}, "does not follow"),
        ({"before": b"z" * 32}, "does not follow"),
        ({"kind": "start"}, "parts that are not its own"),
        ({"kind": "start", "config": b""}, "has no place"),
        ({"kind": "stop"}, "parts that are not its own"),
        ({"text": b"t"}, "parts that are not its own"),
        ({"state": STATE}, "does not have"),
        ({"step": 41}, "does not have"),
        ({"step": 13}, "can not change"),
        ({"kind": "rewind", "config": b"", "state": STATE}, "has no place"),
        ({"kind": "rewind", "config": b"", "excluded": (CULPRIT,)}, "does not have"),
    ],
)
def test_a_record_that_breaks_a_rule_is_refused(change: dict[str, object], said: str) -> None:
    record = msgspec.structs.replace(GOOD.newest, **change)
    with pytest.raises(PeerError, match=said):
        START.extended(forged(record, HOST))


@pytest.mark.parametrize(
    "change",
    [{"slots": 8}, {"seed": 1}, {"weight_decay": 0.2}, {"data": "e" * 64}, {"past": ()}],
)
def test_what_a_run_can_not_change(change: dict[str, object]) -> None:
    config = msgspec.structs.replace(GOOD.config, **change)
    record = msgspec.structs.replace(GOOD.newest, config=config.canonical())
    with pytest.raises(PeerError, match="can not change"):
        START.extended(forged(record, HOST))


def test_only_who_signed_a_record_counts() -> None:
    unsigned = SignedRecord(GOOD.signed[-1].record, bytes(64))
    with pytest.raises(PeerError, match="did not sign"):
        START.extended(unsigned)
    with pytest.raises(PeerError, match="did not sign"):
        START.extended(forged(GOOD.newest, FIRST))


def test_only_members_sign() -> None:
    other = START.stop(STRANGER, 3)
    with pytest.raises(PeerError, match="may not sign"):
        opened(other)
    assert opened(other, former=(STRANGER.peer_id,)) == other, "a newcomer reads what it signed"
    with pytest.raises(PeerError, match="may not sign"):
        opened(other, former=(STRANGER.peer_id,), known=START)
    later = other.stop(HOST, 2)
    assert opened(later, known=other) == later, "it was a member when this was taken"


def test_an_excluded_peer_signs_nothing_and_stays_excluded() -> None:
    back = START.rewind(HOST, 3, STATE, [FIRST.peer_id])
    with pytest.raises(PeerError, match="excluded"):
        back.stop(FIRST, 5)
    taken_back = msgspec.structs.replace(back.stop(HOST, 5).newest, excluded=())
    with pytest.raises(PeerError, match="takes an excluded peer back"):
        back.extended(forged(taken_back, HOST))


def test_a_chain_is_bounded() -> None:
    chain = START
    for _ in range(c.RECORDS - 1):
        chain = chain.stop(HOST, 3)
    with pytest.raises(ConfigError, match="open a new one"):
        chain.stop(HOST, 3)
    opened(chain)


def test_the_longest_chain_wins_not_the_highest_step() -> None:
    short = START.change(HOST, 39, faster(START, 39, steps=10_000))
    long = START.stop(SECOND, 2).stop(SECOND, 1)
    assert long.beats(short, ORDER)
    assert not short.beats(long, ORDER)


def test_of_equals_the_earlier_signer_wins() -> None:
    host, first = START.stop(HOST, 3), START.stop(FIRST, 30)
    assert host.beats(first, ORDER)
    assert not first.beats(host, ORDER)
    assert not host.beats(host, ORDER)
    later = first.stop(HOST, 2)
    assert later.beats(host, ORDER)
    assert host.stop(SECOND, 2).beats(later, ORDER), "where they part counts"


def test_chains_of_two_runs_do_not_beat_each_other() -> None:
    other = begin(HOST, ROOM, run_config(seed=1), b"").stop(HOST, 3)
    assert not other.beats(START, ORDER)
    assert not START.beats(other, ORDER)


def a_chain(moves: list[tuple[int, int, int]]) -> Chain:
    chain = START
    for who, what, at in moves:
        signer = (HOST, FIRST, SECOND)[who]
        step = min(at, chain.last_step)
        if what == 0:
            chain = chain.stop(signer, step)
        elif what == 1:
            chain = chain.rewind(signer, step, STATE, [bytes([len(chain.ids)]) * 32])
        else:
            new = chain.config.changed(
                max(step, 1), steps=200 + len(chain.ids), lr=None, warmup=None
            )
            if max(step, 1) <= chain.last_step:
                chain = chain.change(signer, max(step, 1), new)
    return chain


chains = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 40)), max_size=4)


@settings(max_examples=60)
@given(st.lists(chains, min_size=3, max_size=3))
def test_everybody_ends_with_the_same_chain(moves: list[list[tuple[int, int, int]]]) -> None:
    """In whatever order chains are met, one is left: the order is total."""
    found = [a_chain(each) for each in moves]
    winners = set()
    for order in itertools.permutations(found):
        held = order[0]
        for chain in order[1:]:
            held = chain if chain.beats(held, ORDER) else held
        winners.add(held.ids)
    assert len(winners) == 1
    for chain in found:
        assert opened(chain) == chain


def test_where_two_chains_part() -> None:
    host = START.change(HOST, 20, faster(START, 20))
    first = START.change(FIRST, 14, faster(START, 14)).stop(FIRST, 50)
    assert first.branch(START) == 14
    assert first.branch(host) == host.branch(first) == 14
    assert START.branch(START) == c.END
    back = host.rewind(HOST, 9, STATE, [CULPRIT])
    assert back.discarded_after(host) == 9
    assert back.discarded_after(back) == host.discarded_after(back) == c.END


@settings(max_examples=200)
@given(st.integers(0, 2), st.integers(0, 400), st.integers(0, 255))
def test_damaged_records_are_refused(which: int, place: int, byte: int) -> None:
    whole = START.change(HOST, 12, faster(START, 12)).stop(FIRST, 13)
    raw = bytearray(whole.signed[which].record)
    place %= len(raw)
    if raw[place] == byte:
        return
    raw[place] = byte
    signed = list(whole.signed)
    signed[which] = SignedRecord(bytes(raw), signed[which].signature)
    with pytest.raises(PeerError):
        open_chain(signed, ROOM, ORDER)


@given(st.binary(max_size=200))
def test_files_of_anything_are_refused(raw: bytes) -> None:
    with pytest.raises(PeerError):
        open_chain(decode_records(raw), ROOM, ORDER)


def test_ids_are_hashes_of_what_was_signed() -> None:
    assert GOOD.ids == tuple(hashlib.sha256(one.record).digest() for one in GOOD.signed)
    assert GOOD.newest.before == GOOD.ids[0]

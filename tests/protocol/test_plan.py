"""Dividing work: every slot once, in proportion to speed, kept where it is kept."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from p2pnode.protocol.plan import LIVES, RANKS, assign, assign_owners, divide, next_term

PEERS = tuple(bytes([i]) * 32 for i in range(8))


@given(st.integers(1, 200), st.lists(st.floats(0.01, 1000.0), min_size=1, max_size=8))
def test_divide_gives_away_everything_within_one_slot_of_the_share(
    count: int, weights: list[float]
) -> None:
    pieces = divide(range(count), weights)
    assert [slot for piece in pieces for slot in piece] == list(range(count))
    for piece, weight in zip(pieces, weights, strict=True):
        assert abs(len(piece) - count * weight / sum(weights)) < 1.0 + 1e-6


@given(
    st.integers(1, 64),
    st.integers(1, 8),
    st.lists(st.floats(0.0, 100.0), min_size=8, max_size=8),
    st.data(),
)
def test_every_slot_has_one_set_and_kept_sets_stay(
    slots: int, size: int, speeds: list[float], data: st.DataObject
) -> None:
    roster = PEERS[:size]
    chosen = data.draw(st.sets(st.integers(0, slots - 1), max_size=slots))
    holder = data.draw(st.sampled_from(PEERS))
    kept = {tuple(sorted(chosen)): (holder,)} if chosen else {}
    work = assign(roster, slots, dict(zip(PEERS, speeds, strict=True)), kept)
    assert sorted(slot for item in work for slot in item.slots) == list(range(slots))
    assert all(0 <= place < size for item in work for place in item.workers)
    if chosen and holder in roster:
        assert tuple(sorted(chosen)) in {item.slots for item in work}


def test_lost_slots_go_where_most_is_open() -> None:
    work = assign(PEERS[:3], 9, {}, {(0, 1, 2): (PEERS[0],), (3,): (PEERS[1],)})
    lengths = dict.fromkeys(range(3), 0)
    for item in work:
        lengths[item.workers[0]] += len(item.slots)
    assert lengths == {0: 3, 1: 3, 2: 3}


def test_who_lacks_the_text_gets_no_slots_unless_all_do() -> None:
    a, b, c = (bytes([i]) * 32 for i in range(3))
    work = assign([a, b, c], 9, {a: 1.0, b: 1.0, c: 1.0}, {}, {b})
    assert [item.workers for item in work] == [(0,), (2,)]
    assert sorted(slot for item in work for slot in item.slots) == list(range(9))
    work = assign([a, b, c], 9, {}, {}, {a, b, c})
    assert len(work) == 3


def test_unknown_speed_counts_as_the_mean() -> None:
    work = assign(PEERS[:3], 12, {PEERS[0]: 1.0, PEERS[1]: 3.0}, {})
    assert sorted(len(item.slots) for item in work) == [2, 4, 6]


def test_owners_stay_and_lost_shards_go_to_who_owns_least() -> None:
    before = (PEERS[0], PEERS[1], PEERS[2], PEERS[3])
    assert assign_owners(PEERS[:2], before, 4) == (0, 1, 0, 1)
    assert assign_owners((PEERS[3], PEERS[1]), before, 4) == (0, 1, 1, 0)
    assert assign_owners(PEERS[:3], (), 3) == (0, 1, 2)


RANK = st.integers(0, RANKS - 1)
BOOT = st.integers(0, 2**63 - 1)


@given(st.integers(0, 10_000_000), RANK, RANK, BOOT, BOOT)
def test_terms_rise_differ_and_favour_the_earlier(
    term: int, a: int, b: int, boot: int, other: int
) -> None:
    first, second = next_term(term, a, boot), next_term(term, b, other)
    assert first > term
    if a == b:
        assert (first == second) == (boot % LIVES == other % LIVES)
    if a < b:
        assert first > second

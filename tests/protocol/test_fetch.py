"""Fetching blobs by name: several donors, lost donors, lying donors."""

from __future__ import annotations

import random

import pytest

from p2pnode.errors import PeerError
from p2pnode.protocol.fetch import Blob, Fetcher, part_hashes, root_of
from p2pnode.protocol.messages import PART_BYTES, BlobIndex, BlobPart, BlobWant

RUN = b"r" * 16
A, B, C = (bytes([i]) * 32 for i in range(3))
CONTENT = random.Random(7).randbytes(5 * PART_BYTES + 1234)
BLOB = Blob(CONTENT, part_hashes(CONTENT))


def give(fetcher: Fetcher, donor: bytes, want: BlobWant, blob: Blob = BLOB) -> None:
    answer = blob.answer(RUN, want)
    assert answer is not None
    message, payload = answer
    if isinstance(message, BlobIndex):
        fetcher.index(donor, message, payload)
    elif isinstance(message, BlobPart):
        fetcher.part(donor, message, payload)


def started(*donors: bytes) -> Fetcher:
    fetcher = Fetcher(RUN, BLOB.root, 10_000_000)
    fetcher.set_donors(donors)
    ((donor, want),) = fetcher.requests(0.0)
    assert want.part == -1
    give(fetcher, donor, want)
    return fetcher


def test_a_blob_comes_from_all_donors_and_is_whole() -> None:
    fetcher = started(A, B, C)
    asked: set[bytes] = set()
    while not fetcher.done:
        for donor, want in fetcher.requests(0.0):
            asked.add(donor)
            give(fetcher, donor, want)
    assert asked == {A, B, C}
    assert fetcher.blob() == CONTENT
    assert fetcher.progress == (len(CONTENT), len(CONTENT))


def test_nothing_is_asked_twice_while_it_moves() -> None:
    fetcher = started(A)
    first = fetcher.requests(0.0)
    assert len(first) == 4
    for second in range(1, 60):
        fetcher.heard(A, float(second))
        assert fetcher.requests(float(second)) == []


def test_a_silent_donor_loses_its_requests_to_another() -> None:
    fetcher = started(A, B)
    parts = {want.part for donor, want in fetcher.requests(0.0) if donor == A}
    for _ in range(4):
        fetcher.heard(B, 1.9)
    again = fetcher.requests(2.5)
    assert parts <= {want.part for _, want in again}


def test_a_donor_that_dies_costs_only_its_parts() -> None:
    fetcher = started(A, B)
    requests = fetcher.requests(0.0)
    for donor, want in requests:
        if donor == B:
            give(fetcher, donor, want)
    fetcher.set_donors([B])
    while not fetcher.done:
        for donor, want in fetcher.requests(0.0):
            assert donor == B
            give(fetcher, donor, want)
    assert fetcher.blob() == CONTENT


def test_a_broken_link_frees_what_was_asked_over_it() -> None:
    fetcher = started(A)
    first = fetcher.requests(0.0)
    fetcher.forget_requests(A)
    assert fetcher.requests(0.0) == first


def test_wrong_bytes_are_refused_and_their_donor_is_not_asked_again() -> None:
    fetcher = started(A, B)
    bad = bytearray(CONTENT)
    bad[3] ^= 1
    wrong = Blob(bad, part_hashes(CONTENT))
    with pytest.raises(PeerError, match="not what its index promises"):
        give(fetcher, A, BlobWant(RUN, BLOB.root, 0), wrong)
    assert fetcher.donors == (B,)
    fetcher.set_donors([A, B])
    assert fetcher.donors == (B,)
    while not fetcher.done:
        for donor, want in fetcher.requests(0.0):
            give(fetcher, donor, want)
    assert fetcher.blob() == CONTENT


@pytest.mark.parametrize(
    ("size", "hashes"),
    [
        (len(CONTENT) + 1, part_hashes(CONTENT)),
        (len(CONTENT), part_hashes(CONTENT)[:-32]),
        (len(CONTENT), bytes(32) + part_hashes(CONTENT)[32:]),
        (0, b""),
    ],
)
def test_an_index_that_does_not_give_the_name_is_refused(size: int, hashes: bytes) -> None:
    fetcher = Fetcher(RUN, BLOB.root, 10_000_000)
    fetcher.set_donors([A])
    with pytest.raises(PeerError, match="does not match"):
        fetcher.index(A, BlobIndex(RUN, BLOB.root, size), hashes)
    assert not fetcher.done


def test_a_blob_larger_than_believed_is_refused() -> None:
    fetcher = Fetcher(RUN, BLOB.root, len(CONTENT) - 1)
    with pytest.raises(PeerError):
        fetcher.index(A, BlobIndex(RUN, BLOB.root, len(CONTENT)), part_hashes(CONTENT))


def test_unasked_parts_of_other_blobs_are_ignored() -> None:
    fetcher = started(A)
    other = Blob(b"other", part_hashes(b"other"))
    give(fetcher, A, BlobWant(RUN, other.root, 0), other)
    assert not fetcher.done


def test_a_part_that_does_not_exist_is_not_served() -> None:
    assert BLOB.answer(RUN, BlobWant(RUN, BLOB.root, 6)) is None
    with pytest.raises(ValueError, match="not complete"):
        Fetcher(RUN, BLOB.root, 1).blob()


def test_the_name_binds_size_and_parts() -> None:
    hashes = part_hashes(CONTENT)
    assert root_of(len(CONTENT), hashes) == BLOB.root
    assert root_of(len(CONTENT) - 1, hashes) != BLOB.root

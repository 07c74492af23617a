"""The identity file and what is derived from it."""

import hashlib
import os
import threading

import pytest

from p2pnode.errors import IdentityError
from p2pnode.protocol.identity import Identity, short_id, verify


def test_file_is_private_and_gives_the_same_key(tmp_path):
    path = tmp_path / "folder" / "identity"
    first, second = Identity.load_or_create(path), Identity.load_or_create(path)
    assert first.key == second.key
    assert first.relay_key == second.relay_key
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["identity"], "no left-overs"


def test_peer_id_is_the_hash_of_the_key():
    identity = Identity.ephemeral()
    assert identity.peer_id == hashlib.sha256(identity.key).digest()
    assert Identity.ephemeral().peer_id != identity.peer_id
    assert len(short_id(identity.peer_id)) == 9
    assert repr(identity) == f"Identity({short_id(identity.peer_id)})"


def test_file_open_to_others_is_refused(tmp_path):
    path = tmp_path / "identity"
    Identity.load_or_create(path)
    path.chmod(0o640)
    with pytest.raises(IdentityError, match="chmod 600"):
        Identity.load(path)


@pytest.mark.parametrize(
    "content", [b"", b"p2pnode identity 1\n12", b"\xff" * 80, b"x\n" + b"0" * 64]
)
def test_damaged_file_is_refused_and_kept(tmp_path, content):
    path = tmp_path / "identity"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(IdentityError, match="damaged"):
        Identity.load_or_create(path)
    assert path.read_bytes() == content


def test_missing_and_impossible_places(tmp_path):
    with pytest.raises(IdentityError, match="cannot be read"):
        Identity.load(tmp_path / "nothing")
    (tmp_path / "file").write_text("x")
    with pytest.raises(IdentityError, match="cannot be"):
        Identity.load_or_create(tmp_path / "file" / "identity")


def test_processes_that_create_at_once_agree(tmp_path):
    path = tmp_path / "identity"
    keys = []
    start = threading.Barrier(8)

    def create():
        start.wait()
        keys.append(Identity.load_or_create(path).key)

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys) == 8
    assert len(set(keys)) == 1


def test_foreign_file_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "identity"
    Identity.load_or_create(path)
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(IdentityError, match="another user"):
        Identity.load(path)


def test_signature_binds_key_label_and_parts():
    identity = Identity.ephemeral()
    signature = identity.sign(b"one", b"ab", b"c")
    assert verify(identity.key, signature, b"one", b"ab", b"c")
    assert not verify(identity.key, signature, b"two", b"ab", b"c")
    assert not verify(identity.key, signature, b"one", b"a", b"bc"), "parts must not run together"
    assert not verify(identity.key, signature, b"one", b"ab", b"c", b"")
    assert not verify(Identity.ephemeral().key, signature, b"one", b"ab", b"c")
    assert not verify(b"\xff" * 32, signature, b"one", b"ab", b"c")
    assert not verify(identity.key, signature[:-1], b"one", b"ab", b"c")


def test_relay_key_is_derived_and_no_second_use_of_the_signing_key():
    one, two = Identity.ephemeral(), Identity.ephemeral()
    assert one.relay_key == one.relay_private_key.public_key().public_bytes_raw()
    assert len({one.relay_key, two.relay_key, one.key, two.key}) == 4
    assert one.relay_private_key.private_bytes_raw() != one._seed

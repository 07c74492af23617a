"""A node's long-lived key: who it is, how it signs, and how relayed frames are keyed to it.

May import: errors, and `signaling.messages` for what signatures and peer ids are made of.
"""

from __future__ import annotations

import base64
import contextlib
import os
import secrets
import stat
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from p2pnode.errors import IdentityError
from signaling.messages import peer_id, signing_text

PeerId = bytes
"""SHA-256 of a node's Ed25519 public key, 32 bytes."""

_HEADER = "p2pnode identity 1"


class Identity:
    """The secret half. Made by `ephemeral`, `load` or `load_or_create`."""

    def __init__(self, seed: bytes) -> None:
        """`seed`: 32 secret bytes, the Ed25519 private key; the relay key is derived from it."""
        self._seed = seed
        self._signing = Ed25519PrivateKey.from_private_bytes(seed)
        relay_seed = HKDF(hashes.SHA256(), 32, None, b"p2pnode/1 relay key").derive(seed)
        self.relay_private_key = X25519PrivateKey.from_private_bytes(relay_seed)
        self.key = self._signing.public_key().public_bytes_raw()
        """Ed25519 public key, 32 bytes."""
        self.relay_key = self.relay_private_key.public_key().public_bytes_raw()
        """X25519 public key, 32 bytes; others learn it from the host-signed roster."""
        self.peer_id: PeerId = peer_id(self.key)

    def __repr__(self) -> str:
        return f"Identity({short_id(self.peer_id)})"

    @classmethod
    def ephemeral(cls) -> Identity:
        """A fresh key that is kept nowhere."""
        return cls(secrets.token_bytes(32))

    @classmethod
    def load(cls, path: Path) -> Identity:
        """Read a key file. Raises IdentityError if it is missing, damaged or open to others."""
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                raw = file.read(1024)
        except OSError as error:
            raise IdentityError(
                f"The identity file {path} cannot be read ({error.strerror})."
            ) from None
        if os.name == "posix":
            _check_private(path, status)
        header, _, rest = raw.decode("ascii", "replace").partition("\n")
        try:
            seed = bytes.fromhex(rest)
        except ValueError:
            seed = b""
        if header != _HEADER or len(seed) != 32:
            raise IdentityError(
                f"{path} is not an identity file of this program, or it is damaged. Restore it "
                "from a copy; or remove it to get a new identity, which hosts must approve anew."
            )
        return cls(seed)

    @classmethod
    def load_or_create(cls, path: Path) -> Identity:
        """Read the key file, or make one (mode 0600). Raises IdentityError."""
        if not path.exists():
            identity = cls.ephemeral()
            try:
                identity._create(path)
            except FileExistsError:
                pass  # another process was faster; its key is the one to use
            except OSError as error:
                raise IdentityError(
                    f"The identity file {path} cannot be made ({error.strerror}). Choose another "
                    "place for it."
                ) from None
        return cls.load(path)

    def _create(self, path: Path) -> None:
        """Write the key so that the file appears whole or not at all, and never replaces one."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.new")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                file.write(f"{_HEADER}\n{self._seed.hex()}\n")
                file.flush()
                os.fsync(file.fileno())
            os.link(temporary, path)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()

    def sign(self, label: bytes, *parts: bytes) -> bytes:
        """Ed25519 signature (64 bytes) over label and parts; see `verify`."""
        return self._signing.sign(signing_text(label, *parts))


def _check_private(path: Path, status: os.stat_result) -> None:
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise IdentityError(
            f"The identity file {path} can be read or changed by other users (mode {mode:04o}). "
            f"If nobody has copied it, run: chmod 600 {path}"
        )
    if status.st_uid != os.geteuid():
        raise IdentityError(
            f"The identity file {path} belongs to another user. Choose another place for yours."
        )


def verify(key: bytes, signature: bytes, label: bytes, *parts: bytes) -> bool:
    """Whether `signature` was made by the owner of `key` (Ed25519, 32 bytes) over label, parts."""
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, signing_text(label, *parts))
    except (InvalidSignature, ValueError):
        return False
    return True


def short_id(peer: PeerId) -> str:
    """The printable form of a peer id: 40 bits as two groups of four letters and digits."""
    text = base64.b32encode(peer[:5]).decode("ascii").lower()
    return f"{text[:4]}-{text[4:]}"

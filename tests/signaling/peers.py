"""What a node says to the server, made by hand, for tests of the server alone."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from p2pnode.protocol.identity import Identity
from p2pnode.protocol.roster import Member, sign_roster
from signaling.messages import (
    PROTOCOL,
    Register,
    RosterClaim,
    SignedRoster,
    encode,
    registration_parts,
)

ROOM = b"r" * 32


def member(identity):
    return Member(identity.key, identity.relay_key, "name")


def roster(host, *others, epoch=1, room=ROOM):
    """Signed public half of a roster: `host` first, then `others` (identities)."""
    members = tuple(member(identity) for identity in (host, *others))
    return sign_roster(host, room, epoch, members).signed


def signed(host, *, members):
    """A signed claim that our own code would not make: any member ids."""
    claim = encode(RosterClaim(ROOM, 1, host.key, members, (), bytes(32)))
    return encode(SignedRoster(claim, host.sign(b"roster", claim)))


def register(identity, nonce, *, want="any", room=ROOM, blob=None, protocol=PROTOCOL, signer=None):
    signature = (signer or identity).sign(b"register", *registration_parts(nonce, room))
    return Register(protocol, room, identity.key, signature, want, blob)


def identities(count):
    return [Identity.ephemeral() for _ in range(count)]


def self_signed(folder: Path) -> tuple[Path, Path]:
    """Files with a certificate for 127.0.0.1, signed by itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False
        )
        .sign(key, hashes.SHA256())
    )
    chain, private = folder / "chain.pem", folder / "key.pem"
    chain.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return chain, private

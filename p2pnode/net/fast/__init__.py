"""The fast path of a data channel: SCTP's DATA and SACK in batches, behind aiortc's own connection.

aiortc keeps the session description, ICE, the DTLS handshake and every rare SCTP chunk. On the wire
it stays RFC 9260 over RFC 8261. packets, congestion, sending, receiving and association are sans-IO
and import nothing but the standard library and google_crc32c; records and datagrams are adapters
for OpenSSL and sockets; sctp, dtls and connection put them inside aiortc's classes.
"""

"""What touches the network: the mesh of WebRTC links and the signaling client.

The only package that imports aiortc and aioice. May import: protocol, limits, errors.
"""

"""What the command line says of text to serve: which sources, how much.

May import: folder, sources, web, limits, messages.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from pathlib import Path

from signaling.data.folder import Folder
from signaling.data.sources import Source
from signaling.data.web import Web, redirect_host, web_url
from signaling.limits import LIMITS, Limits
from signaling.messages import MAX_SOURCES

_MIB = 1024 * 1024
_LEAST_MIB = 32
"""A few of the largest requests."""
_MOST_MIB = 2**24


def add_options(serve: argparse.ArgumentParser) -> None:
    """The options of `serve` that are about text."""
    data = serve.add_argument_group(
        "text for nodes that reach only this server (off by default; see docs/OPERATIONS.md)"
    )
    data.add_argument(
        "--data-proxy",
        type=_checked(_source),
        action="append",
        default=[],
        metavar="SOURCE",
        help="let approved members read these files through this server, by ranges: a folder or a "
        "file here, or https://HOST/FOLDER/ (with the slash) or https://HOST/FILE; may be repeated",
    )
    data.add_argument(
        "--data-proxy-redirect",
        type=_checked(redirect_host),
        action="append",
        default=[],
        metavar="HOST[:PORT]",
        help="such sources may redirect there (port 443 if none is said), and to themselves; "
        "nowhere else; may be repeated",
    )
    data.add_argument(
        "--data-proxy-cache",
        type=_mebibytes,
        default=LIMITS.data_cache_bytes,
        metavar="MIB",
        help=f"memory for text that was read (default: {LIMITS.data_cache_bytes // _MIB})",
    )
    data.add_argument(
        "--data-proxy-hourly",
        type=_mebibytes,
        default=LIMITS.data_hour_bytes,
        metavar="MIB",
        help="most text served in any hour, to everyone together "
        f"(default: {LIMITS.data_hour_bytes // _MIB})",
    )


def check_options(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Refuse what makes no sense together: ends the program with a sentence."""
    if options.data_proxy_redirect and not any(map(_is_web, options.data_proxy)):
        parser.error("--data-proxy-redirect is of use beside a --data-proxy on the web only")
    if len(options.data_proxy) > MAX_SOURCES:
        parser.error(f"--data-proxy may be given {MAX_SOURCES} times at most")


def limits_of(options: argparse.Namespace) -> Limits:
    """The server's limits with those that the operator chose."""
    return dataclasses.replace(
        LIMITS,
        data_cache_bytes=options.data_proxy_cache,
        data_hour_bytes=options.data_proxy_hourly,
    )


def sources_of(options: argparse.Namespace, limits: Limits) -> list[Source]:
    """What the operator named, ready to be read."""
    redirects = [redirect_host(text) for text in options.data_proxy_redirect]
    return [
        Web(web_url(text), redirects, limits=limits) if _is_web(text) else Folder(Path(text))
        for text in options.data_proxy
    ]


def _checked(read: Callable[[str], object]) -> Callable[[str], str]:
    """The text itself, if `read` takes it."""

    def check(text: str) -> str:
        try:
            read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return text

    return check


def _source(text: str) -> object:
    if _is_web(text):
        return web_url(text)
    if "://" in text:
        raise ValueError(f"{text!r}: folders, files, http:// and https:// can be served")
    return Folder(Path(text))


def _is_web(text: str) -> bool:
    return text.lower().startswith(("http://", "https://"))


def _mebibytes(text: str) -> int:
    """Bytes from a number of MiB."""
    if not (text.isdecimal() and len(text) < 10 and _LEAST_MIB <= int(text) <= _MOST_MIB):
        raise argparse.ArgumentTypeError(
            f"{text[:20]!r} is no number of MiB between {_LEAST_MIB} and {_MOST_MIB}"
        )
    return int(text) * _MIB

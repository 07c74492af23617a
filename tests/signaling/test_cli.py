"""`python -m signaling serve` as a process."""

import asyncio
import contextlib
import errno
import os
import pathlib
import re
import resource
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time

import pytest
from aiohttp import ClientSession, WSCloseCode, WSMsgType

import signaling
from signaling import cli
from signaling.app import SignalingServer
from signaling.messages import Group, Nearby, decode_from_server, encode
from tests.signaling.peers import self_signed

SOON = 20.0


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "signaling", *arguments],
        capture_output=True,
        text=True,
        timeout=SOON,
        check=False,
    )


@contextlib.contextmanager
def serving(*arguments):
    serve = (sys.executable, "-m", "signaling", "serve", "--host", "127.0.0.1", "--port", "0")
    with subprocess.Popen(
        [*serve, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as started:
        try:
            yield started
        finally:
            started.kill()


@pytest.fixture
def process():
    with serving() as started:
        yield started


def port_of(process):
    line = process.stdout.readline()
    assert line.startswith("Listening on 127.0.0.1, port "), line
    port = int(re.search(r"port (\d+)", line)[1])
    assert f"http://127.0.0.1:{port}" in process.stdout.readline()
    return port


async def _again_and_again(process, stop):
    """Impatience, which changes nothing: also while the interpreter ends."""
    while process.poll() is None:
        process.send_signal(stop)
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_signal_ends_it_cleanly_with_nodes_connected(process, stop):
    port = port_of(process)
    async with ClientSession() as http:
        sockets = [await http.ws_connect(f"http://127.0.0.1:{port}/ws") for _ in range(3)]
        process.send_signal(stop)
        impatient = asyncio.create_task(_again_and_again(process, stop))
        for ws in sockets:
            while (await ws.receive(SOON)).type is not WSMsgType.CLOSE:
                pass
            assert ws.close_code == WSCloseCode.GOING_AWAY
    await impatient
    out, err = process.communicate(timeout=SOON)
    assert process.returncode == 0
    assert err == ""
    assert out == "Stopping.\n"


def test_nohup_outlives_its_terminal():
    serve = (sys.executable, "-m", "signaling", "serve", "--host", "127.0.0.1", "--port", "0")
    ignoring = ("sh", "-c", 'trap "" HUP; exec "$@"', "sh", *serve)
    with subprocess.Popen(ignoring, stdout=subprocess.PIPE, text=True) as process:
        try:
            port = port_of(process)
            process.send_signal(signal.SIGHUP)
            time.sleep(1.0)  # one that heeds it has ended by then
            with socket.create_connection(("127.0.0.1", port)) as still:
                still.sendall(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
                assert still.recv(12) == b"HTTP/1.1 200"
            process.terminate()
            assert process.wait(SOON) == 0
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tls-cert", "a.pem"], "go together"),
        (["--data-proxy", "/nowhere/at/all"], "no file or folder"),
        (["--data-proxy", "https://me:word@h/a/"], "user name"),
        (["--data-proxy", "s3://bucket/a"], "can be served"),
        (["--data-proxy", ".", "--data-proxy-redirect", "h"], "on the web only"),
        (["--data-proxy", ".", "--data-proxy-cache", "31"], "between 32 and"),
        (["--data-proxy", ".", "--data-proxy-hourly", "all"], "between 32 and"),
        (["--data-proxy", "https://h/a/", "--data-proxy-redirect", "http://x"], "no host name"),
        (["--data-proxy", "."] * 17, "16 times at most"),
        (["--trusted-proxy", "10.0.0.1/8"], "no address range"),
    ],
)
def test_flags_that_make_no_sense(arguments, said, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["serve", *arguments])
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err


def test_text_to_serve_is_named_at_the_start(tmp_path):
    arguments = ("--data-proxy", str(tmp_path), "--data-proxy", "https://example.org/texts/")
    more = ("--data-proxy-redirect", "cdn.example.org", "--data-proxy-hourly", "100")
    with serving(*arguments, *more) as process:
        process.stdout.readline()
        line = process.stdout.readline()
        assert f"through this server: {tmp_path}, https://example.org/texts/." in line


def test_certificate_of_no_use_is_a_sentence(tmp_path, capsys):
    missing = str(tmp_path / "missing.pem")
    assert cli.main(["serve", "--tls-cert", missing, "--tls-key", missing]) == 2
    assert capsys.readouterr().err == f"Cannot read {missing} (No such file or directory).\n"


async def test_tls_proxies_and_private_groups_reach_the_server(tmp_path):
    chain, key = self_signed(tmp_path)
    with serving(
        *("--tls-cert", str(chain), "--tls-key", str(key), "--group-private"),
        *("--trusted-proxy", "127.0.0.1", "--trusted-proxy", "fd00::/8"),
    ) as process:
        process.stdout.readline()
        assert "warning: --group-private" in process.stdout.readline()
        url = re.search(r"https://127.0.0.1:\d+", process.stdout.readline())[0]
        trusting = ssl.create_default_context(cafile=str(chain))
        headers = {"X-Forwarded-For": "192.168.1.5, fd00::1"}
        async with ClientSession(headers=headers) as http:
            ws = await http.ws_connect(f"{url}/ws", ssl=trusting)
            await ws.receive(SOON)
            await ws.send_bytes(encode(Nearby(b"r" * 32)))
            answer = decode_from_server((await ws.receive(SOON)).data)
            assert answer == Group(b"r" * 32)


@pytest.mark.parametrize("hard", [4096, None])
def test_server_may_open_as_many_files_as_the_system_lets_it(hard, monkeypatch):
    hard = resource.RLIM_INFINITY if hard is None else hard
    asked = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    cli._allow_many_files()
    assert asked == [(4096 if hard == 4096 else cli._FILES, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: (2**20, 2**20))
    cli._allow_many_files()
    assert len(asked) == 1, "never fewer than there are"


def test_taken_port_is_a_sentence_and_an_exit_code():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("serve", "--host", "127.0.0.1", "--port", str(port))
    assert done.returncode == 11
    assert f"port {port}" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (errno.EADDRNOTAVAIL, "198.51.100.7 is no address of this machine"),
        (errno.EACCES, "may not listen on port 80"),
        (errno.EADDRINUSE, "Another program may use the port"),
    ],
)
def test_what_keeps_a_server_from_listening_is_told(reason, words):
    server = SignalingServer("198.51.100.7", 80)
    assert words in server._bind_text("TCP", OSError(reason, os.strerror(reason)))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--port", "65536"], "'65536' is not a port"),
        (["--port", "-1"], "'-1' is not a port"),
        (["--port", "x"], "'x' is not a port"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_wrong_usage(arguments, words, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["serve", *arguments])
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert "usage:" in said
    assert words in said


@pytest.mark.parametrize("arguments", [["--help"], ["serve", "--help"]])
def test_help_teaches(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    for taught in ("serve --port 9000", "--signal http://", "Exit codes", "STUN"):
        assert taught in text


def test_page_is_found_where_a_wheel_puts_it(tmp_path):
    """Installed, `static` lies inside the package; in a checkout, beside it."""
    root = pathlib.Path(signaling.__file__).parent
    shutil.copytree(root, tmp_path / "signaling")
    shutil.copytree(root.parent / "static", tmp_path / "signaling" / "static")
    code = "from signaling.page import static_folder; print(static_folder())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=SOON,
        check=True,
        cwd=tmp_path,
    )
    assert pathlib.Path(done.stdout.strip()) == tmp_path / "signaling" / "static"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--turn", "turn:h"), "go together"),
        (("--turn-secret", "FILE"), "go together"),
        (("--turn", "stun:h", "--turn-secret", "FILE"), "write turn:HOST:PORT"),
        (("--turn", "turn:h", "--turn-secret", "missing"), "cannot read the secret"),
        (("--turn", "turn:h", "--turn-secret", "SHORT"), "at least 16 characters"),
    ],
)
def test_turn_options_that_cannot_be_used(tmp_path, arguments, says):
    (tmp_path / "FILE").write_text("a long enough secret\n")
    (tmp_path / "SHORT").write_text("short\n")
    names = {name: str(tmp_path / name) for name in ("FILE", "SHORT", "missing")}
    result = run("serve", *(names.get(argument, argument) for argument in arguments))
    assert result.returncode == cli.EXIT_USAGE
    assert says in result.stderr
    assert "Traceback" not in result.stderr

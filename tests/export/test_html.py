"""The page in headless Chromium: the bits of the decoder, the tokens of `generate`, no network."""

from __future__ import annotations

import re

import numpy as np
import pytest
import pytest_asyncio
from aiohttp import web

from p2pnode.export import html
from p2pnode.train.arithmetic import kernels
from p2pnode.train.decoder import Decoder
from p2pnode.train.generate import generate
from p2pnode.train.weights import Weights
from tests.export.browser import PROGRAM, browser
from tests.train.helpers import picked_tokens

if PROGRAM is None:
    pytest.skip("Chromium is not installed (apt-get install chromium)", allow_module_level=True)

PROMPTS = [
    "",
    "The ",
    "the mill's   wheels\n\n they'll turn 1,024 times\t…  ",
    "Grüße, Ελλάδα, 漢字 \U0001f469\u200d\U0001f680 e\u0301 \u0085\ufeff\u00a0x <|endoftext|>",
]


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chromium():
    async with browser() as page:
        yield page


@pytest.fixture
def opened(chromium, tmp_path):
    """Exports a model and opens the page."""

    async def opened(trained):
        path = tmp_path / "m.html"
        html.export(trained, path, force=True)
        await chromium.open(path.as_uri())
        return chromium

    return opened


def logits_after(trained, ids):
    model = trained.state.config.model
    decoder = Decoder(Weights(kernels.load(reference=True), model, trained.state.weights))
    return np.stack([decoder.feed(i) for i in ids])


async def test_its_logits_have_the_bits_of_ours(make, opened):
    """Every position of a text that is longer than the cache."""
    trained = make(shape="nano")
    seq_len = trained.state.config.model.seq_len
    ids = np.random.default_rng(1).integers(0, 256, seq_len + 9).tolist()
    page = await opened(trained)
    bits = await page.evaluate(
        "(() => { const d = new Decoder(page.shape, weights);"
        f"return {ids}.map((id) => Array.from(d.feed(id), floatBits)); }})()"
    )
    ours = logits_after(trained, ids).view(np.int32)
    assert np.array_equal(np.array(bits, np.int32), ours)


async def test_its_exp_is_ours(make, opened):
    rng = np.random.default_rng(2)
    x = np.concatenate(
        [
            rng.uniform(-90, 90, 3_000),
            rng.standard_normal(500) * 1e-3,
            [0.0, -0.0, 1e-45, -1e-45, np.inf, -np.inf, -87.33654, 88.37626, 3e38, -3e38],
        ]
    ).astype(np.float32)
    page = await opened(make())
    bits = await page.evaluate(
        f"{x.view(np.int32).tolist()}.map((b) => floatBits(exp(bitsFloat(b))))"
    )
    ours = kernels.load(reference=True).exp(x).view(np.int32)
    assert np.array_equal(np.array(bits, np.int32), ours)


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
async def test_it_reads_text_as_the_tokenizer_does(make, opened, kind):
    trained = make(kind)
    page = await opened(trained)
    for prompt in PROMPTS:
        ids = await page.evaluate(f"tokenizer.encode({as_script(prompt)})")
        assert ids == trained.tokenizer.encode(prompt).tolist(), prompt
        back = await page.evaluate(f"{ids}.flatMap((i) => Array.from(tokenizer.decode(i)))")
        assert bytes(back) == trained.tokenizer.decode(ids)
    assert (
        await page.evaluate(r"tokenizer.encode('a\ud800b')")
        == trained.tokenizer.encode("a\ud800b").tolist()
    )


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "seed"),
    [(0.8, 40, 1.0, 0), (0, 0, 1.0, 1), (1.5, 0, 0.7, 2**62 + 3), (0.3, 5, 0.31, 7)],
)
async def test_it_draws_the_tokens_of_generate(
    make, opened, kind, temperature, top_k, top_p, seed, monkeypatch
):
    trained = make(kind)
    picked = picked_tokens(monkeypatch)
    for prompt in PROMPTS[1:3]:
        picked.clear()
        list(
            generate(
                trained.state,
                trained.tokenizer,
                prompt,
                max_new=40,
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                seed=seed,
                reference=True,
            )
        )
        ours = [token for token in picked if token != trained.tokenizer.separator]
        page = await opened(trained)
        theirs = await page.evaluate(
            f"[...generate({as_script(prompt)}, 40, {{temperature: {temperature}, "
            f"topK: {top_k}, topP: {top_p}, seed: {seed}n}})].filter((id) => id !== null)"
        )
        assert theirs == ours


async def test_the_form_gives_the_text_of_generate_and_asks_no_network(make, opened):
    trained = make("bpe")
    text = "".join(
        generate(trained.state, trained.tokenizer, "the mill", max_new=30, seed=5, reference=True)
    )
    page = await opened(trained)
    await page.evaluate(
        "form.elements.prompt.value = 'the mill'; form.elements.count.value = 30;"
        "form.elements.seed.value = 5; form.elements.go.click(); "
        "new Promise((done) => { const look = () => stopped ? done() : setTimeout(look, 20);"
        "look(); })"
    )
    shown = await page.evaluate("output.textContent")
    told = await page.evaluate("note.textContent")
    # The terminal's form replaces what could steer a terminal; the page shows it.
    assert re.sub(r"[^\x20-\x7e\n]", "", shown) == re.sub(r"[^\x20-\x7e\n]", "", "the mill" + text)
    assert re.fullmatch(r"\d+ tokens in [\d.]+ s", told)
    others = [url for url in page.requests if not url.startswith(("file:", "data:"))]
    assert others == []


async def test_its_policy_stops_whatever_would_ask(make, opened, tmp_path):
    """A server that would answer, and every way to ask it."""
    asked = []

    async def answer(request):
        asked.append(request.path)
        return web.Response(text="", headers={"Access-Control-Allow-Origin": "*"})

    app = web.Application()
    app.router.add_get("/{name}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server = f"http://127.0.0.1:{runner.addresses[0][1]}"
    tries = (
        f"fetch('{server}/fetch').then(() => 'asked', () => 'refused')",
        f"new Promise((d) => {{ const i = new Image(); i.onerror = () => d('refused');"
        f"i.onload = () => d('asked'); i.src = '{server}/image'; }})",
        f"new Promise((d) => {{ const s = document.createElement('script');"
        f"s.onerror = () => d('refused'); s.onload = () => d('asked'); s.src = '{server}/script';"
        "document.body.append(s); })",
    )
    try:
        page = await opened(make())
        assert [await page.evaluate(one) for one in tries] == ["refused"] * 3
        assert asked == []
        # The same questions from a page without a policy do arrive: the test can fail.
        free = tmp_path / "free.html"
        free.write_text("<!doctype html><p>free</p>")
        await page.open(free.as_uri())
        assert await page.evaluate(tries[0]) == "asked"
        assert asked == ["/fetch"]
    finally:
        await runner.cleanup()


async def test_weights_that_give_no_numbers_are_a_sentence(make, opened):
    trained = make()
    trained.state.layout.views(trained.state.weights)["norm"][:] = 3e38
    page = await opened(trained)
    said = await page.evaluate(
        "try { [...generate('x', 3, {temperature: 1, topK: 0, topP: 1, seed: 0n})]; 'fine' }"
        "catch (error) { error.message }"
    )
    assert "not finite" in said


def as_script(text):
    """A text as a string of JavaScript."""
    return '"' + "".join(f"\\u{u:04x}" for u in units(text)) + '"'


def units(text):
    raw = text.encode("utf-16-le", "surrogatepass")
    return [int.from_bytes(raw[i : i + 2], "little") for i in range(0, len(raw), 2)]

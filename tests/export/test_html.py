"""The page in headless Chromium: the bits of the decoder, the tokens of `generate`, no network."""

from __future__ import annotations

import re

import msgspec
import numpy as np
import pytest
import pytest_asyncio
from aiohttp import web

from p2pnode.export import html
from p2pnode.train.arithmetic import kernels
from p2pnode.train.decoder import Decoder
from p2pnode.train.generate import generate
from p2pnode.train.sampler import WEIGHT_ONE, Sampler
from p2pnode.train.tokenizer import byte_tokenizer, from_json
from p2pnode.train.weights import Weights
from tests.export.browser import PROGRAM, browser
from tests.train.tokenizers import TEXT, bpe

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


@pytest.mark.parametrize("shape", ["micro", "nano"])  # of 8 and 16 channels a head
async def test_its_logits_have_the_bits_of_ours(make, opened, shape):
    """Every position of a text that is longer than the cache: a lost rounding shows in few."""
    trained = make(shape=shape)
    seq_len = trained.state.config.model.seq_len
    ids = np.random.default_rng(1).integers(0, 256, max(100, seq_len + 9)).tolist()
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


SPOKEN = "In 1,024 of 2026 years aaaaa baaaad!!! hmmmm it's they'll   ok...\n\n\n"


async def test_it_reads_text_as_the_tokenizer_does(make, opened):
    page = await opened(make())
    for tokenizer in (byte_tokenizer(), from_json(bpe(700, [*TEXT, *[SPOKEN] * 20]))):
        facts = msgspec.json.encode(html._vocabulary(tokenizer)).decode()
        await page.evaluate(f"globalThis.other = new Tokenizer({facts}); 0")
        for prompt in [*PROMPTS, SPOKEN, "aaa aaaa !!!! 7  8   9", "".join(TEXT[:3])]:
            ids = await page.evaluate(f"other.encode({as_script(prompt)})")
            assert ids == tokenizer.encode(prompt).tolist(), prompt
            back = await page.evaluate(f"{ids}.flatMap((i) => Array.from(other.decode(i)))")
            assert bytes(back) == tokenizer.decode(ids)
        half = await page.evaluate(r"other.encode('a\ud800b')")
        assert half == tokenizer.encode("a\ud800b").tolist()


async def test_it_draws_from_any_logits_as_the_sampler_does(make, opened, monkeypatch):
    """Ties, tokens that weigh nothing, and a draw that lies on the border between two tokens."""
    page = await opened(make())
    ops = kernels.load(reference=True)
    rng = np.random.default_rng(3)
    for temperature, top_k, top_p, seed in ((0.7, 0, 1.0, 4), (1.0, 7, 0.8, 5), (1e-3, 0, 1.0, 6)):
        logits = (rng.integers(-40, 40, 256) / 8).astype(np.float32) + np.float32(1e-3)
        ours = Sampler(ops, temperature, top_k, top_p, seed)
        options = f"{{temperature: {temperature}, topK: {top_k}, topP: {top_p}, seed: {seed}n}}"
        await page.evaluate(
            f"globalThis.logits = Float32Array.from({logits.view(np.int32).tolist()}, bitsFloat);"
            f"globalThis.sampler = new Sampler({options}); 0"
        )
        drawn = await page.evaluate("Array.from({length: 60}, (_, i) => sampler.pick(logits, i))")
        assert drawn == [ours.pick(logits, i) for i in range(60)]
        order = np.argsort(-logits, kind="stable")
        lowered = (logits[order] - logits[order[0]]) / np.float32(temperature)
        weights = (ops.exp(lowered) * np.float32(WEIGHT_ONE)).astype(np.int64)
        assert await page.evaluate(f"sampler.weights(logits, {order.tolist()})") == weights.tolist()
    monkeypatch.setattr(kernels, "random_u64", lambda *_: np.array([1 << 63], np.uint64))
    border = "Object.assign(new Sampler({temperature: 1, topK: 2, topP: 1, seed: 0n}),"
    border += "{random: () => 1n << 63n}).pick(new Float32Array(256), 0)"
    assert await page.evaluate(border) == 1
    assert Sampler(ops, 1.0, 2, 1.0, 0).pick(np.zeros(256, np.float32), 0) == 1


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "seed"),
    [(0.8, 40, 1.0, 0), (0, 0, 1.0, 1), (1.5, 0, 0.7, 2**62 + 3), (0.3, 5, 0.31, 7)],
)
async def test_it_draws_the_tokens_of_generate(
    make, opened, kind, temperature, top_k, top_p, seed, monkeypatch
):
    trained = make(kind)
    picked = []
    pick = Sampler.pick

    def noted(self, logits, position):
        picked.append(pick(self, logits, position))
        return picked[-1]

    monkeypatch.setattr(Sampler, "pick", noted)
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

"""llama.cpp itself on our GGUF file. Collected only where its Python package is installed."""

from __future__ import annotations

import math

import numpy as np
import pytest
import xllamacpp

from p2pnode.export import gguf
from p2pnode.train import float_model
from p2pnode.train.generate import prompt_ids

TOLERANCE = 1e-4
"""Nats by which the logarithm of a probability may differ."""


def ask(path, prompt):
    """The likeliest tokens after a prompt: id to log probability; and how long the prompt is."""
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.warmup, params.verbosity = 256, False, 0
    params.cpuparams.n_threads = 1
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    server = xllamacpp.Server(params)
    answer = server.handle_completions(
        {"prompt": prompt, "n_predict": 1, "temperature": 0, "n_probs": 50, "ignore_eos": True}
    )
    (first,) = answer["choices"][0]["logprobs"]["content"]
    found = {t["id"]: t["logprob"] for t in first["top_logprobs"]}
    return found, answer["usage"]["prompt_tokens"]


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_it_computes_our_float_model(make, tmp_path, kind):
    trained = make(kind, seed=3)  # whose likeliest byte is a whole character: others are not told
    gguf.export(trained, tmp_path / "m.gguf", force=False)
    prompt = "mill ß"
    found, length = ask(tmp_path / "m.gguf", prompt)
    ids = prompt_ids(trained.tokenizer, prompt, 1_000)
    assert length == len(ids) <= trained.state.config.model.seq_len
    logits = float_model.logits(
        trained.state.config.model, trained.state.weights, np.array([ids], np.int32)
    )[-1].astype(np.float64)
    ours = logits - math.log(np.exp(logits).sum())
    assert len(found) == 50
    assert max(found, key=lambda i: found[i]) == int(ours.argmax())
    assert max(abs(found[i] - ours[i]) for i in found) < TOLERANCE

"""The commands for trained models: `generate`, `eval`, `export` and `tokenizer`.

May import: siblings, node_config.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from p2pnode.commands.types import Commands, add_command, positive

EXPORT_HELP = """Write a trained model for other tools:

  hf     a folder that transformers loads (LlamaForCausalLM, float32)
  gguf   a file that llama.cpp runs (float32); needs the package gguf
  html   one web page that generates offline, the same text as `generate`

transformers and llama.cpp compute with floats, so their answers are close to those of `generate`,
not the same bits (docs/USE.md has figures)."""


TOKENIZER_HELP = """Make a byte-level BPE vocabulary from (64 MiB of) a text:

  python -m p2pnode tokenizer train words.json --data texts --size 4096
  python -m p2pnode join --data texts --tokenizer words.json …

Small models fare best with small vocabularies: logits cost as much as the rest (docs/DATA.md)."""


EVAL_HELP = """Print the loss, and bits per byte, which compare between tokenizers.

If --data is the text that the model was trained on, only its held-out part is read, as in
training; of any other text, all of it, or as much as --tokens says. Tables are read row group by
row group, so they may be larger than the memory. The loss is exact: the same number on every
machine."""


def add_generate(commands: Commands) -> None:
    generate = add_command(
        commands,
        "generate",
        _generate,
        "print text from a checkpoint",
        "Print text that continues a prompt: the same text on every machine for the same seed.",
    )
    _add_checkpoint(generate)
    generate.add_argument("--prompt", default="The ", help="text to continue (default 'The ')")
    generate.add_argument(
        "--tokens",
        type=positive,
        default=300,
        metavar="N",
        help="how many tokens to make, at most (default 300)",
    )
    generate.add_argument(
        "--temperature", type=float, default=0.8, help="0 always takes the likeliest (default 0.8)"
    )
    generate.add_argument(
        "--top-k", type=int, default=40, help="choose among the K likeliest, 0 for all (default 40)"
    )
    generate.add_argument(
        "--top-p",
        type=float,
        default=1.0,
        metavar="SHARE",
        help="of these, choose among the likeliest that hold this share together (default 1: all)",
    )
    generate.add_argument("--seed", type=int, default=0, help="seed of the choices (default 0)")
    _add_reference(generate)


def add_eval(commands: Commands) -> None:
    evaluate = add_command(
        commands, "eval", _eval, "say how well a checkpoint predicts a text", EVAL_HELP
    )
    _add_checkpoint(evaluate)
    evaluate.add_argument(
        "--data",
        metavar="PATH",
        help="a text, as for `join` (default: the text of the run, if it can be had)",
    )
    evaluate.add_argument(
        "--column", default="text", metavar="NAME", help="as for `join` (default text)"
    )
    evaluate.add_argument(
        "--tokens",
        type=positive,
        metavar="N",
        help="of a text that is not the run's, stop when N tokens are read (default: all)",
    )
    evaluate.add_argument(
        "--float",
        action="store_true",
        help="also the loss of the same weights in plain float32, as other tools compute it",
    )
    _add_reference(evaluate)


def add_export(commands: Commands) -> None:
    export = add_command(
        commands, "export", _export, "write a trained model for other tools", EXPORT_HELP
    )
    _add_checkpoint(export)
    export.add_argument("--to", required=True, choices=("hf", "gguf", "html"), help="the format")
    export.add_argument("out", type=Path, metavar="OUT", help="the folder or file to write")
    export.add_argument(
        "--force", action="store_true", help="replace an export that is there already"
    )


def add_tokenizer(commands: Commands) -> None:
    tokenizer = add_command(
        commands, "tokenizer", _tokenizer, "make a vocabulary from a text", TOKENIZER_HELP
    )
    tokenizer.add_argument("action", choices=("train",))
    tokenizer.add_argument("out", type=Path, metavar="OUT", help="the tokenizer.json to write")
    tokenizer.add_argument("--data", required=True, metavar="PATH", help="a text, as for `join`")
    tokenizer.add_argument(
        "--column", default="text", metavar="NAME", help="as for `join` (default text)"
    )
    tokenizer.add_argument(
        "--size",
        type=positive,
        default=4_096,
        metavar="N",
        help="tokens, 257 to 131,072 (default 4096)",
    )
    tokenizer.add_argument("--force", action="store_true", help="replace a file that is there")


def _tokenizer(arguments: argparse.Namespace) -> int:
    from p2pnode.commands.tokenizer import train_tokenizer

    return train_tokenizer(
        arguments.out, arguments.data, arguments.column, arguments.size, force=arguments.force
    )


def _add_checkpoint(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "checkpoint", type=Path, help="a checkpoint file, or a folder: its newest one"
    )


def _add_reference(command: argparse.ArgumentParser) -> None:
    command.add_argument("--reference", action="store_true", help="use the numpy reference kernels")


def _generate(arguments: argparse.Namespace) -> int:
    from p2pnode.commands.generate import generate

    return generate(
        arguments.checkpoint,
        prompt=arguments.prompt,
        tokens=arguments.tokens,
        temperature=arguments.temperature,
        top_k=arguments.top_k,
        top_p=arguments.top_p,
        seed=arguments.seed,
        reference=arguments.reference,
    )


def _eval(arguments: argparse.Namespace) -> int:
    from p2pnode.commands.eval import evaluate_checkpoint
    from p2pnode.node_config import TextChoice

    return evaluate_checkpoint(
        arguments.checkpoint,
        TextChoice(arguments.data, arguments.column),
        most=arguments.tokens,
        floats=arguments.float,
        reference=arguments.reference,
    )


def _export(arguments: argparse.Namespace) -> int:
    from p2pnode.commands.export import export

    return export(arguments.checkpoint, arguments.to, arguments.out, force=arguments.force)

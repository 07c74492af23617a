"""Tokenizers by the name of a model on the Hugging Face hub.

May import: errors.
"""

from __future__ import annotations

import os
import re

from p2pnode.errors import DataError, SourceAwayError, told

_NAME = re.compile(r"(hf://)?[\w.-]+(/[\w.-]+)?")


def tokenizer_path(name: str) -> str:
    """The path of a tokenizer file: `name` if there is one, else the `tokenizer.json` of the hub's
    model of that name, downloaded. Raises DataError, SourceAwayError."""
    if os.path.exists(name) or not _NAME.fullmatch(name) or name.endswith(".json"):
        return name
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError
    except ImportError:
        raise DataError(
            f"There is no file {name!a}. A name on the Hugging Face hub needs a package: "
            "pip install huggingface_hub."
        ) from None
    try:
        return str(hf_hub_download(name.removeprefix("hf://"), "tokenizer.json"))
    except (HfHubHTTPError, HFValidationError) as error:
        raise DataError(f"The hub has no tokenizer.json of {name!a}: {told(error)}") from None
    except (OSError, ValueError) as error:
        raise SourceAwayError(f"The tokenizer {name!a} cannot be had: {told(error)}") from None

"""The gate of arm64's dot product, asked of LLVM for processors that are not at hand."""

from __future__ import annotations

import llvmlite.binding as llvm
import pytest

from kernels.jit import target


@pytest.mark.parametrize(
    ("processor", "features", "expected"),
    [
        # What LLVM tells of a Raspberry Pi 5 or Neoverse N1 under Linux: the name alone says it.
        ("cortex-a76", "+aes,+crc,+fp-armv8,+lse,+neon,+sha2", True),
        ("neoverse-n1", "+aes,+crc,+fp-armv8,+lse,+neon,+sha2", True),
        ("apple-m1", "+dotprod,+neon", True),
        ("generic", "+neon,+dotprod", True),
        ("cortex-a72", "+aes,+crc,+fp-armv8,+neon,+sha2", False),
        ("generic", "+neon", False),
        ("cortex-a76", "+neon,-dotprod", False),
    ],
)
def test_the_dot_product_is_used_where_llvm_has_it(
    processor: str, features: str, expected: bool
) -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    assert target.has_sdot("aarch64-unknown-linux-gnu", processor, features) is expected

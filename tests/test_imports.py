"""Holds the import rules of docs/ARCHITECTURE.md."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("p2pnode", "signaling", "kernels")

# A layer may import from its own row and from the rows below it.
LAYERS = (
    ("p2pnode.cli", "p2pnode.commands", "p2pnode.demo", "p2pnode.join"),
    ("p2pnode.node",),
    ("p2pnode.run",),
    ("p2pnode.prepare",),
    ("p2pnode.first_weights", "p2pnode.texts"),
    (
        *("p2pnode.room", "p2pnode.session", "p2pnode.share", "p2pnode.orders"),
        *("p2pnode.ledger_share", "p2pnode.sampling"),
    ),
    ("p2pnode.door", "p2pnode.audits", "p2pnode.tasks"),
    ("p2pnode.jobs", "p2pnode.rehearse", "p2pnode.devices", "p2pnode.bench"),
    ("p2pnode.bundle", "p2pnode.export", "p2pnode.keeper", "p2pnode.signatures"),
    ("p2pnode.supply",),
    ("p2pnode.ui", "p2pnode.net"),
    ("p2pnode.protocol", "p2pnode.train", "p2pnode.worker"),
    ("p2pnode.sources",),
    (
        *("p2pnode.config", "p2pnode.node_config", "p2pnode.limits", "p2pnode.folder_lock"),
        *("p2pnode.memberships", "p2pnode.chain_file", "p2pnode.private_file", "p2pnode.polite"),
    ),
    ("p2pnode.errors", "p2pnode.process_memory"),
)
"""As docs/ARCHITECTURE.md numbers them."""
SOLE_IMPORTERS = {
    "aiortc": ("p2pnode.net", "p2pnode.bench"),
    "aioice": ("p2pnode.net", "signaling.stun"),
    "kernels": ("p2pnode.train.arithmetic",),
    "prompt_toolkit": ("p2pnode.ui",),
    "tokenizers": ("p2pnode.train.tokenizer", "p2pnode.train.vocabulary"),
    "pyarrow": ("p2pnode.sources.table",),
    "numba": ("kernels",),
    "p2pnode.rehearse": ("p2pnode.commands.tools", "p2pnode.commands.rehearse"),
    "asyncio": (
        *("p2pnode.commands.train", "p2pnode.demo", "p2pnode.join", "p2pnode.node", "p2pnode.room"),
        *(
            "p2pnode.door",
            "p2pnode.run",
            "p2pnode.tasks",
            "p2pnode.session",
            "p2pnode.share",
            "p2pnode.ledger_share",
            "p2pnode.worker",
            "p2pnode.net",
            "p2pnode.ui",
            "p2pnode.prepare",
            "p2pnode.audits",
            "p2pnode.supply",
        ),
        *("p2pnode.bench", "signaling"),
    ),
    "time": (
        *("p2pnode.demo", "p2pnode.join", "p2pnode.net", "p2pnode.commands.rehearse"),
        *("p2pnode.audits", "p2pnode.bench", "p2pnode.sources", "p2pnode.commands.verify"),
        *("p2pnode.worker", "signaling"),
    ),
}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> set[str]:
    """Absolute names of every module that the file imports, also inside functions."""
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            prefix = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            found.add(prefix)
            found |= {f"{prefix}.{alias.name}" for alias in node.names}
    return found


def within(name: str, prefixes: str | tuple[str, ...]) -> bool:
    prefixes = (prefixes,) if isinstance(prefixes, str) else prefixes
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def layer_of(name: str) -> int | None:
    return next((i for i, row in enumerate(LAYERS) if within(name, row)), None)


def breaches(module: str, imported: set[str]) -> list[str]:
    """Sentences for the rules that `module` breaks by importing `imported`."""
    out = []
    mine = layer_of(module)
    for name in sorted(imported):
        theirs = layer_of(name)
        if mine is not None and theirs is not None and theirs < mine:
            out.append(f"{module} imports {name}, which lies above it")
        for target, allowed in SOLE_IMPORTERS.items():
            if within(name, target) and not within(module, (*allowed, target)):
                out.append(f"{module} imports {name}; only {allowed} may")
        if within(module, "kernels") and within(name, ("p2pnode", "signaling")):
            out.append(f"{module} imports {name}; kernels know nothing of the rest")
        if within(module, "signaling") and within(name, ("p2pnode", "kernels")):
            out.append(f"{module} imports {name}; the server knows nothing of nodes")
        if within(module, ("p2pnode.protocol",)) and within(name, "p2pnode.train"):
            out.append(f"{module} imports {name}; the protocol never looks into a payload")
        if within(module, ("p2pnode.train",)) and within(name, "p2pnode.protocol"):
            out.append(f"{module} imports {name}; training knows nothing of the mesh")
        if (
            within(module, "p2pnode.rehearse")
            and within(name, PACKAGES)
            and not within(name, ("p2pnode.rehearse", "p2pnode.protocol", "p2pnode.limits"))
            and not within(name, ("p2pnode.config", "p2pnode.errors"))
            and name != "p2pnode"
        ):
            out.append(f"{module} imports {name}; a rehearsal needs the protocol alone")
        if (
            within(module, "p2pnode")
            and within(name, "signaling")
            and not within(name, "signaling.messages")
            and not within(module, ("p2pnode.join", "p2pnode.demo"))
        ):
            out.append(f"{module} imports {name}; only the messages are shared")
    return out


SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_imports_point_down(path: Path) -> None:
    assert breaches(module_name(path), imports_of(path)) == []


def rule_of(path: Path) -> str | None:
    """What a module's first lines say that it may import; None if they say nothing of it."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    _, says, rule = " ".join(text.split()).partition("May import:")
    return rule if says else None


def allows(rule: str, module: str, name: str) -> bool:
    """Whether a rule names a module, its package, or the kind of modules that it belongs to."""
    parts = name.split(".")
    if "siblings" in rule and parts[:-1] == module.split(".")[:-1]:
        return True
    if re.search(r"everything|(the rest|all) of", rule):
        return True
    return any(re.search(rf"\b{part}\b", rule) for part in parts[1:])


MODULES = {module_name(path) for path in SOURCES}
WITH_RULES = [
    path
    for path in SOURCES
    if rule_of(path) is not None and not within(module_name(path), "kernels")
]


@pytest.mark.parametrize("path", WITH_RULES, ids=module_name)
def test_first_lines_say_what_a_module_imports(path: Path) -> None:
    module = module_name(path)
    rule = rule_of(path)
    assert rule is not None
    imported = imports_of(path) & MODULES - {module, "p2pnode"}
    packages = {name for name in imported if any(i.startswith(f"{name}.") for i in MODULES)}
    assert [name for name in sorted(imported - packages) if not allows(rule, module, name)] == []


def test_a_rule_that_leaves_something_out_is_seen() -> None:
    assert allows(" config, protocol.fetch.", "p2pnode.share", "p2pnode.protocol.fetch")
    assert allows(" siblings.", "p2pnode.export.hf", "p2pnode.export.llama")
    assert not allows(" siblings, config.", "p2pnode.export.hf", "p2pnode.errors")
    assert not allows(" config, protocol.", "p2pnode.share", "p2pnode.net.mesh")


def test_every_module_has_a_layer() -> None:
    loose = [
        name
        for path in SOURCES
        if (name := module_name(path)).startswith("p2pnode.")
        and name != "p2pnode.__main__"
        and layer_of(name) is None
    ]
    assert loose == []


def test_the_page_has_these_layers() -> None:
    page = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \d+ \| ([^|]*)\|", page, re.MULTILINE)
    named = [{f"p2pnode.{name}" for name in re.findall(r"`(\w+)`", row)} for row in rows]
    assert named == [set(layer) for layer in LAYERS]


@pytest.mark.parametrize(
    ("module", "imported"),
    [
        ("p2pnode.protocol.core", "p2pnode.net.mesh"),
        ("p2pnode.protocol.core", "asyncio"),
        ("p2pnode.protocol.core", "p2pnode.train.state"),
        ("p2pnode.train.model", "kernels"),
        ("p2pnode.train.model", "p2pnode.protocol.core"),
        ("p2pnode.node", "aiortc"),
        ("signaling.app", "p2pnode.limits"),
        ("p2pnode.net.mesh", "signaling.rooms"),
        ("kernels.gemm", "p2pnode.config"),
        ("p2pnode.rehearse.world", "p2pnode.net.mesh"),
        ("p2pnode.rehearse.world", "p2pnode.train.state"),
        ("p2pnode.rehearse.campaign", "time"),
        ("p2pnode.session", "p2pnode.rehearse.toy"),
    ],
)
def test_a_breach_is_seen(module: str, imported: str) -> None:
    assert breaches(module, {imported})


def test_a_node_loads_no_library_that_its_text_does_not_need() -> None:
    code = "import sys, p2pnode.join; print({'pyarrow', 'tokenizers', 'torch'} & {*sys.modules})"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"

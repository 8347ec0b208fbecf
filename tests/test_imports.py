"""Who may import whom: formats, quant, kernels <- layers <- models <- engine <- the edge."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "turbospark"
MAY = {
    "errors": set(),
    "config": {"errors"},
    "quant": {"errors", "formats"},
    "formats": {"errors", "quant"},
    "kernels": {"errors", "environment", "config", "quant"},
    "experts": {"errors", "kernels", "quant"},
    "cache": {"errors", "config", "kernels"},
    "layers": {"errors", "config", "quant", "kernels", "experts", "cache"},
    "models": {"errors", "config", "quant", "kernels", "experts", "cache", "layers"},
    "draft": {"errors", "config", "formats", "quant", "kernels", "experts", "cache", "layers", "models"},
    "tokenizer": {"errors", "formats"},
    "store": {
        *("errors", "environment", "units", "config", "quant", "formats", "kernels", "models", "draft", "summary"),
        *("tokenizer", "placement"),
    },
    "engine": {"errors", "kernels", "experts", "cache", "models", "draft"},
}
EDGE = {"cli", "train", "bench", "drafters"}  # they may import anything, and nothing above imports them
# a part that may be replaced is known to its users by its base alone
BASE_ONLY = {"draft": {"engine"}}


def imports(file: Path) -> set[str]:
    """Modules of the package that a file names, "kernels.rows" for turbospark.kernels.rows."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module] if node.module != "turbospark" else [f"turbospark.{a.name}" for a in node.names]
        found |= {n.removeprefix("turbospark.") for n in names if n.startswith("turbospark.")}
    return found


@pytest.mark.parametrize("part", MAY)
def test_a_part_imports_only_what_lies_below_it(part):
    files = [PACKAGE / f"{part}.py"] if part == "errors" else sorted((PACKAGE / part).rglob("*.py"))
    assert files
    for file in files:
        for module in imports(file):
            other = module.split(".")[0]
            assert other == part or other in MAY[part], f"{file.relative_to(PACKAGE)} imports {module}"
            if part in BASE_ONLY.get(other, ()):
                assert module == f"{other}.base", f"{file.relative_to(PACKAGE)} imports {module}"


def test_every_package_folder_is_ruled():
    folders = {p.name for p in PACKAGE.iterdir() if (p / "__init__.py").exists()}
    assert folders - EDGE <= set(MAY)


def test_importing_the_package_imports_nothing_heavy():
    code = "import turbospark, sys; print([m for m in ('numpy', 'jinja2', 'tokenizers', 'torch') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"

"""Run the documents' snippets that use a compiled model, unchanged."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from examples.make_models import make
from system.signing import make_key, read_key
from tests.compiled_models import compile_model, elementwise, sign_folder

ROOT = Path(__file__).parents[3]
PAGES = ("README.md", "docs/runtime.md", "docs/models.md", "runtime/README.md")
SNIPPET = re.compile(r"^( *)```python\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
PYTORCH = "torch.compile("


def snippets(page: str) -> list[str]:
    """The snippets of a page that use tunefarm-runtime or torch.compile."""
    found = [
        re.sub(rf"^{indent}", "", text, flags=re.MULTILINE)
        for indent, text in SNIPPET.findall((ROOT / page).read_text())
    ]
    return [text for text in found if "tunefarm_runtime" in text or PYTORCH in text]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folders that the documents name, and values for their placeholders."""
    folder = tmp_path_factory.mktemp("workplace")
    model = make("resnet18", tiny=True, size=224).SerializeToString()
    tuned = compile_model(model, folder / "resnet18-tuned")
    shutil.copytree(tuned, folder / "resnet18-production")
    make_key(folder / "key.pem")
    key = read_key(folder / "key.pem")
    sign_folder(folder / "resnet18-production", key)
    for tokens in (128, 512):
        several = elementwise("Neg", TensorProto.FLOAT, (1, tokens), outputs=2)
        compile_model(several, folder / "bert-tuned" / f"tokens={tokens}")
    names = {"KEY": key.public, "image": np.ones((1, 3, 224, 224), np.float32)}
    return folder, names


@pytest.mark.parametrize("page", PAGES)
def test_snippets_run(
    page: str, workplace: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, names = workplace
    monkeypatch.chdir(folder)
    given = {**names, "ids": np.ones((1, 100), np.float32)}
    for text in snippets(page):
        if PYTORCH in text:
            continue  # below
        if "bert" in text:
            text = text.replace("model(ids, mask, types)", "model(ids)")
        exec(compile(text, page, "exec"), given)
        assert "logits" not in given or given["logits"].shape == (1, 10)
        assert "hidden" not in given or given["hidden"].shape == (1, 100)


def test_every_page_has_a_snippet() -> None:
    counts = {page: len(snippets(page)) for page in PAGES}
    assert min(counts.values()) > 0, counts
    assert counts["docs/runtime.md"] == (ROOT / "docs/runtime.md").read_text().count("```python\n")


@pytest.mark.slow
def test_the_snippet_for_pytorch_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("TUNEFARM_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("TUNEFARM_SERVER", raising=False)
    monkeypatch.chdir(tmp_path)
    compile_model(elementwise("Neg", TensorProto.FLOAT, (2, 8), outputs=1), tmp_path / "model-tuned")
    model, inputs = torch.nn.Linear(8, 4), torch.randn(2, 8)
    given = {"torch": torch, "model": model, "inputs": inputs}
    [compiled, exported, run] = [text for _, text in SNIPPET.findall((ROOT / "docs/pytorch.md").read_text())]
    exec(compile(compiled, "docs/pytorch.md", "exec"), given)
    torch.testing.assert_close(given["outputs"], model(inputs))
    given["model"] = torch.nn.Conv2d(3, 4, 3)
    exec(compile(exported, "docs/pytorch.md", "exec"), given)
    assert (tmp_path / "model.pt2").exists()
    exec(compile(run, "docs/pytorch.md", "exec"), given)
    torch.testing.assert_close(given["outputs"][0], -inputs)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake isn't installed")
def test_the_commands_for_c_run(workplace: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    [commands] = re.findall(
        r"^```\n(tunefarm bundle .*?)^```", (ROOT / "docs/runtime.md").read_text(), re.M | re.S
    )
    shutil.copytree(workplace[0] / "resnet18-tuned", tmp_path / "resnet18-tuned")
    own = commands.replace("tunefarm bundle", f"{sys.executable} -m tunefarm bundle")
    done = subprocess.run(["sh", "-e", "-c", own], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.search(r"\(float32\):( \S+){5}$", done.stdout), done.stdout

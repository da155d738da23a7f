"""`pip install tunefarm[client]` into a fresh environment is small, and enough to use a service."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.unit.tunefarm.fake_service import FakeService, serving

ROOT = Path(__file__).parents[3]
# The one distribution has the compiler and the server in it, which the client never loads.
LIMIT_BYTES = 6_000_000
# Make the requests of a deployment system, then run the command, which isn't installed.
SCRIPT = """
import sys
from pathlib import Path
from tunefarm.client import Client, ScheduleCache
with Client(sys.argv[1]) as client:
    client.download(client.jobs().__next__().id, Path(sys.argv[2]))
    print(client.best("abc").source, ScheduleCache(client, folder=Path(sys.argv[2]).parent))
"""


@pytest.mark.slow
def test_the_client_is_small_and_works_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # pip would take the checkout for an installation.
    monkeypatch.delenv("PYTHONPATH", raising=False)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    # A copy, because building leaves files behind.
    other = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__", "tests", "docs", "benchmarks")
    source = shutil.copytree(ROOT, tmp_path / "source", ignore=other)
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), str(source)]
    subprocess.run([*pip, *build], check=True)
    (wheel,) = tmp_path.glob("tunefarm-*.whl")
    venv.create(tmp_path / "fresh")
    python = tmp_path / "fresh" / "bin" / "python"
    pinned = ["--constraint", str(ROOT / "constraints.txt"), f"{wheel}[client]"]
    into = ["--python", str(python), "install", "--no-compile", *pinned]
    done = subprocess.run([*pip, *into], capture_output=True, text=True)
    if done.returncode != 0 and "connection" in done.stderr.lower():
        pytest.skip("no package registry answers")
    assert done.returncode == 0, done.stderr
    (site,) = (tmp_path / "fresh" / "lib").glob("python3*/site-packages")
    sizes = {folder.name: _bytes(folder) for folder in site.iterdir()}
    assert sum(sizes.values()) < LIMIT_BYTES, sizes
    with serving(FakeService()) as service:
        command = [str(python), "-c", SCRIPT, service.url, str(tmp_path / "model.tar")]
        told = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert told.stdout.startswith("import "), told.stderr
    told = subprocess.run([str(python.with_name("tunefarm"))], capture_output=True, text=True)
    assert "pip install 'tunefarm[cli]'" in told.stderr
    assert told.returncode == 1


def _bytes(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    return sum(file.stat().st_size for file in [path, *path.rglob("*")] if file.is_file())

"""The product as others install it: a wheel and a sdist in an empty venv, beside packages of colliding names, run from another folder."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("3.11", "3.12", "3.13")
pytestmark = [pytest.mark.install, pytest.mark.timeout(900)]


def interpreter(version: str) -> str:
    """The interpreter of a Python version; skips the test where this machine has none that runs."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    found = shutil.which(f"python{version}")
    if found is None or subprocess.run([found, "-c", "import venv, ensurepip"], capture_output=True, check=False).returncode:
        pytest.skip(f"Python {version} is not installed here, or lacks venv")
    return found


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Wheel and sdist, built from what git would hand out."""
    folder = tmp_path_factory.mktemp("dist")
    source = folder / "source"
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    source.mkdir()
    subprocess.run(["tar", "-cf", folder / "source.tar", "--files-from", "-"], cwd=ROOT, check=True, input=listed, text=True)
    subprocess.run(["tar", "-xf", folder / "source.tar", "-C", source], check=True)
    program = "import setuptools.build_meta as b, sys; out = sys.argv[1]; b.build_wheel(out); b.build_sdist(out)"
    subprocess.run([sys.executable, "-c", program, str(folder)], cwd=source, check=True, capture_output=True)
    return {"wheel": next(folder.glob("*.whl")), "sdist": next(folder.glob("*.tar.gz"))}


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
@pytest.mark.parametrize("version", VERSIONS)
def test_it_runs_from_another_folder_beside_packages_of_the_same_names(version, kind, built, tmp_path):
    place = tmp_path / "venv"
    subprocess.run([interpreter(version), "-m", "venv", place], check=True)
    python, command = place / "bin/python", place / "bin/hmas"
    # The wheel of openai-agents installs `agents`, that of datasets `datasets`.
    subprocess.run([python, "-m", "pip", "install", "-q", str(built[kind]), "openai-agents", "datasets"], check=True)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    env = {name: value for name, value in os.environ.items() if not name.startswith(("HMAS_", "PYTHON"))} | {"HOME": str(tmp_path)}

    def run(*words: str) -> str:
        done = subprocess.run([command, *words], cwd=elsewhere, env=env, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, f"hmas {' '.join(words)}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout

    program = "import agents, datasets; print(hasattr(agents, 'Runner'))"
    owner = subprocess.run([python, "-c", program], cwd=elsewhere, env=env, capture_output=True, check=True)
    assert owner.stdout.split()[-1] == b"True", "openai-agents keeps its package"
    assert "good" in run("simulate", "--workload", "poisson:rate=4,duration=20", "--fleet", "1xdemo-small", "--no-plots", "--json")
    assert "Held means" in run("plan", "--trace", "poisson:rate=4,duration=20", "--slo", "ttft=2000,tpot=60", "--fleet", "1xdemo-small")
    assert run("demo", "--quick")
    with subprocess.Popen(
        [command, "up", "--json", "--engine", "sim", "--no-auth", "--port", "0", "--admin-port", "0"],
        cwd=elsewhere,
        env=env | {"HMAS_STATE_DIR": str(tmp_path / "state")},
        stdout=subprocess.PIPE,
        text=True,
    ) as up:
        try:
            assert up.stdout is not None
            assert any('"agents"' in line for line in up.stdout), "it says where it serves once everything is up"
        finally:
            up.terminate()
            up.wait(30)

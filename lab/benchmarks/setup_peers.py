"""Installs the proxies that `make bench-gateway` measures beside the gateway, each into an environment of its own.

One that cannot be had is named with the reason; that is no failure. What is there already stays as it is.

    python lab/benchmarks/setup_peers.py build/peers
"""

import shutil
import subprocess
import sys
import venv
from pathlib import Path

PACKAGES = {"vllm-router": "vllm-router==0.1.17", "sglang-router": "sglang-router==0.3.2", "litellm": "litellm[proxy]==1.106.2"}
"""Name of the environment and what is installed into it."""
NGINX = Path("nginx", "usr", "sbin", "nginx")
"""Where the unpacked nginx lies under the peers' folder."""
INSTALL_S = 600


def install(folder: Path, *packages: str) -> str:
    """Puts packages into an environment of their own. Returns why they could not be had, empty where they are there now."""
    if (folder / ".ready").exists():
        return ""
    try:
        venv.create(folder, with_pip=True, clear=True)
        command = [folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install", "-q", *packages]
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "ERROR" in line] or done.stderr.splitlines() or ["pip gave no reason"]
        return lines[-1]
    (folder / ".ready").touch()
    return ""


def unpack_nginx(folder: Path) -> str:
    """Finds nginx on PATH, else unpacks Debian's package into the peers' folder, which needs no rights and installs nothing."""
    if shutil.which("nginx") or (folder / NGINX).exists():
        return ""
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        return "not on PATH, and no apt-get to fetch it with"
    place = folder / "nginx"
    place.mkdir(parents=True, exist_ok=True)
    got = subprocess.run(["apt-get", "download", "-q", "nginx"], cwd=place, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    package = next(place.glob("nginx_*.deb"), None)
    if got.returncode or package is None:
        return (got.stderr.splitlines() or ["apt-get gave no reason"])[-1]
    subprocess.run(["dpkg", "-x", package.name, "."], cwd=place, check=True, capture_output=True)
    try:
        works = subprocess.run([folder / NGINX, "-v"], capture_output=True, text=True, check=False)
    except OSError as error:
        works = subprocess.CompletedProcess([], 1, "", str(error))
    if works.returncode:
        shutil.rmtree(place)
        return f"Debian's build does not run here: {works.stderr.strip()}"
    return ""


def main() -> None:
    folder = Path(sys.argv[1]).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    found = {"nginx": unpack_nginx(folder)} | {name: install(folder / name, package) for name, package in PACKAGES.items()}
    for name, reason in found.items():
        print(f"{name}: {'not to be had: ' + reason if reason else 'ready'}", flush=True)


if __name__ == "__main__":
    main()

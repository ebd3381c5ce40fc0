"""The proxies of the gateway's benchmark: how each is started, and what its processes cost.

Every one is set up as lean as its own manual allows: logs down to errors, no limits below the load, and streams passed on at once.
"""

import http.client
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gateway_peers import KEY, MODEL
from setup_peers import NGINX

TICK_HZ = os.sysconf("SC_CLK_TCK")
READY_S = 90.0


class NotThere(Exception):
    """A proxy cannot be measured; says why."""


@dataclass
class Proxy:
    """One proxy. `pid` is 0 for direct calls, which have no process between; `bus_pid` is the gateway's message bus, counted by itself."""

    name: str
    port: int
    process: "subprocess.Popen[bytes] | None" = None
    version: str = ""
    bus_pid: int = 0
    trouble: list[str] = field(default_factory=list)

    @property
    def pid(self) -> int:
        return self.process.pid if self.process else 0

    def cpu_s(self) -> float:
        """CPU seconds of all its processes so far."""
        return sum(cpu_s(pid) for pid in tree(self.pid)) if self.pid else 0.0

    def rss_bytes(self) -> int:
        """Resident memory of all its processes."""
        return sum(rss_bytes(pid) for pid in tree(self.pid)) if self.pid else 0


def tree(root: int) -> list[int]:
    """A process and all that descend from it."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 - called often, and names are all that is wanted
        if entry.isdecimal():
            try:
                parents[int(entry)] = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def cpu_s(pid: int) -> float:
    """CPU seconds of one process, 0 where it is gone: to the nanosecond where the kernel keeps that, else in ticks of 10 ms."""
    try:
        spent = [int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
        if any(spent):
            return sum(spent) / 1e9
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICK_HZ


def rss_bytes(pid: int) -> int:
    """Resident memory of one process, 0 where it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _nginx(peers: Path, folder: Path, port: int, upstream: int) -> tuple[list[str], dict[str, str]]:
    binary = shutil.which("nginx") or str(peers / NGINX)
    if not Path(binary).exists():
        raise NotThere("not on PATH and not under the peers' folder")
    config = folder / "nginx.conf"
    paths = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    config.write_text(
        f"daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log stderr crit; worker_rlimit_nofile 16384;\n"
        "events { worker_connections 8192; }\n"
        f"http {{ access_log off; keepalive_requests 10000000; {paths}\n"
        f"upstream up {{ server 127.0.0.1:{upstream}; keepalive 1024; keepalive_requests 10000000; }}\n"
        f"server {{ listen 127.0.0.1:{port} backlog=4096; location / {{ proxy_pass http://up; proxy_http_version 1.1;\n"
        'proxy_set_header Connection ""; proxy_buffering off; proxy_read_timeout 600s; } } }\n'
    )
    return [binary, "-p", str(folder), "-c", str(config), "-e", "stderr"], {}


def _vllm_router(peers: Path, _folder: Path, port: int, upstream: int) -> tuple[list[str], dict[str, str]]:
    return _router(_binary(peers, "vllm-router", "vllm-router"), port, upstream, "error"), {}


def _sglang_router(peers: Path, _folder: Path, port: int, upstream: int) -> tuple[list[str], dict[str, str]]:
    return _router([*_binary(peers, "sglang-router", "smg"), "launch"], port, upstream, "error"), {}


def _router(command: list[str], port: int, upstream: int, level: str) -> list[str]:
    """Both Rust routers take the same options."""
    options = {
        "--host": "127.0.0.1",
        "--port": str(port),
        "--worker-urls": f"http://127.0.0.1:{upstream}",
        "--policy": "round_robin",
        "--log-level": level,
        "--prometheus-port": str(free_port()),
        "--max-concurrent-requests": "8192",
    }
    return [*command, *(word for pair in options.items() for word in pair)]


def _litellm(peers: Path, folder: Path, port: int, upstream: int) -> tuple[list[str], dict[str, str]]:
    config = folder / "litellm.yaml"
    # JSON is YAML.
    config.write_text(
        json.dumps(
            {
                "model_list": [
                    {
                        "model_name": MODEL,
                        "litellm_params": {"model": f"openai/{MODEL}", "api_base": f"http://127.0.0.1:{upstream}/v1", "api_key": "none"},
                    }
                ],
                "general_settings": {"master_key": KEY},
                "litellm_settings": {"telemetry": False, "set_verbose": False, "num_retries": 0},
            }
        )
    )
    command = [*_binary(peers, "litellm", "litellm"), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    return [*command, "--num_workers", "1"], {"LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}


def _binary(peers: Path, environment: str, name: str) -> list[str]:
    path = peers / environment / "bin" / name
    if not path.exists():
        raise NotThere(f"{path} is not there; `make setup-peers` tries to install it")
    return [str(path)]


PEERS: dict[str, Callable[[Path, Path, int, int], tuple[list[str], dict[str, str]]]] = {
    "nginx": _nginx,
    "vllm-router": _vllm_router,
    "sglang-router": _sglang_router,
    "litellm": _litellm,
}


def start_peer(name: str, peers: Path, folder: Path, upstream: int) -> Proxy:
    """Starts a peer and sends it one request.

    Raises:
        NotThere: It is not installed, does not start, or does not pass a request on.
    """
    port = free_port()
    place = folder / name
    place.mkdir()
    command, environment = PEERS[name](peers, place, port, upstream)
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, cwd=place, env={**os.environ, **environment, "HOME": str(place)}, start_new_session=True
        )
    proxy = Proxy(name, port, process, version=_version(name, command[0]))
    try:
        wait_until_it_answers(proxy)
    except NotThere as error:
        stop(proxy)
        tail = (place / "log").read_text(errors="replace").splitlines()[-1:]
        raise NotThere(": ".join([str(error), *tail])) from error
    return proxy


def wait_until_it_answers(proxy: Proxy) -> None:
    """Asks until a whole streamed answer comes back.

    Raises:
        NotThere: None does within the time, or the process ended.
    """
    end_s = time.monotonic() + READY_S
    said = "no answer"
    while time.monotonic() < end_s:
        if proxy.process is not None and proxy.process.poll() is not None:
            raise NotThere(f"ended with status {proxy.process.returncode} while starting")
        try:
            said = ask_once(proxy.port)
        except (OSError, http.client.HTTPException) as error:
            said = f"{type(error).__name__}: {error}"
        if not said:
            return
        time.sleep(0.2)
    raise NotThere(f"does not answer a request properly within {READY_S:g} s: {said}")


def ask_once(port: int) -> str:
    """One streamed request; what is wrong with its answer, empty where nothing is."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    body = json.dumps({"model": MODEL, "stream": True, "messages": [{"role": "user", "content": "pace=0 tokens=2 word"}]})
    headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
    connection.request("POST", "/v1/chat/completions", body, headers)
    response = connection.getresponse()
    text = response.read()
    connection.close()
    return "" if response.status == 200 and b"[DONE]" in text else f"{response.status} {text[:200]!r}"


def stop(proxy: Proxy) -> None:
    """Ends all its processes."""
    if proxy.process is None:
        return
    members = tree(proxy.pid)
    proxy.process.terminate()
    try:
        proxy.process.wait(5)
    except subprocess.TimeoutExpired:
        for pid in members:
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                continue
        proxy.process.wait()


def _version(name: str, binary: str) -> str:
    if name == "nginx":
        return subprocess.run([binary, "-v"], capture_output=True, text=True, check=False).stderr.strip().rpartition("/")[2]
    python = Path(binary).parent / "python"
    code = f"from importlib.metadata import version; print(version({name!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=False).stdout.strip()

"""The loader: what a file and the environment may say, and what a mistake is told."""

import contextlib
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hmas.controller.config.cross_checks import DNS_NAME_MOST
from hmas.controller.config.environment import names
from hmas.controller.config.loader import ConfigMistakes, advice, load_config
from hmas.controller.config.reference import example_config, reference
from hmas.controller.config.schema import Config
from hmas.controller.core.errors import ConfigError
from hmas.controller.scheduling.policies.registry import POLICIES

HASH_A = "a" * 64
HASH_B = "b" * 64
REPOSITORY = Path(__file__).parents[2]


def mistakes(tmp_path, text, suffix="yaml", env=None):
    """Every mistake of a file, as `(line or variable, setting, message)`."""
    file = tmp_path / f"hmas.{suffix}"
    file.write_text(text)
    with pytest.raises(ConfigMistakes) as caught:
        load_config(str(file), env or {})
    return [(item.where.removeprefix(f"{file}:"), item.path, item.message) for item in caught.value.mistakes]


def only(tmp_path, text, suffix="yaml", env=None):
    found = mistakes(tmp_path, text, suffix, env)
    assert len(found) == 1, found
    return found[0]


def load(tmp_path, text, suffix="yaml", env=None):
    file = tmp_path / f"hmas.{suffix}"
    file.write_text(text)
    return load_config(str(file), env or {})


def test_without_a_file_the_defaults_hold():
    assert load_config(None, {"PATH": "/bin"}) == Config()


def test_an_empty_file_is_the_defaults(tmp_path):
    assert load(tmp_path, "") == Config()
    assert load(tmp_path, "# only a comment\n") == Config()
    assert load(tmp_path, "", "toml") == Config()


def test_yaml_and_toml_say_the_same(tmp_path):
    yaml = load(tmp_path, "gateway:\n  port: 9000\n  drain_s: 5\nengines:\n  - {name: a, url: 'http://h:1'}\ntenants:\n  t: {weight: 2}\n")
    toml = load(
        tmp_path, '[gateway]\nport = 9000\ndrain_s = 5\n[[engines]]\nname = "a"\nurl = "http://h:1"\n[tenants.t]\nweight = 2\n', "toml"
    )
    assert yaml == toml
    assert yaml.gateway.port == 9000
    assert yaml.gateway.drain_s == 5.0
    assert yaml.engines[0].name == "a"
    assert yaml.tenants["t"].weight == 2.0


def test_the_environment_stands_above_the_file(tmp_path):
    env = {
        "HMAS_GATEWAY__PORT": "9001",
        "HMAS_GATEWAY__NO_AUTH": "True",
        "HMAS_SLO__SCALE": "0.5",
        "HMAS_STATE_DIR": "/var/lib/hmas",
        "HMAS_ENGINES": '[{"name": "b", "url": "http://h:2"}]',
        "HMAS_CONFIG": "elsewhere",
    }
    config = load(tmp_path, "gateway:\n  port: 9000\nengines:\n  - {name: a, url: 'http://h:1'}\n", env=env)
    assert config.gateway.port == 9001
    assert config.gateway.no_auth is True
    assert config.slo.scale == 0.5
    assert config.state_dir == "/var/lib/hmas"
    assert [engine.name for engine in config.engines] == ["b"]


def test_what_a_pattern_means_is_told_with_it(tmp_path):
    for url in ("http://127.0.0.1:8000/v1", 5):
        message = only(tmp_path, f"engines: [{{name: a, url: {url}}}]\n")[2]
        assert message.endswith("; allowed: text matching ^https?://[^/\\s]+$ (base address, without /v1)")


@pytest.mark.parametrize("suffix", ["yaml", "toml"])
def test_a_mistake_names_line_setting_value_and_what_is_allowed(tmp_path, suffix):
    text = "\ngateway:\n  # a comment\n  port: 99999\n" if suffix == "yaml" else "\n[gateway]\n# a comment\nport = 99999\n"
    assert only(tmp_path, text, suffix) == ("4", "gateway.port", "got 99999 (an integer); allowed: integer from 0 to 65535")


def test_all_mistakes_are_told_at_once(tmp_path):
    found = mistakes(tmp_path, "gatway: {}\nscheduler:\n  policy: fastest\n  queue_limit: many\nengines:\n  - name: a\n")
    assert [(where, path) for where, path, _ in found] == [
        ("1", "gatway"),
        ("3", "scheduler.policy"),
        ("4", "scheduler.queue_limit"),
        ("6", "engines[0]"),
    ]
    assert "Did you mean `gateway`?" in found[0][2]
    assert found[1][2] == f"got 'fastest' (a text); allowed: one of {', '.join(POLICIES)}"
    assert "`url` is missing" in found[3][2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gateway:\n  port: '8080'\n", "got '8080' (a text)"),
        ("gateway:\n  port: true\n", "got True (a truth value)"),
        ("gateway:\n  port: 8080.0\n", "got 8080.0 (a number)"),
        ("gateway:\n  port:\n", "got nothing"),
        ("scheduler:\n  overdue: no\n", "got False (a truth value); allowed: one of demote, keep, shed"),
        ("gateway: []\n", "got a list; allowed: a map with the keys host, port"),
        ("engines: {}\n", "got a map; allowed: a list"),
        ("slo:\n  scale: .inf\n", "got inf (a number)"),
        ("slo:\n  scale: .nan\n", "got nan (a number)"),
        ("tenants:\n  'a b': {}\n", "key got 'a b' (a text)"),
        ('tenants:\n  "a\\n": {}\n', "key got 'a\\n' (a text)"),
        ("state_dir: 2024-01-01\n", "got 2024-01-01 (a date)"),
    ],
)
def test_a_value_of_the_wrong_kind_is_described(tmp_path, text, message):
    assert message in only(tmp_path, text)[2]


@pytest.mark.parametrize(
    ("text", "suffix", "line", "word"),
    [
        ("gateway:\n\tport: 1\n", "yaml", 2, "spaces"),
        ("gateway:\n  port: 1\n  port: 2\n", "yaml", 3, "stands twice; first on line 2"),
        ("gateway: [1\n", "yaml", 2, "not YAML"),
        ("a: 1\n---\nb: 2\n", "yaml", 2, "single document"),
        ("- 1\n", "yaml", 1, "allowed: a map"),
        ("gateway: !!python/object:os.system {}\n", "yaml", 1, "not YAML"),
        ("state_dir: !!python/name:os.system x\n", "yaml", 1, "not YAML"),
        ("state_dir: 2024-13-01\n", "yaml", 1, "month must be"),
        ("a: \x00\n", "yaml", 1, "special characters"),
        ("[gateway]\nport = \n", "toml", 2, "not TOML"),
        ("[gateway]\nport = 1\nport = 2\n", "toml", 3, "Cannot overwrite"),
        ('[gateway]\nhost = """open\n', "toml", 3, "not TOML"),
    ],
)
def test_a_file_that_is_not_well_formed_names_its_line(tmp_path, text, suffix, line, word):
    file = tmp_path / f"hmas.{suffix}"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(str(file), {})
    assert str(caught.value).startswith(f"{file}:{line}: ")
    assert word in str(caught.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match="No such file or directory; `hmas config example"):
        load_config(str(tmp_path / "none.yaml"), {})
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(ConfigError, match=r"folder.yaml: cannot be read: Is a directory$"):  # and nobody is told to write over it
        load_config(str(tmp_path / "folder.yaml"), {})
    for name, said in (("hmas.ini", "ends in .ini"), ("hmas", "has no ending")):
        with pytest.raises(ConfigError, match=rf"the name {said}, which tells no format; allowed: \.yaml, \.yml, \.toml"):
            load_config(str(tmp_path / name), {})
    (tmp_path / "latin.yaml").write_bytes(b"a: 1\nb: \xe4\n")
    with pytest.raises(ConfigError, match=r"latin.yaml:2: not UTF-8"):
        load_config(str(tmp_path / "latin.yaml"), {})
    (tmp_path / "large.yaml").write_bytes(b"#" * (1 << 20) + b"\n")
    with pytest.raises(ConfigError, match="more than 1048576 bytes"):
        load_config(str(tmp_path / "large.yaml"), {})


def test_aliases_cannot_unfold_without_end(tmp_path):
    layers = ["l0: &l0 [x, x, x, x, x, x, x, x, x, x]"]
    layers += [f"l{n}: &l{n} [" + ", ".join([f"*l{n - 1}"] * 10) + "]" for n in range(1, 9)]
    (tmp_path / "bomb.yaml").write_text("\n".join(layers))
    with pytest.raises(ConfigError, match="too many or too deeply nested"):
        load_config(str(tmp_path / "bomb.yaml"), {})
    (tmp_path / "deep.yaml").write_text("a: " + "[" * 20_000)
    with pytest.raises(ConfigError):
        load_config(str(tmp_path / "deep.yaml"), {})
    (tmp_path / "self.yaml").write_text("a: &a [*a]\n")
    with pytest.raises(ConfigError, match="too many or too deeply nested"):
        load_config(str(tmp_path / "self.yaml"), {})


def test_a_value_that_may_be_a_secret_is_not_shown(tmp_path):
    text = "gateway:\n  admin_token_sha256: hunter2\ntenants:\n  t:\n    key_sha256: [sk-plain-key]\n"
    found = mistakes(tmp_path, text)
    assert [where for where, _, _ in found] == ["2", "5"]
    assert not any("hunter2" in message or "sk-plain" in message for _, _, message in found)
    assert "a text of 12 characters (not shown)" in found[1][2]


@pytest.mark.parametrize(
    ("text", "line", "path", "word"),
    [
        ("gateway:\n  host: 0.0.0.0\n  no_auth: true\n", "3", "gateway.no_auth", "loopback"),
        ("gateway:\n  host: gateway.example\n  no_auth: true\n", "3", "gateway.no_auth", "loopback"),
        ("gateway:\n  admin_host: 10.0.0.1\n", "2", "gateway.admin_host", "hmas key new"),
        ("gateway:\n  port: 8081\n", "1", "gateway.admin_port", "another port"),
        ("agents:\n  statera_band_low: 0.95\n", "2", "agents.statera_band_low", "statera_band_high 0.92"),
        ("agents:\n  perception_reader: http://h:1\n", "1", "agents.perception_endpoint_model", "the name of a model"),
        ("agents:\n  meta_policies: edf, magic\n", "2", "agents.meta_policies", "'magic'; allowed: fcfs, edf"),
        ("agents:\n  meta_routers: default, magic\n", "2", "agents.meta_routers", "router 'magic' is unknown; allowed: default"),
        ("agents:\n  meta_routers: 'default:queue=-1'\n", "2", "agents.meta_routers", "weight of 'queue' is '-1'; allowed: 0 to 1000"),
        (f"agents:\n  meta_routers: '{','.join(f'default:kv={n}' for n in range(5))}'\n", "2", "agents.meta_routers", "allowed: 4 at most"),
        ("agents:\n  statera_tuning: /\n", "2", "agents.statera_tuning", "a file that is there"),
        ("agents:\n  meta_model: /no/such\n", "2", "agents.meta_model", "a file or folder that is there"),
        ("agents:\n  qos_short_window_s: 90\n", "2", "agents.qos_short_window_s", "at most that"),
        ("agents:\n  statera_n_run_min: 8\nscheduler:\n  n_run: 4\n", "4", "scheduler.n_run", "at least that"),
        ("bus:\n  url: http://redis\n", "2", "bus.url", "redis://, rediss://, unix://"),
        (f"bus:\n  url: unix:///{'x' * 120}\n", "2", "bus.url", "107"),
        ("engines:\n- {name: a, url: 'http://h:1'}\n- {name: a, url: 'http://h:2'}\n", "3", "engines[1].name", "engines[0] has too"),
        ("engines:\n- {name: a, url: 'http://h:1'}\n- {name: b, url: 'http://H:1'}\n", "3", "engines[1].url", "engines[0] has too"),
        (
            "agents:\n  statera_n_run_min: 9\nengines:\n- name: a\n  url: http://h:1\n  n_run_max: 4\n",
            "6",
            "engines[0].n_run_max",
            "statera_n_run_min 9",
        ),
        (
            f"tenants:\n  a: {{key_sha256: ['{HASH_A}']}}\n  b:\n    key_sha256:\n    - '{HASH_B}'\n    - '{HASH_A}'\n",
            "6",
            "tenants.b.key_sha256[1]",
            "tenants.a.key_sha256[0]",
        ),
    ],
)
def test_settings_that_contradict_each_other(tmp_path, text, line, path, word):
    where, at, message = only(tmp_path, text)
    assert (where, at) == (line, path)
    assert word in message


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]", "127.8.9.10"])
def test_no_auth_is_allowed_on_loopback(tmp_path, host):
    assert load(tmp_path, f"gateway:\n  host: '{host}'\n  no_auth: true\n").gateway.no_auth


def test_an_admin_address_outside_loopback_is_allowed_with_a_token(tmp_path):
    assert load(tmp_path, f"gateway:\n  admin_host: 0.0.0.0\n  admin_token_sha256: '{HASH_A}'\n")


@pytest.mark.parametrize(
    ("env", "where", "word"),
    [
        ({"HMAS_GATEWAY__PORT": "http"}, "HMAS_GATEWAY__PORT", "gateway.port: got 'http' (a text); allowed: integer"),
        ({"HMAS_GATEWAY__PROT": "1"}, "HMAS_GATEWAY__PROT", "Did you mean `HMAS_GATEWAY__PORT`?"),
        ({"HMAS_GATEWAY_PORT": "9000"}, "HMAS_GATEWAY_PORT", "two underscores"),
        ({"HMAS_TENANTS__A__WEIGHT": "2"}, "HMAS_TENANTS__A__WEIGHT", "whole list or map as JSON"),
        ({"HMAS_TENANTS": "{a:1}"}, "HMAS_TENANTS", "not JSON at column 2"),
        ({"HMAS_GATEWAY__NO_AUTH": "maybe"}, "HMAS_GATEWAY__NO_AUTH", "allowed: true or false"),
        ({"HMAS_ENGINES": '[{"name": "a"}]'}, "HMAS_ENGINES", "engines[0]: the key `url` is missing"),
        ({"HMAS_GATEWAY__HOST": "0.0.0.0", "HMAS_GATEWAY__NO_AUTH": "1"}, "HMAS_GATEWAY__NO_AUTH", "loopback"),
    ],
)
def test_a_mistake_in_the_environment_names_the_variable(env, where, word):
    with pytest.raises(ConfigError) as caught:
        load_config(None, env)
    assert str(caught.value).startswith(f"environment variable {where}: ")
    assert word in str(caught.value)


def test_the_environment_cannot_reach_into_what_is_no_section(tmp_path):
    where, path, _ = only(tmp_path, "gateway: 5\n", env={"HMAS_GATEWAY__PORT": "1"})
    assert (where, path) == ("1", "gateway")


def test_what_kubernetes_puts_into_every_pod_is_left_alone():
    links = {
        "HMAS_SERVICE_HOST": "10.0.0.1",
        "HMAS_SERVICE_PORT_HTTP": "8080",
        "HMAS_GATEWAY_PORT": "tcp://10.0.0.1:8080",
        "HMAS_GATEWAY_PORT_8080_TCP_ADDR": "10.0.0.1",
    }
    assert load_config(None, links) == Config()


LINES = [
    "gateway:",
    "  port: 1",
    "  port: x",
    "engines:",
    "- name: a",
    "  url: http://h:1",
    "- {",
    "a: &b [*b]",
    "? [1]",
    "\t",
    "%YAML",
    "!!x y",
    "...",
]


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(LINES) | st.text(max_size=6), max_size=8).map("\n".join), st.sampled_from(["yaml", "toml"]))
def test_whatever_a_file_holds_is_taken_or_refused_in_words(tmp_path, text, suffix):
    file = tmp_path / f"fuzz.{suffix}"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    with contextlib.suppress(ConfigError):
        load_config(str(file), {})


def test_advice_says_what_is_probably_not_meant():
    words = advice(load_config(None, {}), {})
    assert any(word.startswith("engines:") for word in words)
    assert any(word.startswith("tenants:") for word in words)
    env = {"HMAS_ENGINES": '[{"name":"a","url":"http://h:1","api_key_env":"GPU_KEY"}]', "HMAS_GATEWAY__NO_AUTH": "true"}
    assert [word.split(":")[0] for word in advice(load_config(None, env), env)] == ["engines[0].api_key_env"]
    assert advice(load_config(None, env), {**env, "GPU_KEY": "x"}) == []
    asked = {**env, "GPU_KEY": "x", "HMAS_AGENTS__PERCEPTION_ENDPOINT_KEY_ENV": "LM_KEY"}
    assert [word.split(":")[0] for word in advice(load_config(None, asked), asked)] == ["agents.perception_endpoint_key_env"]
    one = {**env, "GPU_KEY": "x", "HMAS_AGENTS__META_ROUTERS": "default", "HMAS_AGENTS__META_SELECTOR": "rules"}
    assert advice(load_config(None, one), one) == [
        "agents.meta_routers: no effect, because the selector 'rules' leaves the router as it is",
        "agents.meta_routers: no effect while there is one engine",
    ]


def test_the_example_loads_and_shows_only_known_settings(tmp_path):
    config = load(tmp_path, example_config())
    assert config.engines[0].name == "gpu-0"
    assert config.gateway.no_auth
    assert config.scheduler.policy == Config().scheduler.policy


def test_the_reference_page_is_current():
    page = REPOSITORY / "docs" / "configuration.md"
    assert page.read_text() == reference(), "run `make docs`"


def test_the_reference_names_every_setting():
    text = reference()
    assert f"`name` has {DNS_NAME_MOST} characters at most" in text
    for section in msgspec.structs.fields(Config):
        kind = section.type
        inner = kind.__args__[-1] if hasattr(kind, "__args__") else kind
        for field in msgspec.structs.fields(inner) if hasattr(inner, "__struct_fields__") else [section]:
            assert f"| `{field.name}` |" in text


def test_what_engines_and_their_tests_read_from_the_environment_does_not_stop_a_gateway():
    sources = [REPOSITORY / "Makefile", *(REPOSITORY / "engines").rglob("*.py"), *(REPOSITORY / "tests" / "engines").rglob("*.py")]
    read = set(re.findall(r"\bHMAS_(?:[A-Z0-9]+_)*[A-Z0-9]+\b", "".join(path.read_text() for path in sources)))
    # The first goes from one process of an engine to another, the second to the build.
    read -= {"HMAS_CONTROL_SEAL", "HMAS_COMPILE"} | set(names())
    assert "HMAS_CONTROL_TOKEN" in read
    load_config(None, dict.fromkeys(read, "x"))


def test_a_file_of_engines_stands_beside_the_configured_ones(tmp_path):
    found = tmp_path / "engines.json"
    found.write_text('{"engines": []}')
    assert load(tmp_path, f"engines_file: {found}\n").engines == []
    found.write_text('{"engines": [{"name": "b", "url": "http://h:2"}]}')
    text = f"engines_file: {found}\nengines:\n  - {{name: a, url: 'http://h:1'}}\n"
    assert [engine.name for engine in load(tmp_path, text).engines] == ["a", "b"]
    assert [engine.name for engine in load(tmp_path, f"engines_file: {found}\n").engines] == ["b"]
    found.write_text('{"engines": [\n  {"name": "b", "url": "nowhere"},\n  {"name": "a", "url": "http://h:3", "n_run_max": 0}\n]}')
    assert [(line.removeprefix(f"{found}:"), path) for line, path, _ in mistakes(tmp_path, text)] == [
        ("2", "engines[0].url"),
        ("3", "engines[1].n_run_max"),
    ]
    found.write_text('{"engines": [\n  {"name": "b", "url": "http://h:2"},\n  {"name": "a", "url": "http://h:3"}\n]}')
    assert only(tmp_path, text) == (
        f"{found}:3",
        "engines[1].name",
        "got 'a', which engines[0] has too; allowed: one of its own",
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "which is no file that can be read"),
        ("", "has nothing; allowed: a list `engines` alone"),
        ("[]", "allowed"),
        ('{"engines": {}}', "has 'engines'; allowed: a list `engines` alone"),
        ('{"engines": [], "tenants": {}}', "has 'engines', 'tenants'; allowed: a list `engines` alone"),
    ],
)
def test_a_file_of_engines_that_is_none_is_refused(tmp_path, content, message):
    found = tmp_path / "engines.yaml"
    if content is not None:
        found.write_text(content)
    with pytest.raises(ConfigError, match=re.escape(message)):
        load(tmp_path, f"engines_file: {found}\n")

"""What a tools file may say, and the headers by which providers tell their limits."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp import hdrs
from callsheet.managers.tools.executor import build_tools_executor
from callsheet.managers.tools.quotas import NOTHING_TOLD, Rate, ToldLimits
from callsheet.managers.tools.rate_headers import LONGEST_BLOCK_S, told_limits
from callsheet.managers.tools.settings import ToolsSettings, read_tools
from callsheet.v1 import action_pb2, manager_service_pb2
from multidict import CIMultiDict

NOW = 1_800_000_000.0
FILE = """
[keys.lab]
variable = "LAB_KEY"
[keys.open]

[quotas.lab]
requests_per_minute = 600
[quotas."lab/large"]
concurrency = 4
requests_per_minute = 60
requests_burst = 10
tokens_per_minute = 60000

[tools.search]
url = "https://search.example.com/v2"
key = "lab"
[tools.calculate]
function = "statistics:mean"
[judges.strict]
url = "https://models.example.com/v1"
model = "large"
key = "lab"
tokens_per_call = 3000
"""


def write(tmp_path: Path, text: str) -> Path:
    """A tools file."""
    path = tmp_path / "tools.toml"
    path.write_text(text)
    return path


def test_a_quota_is_that_of_the_key_at_its_model_else_of_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_KEY", "secret-secret")
    executor = build_tools_executor(ToolsSettings(tools_file=write(tmp_path, FILE)))
    node = executor.node(manager_service_pb2.NodeSpec(node_id="host", capacity={"memory": 5}))
    assert (node.node_id, dict(node.capacity)) == ("host-tools", {"lab/large:calls": 4})
    assert {name: quota.burst for name, quota in node.quotas.items()} == {
        "lab:requests": 20,
        "lab/large:requests": 9,
        "lab/large:tokens": 3000,
    }
    demands = {service.name: dict(service.demand) for service in executor.services()}
    assert demands == {
        "search": {"lab:requests": 1},
        "calculate": {},
        "strict": {"lab/large:calls": 1, "lab/large:requests": 1, "lab/large:tokens": 3000},
    }
    kinds = {service.name: list(service.kinds) for service in executor.services()}
    assert kinds["strict"] == [action_pb2.ACTION_KIND_REWARD]
    assert kinds["search"] == kinds["calculate"] == [action_pb2.ACTION_KIND_TOOL_CALL]


def test_managers_that_count_in_one_redis_are_one_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = []
    for host in ("one", "two"):
        monkeypatch.setenv("LAB_KEY", "secret-secret")
        settings = ToolsSettings(tools_file=write(tmp_path, FILE), quota_redis="redis://127.0.0.1:1")
        nodes.append(build_tools_executor(settings).node(manager_service_pb2.NodeSpec(node_id=host)))
    assert nodes[0] == nodes[1]


def test_the_key_is_taken_out_of_the_environment_and_shown_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_KEY", "secret-secret")
    executor = build_tools_executor(ToolsSettings(tools_file=write(tmp_path, FILE)))
    with pytest.raises(ValueError, match="LAB_KEY: is not set"):
        build_tools_executor(ToolsSettings(tools_file=write(tmp_path, FILE)))
    shown = repr([*executor.services(), executor.node(manager_service_pb2.NodeSpec()), executor.capabilities()])
    assert "secret-secret" not in shown + repr(ToolsSettings(quota_redis="redis://:secret-secret@host"))


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("[tool.x]", "'tool': must be one of tools, judges, keys, quotas"),
        ("[tools.x]\nurk = 1", "tools.x: 'urk': must be one of"),
        ("[tools.x]", "function: must be given, or url or hosts"),
        ('[tools.x]\nurl = "https://a"\nfunction = "a:b"', "not both"),
        ('[tools.x]\nfunction = "a.b"', "must be package.module:function"),
        ('[tools.x]\nfunction = "a:b;import os"', "must be package.module:function"),
        ('[tools.x]\nhosts = ["example.com"]', 'must be "HOST:PORT"'),
        ('[tools.x]\nhosts = "example.com:443"', "must be a list"),
        ('[tools.x]\nurl = "https://a"\nconcurrency = -1', "must be a whole number of at least 0"),
        ('[tools.x]\nurl = "https://a"\nprivate_addresses = 1', "must be true or false"),
        ('[judges.x]\nurl = "https://a"', "model"),
        (
            '[tools.x]\nurl = "https://a"\n[judges.x]\nurl = "https://a"\nmodel = "m"',
            "must not have the name of a tool",
        ),
        ("tools = 3", "tools: must be a table"),
        ("[tools]\nx = 3", "tools.x: 3: must be a table"),
    ],
)
def test_what_breaks_a_rule_is_named(tmp_path: Path, text: str, rule: str) -> None:
    with pytest.raises(ValueError, match=rule.replace("(", r"\(")):
        read_tools(write(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ('[tools.x]\nurl = "ftp://a"', "must be http:// or https://"),
        ('[tools.x]\nurl = "https://user:word@a"', "without a user"),
        ('[tools.x]\nurl = "https://a"\nkey = "none"', "is none of no keys"),
        ('[tools.x]\nurl = "https://a"\nkey = "k"\n[keys.k]\nfile = "/nowhere/key"', "cannot be read"),
        ("", "must name a tool or a judge"),
        (
            '[keys.k]\n[quotas.k]\ntokens_per_minute = 100\n[tools.x]\nurl = "https://a"\nkey = "k"\n'
            "tokens_per_call = 200",
            "quotas.k: 100: must be at least 200",
        ),
    ],
)
def test_what_cannot_be_served_is_refused_at_the_start(tmp_path: Path, text: str, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        build_tools_executor(ToolsSettings(tools_file=write(tmp_path, text)))


def test_a_quota_without_rates_bounds_calls_at_once_alone(tmp_path: Path) -> None:
    text = '[keys.k]\n[quotas.k]\nconcurrency = 2\n[tools.x]\nurl = "https://a"\nkey = "k"'
    content = read_tools(write(tmp_path, text))
    quota = content.quota_of(content.tools["x"], "x")
    assert (quota.name, quota.concurrency, quota.requests, quota.tokens) == ("k", 2, None, None)


def test_two_models_of_one_quota_have_the_burst_of_the_larger_call(tmp_path: Path) -> None:
    judges = "\n".join(
        f'[judges.{name}]\nurl = "https://a"\nmodel = "{name}"\nkey = "k"\ntokens_per_call = {tokens}'
        for name, tokens in (("a", 500), ("b", 9_000))
    )
    content = read_tools(write(tmp_path, f"[keys.k]\n[quotas.k]\ntokens_per_minute = 60000\n{judges}"))
    quotas = {content.quota_of(each, name) for name, each in content.judges.items()}
    assert len(quotas) == 1
    assert isinstance(rate := quotas.pop().tokens, Rate)
    assert rate.burst == 9_000


@pytest.mark.parametrize(
    ("status", "headers", "told"),
    [
        (200, {}, NOTHING_TOLD),
        (429, {}, ToldLimits(1.0)),
        (429, {"Retry-After": "7"}, ToldLimits(7.0)),
        (429, {"retry-after": "0.25"}, ToldLimits(0.25)),
        (429, {"Retry-After": "Fri, 15 Jan 2027 08:00:30 GMT"}, ToldLimits(30.0)),
        (503, {"Retry-After": "3"}, ToldLimits(3.0)),
        (200, {"Retry-After": "3"}, NOTHING_TOLD),
        (429, {"Retry-After": "1e12"}, ToldLimits(LONGEST_BLOCK_S)),
        (429, {"Retry-After": "nan"}, ToldLimits(1.0)),
        (429, {"Retry-After": "-5"}, ToldLimits(1.0)),
        (429, {"Retry-After": "soon"}, ToldLimits(1.0)),
        (200, {"x-ratelimit-remaining-requests": "12", "x-ratelimit-reset-requests": "1m0s"}, ToldLimits(requests=12)),
        (200, {"x-ratelimit-remaining-tokens": "0"}, ToldLimits(tokens=0)),
        (
            200,
            {"anthropic-ratelimit-requests-remaining": "3", "anthropic-ratelimit-tokens-remaining": "900"},
            ToldLimits(requests=3, tokens=900),
        ),
        (200, {"RateLimit-Remaining": "0", "RateLimit-Reset": "20"}, ToldLimits(20.0, requests=0)),
        (200, {"RateLimit-Remaining": "5", "RateLimit-Reset": "20"}, ToldLimits(requests=5)),
        (200, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(int(NOW) + 15)}, ToldLimits(15.0, requests=0)),
        (
            200,
            {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(int(NOW) * 1000 + 4000)},
            ToldLimits(4.0, requests=0),
        ),
        (
            200,
            {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(int(NOW + 4) * 10**6)},
            ToldLimits(4.0, requests=0),
        ),
        (200, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "4000"}, ToldLimits(4.0, requests=0)),
        (200, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "900 ms"}, ToldLimits(0.9, requests=0)),
        (200, {"RateLimit-Remaining": "0", "RateLimit-Reset": "4s"}, ToldLimits(4.0, requests=0)),
        (429, {"Retry-After": str(int(NOW) * 1000 + 4000)}, ToldLimits(4.0)),
        (429, {"Retry-After": "7200"}, ToldLimits(LONGEST_BLOCK_S)),
        (429, {"Retry-After-Ms": "1500", "Retry-After": "2"}, ToldLimits(1.5)),
        (
            429,
            {"Retry-After": "4", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "90"},
            ToldLimits(4.0, requests=0),
        ),
        (
            429,
            {"Retry-After": "Fri, 15 Jan 2027 09:00:30 GMT", "Date": "Fri, 15 Jan 2027 09:00:00 GMT"},
            ToldLimits(30.0),
        ),
        (429, {"Retry-After": "Fri, 15 Jan 2027 07:00:00 GMT"}, ToldLimits(1.0)),
        (200, {"X-RateLimit-Remaining": "-1"}, NOTHING_TOLD),
        (200, {"X-RateLimit-Remaining": "lots"}, NOTHING_TOLD),
    ],
)
def test_what_headers_say(status: int, headers: dict[str, str], told: ToldLimits) -> None:
    assert told_limits(status, CIMultiDict({**headers, hdrs.CONTENT_TYPE: "text/plain"}), NOW) == told

"""Rules for the payloads of the five kinds, and for single fields."""

from __future__ import annotations

import math

import pytest
from callsheet.scheduler.core.words.refusals import RefusalCode, RefusedError
from callsheet.scheduler.service.codec import action_kinds, rules
from callsheet.scheduler.service.codec.action_kinds import KIND_RULES
from callsheet.v1 import action_pb2, common_pb2
from google.protobuf import duration_pb2, text_format

DIGEST = "0123456789abcdef" * 4
SAMPLING = "prompt_token_ids: 1 sampling { max_new_tokens: 1 "
STOPS = 'stop: "a" ' * 65
REFUSED = [
    ("generate {}", "generate.prompt_token_ids", "[]", "at least one token"),
    ("generate { prompt_token_ids: [3, -2] }", "generate.prompt_token_ids", "-2", "negative"),
    ("generate { prompt_token_ids: 1 }", "generate.sampling.max_new_tokens", "0", "at least 1"),
    (f"generate {{ {SAMPLING} temperature: -1 }} }}", "generate.sampling.temperature", "-1", "at least 0"),
    (f"generate {{ {SAMPLING} temperature: nan }} }}", "generate.sampling.temperature", "nan", "number"),
    (f"generate {{ {SAMPLING} top_p: 1.5 }} }}", "generate.sampling.top_p", "1.5", "between 0"),
    (f"generate {{ {SAMPLING} top_p: nan }} }}", "generate.sampling.top_p", "nan", "between 0"),
    (f"generate {{ {SAMPLING} top_k: -1 }} }}", "generate.sampling.top_k", "-1", "at least 0"),
    (f"generate {{ {SAMPLING} stop: 'a' stop: '' }} }}", "generate.sampling.stop[1]", "0 characters", "1 to 1024"),
    (f"generate {{ {SAMPLING} {STOPS} }} }}", "generate.sampling.stop", "65 texts", "at most 64"),
    (f"generate {{ {SAMPLING} log_probs_mode: 9 }} }}", "generate.sampling.log_probs_mode", "9", "not a value"),
    ("env_reset { disk_mib: -1 }", "env_reset.disk_mib", "-1", "between 0 and"),
    ("env_reset { max_processes: -1 }", "env_reset.max_processes", "-1", "between 0 and"),
    ('env_reset { image: "../host" }', "env_reset.image", "../host", "1 to 240"),
    ('env_reset { image: "a/../host" }', "env_reset.image", "a/../host", "1 to 240"),
    ('env_reset { image: "/host" }', "env_reset.image", "/host", "1 to 240"),
    ('env_reset { image: "a" build { } }', "env_reset.image", "a", "must be empty where build is set"),
    ("env_reset { build { } }", "env_reset.build.context", "", ""),
    ('env_reset { build { dockerfile: "../x" } }', "env_reset.build.dockerfile", "../x", "'..'"),
    ('env_reset { build { arguments { key: "A=B" value: "" } } }', "env_reset.build.arguments", "A=B", "'='"),
    ('env_reset { network: "example.org" }', "env_reset.network[0]", "example.org", "HOST:PORT"),
    ('env_reset { network: "a:1" network: "a b:1" }', "env_reset.network[1]", "a b:1", "HOST:PORT"),
    (f"generate {{ {SAMPLING} stop: '' }} }}", "generate.sampling.stop[0]", "", "1 to 1024"),
    (f"generate {{ {SAMPLING} stop: 'a' stop: '{'b' * 1025}' }} }}", "generate.sampling.stop[1]", "1025", "1 to 1024"),
    ("generate { " + SAMPLING + "stop: 'a' " * 65 + "} }", "generate.sampling.stop", "65 texts", "at most 64"),
    (f"generate {{ {SAMPLING} log_probs_mode: 9 }} }}", "generate.sampling.log_probs_mode", "9", "not a value"),
    (
        'env_reset { defaults { environment { key: "A=B" value: "" } } }',
        "env_reset.defaults.environment",
        "A=B",
        "must not be empty nor contain",
    ),
    (
        'env_reset { defaults { working_directory: "a/../b" } }',
        "env_reset.defaults.working_directory",
        "a/../b",
        "'..'",
    ),
    ('env_reset { defaults { user: "a\\n" } }', "env_reset.defaults.user", "a\n", "printable"),
    (
        "env_reset { defaults { start_to_close { seconds: -1 } } }",
        "env_reset.defaults.start_to_close",
        "-1",
        "between 0 and 30 days",
    ),
    (
        "env_reset { defaults { max_output_bytes: -1 } }",
        "env_reset.defaults.max_output_bytes",
        "-1",
        "at least 0",
    ),
    ("env_reset { set_up {} }", "env_reset.set_up", "", "exactly one of argv, shell and python"),
    ('env_reset { files { path: "a" } }', "env_reset.files[0].content", "", "exactly one of inline and reference"),
    ('env_reset { files { content { inline: "" } } }', "env_reset.files[0].path", "", "must not be empty"),
    (
        'env_reset { files { path: "a" content { inline: "" } mode: 4096 } }',
        "env_reset.files[0].mode",
        "4096",
        "between 0",
    ),
    ("env_step {}", "env_step.command", "", "must be set"),
    ("env_step { command {} }", "env_step.command", "", "exactly one of argv, shell and python"),
    ("env_step { command { argv {} } }", "env_step.command.argv", "[]", "must name a program"),
    ('env_step { command { argv { arguments: "" } } }', "env_step.command.argv", "[]", "must name a program"),
    ('env_step { command { argv { arguments: "a\\000" } } }', "env_step.command.argv", "NUL", "NUL"),
    ('env_step { command { shell: "" } }', "env_step.command.shell", "", "must not be empty"),
    ('env_step { command { shell: "a\\000b" } }', "env_step.command.shell", "NUL", "NUL"),
    (
        'env_step { command { shell: "a" environment { key: "" value: "x" } } }',
        "env_step.command.environment",
        "",
        "must not be empty",
    ),
    (
        'env_step { command { shell: "a" environment { key: "A=B" value: "x" } } }',
        "env_step.command.environment",
        "A=B",
        "'='",
    ),
    (
        'env_step { command { shell: "a" environment { key: "SECRET" value: "pass\\000word" } } }',
        "env_step.command.environment[SECRET]",
        "a NUL",
        "NUL",
    ),
    (
        'env_step { command { shell: "a" working_directory: "/etc/.." } }',
        "env_step.command.working_directory",
        "/etc/..",
        "'..'",
    ),
    ('env_step { command { shell: "a" max_output_bytes: -1 } }', "env_step.command.max_output_bytes", "-1", "at least"),
    ('env_step { command { shell: "a" stdin {} } }', "env_step.command.stdin", "", "exactly one"),
    ("tool_call {}", "tool_call.method", "", "1 to 256"),
    ('tool_call { method: "m" arguments {} }', "tool_call.arguments", "", "exactly one"),
    ("reward {}", "reward.scorer", "", "one of test_suite, model, script, teacher and judge"),
    ("reward { model {} }", "reward.model.token_ids", "[]", "at least one token"),
    ('reward { model { token_ids: 1 text { prompt: "a" } } }', "reward.model.text", "", "unset beside token ids"),
    ("reward { model { text {} } }", "reward.model.text", "", "a prompt, a response or messages"),
    ('reward { model { text { messages { content: "a" } } } }', "reward.model.text.messages[0].role", "", "1 to 256"),
    ("reward { teacher {} }", "reward.teacher.token_ids", "[]", "at least one token"),
    ("reward { teacher { token_ids: 7 } }", "reward.teacher.token_ids", "7", "two tokens"),
    ('reward { teacher { text { prompt: "a" } } }', "reward.teacher.text.response", "", "must not be empty"),
    ('reward { teacher { text { response: "a" } } }', "reward.teacher.text.prompt", "", "must not be empty"),
    ('reward { judge { text { prompt: "a" } } }', "reward.judge.rubric", "", "must not be empty"),
    ('reward { judge { rubric: "a" } }', "reward.judge.text", "", "a prompt, a response or messages"),
    ("reward { model { token_ids: -1 } }", "reward.model.token_ids", "-1", "negative"),
    ("reward { test_suite {} }", "reward.test_suite.command", "", "must be set"),
    (
        'reward { test_suite { command { shell: "t" } } }',
        "reward.test_suite.files",
        "[]",
        "without a trajectory a fresh sandbox is empty: give files or an image",
    ),
    (
        'reward { script { command { shell: "t > {score}" } } }',
        "reward.script.files",
        "[]",
        "a fresh sandbox is empty",
    ),
    ('reward { test_suite { command { shell: "t" } where: 7 } }', "reward.test_suite.where", "7", "not a value"),
    ('reward { test_suite { command { shell: "t" } image: "/x" } }', "reward.test_suite.image", "/x", "1 to 240"),
    (
        'reward { script { command { shell: "t > {score}" } where: REWARD_PLACE_IN_SANDBOX image: "x" } }',
        "reward.script.image",
        "x",
        "must be empty in the trajectory's sandbox",
    ),
    (
        'reward { test_suite { command { shell: "t" } image: "x" background: REWARD_BACKGROUND_KILL } }',
        "reward.test_suite.background",
        "REWARD_BACKGROUND_KILL",
        "a fresh sandbox has no processes yet",
    ),
    (
        'reward { script { command { shell: "t > {score}" } where: REWARD_PLACE_IN_SANDBOX background: 9 } }',
        "reward.script.background",
        "9",
        "not a value",
    ),
    ("reward { script {} }", "reward.script.command", "", "must be set"),
    (
        'reward { script { command { shell: "t" } image: "x" } }',
        "reward.script.score_file",
        "",
        "must name the file with the score, or the command must have '{score}'",
    ),
    (
        'reward { script { command { argv { arguments: ["t", "{score}"] } } image: "x" score_file: "a" } }',
        "reward.script.score_file",
        "a",
        "must be empty where the command has '{score}'",
    ),
    (
        'reward { script { command { shell: "t" } image: "x" score_file: "../a" } }',
        "reward.script.score_file",
        "../a",
        "'..'",
    ),
    ('reward { test_suite { files { path: "../x" } } }', "reward.test_suite.files[0].path", "../x", "'..'"),
]


@pytest.mark.parametrize(("text", "field", "value", "rule"), REFUSED, ids=[f"{case[1]}-{case[3]}" for case in REFUSED])
def test_a_broken_rule_is_named(text: str, field: str, value: str, rule: str) -> None:
    spec = text_format.Parse(text, action_pb2.ActionSpec())
    with pytest.raises(RefusedError) as refused:
        KIND_RULES[spec.WhichOneof("payload") or ""].check(spec)
    assert refused.value.code is RefusalCode.INVALID_ARGUMENT
    assert refused.value.field == field
    assert value in refused.value.value
    assert rule in refused.value.rule
    assert "word" not in str(refused.value)


@pytest.mark.parametrize("path", ["", "..", "/..", "/testbed/../etc", "../x", "a/../../b", "a/..", "a\0b"])
def test_paths_that_leave_the_working_directory(path: str) -> None:
    step = action_pb2.EnvStepInput(command=action_pb2.Command(shell="ls"))
    step.files.add(path="fine/file", content=common_pb2.Blob(inline=b""))
    step.files.add(path=path, content=common_pb2.Blob(inline=b""))
    with pytest.raises(RefusedError) as refused:
        action_kinds.check_env_step(step)
    assert refused.value.field == "env_step.files[1].path"


@pytest.mark.parametrize("path", ["a", "a/b", "..a", "a..", ".hidden", "a/...", "with space"])
def test_paths_that_stay(path: str) -> None:
    step = action_pb2.EnvStepInput(command=action_pb2.Command(shell="ls", working_directory=path))
    step.files.add(path=path, content=common_pb2.Blob(inline=b""))
    assert action_kinds.check_env_step(step) == []


def test_inline_bytes_have_a_limit() -> None:
    exactly = common_pb2.Blob(inline=b"x" * rules.MAX_INLINE)
    assert rules.blob("f", exactly) == []
    with pytest.raises(RefusedError, match="put it first") as refused:
        rules.blob("f", common_pb2.Blob(inline=b"x" * (rules.MAX_INLINE + 1)))
    assert (refused.value.field, refused.value.value) == ("f.inline", "65537 bytes")


@pytest.mark.parametrize("digest", ["", "abc", DIGEST.upper(), DIGEST[:-1] + "g", DIGEST + "0"])
def test_a_reference_is_a_lower_case_digest(digest: str) -> None:
    with pytest.raises(RefusedError) as refused:
        rules.blob("f", common_pb2.Blob(reference=common_pb2.PayloadReference(sha256=digest)))
    assert refused.value.field == "f.reference.sha256"


def test_a_reference_has_a_size() -> None:
    reference = common_pb2.PayloadReference(sha256=DIGEST, size=5)
    assert rules.blob("f", common_pb2.Blob(reference=reference)) == [reference]
    reference.size = -1
    with pytest.raises(RefusedError) as refused:
        rules.blob("f", common_pb2.Blob(reference=reference))
    assert refused.value.field == "f.reference.size"


@pytest.mark.parametrize("value", ["a", "a b", "ä", "x" * 256, "j/../k", "日本"])
def test_identifiers(value: str) -> None:
    assert rules.identifier("f", value) == value


@pytest.mark.parametrize("value", ["", "x" * 257, "a\tb", "a\0", "a\u2028b", "\x1b[31m"])
def test_no_identifiers(value: str) -> None:
    with pytest.raises(RefusedError) as refused:
        rules.identifier("f", value)
    assert refused.value.field == "f"


def test_values_of_an_enumeration() -> None:
    assert rules.known("f", 0, {0, 1}) == 0
    assert rules.known("f", 1, {0, 1}, required=True) == 1
    for value, required in ((2, False), (-1, False), (0, True)):
        with pytest.raises(RefusedError):
            rules.known("f", value, {0, 1}, required=required)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.001])
def test_numbers_are_finite_and_not_too_small(value: float) -> None:
    with pytest.raises(RefusedError):
        rules.at_least("f", value, 0.0)
    with pytest.raises(RefusedError):
        rules.within("f", value, 0.0, 1.0)


def test_intervals_are_closed() -> None:
    assert rules.within("f", 0.0, 0.0, 1.0) == 0.0
    assert rules.within("f", 1.0, 0.0, 1.0) == 1.0
    assert rules.at_least("f", 0.0, 0.0) == 0.0
    with pytest.raises(RefusedError):
        rules.within("f", 1.0001, 0.0, 1.0)


@pytest.mark.parametrize(
    ("seconds", "nanos", "value"), [(0, 0, 0.0), (1, 500_000_000, 1.5), (2_592_000, 0, 2_592_000.0)]
)
def test_durations(seconds: int, nanos: int, value: float) -> None:
    assert rules.seconds("f", duration_pb2.Duration(seconds=seconds, nanos=nanos)) == value


@pytest.mark.parametrize(("seconds", "nanos"), [(-1, 0), (0, -1), (2_592_000, 1_000), (1 << 62, 0), (-(1 << 62), 0)])
def test_no_durations(seconds: int, nanos: int) -> None:
    with pytest.raises(RefusedError, match="30 days"):
        rules.seconds("f", duration_pb2.Duration(seconds=seconds, nanos=nanos))


@pytest.mark.parametrize("path", ["a", "a/b", "/testbed/a", "/", "..a"])
def test_paths_within_the_sandbox(path: str) -> None:
    step = action_pb2.EnvStepInput(command=action_pb2.Command(shell="ls", working_directory=path), download=[path])
    step.files.add(path=path, content=common_pb2.Blob(inline=b""))
    assert action_kinds.check_env_step(step) == []


def test_a_command_of_a_session_may_have_variables() -> None:
    command = action_pb2.Command(shell="ls", environment={"A": "b"})
    assert action_kinds.check_env_step(action_pb2.EnvStepInput(command=command, session="main")) == []

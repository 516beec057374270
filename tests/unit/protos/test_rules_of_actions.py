"""Rules of actions, held at both doors: a client refuses a message by the rule by which the scheduler refuses it."""

from __future__ import annotations

import pytest
from callsheet.client import InvalidArgumentError
from callsheet.client.codec.actions import check
from callsheet.scheduler.service.codec.decode import decode_action
from callsheet.v1 import action_pb2, common_pb2
from callsheet.v1.names import MAX_COMMAND_BYTES
from google.protobuf import text_format

from tests.support.refusals import refusal

BASE = 'job_id: "j" action_id: "a" '
GENERATE = "generate { prompt_token_ids: 1 sampling { max_new_tokens: 1 } }"
STEP = 'env_step { command { shell: "ls" } }'
IN_SANDBOX = 'reward { test_suite { where: REWARD_PLACE_IN_SANDBOX command { shell: "t" } } }'
CPU = 'resource: "cpu" min_milli_units: 1000 max_milli_units: 4000'
NAN, INF = "nan", "inf"
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLING = "prompt_token_ids: 1 sampling { max_new_tokens: 1 "
STOPS = 'stop: "a" ' * 65


def demand(text: str) -> str:
    return BASE + GENERATE + f" demand {{ {text} }}"


def timeouts(text: str) -> str:
    return BASE + GENERATE + f" timeouts {{ {text} }}"


def retry(text: str) -> str:
    return BASE + GENERATE + f" retry {{ {text} }}"


def speed_up(text: str) -> str:
    return demand(f"resources {{ {CPU} speed_up {{ {text} }} }}")


def points(*pairs: str) -> str:
    return speed_up("table { " + " ".join(f"points {{ {pair} }}" for pair in pairs) + " }")


def path(field: str, path: str) -> str:
    return {
        "env_step.files[0].path": f'env_step {{ files {{ path: "{path}" }} }}',
        "env_step.download[0]": f'env_step {{ command {{ shell: "a" }} download: "{path}" }}',
        "env_reset.defaults.working_directory": f'env_reset {{ defaults {{ working_directory: "{path}" }} }}',
    }[field]


PAYLOADS = [
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
    (f"generate {{ {SAMPLING} stop: 'a' stop: '{'b' * 1025}' }} }}", "generate.sampling.stop[1]", "1025", "1 to 1024"),
    (
        'env_reset { defaults { environment { key: "A=B" value: "" } } }',
        "env_reset.defaults.environment",
        "A=B",
        "must not begin with a digit",
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
    ("env_step { command { argv {} } }", "env_step.command.argv", "", "must not be empty"),
    ('env_step { command { argv { arguments: "" } } }', "env_step.command.argv", "", "must not be empty"),
    ('env_step { command { argv { arguments: "a\\000" } } }', "env_step.command.argv", "NUL", "NUL"),
    ('env_step { command { shell: "" } }', "env_step.command.shell", "", "must not be empty"),
    ('env_step { command { shell: "a\\000b" } }', "env_step.command.shell", "NUL", "NUL"),
    (
        'env_step { command { shell: "a" environment { key: "" value: "x" } } }',
        "env_step.command.environment",
        "",
        "a name must have letters",
    ),
    (
        'env_step { command { shell: "a" environment { key: "A=B" value: "x" } } }',
        "env_step.command.environment",
        "A=B",
        "a name must have letters",
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
    *(
        (path(field, given), field, given[:1], rule)
        for field in ("env_step.files[0].path", "env_step.download[0]", "env_reset.defaults.working_directory")
        for given, rule in (
            ("..", "'..'"),
            ("/..", "'..'"),
            ("/testbed/../etc", "'..'"),
            ("a/../../b", "'..'"),
            ("a\\000b", "NUL"),
            ("x" * 256, "255 between two slashes"),
            ("\u00e4" * 128, "255 between two slashes"),
            ("d/" * 2049, "at most 4096 bytes"),
        )
    ),
    ('env_step { command { shell: "a" } session: "a b" }', "env_step.session", "a b", "1 to 64 letters"),
    ('env_step { command { argv { arguments: "a" } } session: "s" }', "env_step.command.argv", "s", "shell or python"),
    (
        'env_step { command { shell: "a" stdin { inline: "" } } session: "s" }',
        "env_step.command.stdin",
        "s",
        "must be unset in a session",
    ),
    ('env_step { command { shell: "a" } ' + 'download: "x" ' * 33 + "}", "env_step.download", "33", "at most 32"),
    (
        f'env_step {{ command {{ shell: "{"x" * (MAX_COMMAND_BYTES + 1)}" }} }}',
        "env_step.command.shell",
        f"{MAX_COMMAND_BYTES + 1} bytes",
        f"at most {MAX_COMMAND_BYTES} bytes",
    ),
]
WHOLE = [
    # Who and what.
    (BASE, "payload", "", "must be one of generate"),
    (f'action_id: "a" {GENERATE}', "job_id", "", "1 to 256 printable characters"),
    (f'job_id: "j" {GENERATE}', "action_id", "", "1 to 256 printable characters"),
    (f'job_id: "j" action_id: "{"x" * 257}" {GENERATE}', "action_id", "xxx", "1 to 256"),
    (f'job_id: "j\\n" action_id: "a" {GENERATE}', "job_id", "j\n", "printable"),
    (BASE + STEP, "trajectory_id", "", "must be set"),
    (BASE + "env_reset {}", "trajectory_id", "", "must be set"),
    (BASE + IN_SANDBOX, "trajectory_id", "", "must be set"),
    (BASE + f'trajectory_id: "{"t" * 300}" {GENERATE}', "trajectory_id", "ttt", "1 to 256"),
    (BASE + GENERATE + f' label: "{"l" * 257}"', "label", "lll", "at most 256"),
    (BASE + GENERATE + f' task: "{"t" * 257}"', "task", "ttt", "at most 256"),
    (BASE + GENERATE + f' service: "{"s" * 257}"', "service", "sss", "at most 256"),
    (BASE + 'tool_call { method: "m" }', "service", "", "1 to 256"),
    (BASE + GENERATE + " unservable: 9", "unservable", "9", "not a value"),
    (BASE + GENERATE + " weight: -1", "weight", "-1", "between 0"),
    (BASE + GENERATE + " weight: 1e7", "weight", "10000000.0", "between 0"),
    (BASE + GENERATE + f" weight: {NAN}", "weight", "nan", "between 0"),
    (BASE + GENERATE + f" weight: {INF}", "weight", "inf", "between 0"),
    (BASE + GENERATE + " expected_duration { seconds: -1 }", "expected_duration", "-1", "between 0 and 30 days"),
    (BASE + GENERATE + " expected_duration { seconds: 2592001 }", "expected_duration", "2592001", "30 days"),
    *(
        (BASE + GENERATE + f' traceparent: "{value}"', "traceparent", value, "must be like")
        for value in (
            "1",
            "-",
            f"00-{TRACE}-{SPAN}",
            f"00-{TRACE}-{SPAN}-01-",
            f"00-{TRACE}-{SPAN}-01-02",
            f"ff-{TRACE}-{SPAN}-01",
            f"00-{TRACE.upper()}-{SPAN}-01",
            f"00-{'0' * 32}-{SPAN}-01",
            f"00-{TRACE}-{'0' * 16}-01",
            f"00-{TRACE[1:]}-{SPAN}0-01",
            f"00-{TRACE}-{SPAN}-0x",
            f"00-{TRACE}-{SPAN}-\u06601",
            f" 00-{TRACE}-{SPAN}-01",
        )
    ),
    # Demands.
    (demand("resources { min_milli_units: 1000 }"), "demand.resources[0].resource", "", "1 to 256"),
    (demand(f"resources {{ {CPU} }} resources {{ {CPU} }}"), "demand.resources[1].resource", "cpu", "named twice"),
    (
        demand('resources { resource: "cpu" min_milli_units: -1 }'),
        "demand.resources[0].min_milli_units",
        "-1",
        "at least 0",
    ),
    (
        demand('resources { resource: "cpu" max_milli_units: -1 }'),
        "demand.resources[0].max_milli_units",
        "-1",
        "at least 0",
    ),
    (
        demand('resources { resource: "cpu" min_milli_units: 3000 max_milli_units: 2000 }'),
        "demand.resources[0].max_milli_units",
        "2000",
        "at least min_milli_units (3000)",
    ),
    (
        demand('resources { resource: "memory" min_milli_units: 500 }'),
        "demand.resources[0].min_milli_units",
        "500",
        "only 'cpu' has fractions",
    ),
    (
        demand('resources { resource: "gpu" min_milli_units: 1000 max_milli_units: 1500 }'),
        "demand.resources[0].max_milli_units",
        "1500",
        "multiple of 1000",
    ),
    (demand(f"resources {{ {CPU} hold: 7 }}"), "demand.resources[0].hold", "7", "not a value"),
    (
        demand(f"resources {{ {CPU} hold: HOLD_TRAJECTORY }}"),
        "demand.resources[0].hold",
        "HOLD_TRAJECTORY",
        "only for env_reset",
    ),
    (speed_up(""), "demand.resources[0].speed_up", "", "exactly one of amdahl_fraction and table"),
    (
        demand('resources { resource: "cpu" min_milli_units: 2000 speed_up { amdahl_fraction: 1 } }'),
        "demand.resources[0].speed_up",
        "amdahl_fraction",
        "only for an elastic entry",
    ),
    (speed_up("amdahl_fraction: 1.1"), "demand.resources[0].speed_up.amdahl_fraction", "1.1", "between 0"),
    (speed_up("amdahl_fraction: -0.1"), "demand.resources[0].speed_up.amdahl_fraction", "-0.1", "between 0"),
    (speed_up(f"amdahl_fraction: {NAN}"), "demand.resources[0].speed_up.amdahl_fraction", "nan", "between 0"),
    (points(), "demand.resources[0].speed_up.table.points", "0 points", "1 to 256 points"),
    (
        points(*(f"units: {units} speed_up: 1" for units in range(1, 258))),
        "demand.resources[0].speed_up.table.points",
        "257 points",
        "1 to 256 points",
    ),
    (points("units: 0 speed_up: 1"), "demand.resources[0].speed_up.table.points[0].units", "0", "at least 1"),
    (
        points("units: 2 speed_up: 1.5", "units: 2 speed_up: 1.6"),
        "demand.resources[0].speed_up.table.points[1].units",
        "2",
        "at least 3",
    ),
    *(
        (
            points(f"units: 2 speed_up: {value}"),
            "demand.resources[0].speed_up.table.points[0].speed_up",
            value,
            "between 0.01 and",
        )
        for value in ("0", "-1", "1e-200", "1e+200", INF)
    ),
    (
        demand(
            " ".join(
                f'resources {{ resource: "{name}" min_milli_units: 1000 max_milli_units: 2000 }}' for name in "abcde"
            )
        ),
        "demand.resources",
        "5 elastic entries",
        "at most 4",
    ),
    (
        demand(" ".join(f'resources {{ resource: "r{n}" min_milli_units: 1000 }}' for n in range(65))),
        "demand.resources",
        "65 entries",
        "at most 64",
    ),
    # Deadlines.
    (timeouts("schedule_to_start { seconds: -1 }"), "timeouts.schedule_to_start", "-1", "between 0 and 30 days"),
    (timeouts("start_to_close { nanos: -1 }"), "timeouts.start_to_close", "-1e-09", "between 0 and 30 days"),
    (timeouts("schedule_to_close { seconds: 9000000 }"), "timeouts.schedule_to_close", "9000000", "30 days"),
    (timeouts("heartbeat { seconds: -5 }"), "timeouts.heartbeat", "-5", "between 0 and 30 days"),
    (
        timeouts("schedule_to_start { seconds: 11 } schedule_to_close { seconds: 10 }"),
        "timeouts.schedule_to_start",
        "11",
        "must nest in schedule_to_close (10.0 s)",
    ),
    (
        timeouts("start_to_close { seconds: 11 } schedule_to_close { seconds: 10 }"),
        "timeouts.start_to_close",
        "11",
        "must nest in schedule_to_close",
    ),
    (
        timeouts("heartbeat { seconds: 11 } schedule_to_close { seconds: 10 }"),
        "timeouts.heartbeat",
        "11",
        "must nest in schedule_to_close",
    ),
    (
        timeouts("heartbeat { seconds: 11 } start_to_close { seconds: 10 }"),
        "timeouts.heartbeat",
        "11",
        "must nest in start_to_close",
    ),
    # Retries.
    (retry("max_attempts: -1"), "retry.max_attempts", "-1", "at least 0"),
    (retry("backoff_multiplier: 0.5"), "retry.backoff_multiplier", "0.5", "at least 1"),
    (retry(f"backoff_multiplier: {NAN}"), "retry.backoff_multiplier", "nan", "at least 1"),
    (retry("backoff_multiplier: -2"), "retry.backoff_multiplier", "-2", "at least 1"),
    (retry("initial_backoff { seconds: -1 }"), "retry.initial_backoff", "-1", "between 0"),
    (retry("max_backoff { seconds: -1 }"), "retry.max_backoff", "-1", "between 0"),
]
REFUSED = [(BASE + text, field, value, rule) for text, field, value, rule in PAYLOADS] + WHOLE


@pytest.mark.parametrize(("text", "field", "value", "rule"), REFUSED, ids=[f"{case[1]}-{case[3]}" for case in REFUSED])
def test_both_doors_refuse_what_breaks_a_rule_in_the_same_words(text: str, field: str, value: str, rule: str) -> None:
    spec = text_format.Parse(text, action_pb2.ActionSpec())
    refused = refusal(lambda: decode_action(spec))
    assert refused.field == field
    assert value in refused.value
    assert rule in refused.rule
    assert "word" not in str(refused)
    with pytest.raises(InvalidArgumentError) as caught:
        check(spec)
    assert (caught.value.field, caught.value.value, caught.value.rule) == (refused.field, refused.value, refused.rule)


@pytest.mark.parametrize("path", ["a", "a/b", "/testbed/a", "/", "..a", "a..", "a/...", "with space", "d/" * 200])
def test_paths_that_stay(path: str) -> None:
    step = action_pb2.EnvStepInput(command=action_pb2.Command(shell="ls", working_directory=path), download=[path])
    step.files.add(path=path, content=common_pb2.Blob(inline=b""))
    check(action_pb2.ActionSpec(job_id="j", action_id="a", trajectory_id="t", env_step=step))
    session = action_pb2.EnvStepInput(command=action_pb2.Command(shell="ls", environment={"A": "b"}), session="main")
    check(action_pb2.ActionSpec(job_id="j", action_id="a", trajectory_id="t", env_step=session))

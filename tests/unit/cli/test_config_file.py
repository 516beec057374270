"""The file of settings: which source wins, and how a wrong file is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from callsheet.cli import server_commands, up_command
from callsheet.deploy import manager_process
from callsheet.deploy.fleet.settings import FleetSettings
from callsheet.deploy.scheduler_process import SchedulerOptions
from callsheet.deploy.stack_settings import StackSettings

from tests.support.command_line import invoke


def written(directory: Path, text: str) -> str:
    file = directory / "callsheet.toml"
    file.write_text(text)
    return str(file)


def wrong_in(directory: Path, text: str) -> list[str]:
    """Returns the lines by which `config check` refuses a file."""
    result = invoke("--config", written(directory, text), "config", "check")
    assert result.exit_code == 2, result.output
    return result.output.splitlines()


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What commands were about to run, which they do not here."""
    told: list[Any] = []
    monkeypatch.setattr(server_commands, "run_scheduler_process", told.append)
    monkeypatch.setattr(manager_process, "run_manager_process", lambda *parts: told.extend(parts))
    monkeypatch.setattr(up_command, "run_until_signal", lambda *parts: told.extend(parts))
    monkeypatch.setattr(up_command, "require_isolation", lambda *_: None)
    for variable in ("CALLSHEET_CONFIG", "CALLSHEET_LISTEN", "CALLSHEET_DATA_DIR", "CALLSHEET_LOG_LEVEL"):
        monkeypatch.delenv(variable, raising=False)
    return told


@pytest.mark.parametrize(
    ("words", "variables", "listen"),
    [
        ((), {}, "127.0.0.1:1"),
        ((), {"CALLSHEET_LISTEN": "127.0.0.1:2"}, "127.0.0.1:2"),
        (("--listen", "127.0.0.1:3"), {"CALLSHEET_LISTEN": "127.0.0.1:2"}, "127.0.0.1:3"),
        (("--listen", "127.0.0.1:3"), {}, "127.0.0.1:3"),
    ],
)
def test_an_option_goes_before_the_environment_and_that_before_the_file(
    tmp_path: Path, ran: list[Any], words: tuple[str, ...], variables: dict[str, str], listen: str
) -> None:
    text = '[scheduler]\nlisten = "127.0.0.1:1"\ndata-dir = "/tmp/of-the-file"\n[up]\ncpus = "not looked at"\n'
    file = written(tmp_path, text)
    for before, more in ((("--config", file), {}), ((), {"CALLSHEET_CONFIG": file})):
        result = invoke(*before, "scheduler", *words, **variables, **more)
        assert result.exit_code == 0, result.output
        options = ran.pop()
        assert isinstance(options, SchedulerOptions)
        assert (options.settings.listen, options.settings.data_dir) == (listen, Path("/tmp/of-the-file"))


def test_a_file_has_a_table_for_each_command(tmp_path: Path, ran: list[Any]) -> None:
    text = """
    [scheduler]
    expect = "sandbox"
    [up]
    managers = "sandbox"
    cpus = 1
    log-files = false
    stage = ["/usr", "/etc"]
    drain_s = 3
    warm_memory_mib = 0
    [manager.sandbox]
    warm_memory_mib = 0
    keep_set_ups = false
    """
    file = written(tmp_path, text)
    assert invoke("--config", file, "manager", "sandbox").exit_code == 0
    settings = ran.pop()
    assert (settings.provisioning.warm_memory_mib, settings.provisioning.keep_set_ups) == (0, False)
    assert invoke("--config", file, "up").exit_code == 0
    stack = next(each for each in ran if isinstance(each, StackSettings))
    assert stack.given == {"stage": (Path("/usr"), Path("/etc")), "warm_memory_mib": 0}
    assert (stack.managers, stack.cpus, stack.logs_to_files, stack.drain_s) == (("sandbox",), 1, False, 3.0)
    assert invoke("--config", file, "scheduler").exit_code == 0
    assert ran[-1].expect == ("sandbox",)


WRONG = [
    ("scheduler", "[scheduler\n", "cannot be read: Expected"),
    ("scheduler", "[scheduler]\nlisten = 1\nlisten = 2\n", "cannot be read: Cannot overwrite"),
    ("scheduler", 'listen = "127.0.0.1:1"\n', "[listen]: must be a table"),
    ("scheduler", "[shceduler]\n", "[shceduler]: is the table of no command; did you mean scheduler?"),
    ("scheduler", "[elephant]\n", "[elephant]: is the table of no command"),
    ("scheduler", "[[scheduler]]\n", "[scheduler]: must be a table"),
    ("scheduler", "scheduler = 3\n", "[scheduler]: must be a table"),
    (
        "scheduler",
        "[scheduler]\ndata_dri = '/x'\n",
        "[scheduler] data_dri: is no option of this command; did you mean data_dir?",
    ),
    ("scheduler", "[scheduler]\nhelp = true\n", "[scheduler] help: is no option of this command"),
    ("scheduler", "[scheduler]\ndata_dir = '/x'\ndata-dir = '/y'\n", "[scheduler] data-dir: is there twice"),
    ("scheduler", "[scheduler]\nlisten = 7077\n", "[scheduler] listen: 7077: must be HOST:PORT"),
    ("scheduler", "[scheduler]\nexpect = ['sandbox']\n", "[scheduler] expect: ['sandbox']: must be one value"),
    ("scheduler", "[scheduler]\nexpect = 3\n", "[scheduler] expect: 3: must be a text"),
    ("scheduler", "[scheduler]\nlog_level = 'loud'\n", "[scheduler] log_level: 'loud': "),
    ("scheduler", "[scheduler]\ninsecure = 'yes'\n", "[scheduler] insecure: 'yes': must be true or false"),
    ("scheduler", "[scheduler]\nlisten = true\n", "[scheduler] listen: True: must be a text or a number"),
    ("scheduler", "[scheduler]\ntls_cert = '/nowhere.pem'\n", "[scheduler] tls_cert: '/nowhere.pem': "),
    ("scheduler", "[scheduler]\ndatabase_url = 'postgresql://u:hidden@h/n'\n", "[scheduler] database_url: is a secret"),
    ("up", "[up]\ncpus = '1'\n", "[up] cpus: '1': must be a number"),
    ("up", "[up]\ncpus = 1.5\n", "[up] cpus: 1.5: "),
    ("up", "[up]\ncpus = 0\n", "[up] cpus: 0: "),
    ("up", "[up]\ncpus = 1979-05-27\n", "[up] cpus: datetime.date(1979, 5, 27): "),
    ("up", "[up.cpus]\nmost = 3\n", "[up] cpus: {'most': 3}: "),
    ("up", "[up]\nstage = '/usr'\n", "[up] stage: '/usr': must be a list"),
    ("up", "[up]\nnetwork = [443]\n", "[up] network: 443: "),
    ("up", "[up]\nnetwork = ['nowhere']\n", "callsheet.toml: [up] network: 'nowhere': "),
    ("up", "[up]\nmanagers = 'sandbox,nonsense'\n", "callsheet.toml: managers: 'nonsense' is none of"),
    (
        "up",
        "[fleet.roles.sandbox]\ncores = 'two'\n",
        "callsheet.toml: roles.sandbox: cores: 'two': must be a whole number",
    ),
    ("up", "fleet = 3\n", "callsheet.toml: fleet: 3: must be a table"),
    ("manager sandbox", "[manager.sanbox]\n", "[manager.sanbox]: is the table of no command; did you mean sandbox?"),
    ("manager sandbox", "[manager]\ncpus = 1\n", "[manager.cpus]: must be a table"),
    ("manager sandbox", "[manager.sandbox]\nwarm_memory_mib = -1\n", "[manager.sandbox] warm_memory_mib: -1: "),
]


@pytest.mark.parametrize(("command", "text", "told"), WRONG)
def test_a_wrong_file_is_refused_in_one_line(
    tmp_path: Path, ran: list[Any], command: str, text: str, told: str
) -> None:
    result = invoke("--config", written(tmp_path, text), *command.split())
    assert result.exit_code == 2, result.output
    assert not ran
    (line,) = result.output.splitlines()
    assert line.startswith(f"callsheet: {tmp_path}/callsheet.toml: ")
    assert told in line
    assert "hidden" not in line


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path: Path, ran: list[Any]) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for name, told in (("nowhere", "nowhere"), ("binary", "binary: cannot be read")):
        result = invoke("scheduler", CALLSHEET_CONFIG=str(tmp_path / name))
        assert (result.exit_code, ran, told in result.output) == (2, [], True), result.output


def test_the_file_of_a_secret_yields_to_a_secret_of_a_better_source(tmp_path: Path, ran: list[Any]) -> None:
    (tmp_path / "url").write_text("postgresql://u:of_the_file@h/n")
    file = written(tmp_path, f"[scheduler]\ndatabase_url_file = '{tmp_path / 'url'}'\n")
    asked = {
        "postgresql://u:of_the_file@h/n": {},
        "postgresql://u:other@h/n": {"CALLSHEET_DATABASE_URL": "postgresql://u:other@h/n"},
    }
    for url, variables in asked.items():
        result = invoke("--config", file, "scheduler", **variables)
        assert result.exit_code == 0, result.output
        assert ran.pop().settings.database_url == url


def test_up_takes_what_its_managers_take(tmp_path: Path, ran: list[Any]) -> None:
    words = ("--managers", "sandbox", "--cpus", "1", "--warm-memory-mib", "0", "--no-keep-set-ups")
    assert invoke("up", *words).exit_code == 0
    (stack,) = (each for each in ran if isinstance(each, StackSettings))
    assert stack.given == {"warm_memory_mib": 0, "keep_set_ups": False}
    result = invoke("up", *words, "--kv-cache-tokens", "64")
    assert result.exit_code == 2
    assert "kv_cache_tokens: '64': is for a manager of inference" in result.output
    fleet = written(tmp_path, "[fleet.roles.noop]\ncores = 1\nmemory_mib = 1\n")
    result = invoke("--config", fleet, "up", "--cpus", "1", "--warm-memory-mib", "0")
    assert "warm_memory_mib: '0': is for a manager of sandbox" in result.output


def test_a_fleet_is_a_table_of_the_file(tmp_path: Path, ran: list[Any]) -> None:
    text = "[fleet.roles.sandbox]\nnodes = [0, 2]\ncores = 1\nmemory_mib = 512\n[up]\ncpus = 1\n"
    file = written(tmp_path, text)
    for words in (("--config", file, "up"), ("up", "--cpus", "1", "--fleet", file)):
        result = invoke(*words)
        assert result.exit_code == 0, result.output
        wanted = next(each for each in ran if isinstance(each, FleetSettings))
        assert wanted.roles["sandbox"].nodes == (0, 2)
        ran.clear()
    result = invoke("--config", file, "up", "--nodes", "2")
    assert result.exit_code == 2
    assert "nodes: 2: must not be given with a fleet's file" in result.output
    other = tmp_path / "fleet.toml"
    other.write_text("[roles.noop]\ncores = 1\nmemory_mib = 1\n")
    assert invoke("--config", file, "up", "--fleet", str(other)).exit_code == 0
    assert list(next(each for each in ran if isinstance(each, FleetSettings)).roles) == ["noop"]


@pytest.mark.parametrize(("command", "text", "told"), WRONG)
def test_check_refuses_what_the_command_refuses(
    tmp_path: Path, ran: list[Any], command: str, text: str, told: str
) -> None:
    lines = wrong_in(tmp_path, text)
    assert not ran, command
    assert told.removeprefix("callsheet.toml: ") in "\n".join(lines)
    assert all(line.removeprefix("callsheet: ").startswith(f"{tmp_path}/callsheet.toml: ") for line in lines)
    assert "hidden" not in "\n".join(lines)


@pytest.mark.parametrize(
    ("prices", "told"),
    [
        (
            ["cows=1"],
            "'cows=1': must be cpu, memory, gpu, tokens_in, tokens_cached, tokens_out, calls or calls:SERVICE",
        ),
        (["calls:=1"], "'calls:=1': must be cpu"),
        (["gpu:a=1"], "'gpu:a=1': must be cpu"),
        (["cpu"], "'cpu': its amount must be a number of at least 0"),
        (["cpu=1", "memory=free"], "'memory=free': its amount must be a number of at least 0"),
        (["cpu=-1"], "'cpu=-1': its amount must be a number of at least 0"),
        (["cpu=nan"], "'cpu=nan': its amount must be a number of at least 0"),
        (["cpu=inf"], "'cpu=inf': its amount must be a number of at least 0"),
        (["cpu=1", "calls:a=2", "cpu=1"], "'cpu': must be given once"),
    ],
)
def test_check_names_a_wrong_price(tmp_path: Path, prices: list[str], told: str) -> None:
    (line,) = wrong_in(tmp_path, f"[scheduler]\nprice = {prices}\n")
    assert f"callsheet.toml: [scheduler] price: {told}" in line


@pytest.mark.parametrize(
    ("table", "line", "wrong"),
    [
        ("scheduler", "price = ['cows=1', 'cpu=-1', 3, nan, true, ['a']]", "'cows=1' 'cpu=-1' 3 nan True ['a']"),
        ("scheduler", "price = ['cpu=1', 'gpu=1', 'calls=1', 'gpu=2', 'cpu=1']", "'cpu', 'gpu': must be given once"),
        ("up", "price = ['cows=1', 'gpu=-1']", "'cows=1' 'gpu=-1'"),
        ("up", "stage = ['nowhere', '/usr', '/nowhere']", "'nowhere' '/nowhere'"),
        ("up", "network = ['nowhere', '*:443', 'h:99999']", "'nowhere' 'h:99999'"),
        ("up", "registry = ['http://x', '*', 'docker.io', 'a/b']", "'http://x' 'a/b'"),
        ("up", "url = ['h:1', 'http://h:1', 'ftp://h']", "'h:1' 'ftp://h'"),
        ("up", "managers = 'no,sandbox,such'", "'no', 'such' is none of"),
        ("up", "managers = 'noop,sandbox,noop,sandbox'", "'noop', 'sandbox' may be given once"),
        ("manager.sandbox", "insecure_registry = ['*', 'h', 'a/b']", "'*' 'a/b'"),
        ("manager.inference", "weights_below = ['weights', '/weights', 's3://']", "'weights' 's3://'"),
        ("manager.reward", "memory_budget_mib = 1\nmodel = ['a', 'b=/x', 'c=/x,more']", "'a' 'c=/x,more'"),
        ("eval", "task_option = ['a', 'b=1', '=2']", "'a' '=2'"),
    ],
)  # fmt: skip
def test_check_names_each_wrong_value_of_a_list(tmp_path: Path, table: str, line: str, wrong: str) -> None:
    lines = wrong_in(tmp_path, f"[{table}]\n{line}\n")
    key = line.rpartition("\n")[2].partition(" ")[0]
    told = [each.partition(f"[{table}] {key}: ")[2] for each in lines]
    if " must " in wrong or " is " in wrong or " may " in wrong:
        assert told[0].startswith(wrong)
    else:
        assert [each.rpartition(": ")[0].partition(": ")[0] for each in told] == wrong.split(" "), lines
    assert all(told)


@pytest.mark.parametrize(
    "text",
    [
        "database_url = 'postgresql://u:hidden@h/n'",
        "[facade]\nauth_token = 'hidden'",
        "[manager]\nengine_api_key = ['hidden']",
        "[facade.e2b]\nauth_token = ['hidden']",
        "[scheduler]\nredis_url = {url = 'hidden'}",
        "[scheduler]\nredis_ulr = 'redis://:hidden@h'",
        "[scheduler]\notlp_endpoint = 'http://u:hidden@h:1'",
        "[manager.inference]\nurl = ['http://u:hidden@h:1']",
        "[gateway]\nparser_api_key = 'hidden'",
    ],
)
def test_check_shows_no_secret_wherever_it_stands(tmp_path: Path, text: str) -> None:
    told = "\n".join(wrong_in(tmp_path, text))
    assert (told.count("hidden"), told.count("callsheet.toml: [")) == (0, 1)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "9" * 20, "-" + "9" * 400])
@pytest.mark.parametrize(("table", "key"), [("scheduler", "heartbeat_interval"), ("up", "drain_s"), ("up", "cpus")])
def test_check_refuses_what_is_no_number_of_a_machine(tmp_path: Path, table: str, key: str, value: str) -> None:
    (line,) = wrong_in(tmp_path, f"[{table}]\n{key} = {value}\n")
    assert f"[{table}] {key}: {value}: " in line


@pytest.mark.parametrize(
    "content", [b"\xff\xfe", b"\xef\xbb\xbf[up]", b"[up]\n\0", b"a = " + b"[" * 5000, b"a = " + b"9" * 5000]
)
def test_check_says_what_is_no_toml(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "callsheet.toml"
    file.write_bytes(content)
    result = invoke("--config", str(file), "config", "check")
    assert (result.exit_code, len(result.output.splitlines())) == (2, 1), result.output
    assert f"{file}: cannot be read: " in result.output


def test_check_looks_at_commands_with_arguments(tmp_path: Path) -> None:
    text = "[trace]\noutput = 'run.json'\n[eval]\nconcurrency = 0\n[top]\ninterval = nan\n[config.show]\njson = 3\n"
    told = [line.rpartition("callsheet.toml: ")[2].partition(":")[0] for line in wrong_in(tmp_path, text)]
    assert told == ["[eval] concurrency", "[top] interval", "[config.show] json"]


@pytest.mark.parametrize(
    ("text", "words", "told"),
    [
        ("[scheduler]\nprice = ['cpu=1']\n[up]\nprice = ['cpu=2']\n", (), (["cpu=1"], "")),
        ("[up]\nprice = ['cpu=2']\n", (), (["cpu=2"], "")),
        ("[scheduler]\nprice = ['cpu=1']\n[dashboard]\nprice = ['cpu=3']\n", (), (["cpu=3"], "")),
        ("[scheduler]\nprice = ['cpu=1']\n", ("--price", "gpu=4"), (["gpu=4"], "the command line")),
        ("[scheduler]\nlisten = '127.0.0.1:1'\n", (), (None, "the default")),
    ],
)
def test_a_dashboard_takes_the_prices_of_its_scheduler(
    tmp_path: Path, text: str, words: tuple[str, ...], told: tuple[Any, str]
) -> None:
    file = written(tmp_path, text)
    result = invoke("--config", file, "config", "show", "--json", "dashboard", "--data-dir", "/x", *words)
    shown = {each["option"]: (each["value"], each["source"]) for each in json.loads(result.stdout)["options"]}
    assert shown["--price"] == (told[0], told[1] or file)


def test_a_wrong_price_of_the_scheduler_is_told_where_it_stands(tmp_path: Path) -> None:
    file = written(tmp_path, "[scheduler]\nprice = ['cows=1']\n")
    result = invoke("--config", file, "dashboard", "--data-dir", str(tmp_path))
    assert result.exit_code == 2
    assert f"{file}: [scheduler] price: 'cows=1': must be cpu" in result.output
    assert invoke("--config", file, "config", "check").output.count("cows") == 1


def test_check_names_all_that_is_wrong(tmp_path: Path) -> None:
    text = """
    [upp]
    [up]
    cpus = "1"
    warm_memory_mib = -1
    manager = "sandbox"
    [scheduler]
    listen = "0.0.0.0:7077"
    [manager.sandbox]
    share_cores = "some"
    [fleet.roles.noop]
    cores = 1
    """
    told = [line.rpartition("callsheet.toml: ")[2] for line in wrong_in(tmp_path, text)]
    parts = (
        "[upp]",
        "[up] cpus",
        "[up] warm_memory_mib",
        "[up] manager",
        "[manager.sandbox]",
        "roles.noop",
        "[scheduler]",
    )
    assert [line.partition(":")[0].startswith(part) for line, part in zip(told, parts, strict=True)] == [True] * 7


@pytest.mark.parametrize("words", [(), ("--config", "nowhere")])
def test_check_needs_a_file(words: tuple[str, ...]) -> None:
    assert invoke(*words, "config", "check", CALLSHEET_CONFIG="").exit_code == 2


def test_check_says_what_a_right_file_is_for(tmp_path: Path, ran: list[Any]) -> None:
    text = "[up]\ncpus = 1\n[manager.sandbox]\nkeep_set_ups = false\n[fleet.roles.noop]\ncores = 1\nmemory_mib = 1\n"
    result = invoke("--config", written(tmp_path, text), "config", "check")
    assert (result.exit_code, ran) == (0, []), result.output
    assert "values for up, manager sandbox" in result.output


def test_show_says_where_each_value_comes_from(tmp_path: Path, ran: list[Any]) -> None:
    file = written(tmp_path, "[scheduler]\nexpect = 'sandbox'\nlisten = '127.0.0.1:1'\nlog_level = 'debug'\n")
    words = (
        "config",
        "show",
        "--json",
        "scheduler",
        "--listen",
        "127.0.0.1:2",
        "--database-url",
        "postgresql://u:pw@h/n",
    )
    result = invoke("--config", file, *words, CALLSHEET_LOG_LEVEL="warning")
    assert (result.exit_code, ran) == (0, []), result.output
    assert "pw" not in result.stdout
    shown = {each["option"]: (each["value"], each["source"]) for each in json.loads(result.stdout)["options"]}
    expected = {
        "--listen": ("127.0.0.1:2", "the command line"),
        "--log-level": ("warning", "the variable CALLSHEET_LOG_LEVEL"),
        "--expect": ("sandbox", file),
        "--insecure": (False, "the default"),
        "--database-url": ("(a secret)", "the command line"),
        "--tls-cert": (None, "the default"),
    }
    assert {option: shown[option] for option in expected} == expected


@pytest.mark.parametrize("words", [("upp",), ("manager",), ("up", "--nonsense", "3"), ("up", "--cpus", "many"), ()])
def test_show_refuses_what_is_no_command_or_option(words: tuple[str, ...]) -> None:
    result = invoke("config", "show", *words)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output

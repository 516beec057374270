#!/usr/bin/env bash
# Runs suites in the ways in which people start Callsheet, inside of the machine of scripts/v2_machine.sh, as root.
#
#   v2_ways.sh [WAY[:SUITE,SUITE]...]
#
# Ways: root, system-unit, login, user-unit and forbidden (user namespaces), which are the default; also root-login, and
# user-scope and user-service, which are not delegated. Suites: up, containment, sharing, memory; $SUITES without a name.
# $SECONDS_EACH is the longest that a suite may take.
set -uo pipefail
cd /opt/callsheet || exit 1
here=scripts/v2_ways.sh

up() {
    local data log address
    data=$(mktemp -d) && log=$data/up
    .venv/bin/callsheet up --managers sandbox --gateway none --listen 127.0.0.1:0 --data-dir "$data" >"$log" 2>&1 &
    until grep -q 'manager is ready' "$log"; do kill -0 $! 2>/dev/null || break; sleep 1; done
    grep -v INFO "$log"
    address=$(sed -n 's/^callsheet is up on \([^;]*\);.*/\1/p' "$log")
    [[ -n $address ]] || return 1
    grep -E 'groups_obtained|cores_shared_plainly' "$data"/logs/sandbox.log
    cat "/proc/$!/cgroup"
    CALLSHEET_SCHEDULER=$address .venv/bin/python - <<'PYTHON'
import time
import anyio
from callsheet.client import Client
BOMB = "python3 -c \"import os; [os.fork() for _ in range(6)]; b = bytearray(40 << 20); import time; time.sleep(5)\""
def show(*words):
    print(time.strftime("%H:%M:%S"), *words, flush=True)
async def main():
    async with Client.from_env() as client, await client.open_job("hello") as job, job.trajectory("t-1") as t:
        show("hello:", await t.env_reset())
        show("hello:", await t.env_step("echo hi | tee greeting; nproc"))
        show("hello:", await t.reward_tests("grep -q hi greeting"))
        show("one process of 3 GB:", await t.env_step("python3 -c 'x = bytearray(3 << 30)'"))
        show("again:", await t.env_reset())
        show("64 processes of 40 MB:", await t.env_step(BOMB))
anyio.run(main)
PYTHON
    date -u +%H:%M:%S
    kill $! && wait $!
}

# Tests by KEYWORDS, in a scope as `up` and the managers ask for it. Sandboxes are in groups, unless those are not there.
tests() {
    CALLSHEET_TEST_ANSWER_S=900 .venv/bin/python -c 'import sys, pytest
from callsheet.managers.sandbox.cgroups import obtain_groups
print(obtain_groups(), flush=True)
options = ["-q", "--color=no", "-p", "no:cacheprovider", "-o", "timeout=1800", "--tb=short"]
keywords = f"not docker and not affinity and not unprivileged and ({sys.argv[1]})"
sys.exit(pytest.main([*options, "-k", keywords, *sys.argv[2:]]))' "$@"
}
containment() { tests 'not none-' tests/integration/sandbox_containment/test_containment_{limits,pauses,attacks,walls}.py; }
# test_default_sharing.py needs a model, thus torch, which is not there.
sharing() { tests 'not none-' tests/integration/test_shared_cores.py; }
memory() { tests 'test' tests/integration/test_memory_by_need.py tests/integration/test_command_metering.py; }

if [[ ${1-} == --suite ]]; then
    "$2"
    exit
fi
allowed=$(sysctl -n user.max_user_namespaces)
for argument in ${*:-root system-unit login user-unit forbidden}; do
    way=${argument%%:*} suites=$SUITES
    [[ $argument == "$way" ]] || suites=${argument#*:}
    for suite in ${suites//,/ }; do
        echo "=== $way: $suite ($(date -u +%H:%M:%S))"
        run=(timeout -k 10 "$SECONDS_EACH" "$PWD/$here" --suite "$suite")
        case $way in
        root) "${run[@]}" ;;
        system-unit) systemd-run -q --wait --pipe --collect -p User=u -p Delegate=yes "${run[@]}" ;;
        login) runuser -l u -c "${run[*]}" ;;
        user-unit)
            loginctl enable-linger u && systemctl start user@1000.service
            systemd-run -q --user --machine=u@.host --wait --pipe --collect -p Delegate=yes "${run[@]}"
            ;;
        root-login) runuser -l root -c "${run[*]}" ;;
        user-scope) runuser -l u -c "systemd-run -q --user --scope ${run[*]}" ;;
        user-service) runuser -l u -c "systemd-run -q --user --wait --pipe --collect ${run[*]}" ;;
        forbidden) sysctl -q -w user.max_user_namespaces=0 && runuser -l u -c "${run[*]}" ;;
        esac </dev/null
        echo "=== $way: $suite ended with $? ($(date -u +%H:%M:%S))"
        loginctl disable-linger u
        sysctl -q -w user.max_user_namespaces="$allowed"
    done
done

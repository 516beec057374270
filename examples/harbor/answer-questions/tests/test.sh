#!/bin/bash
ask() {
    [ -p /srv/question ] && [ -p /srv/answer ] || return 1
    timeout 5 bash -c 'echo "$1" >/srv/question; read -r answer </srv/answer; echo "$answer"' ask "$1"
}

if [ "$(ask 7)" = 49 ] && [ "$(ask 12)" = 144 ]; then
    echo 1 >/logs/verifier/reward.txt
else
    echo 0 >/logs/verifier/reward.txt
fi

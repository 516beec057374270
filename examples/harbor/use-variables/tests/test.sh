#!/bin/bash

if [ "$(cat /srv/greeting.txt)" = "$EXPECTED" ]; then
    echo 1 >/logs/verifier/reward.txt
else
    echo 0 >/logs/verifier/reward.txt
fi

#!/bin/bash

if [ "$(cat /app/errors.txt)" = "$(grep -rh ^ERROR /var/log/app | wc -l)" ] && [ "$(ls /var/log/app | wc -l)" = 20 ]; then
    echo 1 >/logs/verifier/reward.txt
else
    echo 0 >/logs/verifier/reward.txt
fi

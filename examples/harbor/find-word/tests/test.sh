#!/bin/bash

if [ "$(cat /app/found.txt)" = /usr/share/texts/7/13 ]; then
    echo 1 >/logs/verifier/reward.txt
else
    echo 0 >/logs/verifier/reward.txt
fi

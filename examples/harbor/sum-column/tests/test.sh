#!/bin/bash

if [ "$(cat /app/total.txt)" = 4211 ] && cmp /app/orders.csv /tests/orders.csv; then
    echo 1 >/logs/verifier/reward.txt
else
    echo 0 >/logs/verifier/reward.txt
fi

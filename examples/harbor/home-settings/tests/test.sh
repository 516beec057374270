#!/bin/bash

if grep -qx color=blue ~/.config/paint/settings; then
    echo 1 >/logs/verifier/reward.txt
else
    echo 0 >/logs/verifier/reward.txt
fi

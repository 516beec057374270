#!/bin/bash

if [ "$(greet Ada "Alan T")" = $'Hello, Ada!\nHello, Alan T!' ] && [ -z "$(greet)" ]; then
    echo 1 >/logs/verifier/reward.txt
else
    echo 0 >/logs/verifier/reward.txt
fi

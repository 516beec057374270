#!/bin/bash
right=0
for name in one two three; do
    if [ "$(cat "$name")" = "$name" ]; then
        right=$((right + 1))
    fi
done
awk -v right="$right" 'BEGIN { printf "{\"reward\": %.6f, \"files\": %d}", right / 3, right }' >/logs/verifier/reward.json

#!/bin/bash
for name in one two three; do
    echo "$name" >"$name"
done

#!/bin/bash
while true; do
    read -r number </srv/question
    echo $((number * number)) >/srv/answer
done

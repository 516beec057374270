#!/bin/bash
mkfifo /srv/question /srv/answer
nohup bash /solution/answer.sh >/dev/null 2>&1 &

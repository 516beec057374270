#!/bin/bash
echo "$GREETING" >/srv/greeting.txt

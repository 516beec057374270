#!/bin/bash
awk -F, 'NR > 1 { total += $3 } END { print total }' /app/orders.csv >/app/total.txt

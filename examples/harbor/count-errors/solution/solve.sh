#!/bin/bash
cat /var/log/app/* | grep -c ^ERROR >/app/errors.txt

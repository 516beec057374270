#!/bin/sh
echo "Hello, world!" >/srv/hello.txt

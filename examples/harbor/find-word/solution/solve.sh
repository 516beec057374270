#!/bin/bash
grep -rl callsheet /usr/share/texts >/app/found.txt

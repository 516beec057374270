#!/bin/bash
for file in /app/notes/*.txt; do
    mv "$file" "${file%.txt}.md"
done

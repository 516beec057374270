#!/bin/bash
# Says what pytest says in its summary, and exits as it does, in an image without Python.
status=0
check() {
    name=$1
    shift
    if "$@"; then
        echo "PASSED test_outputs.py::$name"
    else
        echo "FAILED test_outputs.py::$name"
        status=1
    fi
}
echo "=========================== short test summary info ============================"
check test_renamed test "$(cat /app/notes/a.md /app/notes/b.md /app/notes/c.md)" = $'a\nb\nc'
check test_others_left test "$(ls /app/notes)" = $'a.md\nb.md\nc.md\nkept.dat'
exit $status

"""The launcher: a small single-threaded process that starts sandboxes for a manager.

A program of its own, run as `python -I -S launcher SOCKET MARKER [DIRECTORY ...]`, where `launcher` is this directory;
it imports nothing but the standard library. It exists because

- bwrap's --die-with-parent ends a sandbox when the THREAD that started it ends, and this process has only one;
- dropping to a pool user, and mounting, between fork and exec is safe here and is not in a process with threads;
- it ends when the manager's socket closes, however the manager ended, and every bwrap with it. Agents of plain
  processes see the same on sockets of their own.

As root it lives in a mount namespace of its own, in which it shows the given directories below /mnt: a pool user could
not walk to them through a home directory that only its owner may enter.

Requests are JSON packets with descriptors, answers are JSON packets:

    {"op": "spawn", "id", "path": null or path, "argv", "env", "uid": null or N, "groups": n, "overlays": null or {...},
        "separate": [directories, ...]}
        with descriptors: stderr, [program where path is null], n cgroup.procs, [a socket where overlays are], then
        those to inherit; "{fd:I}" in argv names the I-th of the last; overlays are described in `overlays.py`
    {"op": "kill", "pid"}
    {"op": "settle", "id", "pid", "files": {path: n}, "terminals": n, "settings": {name below /proc/sys: value}}
    {"event": "ready", "directories"}, {"event": "unusable", "message"}, {"event": "spawned", "id", "pid"},
    {"event": "settled", "id"}, {"event": "failed", "id", "message"}, {"event": "exited", "pid", "status"}

Run as `python -I -S launcher probe WHAT`, it prints as JSON whether that works here: overlays can be mounted, System V
objects be bounded (`system_v`), or files of the system be shown with locks of their own (`separate`).
"""

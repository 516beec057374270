"""The agent: the first process of a sandbox, which starts commands and moves files on the manager's word.

A program of its own, run by the system's Python inside the sandbox as `python3 -I -S agent/__main__.py SOCKET WORK
TEMPORARY`, where SOCKET is an inherited descriptor; in a container SOCKET is a path, and the path of a seccomp filter
follows. Then comes the path of a filter by which the kernel asks, with how many netlink sockets there may be, and where
no group counts memory, how many bytes of shared memory. It imports nothing but the standard library and works with
Python 3.8. As PID 1 of the sandbox it adopts every orphan and its end is the sandbox's end; with plain processes it is
a subreaper instead. It ends when the manager closes the socket.

Requests are JSON packets with descriptors: the first one holds the request's details as JSON (a sealed memory file), so
that their size is not bounded by a packet. Every request that runs something is a job in a child process:

    {"op": "run", "id": N}    details, the command's descriptors, [group entries, ...]
    {"op": "write", "id": N}  details, content
    {"op": "read", "id": N}   details, output
    {"op": "remove", "id": N} details, an unused descriptor
    {"op": "clear", "id": N}  the same, for a directory with all that is in it
    {"op": "listen", "id": N} details, a socket that gets a listening one
    {"op": "signal", "id": N, "signal": S}   S to all processes of the sandbox but the agent
    {"op": "hold", "id": N}   SIGSTOP to all processes of the sandbox, which SIGCONT to all leaves stopped from now on
    {"op": "let_go", "id": N} SIGCONT to those
    {"op": "kill", "id": N, "job": J}   SIGKILL to the process of job J
    {"op": "interrupt", "id": N, "job": J, "since": T}   SIGKILL to all processes that began after second T since boot
        and are no job of their own, then SIGUSR1 to job J

    {"event": "hello", "landlock": version or 0}, {"event": "started", "id", "pid"}, {"event": "signalled", "id"},
    {"event": "exited", "id", "status", "cpu_us", "peak_kib", "refused": null or [stage, errno]}
"""

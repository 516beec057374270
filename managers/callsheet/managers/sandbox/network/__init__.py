"""Network of a sandbox: it reaches nothing, or the destinations that its env_reset names.

A sandbox has a network of its own with nothing in it but a loopback, and no privilege here could give it more. A
destination is reached through the manager: the agent makes a listening socket on the sandbox's loopback and hands
it over, so that connections come out of the sandbox's network although the manager's process takes them.

A port of the machine's loopback has the same port on the sandbox's, so that a URL means the same in both. All else goes
through a proxy, which knows CONNECT and requests of plain HTTP. It resolves names itself and never connects to an
address of this machine or of a private network, unless that address itself was named.

| module | what it does |
|---|---|
| `destinations.py` | destinations, and which of them cover which; pure |
| `addresses.py` | the addresses that a name may lead to |
| `plain_http.py` | what a request to a proxy becomes on its way to the server; pure |
| `proxy.py` | one connection |
| `doors.py` | the listening sockets of all sandboxes |
"""

"""How the simulated machines behave; nothing in here decides. What is assumed, for those who judge the numbers:

- A command needs a fixed amount of CPU and waits for I/O a fixed time, in turn. With less CPU than it could use, its
  computing takes longer, and its waits take as long as ever. Sharing itself costs nothing: no context switches, no cold
  caches. Cores are alike; NUMA plays no part.
- Its execution clock runs at the share it gets of the CPU it could use, whoever schedules it: load makes no timeouts,
  so that all policies do the same work.
- An attempt that fails has done all its work before.
- An image comes to a node once and stays. A model comes from disk to a node's memory once and stays there.
- Calls that share an instance of a model do not slow each other down; its `slots` are how many it bears.
"""

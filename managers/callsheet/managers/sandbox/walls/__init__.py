"""The kernel's rules around a sandbox: system calls, file domains and users."""

"""The demo: real agentic rollouts through scheduler and managers on one machine. See docs/concepts/demo.md."""
